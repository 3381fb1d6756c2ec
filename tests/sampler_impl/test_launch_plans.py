"""Calls that come again: no kernel gets what it was not compiled for, nothing wrong passes, and nothing is kept.

Kernels are stood in for: each remembers what Triton would have compiled it for, and looks at what it is launched with.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from triton import knobs

from fairdraw.sampler_impl import rejection, rejection_counter, sampling
from fairdraw.sampler_impl._counter import launch
from fairdraw.sampler_impl._counter import step as of_counter
from fairdraw.sampler_impl._rejection import kernels as of_rejection
from fairdraw.sampler_impl._rejection import step as rejection_step
from fairdraw.sampler_impl._sampling import kernels as of_sampling
from fairdraw.sampler_impl._sampling import parameters
from fairdraw.sampler_impl._shared import compiled, kinds
from fairdraw.sampler_impl._shared.compiled import Compiled

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are stood in for on a CPU")
KNOWN: tuple[kinds.Kinds[Any], ...] = (of_counter.KNOWN, parameters.KNOWN, rejection_step.KNOWN)
PLACES = {"device": 0}
TYPES: dict[int, torch.dtype] = {}
"""Of callers' tensors, by their addresses."""


def facts_of(value: object, place: object) -> tuple[object, ...]:
    """What Triton compiles for, of an argument or of the address in the place of a tensor."""
    if isinstance(value, Tensor):
        return value.dtype, value.data_ptr() % 16 == 0
    if value is None or isinstance(place, torch.dtype):
        return None if value is None else TYPES.get(int(str(value)), place), int(str(value or 0)) % 16 == 0
    assert isinstance(value, int)
    return "number", value == 1, value % 16 == 0, value >= 2**31


def stream_of(device: int) -> int:
    return 7 + device


class Kernel:
    """Compiled for its first arguments. Of an address of memory that a call allocates no type can be seen."""

    def __init__(self, source: Source, device: int, arguments: tuple[object, ...]) -> None:
        self.source, self.device, self.facts = source, device, [facts_of(value, None) for value in arguments]

    function, packed_metadata = "a handle", "options"

    def run(self, *launch: Any) -> None:  # Any: as Triton hands them to its launcher
        grid, (stream, *handles), hooks, arguments = launch[:3], launch[3:6], launch[6:9], launch[9:]
        assert (stream, *handles) == (stream_of(self.device), self.function, self.packed_metadata)
        assert hooks == (None, None, None)
        assert PLACES["device"] == self.device
        given = arguments[: len(self.facts)]
        assert arguments[len(self.facts) :] == self.source.last
        assert [facts_of(value, fact[0]) for fact, value in zip(self.facts, given, strict=True)] == self.facts
        self.source.launched.append((grid, *given))

    def __getitem__(self, grid: tuple[int, int, int]) -> Callable[..., None]:
        def observed(*arguments: object, stream: int) -> None:
            knobs.runtime.launch_enter_hook(None)
            self.run(*grid, stream, self.function, self.packed_metadata, None, None, None, *arguments)

        return observed


class Source:
    """What `triton.jit` made, and all that was launched of it."""

    def __init__(self, kernel: Any, launched: list[tuple[object, ...]]) -> None:  # Any: Triton's
        self.fn, self.launched, self.arg_names = kernel.fn, launched, kernel.arg_names
        self.compilations = 0
        self.last: tuple[object, ...] = ()

    def __getitem__(self, grid: tuple[int, int, int]) -> Callable[..., Kernel]:
        def run(**named: object) -> Kernel:
            given = [named[name] for name in self.arg_names if not name.isupper()]
            assert list(named)[: len(self.arg_names)] == self.arg_names  # constants are last
            for name, value in zip(self.arg_names, given, strict=False):
                # An address would be compiled for as a number.
                assert isinstance(value, Tensor | None) == name.endswith("_ptr")
            self.last = tuple(named[name] for name in self.arg_names[len(given) :])
            self.launched.append((grid, *given))
            self.compilations += 1
            return Kernel(self, PLACES["device"], tuple(given))

        return run


