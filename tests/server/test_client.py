"""The HTTP client of servers: what it says when a server answers badly, what it never says, and how it goes on."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from fairdraw._server._http import HttpServer
from fairdraw._server._transport import Transport
from fairdraw.protocols import Capability, GenerationRequest, NoAnswer, ServerSettings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

BASE = "http://server.test/v1"
URL = f"{BASE}/completions"
_LISTS = [{"token_id:5": -0.1, "token_id:7": -2.4}]
ANSWER: dict[str, list[dict[str, Any]]] = {
    "choices": [
        {
            "index": 0,
            "text": "a",
            "finish_reason": "length",
            "logprobs": {"tokens": ["token_id:5"], "token_logprobs": [-0.1], "top_logprobs": _LISTS},
        }
    ]
}


def right(request: httpx2.Request) -> httpx2.Response:
    """A server of vLLM's kind with one answer."""
    if request.method == "GET":
        models = {"data": [{"id": "tiny", "owned_by": "vllm"}]}
        return httpx2.Response(200, json=models) if request.url.path == "/v1/models" else httpx2.Response(404)
    return httpx2.Response(200, json=ANSWER) if request.url.path == "/v1/completions" else httpx2.Response(404)


def transport(handler: Callable[[httpx2.Request], httpx2.Response], **settings: Any) -> Transport:
    """Without waiting: sleeping moves the clock."""
    now = [0.0]
    given = ServerSettings(**{"timeout": 5.0, **settings})
    through = httpx2.MockTransport(handler)
    return Transport(BASE, given, lambda seconds: now.__setitem__(0, now[0] + seconds), lambda: now[0], through)


def broken(request: httpx2.Request) -> httpx2.Response:
    raise httpx2.ConnectError("Connection refused", request=request)


def slow(request: httpx2.Request) -> httpx2.Response:
    raise httpx2.ReadTimeout("timed out", request=request)


@pytest.mark.parametrize(
    ("handler", "words"),
    [
        (broken, "cannot be reached: Connection refused"),
        (slow, "did not answer within 5 s (--timeout)"),
        (lambda _: httpx2.Response(401), "OPENAI_API_KEY names the key, and it holds no key (--key-variable)"),
        (lambda _: httpx2.Response(429), "was busy (HTTP 429) for 5 s (--timeout)"),
        (lambda _: httpx2.Response(503, headers={"Retry-After": "2"}), "was busy (HTTP 503) for 5 s (--timeout)"),
        (lambda _: httpx2.Response(500, json={"error": {"message": "dead"}}), "answered HTTP 500: dead"),
        (lambda _: httpx2.Response(200, text="<html>"), "sent no JSON: <html>"),
        (lambda _: httpx2.Response(200, text=""), "sent no JSON: nothing at all"),
        (lambda _: httpx2.Response(200, text='{"choices": [{'), "sent no JSON"),
    ],
)
def test_trouble_is_one_sentence(handler: Any, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(NoAnswer, match=r"^http") as caught:
        transport(handler).post(URL, {})
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_half_a_stream_is_no_answer() -> None:
    part = {"choices": [{**ANSWER["choices"][0], "finish_reason": None}]}
    text = "data: " + json.dumps(part) + "\n\n"
    with pytest.raises(NoAnswer, match="half a stream"):
        transport(lambda _: httpx2.Response(200, text=text)).post(URL, {}, stream=True)
    whole = transport(lambda _: httpx2.Response(200, text=text + "data: [DONE]\n\n")).post(URL, {}, stream=True)
    assert whole.parts == (part,)


def test_refusal_is_no_trouble() -> None:
    reply = transport(lambda _: httpx2.Response(400, json={"error": {"message": "no min_p"}})).post(URL, {})
    assert reply.refused == "HTTP 400: no min_p"


def test_busy_server_is_asked_again_when_it_says() -> None:
    answers = iter([httpx2.Response(429, headers={"Retry-After": "3"}), httpx2.Response(200, json=ANSWER)])
    client = transport(lambda _: next(answers))
    assert client.post(URL, {}).parts == (ANSWER,)
    assert client.clock() == 3.0


def test_rate_is_kept() -> None:
    client = transport(right, rate=4.0)
    for _ in range(5):
        client.post(URL, {})
    assert client.clock() == pytest.approx(1.0)


def test_key_is_sent_and_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "sk-secret")
    seen: list[str] = []

    def wants_key(request: httpx2.Request) -> httpx2.Response:
        seen.append(request.headers.get("Authorization", ""))
        return httpx2.Response(401)

    client = transport(wants_key, key_variable="MY_KEY")
    with pytest.raises(NoAnswer) as caught:
        client.post(URL, {})
    assert seen == ["Bearer sk-secret"]
    shown = str(caught.value) + client.curl(URL, {"prompt": "a"}) + repr(client.settings)
    assert "sk-secret" not in shown
    assert '-H "Authorization: Bearer $MY_KEY"' in client.curl(URL, {})


