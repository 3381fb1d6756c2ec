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
import zlib
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from fairdraw._core.checks import PROFILES
from fairdraw._core.failures import CheckFailure
from fairdraw._run.loading import CannotStart, all_checks, connect
from fairdraw._server._dialects import Chat
from fairdraw._server._http import HttpServer
from fairdraw._server._transport import Transport
from fairdraw.contracts import Capability, GenerationRequest, NoAnswer, ServerSettings

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


def failing(text: str) -> Callable[[httpx2.Request], httpx2.Response]:
    def handler(request: httpx2.Request) -> httpx2.Response:
        raise httpx2.ConnectError(text)

    return handler


@pytest.mark.parametrize(
    ("handler", "words"),
    [
        (failing("Connection refused"), "cannot be reached: Connection refused"),
        (
            failing("[SSL: CERTIFICATE_VERIFY_FAILED] self-signed certificate"),
            "Set SSL_CERT_FILE to a file with the certificate of its authority",
        ),
        (failing("[SSL: WRONG_VERSION_NUMBER] other"), "If it speaks plain HTTP, begin its address with http://"),
        (
            lambda _: httpx2.Response(307, headers={"Location": "https://other/v1"}),
            "answered HTTP 307 and points to https://other/v1. Give that address instead",
        ),
        (lambda _: httpx2.Response(500, json={"detail": "no memory"}), "answered HTTP 500: no memory"),
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
    ],
)
def test_trouble_is_one_sentence(handler: Any, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(NoAnswer, match=r"^http") as caught:
        transport(handler).post(URL, {})
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_date_at_which_a_server_is_free_is_waited_for() -> None:
    date = email.utils.formatdate(time.time() + 4, usegmt=True)
    answers = iter([httpx2.Response(503, headers={"Retry-After": date}), httpx2.Response(200, json=ANSWER)])
    client = transport(lambda _: next(answers))
    assert client.post(URL, {}).parts == (ANSWER,)
    assert 1.0 < client.clock() <= 4.0


TROUBLES = {
    "HTTP 500": httpx2.Response(500),
    "no JSON": httpx2.Response(200, text='{"choices": ['),
    "an error object": httpx2.Response(200, json={"error": "out of memory"}),
}


@pytest.mark.parametrize("kind", TROUBLES)
def test_request_whose_answer_broke_is_sent_again_and_counted(kind: str) -> None:
    answers = iter([TROUBLES[kind], httpx2.Response(200, json=ANSWER)])
    client = transport(lambda _: next(answers))
    assert client.post(URL, {}).parts == (ANSWER,)
    assert client.take_counts() == {"requests": 2, kind: 1}


def test_a_stream_that_begins_with_an_error_has_its_status() -> None:
    text = 'data: {"error": {"message": "no min_p", "code": 400}}\n\ndata: [DONE]\n\n'
    client = transport(lambda _: httpx2.Response(200, text=text))
    assert client.post(URL, {}, stream=True).refused == "HTTP 400: no min_p"


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


def test_a_drip_of_headers_ends_with_the_time_of_the_request() -> None:
    def serve(listening: socket.socket) -> None:
        taken, _ = listening.accept()
        with taken, contextlib.suppress(OSError):
            taken.sendall(b"HTTP/1.1 200 OK\r\nX: ")
            while True:
                taken.sendall(b"x")
                time.sleep(0.02)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=serve, args=(listening,), daemon=True).start()
        client = Transport(f"http://127.0.0.1:{listening.getsockname()[1]}/v1", ServerSettings(timeout=0.3))
        with pytest.raises(NoAnswer, match=r"did not answer within 0.3 s \(--timeout\)"):
            client.post(f"{client.base}/completions", {})


@pytest.mark.parametrize("address", ["http://me:my-password@server.test/v1", "http://server.test/v1?key=my-password"])
def test_an_address_with_a_password_is_refused(address: str) -> None:
    with pytest.raises(CannotStart, match="holds a password or a query") as caught:
        connect(address)
    assert "my-password" not in str(caught.value)


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


def test_key_is_sent_without_blanks_and_stays_in_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", " sk-secret\n")
    seen: list[str] = []

    def answers(request: httpx2.Request) -> httpx2.Response:
        seen.append(request.headers["Authorization"])
        return right(request)

    client = transport(answers, key_variable="MY_KEY")
    client.post(URL, {})
    assert seen == ["Bearer sk-secret"]
    assert '-H "Authorization: Bearer $MY_KEY"' in client.curl(URL, {})


def found(handler: Any = right, model: str = "", **settings: Any) -> HttpServer:
    given = ServerSettings(model=model, **settings)
    return HttpServer.found(BASE, given, httpx2.MockTransport(handler))


def test_server_that_sends_no_streams_lacks_them() -> None:
    said = "it sends an answer as a whole where a stream is requested"
    assert found().capabilities.unsupported == {Capability.STREAMING: said}


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


def drawing(epoch: int) -> Callable[[httpx2.Request], httpx2.Response]:
    """A server whose tokens follow from requests, and from when it was started."""

    def handler(request: httpx2.Request) -> httpx2.Response:
        if request.method == "GET" or b'"seed"' not in request.content:
            return right(request)
        token = (5, 7)[(zlib.crc32(request.content) >> 3) + epoch & 1]
        choice = ANSWER["choices"][0]
        lists = {"tokens": [f"token_id:{token}"], "token_logprobs": [_LISTS[0][f"token_id:{token}"]]}
        return httpx2.Response(200, json={"choices": [choice | {"logprobs": choice["logprobs"] | lists}]})

    return handler


def test_seeded_answers_are_compared_with_those_before_a_restart(tmp_path: Path) -> None:
    journal = tmp_path / "journal"

    def judged(epoch: int, **settings: Path) -> int:
        given = ServerSettings(timeout=5.0, **settings)
        server = HttpServer.found(BASE, given, through=httpx2.MockTransport(drawing(epoch)))
        check = next(check for check in all_checks(contract="server") if check.code == "SRV141")
        return check.run(server, profile=PROFILES["smoke"])

    assert judged(0, journal=journal) > 20
    assert judged(0, against=journal) > 20
    with pytest.raises(CheckFailure, match="with the same seeds as in an earlier run, 8 of 8 texts differ"):
        judged(1, against=journal)
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    for text in ("", "".join(json.dumps([line[0], [], "HTTP 400", line[3]]) + "\n" for line in lines)):
        journal.write_text(text)
        with pytest.raises(NoAnswer, match="journal has answers to 0 of 8 requests"):
            judged(0, against=journal)