@pytest.fixture(autouse=True)
def launched(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[object, ...]]]:
    """Everything that is launched, as on a card; afterwards nothing of it is known."""
    found: list[tuple[object, ...]] = []
    made = Compiled.__init__

    def stood_in(self: Compiled, kernel: Any, *rest: Any, **constants: Any) -> None:  # Any: Triton's
        made(self, Source(kernel, found), *rest, **constants)

    monkeypatch.setattr(Compiled, "__init__", stood_in)
    monkeypatch.setattr(compiled, "_COMPILED", {})
    monkeypatch.setattr(compiled, "current_place", lambda: (PLACES["device"], stream_of(PLACES["device"])))
    monkeypatch.setitem(PLACES, "device", 0)
    for module in (compiled, launch, of_sampling, of_rejection):
        monkeypatch.setattr(module, "INTERPRETED", False)
    for known in KNOWN:
        known.plans.clear()
    yield found
    for known in KNOWN:
        known.plans.clear()


def counter_arguments(batch_size: int = 2, vocab_size: int = 32, draft: str = "draft_probs") -> dict[str, Any]:
    num_tokens = 2 * batch_size
    rows = torch.zeros(num_tokens, vocab_size)
    return {
        "draft_token_ids": torch.zeros(num_tokens, dtype=torch.int32),
        "cu_num_draft_tokens": torch.arange(2, num_tokens + 1, 2, dtype=torch.int32),
        "max_spec_len": 2,
        "logits": rows,
        "temperature": torch.ones(batch_size),
        "seeds": torch.arange(batch_size),
        "positions": torch.arange(batch_size),
        "bonus_token_ids": torch.zeros(batch_size, 1, dtype=torch.int32),
        "workspace": rejection_counter.make_workspace(batch_size, 2, vocab_size, "cpu"),
        "backend": "triton",
        **({draft: rows.clone()} if draft else {}),
    }


def sampling_arguments(batch_size: int = 2, vocab_size: int = 32) -> dict[str, Any]:
    counters = {"seeds": torch.arange(batch_size), "positions": torch.arange(batch_size)}
    return {"logits": torch.zeros(batch_size, vocab_size), "temperature": torch.ones(batch_size), **counters}


def rejection_arguments(batch_size: int = 2, vocab_size: int = 32) -> dict[str, Any]:
    num_tokens = 2 * batch_size
    return {
        "draft_token_ids": torch.zeros(num_tokens, dtype=torch.int32),
        "num_draft_tokens": [2] * batch_size,
        "max_spec_len": 2,
        "cu_num_draft_tokens": torch.arange(2, num_tokens + 1, 2, dtype=torch.int32),
        "draft_probs": torch.full((num_tokens, vocab_size), 1 / vocab_size),
        "target_logits": torch.zeros(num_tokens, vocab_size),
        "bonus_token_ids": torch.zeros(batch_size, 1, dtype=torch.int32),
        "temperature": torch.ones(batch_size),
        "all_greedy": False,
        "all_random": False,
    }


def draw(arguments: dict[str, Any]) -> None:
    noise = sampling.CounterNoise(arguments["seeds"], arguments["positions"])
    given = sampling.SamplingParameters(arguments["temperature"], min_p=arguments.get("min_p"))
    sampling.sample(arguments["logits"], given, noise, backend="triton")
    if arguments.get("min_p") is None:
        sampling.draft_with_logsumexp(arguments["logits"], arguments["temperature"], noise, backend="triton")


def verify(arguments: dict[str, Any]) -> None:
    names = "all_greedy", "all_random", "temperature"
    metadata: Any = SimpleNamespace(generators={}, **{name: arguments[name] for name in names})  # Any: as vLLM's
    rest = {name: value for name, value in arguments.items() if name not in names}
    rejection.rejection_sample(sampling_metadata=metadata, **rest, backend="triton")


def verify_with_counters(arguments: dict[str, Any]) -> None:
    rejection_counter.rejection_sample(**arguments)


def moved(tensor: Tensor) -> Tensor:  # [...] any, both
    """The same numbers, an entry behind an address that 16 divides."""
    longer = tensor.new_zeros(tensor.numel() + 1)
    longer[1:] = tensor.flatten()
    return longer[1:].view(tensor.shape)


def padded(tensor: Tensor) -> Tensor:  # [num_rows, vocab_size] any, both
    """The same rows, with a stride that 16 does not divide."""
    return torch.nn.functional.pad(tensor, (0, 1))[:, : tensor.shape[1]]


