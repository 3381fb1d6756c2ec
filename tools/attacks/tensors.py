"""Tensors of every layout, and values of every size, for the public functions of `sampler_impl`.

A tensor lies at the end of its memory, with a page behind it that nobody may touch.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import re
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from attacks.rules import Attack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

    Tensors = dict[str, Tensor]  # [...] any
    Call = Callable[[Tensors], Any]  # Any: a tensor, or several

VOCAB_SIZE = 70
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "every second entry": lambda t: t.repeat_interleave(2, -1)[..., ::2],
    "every second row": lambda t: t.repeat_interleave(2, 0)[::2],
    "a part of wider rows": lambda t: (
        t.new_tensor(1).expand(*t.shape[:-1], t.shape[-1] + 5).clone()[..., 3:-2].copy_(t)
    ),
    "columns": lambda t: t.t().contiguous().t() if t.ndim == 2 else t,
    "one row again and again": lambda t: t[:1].expand_as(t),
    "one entry again and again": lambda t: t[..., :1].expand_as(t),
    "with a gradient": lambda t: t.detach().clone().requires_grad_() if t.is_floating_point() else t,
    "without data": lambda t: t.to("meta"),
    "of another type": lambda t: t.double() if t.is_floating_point() else t.to(t.new_empty(0).short().dtype),
    "shorter": lambda t: t[:-1],
    "longer": lambda t: t.repeat_interleave(2, 0),
    "flat": lambda t: t.reshape(-1)[None, None],
}
STRIDES = tuple(LAYOUTS)[:6]
"""Layouts that keep shape and type: only the answer may tell."""
VALUES = (-1, -2, -(2**31), 2**31 - 1, VOCAB_SIZE, VOCAB_SIZE + 1, 2**24)


def guarded(tensor: Tensor) -> Tensor:
    """The same values, with forbidden pages before and behind them."""
    import torch

    size, page = tensor.numel() * tensor.element_size(), mmap.PAGESIZE
    inner = -(-size // page) * page
    memory = mmap.mmap(-1, inner + 2 * page)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    made = torch.frombuffer(memory, dtype=tensor.dtype, count=tensor.numel(), offset=page + inner - size)
    made = made.view(tensor.shape).copy_(tensor)
    for place in (address, address + page + inner):
        ctypes.CDLL(None).mprotect(ctypes.c_void_p(place), page, 0)
    return made


def _rejection() -> tuple[Tensors, Call]:
    import torch

    from fairdraw.sampler_impl import rejection

    torch.manual_seed(1)
    counts, many = [2, 0, 3], 5
    tensors = {
        "draft_token_ids": torch.randint(VOCAB_SIZE, (many,)).int(),
        "cu_num_draft_tokens": torch.tensor([2, 2, 5]).int(),
        "draft_probs": torch.rand(many, VOCAB_SIZE).softmax(-1),
        "target_logits": torch.randn(many, VOCAB_SIZE),
        "bonus_token_ids": torch.tensor([[1], [2], [3]]).int(),
        "temperature": torch.tensor([1.0, 0.0, 0.7]),
    }

    def call(given: Tensors, **options: Any) -> Any:  # Any: of the function
        torch.manual_seed(2)
        about = {"all_greedy": False, "all_random": False, "generators": {}}
        metadata = SimpleNamespace(temperature=given["temperature"], **about)
        rest = {name: value for name, value in given.items() if name != "temperature"}
        return rejection.rejection_sample(
            num_draft_tokens=counts, max_spec_len=3, sampling_metadata=metadata, **rest, **options
        )

    return tensors, call


def _counter() -> tuple[Tensors, Call]:
    import torch

    from fairdraw.sampler_impl import rejection_counter

    torch.manual_seed(1)
    tensors = {
        "draft_token_ids": torch.randint(VOCAB_SIZE, (5,)).int(),
        "cu_num_draft_tokens": torch.tensor([2, 2, 5]).int(),
        "logits": torch.randn(8, VOCAB_SIZE),
        "temperature": torch.tensor([1.0, 0.0, 0.7]),
        "seeds": torch.tensor([1, 2, 3]),
        "positions": torch.tensor([4, 5, 6]),
        "draft_probs": torch.rand(5, VOCAB_SIZE).softmax(-1),
    }
    return tensors, lambda given, **options: rejection_counter.rejection_sample(max_spec_len=3, **given, **options)


def _sample() -> tuple[Tensors, Call]:
    import torch

    from fairdraw.sampler_impl import sampling

    torch.manual_seed(1)
    tensors = {
        "logits": torch.randn(4, VOCAB_SIZE),
        "temperature": torch.tensor([1.0, 0.0, 0.7, 2.0]),
        "top_k": torch.tensor([3, VOCAB_SIZE, 1, 9]).int(),
        "top_p": torch.tensor([0.9, 1.0, 0.5, 1.0]),
        "min_p": torch.tensor([0.1, 0.0, 0.0, 0.2]),
        "seeds": torch.arange(4),
        "positions": torch.arange(4),
    }

    def call(given: Tensors, **options: Any) -> Any:  # Any: of the function
        names = ("temperature", "top_k", "top_p", "min_p")
        noise = sampling.CounterNoise(given["seeds"], given["positions"])
        return sampling.sample(
            given["logits"], sampling.SamplingParameters(**{name: given[name] for name in names}), noise, **options
        )

    return tensors, call


def _logprobs() -> tuple[Tensors, Call]:
    import torch

    from fairdraw.sampler_impl import logprobs

    torch.manual_seed(1)
    tensors = {"logits": torch.randn(4, VOCAB_SIZE), "emitted_token_ids": torch.tensor([1, 0, 69, 5])}

    def call(given: Tensors, backend: str, validate: bool = False) -> Any:  # Any: of the function
        found = logprobs.top_logprobs(**given, num_logprobs=3, backend=backend)  # type: ignore[arg-type]
        return torch.cat([found.logprob_token_ids.double(), found.logprobs.double(), found.ranks.double()[:, None]], 1)

    return tensors, call


def _bitmask() -> tuple[Tensors, Call]:
    import torch

    from fairdraw.sampler_impl import grammar

    torch.manual_seed(1)
    tensors = {
        "logits": torch.randn(4, VOCAB_SIZE),
        "bitmask": torch.randint(-(2**31), 2**31, (4, 3)).int(),
        "indices": torch.tensor([3, 0]),
    }
    return tensors, lambda given, **_: grammar.apply_bitmask(**given)


def _step() -> tuple[Tensors, Call]:
    import dataclasses

    import torch
    from step_cases import make_case

    from fairdraw.sampler_impl.step import StepPlan

    case = make_case(0, [2, 0, 1], 40, edits=True)
    tensors: Tensors = {}

    def collect(whole: Any, prefix: str) -> None:  # Any: a group of tensors
        for one in dataclasses.fields(whole):
            value = getattr(whole, one.name)
            if isinstance(value, torch.Tensor):
                tensors[prefix + one.name] = value
            elif dataclasses.is_dataclass(value):
                collect(value, f"{prefix}{one.name}.")

    def put(whole: Any, given: Tensors, prefix: str) -> Any:  # Any: as above
        changes = {}
        for one in dataclasses.fields(whole):
            value = getattr(whole, one.name)
            if prefix + one.name in given:
                changes[one.name] = given[prefix + one.name]
            elif dataclasses.is_dataclass(value):
                changes[one.name] = put(value, given, f"{prefix}{one.name}.")
        return dataclasses.replace(whole, **changes)

    def call(given: Tensors, backend: str, validate: bool = False) -> Any:  # Any: a tensor
        plan = StepPlan(case.capacity, "cpu", backend=backend)  # type: ignore[arg-type]
        return plan(put(case.inputs, given, ""), validate=validate).token_ids

    collect(case.inputs, "")
    return tensors, call


CALLS = {
    "rejection": _rejection,
    "rejection_counter": _counter,
    "sampling": _sample,
    "logprobs": _logprobs,
    "bitmask": _bitmask,
    "step": _step,
}


def outcome_of(action: Callable[[], Any]) -> Any:  # Any: what it returns
    """The answer, or how it was refused: `ValueError` and `TypeError` must name what is wrong, as `function: name=`."""
    try:
        return action()
    except (TypeError, ValueError) as error:
        return "refused" if re.match(r"\w+: [\w.\[\]()-]+=", str(error)) else f"refused badly: {str(error)[:150]}"
    except (RuntimeError, IndexError, NotImplementedError) as error:
        return f"{type(error).__name__}: {str(error)[:150]}"


def lay_out(function: str, name: str, backend: str) -> None:
    """Hand one tensor in every layout: right, or refused by name. Prints what differs from the same values in a row.

    Raises:
        SystemExit: If something differs.
    """
    import torch

    wrong = []
    for layout, change in LAYOUTS.items():
        tensors, call = CALLS[function]()
        laid = change(tensors[name])
        found = outcome_of(functools.partial(call, {**tensors, name: laid}, backend=backend))
        if (isinstance(found, str) and found == "refused") or (laid.is_meta and not isinstance(found, str)):
            continue
        plain = laid if laid.is_meta else laid.detach().contiguous().clone()
        right = outcome_of(functools.partial(call, {**CALLS[function]()[0], name: plain}, backend=backend))
        is_same = found == right if isinstance(found, str) or isinstance(right, str) else torch.equal(found, right)
        if not is_same or (isinstance(found, str) and layout not in STRIDES):
            wrong.append(f"{layout}: {found if isinstance(found, str) else 'another answer'}")
    if wrong:
        print("\n".join(wrong))
        raise SystemExit(1)


def put_values(function: str, name: str, backend: str) -> None:
    """Hand every value at the first and the last place of one tensor: whatever comes, other memory is untouched."""
    for value in VALUES:
        for place in (0, -1):
            tensors, call = CALLS[function]()
            tensors[name].view(-1)[place] = value
            for validate in (False, True):
                given = {one: guarded(tensor) for one, tensor in tensors.items()}
                outcome_of(functools.partial(call, given, backend=backend, validate=validate))


def attacks() -> Iterator[Attack]:
    """Yield all of this group: every tensor of every function."""
    for function, make in CALLS.items():
        tensors, _ = make()
        for backend in ("torch",) if function == "bitmask" else ("torch", "triton"):
            for name, tensor in tensors.items():
                runs = {"in every layout": lay_out}
                if not tensor.is_floating_point():
                    runs["with every value"] = put_values
                for what, run in runs.items():
                    program = functools.partial(run, function, name, backend)
                    yield Attack("tensors", f"{name} of {function} {what}, {backend}", ["python"], program=program)
