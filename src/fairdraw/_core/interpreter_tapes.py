"""Tapes: what an operation of Triton's language asks of its interpreter, recorded once and then replayed.

Of a sum of two blocks the interpreter finds out each time anew which types they have, whether they must be converted
or broadcast, and to what: twenty microseconds before NumPy adds for one. All of that follows from types and constants.

    first time   language -> semantics -> builder        what the builder is called for is written down
    then                                  builder        by the same types, shapes and constants

Numbers, errors and what is stored are those of the interpreter: an operation that raised has no tape, and neither has
one of which something is not understood.
"""

from __future__ import annotations

from functools import cache, partial, wraps
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np

MOST = 4_000
"""Tapes of one operation: constants may be different ones in each call, as numbers of a loop are."""
MOST_FOLDED = 1024
"""Entries of a block of one constant that a tape keeps; larger ones are made each time."""

_TAPED = """
    __add__ __radd__ __sub__ __rsub__ __mul__ __rmul__ __truediv__ __rtruediv__ __floordiv__ __rfloordiv__ __mod__
    __rmod__ __neg__ __invert__ __and__ __rand__ __or__ __ror__ __xor__ __rxor__ __lshift__ __rlshift__ __rshift__
    __rrshift__ __gt__ __ge__ __lt__ __le__ __eq__ __ne__ __not__ __getitem__ logical_and logical_or to cast where
    full arange expand_dims broadcast_to reshape view permute trans load store program_id num_programs
    _promote_bfloat16_to_float32 to_tensor minimum maximum clamp add sub mul exp exp2 log log2 sqrt abs floor ceil
    div_rn fma umulhi fdiv erf rsqrt cos sin
"""
TAPED = frozenset(_TAPED.split())
"""Operations of which a tape says everything. Others write to a handle, call functions, or are rare."""
SAME = "the first two are one"
_CASTS = "si_to_fp ui_to_fp fp_to_si fp_to_ui fp_ext fp_trunc int_cast"
CASTS = frozenset(f"create_{name}" for name in _CASTS.split())
WHOLE: dict[Any, Any] = {}  # Any: functions of handles
"""A step to what does the same for many programs at once (`interpreter_grids`); others do that themselves."""
UNKNOWN: list[Any] = []  # Any: nothing
"""Cannot be hashed, and so has no tape."""


class Parts(NamedTuple):
    """What a tape does, for tapes that contain it.

    Args:
        num_given: Handles that it is given: its first slots.
        steps: A function, the slots of its arguments, and that of its result.
        constants: Slot to value.
        outs: Slots of the tensors that it returns.
        has_ids: It asks which program this is.
        is_whole: Its steps may be done for many programs at once.
    """

    num_given: int
    steps: list[tuple[Any, tuple[int, ...], int]]  # Any: of the builder, or NumPy's
    constants: dict[int, Any]  # Any: what builders take
    outs: list[int]
    has_ids: bool = False
    is_whole: bool = True


