"""The stub server is right without a fault, and speaks as servers do: it is the control of the contract `server`."""

from __future__ import annotations

import pytest
from records import server_faults

from fairdraw._core.checks import PROFILES
from fairdraw._core.seeds import DEFAULT_SEED
from fairdraw._mutants._server.dialects import Settings
from fairdraw._mutants._server.engine import Engine
from fairdraw._mutants._server.faults import FAULTS
from fairdraw._mutants._server.model import TEXTS, VOCAB_SIZE, text_of, tokens_of
from fairdraw._run.loading import all_checks
from fairdraw._run.runner import Session, run_check
from fairdraw.strategies._server_claims import claims_of
from fairdraw.strategies._server_requests import pool_of


def test_texts_and_tokens() -> None:
    assert len(set(TEXTS)) == VOCAB_SIZE
    assert text_of(tokens_of("hello world, é 😀\n")) == "hello world, é 😀\n"
    assert text_of(tokens_of("é")[:1]) == "\ufffd"


RIGHT = {
    "a chat of vLLM that names tokens by id": (Settings(chats_only=True), ("top_k", "top_p", "min_p"), ()),
    "lists after the temperature, before top-p": (Settings("openai", stage="scaled"), ("top_p",), ()),
    "lists after temperature and filters": (Settings(stage="processed"), (), ("top_k", "top_p", "min_p")),
    "SGLang": (Settings("sglang"), ("top_k", "top_p", "min_p"), ()),
    "llama.cpp": (Settings("llama.cpp"), ("top_k", "top_p", "min_p"), ()),
}


@pytest.mark.parametrize("name", RIGHT)
def test_right_server_is_not_red_and_its_stage_is_found(name: str) -> None:
    settings, before, after = RIGHT[name]
    with server_faults.connected(Engine(DEFAULT_SEED, num_drafts=2), settings) as server:
        claims = claims_of(server, pool_of(server, DEFAULT_SEED))
        assert claims.after_temperature == (settings.stage != "raw" or settings.kind == "sglang")
        assert (claims.after_filters, set(before) & set(claims.unknown_filters)) == (after, set())
        session = Session(profile=PROFILES["smoke"], crash_folder=None)
        wanted = ("SRV131", "SRV132", "SRV149", "SRV171", "DIST911", "DIST914", "DIST917")
        found = [run_check(check, server, session) for check in all_checks(contract="server") if check.code in wanted]
    assert [(one.code, one.reason) for one in found if one.status not in ("passed", "skipped")] == []
    assert {one.code for one in found if one.status == "passed"} >= {"SRV132", "DIST911", "DIST914"}
    has_texts = next(one for one in found if one.code == "SRV149").status == "passed"
    assert has_texts == (settings.kind in ("openai", "llama.cpp"))


# Faults: each is caught at the numbers of `ci` by the checks that it names, through the whole HTTP client. Those of the
# toy server (`_mutants/server.py`) are put to the checks alone; here are dialects, concurrency, drafts and streams.


@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_caught_at_ci(name: str) -> None:
    caught = server_faults.first_caught(FAULTS[name], server_faults.named_first(FAULTS[name]), "ci", DEFAULT_SEED)
    assert caught.code in FAULTS[name].caught_by, caught.others


def test_every_fault_names_a_check() -> None:
    assert [name for name, fault in FAULTS.items() if not fault.caught_by] == []
    assert len(FAULTS) >= 100


def test_silent_greedy_is_seen_within_60_requests() -> None:
    fault = FAULTS["silent greedy"]
    assert server_faults.first_caught(fault, server_faults.named_first(fault), "smoke", DEFAULT_SEED).requests <= 60
