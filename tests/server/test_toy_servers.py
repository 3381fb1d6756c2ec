"""Correct servers of several kinds pass every check, and a server that stops to answer keeps what was judged."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings

from fairdraw._core.checks import PROFILES
from fairdraw._mutants._toy_server import ProcessedServer, ToyServer, with_short_lists
from fairdraw._run.loading import all_checks
from fairdraw._run.runner import CheckRecord, Session, run_check
from fairdraw.contracts import GenerationRequest, ServerSettings
from fairdraw.strategies.server import generation_requests

if TYPE_CHECKING:
    from collections.abc import Callable


def records(server: ToyServer, reference: ToyServer | None = None, text: str = "") -> list[CheckRecord]:
    session = Session(profile=PROFILES["smoke"], crash_folder=None, reference=reference)
    return [run_check(check, server, session) for check in all_checks(contract="server") if text in check.code]


@pytest.mark.parametrize("make", [ToyServer, ProcessedServer, with_short_lists], ids=["raw", "processed", "short list"])
def test_correct_server_passes(make: Callable[[], ToyServer]) -> None:
    found = records(make(), ToyServer(name="the reference"))
    wrong = [(record.code, record.reason) for record in found if record.status not in ("passed", "skipped")]
    assert wrong == []
    assert sum(record.status == "passed" for record in found) >= len(found) - 6


def test_too_few_requests_are_never_green() -> None:
    few = ToyServer(settings=ServerSettings(requests=40, logprobs=25))
    (record,) = records(few, text="DIST911")
    assert record.status == "inconclusive"
    assert "--requests 40 are used up" in record.reason


def test_equal_runs_share_their_answers() -> None:
    server = ToyServer()
    records(server, text="SRV10")
    before = next(server.calls)
    records(server, text="SRV10")
    assert next(server.calls) == before + 1


@given(one=generation_requests())
@settings(max_examples=30)
def test_drawn_requests_are_answered(one: GenerationRequest) -> None:
    (answer,) = ToyServer().generate([one])
    assert len(answer.choices) == one.n
    assert all(len(choice.positions) <= one.max_tokens for choice in answer.choices)
