"""One HTTP request at a time: a polite client, whose every trouble is one sentence.

A server that is busy (429, 503) is asked again after the time that it names, or after a growing pause, until the time
of the request is over. An answer that broke (a connection that was cut, half a body, an error of the server's) is asked
for again, too: a request is a draw of its own. That is counted and seldom allowed, as a fault may break just those
answers that would show it. The key is read from the environment and sent, and stands nowhere else.
"""

from __future__ import annotations

import contextlib
import email.utils
import json
import os
import re
import shlex
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpcore2
import httpx2

from fairdraw._core import foreign
from fairdraw._server._journal import JSON, Reply
from fairdraw.contracts import NoAnswer, ServerSettings

T = TypeVar("T")
_BUSY, _NO_ENTRY = (429, 503), (401, 403)
_FIRST_PAUSE, _LONGEST_PAUSE = 0.25, 30.0

_TRIES = 3
"""Attempts at a request whose answers break."""

_FEW_BROKEN, _MOST_BROKEN = 5, 0.05
"""Answers that may break in a run: so many, or this share of its requests. More would let a fault choose answers."""

_MOST_BYTES = 32 * 2**20
"""Size of a body, at most. A stream of SGLang with lists of 1,000 entries has 16 MiB."""


class _Passing(NoAnswer):
    """A trouble after which the request is sent again.

    Args:
        kind: What is counted.
        wait: Seconds that the server asks for; 0 if it does not say.
    """

    def __init__(self, text: str, kind: str, wait: float = 0.0, *, is_busy: bool = False) -> None:
        super().__init__(text)
        self.kind, self.wait, self.is_busy = kind, wait, is_busy


@dataclass
class Transport:
    """Sends requests to one server.

    Args:
        base: The address as the user gave it, without a slash at its end.
        sleep, clock: Replaced by tests.
        through: What carries requests: the network, unless an application in this process is given.
        counts: Requests that were sent (`requests`), and troubles after which one was sent again.
    """

    base: str
    settings: ServerSettings
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    through: httpx2.BaseTransport | None = None
    counts: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _next: float = 0.0
    _num_sent: int = 0
    _num_broken: int = 0

    def __post_init__(self) -> None:
        self._deadline = _Deadline()
        # The environment's proxies and netrc are not used: what is judged is the server at this address.
        self._client = httpx2.Client(
            timeout=self.settings.timeout,
            headers={"Accept-Encoding": "identity", **self._key()},  # what is not compressed is as long as it looks
            trust_env=False,
            transport=self.through or _Network(self.settings.concurrency, self._deadline),
        )
        weakref.finalize(self, self._client.close)

    def _key(self) -> dict[str, str]:
        name = self.settings.key_variable
        key = os.environ.get(name, "").strip()
        if not (key.isascii() and key.isprintable()):
            raise NoAnswer(f"the key in {name} has characters that no HTTP header may hold. Set it to the bare key")
        foreign.hide(key, name)
        return {"Authorization": f"Bearer {key}"} if key else {}

    @property
    def root(self) -> str:
        """The address without `/v1`."""
        return self.base.removesuffix("/v1")

    def get(self, url: str) -> Any:  # Any: JSON
        """Return what is at an address; `None` if there is no such page, or no JSON.

        Raises:
            NoAnswer: If there is no server, or it wants a key.
        """
        received = self._patiently(lambda: self._received("GET", url))
        try:
            return foreign.read_json(received.content) if received.status_code == 200 else None
        except ValueError:
            return None

    def post(self, url: str, body: Mapping[str, Any], *, stream: bool = False) -> Reply:  # Any: JSON
        """Return the answer to one request.

        Raises:
            NoAnswer: If there is none, or it is no JSON, or half a stream.
        """

        def attempt() -> Reply:
            # llama.cpp may close a connection behind a stream without saying so.
            head = {"Connection": "close"} if stream else {}
            return _reply(url, self._received("POST", url, json=body, headers=head), stream=stream)

        return self._patiently(attempt)

    def _patiently(self, attempt: Callable[[], T]) -> T:
        """Return what `attempt` does: once more if the server is busy or its answer broke, but not for ever."""
        ends_at, pause, num_broken = self.clock() + self.settings.timeout, _FIRST_PAUSE, 0
        while True:
            self._wait_for_turn()
            try:
                return attempt()
            except _Passing as trouble:
                num_broken += not trouble.is_busy
                wait = trouble.wait or pause
                if self.clock() + wait > ends_at or num_broken == _TRIES:
                    raise NoAnswer(str(trouble)) from None
                self._count(trouble)
                self.sleep(wait)
                pause = min(2 * pause, _LONGEST_PAUSE)

    def _count(self, trouble: _Passing) -> None:
        """Count a request that is sent again.

        Raises:
            NoAnswer: If too many answers broke.
        """
        with self._lock:
            self.counts[trouble.kind] += 1
            self._num_broken += not trouble.is_busy
            broken, sent = self._num_broken, self._num_sent
        if not trouble.is_busy and broken > max(_FEW_BROKEN, _MOST_BROKEN * sent):
            raise NoAnswer(f"{trouble}; {broken} of {sent} requests broke, too many to send them again")

    def take_counts(self) -> Counter[str]:
        """Return the counts since the last call."""
        with self._lock:
            taken, self.counts = self.counts, Counter()
        return taken

    def _received(self, method: str, url: str, **content: Any) -> httpx2.Response:  # Any: httpx2's
        """Send a request once, and read what comes back: in the time of a request, and no more than anybody needs.

        Raises:
            NoAnswer: If there is no answer, or one that is too long.
        """
        with self._lock:
            self.counts["requests"] += 1
            self._num_sent += 1
        self._deadline.ends_at = time.monotonic() + self.settings.timeout
        try:
            with self._client.stream(method, url, **content) as response:
                if response.headers.get("Content-Encoding", "identity") != "identity":
                    raise NoAnswer(f"{url} sent a compressed body, though none was asked for. Turn compression off")
                body = _bounded(url, response.iter_bytes())
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise _worded(self.base, error, self.settings.timeout) from None
        status, headers = response.status_code, response.headers
        if status in _BUSY:
            raise self._is_busy(status, _seconds(headers.get("Retry-After", "")))
        if status in _NO_ENTRY:
            raise self._no_entry(status)
        return httpx2.Response(status, headers={"Location": headers.get("Location", "")}, content=body)

    def _wait_for_turn(self) -> None:
        """Keep the rate limit."""
        if self.settings.rate is None:
            return
        with self._lock:
            now = self.clock()
            turn = max(now, self._next)
            self._next = turn + 1 / self.settings.rate
        self.sleep(max(0.0, turn - now))

    def _is_busy(self, status: int, wait: float) -> _Passing:
        limit = self.settings.timeout
        how_long = f"and asks to wait for {wait:g} s, longer than {limit:g} s" if wait > limit else f"for {limit:g} s"
        text = f"{self.base} was busy (HTTP {status}) {how_long} (--timeout)"
        return _Passing(text, f"HTTP {status}", wait, is_busy=True)

    def _no_entry(self, status: int) -> NoAnswer:
        has_key = bool(os.environ.get(self.settings.key_variable))
        remedy = "the key in it is not accepted" if has_key else "it holds no key"
        return NoAnswer(
            f"{self.base} answered HTTP {status}: the environment variable "
            f"{self.settings.key_variable} names the key, and {remedy} (--key-variable)"
        )

    def curl(self, url: str, body: Mapping[str, Any]) -> str:  # Any: JSON
        """Return the request as a line for a shell; a key stays in its variable."""
        key = f' -H "Authorization: Bearer ${self.settings.key_variable}"' if self._key() else ""
        return f"curl -s {shlex.quote(url)} -H 'Content-Type: application/json'{key} -d {shlex.quote(json.dumps(body))}"


