"""Programs of a launch side by side: an operation is done once for all of them, and not once for each.

Triton's interpreter runs one program after the other, and NumPy is called for a few numbers at a time. Here a kernel's
function runs once for a chunk of programs. What differs between programs has them as its first dimension:

    [1] a number of all programs              [num_programs, 1] one of each
    [TILES] a block of all programs           [num_programs, TILES] one of each

Where a number decides on a branch or a loop, and programs differ, the group is split. One part goes on. For each other
one the function starts again, and what was done before that place is taken from a list. At the end of a device function
its parts are put together again.

Only kernels whose module says so (`SIDE_BY_SIDE`): a program that waits for an earlier one would wait for ever.
"""

from __future__ import annotations

from functools import partial, wraps
from inspect import signature
from itertools import count, product
from math import prod
from types import FunctionType
from typing import TYPE_CHECKING, Any

import numpy as np

from .interpreter_tapes import WHOLE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .interpreter_tapes import Tapes

MARK = "SIDE_BY_SIDE"
"""A constant in the module of a kernel of which programs do not wait for each other."""
FEWEST = 4
"""Programs of a launch from which on they are run side by side."""
MOST = 256
"""Programs at once; fewer if their blocks are large."""
MOST_ENTRIES = 1 << 20
"""Of the largest block of all programs together: more do not fit into caches."""
FIRST = 16
"""Programs at once of a kernel of which the largest block is not known."""


class Group:
    """Programs that do the same now.

    Args:
        parent: The group that it is a part of; `None` for a chunk of a launch.
        rows: [size] int64, its programs among those of the parent.
    """

    def __init__(self, parent: Group | None, rows: np.ndarray) -> None:
        self.parent, self.rows, self.size = parent, rows, len(rows)
        self._rows_of: dict[int, np.ndarray] = {}

    def rows_of(self, ancestor: Group) -> np.ndarray:  # [size] int64
        """Its programs among those of an ancestor."""
        known = self._rows_of.get(id(ancestor))
        if known is None:
            known, group = self.rows, self.parent
            while group is not ancestor:
                assert group is not None
                known, group = group.rows[known], group.parent
            self._rows_of[id(ancestor)] = known
        return known

    def is_within(self, ancestor: Group) -> bool:
        """Whether it is a part of that group, or that group."""
        group: Group | None = self
        while group is not None and group is not ancestor:
            group = group.parent
        return group is ancestor


class _Frame:
    """One run of a function for a group.

    Args:
        script: What operations and decisions before some place gave, in order: they are not done again.
        pending: Groups whose run is to come, and their scripts.
    """

    def __init__(self, script: list[Any], pending: list[tuple[Group, list[Any]]]) -> None:
        self.script, self.pending, self.position = script, pending, 0


