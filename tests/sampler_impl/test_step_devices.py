"""Whatever device is current: a plan's kernels, and those of functions, are launched on the device of their tensors.

The driver is stood in for, so that there are two devices; `test_launch_plans.py` asks the same of launch plans.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from step_cases import Case, make_case

from fairdraw.sampler_impl._logprobs import kernels as of_logprobs
from fairdraw.sampler_impl._rejection import kernels as of_rejection
from fairdraw.sampler_impl._scanners import penalties_kernel
from fairdraw.sampler_impl._shared import compiled
from fairdraw.sampler_impl._shared.compiled import Compiled
from fairdraw.sampler_impl._step import launch
from fairdraw.sampler_impl._step.replays import Replays
from fairdraw.sampler_impl.step import Drafts, StepPlan

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from torch import Tensor

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the driver is stood in for on a CPU")
CPU = torch.device("cpu")
OWN, OTHER = 1, 0
CURRENT = {"device": OTHER}


class Switched:
    """Stands in for `torch.cuda.device`, and with a tensor for `torch.cuda.device_of`."""

    def __init__(self, device: int | Tensor) -> None:
        self.device, self.before = OWN if isinstance(device, torch.Tensor) else device, CURRENT["device"]

    def __enter__(self) -> None:
        CURRENT["device"] = self.device

    def __exit__(self, *_: object) -> None:
        CURRENT["device"] = self.before


class Kernel:
    """Notes which device is current when it is launched by Triton's own dispatch."""

    def __init__(self) -> None:
        self.devices: list[int] = []

    def __getitem__(self, _: object) -> Callable[..., None]:
        return lambda *_, **__: self.devices.append(CURRENT["device"])


@pytest.fixture(autouse=True)
def launched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, object]]:
    """Current device and stream of each launch of a plan."""
    found: list[tuple[int, object]] = []
    card = SimpleNamespace(get_current_device=lambda: CURRENT["device"], get_current_stream=lambda device: 100 + device)

    def noted(_: Compiled, key: object, stream: object, *rest: object) -> None:
        found.append((CURRENT["device"], stream))

    monkeypatch.setitem(CURRENT, "device", OTHER)
    monkeypatch.setattr(Compiled, "launch", noted)
    monkeypatch.setattr(compiled, "driver", SimpleNamespace(active=card))
    monkeypatch.setattr(compiled, "INTERPRETED", False)
    monkeypatch.setattr(torch.cuda, "current_device", card.get_current_device)
    for name in ("device", "device_of"):
        monkeypatch.setattr(torch.cuda, name, Switched)
    return found


def plan_of(case: Case) -> StepPlan:
    """On the second device."""
    plan = StepPlan(case.capacity, CPU, backend="triton")
    plan._index = plan._run.index = OWN  # type: ignore[union-attr]  # of the Triton backend
    return plan


@pytest.mark.parametrize("current", [OTHER, OWN])
def test_a_plan_runs_on_its_own_device(
    current: int, launched: list[tuple[int, object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first step, later ones, and what is not a step; afterwards the device that was current is so again."""
    processed = Kernel()
    monkeypatch.setattr(launch, "processed_kernel", processed)
    case, plain = make_case(0, [2, 0, 1], 40, edits=True, drafts=Drafts.PROBS), make_case(0, [0, 0], 40)
    plan, drafter = plan_of(case), plan_of(plain)
    monkeypatch.setattr(launch, "INTERPRETED", False)
    monkeypatch.setitem(CURRENT, "device", current)
    for call in (
        lambda: plan(case.inputs),
        lambda: plan(case.inputs, validate=True),
        lambda: plan.processed_logits(case.inputs),
        lambda: drafter.drafted(plain.inputs),
    ):
        launched.clear()
        for _ in range(2):
            call()
            assert CURRENT["device"] == current
        assert len(launched) >= 4
        assert set(launched) == {(OWN, 100 + OWN)}
    assert processed.devices == [OWN] * 4


def test_captures_are_looked_for_on_the_plans_device(monkeypatch: pytest.MonkeyPatch) -> None:
    launched_on: list[int] = []

    def is_capturing() -> bool:
        launched_on.append(CURRENT["device"])
        return False

    case = make_case(0, [2, 0, 1], 40)
    plan = plan_of(case)
    plan._replays = Replays(plan._known, CPU, 2)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", is_capturing)
    for _ in range(3):
        plan(case.inputs)
    assert launched_on == [OWN] * 3


def penalise(logits: Tensor) -> None:  # [num_rows, vocab_size] float32
    rows: Any = SimpleNamespace()  # Any: as PenaltyRows
    rows.slots = rows.request = rows.first_draft = rows.num_drafts = rows.draft_token_ids = [0, 0]
    penalties_kernel.penalise(logits, logits.int(), rows, (logits[0], logits[0], logits[0]))


def expand(logits: Tensor) -> None:  # [num_rows, vocab_size] float32
    of_rejection.expand(logits[:, 0], torch.tensor([1, 2], dtype=torch.int32), 2, 0.0, 1.0)


def find_top(logits: Tensor) -> None:  # [num_rows, vocab_size] float32
    of_logprobs.top_logprobs(logits, logits[:, 0].long(), 2, normalise=True)


@pytest.mark.parametrize(
    ("module", "kernels", "call"),
    [
        (penalties_kernel, ["_penalise_kernel"], penalise),
        (of_rejection, ["_expand_kernel"], expand),
        (of_logprobs, ["_scan_kernel", "_merge_kernel"], find_top),
    ],
)
def test_functions_run_on_the_device_of_their_tensors(
    module: ModuleType, kernels: list[str], call: Callable[[Tensor], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    noted = Kernel()
    for name in kernels:
        monkeypatch.setattr(module, name, noted)
    call(torch.zeros(2, 40))
    assert noted.devices == [OWN] * len(kernels)
    assert CURRENT["device"] == OTHER
