"""Files that are something else than what they are given for: refused by one sentence, or harmless."""

from __future__ import annotations

import functools
import json
import os
from typing import TYPE_CHECKING, Any

from attacks.rules import Attack
from attacks.verdicts import victim, words

if TYPE_CHECKING:
    from collections.abc import Iterator

DEEP = "[" * 100_000 + "]" * 100_000
TEXTS: dict[str, str | bytes] = {
    "nothing": "",
    "a blank": " ",
    "a zero": b"\0",
    "no text": b"\xff\xfe\x00\xd8",
    "a byte order mark": b"\xef\xbb\xbf{}",
    "UTF-16": "{}".encode("utf-16"),
    "half a character": '{"format": "\\ud800"}',
    "lists in lists": DEEP,
    "objects in objects": '{"a":' * 50_000 + "1" + "}" * 50_000,
    "tables in tables": "a = " + "[" * 20_000 + "]" * 20_000,
    "a long number": '{"seed": ' + "9" * 10_000 + "}",
    "NaN": '{"seed": NaN, "format": Infinity}',
    "a list": "[]",
    "a string": '"x"',
    "null": "null",
    "true": "true",
    "a number": "1e999",
    "an escape": "\x1b[2J\x1b]0;x\x07",
    "a line": "x\nGREEN: 2 property checks passed\n",
    "two of a key": '{"format": 1, "format": 2}',
    "a long line": "x" * 3_000_000,
    "HTML": "<html></html>",
}
PLACES = ("a folder", "a loop", "no such file", "/dev/null", "a pipe", "/proc/self/mem")

BASELINE: dict[str, Any] = {"format": "fairdraw-baseline", "sampler": "victim:make", "failed": {"SAM101": ""}}
CRASH: dict[str, Any] = {
    "format": "fairdraw-crash",
    "format_version": 1,
    "suite_version": "0.1.0",
    "sampler": "sampling",
    "reference": None,
    "check": "SAM101",
    "contract": "sampling",
    "case": {"vocab_size": 3, "requests": [{}], "seed": 1},
    "seed": 7,
    "effect": "request 0 emitted 3",
}
JUNK: tuple[Any, ...] = (
    *(None, [], {}, "", "\x1b[2J\nGREEN: x", -1, 1e308, True),
    *("x" * 100_000, [[[]]], {"a": {}}, 10**400),
)
TARGETS = {
    "--xfails": (("-n 0", "pytest"), "x.toml"),
    "--baseline": (("-n 0", "pytest"), "x.json"),
    "--ledger": (("-n 0",), "x.json"),
    "--prompts": (("-n 0",), "x.txt"),
    "--journal": (("-n 0",), "x.jsonl"),
    "replay": (("replay",), "x.json"),
}
"""What is read, by whom."""


def attacks() -> Iterator[Attack]:
    """Yield all of this group."""
    for target, (ways, file) in TARGETS.items():
        for way in ways:
            for name, content in TEXTS.items():
                yield _attack(f"{target} is {name}, {way}", target, way, {file: content}, file)
            for place in PLACES:
                yield _attack(f"{target} is {place}, {way}", target, way, {}, place)
    for target, whole, way in (("--baseline", BASELINE, "-n 0"), ("replay", CRASH, "replay")):
        for key in whole:
            for number, junk in enumerate(JUNK):
                changed = json.dumps({**whole, key: junk})
                yield _attack(f"{target} with {key} of junk {number}", target, way, {"x.json": changed}, "x.json")
            missing = json.dumps({name: value for name, value in whole.items() if name != key})
            yield _attack(f"{target} without {key}", target, way, {"x.json": missing}, "x.json")


def _attack(name: str, target: str, way: str, files: dict[str, str | bytes], place: str) -> Attack:
    """A correct sampler, or a replay of it, with such a file."""
    known = "a pipe that nobody writes to is waited for, as `cat` does" if place == "a pipe" else ""
    is_replay = target == "replay"
    run = ["replay", place, "--sampler", "victim:make"] if is_replay else words(way, f"{target}={place}")
    more = {"checks": 0} if is_replay else {}
    prepare = functools.partial(_make, place)
    return Attack("files", name, run, {**victim(), **files}, may_be_green=True, prepare=prepare, known=known, **more)


def _make(place: str) -> None:
    """Make a place that is no file."""
    if place == "a folder":
        os.mkdir(place)
    elif place == "a loop":
        os.symlink(place, place)
    elif place == "a pipe":  # that nobody writes to
        os.mkfifo(place)