class Tapes:
    """Tapes of one interpreter.

    Args:
        interpreter: `triton.runtime.interpreter`.
    """

    def __init__(self, interpreter: Any) -> None:  # Any: Triton's modules have no types, here and below
        self.interpreter = interpreter
        core = interpreter.tl.core
        self.tensor, self.constexpr, self.dtype, self.tuple = core.tensor, core.constexpr, core.dtype, core.tuple
        self.semantic, self.builder = interpreter.interpreter_semantic, interpreter.interpreter_builder
        self.options = self.builder.options
        self.is_recording = False
        self.recorder: _Recorder | None = None
        self.grid: Any = None
        """Programs that run side by side (`interpreter_grids`)."""
        self.of_function: Any = None
        """A recorder of a device function that runs now (`interpreter_functions`); it hears of every operation."""

    def noted(self, conversion: Any) -> Any:
        """A tensor's `__bool__` or `__index__`: what an operation does then depends on numbers, and it gets no tape."""

        @wraps(conversion)
        def converted(tensor: Any) -> Any:
            if self.grid.is_active and tensor.handle.group is not None and not tensor.type.is_block():
                return self.grid.decide(tensor, conversion)
            if tensor.handle.data.size == 1:  # larger ones are true, whatever they hold
                if self.recorder is not None:
                    self.recorder.is_known &= self.recorder.is_harmless(tensor.handle)
                elif self.of_function is not None:
                    self.of_function.is_known = False
            return conversion(tensor)

        return converted

    def taped(self, operation: Any) -> Any:
        """The same operation with tapes."""
        tapes: dict[Any, Any] = {}
        key_of, tensor = self.key_of, self.tensor

        @wraps(operation)
        def replayed(*arguments: Any, **named: Any) -> Any:
            if self.is_recording or self.builder.options is not self.options:
                return operation(*arguments, **named)
            handles: list[Any] = []
            key: Any = []
            for value in arguments:
                if type(value) is tensor:  # as `key_of`, without a call: most are
                    handles.append(value.handle)
                    key.append(value.type.name)
                else:
                    key.append(key_of(value, handles))
            if len(handles) > 1 and handles[0] is handles[1]:  # a tape of x + x says that both sides are one
                key.append(SAME)
            if named:
                key += [(name, key_of(value, handles)) for name, value in named.items()]
            key = tuple(key)
            if self.grid.is_active:
                return self.grid.done(partial(self.grid.taped, operation, tapes, key, handles, arguments, named))
            try:
                tape = tapes[key]
            except (KeyError, TypeError):
                result = self.first(operation, tapes, key, handles, arguments, named)
                tape = tapes.get(key) if _is_hashable(key) else None
            else:
                result = operation(*arguments, **named) if tape is None else tape(handles)
            if self.of_function is not None:
                self.of_function.note(tape, handles, result)
            return result

        return replayed

    def key_of(self, value: Any, handles: list[Any] | None) -> Any:
        """What a tape depends on, of one argument. What nobody can hash has no tape.

        Args:
            handles: Gets those of tensors; `None` inside of a list, where they have none to be found by."""
        kind = type(value)
        if kind is self.tensor:
            if handles is None:
                return UNKNOWN
            handles.append(value.handle)
            return value.type.name
        if kind is int or kind is bool or kind is str or value is None:
            return kind, value
        if kind is float:
            return kind, value.hex()  # 0.0 and -0.0 are two constants
        if kind is self.constexpr:
            return kind, self.key_of(value.value, None)
        if isinstance(value, self.dtype):
            return kind, value.name
        if kind is list or kind is tuple or kind is self.tuple:
            return kind, *(self.key_of(one, None) for one in value)
        if kind is slice:
            return kind, self.key_of((value.start, value.stop, value.step), None)
        return UNKNOWN

    def first(
        self,
        operation: Any,
        tapes: dict[Any, Any],
        key: tuple[Any, ...],
        handles: list[Any],
        arguments: tuple[Any, ...],
        named: dict[str, Any],
    ) -> Any:
        """As the interpreter does it, written down if there is a key to find it again by."""
        has_key = len(tapes) < MOST and _is_hashable(key)
        if not has_key or len(set(map(id, handles))) < len(handles) - (SAME in key):
            return operation(*arguments, **named)
        self.recorder = recorder = _Recorder(self.interpreter, handles)
        recorder.mask = getattr(named.get("mask"), "handle", None)
        before = self.semantic.builder
        self.is_recording, self.semantic.builder = True, recorder
        try:
            result = operation(*arguments, **named)
        finally:
            self.is_recording, self.semantic.builder, self.recorder = False, before, None
        tapes[key] = recorder.tape_of(result, self.tensor)
        return result


def _is_hashable(key: tuple[Any, ...]) -> bool:
    try:
        hash(key)
    except TypeError:
        return False
    return True


