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

from fairdraw._mutants._server.dialects import (
    LLAMA_DEFAULTS,
    LLAMA_ORDER,
    MODEL,
    Chat,
    Completions,
    Dialect,
    Generate,
    LlamaCompletion,
    Refused,
    Settings,
    as_event,
    prompt_tokens,
    token_text,
)
from fairdraw._mutants._server.model import BOS, VOCAB_SIZE, text_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping

    from starlette.requests import Request as HttpRequest
    from starlette.types import ASGIApp

    from fairdraw._mutants._server.engine import Choice, Emitted, Engine

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
    return Starlette(routes=[*routes, *(info_route(*one) for one in information(settings).items())])


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


def info_route(path: str, value: Any) -> Route:  # Any: JSON, or a function of a body
    """A route that answers with a value, or with a function of the body."""

    async def answer(http: HttpRequest) -> Response:
        if not callable(value):
            return JSONResponse(value)
        try:
            return JSONResponse(value(json.loads(await http.body())))
        except (Refused, ValueError, KeyError) as error:
            return refusal(str(error), 400)

    return Route(path, answer, methods=["POST"] if callable(value) else ["GET"])


def information(settings: Settings) -> dict[str, Any]:  # Any: JSON, or a function of a body
    """Routes that do not generate, by kind."""
    owner = {"vllm": "vllm", "sglang": "sglang", "llama.cpp": "llamacpp"}.get(settings.kind, "organization")
    card: dict[str, Any] = {"id": MODEL, "object": "model", "created": 0, "owned_by": owner}
    if settings.kind == "llama.cpp":
        card["meta"] = {"vocab_type": 1, "n_vocab": VOCAB_SIZE, "n_ctx": 4096, "n_ctx_train": 4096}
    elif settings.has_ids:
        card |= {"root": MODEL, "parent": None, "max_model_len": 4096}
    return {"/v1/models": {"object": "list", "data": [card]}, **OWN_INFORMATION[settings.kind]}


def tokenize(body: Mapping[str, Any]) -> dict[str, Any]:
    """vLLM's `/tokenize`."""
    tokens = [token for token in prompt_tokens(body["prompt"]) if body.get("add_special_tokens", True) or token != BOS]
    names = [token_text(token) for token in tokens] if body.get("return_token_strs") else None
    return {"count": len(tokens), "max_model_len": 4096, "tokens": tokens, "token_strs": names}


def llama_tokenize(body: Mapping[str, Any]) -> dict[str, Any]:
    """llama.cpp's `/tokenize`."""
    tokens = [token for token in prompt_tokens(body["content"]) if body.get("add_special") or token != BOS]
    if body.get("with_pieces"):
        return {"tokens": [{"id": token, "piece": token_text(token)} for token in tokens]}
    return {"tokens": tokens}


DEFAULT_SETTINGS = {"params": {**LLAMA_DEFAULTS, "n_probs": 0, "samplers": list(LLAMA_ORDER)}, "n_ctx": 4096}
OWN_INFORMATION: dict[str, dict[str, Any]] = {
    "vllm": {
        "/version": {"version": "0.33.0"},
        "/health": {},
        "/tokenize": tokenize,
        "/detokenize": lambda body: {"prompt": text_of(body["tokens"])},
    },
    "openai": {},
    "sglang": {
        path: {"model_path": MODEL, "served_model_name": MODEL, "tokenizer_path": MODEL, "is_generation": True}
        for path in ("/get_model_info", "/model_info")
    }
    | {"/health": {}, "/server_info": {"version": "0.5.23"}, "/get_server_info": {"version": "0.5.23"}},
    "llama.cpp": {
        "/health": {"status": "ok"},
        "/props": {
            "default_generation_settings": DEFAULT_SETTINGS,
            "total_slots": 4,
            "model_alias": MODEL,
            "model_path": MODEL,
            "build_info": "b0-unknown",
            "bos_token": "<s>",
            "eos_token": "</s>",
        },
        "/tokenize": llama_tokenize,
        "/detokenize": lambda body: {"content": text_of(body["tokens"])},
    },
}


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
