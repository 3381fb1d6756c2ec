"""One HTTP request at a time: a polite client, whose every trouble is one sentence.

A server that is busy (429, 503) is asked again after the time that it names, or after a growing pause, until the time
of the request is over. Nothing else is tried twice. The key is read from the environment and sent, and stands nowhere
else.
"""

from __future__ import annotations

import json
import os
import shlex
import threading
import time
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import httpx2

from fairdraw.protocols import NoAnswer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from fairdraw.protocols import ServerSettings

JSON = dict[str, Any]  # Any: JSON
_BUSY, _NO_ENTRY = (429, 503), (401, 403)
_FIRST_PAUSE, _LONGEST_PAUSE = 0.25, 30.0


@dataclass(frozen=True)
class Reply:
    """What came back: parts of a stream, or one part.

    Args:
        refused: Why the server did not take the request; empty if it did.
    """

    parts: tuple[JSON, ...] = ()
    refused: str = ""


@dataclass
class Transport:
    """Sends requests to one server.

    Args:
        base: The address as the user gave it, without a slash at its end.
        sleep, clock: Replaced by tests.
        through: What carries requests: the network, unless an application in this process is given.
    """

    base: str
    settings: ServerSettings
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    through: httpx2.BaseTransport | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _next: float = 0.0

    def __post_init__(self) -> None:
        # Servers close idle connections after some seconds (llama.cpp and uvicorn after 5): close them before.
        most = httpx2.Limits(max_connections=self.settings.concurrency, keepalive_expiry=1.0)
        # The environment's proxies and netrc are not used: what is judged is the server at this address.
        self._client = httpx2.Client(
            timeout=self.settings.timeout,
            limits=most,
            headers=self._key(),
            trust_env=False,
            transport=self.through,
        )
        weakref.finalize(self, self._client.close)

    def _key(self) -> dict[str, str]:
        key = os.environ.get(self.settings.key_variable, "")
        return {"Authorization": f"Bearer {key}"} if key else {}

    @property
    def root(self) -> str:
        """The address without `/v1`."""
        return self.base.removesuffix("/v1")

    def get(self, url: str) -> Any:  # Any: JSON
        """What is at an address; `None` if there is no such page, or no JSON.

        Raises:
            NoAnswer: If there is no server, or it wants a key.
        """
        response = self._patiently(lambda: self._client.get(url))
        if response.status_code in _NO_ENTRY:
            raise self._no_entry(response)
        try:
            return response.json() if response.status_code == 200 else None
        except ValueError:
            return None

    def post(self, url: str, body: Mapping[str, Any], *, stream: bool = False) -> Reply:  # Any: JSON
        """The answer to one request.

        Raises:
            NoAnswer: If there is none, or it is no JSON, or half a stream.
        """
        self._wait_for_turn()
        # llama.cpp may close a connection behind a stream without saying so.
        head = {"Connection": "close"} if stream else {}
        response = self._patiently(lambda: self._client.post(url, json=body, headers=head))
        if response.status_code in _NO_ENTRY:
            raise self._no_entry(response)
        if 400 <= response.status_code < 500 or response.status_code == 501:
            return Reply(refused=f"HTTP {response.status_code}: {_message(response.text)}")
        if response.status_code != 200:
            raise NoAnswer(f"{url} answered HTTP {response.status_code}: {_message(response.text)}")
        return Reply(tuple(_events(url, response.text)) if stream else (_parsed(url, response.text),))

    def _patiently(self, send: Callable[[], httpx2.Response]) -> httpx2.Response:
        """Send until the server is not busy, or the time of the request is over."""
        ends_at, pause = self.clock() + self.settings.timeout, _FIRST_PAUSE
        while True:
            try:
                response = send()
            except (httpx2.HTTPError, httpx2.InvalidURL) as error:
                raise NoAnswer(_worded(self.base, error, self.settings.timeout)) from None
            if response.status_code not in _BUSY:
                return response
            wait = _retry_after(response) or pause
            if self.clock() + wait > ends_at:
                raise NoAnswer(
                    f"{self.base} was busy (HTTP {response.status_code}) for {self.settings.timeout:g} s (--timeout)"
                )
            self.sleep(wait)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _wait_for_turn(self) -> None:
        """Keep the rate limit."""
        if self.settings.rate is None:
            return
        with self._lock:
            now = self.clock()
            turn = max(now, self._next)
            self._next = turn + 1 / self.settings.rate
        self.sleep(max(0.0, turn - now))

    def _no_entry(self, response: httpx2.Response) -> NoAnswer:
        has_key = bool(os.environ.get(self.settings.key_variable))
        remedy = "the key in it is not accepted" if has_key else "it holds no key"
        return NoAnswer(
            f"{self.base} answered HTTP {response.status_code}: the environment variable "
            f"{self.settings.key_variable} names the key, and {remedy} (--key-variable)"
        )

    def curl(self, url: str, body: Mapping[str, Any]) -> str:  # Any: JSON
        """The request as a line for a shell; a key stays in its variable."""
        key = f' -H "Authorization: Bearer ${self.settings.key_variable}"' if self._key() else ""
        return f"curl -s {shlex.quote(url)} -H 'Content-Type: application/json'{key} -d {shlex.quote(json.dumps(body))}"


