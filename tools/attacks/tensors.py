"""Tensors of layouts and sizes that nobody should pass, and values that lie, for public functions of `sampler_impl`.

The calls are some of `tensor_calls`; `tests/sampler_impl/test_layouts.py` asks all of them about other layouts.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Any

from attacks.rules import Attack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tensor_calls import Path
    from torch import Tensor

CALLS = (
    *("rejection_sample", "rejection_counter, probs", "sample, counters"),
    *("top_logprobs", "apply_bitmask, rows", "StepPlan, one-hot"),
)
SHAPES: dict[str, Callable[[Tensor], Tensor]] = {
    "every second entry": lambda t: t.repeat_interleave(2, -1)[..., ::2],
    "every second row": lambda t: t.repeat_interleave(2, 0)[::2],
    "one row again and again": lambda t: t[:1].expand_as(t),
    "one entry again and again": lambda t: t[..., :1].expand_as(t),
    "without data": lambda t: t.to("meta"),
    "shorter": lambda t: t[:-1],
    "longer": lambda t: t.repeat_interleave(2, 0),
    "flat": lambda t: t.reshape(-1)[None, None],
}
LEGAL = tuple(SHAPES)[:4]
"""What keeps shape and type: only the answer may tell."""
VALUES = (-1, -2, -(2**31), 2**31 - 1, 40, 41, 2**24)
"""For integers; a vocabulary has 40 entries."""


def outcome_of(action: Callable[[], Any]) -> Any:  # Any: what it returns
    """Return the answer, or how it was refused: `TypeError` and `ValueError` must name what is wrong."""
    try:
        return action()
    except (TypeError, ValueError) as error:
        is_named = re.match(r"[\w.]+: [\w.\[\]()-]+(=| are .*, but )", str(error))
        return "refused" if is_named else f"refused badly: {str(error)[:150]}"
    except (RuntimeError, IndexError, NotImplementedError) as error:
        return f"{type(error).__name__}: {str(error)[:150]}"


def lay_out(backend: str, name: str, path: Path) -> None:
    """Hand one tensor in every shape: right, or refused by name. Prints what differs from the same values in a row.

    Raises:
        SystemExit: If something differs.
    """
    import torch
    from tensor_calls import calls

    wrong, call = [], calls(backend)[name]
    for shape, change in SHAPES.items():
        laid = change(call.tensors()[path])
        found = outcome_of(functools.partial(call.run, {path: laid}))
        if found == "refused":
            continue
        plain = laid.contiguous().clone()
        right = outcome_of(functools.partial(call.run, {path: plain}))
        words = [one for one in (found, right) if isinstance(one, str)]
        is_same = found == right if words else all(map(torch.equal, found, right))
        if not is_same or (words and shape not in LEGAL):
            wrong.append(f"{shape}: {found if isinstance(found, str) else 'another answer'}")
    if wrong:
        print("\n".join(wrong))
        raise SystemExit(1)


def put_values(backend: str, name: str, path: Path) -> None:
    """Hand every value at the first and the last place of one tensor: whatever comes, other memory is untouched."""
    from tensor_calls import at_an_edge, calls

    call = calls(backend)[name]
    for value in VALUES:
        for place in (0, -1):
            tensors = {one: tensor.clone() for one, tensor in call.tensors().items()}
            tensors[path].view(-1)[place] = value
            given = {one: at_an_edge(tensor, before=False) for one, tensor in tensors.items()}
            outcome_of(functools.partial(call.run, given))


def attacks() -> Iterator[Attack]:
    """Yield all of this group: every tensor of these calls."""
    from tensor_calls import calls

    for backend in ("torch", "triton"):
        found = calls(backend)
        for name in CALLS:
            for path, tensor in found[name].tensors().items():
                runs = {"in every shape": lay_out}
                if not tensor.is_floating_point() and tensor.numel():
                    runs["with every value"] = put_values
                for what, run in runs.items():
                    program = functools.partial(run, backend, name, path)
                    title = f"{'.'.join(path)} of {name} {what}, {backend}"
                    yield Attack("tensors", title, ["python"], program=program)
