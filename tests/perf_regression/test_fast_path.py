"""The fast path as the gate times it: checked before it is timed, and large enough for kernels that overlap."""

import gc
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from fairdraw.contracts import SeededNoise
from fairdraw.perf_regression import _device as device
from fairdraw.perf_regression import _internals
from fairdraw.perf_regression import _timed as timed
from fairdraw.perf_regression._counts import counted
from fairdraw.perf_regression._named import NoVerdictError
from fairdraw.perf_regression._rejection import fast_path_steps, rejection_batch, unwritten_batch
from fairdraw.perf_regression._world import Sizes
from fairdraw.sampler_impl import rejection_counter
from fairdraw.sampler_impl._counter import launch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SMALL = Sizes(2, 2, 4096 + 5)
SHIPPED = rejection_counter.rejection_sample


@pytest.fixture
def large_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat batches of any size like those that more than fill a GPU."""
    monkeypatch.setattr(launch, "MEASURE_STRIPS", {3: 0})


def dirty(workspace: Tensor | None, **arguments: Any) -> Tensor:  # [batch_size, max_spec_len + 1] int32
    """Forgets to clean up."""
    output = SHIPPED(**arguments, workspace=workspace)
    if workspace is not None:
        workspace[-1] = 1
    return output


def other_token(workspace: Tensor | None, **arguments: Any) -> Tensor:  # [batch_size, max_spec_len + 1] int32
    """Draws before all of its input is complete."""
    output = SHIPPED(**arguments, workspace=workspace)
    if workspace is not None:
        output[-1, 0] ^= 1
    return output


def accepting(workspace: Tensor | None, **arguments: Any) -> Tensor:  # [batch_size, max_spec_len + 1] int32
    """Reads no logits at all."""
    drafted = arguments["draft_token_ids"].view(-1, arguments["max_spec_len"])
    return torch.cat([drafted, arguments["bonus_token_ids"]], dim=1)


@pytest.mark.usefixtures("large_batch")
def test_step_is_the_same_with_and_without_a_workspace() -> None:
    steps = fast_path_steps(rejection_batch(SMALL, DEVICE, torch.bfloat16))
    assert torch.equal(steps[True](), steps[False]())


@pytest.mark.usefixtures("large_batch")
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (dirty, "does not leave its workspace empty"),
        (other_token, "other tokens with a workspace than without"),
        (accepting, "accepts draft tokens that the target forbids"),
    ],
    ids=["counts are left", "another token", "nothing is recovered"],
)
def test_wrong_kernel_is_not_timed(fault: Callable[..., Tensor], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong kernel is fast."""
    names = ("draft_token_ids", "cu_num_draft_tokens", "max_spec_len", "logits", "temperature", "seeds", "positions")
    monkeypatch.setattr(
        rejection_counter,
        "rejection_sample",
        lambda *given, **arguments: fault(**dict(zip(names, given, strict=True)), **arguments),
    )
    with pytest.raises(NoVerdictError, match=message):
        fast_path_steps(rejection_batch(SMALL, DEVICE))


def test_tensors_whose_addresses_a_graph_has_live_as_long_as_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """They were freed once, and an H200 reported an illegal memory access."""
    replays: list[bool] = []
    monkeypatch.setattr(device, "graph_of", lambda step: SimpleNamespace(replay=lambda: replays.append(True)))
    step = _internals.fast_path(rejection_batch(SMALL, DEVICE), workspace=True)
    held = [weakref.ref(one) for one in (*step.args, *step.keywords.values()) if isinstance(one, torch.Tensor)]
    workspace = weakref.ref(step.keywords["workspace"])
    replay = device.replay_of(step)
    del step
    gc.collect()
    replay()
    assert replays == [True]
    assert all(one() is not None for one in (workspace, *held))
    del replay
    gc.collect()
    assert workspace() is None


def test_checks_reach_the_workspace_on_a_gpu_only(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Tensor | None] = []
    monkeypatch.setattr(
        rejection_counter,
        "rejection_sample",
        lambda *args, workspace, **rest: (given.append(workspace), SHIPPED(*args, workspace=workspace, **rest))[1],
    )
    _internals.load_sampler("rejection/counter-triton", DEVICE).verify(rejection_batch(SMALL, DEVICE), SeededNoise(1))
    assert [workspace is not None for workspace in given] == [DEVICE == "cuda"]


def test_ratio_has_the_workspace_above_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timed, "require_gpu", lambda: None)
    monkeypatch.setattr(timed, "gpu_watches", list)
    monkeypatch.setattr(timed, "replay_of", lambda step: step)
    monkeypatch.setattr(timed, "rejection_batch", lambda sizes, on, dtype: rejection_batch(sizes, DEVICE, dtype))
    steps: Any = timed.workspace_pair(batch_size=2, max_spec_len=1, vocab_size=50).steps
    ours, reference = (step.keywords["workspace"] for step in steps.values())
    assert list(steps) == ["ours", "reference"]
    assert ours is not None
    assert reference is None


def path_of(sizes: Sizes) -> list[tuple[str, bool]]:
    """The kernels that a step with a workspace launches, and whether their programs take several tiles."""
    step = _internals.fast_path(unwritten_batch(sizes, DEVICE, torch.bfloat16), workspace=True)
    with counted(run_kernels=False) as counts:
        step()
    return [(one.kernel, _internals.takes_several_tiles(one.arguments)) for one in counts.launches]


@pytest.mark.parametrize("axis", timed.DEVICE_SIZES)
def test_all_sizes_of_a_growth_case_take_one_path(axis: str) -> None:
    standard = {"B": 64, "K": 3, "V": 128_256}
    every = [path_of(Sizes(*{**standard, axis: size}.values())) for size in timed.DEVICE_SIZES[axis]]
    assert all(path == path_of(Sizes(*standard.values())) for path in every)
    assert every[0] == list(zip(_internals.FAST_PATH, (True, False, True), strict=True))


@pytest.mark.parametrize("sizes", [Sizes(64, 3, 32_000), Sizes(64, 1, 128_256)], ids=str)
def test_size_that_takes_another_path_is_detected(sizes: Sizes) -> None:
    assert not path_of(sizes)[0][1]
