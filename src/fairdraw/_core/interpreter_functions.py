"""Tapes of whole device functions: all their operations in a row, without the function between them.

A helper such as `argmax_order` does the same operations whenever its arguments have the same types, shapes and
constants, unless it looks at a number. So its operations are recorded, and then replayed as one.

    first calls   function -> operation -> tape -> builder        what the tapes do is written down, in order
    then          function             -> tape -> builder

A function that branches or loops by a number has no tape, nor one that does what no tape says: atomics, for example.
The helpers that it calls have theirs.
"""

from __future__ import annotations

from functools import cache, wraps
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from .interpreter_tapes import SAME, WHOLE, Parts, Tapes, as_theirs

if TYPE_CHECKING:
    from collections.abc import Callable

WORTH = 4
"""Calls with the same key after which one is recorded: that takes as long as some dozens."""
MOST = 1_000
"""Tapes of one function; others depend on constants that differ in each call."""
PLAIN = (int, float, bool, str, type(None))
"""What a function may return beside tensors and tuples of these."""


def record_functions(interpreter: Any, tapes: Tapes) -> None:  # Any: Triton's modules have no types, here and below
    """Let device functions and reductions have tapes."""
    kind = interpreter.InterpretedFunction
    call = kind.__call__
    functions = _Functions(interpreter, tapes, call)

    @wraps(call)
    def called(self: Any, *arguments: Any, **named: Any) -> Any:
        return functions.call(self, arguments, named)

    kind.__call__ = called
    patch = interpreter._patch_reduce_scan

    @wraps(patch)
    def patched(scope: Any) -> None:
        patch(scope)
        language = interpreter.tl
        for name, make in (("reduce", _reduction), ("associative_scan", _scan)):
            for owner in (language, language.core):
                scope.set_attr(owner, name, functions.noted(getattr(owner, name), make))

    interpreter._patch_reduce_scan = patched