# -- the network ------------------------------------------------------------------------------------------------------


class _Deadline(threading.local):
    """The end of the request that a thread waits for, by `time.monotonic`."""

    ends_at = float("inf")

    def left(self, most: float | None) -> float:
        """Return the seconds that are left, and at most `most`.

        Raises:
            httpcore2.ReadTimeout: If there are none.
        """
        seconds = self.ends_at - time.monotonic()
        if seconds <= 0:
            raise httpcore2.ReadTimeout
        return seconds if most is None else min(seconds, most)


class _Stream:
    """A connection that may be read until the deadline; an HTTP client's own limit holds for each piece anew."""

    def __init__(self, inner: Any, deadline: _Deadline) -> None:  # Any: a stream of httpcore2's
        self._inner, self._deadline = inner, deadline

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return bytes(self._inner.read(max_bytes, self._deadline.left(timeout)))

    def start_tls(self, *arguments: Any, **options: Any) -> _Stream:  # Any: httpcore2's
        return _Stream(self._inner.start_tls(*arguments, **options), self._deadline)

    def __getattr__(self, name: str) -> Any:  # Any: what else a stream has
        return getattr(self._inner, name)


@dataclass
class _Backend(httpcore2.SyncBackend):
    """Connections that know the deadline."""

    deadline: _Deadline

    def connect_tcp(self, *arguments: Any, **options: Any) -> Any:  # Any: httpcore2's
        return _Stream(super().connect_tcp(*arguments, **options), self.deadline)


class _Network(httpx2.HTTPTransport):
    """The network, with the certificates that `SSL_CERT_FILE` names, if it does."""

    def __init__(self, concurrency: int, deadline: _Deadline) -> None:
        super().__init__()
        # Servers close idle connections after some seconds (llama.cpp and uvicorn after 5): close them before.
        self._pool = httpcore2.ConnectionPool(
            ssl_context=httpx2.create_ssl_context(),
            max_connections=concurrency,
            keepalive_expiry=1.0,
            network_backend=_Backend(deadline),
        )


