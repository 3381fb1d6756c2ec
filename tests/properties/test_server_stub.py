"""The stub server is right without a fault, and speaks as servers do: it is the control of the contract `server`."""

import contextlib
from collections.abc import Iterator
from itertools import product

import pytest

from fairdraw._core.checks import PROFILES
from fairdraw._core.failures import CapabilityUnsupported, CheckFailure, Inconclusive
from fairdraw._core.seeds import DEFAULT_SEED, derive_seed
from fairdraw._run.loading import all_checks
from fairdraw._run.runner import Session, run_check
from fairdraw._server._http import HttpServer
from fairdraw.contracts import NoAnswer, ServerSettings
from fairdraw.strategies._server_claims import claims_of
from fairdraw.strategies._server_requests import pool_of
from stub_server.app import make_app
from stub_server.dialects import Settings
from stub_server.engine import Engine
from stub_server.faults import FAULTS
from stub_server.in_process import in_process
from stub_server.model import TEXTS, VOCAB_SIZE, text_of, tokens_of


@contextlib.contextmanager
def connected(engine: Engine, settings: Settings) -> Iterator[HttpServer]:
    """Yield the suite's client of a stub in this process."""
    # A step takes a while: the requests of a batch arrive one after another, and shall find each other.
    with in_process(make_app(engine, settings, step_seconds=0.001)) as transport:
        yield HttpServer.found("http://stub/v1", ServerSettings(), transport)


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
    with connected(Engine(DEFAULT_SEED, num_drafts=2), settings) as server:
        claims = claims_of(server, pool_of(server, DEFAULT_SEED))
        assert claims.after_temperature == (settings.stage != "raw" or settings.kind == "sglang")
        assert (claims.after_filters, set(before) & set(claims.unknown_filters)) == (after, set())
        session = Session(profile=PROFILES["smoke"].scaled(0.4), crash_folder=None)
        wanted = ("SRV131", "SRV132", "SRV149", "SRV171", "SRV191", "DIST911", "DIST925", "DIST941")
        found = [run_check(check, server, session) for check in all_checks(contract="server") if check.code in wanted]
    assert [(one.code, one.reason) for one in found if one.status not in ("passed", "skipped")] == []
    assert {one.code for one in found if one.status == "passed"} >= {
        "SRV132",
        "SRV191",
        "DIST911",
        "DIST925",
        "DIST941",
    }
    has_texts = next(one for one in found if one.code == "SRV149").status == "passed"
    assert has_texts == (settings.kind in ("openai", "llama.cpp"))


# Faults: each is caught at the numbers of `ci` by the checks that it names, through the whole HTTP client. Those of the
# toy server are put to the checks alone (test_mutants.py); here are dialects, concurrency, drafts and streams.


def first_caught(name: str, *profiles: str) -> tuple[str, int]:
    """Return the first of the checks that a fault names to fail, and the requests that the server had answered."""
    known = {check.code: check for check in all_checks(contract="server")}
    fault, others = FAULTS[name], dict[str, str]()
    engine = fault.engine(derive_seed("entropy", name, DEFAULT_SEED))
    with connected(engine, fault.settings) as server:
        for profile, code in product(profiles, fault.caught_by):
            try:
                if (why_not := known[code].why_not(server)) is not None:
                    raise CapabilityUnsupported(why_not)
                known[code].run(server, profile=PROFILES[profile], seed=DEFAULT_SEED)
            except CheckFailure:
                return code, engine.arrived
            except (CapabilityUnsupported, Inconclusive, NoAnswer) as error:
                others[code] = f"{type(error).__name__}: {error}"
    raise AssertionError(f"{name} is not caught: {others}")


@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_caught_at_ci(name: str) -> None:
    """More requests than those of `smoke` are sent only where these do not show it."""
    assert first_caught(name, "smoke", "ci")[0] in FAULTS[name].caught_by


def test_every_fault_names_a_check() -> None:
    assert [name for name, fault in FAULTS.items() if not fault.caught_by] == []
    assert len(FAULTS) >= 60


def test_silent_greedy_is_seen_within_60_requests() -> None:
    assert first_caught("silent greedy", "smoke")[1] <= 60
