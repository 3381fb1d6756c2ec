"""Every tensor of every public function, however it lies: the answer of a contiguous one, or a refusal by name."""

import inspect
import re
from collections.abc import Callable
from functools import cache

import pytest
import torch
from tensor_calls import Call, Path, calls
from torch import Tensor

from fairdraw.sampler_impl import grammar, logprobs, rejection, rejection_counter, sampling, step
from fairdraw.sampler_impl.logits_plan import LogitsPlan
from fairdraw.sampler_impl.penalties import Penalties
from fairdraw.sampler_impl.thinking_budget import ThinkingBudget

BACKENDS = ("torch", "triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CALLS = {backend: calls(backend, DEVICE) for backend in BACKENDS}
EVERY = [(backend, name) for backend in BACKENDS for name in CALLS[backend]]


def in_wider_rows(tensor: Tensor) -> Tensor:  # [...] any, both
    wide = tensor.new_ones((*tensor.shape[:-1], tensor.shape[-1] + 3))
    wide[..., 1:-2] = tensor
    return wide[..., 1:-2]


def every_second(tensor: Tensor) -> Tensor:  # [...] any, both
    return tensor.repeat_interleave(2, -1)[..., ::2]


def columns_first(tensor: Tensor) -> Tensor:  # [...] any, both
    return tensor.transpose(0, -1).contiguous().transpose(0, -1)


def expanded(tensor: Tensor) -> Tensor:  # [...] any, both
    return tensor[:1].expand(tensor.shape)


def overlapping(tensor: Tensor) -> Tensor:  # [...] any, both
    """Each row begins one entry behind the row before it."""
    return tensor.clone().as_strided(tensor.shape, (1,) * tensor.ndim)


def odd_where_alone(tensor: Tensor) -> Tensor:  # [...] any, both
    """Strides of dimensions of one entry say nothing."""
    strides = [7 if size == 1 else stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)]
    return tensor.clone().as_strided(tensor.shape, strides)


def negated(tensor: Tensor) -> Tensor:  # [...] any, both
    """What `z.conj().imag` is: memory holds the other sign."""
    return torch._neg_view(-tensor) if tensor.is_floating_point() else tensor


def with_gradient(tensor: Tensor) -> Tensor:  # [...] any, both
    return tensor.clone().requires_grad_(tensor.is_floating_point())


def other_type(tensor: Tensor) -> Tensor:  # [...] any, both
    """The same numbers: floats in double precision, ids of the other width."""
    wider = {torch.float32: torch.float64, torch.int32: torch.int64, torch.int64: torch.int32}
    return tensor.clamp(-(2**31), 2**31 - 1).to(wider.get(tensor.dtype, torch.float32))


def every_second_row(tensor: Tensor) -> Tensor:  # [...] any, both
    return tensor.repeat_interleave(2, 0)[::2]


LAYOUTS = (
    in_wider_rows, every_second, columns_first, expanded, overlapping, odd_where_alone, negated, with_gradient,
    other_type, every_second_row,
)  # fmt: skip
CHANGING = (expanded, overlapping, other_type)
"""They lay out other numbers than they were given."""
SIZES: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda tensor: tensor[:-1],
    lambda tensor: tensor.repeat_interleave(2, 0),
    lambda tensor: tensor.reshape(-1)[None, None],
)
REFUSED: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda tensor: tensor.to("meta"),
    lambda tensor: tensor.to_sparse(),
    lambda tensor: tensor.bool(),
    lambda tensor: tensor[None],
)


def in_order(tensor: Tensor, dtype: torch.dtype) -> Tensor:  # [...] any, both
    """The same numbers in memory of their own."""
    return tensor.detach().clone(memory_format=torch.contiguous_format).resolve_neg().to(dtype)


def run_or_refused(call: Call, laid_out: dict[Path, Tensor]) -> list[Tensor]:  # [...] any, each
    """Lay out fewer and fewer tensors, until none is refused or left: each refusal begins with the name of one."""
    while laid_out:
        try:
            return call.run(laid_out)
        except (TypeError, ValueError) as refusal:
            found = re.match(r"[\w.]+: (\w+)", str(refusal))
            named = [path for path in laid_out if found and path[-1] == found[1]]
            if not named:
                raise
            del laid_out[named[0]]
    return []


@cache
def answer_of(backend: str, name: str) -> list[Tensor]:  # [...] any, each
    return CALLS[backend][name].run({})


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("backend", "name"), EVERY)
def test_a_layout_changes_nothing_or_is_refused_by_name(
    backend: str, name: str, layout: Callable[[Tensor], Tensor]
) -> None:
    """All tensors at once; but sums say which rows are seen, and are laid out by themselves."""
    call = CALLS[backend][name]
    unchanged = answer_of(backend, name)
    is_sum = {path: path[-1].startswith("cu_") for path in call.tensors()}
    for sums in set(is_sum.values()):
        tensors = {path: tensor for path, tensor in call.tensors().items() if is_sum[path] is sums}
        laid_out = {path: layout(tensor) for path, tensor in tensors.items()}
        # Processors compute in the type of the logits; and penalties round otherwise on a card where these are not
        # contiguous, as vLLM's do.
        if layout is other_type or (name == "Penalties.apply" and DEVICE == "cuda"):
            laid_out = {path: tensor for path, tensor in laid_out.items() if "logits" not in path[-1]}
        copies = {path: in_order(tensor, tensors[path].dtype) for path, tensor in laid_out.items()}
        seen = run_or_refused(call, laid_out)
        changed = layout in CHANGING and laid_out
        expected = call.run({path: copies[path] for path in laid_out}) if changed else unchanged
        for one, other in zip(expected if laid_out else [], seen, strict=True):
            assert torch.equal(one.nan_to_num(7.25), other.to(one.dtype).nan_to_num(7.25)), laid_out.keys()


@pytest.mark.parametrize(("backend", "name"), EVERY)
def test_what_is_no_such_tensor_is_refused_by_name(backend: str, name: str) -> None:
    call = CALLS[backend][name]
    for path, tensor in call.tensors().items():
        for change in REFUSED:
            with pytest.raises((TypeError, ValueError), match=r"^[\w.]+: "):
                call.run({path: change(tensor)})


@pytest.mark.parametrize(("backend", "name"), EVERY)
def test_another_size_is_taken_or_refused_by_name(backend: str, name: str) -> None:
    call, refusals = CALLS[backend][name], list[str]()
    for path, tensor in call.tensors().items():
        for change in SIZES:
            try:
                call.run({path: change(tensor)})
            except (TypeError, ValueError) as refusal:
                refusals.append(str(refusal))
    assert [text for text in refusals if not re.match(r"[\w.]+: ", text)] == []


def test_the_table_has_every_function_that_takes_tensors() -> None:
    modules = (grammar, logprobs, rejection, rejection_counter, sampling, step)
    public = {name for module in modules for name in module.__all__}
    named = {call.split(",")[0] for call in CALLS["torch"]} | {"make_workspace"}
    for module in modules:
        for name in public & set(vars(module)):
            value = getattr(module, name)
            if inspect.isfunction(value) and "Tensor" in str(inspect.signature(value)):
                assert name in named, name
    for kind in (LogitsPlan, Penalties, ThinkingBudget, step.StepPlan):
        for name, method in vars(kind).items():
            if inspect.isfunction(method) and not name.startswith("_") and "Tensor" in str(inspect.signature(method)):
                assert f"{kind.__name__}.{name}" in named, name
