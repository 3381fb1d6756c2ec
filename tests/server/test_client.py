"""The HTTP client of servers: what it says when a server answers badly, what it never says, and how it goes on."""

from __future__ import annotations

import contextlib
import email.utils
import gzip
import itertools
import json
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from fairdraw._run.loading import CannotStart, connect
from fairdraw._server._dialects import Chat
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


def untrusted(request: httpx2.Request) -> httpx2.Response:
    raise httpx2.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed certificate")


def plain(request: httpx2.Request) -> httpx2.Response:
    raise httpx2.ConnectError("[SSL: WRONG_VERSION_NUMBER] wrong version number (_ssl.c:1006)")


def slow(request: httpx2.Request) -> httpx2.Response:
    raise httpx2.ReadTimeout("timed out", request=request)


@pytest.mark.parametrize(
    ("handler", "words"),
    [
        (broken, "cannot be reached: Connection refused"),
        (slow, "did not answer within 5 s (--timeout)"),
        (untrusted, "Set SSL_CERT_FILE to a file with the certificate of its authority"),
        (plain, "If it speaks plain HTTP, begin its address with http://"),
        (
            lambda _: httpx2.Response(307, headers={"Location": "https://other/v1"}),
            "answered HTTP 307 and points to https://other/v1. Give that address instead",
        ),
        (lambda _: httpx2.Response(200, json={"error": {"message": "no memory"}}), "answered with an error: no memory"),
        (lambda _: httpx2.Response(500, json={"detail": "no memory"}), "answered HTTP 500: no memory"),
        (lambda _: httpx2.Response(500), "answered HTTP 500: nothing at all"),
        (
            lambda _: httpx2.Response(429, headers={"Retry-After": "90"}),
            "was busy (HTTP 429) and asks to wait for 90 s, longer than 5 s (--timeout)",
        ),
        (
            lambda _: httpx2.Response(200, content=bytes(2**25 + 1)),
            "sent more than 32 MiB for one request, and went on",
        ),
        (
            lambda _: httpx2.Response(200, content=gzip.compress(bytes(2**20)), headers={"Content-Encoding": "gzip"}),
            "sent a compressed body, though none was asked for",
        ),
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


def test_date_at_which_a_server_is_free_is_waited_for() -> None:
    date = email.utils.formatdate(time.time() + 4, usegmt=True)
    answers = iter([httpx2.Response(503, headers={"Retry-After": date}), httpx2.Response(200, json=ANSWER)])
    client = transport(lambda _: next(answers))
    assert client.post(URL, {}).parts == (ANSWER,)
    assert 1.0 < client.clock() <= 4.0


TROUBLES: dict[str, Any] = {
    "HTTP 500": httpx2.Response(500),
    "broken off": httpx2.ReadError("Connection reset by peer"),
    "no JSON": httpx2.Response(200, text='{"choices": ['),
    "an error object": httpx2.Response(200, json={"error": "out of memory"}),
}


@pytest.mark.parametrize("kind", TROUBLES)
def test_request_whose_answer_broke_is_sent_again_and_counted(kind: str) -> None:
    answers = iter([TROUBLES[kind], httpx2.Response(200, json=ANSWER)])

    def next_one(request: httpx2.Request) -> httpx2.Response:
        found: httpx2.Response | Exception = next(answers)
        if isinstance(found, Exception):
            raise found
        return found

    client = transport(next_one)
    assert client.post(URL, {}).parts == (ANSWER,)
    assert client.take_counts() == {"requests": 2, kind: 1}
    assert not client.take_counts()


def test_a_server_may_not_choose_among_its_answers() -> None:
    numbers = itertools.count(1)
    client = transport(lambda _: httpx2.Response(500) if next(numbers) % 8 == 0 else httpx2.Response(200, json=ANSWER))
    for _ in range(42):
        client.post(URL, {})
    with pytest.raises(NoAnswer, match="6 of 48 requests broke, too many to send them again"):
        client.post(URL, {})


def test_line_ends_of_other_alphabets_do_not_end_an_event() -> None:
    part = {"choices": [{**ANSWER["choices"][0], "text": "a\u2028b\x85"}]}
    text = "data: " + json.dumps(part, ensure_ascii=False) + "\n\n"
    assert transport(lambda _: httpx2.Response(200, text=text)).post(URL, {}, stream=True).parts == (part,)


@pytest.mark.parametrize("drips", ["headers", "body"])
def test_a_drip_ends_with_the_time_of_the_request(drips: str) -> None:
    head = b"HTTP/1.1 200 OK\r\n" + b"Content-Length: 100\r\n\r\n" * (drips == "body")

    def serve(listening: socket.socket) -> None:
        taken, _ = listening.accept()
        with taken, contextlib.suppress(OSError):
            taken.sendall(head)
            while True:
                taken.sendall(b"x")
                time.sleep(0.02)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=serve, args=(listening,), daemon=True).start()
        client = Transport(f"http://127.0.0.1:{listening.getsockname()[1]}/v1", ServerSettings(timeout=0.3))
        with pytest.raises(NoAnswer, match=r"did not answer within 0.3 s \(--timeout\)"):
            client.post(f"{client.base}/completions", {})


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("http://me:my-password@server.test/v1", "holds a password or a query"),
        ("http://server.test/v1?key=my-password", "holds a password or a query"),
    ],
)
def test_an_address_with_a_password_is_refused(address: str, why: str) -> None:
    with pytest.raises(CannotStart, match=why) as caught:
        connect(address)
    assert "my-password" not in str(caught.value)


@pytest.mark.parametrize("key", ["sk-secret\n", " sk-secret"])
def test_blanks_around_a_key_are_not_sent(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", key)
    seen: list[str] = []

    def answers(request: httpx2.Request) -> httpx2.Response:
        seen.append(request.headers["Authorization"])
        return right(request)

    transport(answers, key_variable="MY_KEY").post(URL, {})
    assert seen == ["Bearer sk-secret"]


def test_a_key_that_no_header_may_hold_is_refused_and_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "sk-secr\u00e9t")
    with pytest.raises(NoAnswer, match="the key in MY_KEY has characters that no HTTP header may hold") as caught:
        transport(right, key_variable="MY_KEY")
    assert "sk-" not in str(caught.value)


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


def test_an_answer_that_repeats_the_key_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "sk-secret-of-mine")
    said = json.loads(json.dumps(ANSWER).replace('"text": "a"', '"text": "it is sk-secret-of-mine"'))
    repeats = [False]

    def handler(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, json=said) if repeats[0] and request.method == "POST" else right(request)

    server = found(handler, key_variable="MY_KEY", journal=tmp_path / "answers")
    repeats[0] = True
    server.generate([GenerationRequest("a")])
    assert "sk-secret" not in (tmp_path / "answers").read_text()


def test_chat_that_names_tokens_by_id_has_no_texts_of_them() -> None:
    row = {"token": "token_id:143", "logprob": -0.1, "top_logprobs": [{"token": "token_id:143", "logprob": -0.1}]}
    part = {"choices": [{"message": {"content": "hello"}, "logprobs": {"content": [row]}, "finish_reason": "length"}]}
    (choice,) = Chat("vLLM").choices(GenerationRequest("a"), [part])
    assert (choice.positions[0].token, choice.positions[0].text) == (143, "")


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
