"""Values of options that are no good, and outputs that cannot be written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attacks.rules import Attack
from attacks.verdicts import victim, words

if TYPE_CHECKING:
    from collections.abc import Iterator

NUMBERS = (
    *("nan", "inf", "-inf", "-1", "0", "-0.0", "1e308", "1e-308", "1e400", "9" * 400),
    *("", " ", "1_0", "\u0663", "0x10", "1e"),
)
OF_NUMBERS = {
    "--time-budget": ("-n 0", "pytest"),
    "--call-timeout": ("-n 0", "pytest"),
    "--seed": ("-n 0", "pytest"),
    "--timeout": ("-n 0",),
    "--rate": ("-n 0",),
}
PLACES = ("/dev/full", "/", ".", "absent/x", "/proc/x", "loop", "victim.py", "x" * 300, "a\nb", "\x1b[2J", "-", "")
OUTPUTS = {"--json": ("-n 0", "pytest"), "--html": ("-n 0", "pytest"), "--write-baseline": ("-n 0",)}
TWICE = (("x", "x"), ("x", "./x"), ("x", "link"))


def attacks() -> Iterator[Attack]:
    """Yield all of this group."""
    for option, ways in OF_NUMBERS.items():
        for value in NUMBERS:
            for way in ways:
                yield _attack(f"{option}={value[:20]!r}, {way}", words(way, f"{option}={value}"))
    for option, ways in OUTPUTS.items():
        for place in PLACES:
            for way in ways:
                yield _attack(f"{option}={place[:20]!r}, {way}", _with(way, option, place))
    for one, other in TWICE:
        for way in ("-n 0", "pytest"):
            run = [word for word in words(way) if "json" not in word and "html" not in word]
            prefix = "--fairdraw-" if way == "pytest" else "--"
            run += [f"{prefix}json={one}", f"{prefix}html={other}"]
            yield Attack("options", f"{one} and {other}, {way}", run, victim(), prepare=_link)


def _with(way: str, option: str, place: str) -> list[str]:
    """The run with another value of an option that it has, or with one more."""
    name = option if way != "pytest" else option.replace("--", "--fairdraw-")
    return [*(word for word in words(way) if not word.startswith(f"{name}=")), f"{name}={place}"]


def _attack(name: str, run: list[str]) -> Attack:
    is_lost = "/dev/full" in name  # what cannot be written is no success
    return Attack("options", name, run, victim(), may_be_green=not is_lost, prepare=_link)


def _link() -> None:
    import os

    os.symlink("loop", "loop")
    os.symlink("x", "link")
