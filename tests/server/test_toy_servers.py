"""Correct servers of several kinds pass every check, and a server that stops to answer keeps what was judged."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings

from fairdraw._core.checks import PROFILES
from fairdraw._mutants._toy_server import VOCAB, ProcessedServer, ToyServer, log_softmax, with_short_lists
from fairdraw._oracles.server import cells
from fairdraw._run.loading import all_checks
from fairdraw._run.runner import CheckRecord, Session, run_check
from fairdraw.contracts import Claims, GenerationRequest, ServerSettings
from fairdraw.strategies._server_requests import MIXED
from fairdraw.strategies.server import generation_requests


def records(server: ToyServer, reference: ToyServer | None = None, text: str = "") -> list[CheckRecord]:
    session = Session(profile=PROFILES["smoke"], crash_folder=None, reference=reference)
    return [run_check(check, server, session) for check in all_checks(contract="server") if text in check.code]


@pytest.mark.parametrize("make", [ToyServer, ProcessedServer, with_short_lists], ids=["raw", "processed", "short list"])
def test_correct_server_passes(make: Callable[[], ToyServer]) -> None:
    found = records(make(), ToyServer(name="the reference"))
    assert [(one.code, one.reason) for one in found if one.status not in ("passed", "skipped")] == []
    assert sum(record.status == "passed" for record in found) >= len(found) - 6


@pytest.mark.parametrize("length", [6, 12, 20])
def test_a_list_says_what_its_tokens_follow_whatever_is_requested(length: int) -> None:
    server, num_judged = ToyServer(settings=ServerSettings(logprobs=length)), 0
    for request in (MIXED.request(number, server, 7) for number in range(400)):
        output = tuple(np.random.default_rng(num_judged).integers(VOCAB, size=num_judged % 5).tolist())
        raw = server.logits(request, output)
        true = np.exp(
            log_softmax(server.filtered(server.scaled(server.edited(raw, request, output), request), request))
        )
        lists = [server.position(token, log_softmax(raw), request) for token in range(VOCAB)]
        found = [cells(one, request, server.claims or Claims(), output) for one in lists]
        judged = {token: one for token, one in enumerate(found) if one}
        for token, one in judged.items():
            if one.drawn < len(one.tokens):  # what cannot come is at -1
                said = (one.drawn >= 0) * one.probs[one.drawn] * sum(true[token] for token in judged)
                assert said == pytest.approx(true[token], abs=1e-9), request
                num_judged += 1
    assert num_judged > 1000


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
