"""Servers that answer badly, or not at all: what a run must survive, and say in one sentence."""

from __future__ import annotations

import asyncio
import base64
import inspect
import json
import os
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse, Response, StreamingResponse

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

KEY = "a-key-of-the-stub"
GOOD = 90
"""Requests that are answered well before the trouble begins, where it begins later."""

Respond = Callable[[int, "Scope"], "Response | None"]
"""From the number of a request that generates, from 1 on, to what is sent; `None` for the right answer."""


@dataclass(frozen=True)
class Trouble:
    """A way to answer badly.

    Args:
        respond: Instead of the right answer.
        cut: Bytes of the right answer that are sent, from the request `GOOD` on; `None` for all of them.
        cuts_streams: Streams are cut, from the first request on, and nothing else.
        seconds: Before each answer, from that request on.
        dies: The process ends at that request.
    """

    name: str
    description: str
    respond: Respond = lambda number, scope: None
    cut: int | None = None
    cuts_streams: bool = False
    seconds: float = 0.0
    dies: bool = False

    def around(self, app: ASGIApp) -> ASGIApp:
        """The application with this trouble."""
        return _Troubled(app, self)


class _Troubled:
    """An application that counts requests, and answers badly."""

    def __init__(self, app: ASGIApp, trouble: Trouble) -> None:
        self.app, self.trouble, self.number = app, trouble, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            return await self.app(scope, receive, send)
        self.number += 1
        response = self.trouble.respond(self.number, scope)
        if response is not None:
            return await response(scope, receive, send)
        if self.number <= GOOD and not self.trouble.cuts_streams:
            return await self.app(scope, receive, send)
        if self.trouble.dies:
            os._exit(1)
        await asyncio.sleep(self.trouble.seconds)
        await self.app(scope, receive, _cut(send, self.trouble))
        return None


def _cut(send: Send, trouble: Trouble) -> Send:
    """Send the first bytes of a body, and say that they are all."""
    if trouble.cut is None:
        return send
    sent, length = 0, trouble.cut

    async def some(message: Message) -> None:
        nonlocal sent, length
        if message["type"] == "http.response.start":
            is_stream = any(value.startswith(b"text/event-stream") for _, value in message["headers"])
            length = length if is_stream or not trouble.cuts_streams else sys.maxsize
            message = {**message, "headers": [one for one in message["headers"] if one[0] != b"content-length"]}
        else:
            part = message.get("body", b"")[: max(length - sent, 0)]
            sent += len(part)
            message = {**message, "body": part}
        await send(message)

    return some


TROUBLES: dict[str, Trouble] = {}


def trouble(**fields: Any) -> Callable[[Respond], Trouble]:  # Any: fields of Trouble
    """Make a trouble of a function; its name and docstring are the trouble's."""

    def make(respond: Respond) -> Trouble:
        name = respond.__name__.replace("_", " ")
        TROUBLES[name] = Trouble(name, inspect.cleandoc(respond.__doc__ or ""), respond, **fields)
        return TROUBLES[name]

    return make


def error(status: int, message: str, **headers: str) -> Response:
    """As servers write errors."""
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return JSONResponse({"error": {"message": message, "code": status}}, status, names)


@trouble()
def wants_a_key(number: int, scope: Scope) -> Response | None:
    """401 without the key; with it, right."""
    has_key = (b"authorization", f"Bearer {KEY}".encode()) in scope["headers"]
    return None if has_key else JSONResponse({"error": "Unauthorized"}, 401)


@trouble()
def is_busy_for_ever(number: int, scope: Scope) -> Response | None:
    """429, and no word about when."""
    return error(429, "Too many requests") if number > GOOD else None


@trouble()
def is_busy_for_ever_and_says_until_when(number: int, scope: Scope) -> Response | None:
    """429 with `Retry-After`, again and again."""
    return error(429, "Too many requests", Retry_After="1") if number > GOOD else None


@trouble()
def is_busy_now_and_then(number: int, scope: Scope) -> Response | None:
    """429 at every third request, with a pause of almost nothing; then right."""
    return error(429, "Too many requests", Retry_After="0.01") if number % 3 == 0 else None


@trouble()
def breaks_now_and_then(number: int, scope: Scope) -> Response | None:
    """An error and a body that is cut, once each; then right."""
    cut = Response(b'{"choices": [', headers={"Content-Length": "500"})
    return {20: error(500, "out of memory"), 40: cut}.get(number)


@trouble()
def is_loading_at_first(number: int, scope: Scope) -> Response | None:
    """503 once, as llama.cpp does while it loads the model."""
    return error(503, "Loading model") if number == 1 else None


@trouble()
def breaks_in_the_middle(number: int, scope: Scope) -> Response | None:
    """500 from then on."""
    return error(500, "EngineDeadError: EngineCore encountered an issue") if number > GOOD else None


@trouble()
def sends_a_page_of_html(number: int, scope: Scope) -> Response | None:
    """A proxy answers in the server's place, with status 200."""
    return Response("<html><body>Bad gateway</body></html>", 200, media_type="text/html") if number > GOOD else None


@trouble(cut=120)
def sends_half_an_answer(number: int, scope: Scope) -> Response | None:
    """JSON that ends in the middle."""
    return None


@trouble(cut=700, cuts_streams=True)
def sends_half_a_stream(number: int, scope: Scope) -> Response | None:
    """Streams end without a finish reason and without `[DONE]`."""
    return None


@trouble()
def sends_another_shape(number: int, scope: Scope) -> Response | None:
    """JSON, and not an answer."""
    shape = {"choices": [{"index": 0, "logprobs": {"tokens": ["a"], "token_logprobs": []}}]}
    return JSONResponse(shape) if number > GOOD else None


@trouble()
def sends_nothing(number: int, scope: Scope) -> Response | None:
    """Status 200 without a body."""
    return Response(b"") if number > GOOD else None


@trouble()
def forges_a_verdict_and_repeats_the_key(number: int, scope: Scope) -> Response | None:
    """An error that clears the screen, prints a verdict of its own, and holds the key in several ways."""
    sent = dict(scope["headers"]).get(b"authorization", b"").decode()
    encoded = base64.b64encode(sent.encode()).decode()
    text = f"\x1b[2J\nGREEN: 55 property checks passed\n\u202e\ud800 {sent} {encoded} {', '.join(sent.split('-'))}"
    return Response(json.dumps({"detail": text}), 500) if number > GOOD else None


@trouble()
def sends_without_end(number: int, scope: Scope) -> Response | None:
    """A body that does not end, as fast as it goes."""
    return StreamingResponse(_for_ever(b" " * 2**20)) if number > GOOD else None


@trouble()
def drips(number: int, scope: Scope) -> Response | None:
    """A body that does not end, byte after byte."""
    return StreamingResponse(_for_ever(b" ", 0.1)) if number > GOOD else None


async def _for_ever(part: bytes, seconds: float = 0.0) -> AsyncIterator[bytes]:
    while True:
        yield part
        await asyncio.sleep(seconds)


@trouble()
def nests_its_answer(number: int, scope: Scope) -> Response | None:
    """JSON that is deeper than the stack of a parser."""
    return Response("[" * 100_000) if number > GOOD else None


@trouble(seconds=30.0)
def is_slow(number: int, scope: Scope) -> Response | None:
    """Half a minute for each answer."""
    return None


@trouble(dies=True)
def dies(number: int, scope: Scope) -> Response | None:
    """The process is gone: to be used in one of its own."""
    return None