def found(handler: Any = right, model: str = "", **settings: Any) -> HttpServer:
    given = ServerSettings(model=model, **settings)
    return HttpServer.found(BASE, given, httpx2.MockTransport(handler))


def test_server_says_what_it_is() -> None:
    server = found()
    assert server.about()[0].startswith("dialect: OpenAI completions with vLLM's extensions, model tiny: lists of 2")
    assert Capability.TOKEN_IDS in server.capabilities


def test_unknown_model_is_refused_by_name() -> None:
    with pytest.raises(NoAnswer, match="has no model 'big'; it has tiny"):
        found(model="big")


def test_own_prompts_are_not_shown() -> None:
    request = GenerationRequest("my secret", max_tokens=1)
    (hidden,) = found(prompts=("another", "my secret")).generate([request])
    (shown,) = found(prompts=("my secret",), keep_prompts=True).generate([request])
    assert "PROMPT 2" in hidden.curl
    assert "my secret" not in hidden.curl
    assert "my secret" in shown.curl


@pytest.mark.parametrize("status", [400, 500])
def test_message_that_repeats_a_prompt_is_not_shown(status: int) -> None:
    echo = {"error": {"message": 'input: {"prompt": "my own secret"}'}}
    is_odd = [False]

    def repeats(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(status, json=echo) if is_odd[0] else right(request)

    server = found(repeats, prompts=("my own secret",))
    is_odd[0] = True
    try:
        (answer,) = server.generate([GenerationRequest("my own secret", max_tokens=1)])
        said = answer.refused
    except NoAnswer as error:
        said = str(error)
    assert f"HTTP {status} (its message repeats the prompt" in said
    assert "secret" not in said


def test_journal_answers_what_was_answered_before(tmp_path: Path) -> None:
    calls: list[str] = []

    def counted(request: httpx2.Request) -> httpx2.Response:
        calls.append(request.method)
        return right(request)

    request = GenerationRequest("my secret", max_tokens=1)
    first = found(counted, journal=tmp_path / "answers").generate([request, request])
    num_posts = calls.count("POST")
    again = found(counted, journal=tmp_path / "answers").generate([request, request])
    assert first == again
    assert calls.count("POST") == num_posts
    assert "my secret" not in (tmp_path / "answers").read_text()


def test_answers_of_another_shape_are_no_answers() -> None:
    shapes: list[object] = [{"choices": [{"logprobs": {"tokens": ["a"], "token_logprobs": []}}]}, {"text": "a"}]
    is_odd = [False]

    def odd(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, json=shapes.pop()) if is_odd[0] else right(request)

    server = found(odd)
    is_odd[0] = True
    with pytest.raises(NoAnswer, match="sent an answer without 'choices'"):
        server.generate([GenerationRequest("a")])
    with pytest.raises(NoAnswer, match="lists 1 tokens, 0 log-probabilities"):
        server.generate([GenerationRequest("a")])
