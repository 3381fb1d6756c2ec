"""A journal of answers: one line each, so that a run that was cut goes on without asking again.

A line holds a hash of the request, the answer and when it came; another says that a run has ended. What was answered
before that is used again only on request. Prompts are not in it, nor is an answer that repeats the key.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairdraw._core import foreign

JSON = dict[str, Any]  # Any: JSON
_FINISHED = "finished"


@dataclass(frozen=True)
class Reply:
    """What came back: parts of a stream, or one part.

    Args:
        refused: Why the server did not take the request; empty if it did.
    """

    parts: tuple[JSON, ...] = ()
    refused: str = ""


class Journal:
    """Answers by request. Equal requests are answered in their order, each by an answer of its own.

    Args:
        path: `None` for no journal.
        uses_all: Answers of runs that came to their end are used, too.

    Raises:
        ValueError: If the file is something else.
    """

    def __init__(self, path: Path | None, *, uses_all: bool = False) -> None:
        self._path, self._lock = path, threading.Lock()
        self._known: dict[str, deque[Reply]] = defaultdict(deque)
        self._times, self._num_left_out = list[float](), 0
        for entry in _entries(path) if path is not None and path.exists() else ():
            if entry[0] != _FINISHED:
                key, parts, refused, came = entry
                self._known[key].append(Reply(tuple(parts), refused))
                self._times.append(came)
            elif not uses_all:
                self._num_left_out += len(self._times)
                self._known.clear()
                self._times.clear()

    @property
    def old(self) -> str:
        """Return how many answers were not given in this run, and how old they are; empty if there are none."""
        if not self._times:
            return ""
        began = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(min(self._times)))
        hours = max(0.0, time.time() - min(self._times)) / 3600  # a clock may have been set back since
        return f"up to {len(self._times)} answers are old ones of {self._path}, from {began} on ({hours:.1f} hours ago)"

    def about(self) -> list[str]:
        """Return what the header says."""
        left_out = f"{self._num_left_out} answers of finished runs in {self._path} are not used (--old-answers all)"
        return [f"journal: {self.old}"] * bool(self.old) + [f"journal: {left_out}"] * bool(self._num_left_out)

    def known(self, request: object) -> Reply | None:
        """Return the next known answer to this request; `None` if there is none left."""
        with self._lock:
            replies = self._known[_key(request)]
            return replies.popleft() if replies else None

    def reply(self, request: object, ask: Callable[[], Reply]) -> Reply:
        """Return the next known answer to this request, or a new one, which is written."""
        if self._path is None:
            return ask()
        if (known := self.known(request)) is not None:
            return known
        found = ask()
        line = json.dumps([_key(request), found.parts, found.refused, round(time.time())])
        if not foreign.repeats_secret(line):
            with self._lock:
                _append(self._path, line)
        return found


def finish(path: Path) -> None:
    """Write that the run has ended."""
    _append(path, json.dumps([_FINISHED, round(time.time())]))


def _append(path: Path, line: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(line + "\n")


def _entries(path: Path) -> Iterator[list[Any]]:  # Any: JSON
    """Yield what the lines hold; one that was cut when a run was killed is left out."""
    for number, line in enumerate(path.read_bytes().splitlines()):
        try:
            entry = foreign.read_json(line)
        except ValueError:
            entry = None
        if isinstance(entry, list) and (len(entry) == 4 or entry[:1] == [_FINISHED]):
            yield entry
        elif number == 0:
            raise ValueError(f"{path} is no journal of answers. Name another file")


def _key(request: Any) -> str:  # Any: JSON
    return hashlib.blake2b(json.dumps(request, sort_keys=True).encode(), digest_size=16).hexdigest()