SAMPLERS: dict[str, tuple[Callable[[dict[str, Any]], None], Callable[..., dict[str, Any]], str]] = {
    "rejection_counter": (verify_with_counters, counter_arguments, "logits"),
    "sampling": (draw, sampling_arguments, "logits"),
    "rejection": (verify, rejection_arguments, "target_logits"),
}


def variants(name: str) -> list[dict[str, Any]]:
    """Arguments that are compiled for differently: types, alignment, strides, 1, what is there and what is not."""
    _, arguments_of, logits = SAMPLERS[name]
    found = [arguments_of(), arguments_of(1), arguments_of(2, 33), arguments_of(2, 1), arguments_of(3)]
    tensors = [key for key, value in found[0].items() if isinstance(value, Tensor)]
    found += [{**found[0], key: moved(found[0][key])} for key in tensors]
    found += [{**found[0], logits: padded(found[0][logits])}, {**found[0], logits: found[0][logits].half()}]
    if name == "sampling":
        return [*found, {**found[0], "min_p": torch.ones(2)}, {**found[0], "min_p": moved(torch.ones(2))}]
    found += [{**found[0], key: found[0][key].long()} for key in ("draft_token_ids", "bonus_token_ids")]
    found += [{**found[0], "draft_probs": None}]
    if name == "rejection":
        return [*found, {**found[0], "all_greedy": True}, {**found[0], "all_random": True}]
    drafts = [counter_arguments(draft="draft_logits"), {**found[0], "workspace": None}]
    drafts.append({**drafts[0], "draft_logsumexp": torch.zeros(4)})
    with_bonus = {"bonus_token_ids": None, "logits": torch.zeros(6, 32)}
    return [*found, *drafts, *({**one, **with_bonus} for one in (found[0], found[-1], *drafts))]


