"""The stub server is right without a fault, and speaks as servers do: it is the control of the contract `server`."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import numpy as np
import pytest
import server_faults
from scipy.stats import chisquare

from fairdraw._core.checks import PROFILES
from fairdraw._core.failures import CheckFailure
from fairdraw._core.seeds import DEFAULT_SEED
from fairdraw._mutants._server.app import make_app, serving
from fairdraw._mutants._server.dialects import Kind, Settings
from fairdraw._mutants._server.engine import Engine, Request
from fairdraw._mutants._server.faults import FAULTS
from fairdraw._mutants._server.in_process import in_process
from fairdraw._mutants._server.model import TEXTS, VOCAB_SIZE, logits_after, text_of, tokens_of
from fairdraw._run.loading import all_checks
from fairdraw._run.runner import Session, run_check
from fairdraw._server._http import HttpServer
from fairdraw.protocols import ServerSettings
from fairdraw.strategies._server_claims import claims_of
from fairdraw.strategies._server_requests import pool_of

SETTINGS: list[dict[str, Any]] = [{}, {"temperature": 0.7, "top_p": 0.9}, {"top_k": 5, "min_p": 0.05}]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("num_drafts", [0, 2])
def test_second_tokens_follow_their_distribution(settings: dict[str, Any], num_drafts: int) -> None:
    engine, seen = Engine(DEFAULT_SEED, num_drafts), np.zeros((VOCAB_SIZE, VOCAB_SIZE))
    for _ in range(2000):
        (choice,) = engine.start(Request((0, 21), max_tokens=2, **settings))
        while not choice.ended:
            engine.step(choice)
        engine.finish([choice])
        seen[tuple((choice.tokens * 2)[:2])] += len(choice.tokens) > 1
    first = int(seen.sum(1).argmax())
    request = Request((0, 21, first), **settings)
    expected = engine.probs(request, logits_after(request.prompt)) * seen[first].sum()
    common = expected >= 5
    counts = np.append(seen[first][common], seen[first][~common].sum())
    wanted = np.append(expected[common], expected[~common].sum())
    assert counts[wanted == 0].sum() == 0
    assert chisquare(counts[wanted > 0], wanted[wanted > 0]).pvalue > 1e-6


def test_texts_and_tokens() -> None:
    assert len(set(TEXTS)) == VOCAB_SIZE
    assert text_of(tokens_of("hello world, é 😀\n")) == "hello world, é 😀\n"
    assert text_of(tokens_of("é")[:1]) == "\ufffd"


ASKED: dict[Kind, tuple[str, dict[str, Any]]] = {
    "vllm": ("/v1/completions", {"max_tokens": 9, "logprobs": 3, "return_token_ids": True}),
    "openai": ("/v1/chat/completions", {"max_tokens": 9, "logprobs": True, "top_logprobs": 3}),
    "sglang": ("/generate", {"sampling_params": {"max_new_tokens": 9}, "return_logprob": True, "top_logprobs_num": 3}),
    "llama.cpp": ("/completion", {"n_predict": 9, "n_probs": 3, "return_tokens": True}),
}
PROMPT: dict[str, Any] = {"prompt": "hello", "text": "hello", "messages": [{"role": "user", "content": "hello"}]}


@pytest.mark.parametrize("kind", list(ASKED))
def test_a_stream_holds_what_the_whole_answer_holds(kind: Kind) -> None:
    path, fields = ASKED[kind]
    seeds = {"seed": 3, "sampling_params": {**fields.get("sampling_params", {}), "sampling_seed": 3}}
    with in_process(make_app(Engine(DEFAULT_SEED, num_drafts=2), Settings(kind))) as transport:
        client = httpx2.Client(transport=transport, base_url="http://stub")
        whole = client.post(path, json=PROMPT | fields | seeds).json()
        stream = client.post(path, json=PROMPT | fields | seeds | {"stream": True})
    events = [line.removeprefix("data: ") for line in stream.text.split("\n\n") if line]
    assert (events[-1] == "[DONE]") == (kind != "llama.cpp")
    assert texts(kind, [json.loads(one) for one in events if one != "[DONE]"]) == texts(kind, [whole])


def texts(kind: Kind, parts: list[Any]) -> str:
    """The text of an answer, or of the events of a stream."""
    if kind == "sglang":  # each event holds everything so far
        return str(parts[-1]["text"])
    if kind == "llama.cpp":
        return "".join(one["content"] for one in parts)
    choices = [one["choices"][0] for one in parts]
    return "".join(
        one.get("text") or (one.get("message") or one.get("delta") or {}).get("content", "") for one in choices
    )


@pytest.mark.parametrize(
    ("fields", "status", "message"),
    [
        ({"model": "other"}, 404, "The model `other` does not exist"),
        ({"logprobs": 21}, 400, "Requested sample logprobs of 21, which is greater than max allowed: 20"),
        ({"temperature": -1}, 400, "temperature must be non-negative"),
        ({"prompt": [64]}, 400, "out of vocabulary"),
        ({"n": 2, "temperature": 0}, 400, "n must be 1"),
    ],
)
def test_requests_are_refused_as_by_vllm(fields: dict[str, Any], status: int, message: str) -> None:
    with in_process(make_app(Engine(DEFAULT_SEED), Settings())) as transport:
        client = httpx2.Client(transport=transport, base_url="http://stub")
        answer = client.post("/v1/completions", json={"prompt": "hello"} | fields)
    assert answer.status_code == status
    assert message in answer.json()["error"]["message"]


RIGHT = {
    "a chat of vLLM that names tokens by id": (Settings(chats_only=True), ("top_k", "top_p", "min_p"), ()),
    "lists after the temperature, before top-p": (Settings("openai", stage="scaled"), ("top_p",), ()),
    "lists after temperature and filters": (Settings(stage="processed"), (), ("top_k", "top_p", "min_p")),
}


@pytest.mark.parametrize("name", RIGHT)
def test_right_server_is_not_red_and_its_stage_is_found(name: str) -> None:
    settings, before, after = RIGHT[name]
    with server_faults.connected(Engine(DEFAULT_SEED), settings) as server:
        claims = claims_of(server, pool_of(server, DEFAULT_SEED))
        assert claims.after_temperature == (settings.stage != "raw")
        assert (claims.after_filters, set(before) & set(claims.unknown_filters)) == (after, set())
        session = Session(profile=PROFILES["smoke"], crash_folder=None)
        wanted = ("SRV131", "SRV132", "SRV149", "DIST911", "DIST914", "DIST917")
        found = [run_check(check, server, session) for check in all_checks(contract="server") if check.code in wanted]
    assert [(one.code, one.reason) for one in found if one.status not in ("passed", "skipped")] == []
    assert {one.code for one in found if one.status == "passed"} >= {"SRV132", "DIST911", "DIST914"}
    texts = next(one for one in found if one.code == "SRV149")
    assert (texts.status == "skipped") == server.dialect.name.endswith("vLLM's extensions")


# Faults: each is caught at the numbers of `ci` by the checks that it names, through the whole HTTP client. Those of the
# toy server (`_mutants/server.py`) are put to the checks alone; here are dialects, concurrency, drafts and streams.


@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_caught_at_ci(name: str) -> None:
    caught = server_faults.first_caught(FAULTS[name], server_faults.named_first(FAULTS[name]), "ci", DEFAULT_SEED)
    assert caught.code in FAULTS[name].caught_by, caught.others


def test_every_fault_names_a_check() -> None:
    assert [name for name, fault in FAULTS.items() if not fault.caught_by] == []
    assert len(FAULTS) >= 100


@pytest.mark.parametrize("name", ["silent greedy", "the batch shares its noise", "a stream drops a token"])
def test_fault_is_caught_over_loopback(name: str) -> None:
    fault = FAULTS[name]
    app = make_app(fault.engine(DEFAULT_SEED), fault.settings, step_seconds=0.0005)
    with serving(app) as address:
        server = HttpServer.found(f"{address}/v1", ServerSettings())
        with pytest.raises(CheckFailure):
            server_faults.named_first(fault)[0].run(server, profile=PROFILES["ci"], seed=DEFAULT_SEED)


def test_silent_greedy_is_seen_within_60_requests() -> None:
    fault = FAULTS["silent greedy"]
    assert server_faults.first_caught(fault, server_faults.named_first(fault), "smoke", DEFAULT_SEED).requests <= 60
