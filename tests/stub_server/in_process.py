"""The stub without sockets: a transport of a synchronous client, which runs the application in a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING

import httpx2

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.types import ASGIApp


class InProcess(httpx2.BaseTransport):
    """Requests of all threads arrive in one event loop, so that those of a batch take turns.

    Args:
        loop: It runs in another thread.
    """

    def __init__(self, app: ASGIApp, loop: asyncio.AbstractEventLoop) -> None:
        self._inner, self._loop = httpx2.ASGITransport(app), loop

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        return asyncio.run_coroutine_threadsafe(self._answer(request), self._loop).result()

    async def _answer(self, request: httpx2.Request) -> httpx2.Response:
        inner = httpx2.Request(request.method, request.url, headers=request.headers, content=request.read())
        response = await self._inner.handle_async_request(inner)
        return httpx2.Response(response.status_code, headers=response.headers, content=await response.aread())


@contextlib.contextmanager
def in_process(app: ASGIApp) -> Iterator[InProcess]:
    """A transport to the application, while the context lasts."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield InProcess(app, loop)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
