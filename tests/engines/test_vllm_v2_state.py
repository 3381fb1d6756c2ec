"""vLLM's model runner V2, whatever release is importable: its slots follow the events of a batch."""

from __future__ import annotations

import dataclasses
import sys
from importlib import metadata
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from fairdraw._core.checks import PROFILES
from fairdraw._oracles.thinking_budget import ThinkingBudgetOracle
from fairdraw._run.runner import Session, run_check
from fairdraw.adapters import SamplerNotFound, UnusableRelease, load
from fairdraw.properties import thinking_budget
from fairdraw.strategies.lifecycle import (
    Add,
    CarryOn,
    Cut,
    Decode,
    Draft,
    Finish,
    PenaltiesTrace,
    Preempt,
    Repair,
    Resume,
    Swap,
    ThinkingTrace,
)
from fairdraw_engines._vllm_v2_runtime import call

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairdraw._core.checks import Check

pytestmark = pytest.mark.skipif(not list(metadata.distributions(name="vllm")), reason="python tools/install.py vllm")

EVENTS = (
    Add(prompt=(1, 5), output=(3,), presence=0.5, repetition=1.5, budget=3),
    Add(prompt=(5,), frequency=-0.5),
    Draft(((5, 6), (7,))),
    Decode((4, 4), accepted=(1,)),
    Decode((5, 6), late=True),
    Repair(),
    Swap(),
    Preempt(),
    Decode((7,)),
    Resume(),
    Cut(count=2),
    CarryOn(1),
    Finish(),
    Add(prompt=(4,), output=(4, 4), presence=1.0),
)


def upstream(name: str) -> Any:  # Any: of any contract
    try:
        return load(name, "cpu")
    except SamplerNotFound as error:
        pytest.skip(str(error))


def test_penalties_follow_every_event() -> None:
    assert PenaltiesTrace(events=EVENTS).play(upstream("penalties/vllm-v2")) == len(EVENTS)


def test_budgets_follow_every_event() -> None:
    assert ThinkingTrace(events=EVENTS).play(upstream("thinking_budget/vllm-v2")) == len(EVENTS)


class _AsV2(ThinkingBudgetOracle):
    """The specification with the three differences of `known_defects.toml`."""

    def think_count(self, prompt: Sequence[int], output: Sequence[int]) -> int | None:
        """Renewed budget and nested markers: of each marker the last place counts, wherever it is."""
        text = _characters((*prompt, *output))
        start, end = (text.rfind(_characters(marker)) for marker in (self.start, self.end))
        return len(text) - start - len(self.start) if start > end else None

    def next_token(self, prompt: Sequence[int], output: Sequence[int], budget: int) -> int | None:
        """Begun end marker: the tokens of the text are taken for its beginning, whenever they came."""
        count, text = self.think_count(prompt, output), (*prompt, *output)
        if count is None or count < budget:
            return None
        begun = [n for n in range(1, min(len(self.end), len(text) + 1)) if text[-n:] == self.end[:n]]
        return self.end[max(begun, default=0)]


def _characters(token_ids: Sequence[int]) -> str:
    """A text that can be searched; a placeholder is -1."""
    return "".join(chr(token_id + 1) for token_id in token_ids)


FORCED = [check for check in thinking_budget.CHECKS if check.code in ("THK101", "THK110", "THK111", "THK112")]


@pytest.mark.parametrize("check", FORCED, ids=lambda check: check.code)
def test_budgets_differ_in_three_ways_and_no_other(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairdraw.strategies._lifecycle_checkers.QuickThinkingOracle", _AsV2)
    sampler = dataclasses.replace(upstream("thinking_budget/vllm-v2"), known_defects={})

    record = run_check(check, sampler, Session(profile=PROFILES["smoke"], crash_folder=None))

    assert record.status == "passed", record.failure_report


def test_release_without_a_module_is_said_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    upstream("penalties/vllm-v2")
    monkeypatch.setitem(sys.modules, "vllm.v1.worker.gpu.sample.penalties", None)

    with pytest.raises(
        SamplerNotFound, match=r"'penalties/vllm-v2', but vllm \S+ has not got the module .*penalties, .*from 0.22.0 to"
    ):
        load("penalties/vllm-v2", "cpu")


def test_release_that_is_too_old_is_said_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """0.16.0 has these modules, with other signatures."""
    upstream("penalties/vllm-v2")
    monkeypatch.setattr(sys.modules["vllm"], "__version__", "0.16.0")

    with pytest.raises(SamplerNotFound, match=r"vllm 0.16.0 has not got these classes .* from 0.22.0 to 0.33.0"):
        load("penalties/vllm-v2", "cpu")


def test_changed_signature_is_said_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(__version__="9.9.9+empty"))

    assert call(lambda one, two=2: (one, two), one=1, three=3) == (1, 2)
    with pytest.raises(UnusableRelease, match=r"vllm 9.9.9 has not got a \S+ without the argument new, .* Use a"):
        call(lambda one, new: None, one=1)