def _bounded(url: str, parts: Iterable[bytes]) -> bytes:
    """Return a body.

    Raises:
        NoAnswer: If it is too long.
    """
    body = bytearray()
    for part in parts:
        body += part
        if len(body) > _MOST_BYTES:
            raise NoAnswer(f"{url} sent more than {_MOST_BYTES >> 20} MiB for one request, and went on")
    return bytes(body)


def _worded(base: str, error: Exception, timeout: float) -> NoAnswer:
    """Return a trouble of the connection as one sentence."""
    text = _brief(str(error)) or type(error).__name__
    if isinstance(error, httpx2.TimeoutException):
        return NoAnswer(f"{base} did not answer within {timeout:g} s (--timeout)")
    if "CERTIFICATE_VERIFY_FAILED" in text:
        remedy = "Set SSL_CERT_FILE to a file with the certificate of its authority"
        return NoAnswer(f"{base} has a certificate that is not trusted ({text}). {remedy}")
    if "[SSL" in text:
        return NoAnswer(f"{base} speaks no TLS ({text}). If it speaks plain HTTP, begin its address with http://")
    if isinstance(error, httpx2.ConnectError):
        return _Passing(f"{base} cannot be reached: {text}", "cannot be reached")
    if isinstance(error, httpx2.TransportError) and not isinstance(error, httpx2.UnsupportedProtocol):
        return _Passing(f"{base} broke off: {text}", "broken off")
    return NoAnswer(f"{base} broke off: {text}")


def _seconds(text: str) -> float:
    """Return what a `Retry-After` asks to wait, a number or a date, in seconds; 0 if it does not say."""
    with contextlib.suppress(ValueError):
        return max(0.0, float(text))
    with contextlib.suppress(ValueError, OverflowError):
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    return 0.0


# -- answers ----------------------------------------------------------------------------------------------------------


def _reply(url: str, received: httpx2.Response, *, stream: bool) -> Reply:
    """Return what a response says.

    Raises:
        NoAnswer: If that is no answer.
    """
    status, text = received.status_code, received.content.decode(errors="replace")
    first = text.partition("data:")[2].partition("\n")[0]
    if stream and (code := _code(first)) >= 400:
        status, text = code, first
    said = f"HTTP {status}: {_message(text) or 'nothing at all'}"
    if 300 <= status < 400:
        place = _brief(received.headers["Location"]) or "nowhere"
        raise NoAnswer(f"{url} answered HTTP {status} and points to {place}. Give that address instead")
    if (400 <= status < 500 and status != 408) or status == 501:
        return Reply(refused=said)
    if status != 200:
        raise _Passing(f"{url} answered {said}", f"HTTP {status}")
    if stream and text.lstrip().startswith("{"):
        return Reply(refused="it sends an answer as a whole where a stream is requested" * bool(_parsed(url, text)))
    return Reply(tuple(_events(url, text)) if stream else (_parsed(url, text),))


def _code(text: str) -> int:
    """Return the status of an error object; 0 if it is none. vLLM refuses a stream so, after it sent HTTP 200."""
    with contextlib.suppress(LookupError, TypeError, ValueError):
        return int(foreign.read_json(text)["error"]["code"])
    return 0


def _parsed(url: str, text: str) -> JSON:
    try:
        found = foreign.read_json(text)
    except ValueError:
        raise _Passing(f"{url} sent no JSON: {_brief(text) or 'nothing at all'}", "no JSON") from None
    if not isinstance(found, (dict, list)):
        raise NoAnswer(f"{url} sent JSON that is no answer: {_brief(text)}")
    if isinstance(found, dict) and found.get("error") and "choices" not in found:
        raise _Passing(f"{url} answered with an error: {_message(text)}", "an error object")
    return found if isinstance(found, dict) else {"choices": found}


def _events(url: str, text: str) -> Iterator[JSON]:
    """Yield the parts of a stream of server-sent events; one that breaks off is no answer."""
    is_over = False
    for line in re.split(r"\r\n|\r|\n", text):  # not splitlines: JSON may hold other line ends
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
        text = f"{url} sent half a stream: it ended without [DONE] and without a finish reason"
        raise _Passing(text, "half a stream")


def _ends(part: JSON) -> bool:
    """Whether a choice ends here: some servers (transformers serve) send no [DONE]."""
    rows = part.get("choices") or ()
    return any(isinstance(row, dict) and row.get("finish_reason") is not None for row in rows)


def _message(text: str) -> str:
    """Return what an answer that is an error says."""
    try:
        found = foreign.read_json(text)
    except ValueError:
        return _brief(text)
    for name in ("error", "message", "detail"):  # OpenAI's, SGLang's, FastAPI's; one may hold another
        found = found.get(name) or found if isinstance(found, dict) else found
    return _brief(str(found))


_MOST_SHOWN = 200


def _brief(text: str) -> str:
    """Return a message on one line, not too long."""
    return foreign.one_line(" ".join(text.split()), _MOST_SHOWN)
