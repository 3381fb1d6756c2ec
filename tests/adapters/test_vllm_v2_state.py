"""vLLM's model runner V2, whatever release is importable: its slots follow the events of a batch."""

from __future__ import annotations

import sys
from importlib import metadata
from types import SimpleNamespace
from typing import Any

import pytest

from fairdraw._adapters import SamplerNotFound, load
from fairdraw._adapters._table import UnusableRelease
from fairdraw._adapters._vllm_v2_runtime import call
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

pytestmark = pytest.mark.skipif(not list(metadata.distributions(name="vllm")), reason="python tools/install_vllm.py")

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


def test_release_without_a_module_is_said_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    upstream("penalties/vllm-v2")
    monkeypatch.setitem(sys.modules, "vllm.v1.worker.gpu.sample.penalties", None)

    with pytest.raises(
        SamplerNotFound, match=r"'penalties/vllm-v2', but vllm \S+ has not got the module .*penalties, .*from 0.22.0 to"
    ):
        load("penalties/vllm-v2", "cpu")


def test_changed_signature_is_said_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(__version__="9.9.9+empty"))

    assert call(lambda one, two=2: (one, two), one=1, three=3) == (1, 2)
    with pytest.raises(UnusableRelease, match=r"vllm 9.9.9 has not got a \S+ without the argument new, .* Use a"):
        call(lambda one, new: None, one=1)