class Grid:
    """Programs of one interpreter that run side by side."""

    def __init__(self, interpreter: Any, tapes: Tapes) -> None:  # Any: Triton's modules have no types, here and below
        self.interpreter, self.tapes, self.builder = interpreter, tapes, tapes.builder
        self.tensor, self.handle = tapes.tensor, interpreter.TensorHandle
        self.handle.group = self.handle.narrow = None
        self.is_active, self.most_entries = False, MOST_ENTRIES
        self.group: Any = None
        self.frame: Any = None
        self.programs = np.zeros((0, 3), np.int32)  # [num_programs, 3] int32: of the chunk
        self.sides = (1, 1, 1)
        self._runners: dict[Any, Callable[..., None]] = {}
        self.largest: dict[Any, int] = {}  # kernel and constants to entries of its largest block

    # -- a launch --------------------------------------------------------------------------------------------

    def runner(self, kernel: Any) -> Callable[..., None]:
        """Takes the place of a kernel's function: it runs all programs of a launch, as `sides` has them."""
        run_all = self._run_all
        known = self._runners.get(kernel)
        if known is None:

            def run(**arguments: Any) -> None:
                run_all(kernel, arguments)

            known = wraps(kernel)(FunctionType(run.__code__, kernel.__globals__, closure=run.__closure__))
            kernel.__globals__.setdefault("range", self.range)
            known.__signature__ = signature(kernel)  # type: ignore[attr-defined]
            self._runners[kernel] = known
        return known

    def _run_all(self, kernel: Any, arguments: dict[str, Any]) -> None:
        self.builder.set_grid_dim(*self.sides)
        programs = np.array(list(product(*map(range, self.sides))), dtype=np.int32)  # [num_programs, 3] int32
        key = kernel, *(value for value in arguments.values() if type(value) in (int, bool))
        begin = 0
        while begin < len(programs):
            largest = self.largest.get(key)
            most = FIRST if largest is None else max(1, min(MOST, self.most_entries // largest))
            self._run_chunk(kernel, programs[begin : begin + most], arguments, key)
            begin += most

    def _run_chunk(
        self,
        kernel: Any,
        programs: np.ndarray,  # [num_programs, 3] int32
        arguments: dict[str, Any],
        key: tuple[Any, ...],
    ) -> None:
        if len(programs) == 1:
            self.builder.set_grid_idx(*programs[0].tolist())
            kernel(**arguments)
            return
        self.programs, self.is_active, self.most = programs, True, self.largest.get(key, 1)
        self.group, self.frame = Group(None, np.arange(len(programs))), None
        try:
            for _ in self._runs(lambda: kernel(**arguments)):
                pass
        finally:
            self.is_active, self.group, self.frame = False, None, None
            self.largest[key] = self.most

    def program_id(self, axis: int) -> Any:
        """Of the programs of the current group."""
        group = self.group
        numbers = self.programs[self._rows(), axis]  # [size] int32
        made = self.handle(numbers[:, None] if group.size > 1 else numbers, self.interpreter.tl.int32)
        if group.size > 1:
            made.group = group
        return made

    def _rows(self) -> Any:
        """[size] int64: the current group's programs among those of the chunk."""
        group = chunk = self.group
        while chunk.parent is not None:
            chunk = chunk.parent
        return group.rows if group is chunk else group.rows_of(chunk)

    # -- functions, groups and scripts -----------------------------------------------------------------------

    def _runs(self, run: Callable[[], Any]) -> Iterator[tuple[Group, Any]]:
        """A function's run for each of the groups that the current one falls into, and what it gives."""
        base, outer = self.group, self.frame
        pending: list[tuple[Group, list[Any]]] = [(base, [])]
        try:
            while pending:
                self.group, script = pending.pop()
                self.frame = _Frame(script, pending)
                result = run()
                yield self.group, result
        finally:
            self.group, self.frame = base, outer

    def done(self, run: Callable[[], Any]) -> Any:
        """What an operation gives: it is done, unless the script knows."""
        frame = self.frame
        position = frame.position
        frame.position = position + 1
        if position < len(frame.script):
            return frame.script[position]
        result = run()
        frame.script.append(result)
        return result

    def _fork(self, parts: list[tuple[Group, Any]]) -> Any:
        """The first of the groups goes on; the others come later. Each is given its own value."""
        frame = self.frame
        for group, value in parts[1:]:
            frame.pending.append((group, [*frame.script, value]))
        self.group, value = parts[0]
        return value

    def decide(self, tensor: Any, conversion: Callable[[Any], Any]) -> Any:
        """A number's `bool` or `int`, by which a function goes on."""
        return self.done(lambda: self._decided(tensor, conversion))

    def _decided(self, tensor: Any, conversion: Callable[[Any], Any]) -> Any:
        if self.tapes.of_function is not None:
            self.tapes.of_function.is_known = False
        handle = self.narrowed(tensor.handle)
        if handle.group is None:
            return conversion(self._like(tensor, handle))
        kind = type(conversion(self._like(tensor, self._slice(handle, 0))))
        numbers = handle.data.reshape(len(handle.data)).astype(kind)
        first = numbers[0]
        if (numbers == first).all():
            return first.item()
        values = np.unique(numbers)[::-1]
        return self._fork([(Group(self.group, np.flatnonzero(numbers == value)), value.item()) for value in values])

    def range(self, *ends: Any) -> Any:
        """As Python's: of ends of which programs have their own, all that still have rounds to do stay together."""
        if self.is_active and len(ends) > 1 and self._is_own(ends[1]) and not any(map(self._is_own, ends[::2])):
            return self.done(lambda: self._common_range(*ends)) or self._rounds(*ends)
        return range(*ends)

    def _is_own(self, value: Any) -> bool:
        return type(value) is self.tensor and value.handle.group is not None

    def _rounds_of(self, begin: Any, end: Any, step: Any = 1) -> np.ndarray:  # [size] int64
        """How many rounds each program of the group does."""
        if self.tapes.of_function is not None:
            self.tapes.of_function.is_known = False
        ends = self.narrowed(end.handle).data.reshape(-1).astype(np.int64)
        rounds: np.ndarray = np.maximum(0, -((int(begin) - ends) // int(step)))
        return rounds

    def _common_range(self, begin: Any, *rest: Any) -> Any:
        """Of programs that all do as many rounds."""
        rounds = self._rounds_of(begin, *rest)
        step = int(rest[1]) if len(rest) > 1 else 1
        same = bool((rounds == rounds[0]).all())
        return range(int(begin), int(begin) + int(rounds[0]) * step, step) if same else None

    def _rounds(self, begin: Any, *rest: Any) -> Iterator[int]:
        """Round by round: those that have done theirs leave."""
        for number in count():
            if not self.done(partial(self._goes_on, number, begin, *rest)):
                return
            yield int(begin) + number * (int(rest[1]) if len(rest) > 1 else 1)

    def _goes_on(self, number: int, *ends: Any) -> Any:
        goes = self._rounds_of(*ends) > number  # [size] bool
        if goes.all() or not goes.any():
            return bool(goes[0])
        return self._fork([(Group(self.group, np.flatnonzero(goes == is_so)), is_so) for is_so in (True, False)])

    def call(self, run: Callable[[], Any]) -> Any:
        """A device function without a tape: its runs, put together."""
        base = self.group
        runs = list(self._runs(run))
        if len(runs) == 1:
            return runs[0][1]
        parts = [(group.rows_of(base), group, result) for group, result in runs]
        if all(self._is_like(runs[0][1], result) for _, _, result in parts[1:]):
            return self._merged(base, parts)
        return self._fork(runs)

    def _is_like(self, one: Any, other: Any) -> bool:
        """Whether two results may be parts of one."""
        if type(one) is not type(other):
            return False
        if isinstance(one, (tuple, self.tapes.tuple)):
            return len(one) == len(other) and all(map(self._is_like, one, other))
        if type(one) is self.tensor:
            if one.handle is None or other.handle is None:
                return one.handle is other.handle
            same = one.handle.dtype == other.handle.dtype and one.handle.data.dtype == other.handle.data.dtype
            return bool(one.type == other.type and same)
        return bool(one is other or (type(one) in (int, float, bool, str) and one == other))

    def _merged(self, base: Group, parts: list[tuple[np.ndarray, Group, Any]]) -> Any:
        first = parts[0][2]
        if isinstance(first, (tuple, self.tapes.tuple)):
            members = [
                self._merged(base, [(rows, group, result[place]) for rows, group, result in parts])
                for place in range(len(first))
            ]
            return type(first)(members)
        if type(first) is not self.tensor or first.handle is None:
            return first
        handles = [result.handle for _, _, result in parts]
        is_one = all(handle is handles[0] for handle in handles)
        if is_one and (handles[0].group is None or base.is_within(handles[0].group)):
            return first
        shape = self._shape(first)
        data = np.empty((base.size, *shape), handles[0].data.dtype)
        for rows, group, result in parts:
            data[rows] = self._narrowed(result.handle, group).data
        made = self.handle(data, handles[0].dtype)
        made.group = base
        return self._like(first, made)

    # -- handles ---------------------------------------------------------------------------------------------

    def _shape(self, tensor: Any) -> tuple[int, ...]:
        return tuple(tensor.type.shape) if tensor.type.is_block() else (1,)

    def _like(self, tensor: Any, handle: Any) -> Any:
        made = object.__new__(self.tensor)
        made.__dict__.update(tensor.__dict__, handle=handle)
        return made

    def narrowed(self, handle: Any) -> Any:
        """A handle of the current group's programs."""
        if handle.group is None or handle.group is self.group:
            return handle
        return self._narrowed(handle, self.group)

    def _narrowed(self, handle: Any, group: Group) -> Any:
        if handle.group is None or handle.group is group:
            return handle
        if handle.narrow is not None and handle.narrow[0] is group:
            return handle.narrow[1]
        rows = group.rows_of(handle.group)
        if group.size == 1:
            made = self._slice(handle, rows[0])
        else:
            made = self._new(handle, handle.data[rows])
            made.group = group
        handle.narrow = (group, made)
        return made

    def _slice(self, handle: Any, row: int) -> Any:
        return handle if handle.group is None else self._new(handle, handle.data[row])

    def _new(self, handle: Any, data: np.ndarray) -> Any:
        made = object.__new__(self.handle)
        made.data, made.dtype, made.attr = data, handle.dtype, {}
        return made

    def _handles(self, value: Any) -> Iterator[Any]:
        """Those of all tensors among some arguments."""
        if isinstance(value, (tuple, list, self.tapes.tuple)):
            for one in value:
                yield from self._handles(one)
        elif type(value) is self.tensor and value.handle is not None:
            yield value.handle

    def with_handles(self, value: Any, change: Callable[[Any], Any]) -> Any:
        """An argument, with other handles in its tensors."""
        kind = type(value)
        if kind is self.tensor:
            handle = value.handle
            changed = handle if handle is None else change(handle)
            return value if changed is handle else self._like(value, changed)
        if kind is tuple or kind is list or kind is self.tapes.tuple:
            members = [self.with_handles(one, change) for one in value]
            return value if all(a is b for a, b in zip(members, value, strict=True)) else kind(members)
        return value

    def note_groups(self, result: Any) -> Any:
        """The same result, whose handles know that they have programs as a dimension."""
        if type(result) is tuple:
            for one in result:
                self.note_groups(one)
        elif type(result) is self.tensor:
            handle = result.handle
            if handle is not None and handle.group is None:
                rank = len(result.type.shape) if result.type.is_block() else 1
                data = handle.data
                if data.ndim > rank:
                    handle.group = self.group
                    self.most = max(self.most, data.size // self.group.size)
        return result

    # -- operations ------------------------------------------------------------------------------------------

    def taped(
        self,
        operation: Any,
        known: dict[Any, Any],
        key: tuple[Any, ...],
        handles: list[Any],
        arguments: tuple[Any, ...],
        named: dict[str, Any],
    ) -> Any:
        """An operation that has tapes, of all programs of the group."""
        given = [self.narrowed(handle) for handle in handles]
        try:
            tape = known.get(key, self)
        except TypeError:
            return self.each(operation, arguments, named)
        if tape is self:
            with self.of_one() as sliced:
                self.tapes.first(operation, known, key, [sliced(one) for one in handles], *sliced((arguments, named)))
            tape = known.get(key)
        if tape is None or not tape.parts.is_whole:
            return self.each(operation, arguments, named)
        result = self.played(tape, given)
        if self.tapes.of_function is not None:
            self.tapes.of_function.note(tape, given, result)
        return result

    def played(self, tape: Any, handles: list[Any]) -> Any:
        """A tape of an operation or a function, for all programs of the group. Its handles are narrowed."""
        if not tape.parts.has_ids and all(handle.group is None for handle in handles):
            return tape(handles)
        whole = tape.__dict__.get("whole")
        if whole is None:
            whole = tape.whole = tape.again(lambda function: WHOLE.get(function, function))
        return self.note_groups(whole(handles))

    def of_one(self) -> _OfOne:
        """For a while, only the first program of the group."""
        return _OfOne(self, 0)

    def untaped(self, operation: Any, name: str) -> Any:
        """An operation without tapes: of each program alone, unless it may be done for all."""
        is_whole = name in _WHOLE_ATOMICS

        @wraps(operation)
        def done(*arguments: Any, **named: Any) -> Any:
            if not self.is_active:
                return operation(*arguments, **named)
            if is_whole:
                return self.done(lambda: self._atomic(operation, arguments, named))
            return self.done(lambda: self.each(operation, arguments, named))

        return done

    def _atomic(self, operation: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        arguments = self.with_handles(arguments, self.narrowed)
        named = {name: self.with_handles(value, self.narrowed) for name, value in named.items()}
        return self.note_groups(operation(*arguments, **named))

    def each(self, operation: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Of one program after the other, stacked."""
        is_own = any(self.narrowed(handle).group is not None for handle in self._handles((arguments, *named.values())))
        size = self.group.size if is_own else 1
        results = []
        for row in range(size):
            with _OfOne(self, row) as sliced:
                given, others = sliced((arguments, named))
                results.append(operation(*given, **others))
        if self.tapes.of_function is not None:
            self.tapes.of_function.is_known = False
        return results[0] if size == 1 else self._stacked(results)

    def _stacked(self, results: list[Any]) -> Any:
        first = results[0]
        if isinstance(first, (tuple, self.tapes.tuple)):
            return type(first)([self._stacked([result[place] for result in results]) for place in range(len(first))])
        if type(first) is not self.tensor or first.handle is None:
            return first
        shape = self._shape(first)
        handle = self._new(first.handle, np.stack([result.handle.data.reshape(shape) for result in results]))
        handle.group = self.group
        return self._like(first, handle)

    def reduced(self, operation: Any, given: Any, make: Callable[[Any], Any]) -> tuple[Any, Any, list[Any]]:
        """A reduction or scan. Gives its result, its step, and the handle that it was given."""
        handle = self.narrowed(given.handle)
        with self.of_one() as sliced:
            result = operation(sliced(given))
        step = make(result)
        if handle.group is None:
            return result, step, [handle]
        if step is None:
            return self.each(operation, (given,), {}), None, []
        made = self._like(result, WHOLE[step](handle))
        return self.note_groups(made), step, [handle]


_WHOLE_ATOMICS = ("atomic_add", "atomic_or", "atomic_and", "atomic_xor", "atomic_xchg")
"""The builder goes through their entries in order, which is the order of the programs."""


class _OfOne:
    """While it lasts, one program of the current group runs as the interpreter runs it. Gives what takes its part of
    handles and arguments."""

    def __init__(self, grid: Grid, row: int) -> None:
        self._grid, self._row = grid, row
        self._known: dict[int, Any] = {}  # id of a handle to its part: what is one stays one

    def __enter__(self) -> Callable[[Any], Any]:
        grid = self._grid
        grid.is_active, self._before = False, getattr(grid.builder, "grid_idx", None)
        grid.builder.set_grid_idx(*grid.programs[grid._rows()[self._row]].tolist())
        return self._sliced

    def __exit__(self, *_: object) -> None:
        self._grid.is_active, self._grid.builder.grid_idx = True, self._before

    def _sliced(self, value: Any) -> Any:
        grid = self._grid
        if type(value) is grid.handle:
            if id(value) not in self._known:
                self._known[id(value)] = grid._slice(grid.narrowed(value), self._row)
            return self._known[id(value)]
        if type(value) is dict:
            return {name: self._sliced(one) for name, one in value.items()}
        if type(value) is tuple and len(value) == 2 and type(value[1]) is dict:
            return self._sliced(value[0]), self._sliced(value[1])
        return grid.with_handles(value, self._sliced)


def run_side_by_side(interpreter: Any, tapes: Tapes) -> None:
    """Let launches of kernels that are marked run their programs side by side."""
    grid = tapes.grid = Grid(interpreter, tapes)
    kind, builder = interpreter.GridExecutor, type(tapes.builder)
    call, program_id, atomic = kind.__call__, builder.create_get_program_id, builder.create_atomic_rmw
    moves = {name: getattr(builder, name) for name in ("create_masked_load", "create_masked_store")}

    def is_watched() -> bool:
        """Whether somebody counts what each program moves."""
        return any(getattr(builder, name) is not move or name in vars(tapes.builder) for name, move in moves.items())

    @wraps(call)
    def called(self: Any, *arguments: Any, **named: Any) -> Any:
        sides = self.grid
        is_marked = MARK in self.fn.__globals__ and type(sides) is tuple and prod(sides) >= FEWEST
        if is_marked and not grid.is_active and tapes.builder.options is tapes.options and not is_watched():
            grid.sides = sides + (1,) * (3 - len(sides))
            self.fn, self.grid = grid.runner(self.fn), (1, 1, 1)
        return call(self, *arguments, **named)

    @wraps(program_id)
    def of_group(self: Any, axis: int) -> Any:
        return grid.program_id(axis) if grid.is_active else program_id(self, axis)

    @wraps(atomic)
    def of_all(self: Any, kind: Any, *arguments: Any) -> Any:
        return atomic(
            self, kind, *(broadcast(arguments[:3], grid._new) if grid.is_active else arguments[:3]), *arguments[3:]
        )

    kind.__call__, builder.create_get_program_id, builder.create_atomic_rmw = called, of_group, of_all


def broadcast(handles: tuple[Any, ...], new: Callable[[Any, np.ndarray], Any]) -> list[Any]:
    """Handles of one shape; what is no handle stays."""
    arrays = [handle.data for handle in handles if hasattr(handle, "group")]
    shape = np.broadcast_shapes(*(array.shape for array in arrays))
    return [
        new(one, np.broadcast_to(one.data, shape).copy()) if hasattr(one, "group") and one.data.shape != shape else one
        for one in handles
    ]