class _Recorder:
    """Stands for the builder during one operation, and writes down what it is called for.

    Args:
        interpreter: Whose builder it is.
        handles: What the operation is given.
    """

    def __init__(self, interpreter: Any, handles: list[Any]) -> None:
        self._interpreter, self._builder = interpreter, interpreter.interpreter_builder
        self._slots: list[Any] = list(handles)  # handles and constants, by the place that a tape has for them
        self._count = len(handles)
        self._constants: set[int] = set()
        self._steps: list[tuple[Any, tuple[int, ...], int]] = []
        self.is_known = self.is_whole = True
        self.has_ids = False
        self.mask: Any = None

    def __getattr__(self, name: str) -> Any:
        create = getattr(self._builder, name)
        if not callable(create) or not name.startswith(("create_", "get_")):
            return create

        def recorded(*arguments: Any, **named: Any) -> Any:
            result = create(*arguments, **named)
            self._note(name, create, arguments, named, result)
            return result

        return recorded

    def _note(self, name: str, create: Any, arguments: tuple[Any, ...], named: dict[str, Any], result: Any) -> None:
        if named:
            self.is_known = False
            return
        self.has_ids |= name == "create_get_program_id"
        places = tuple(self._place_of(value) for value in arguments)
        is_small = name == "create_splat" and result.data.size <= MOST_FOLDED
        is_constant = name.startswith("get_") or (is_small and self._are_constants(places))
        self._slots.append(result)
        if is_constant:
            self._constants.add(len(self._slots) - 1)
        else:
            self._steps.append((self._shortest(name, create, arguments), places, len(self._slots) - 1))

    def is_harmless(self, handle: Any) -> bool:
        """Whether a number may be looked at: a constant, or a mask, of which only the type matters to an operation."""
        return handle is self.mask or any(self._slots[place] is handle for place in self._constants)

    def _are_constants(self, places: tuple[int, ...]) -> bool:
        return all(place in self._constants for place in places)

    def _place_of(self, value: Any) -> int:
        for place, known in enumerate(self._slots):
            if known is value:
                return place
        if isinstance(
            value, (self._interpreter.TensorHandle, self._interpreter.tl.core.tensor)
        ):  # from nobody knows where
            self.is_known = False
        self._slots.append([*value] if isinstance(value, list) else value)  # a caller may change its list
        self._constants.add(len(self._slots) - 1)
        return len(self._slots) - 1

    def _shortest(self, name: str, create: Any, arguments: tuple[Any, ...]) -> Any:
        """What a step calls: the builder, or a NumPy function of its handles if the builder does nothing else."""
        kind = self._interpreter.TensorHandle
        self.is_whole &= name in WHOLE_STEPS
        if any(word in name for word in ("load", "store", "atomic")):  # others may count these, and stop counting
            function = partial(_created_now, self._builder, name)
            WHOLE[function] = _broadcast_first(function)
            return function
        if name in SHAPED:
            return _shaped(name, create, arguments)
        if name in CASTS and not arguments[1].scalar.is_bf16():
            return _cast(create, self._interpreter)
        if len(arguments) != 2 or name == "create_ashr" or not all(type(one) is kind for one in arguments):
            return create
        if any(one.dtype.is_ptr() for one in arguments):
            return create
        seen: list[Any] = []
        self._builder.binary_op = lambda *given: seen.append(given)
        try:
            create(*arguments)
        except AttributeError:  # it goes on with the result
            seen.clear()
        finally:
            del self._builder.binary_op
        if len(seen) == 1 and seen[0][:2] == arguments:
            return _binary(create, seen[0][2], self._interpreter)
        return create

    def tape_of(self, result: Any, tensor: Any) -> Any:
        """`None` if something is not understood."""
        if not self.is_known or type(result) is not tensor:
            return None
        place = next((place for place, known in enumerate(self._slots) if known is result.handle), None)
        if place is None or (result.handle is None and not self._steps):
            return None
        if result.handle is None:  # of a store
            place = self._steps[-1][2]
        return _play(self._slots, self._count, self._steps, place, tensor, result, (self.has_ids, self.is_whole))


