"""What an attack is, and the rules that hold for all of them. No expected text is recorded."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import quote

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

CODES = {0, 1, 2, 3, 10, 11, 130}
"""Documented exit codes; pytest has 5 for 3, and 4 for usage."""
MOST_MEGABYTES = 900
"""Of the whole process, of which torch has half."""
_VERDICT = re.compile(r"^((?:GREEN|RED|INCOMPLETE|NOTHING MEASURED|NOT GREEN)\b[^\n]*)$", re.M)
_RAW = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2028\u2029\u2066-\u2069]")
_RUN = re.compile(r"^run (\d+) of (\d+) checks", re.M)
_PLACES = ("run.jsonl", "run.html")


@dataclass(frozen=True)
class Attack:
    """A run of the product under attack.

    Args:
        words: Of the command line, `check` or `pytest` first.
        files: By name, in the folder of the run.
        may_be_green: A run of everything that passed may say so. Otherwise exit code 0 is a false green.
        must_not_be_red: The sampler is right.
        must_be_green: There is no attack: shows that the others meet what they attack.
        checks: How many checks a run judges that leaves none out; 0 for commands that have no verdict.
        green_says: What a green verdict must say, as it left something out.
        secret: Stands in no output and in no file that the run wrote.
        prepare: Called in the process before it starts; what it returns stands in the words for ADDRESS.
        may_die: It may also end by a signal, as the attack kills it.
        prints: The sampler prints what it likes.
        known: Why a broken rule is a documented limit (docs/what-a-pass-means.md); empty if it is none.
        seconds: A bound for hangs, on a busy machine.
    """

    group: str
    name: str
    words: Sequence[str]
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    may_be_green: bool = False
    must_not_be_red: bool = False
    must_be_green: bool = False
    checks: int = 2
    green_says: str = ""
    secret: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    prepare: Callable[[], object] | None = None
    may_die: bool = False
    prints: bool = False
    known: str = ""
    seconds: float = 240.0

    def __str__(self) -> str:
        return f"{self.group}: {self.name}"


@dataclass(frozen=True)
class Outcome:
    """How it ended.

    Args:
        code: Negative for a signal; `None` if it had to be ended after the bound.
        megabytes: The most that it had of memory.
    """

    code: int | None
    megabytes: int
    out: str
    err: str
    folder: Path


def broken_rules(attack: Attack, end: Outcome) -> list[str]:
    """What should not have happened; empty if all rules hold."""
    text, found = end.out + end.err, []
    if end.code is None:
        return [f"it did not end within {attack.seconds:g} s"]
    if end.megabytes > MOST_MEGABYTES:
        found.append(f"it took {end.megabytes} MB of memory")
    ours = re.sub(r"PytestUnhandledThread.*?(?=\n\n|\Z)", "", text, flags=re.S)  # pytest shows a thread of the sampler
    if "Traceback (most recent call last)" in ours:
        found.append("a traceback: " + text.strip().splitlines()[-1][:200])
    if attack.secret:
        texts = [text, *_written(attack, end.folder)]
        found += [f"the secret is shown as {one}" for one in forms(attack.secret) if any(one in text for text in texts)]
    if not attack.prints and (raw := _RAW.search(text)):
        found.append(f"a raw control character: {text[max(0, raw.start() - 40) : raw.end() + 20]!r}")
    return found + (_of_verdict(attack, end) if attack.checks else _of_command(attack, end))


def _of_command(attack: Attack, end: Outcome) -> list[str]:
    if end.code in CODES and (end.code != 0 or attack.may_be_green):
        return []
    return [f"exit code {end.code}: {(end.out + end.err).strip()[-300:]}"]


def _of_verdict(attack: Attack, end: Outcome) -> list[str]:
    """The rules of a run that judges a sampler."""
    is_pytest, found = attack.words[0] == "pytest", []
    if end.code in (4, 2) and (end.code == 4) == is_pytest:
        said = [line for line in (end.err or end.out).splitlines() if re.match("(?i)(usage )?error: ", line)]
        return [] if len(said) == 1 else [f"refused by {len(said)} sentences: {end.err.strip()[-300:]}"]
    if end.code is not None and end.code < 0 and attack.may_die:
        return []
    if is_pytest and end.code == 2 and "Interrupt" in end.out + end.err:
        return []  # before there was a sampler: pytest says so itself
    verdicts = [match[1] for match in _VERDICT.finditer(end.out)]
    if not verdicts or (len(verdicts) > 1 and not attack.prints):
        found.append(f"{len(verdicts)} verdicts and exit code {end.code}: {(end.out + end.err).strip()[-300:]}")
    verdict = verdicts[-1] if verdicts else ""
    if end.code not in CODES | ({5} if is_pytest else set()):
        found.append(f"exit code {end.code}, which is not documented: {verdict}")
    if (end.code == 0) != verdict.startswith("GREEN") and end.code != 10:
        found.append(f"exit code {end.code} of {verdict!r}")
    if end.code == 0:
        found += _of_green(attack, end, verdict)
    if attack.must_be_green and end.code != 0:
        found.append(f"not green without an attack: {verdict}")
    if attack.must_not_be_red and end.code == 1:
        found.append(f"a correct sampler is red: {verdict}")
    return found + _of_files(attack, end, verdict)


def _of_green(attack: Attack, end: Outcome, verdict: str) -> list[str]:
    if not attack.may_be_green:
        return [f"FALSE GREEN: {verdict}"]
    counted = _RUN.search(end.out)
    says_fewer = re.search(r"\b(\d+) of (\d+) checks", verdict)
    is_said = says_fewer is not None and int(says_fewer[1]) < attack.checks
    left_out = is_said or (attack.green_says and re.search(attack.green_says, verdict))
    if not left_out and (counted is None or {int(counted[1]), int(counted[2])} != {attack.checks}):
        return [f"FALSE GREEN of {counted and counted[0]}, not {attack.checks} checks: {verdict}"]
    return []


def _of_files(attack: Attack, end: Outcome, verdict: str) -> list[str]:
    """Files that the run was to write say the same."""
    if not verdict or not all(any(word.endswith(name) for word in attack.words) for name in _PLACES):
        return []
    try:
        *_, last = (end.folder / "run.jsonl").read_text(encoding="utf-8").splitlines()
        page = (end.folder / "run.html").read_text(encoding="utf-8")
        said = json.loads(last)["exit_code"]
    except (OSError, ValueError, KeyError) as error:
        return [f"a report is lost: {type(error).__name__}: {error}"]
    shown = re.search(r'id="verdict">\s*(\w+)', page)
    same = said == (3 if end.code == 5 else end.code) and shown and verdict.startswith(shown[1])
    return [] if same else [f"files say {said} and {shown and shown[1]}, the terminal {end.code}: {verdict}"]


def in_json(text: str) -> str:
    """Every character as JSON may write it."""
    return "".join(f"\\u{ord(one):04x}" for one in text)


def forms(secret: str) -> tuple[str, ...]:
    """The secret, and what it looks like in an address, in a header and in JSON."""
    return secret, quote(secret, safe=""), base64.b64encode(secret.encode()).decode().rstrip("="), in_json(secret)


def _written(attack: Attack, folder: Path) -> list[str]:
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    found = (path for path in files if path.name not in attack.files and path.stat().st_size < 50_000_000)
    return [path.read_text(errors="replace") for path in found]
