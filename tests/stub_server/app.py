"""The stub as an ASGI application (starlette), and as a server on loopback (uvicorn)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from typing import TYPE_CHECKING, Any

import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from stub_server.dialects import (
    MODEL,
    Chat,
    Completions,
    Dialect,
    Generate,
    LlamaCompletion,
    Refused,
    Settings,
    as_event,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping

    from starlette.requests import Request as HttpRequest
    from starlette.types import ASGIApp

    from stub_server.engine import Choice, Emitted, Engine

ROUTES: dict[str, dict[str, type[Dialect]]] = {
    "vllm": {"/v1/completions": Completions, "/v1/chat/completions": Chat},
    "openai": {"/v1/completions": Completions, "/v1/chat/completions": Chat},
    "sglang": {"/generate": Generate, "/v1/completions": Completions, "/v1/chat/completions": Chat},
    "llama.cpp": {
        "/completion": LlamaCompletion,
        "/completions": LlamaCompletion,
        "/v1/completions": Completions,
        "/v1/chat/completions": Chat,
    },
}
"""Where a kind of server generates."""


def make_app(engine: Engine, settings: Settings, step_seconds: float = 0.0) -> Starlette:
    """An application around an engine.

    Args:
        step_seconds: A pause after each step. Requests that are on their way at the same time take turns.
    """
    routes = [Generation(dialect(settings), engine, step_seconds).route(path) for path, dialect in paths(settings)]
    pages = [Route(path, lambda _, page=page: JSONResponse(page)) for path, page in information(settings).items()]
    return Starlette(routes=[*routes, *pages])


def paths(settings: Settings) -> list[tuple[str, type[Dialect]]]:
    """Of the kind."""
    return [one for one in ROUTES[settings.kind].items() if one[1] is Chat or not settings.chats_only]


class Generation:
    """A route that generates."""

    def __init__(self, dialect: Dialect, engine: Engine, step_seconds: float) -> None:
        self.dialect, self.engine, self.step_seconds = dialect, engine, step_seconds

    def route(self, path: str) -> Route:
        """At `path`."""
        return Route(path, self.answer, methods=["POST"])

    async def answer(self, http: HttpRequest) -> Response:
        """A JSON answer, a stream, or a refusal."""
        try:
            body = json.loads(await http.body())
            requests = self.dialect.requests(body)
        except Refused as refused:
            return refusal(str(refused), refused.status)
        except (ValueError, TypeError, AttributeError) as error:
            return refusal(f"{type(error).__name__}: {error}", 400)
        choices = [choice for request in requests for choice in self.engine.start(request)]
        if body.get("stream"):
            return StreamingResponse(self.events(body, choices), media_type="text/event-stream")
        async for _ in self.steps(choices):
            pass
        return Response(json.dumps(self.dialect.whole(body, choices)), media_type="application/json")

    async def steps(self, choices: list[Choice]) -> AsyncIterator[tuple[Choice, list[Emitted]]]:
        """The steps of the choices, in turns, with those of other requests between them."""
        try:
            await asyncio.sleep(self.step_seconds)
            while going := [choice for choice in choices if not choice.ended]:
                for choice in going:
                    yield choice, self.engine.step(choice)
                await asyncio.sleep(self.step_seconds)
        finally:
            self.engine.finish(choices)

    async def events(self, body: Mapping[str, Any], choices: list[Choice]) -> AsyncIterator[bytes]:
        """Server-sent events."""
        async for choice, new in self.steps(choices):
            yield as_event(self.dialect.event(body, choice, *self.engine.streamed(choice, new)))
        last = self.dialect.last_event(body, choices)
        if last is not None:
            yield as_event(last)
        yield self.dialect.stream_end


def refusal(message: str, status: int) -> JSONResponse:
    """An error as OpenAI, vLLM and llama.cpp write it."""
    kind = "NotFoundError" if status == 404 else "BadRequestError"
    return JSONResponse({"error": {"message": message, "type": kind, "param": None, "code": status}}, status)


# -- what a server says about itself ------------------------------------------------------------------------------


def information(settings: Settings) -> dict[str, Any]:  # Any: JSON
    """Routes that do not generate, by kind."""
    owner = {"vllm": "vllm", "sglang": "sglang", "llama.cpp": "llamacpp"}.get(settings.kind, "organization")
    models = {"object": "list", "data": [{"id": MODEL, "object": "model", "created": 0, "owned_by": owner}]}
    own = {
        "sglang": {"/get_model_info": {"model_path": MODEL, "is_generation": True}},
        "llama.cpp": {"/props": {"model_alias": MODEL, "model_path": MODEL, "total_slots": 4}},
    }
    return {"/v1/models": models, **own.get(settings.kind, {})}


# -- on loopback --------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def serving(app: ASGIApp, port: int = 0) -> Iterator[str]:
    """Serve on loopback while the context lasts, and yield the address, `http://127.0.0.1:PORT`."""
    config = uvicorn.Config(
        app, "127.0.0.1", port, log_level="critical", lifespan="off", ws="none", timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        if not thread.is_alive():
            raise RuntimeError(f"serving: port={port}, but it cannot be opened. Choose another, or 0.")
        time.sleep(0.005)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