_SIMPLE = """
    fadd fmul fdiv frem fsub mul precise_divf sdiv udiv srem urem add sub shl lshr ashr minsi minui minimumf
    minnumf maxsi maxui maximumf maxnumf icmpSLE icmpSLT icmpSGE icmpSGT icmpULE icmpULT icmpUGE icmpUGT icmpEQ
    icmpNE fcmpOLT fcmpOGT fcmpOLE fcmpOGE fcmpOEQ fcmpONE fcmpULT fcmpUGT fcmpULE fcmpUGE fcmpUEQ fcmpUNE and xor
    or int_to_ptr ptr_to_int bitcast idiv umulhi clampf select fma fabs cos exp exp2 iabs floor ceil log log2
    precise_sqrt sqrt sin erf rsqrt addptr load store masked_load masked_store make_range get_program_id
    get_num_programs fp_to_fp
"""
SHAPED = frozenset(f"create_{name}" for name in ["splat", "reshape", "trans", "broadcast", "expand_dims"])
WHOLE_STEPS = frozenset(f"create_{name}" for name in _SIMPLE.split()) | CASTS | SHAPED
"""What a builder does entry by entry, or what `WHOLE` has."""


def _broadcast_first(function: Any) -> Any:
    """A load or store of handles of which some are the same for all programs."""

    def whole(*given: Any) -> Any:
        arrays = [one.data for one in given if hasattr(one, "group")]
        if all(array.shape == arrays[0].shape for array in arrays):
            return function(*given)
        shape = np.broadcast_shapes(*(array.shape for array in arrays))
        return function(*(_as_shape(one, shape) if hasattr(one, "group") else one for one in given))

    return whole


def _as_shape(handle: Any, shape: tuple[int, ...]) -> Any:
    return type(handle)(np.broadcast_to(handle.data, shape).copy(), handle.dtype)


def _shaped(name: str, create: Any, arguments: tuple[Any, ...]) -> Any:
    """A step that depends on the place of dimensions, and what does it behind that of the programs.

    Args:
        arguments: As they are for one program.
    """

    def step(*given: Any) -> Any:
        return create(*given)

    make = {"create_splat": _splat, "create_expand_dims": _expand_dims, "create_trans": _trans}.get(name, _reshape)
    WHOLE[step] = make(create, arguments)
    return step


def _splat(create: Any, arguments: tuple[Any, ...]) -> Any:
    rank = len(arguments[0].shape)

    def whole(kind: Any, source: Any) -> Any:
        data = source.data
        if data.ndim == 1:
            return create(kind, source)
        made = np.empty((len(data), *kind.shape), data.dtype)
        made[...] = data.reshape(len(data), *[1] * rank)
        return type(source)(made, source.dtype.scalar)

    return whole


def _expand_dims(create: Any, arguments: tuple[Any, ...]) -> Any:
    rank = arguments[0].data.ndim

    def whole(source: Any, axis: int) -> Any:
        return create(source, axis + 1 if source.data.ndim > rank and axis >= 0 else axis)

    return whole


def _trans(create: Any, arguments: tuple[Any, ...]) -> Any:
    def whole(source: Any, order: Any) -> Any:
        return create(source, order if source.data.ndim == len(order) else (0, *(axis + 1 for axis in order)))

    return whole


def _reshape(create: Any, arguments: tuple[Any, ...]) -> Any:
    """Of `reshape` and `broadcast`."""
    rank = arguments[0].data.ndim

    def whole(source: Any, shape: Any, *rest: Any) -> Any:
        return create(source, (len(source.data), *shape) if source.data.ndim > rank else shape, *rest)

    return whole


def _created_now(builder: Any, name: str, *arguments: Any) -> Any:
    return getattr(builder, name)(*arguments)