@pytest.mark.parametrize("name", SAMPLERS)
def test_no_kernel_is_launched_with_what_it_was_not_compiled_for(
    name: str, launched: list[tuple[object, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    call, _, _ = SAMPLERS[name]
    calls = variants(name)
    given = [value for arguments in calls for value in arguments.values() if isinstance(value, Tensor)]
    monkeypatch.setattr(f"{__name__}.TYPES", {one.data_ptr(): one.dtype for one in given})
    for device in (0, 1):
        monkeypatch.setitem(PLACES, "device", device)
        for arguments in (*calls, *reversed(calls), *calls):
            call(arguments)
    compilations = sum(one.kernel.compilations for one in compiled._COMPILED.values())
    assert 2 * 5 < compilations < len(launched) / 3


class Switched:
    """Stands in for `torch.cuda.device`."""

    def __init__(self, device: int) -> None:
        self.device, self.before = device, PLACES["device"]

    def __enter__(self) -> None:
        PLACES["device"] = self.device

    def __exit__(self, *_: object) -> None:
        PLACES["device"] = self.before


@pytest.mark.parametrize("name", SAMPLERS)
def test_kernels_are_compiled_for_the_tensors_device_and_launched_there(
    name: str, launched: list[tuple[object, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever device is current, which it is again afterwards."""
    made = compiled.LaunchPlan.__init__

    def of_second(self: compiled.LaunchPlan, device: torch.device) -> None:
        made(self, device)
        self.index = 1

    monkeypatch.setattr(compiled.LaunchPlan, "__init__", of_second)
    monkeypatch.setattr(torch.cuda, "device", Switched)
    call, arguments_of, _ = SAMPLERS[name]
    arguments = arguments_of()
    for current in (0, 1, 0, 0):
        monkeypatch.setitem(PLACES, "device", current)
        call(arguments)
        assert PLACES["device"] == current
    assert len(launched) >= 4
    assert {kernel.device for one in compiled._COMPILED.values() for kernel in one.by_key.values()} == {1}


@pytest.mark.parametrize("name", SAMPLERS)
def test_this_test_would_see_a_wrong_kernel(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "number_of", lambda key: 1)
    call, _, _ = SAMPLERS[name]
    calls = variants(name)
    with pytest.raises(AssertionError):
        [call(arguments) for arguments in calls]


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_later_launch_takes_the_addresses_of_what_the_first_one_took(
    name: str, launched: list[tuple[object, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every argument in its place, and every part of the memory that a call allocates: here always the same."""
    call, _, _ = SAMPLERS[name]
    memory = Memory()
    for owner, operation in ((torch, "empty"), (torch, "rand"), (Tensor, "softmax"), (Tensor, "argmax")):
        monkeypatch.setattr(owner, operation, memory.same(getattr(owner, operation)))
    for arguments in variants(name):
        memory.made.clear()
        found = []
        for _ in range(2):
            memory.number = 0
            call(arguments)
            found.append([tuple(map(addressed, launch)) for launch in launched])
            launched.clear()
        assert found[0] == found[1]


class Memory:
    """What operations of torch gave in a call, in order, which they give again in the next one."""

    def __init__(self) -> None:
        self.made: dict[int, Tensor] = {}
        self.number = 0

    def same(self, operation: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def run(*arguments: Any, **options: Any) -> Tensor:  # Any: of torch
            self.number += 1
            return self.made.setdefault(self.number, operation(*arguments, **options))

        return run


def addressed(value: object) -> object:
    return value.data_ptr() if isinstance(value, Tensor) else value


@pytest.mark.parametrize("name", SAMPLERS)
def test_what_is_wrong_is_refused_after_what_was_right(name: str) -> None:
    call, arguments_of, logits = SAMPLERS[name]
    right = arguments_of()
    for _ in range(2):
        call(right)
    for key, value in right.items():
        if isinstance(value, Tensor) and key != "workspace":
            for wrong in (value[:-1], value.to(torch.complex64), value.to("meta"), value[None], [1], None):
                if wrong is not None or key not in ("bonus_token_ids", "draft_probs", "temperature"):
                    with pytest.raises((TypeError, ValueError)):
                        call({**right, key: wrong})
    assert logits in right


@pytest.mark.parametrize("name", SAMPLERS)
def test_strides_are_those_of_the_call(name: str, launched: list[tuple[object, ...]]) -> None:
    """After calls with contiguous tensors, others are copied, or their rows found by their own stride."""
    call, arguments_of, logits = SAMPLERS[name]
    right = arguments_of()
    for _ in range(2):
        call(right)
    for key in (key for key, value in right.items() if isinstance(value, Tensor) and key != "workspace"):
        strided = right[key].repeat_interleave(2, -1)[..., ::2]
        launched.clear()
        call({**right, key: strided})
        assert not any(strided.data_ptr() in map(addressed, launch) for launch in launched)
    launched.clear()
    call({**right, logits: padded(right[logits])})
    # The drop-in reads what torch made of its logits.
    assert name == "rejection" or all(33 in map(addressed, launch) for launch in launched)


@pytest.mark.parametrize("name", SAMPLERS)
def test_no_tensor_is_kept_alive(name: str, launched: list[tuple[object, ...]]) -> None:
    call, arguments_of, _ = SAMPLERS[name]
    arguments = arguments_of()
    alive = [weakref.ref(value) for value in arguments.values() if isinstance(value, Tensor)]
    for _ in range(3):
        call(arguments)
    assert any(known.plans for known in KNOWN)
    arguments.clear()
    launched.clear()
    gc.collect()
    assert [one for one in alive if one() is not None] == []


def test_the_last_kinds_are_known() -> None:
    known: kinds.Kinds[str] = kinds.Kinds()
    for number in range(kinds.MOST + 2):
        assert known.find_or_make((number, None), partial(str, number)) == str(number)
    assert len(known.plans) == kinds.MOST
    last = kinds.MOST + 1
    assert (known.find((1, None)), known.find((last, None))) == (None, str(last))
    assert known.find_or_make((last, None), str) == str(last)
    assert known.find(("a word", None)) is None


def test_a_profiler_hears_of_every_launch(launched: list[tuple[object, ...]]) -> None:
    """Without one, Triton's description of a launch is not made."""
    heard: list[object] = []
    arguments = sampling_arguments()
    draw(arguments)
    knobs.runtime.launch_enter_hook.add(heard.append)
    try:
        before = len(launched)
        draw(arguments)
    finally:
        knobs.runtime.launch_enter_hook.remove(heard.append)
    assert len(heard) == len(launched) - before > 0
    draw(arguments)
    assert len(heard) == len(launched) // 3
