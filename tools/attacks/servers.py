"""Servers that answer badly, behind a proxy that damages what the toy server says."""

from __future__ import annotations

import base64
import functools
import json
import os
import re
import socket
import time
import zlib
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import quote

from attacks.rules import Attack, in_json

KEY = "sk-attack-01234/56789+x"
UNHARMED = "no damage"
TOLERABLE = (UNHARMED, "index", "reason", "tokens", "an odd token")
"""Values that the chosen checks need not look at."""

Damage = Callable[["Proxy", bytes], object]
"""What is done in the place of a right answer, whose body is given."""


def _sends(status: int, body: bytes | str = b"", *headers: tuple[str, str]) -> Damage:
    def damage(http: Proxy, right: bytes) -> None:
        sent = body.encode("utf-8", "surrogatepass") if isinstance(body, str) else body
        http.send_response_only(status)
        for name, value in (("Content-Type", "application/json"), ("Content-Length", str(len(sent))), *headers):
            http.send_header(name, value)
        http.end_headers()
        http.wfile.write(sent)

    return damage


def _changed(old: str, new: str) -> Damage:
    """The right answer with another value behind the first group of `old`."""
    return lambda http, right: _sends(http.code, re.sub(old, lambda found: found[1] + new, right.decode()))(http, right)


def _raw(*parts: bytes, pause: float = 0.0, times: int = 1) -> Damage:
    """Bytes as they are; then the connection ends."""

    def damage(http: Proxy, right: bytes) -> None:
        for part in (*parts[:1], *parts[1:] * times):
            http.wfile.write(part)
            http.wfile.flush()
            time.sleep(pause)
        http.close_connection = True

    return damage


def _resets(http: Proxy, right: bytes) -> None:
    http.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    http.connection.close()


def _bomb(http: Proxy, right: bytes) -> None:
    packer = zlib.compressobj(wbits=31)
    packed = b"".join(packer.compress(b" " * 1_000_000) for _ in range(400)) + packer.flush()
    _sends(200, packed, GZIP)(http, right)


GZIP = ("Content-Encoding", "gzip")
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
CHUNKS = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
STRANGE = "\x1b[2J\x1b[HGREEN: 1 property check passed\n\u202e\x9b\ud800"

STATUSES = (
    *(201, 204, 300, 400, 401, 403, 404, 405, 408, 409, 413, 418, 422, 425, 429),
    *(500, 501, 502, 503, 504, 599, 999),
)
AFTER = ("0", "-1", "nan", "inf", "1e9", "Wed, 21 Oct 2099 07:28:00 GMT", "x")
TEXTS = {
    "an escape": STRANGE,
    "the key": f"bad key {KEY}",
    "the key in base64": base64.b64encode(KEY.encode()).decode(),
    "a long text": "x" * 500_000,
    "no text": None,
}
ANSWERS = (
    "null",
    "[]",
    "{}",
    '"x"',
    "1e999",
    "true",
    *(f'{{"choices": {one}}}' for one in ("null", "{}", "[null]", "[]")),
)
VALUES = {
    "log-probabilities": (r'("token_logprobs": \[)[^,\]]+', 'NaN 1.0 -Infinity null "x" [] 1e400 -1e308 true {}'),
    "index": (r'("index": )\d+', '7 -1 null "0" 1e99'),
    "reason": (r'("finish_reason": )"\w+"', 'null "error" 1 {}'),
    "tokens": (r'("tokens": )\[[^\]]*\]', "null [] {} [1] [null]"),
}
"""What stands there in a right answer, and what comes instead."""