def _cast(create: Any, interpreter: Any) -> Any:
    """The builder's `cast_impl`, of types that NumPy has."""
    new, handle, find_dtype = object.__new__, interpreter.TensorHandle, interpreter._get_np_dtype

    def computed(source: Any, kind: Any, *rest: Any) -> Any:
        if source.dtype.scalar.is_bf16():  # a handle's type is not always its tensor's
            return create(source, kind, *rest)
        made = new(handle)
        made.data, made.dtype, made.attr = source.data.astype(find_dtype(kind)), kind.scalar, {}
        return made

    return as_theirs(computed, interpreter)


def _binary(create: Any, function: Any, interpreter: Any) -> Any:
    """The builder's `binary_op`, which keeps the type of the left side, without asking twice whether that fits."""
    new, handle, find_dtype = object.__new__, interpreter.TensorHandle, interpreter._get_np_dtype

    def computed(lhs: Any, rhs: Any) -> Any:
        dtype = lhs.dtype.scalar
        if dtype.is_ptr():  # a handle's type is not always its tensor's
            return create(lhs, rhs)
        output = function(lhs.data, rhs.data)
        if output.itemsize * 8 > max(dtype.primitive_bitwidth, 8):
            output = output.astype(find_dtype(dtype))
        made = new(handle)
        made.data, made.dtype, made.attr = output, dtype, {}
        return made

    return as_theirs(computed, interpreter)


def as_theirs(function: Any, interpreter: Any) -> Any:
    """A function of the interpreter's module: filters of NumPy's warnings, of overflow say, go by modules."""
    return FunctionType(function.__code__, vars(interpreter), function.__name__, None, function.__closure__)


def _play(
    slots: list[Any],
    count: int,
    steps: list[tuple[Any, tuple[int, ...], int]],
    place: int,
    tensor: Any,
    result: Any,
    about: tuple[bool, bool],
) -> Any:
    """A function of the handles that an operation is given: steps over numbered slots, and a tensor of the last one.

    Args:
        slots: Handles that were given the first time, constants, and what steps made then.
        count: How many were given.
        place: Of the result.
        about: The last two of its parts.
    """
    template = {name: value for name, value in vars(result).items() if name != "handle"}
    made = {step[2] for step in steps}
    used = {slot for step in steps for slot in step[1]} | {place}
    constants = sorted(slot for slot in used if slot >= count and slot not in made)
    outline = (count, tuple(step[1:] for step in steps), tuple(constants), place)
    functions = [step[0] for step in steps]
    values = [slots[slot] for slot in constants]
    play = _player(outline)(functions, values, tensor, template)
    play.again = lambda change: _player(outline)([*map(change, functions)], values, tensor, template)
    outs = [] if result.handle is None else [place]
    play.parts = Parts(count, steps, {slot: slots[slot] for slot in constants}, outs, *about)
    return play


@cache
def _player(outline: tuple[Any, ...]) -> Any:
    """Of all tapes with the same steps between the same slots, as a function with names for slots: a loop over steps
    would take longer than they do."""
    count, steps, constants, place = outline
    lines = ["def bind(functions, constants, tensor, template):", "    new = object.__new__"]
    lines += [f"    f{number} = functions[{number}]" for number in range(len(steps))]
    lines += [f"    s{slot} = constants[{number}]" for number, slot in enumerate(constants)]
    lines += ["    def play(handles):"]
    lines += [f"        {''.join(f's{slot}, ' for slot in range(count))} = handles"] if count else []
    lines += [
        f"        s{made} = f{number}({', '.join(f's{slot}' for slot in places)})"
        for number, (places, made) in enumerate(steps)
    ]
    lines += ["        result = new(tensor)", "        known = result.__dict__", "        known.update(template)"]
    # A constant is copied: some operations write to the handles that they are given.
    given = f"s{place}.clone()" if place in constants else f"s{place}"
    lines += [f"        known['handle'] = {given}", "        return result", "    return play"]
    scope: dict[str, Any] = {}
    exec("\n".join(lines), scope)
    return scope["bind"]