def _worded(base: str, error: Exception, timeout: float) -> str:
    """A trouble of the connection as one sentence."""
    if isinstance(error, httpx2.TimeoutException):
        return f"{base} did not answer within {timeout:g} s (--timeout)"
    if isinstance(error, httpx2.ConnectError):
        return f"{base} cannot be reached: {_brief(str(error)) or type(error).__name__}"
    return f"{base} broke off: {_brief(str(error)) or type(error).__name__}"


def _retry_after(response: httpx2.Response) -> float:
    """What the server asks to wait, in seconds; 0 if it does not say, or says a date."""
    try:
        return min(_LONGEST_PAUSE, max(0.0, float(response.headers.get("Retry-After", ""))))
    except ValueError:
        return 0.0


def _parsed(url: str, text: str) -> JSON:
    try:
        found = json.loads(text)
    except ValueError:
        raise NoAnswer(f"{url} sent no JSON: {_brief(text) or 'nothing at all'}") from None
    if not isinstance(found, (dict, list)):
        raise NoAnswer(f"{url} sent JSON that is no answer: {_brief(text)}")
    return found if isinstance(found, dict) else {"choices": found}


def _events(url: str, text: str) -> Iterator[JSON]:
    """The parts of a stream of server-sent events; one that breaks off is no answer."""
    is_over = False
    for line in text.splitlines():
        field_name, _, value = line.partition(":")
        if field_name != "data":
            continue
        if value.strip() == "[DONE]":
            is_over = True
            continue
        part = _parsed(url, value)
        is_over = is_over or part.get("stop") is True or _ends(part)
        yield part
    if not is_over:
        raise NoAnswer(f"{url} sent half a stream: it ended without [DONE] and without a finish reason")


def _ends(part: JSON) -> bool:
    """Whether a choice ends here: some servers (transformers serve) send no [DONE]."""
    rows = part.get("choices") or ()
    return any(isinstance(row, dict) and row.get("finish_reason") is not None for row in rows)


def _message(text: str) -> str:
    """What an answer that is an error says."""
    try:
        found = json.loads(text)
    except ValueError:
        return _brief(text)
    error = found.get("error", found) if isinstance(found, dict) else found
    return _brief(str(error.get("message") or error) if isinstance(error, dict) else str(error))


_MOST_SHOWN = 200


def _brief(text: str) -> str:
    """A message on one line, not too long."""
    line = " ".join(text.split())
    return line if len(line) <= _MOST_SHOWN else line[:_MOST_SHOWN] + " ..."