TROUBLES: dict[str, Damage] = {
    **{f"status {status}": _sends(status, '{"error": {"message": "no"}}') for status in STATUSES},
    **{
        f"redirect {status}": _sends(status, "", ("Location", "http://127.0.0.1:1/")) for status in (301, 302, 307, 308)
    },
    **{f"429 and {after!r}": _sends(429, "", ("Retry-After", after)) for after in AFTER},
    **{
        f"an error {status} with {name}": _sends(status, json.dumps({"error": {"message": text}}))
        for status in (400, 500)
        for name, text in TEXTS.items()
    },
    **{f"the answer {text}": _sends(200, text) for text in ANSWERS},
    **{f"{name} {value}": _changed(old, value) for name, (old, values) in VALUES.items() for value in values.split()},
    UNHARMED: _changed("()", ""),
    "the key, quoted": _sends(500, quote(KEY, safe="")),
    "the key in JSON": _sends(500, in_json(KEY)),
    "the key in a header": _sends(307, "", ("Location", f"http://127.0.0.1:1/{KEY}")),
    "an error of another shape": _sends(500, '{"error": [[{}]]}'),
    "an error without a message": _sends(500, '{"error": {"message": null}}'),
    "a page": _sends(200, "<html>" + STRANGE),
    "no JSON": _sends(200, "{"),
    "lists in lists": _sends(200, "[" * 100_000 + "]" * 100_000),
    "half a character": _sends(200, '{"choices": [{"text": "\\ud800", "index": 0}]}'),
    "bytes that are no text": _sends(200, b"\xff\xfe{}"),
    "an odd token": _changed(r'("tokens": \[)"[^"]*"', json.dumps(STRANGE)),
    "a reset": _resets,
    "nothing": _raw(),
    "half a head": _raw(b"HTTP/1.1 200 OK\r\nContent-Le"),
    "no HTTP": _raw(b"SSH-2.0-x\r\n"),
    "HTTP/0.9": _raw(b"{}"),
    "a short body": _raw(HEAD + b"Content-Length: 100\r\n\r\n{"),
    "a negative length": _raw(HEAD + b"Content-Length: -1\r\n\r\n{}"),
    "two lengths": _raw(HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n{}"),
    "a chunk of no size": _raw(CHUNKS + b"zz\r\n{}\r\n"),
    "a chunk too large": _raw(CHUNKS + b"ffffffffffffffff\r\n{}"),
    "a drip": _raw(HEAD + b"Content-Length: 1000\r\n\r\n", b" ", pause=0.2, times=1000),
    "a drip of heads": _raw(b"HTTP/1.1 200 OK\r\n", b"X-A: b\r\n", pause=0.2, times=1000),
    "many heads": _raw(b"HTTP/1.1 200 OK\r\n", b"X-A: " + b"b" * 5_000 + b"\r\n", times=2_000),
    "a long head": _raw(b"HTTP/1.1 200 OK\r\nX-A: " + b"b" * 3_000_000),
    "a large body": _raw(HEAD + b"Content-Length: 400000000\r\n\r\n", bytes(1_000_000), times=400),
    "a body without an end": _raw(HEAD + b"\r\n", b" " * 1_000_000, times=400),
    "a bomb": _bomb,
    "no gzip": _sends(200, b"{}", GZIP),
    "another coding": _sends(200, b"{}", ("Content-Encoding", "br, gzip, x")),
    "100 again and again": _raw(b"HTTP/1.1 100 Continue\r\n\r\n" * 10_000),
    "a slow answer": lambda http, right: time.sleep(30),
}


class Proxy(BaseHTTPRequestHandler):
    """Asks the toy server, and damages what it says."""

    protocol_version = "HTTP/1.1"
    damage: Damage
    upstream: str
    after: int
    at_models: bool
    count = 0
    code = 0  # of the right answer

    def do_GET(self) -> None:
        """The list of models, and what else a client looks at."""
        self._answer(self.at_models)

    def do_POST(self) -> None:
        """A request that generates."""
        type(self).count += 1
        self._answer(not self.at_models and self.count > self.after)

    def _answer(self, is_damaged: bool) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        asked = HTTPConnection(self.upstream, timeout=60)
        asked.request(self.command, self.path, body, {"Content-Type": "application/json"})
        answer = asked.getresponse()
        right, self.code = answer.read(), answer.status
        asked.close()
        try:
            (self.damage if is_damaged else _sends(answer.status, right))(self, right)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def serve(damage: Damage, after: int, at_models: bool) -> str:
    """Start toy server and proxy in a process of their own, which ends with the session; the proxy's address."""
    reading, writing = os.pipe()
    if os.fork():
        return os.read(reading, 100).decode()
    from stub_server.app import make_app, serving
    from stub_server.dialects import Settings
    from stub_server.engine import Engine

    with serving(make_app(Engine(1), Settings())) as upstream:
        fields = {"damage": staticmethod(damage), "upstream": upstream.removeprefix("http://"), "after": after}
        handler = type("Handler", (Proxy,), {**fields, "at_models": at_models})
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        server.handle_error = lambda *_: None  # a client that hangs up is no trouble of ours
        os.write(writing, f"http://127.0.0.1:{server.server_port}/v1".encode())
        server.serve_forever()
    raise SystemExit


def attacks() -> Iterator[Attack]:
    """Yield all of this group."""
    run = ["check", "ADDRESS", "-k", "SRV102", "-k", "SRV103", "-n", "0", "--profile=smoke", "--timeout=3"]
    run += ["--key-variable=STUB_KEY", "--journal=journal", "--json=run.jsonl", "--html=run.html"]
    for name, damage in TROUBLES.items():
        for when, after in {"at once": 0, "later": 40, "at models": 0}.items():
            yield Attack(
                "servers",
                f"{name}, {when}",
                run,
                may_be_green=when != "at once" or name.startswith(TOLERABLE),
                must_be_green=name == UNHARMED,
                secret=KEY,
                environment={"STUB_KEY": KEY},
                prepare=functools.partial(serve, damage, after, when == "at models"),
                seconds=90,
            )
