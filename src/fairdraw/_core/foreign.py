"""Text and JSON that somebody else wrote: a sampler, a server, a file. It is shown and read, and never obeyed.

A terminal obeys control characters, a line break forges a line, and a server may repeat the key that was sent to it.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, unquote

_SHORTEST_SECRET = 8
"""Characters. What is shorter is a placeholder, as vLLM's `EMPTY`, and may occur in any text."""

_MOST_LEVELS = 64
"""Levels of nested JSON. The deepest that the suite writes, a case, has about ten."""

_ESCAPE = re.compile(r"\\u([0-9a-fA-F]{4})")
_NO_LETTERS = re.compile(r"[\W_]+")
_secrets: dict[str, str] = {}


def hide(secret: str, name: str) -> None:
    """Show `name` in the place of a secret from now on, in everything that this process shows."""
    if len(secret) >= _SHORTEST_SECRET:
        _secrets[secret] = name


def repeats_secret(text: str) -> bool:
    """Whether a text holds a hidden secret: as it is, encoded, or in pieces between quotes, blanks and commas."""
    views = (text, unquote(text), _ESCAPE.sub(lambda found: chr(int(found[1], 16)), text)) if _secrets else ()
    return any(_is_in(view, secret) for view in views for secret in _secrets)


def _is_in(text: str, secret: str) -> bool:
    letters = _letters(secret)
    in_pieces = len(letters) >= _SHORTEST_SECRET and letters in _letters(text)
    return in_pieces or any(form in text for form in _forms(secret))


def _letters(text: str) -> str:
    return _NO_LETTERS.sub("", text)


def _forms(secret: str) -> Iterator[str]:
    """Yield a secret as it is, and as it stands in URLs, JSON, hexadecimal and base64, wherever that begins."""
    data = secret.encode(errors="surrogatepass")
    yield from (secret, quote(secret, safe="", errors="replace"), json.dumps(secret)[1:-1], data.hex())
    for shift in range(3):  # base64 writes three bytes as four letters; those at the ends hold bits of neighbours
        text = base64.b64encode(b"\0" * shift + data).decode()
        inner = text[-(-8 * shift // 6) : 8 * (shift + len(data)) // 6]
        yield from (inner, inner.replace("+", "-").replace("/", "_"))


def printable(text: str) -> str:
    r"""Return a text without secrets, with what a terminal would obey, or cannot show, as an escape. Lines stay.

    Example:
        >>> printable("a\x1b[2Jb\u202ec\ud800")
        'a\\x1b[2Jb\\u202ec\\ud800'
    """
    for secret, name in _secrets.items() if repeats_secret(text) else ():
        for form in _forms(secret):
            text = text.replace(form, f"${name}")
    if repeats_secret(text):
        return f"(a text that repeats the key in ${', $'.join(_secrets.values())})"
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def one_line(text: str, most: int | None = None) -> str:
    r"""Return a text as `printable` does, on one line of at most `most` characters.

    Example:
        >>> one_line("toy\nGREEN: all passed", 8)
        'toy\\nGRE ...'
    """
    line = printable(text).replace("\n", "\\n")
    return line if most is None or len(line) <= most else line[:most] + " ..."


def make_printable(data: object, *, lines: tuple[str, ...] = ()) -> None:
    """Replace the texts of a dataclass by what may be shown: one line each, but for the fields in `lines`."""
    for name, value in vars(data).items():
        shown = printable if name in lines else one_line
        if isinstance(value, tuple):
            value = tuple(shown(one) if type(one) is str else one for one in value)
        object.__setattr__(data, name, shown(value) if type(value) is str else value)  # it may be frozen


def read_json(text: str | bytes) -> Any:  # Any: JSON
    """Return the value of some JSON.

    Raises:
        ValueError: If it is no JSON, or deeper than whatever goes on with it may be.
    """
    try:
        found = json.loads(text)
    except RecursionError:
        found = None
        depth = _MOST_LEVELS + 1
    else:
        depth, level = 0, [found] if isinstance(found, (dict, list)) else []
        while level and depth <= _MOST_LEVELS:
            depth += 1
            nodes = (node.values() if isinstance(node, dict) else node for node in level)
            level = [child for node in nodes for child in node if isinstance(child, (dict, list))]
    if depth > _MOST_LEVELS:
        raise ValueError(f"it is nested more than {_MOST_LEVELS} levels deep")
    return found
