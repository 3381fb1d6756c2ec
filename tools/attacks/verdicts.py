"""Samplers that do more than answer, texts that are more than words, and plugins that leave checks out."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

from attacks.rules import Attack

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_READ = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
LETHAL: dict[str, str] = _READ["lethal"]
"""What ends or breaks a call: the run is never green."""
HARMLESS: dict[str, str] = _READ["harmless"]
"""What changes the process around a right answer: the run is not red, and what it says holds for all checks."""
LEFT_OUT: dict[str, str] = _READ["left_out"]
"""Files conftest.py that leave out one of two checks."""
SAMPLER: str = _READ["sampler"]["text"]

TEXTS = {
    "an escape": "\x1b[2J\x1b[1;1HGREEN",
    "a line": "right\nGREEN: 2 property checks passed",
    "a return": "right\rGREEN: 2 property checks passed",
    "a C1 control": "\x9b2J",
    "a reversed text": "\u202eneerg\u2066",
    "a separator": "right\u2028GREEN: all",
    "half a character": "\ud800",
    "a zero": "a\0b",
    "markup": "[red]no[/red] [/] [link=x]",
    "HTML": "<script>alert(1)</script></title>",
    "XML": "]]><![CDATA[ &bogus;",
    "a long text": "x" * 300_000,
    "nothing": "",
    "blanks": "   ",
    "a format": "%s {0} {text} $HOME",
}

WAYS = {"-n 0": ("-n", "0"), "-n 1": ("-n", "1"), "pytest": ()}
CODES, FILES = ("SAM101", "SAM102"), ("run.jsonl", "run.html")


def words(way: str, *options: str, spec: str = "victim:make") -> list[str]:
    """A run of two fast checks; options as `fairdraw check` has them."""
    options = (*options, "--profile=smoke", f"--json={FILES[0]}", f"--html={FILES[1]}")
    if way != "pytest":
        chosen = [word for code in CODES for word in ("-k", code)]
        return ["check", spec, *chosen, *WAYS[way], *options]
    ours = [f"--fairdraw-{option.removeprefix('--')}" for option in options]
    suite = ["--pyargs", "fairdraw.properties.test_sampling", "-p", "fairdraw.pytest_plugin", "--import-mode=importlib"]
    return ["pytest", *suite, "-pno:cacheprovider", "-k", " or ".join(CODES), "--sampler", spec, *ours]


def victim(
    act: str = "pass", when: str = "calls == 30", at_start: str = "pass", name: str = "'v'", text: str = ""
) -> dict[str, str]:
    """The sampler's file; in its 30th call, in the second check, it acts."""
    made = SAMPLER.format(act=act, when=when, at_start=at_start, name=name, text=text)
    return {"victim.py": made.replace("PID", "int(os.environ['ATTACKED'])"), "pytest.ini": "[pytest]\n"}


def attacks() -> Iterator[Attack]:
    """Yield all of this group."""
    for way in WAYS:
        limit = "--call-timeout=3"
        yield Attack("verdicts", f"no attack, {way}", words(way), victim(), may_be_green=True, must_be_green=True)
        for name, act in LETHAL.items():
            known = "nothing in the process outlives it; -n 1 does" if "_exit(0) of C" in name and way != "-n 1" else ""
            given = words(way, limit), victim(act)
            yield Attack("verdicts", f"{name}, {way}", *given, may_die=way != "-n 1", known=known)
        for name, act in HARMLESS.items():
            yield _harmless(f"{name}, {way}", words(way), victim(act), prints=True)
        for name, text in TEXTS.items():
            yield _harmless(f"{name} as a name, {way}", words(way), victim(name="TEXT", text=text))
            error = victim("raise ValueError(TEXT)", text=text)
            yield Attack("verdicts", f"{name} in an error, {way}", words(way), error)
    for moment in ("at_start", "when"):
        for name in ("os._exit(0)", "SystemExit(0)", "KeyboardInterrupt", "BaseException", "pytest.skip"):
            changes = {"at_start": "act()"} if moment == "at_start" else {"when": "calls == 1"}
            files = victim(LETHAL[name], **changes)
            for way in ("-n 0", "pytest"):
                yield Attack("verdicts", f"{name} {moment}, {way}", words(way, "--call-timeout=3"), files, may_die=True)
    for name, text in LEFT_OUT.items():
        yield _narrowed(name, [], {"conftest.py": text})
    for option in ("--maxfail=1", "-x", "--deselect=x", "--sw", "--lf", "--ff", "--setup-only"):
        yield _narrowed(option, [option], {})


def _harmless(name: str, words: list[str], files: Mapping[str, str], *, prints: bool = False) -> Attack:
    return Attack("verdicts", name, words, files, may_be_green=True, must_not_be_red=True, prints=prints)


def _narrowed(name: str, options: list[str], files: Mapping[str, str]) -> Attack:
    """Run two checks under pytest, of which something leaves out one."""
    caches = options in (["--sw"], ["--lf"], ["--ff"])
    run = [word for word in (*words("pytest"), *options) if not caches or word != "-pno:cacheprovider"]
    return Attack("verdicts", name, run, {**victim(), **files}, may_be_green=True, green_says=r"\b1 of 2 checks")