class _Functions:
    """Tapes of the functions of one interpreter.

    Args:
        call: What a device function's `__call__` was.
    """

    def __init__(self, interpreter: Any, tapes: Tapes, call: Callable[..., Any]) -> None:
        self.interpreter, self.tapes, self._call = interpreter, tapes, call
        self._philox = interpreter.tl.random.philox_impl
        self.known: dict[Any, dict[Any, Any]] = {}  # function to key to its tape, `None`, or the number of calls so far

    def call(self, function: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        tapes = self.tapes
        if tapes.is_recording or tapes.builder.options is not tapes.options:
            return self._call(function, *arguments, **named)
        if tapes.grid.is_active:
            return tapes.grid.done(lambda: self._of_grid(function, arguments, named))
        known = self.known.get(function)
        if known is None:
            known = self.known[function] = {}
        handles: list[Any] = []
        key = self._whole_key(arguments, named, handles)
        try:
            tape = known.get(key, 0)
        except TypeError:
            return self._call(function, *arguments, **named)
        if tape is None:
            return self._call(function, *arguments, **named)
        if type(tape) is int:
            return self._counted(function, known, key, handles, arguments, named)
        try:
            result = tape(handles)
        except Exception as error:
            raise self.interpreter.InterpreterError(repr(error)) from error
        if tapes.of_function is not None:
            tapes.of_function.note(tape, handles, result)
        return result

    def _of_grid(self, function: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """As `call`, for many programs at once."""
        grid = self.tapes.grid
        handles: list[Any] = []
        key = self._whole_key(arguments, named, handles)
        handles = [*map(grid.narrowed, handles)]
        known = self.known.get(function)
        if known is None:
            known = self.known[function] = {}
        if not known:
            function.fn.__globals__.setdefault("range", grid.range)
        try:
            tape = known.get(key, 0)
        except TypeError:
            tape = None
        recorder = self.tapes.of_function
        if type(tape) is int:
            if function is self._philox and all(kind == "uint32" for kind in key[:6]) and not named:
                tape = known[key] = self._tape_of_philox(arguments)
            else:
                return self._grid_counted(function, known, key, handles, arguments, named)
        if tape is None or not tape.parts.is_whole:
            return grid.call(lambda: self._call(function, *arguments, **named))
        try:
            result = grid.played(tape, handles)
        except Exception as error:
            raise self.interpreter.InterpreterError(repr(error)) from error
        if recorder is not None:
            recorder.note(tape, handles, result)
        return result

    def _grid_counted(
        self,
        function: Any,
        known: dict[Any, Any],
        key: Any,
        handles: list[Any],
        arguments: tuple[Any, ...],
        named: dict[str, Any],
    ) -> Any:
        """As `_counted`."""
        grid, tapes = self.tapes.grid, self.tapes
        known[key] = known.get(key, 0) + 1
        if tapes.of_function is not None or known[key] < WORTH or len(known) > MOST:
            return grid.call(lambda: self._call(function, *arguments, **named))
        return self._recorded(known, key, handles, lambda: grid.call(lambda: self._call(function, *arguments, **named)))

    def _whole_key(self, arguments: tuple[Any, ...], named: dict[str, Any], handles: list[Any]) -> Any:
        key: Any = tuple([self._key_of(value, handles) for value in arguments])
        if named:
            key += tuple([(name, self._key_of(value, handles)) for name, value in named.items()])
        places = {id(handle): place for place, handle in enumerate(handles)}
        if len(places) < len(handles):  # which of them are one
            key += (SAME, *(places[id(handle)] for handle in handles))
        return key

    def _key_of(self, value: Any, handles: list[Any]) -> Any:
        """As `Tapes.key_of`; tensors inside of tuples are looked for, too."""
        kind = type(value)
        if kind is self.tapes.tensor:
            handles.append(value.handle)
            return value.type.name
        if kind is tuple or kind is self.tapes.tuple:
            return kind, *[self._key_of(one, handles) for one in value]
        return self.tapes.key_of(value, None)

    def _counted(
        self,
        function: Any,
        known: dict[Any, Any],
        key: Any,
        handles: list[Any],
        arguments: tuple[Any, ...],
        named: dict[str, Any],
    ) -> Any:
        """Not yet recorded; or this time, if it was called often enough and no other is being recorded."""
        if function is self._philox and all(kind == "uint32" for kind in key[:6]) and not named:
            known[key] = self._tape_of_philox(arguments)
            return self.call(function, arguments, named)
        known[key] = known.get(key, 0) + 1
        tapes = self.tapes
        if tapes.of_function is not None or known[key] < WORTH:
            return self._call(function, *arguments, **named)
        if len(known) > MOST:
            known[key] = None
            return self._call(function, *arguments, **named)
        return self._recorded(known, key, handles, lambda: self._call(function, *arguments, **named))

    def _recorded(self, known: dict[Any, Any], key: Any, handles: list[Any], run: Callable[[], Any]) -> Any:
        """A call that is written down: from now on its tape is known, or that it has none."""
        tapes = self.tapes
        tapes.of_function = recorder = _FunctionRecorder(self.interpreter, handles)
        before, tapes.semantic.builder = tapes.semantic.builder, recorder
        try:
            result = run()
        finally:
            tapes.of_function, tapes.semantic.builder = None, before
        known[key] = recorder.tape_of(result)
        return result

    def _tape_of_philox(self, arguments: tuple[Any, ...]) -> Any:
        """Of one block of random numbers, with integers of Python in place of some 130 operations."""
        tensor, handle = self.tapes.tensor, self.interpreter.TensorHandle
        template = {name: value for name, value in vars(arguments[0]).items() if name != "handle"}
        rounds = arguments[6] if len(arguments) > 6 else self.interpreter.tl.random.N_ROUNDS_DEFAULT
        block_of: Any = _philox_of(handle, template["dtype"], getattr(rounds, "value", rounds))

        def again(change: Callable[[Any], Any]) -> Callable[[list[Any]], Any]:
            block = change(block_of)

            def play(handles: list[Any]) -> Any:
                found = []
                for made in block(*handles):
                    result = object.__new__(tensor)
                    result.__dict__.update(template, handle=made)
                    found.append(result)
                return tuple(found)

            return play

        play: Any = again(lambda function: function)
        play.again = again

        items = [(itemgetter(number), (6,), 7 + number) for number in range(4)]
        play.parts = Parts(6, [(block_of, tuple(range(6)), 6), *items], {}, [7, 8, 9, 10])
        return play

    def noted(self, operation: Any, make: Callable[..., Any]) -> Any:
        """A reduction or scan of one tensor, as a step of the function that does it.

        Args:
            make: From types and constants to the step.
        """
        tapes = self.tapes

        def of_grid(given: Any, axis: Any, combine_fn: Any, *rest: Any, **named: Any) -> Any:
            recorder, before = tapes.of_function, tapes.semantic.builder
            tapes.of_function, tapes.semantic.builder = None, tapes.builder
            try:
                if type(given) is not tapes.tensor:
                    step, used = None, []
                    result = tapes.grid.each(operation, (given, axis, combine_fn, *rest), named)
                else:
                    result, step, used = tapes.grid.reduced(
                        lambda one: operation(one, axis, combine_fn, *rest, **named),
                        given,
                        lambda made: (
                            make(self.interpreter, _rank_of(given), made, axis, combine_fn, *rest, **named)
                            if type(made) is tapes.tensor
                            else None
                        ),
                    )
            finally:
                tapes.of_function, tapes.semantic.builder = recorder, before
            if recorder is not None:
                recorder.note(None if step is None else _OneStep(Parts(1, [(step, (0,), 1)], {}, [1])), used, result)
            return result

        @wraps(operation)
        def reduced(given: Any, axis: Any, combine_fn: Any, *rest: Any, **named: Any) -> Any:
            recorder = tapes.of_function
            if tapes.grid.is_active:
                return tapes.grid.done(lambda: of_grid(given, axis, combine_fn, *rest, **named))
            if recorder is None:
                return operation(given, axis, combine_fn, *rest, **named)
            tapes.of_function, tapes.semantic.builder = None, tapes.builder
            try:
                result = operation(given, axis, combine_fn, *rest, **named)
            finally:
                tapes.of_function, tapes.semantic.builder = recorder, recorder
            step = None
            if type(given) is tapes.tensor and type(result) is tapes.tensor:
                step = make(self.interpreter, _rank_of(given), result, axis, combine_fn, *rest, **named)
            tape = None if step is None else _OneStep(Parts(1, [(step, (0,), 1)], {}, [1]))
            recorder.note(tape, [given.handle] if step is not None else [], result)
            return result

        return reduced


def _philox_of(handle: Any, dtype: Any, num_rounds: int) -> Callable[..., Any]:
    """Philox 4x32 as `philox_impl`: four handles of such of counters and keys, one number each."""

    def block(*given: Any) -> Any:
        c0, c1, c2, c3, k0, k1 = [one.data.item() for one in given]
        for _ in range(num_rounds):
            of_b, of_a = 0xCD9E8D57 * c2, 0xD2511F53 * c0
            c0, c2 = (of_b >> 32) ^ c1 ^ k0, (of_a >> 32) ^ c3 ^ k1
            c1, c3 = of_b & _UINT32, of_a & _UINT32
            k0, k1 = (k0 + 0x9E3779B9) & _UINT32, (k1 + 0xBB67AE85) & _UINT32
        return [handle(np.array([number], dtype=np.uint32), dtype) for number in (c0, c1, c2, c3)]

    def whole(*given: Any) -> Any:
        c0, c1, c2, c3, k0, k1 = [one.data.astype(np.uint64) for one in given]
        for _ in range(num_rounds):
            of_b, of_a = 0xCD9E8D57 * c2, 0xD2511F53 * c0
            c0, c2 = (of_b >> 32) ^ c1 ^ k0, (of_a >> 32) ^ c3 ^ k1
            c1, c3 = of_b & _UINT32, of_a & _UINT32
            k0, k1 = (k0 + 0x9E3779B9) & _UINT32, (k1 + 0xBB67AE85) & _UINT32
        return [handle(number.astype(np.uint32), dtype) for number in (c0, c1, c2, c3)]

    WHOLE[block] = whole
    return block


_UINT32 = 0xFFFFFFFF


def _rank_of(tensor: Any) -> int:
    return len(tensor.type.shape) if tensor.type.is_block() else 1


class _OneStep:
    """A tape that is a part of others and never played alone."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts


def _reduction(
    interpreter: Any, rank: int, result: Any, axis: Any, combine_fn: Any, keep_dims: bool = False, **named: Any
) -> Any:
    """As `ReduceOps`, of the sums and extremes that NumPy has; `None` for others."""
    standard = interpreter.tl.standard
    functions: dict[Any, Any] = {
        standard._elementwise_max: np.nanmax,
        standard._elementwise_min: np.nanmin,
        standard._sum_combine: np.sum,
    }
    function = functions.get(combine_fn)
    if function is None:
        return None
    new, handle = object.__new__, interpreter.TensorHandle
    dtype, np_dtype = result.dtype.scalar, interpreter._get_np_dtype(result.dtype)
    shape, axis = tuple(result.type.shape) if result.type.is_block() else (), getattr(axis, "value", axis)

    def reduced(source: Any) -> Any:
        found = function(source.data, axis=axis, keepdims=keep_dims)
        made = new(handle)
        made.data = found.astype(np_dtype) if found.shape else np.array([found], dtype=np_dtype)
        made.dtype, made.attr = dtype, {}
        return made

    def whole(source: Any) -> Any:
        data = source.data
        if data.ndim == rank:
            return step(source)
        if axis is None:
            data = data.reshape(len(data), -1)
        found = function(data, axis=1 if axis is None else axis + (axis >= 0), keepdims=keep_dims).astype(np_dtype)
        made = new(handle)
        made.data = found.reshape((len(found), *shape)) if shape else found.reshape(len(found), 1)
        made.dtype, made.attr = dtype, {}
        return made

    step = as_theirs(reduced, interpreter)
    WHOLE[step] = as_theirs(whole, interpreter)
    return step


def _scan(
    interpreter: Any, rank: int, result: Any, axis: Any, combine_fn: Any, reverse: bool = False, **named: Any
) -> Any:
    """As `ScanOps`, of sums from the front; `None` for others."""
    if reverse or combine_fn != interpreter.tl.standard._sum_combine:
        return None
    new, handle = object.__new__, interpreter.TensorHandle
    dtype, np_dtype = result.dtype.scalar, interpreter._get_np_dtype(result.dtype)

    def scanned(source: Any) -> Any:
        made = new(handle)
        made.data, made.dtype, made.attr = np.cumsum(source.data, axis=axis).astype(np_dtype), dtype, {}
        return made

    def whole(source: Any) -> Any:
        data = source.data
        made = new(handle)
        place = axis + (axis >= 0) if data.ndim > rank else axis
        made.data, made.dtype, made.attr = np.cumsum(data, axis=place).astype(np_dtype), dtype, {}
        return made

    step = as_theirs(scanned, interpreter)
    WHOLE[step] = whole
    return step


class _FunctionRecorder:
    """Stands for the builder during one function, and writes down what the tapes of its operations do.

    Args:
        handles: What the function is given.
    """

    def __init__(self, interpreter: Any, handles: list[Any]) -> None:
        self._interpreter: Any = interpreter
        self._builder: Any = interpreter.interpreter_builder
        self._count = self._size = len(handles)
        self._alive: list[Any] = list(handles)  # so that no other handle gets the id of one of them
        self._places = {id(handle): place for place, handle in enumerate(handles)}
        self._steps: list[tuple[Any, tuple[int, ...], int]] = []
        self._constants: dict[int, Any] = {}
        self._has_ids, self._is_whole = False, True
        self.is_known = True

    def __getattr__(self, name: str) -> Any:
        """What is asked of the builder outside of operations: constants. Anything else is in no tape."""
        asked = getattr(self._builder, name)
        if not callable(asked) or name in _HARMLESS:
            return asked
        if not name.startswith("get_"):
            self.is_known = False
            return asked

        def constant(*arguments: Any, **named: Any) -> Any:
            made: Any = asked(*arguments, **named)
            if isinstance(made, self._interpreter.TensorHandle):
                self._place(made, self._copied(self._constant(made.clone())))
            return made

        return constant

    def _place(self, handle: Any, place: int) -> None:
        self._places[id(handle)] = place
        self._alive.append(handle)

    def _slot(self) -> int:
        self._size += 1
        return self._size - 1

    def _constant(self, value: Any) -> int:
        place = self._slot()
        self._constants[place] = value
        return place

    def _copied(self, place: int) -> int:
        """A constant, anew in each call: some operations write to the handles that they are given."""
        copied = self._slot()
        self._steps.append((self._interpreter.TensorHandle.clone, (place,), copied))
        return copied

    def note(self, tape: Any, handles: list[Any], result: Any) -> None:
        """An operation or a function was done; `None` as its tape: nobody knows how."""
        places = [self._places.get(id(handle)) for handle in handles]
        if tape is None or None in places:
            self.is_known = False
        if tape is None or not self.is_known:
            return
        parts: Parts = tape.parts
        self._has_ids |= parts.has_ids
        self._is_whole &= parts.is_whole
        mine: dict[int, Any] = dict(enumerate(places))
        mine |= {slot: self._constant(value) for slot, value in parts.constants.items()}
        for function, arguments, made in parts.steps:
            mine[made] = self._slot()
            self._steps.append((function, tuple(mine[slot] for slot in arguments), mine[made]))
        for handle, slot in zip(_handles_of(result), parts.outs, strict=True):
            self._place(handle, self._copied(mine[slot]) if slot in parts.constants else mine[slot])

    def tape_of(self, result: Any) -> Any:
        """A function of the handles that the function is given; `None` if something is not understood."""
        tensor = self._interpreter.tl.core.tensor
        if not self.is_known or not _is_plain(result, tensor):
            return None
        found = _handles_of(result)
        outs: list[Any] = [self._places.get(id(handle)) for handle in found]
        if None in outs:
            return None
        used = {place for step in self._steps for place in step[1]} | set(outs)
        constants = {place: value for place, value in self._constants.items() if place in used}
        templates: list[Any] = []
        shape = _shape_of(result, tensor, templates)
        outline = (self._count, tuple(step[1:] for step in self._steps), tuple(constants), tuple(outs), shape)
        functions, values = [step[0] for step in self._steps], list(constants.values())
        play = _player(outline)(functions, values, tensor, templates)
        play.again = lambda change: _player(outline)([*map(change, functions)], values, tensor, templates)
        play.parts = Parts(self._count, self._steps, constants, outs, self._has_ids, self._is_whole)
        return play


_HARMLESS = frozenset({"create_barrier"})
"""The interpreter runs a program's threads as one."""


def _handles_of(result: Any) -> list[Any]:
    """Those of all tensors, in order; a store has none."""
    if type(result) is tuple:
        return [handle for one in result for handle in _handles_of(one)]
    handle = getattr(result, "handle", None)
    return [] if handle is None else [handle]


def _is_plain(result: Any, tensor: Any) -> bool:
    if type(result) is tuple:
        return all(_is_plain(one, tensor) for one in result)
    return type(result) in PLAIN or (type(result) is tensor and result.handle is not None)


def _shape_of(result: Any, tensor: Any, templates: list[Any]) -> Any:
    """Nested tuples with the number of a template in place of each tensor and constant; adds these to `templates`."""
    if type(result) is tuple:
        return tuple(_shape_of(one, tensor, templates) for one in result)
    if type(result) is tensor:
        templates.append({name: value for name, value in vars(result).items() if name != "handle"})
        return len(templates) - 1
    templates.append(result)
    return -len(templates)


@cache
def _player(outline: tuple[Any, ...]) -> Any:
    """As that of operations, with any number of results."""
    count, steps, constants, outs, shape = outline
    lines = ["def bind(functions, constants, tensor, templates):", "    new = object.__new__"]
    lines += [f"    f{number} = functions[{number}]" for number in range(len(steps))]
    lines += [f"    s{slot} = constants[{number}]" for number, slot in enumerate(constants)]
    lines += ["    def play(handles):"]
    lines += [f"        {''.join(f's{slot}, ' for slot in range(count))} = handles"] if count else []
    lines += [
        f"        s{made} = f{number}({', '.join(f's{slot}' for slot in places)})"
        for number, (places, made) in enumerate(steps)
    ]
    left = list(outs)
    expression = _expression(shape, left, set(constants), lines)
    lines += [f"        return {expression}", "    return play"]
    scope: dict[str, Any] = {}
    exec("\n".join(lines), scope)
    return scope["bind"]


def _expression(shape: Any, outs: list[int], constants: set[int], lines: list[str]) -> str:
    """What a player returns; adds to `lines` how its tensors are made."""
    if isinstance(shape, tuple):
        return "(" + "".join(f"{_expression(one, outs, constants, lines)}, " for one in shape) + ")"
    if shape < 0:
        return f"templates[{-shape - 1}]"
    slot, name = outs.pop(0), f"r{shape}"
    handle = f"s{slot}.clone()" if slot in constants else f"s{slot}"
    lines += [
        f"        {name} = new(tensor)",
        f"        {name}.__dict__.update(templates[{shape}], handle={handle})",
    ]
    return name
