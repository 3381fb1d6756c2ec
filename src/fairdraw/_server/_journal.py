"""A journal of answers: one line each, so that a run that was cut goes on without asking again.

A line holds a hash of the request and the answer. Prompts and keys are not in it.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections import defaultdict, deque
from typing import TYPE_CHECKING, Any

from fairdraw._server._transport import Reply

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Journal:
    """Answers by request. Equal requests are answered in their order, each by an answer of its own.

    Args:
        path: `None` for no journal.
    """

    def __init__(self, path: Path | None) -> None:
        self._path, self._lock = path, threading.Lock()
        self._known: dict[str, deque[Reply]] = defaultdict(deque)
        for line in path.read_text(encoding="utf-8").splitlines() if path is not None and path.exists() else ():
            self._read(line)

    def _read(self, line: str) -> None:
        try:
            key, parts, refused = json.loads(line)
        except ValueError:  # the run was killed while it wrote
            return
        self._known[key].append(Reply(tuple(parts), refused))

    def reply(self, request: object, ask: Callable[[], Reply]) -> Reply:
        """The next known answer to this request, or a new one, which is written."""
        if self._path is None:
            return ask()
        key = _key(request)
        with self._lock:
            if self._known[key]:
                return self._known[key].popleft()
        found = ask()
        with self._lock, self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps([key, found.parts, found.refused]) + "\n")
        return found


def _key(request: Any) -> str:  # Any: JSON
    return hashlib.blake2b(json.dumps(request, sort_keys=True).encode(), digest_size=16).hexdigest()
