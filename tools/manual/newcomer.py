"""Follow docs/first-verdict.md as a newcomer would, and write what happened into it.

    python tools/pages.py newcomer            # builds the wheel, starts from an empty folder, needs a package index

The page is the program: a block with the title of a file is written to it, a diff is applied, a command is run. What
the commands print is put beneath them, shortened, with the seconds that each took. Nothing else is typed, so a missing
step stops the script.

Tests follow this page and the recipes of docs/languages.md in the same way.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from records import ROOT, cpu_seconds

if TYPE_CHECKING:
    from collections.abc import Callable

PAGE = ROOT / "docs" / "first-verdict.md"
FENCE = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)
TOOK = re.compile(r"  # (\d+) s, (\d+) s of CPU$", flags=re.MULTILINE)
COMMAND = re.compile(r"^\$ (.*?)(?:  # \d+ s.*)?$", flags=re.MULTILINE)
MOST, HEAD, TAIL, WIDTH = 20, 6, 10, 120
"""What is printed of an output: so many lines, or these at its ends; so many characters of a line."""


def main() -> int:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "mine"
        folder.mkdir()
        shutil.copy(build_wheel(Path(scratch)), folder)
        started = time.perf_counter()
        text = Newcomer(folder, Shell(folder)).follow(PAGE.read_text(encoding="utf-8"))
        seconds = time.perf_counter() - started
    PAGE.write_text(stamped(text, seconds), encoding="utf-8")
    print(f"written: {PAGE.relative_to(ROOT)} ({seconds:.0f} s)")
    return 0


def build_wheel(scratch: Path) -> Path:
    """The wheel of the working tree; everything it is made of is copied first, so that no build folder is left."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        (scratch / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, scratch / "source" / name, follow_symlinks=False)
    build = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(scratch), "source"]
    subprocess.run(build, cwd=scratch, check=True, stdout=subprocess.DEVNULL)
    return next(scratch.glob("*.whl"))


class Stuck(Exception):
    """The page cannot be followed; it says where."""


@dataclass(frozen=True)
class Shell:
    """Runs commands in a folder; an environment that stands in its `venv` is active."""

    folder: Path

    def __call__(self, command: str) -> str:
        """What `command` prints.

        Raises:
            Stuck: Unless it ends well, or with 1, which is a red verdict.
        """
        kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
        kept["PATH"] = os.pathsep.join([str(self.folder / "venv" / "bin"), kept["PATH"]])
        words = ["bash", "-c", command]
        done = subprocess.run(words, cwd=self.folder, env=kept, capture_output=True, text=True, check=False)
        if done.returncode not in (0, 1):
            raise Stuck(f"{command}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout.replace(str(self.folder), ".")


@dataclass(frozen=True)
class Newcomer:
    """Somebody who does what a page says.

    Args:
        folder: Where the files of the page are written.
        run: A command to what it prints.
    """

    folder: Path
    run: Callable[[str], str]

    def follow(self, page: str) -> str:
        """Do every step; the page with what the commands printed.

        Raises:
            Stuck: If a step cannot be done.
        """
        return FENCE.sub(self._step, page)

    def _step(self, found: re.Match[str]) -> str:
        kind, title, body = found.groups()
        if kind == "console":
            return "```console\n" + "".join(self._type(command) for command in COMMAND.findall(body)) + "```"
        if kind == "diff":
            patch(self.folder / title, body)
        elif title:
            (self.folder / title).write_text(body, encoding="utf-8")
        return found[0]

    def _type(self, command: str) -> str:
        started, used = time.perf_counter(), cpu_seconds()
        printed = self.run(command)
        took = f"{time.perf_counter() - started:.0f} s, {cpu_seconds() - used:.0f} s of CPU"
        print(f"$ {command}  # {took}", flush=True)
        return f"$ {command}  # {took}\n{shortened(printed)}"


def patch(path: Path, diff: str) -> None:
    """Replace the lines of `diff` that begin with a blank or a minus by those that begin with a blank or a plus.

    Raises:
        Stuck: Unless `path` has the former at one place.
    """
    lines = diff.splitlines(keepends=True)
    old = "".join(line[1:] for line in lines if line[0] != "+")
    new = "".join(line[1:] for line in lines if line[0] != "-")
    text = path.read_text(encoding="utf-8")
    if text.count(old) != 1:
        raise Stuck(f"{path.name} has {text.count(old)} places like this one:\n{old}")
    path.write_text(text.replace(old, new), encoding="utf-8")


def shortened(text: str) -> str:
    """Both ends of a long text, and the beginnings of long lines."""
    lines = [line if len(line) <= WIDTH else f"{line[:WIDTH]}..." for line in text.strip("\n").splitlines()]
    if len(lines) > MOST:
        lines = [*lines[:HEAD], "...", *lines[-TAIL:]]
    return "".join(f"{line}\n" for line in lines)


def first_verdict(page: str) -> tuple[int, int]:
    """Return the seconds, and the seconds of CPU, from the first command to the first verdict."""
    times = TOOK.findall(page[: page.index("\nRED: ")])
    return sum(int(wall) for wall, _ in times), sum(int(cpu) for _, cpu in times)


def stamped(page: str, seconds: float) -> str:
    """The page with the line that says who followed it, when, and how long it took."""
    today, load = datetime.date.today().isoformat(), os.getloadavg()[2]
    machine = f"{platform.system()}, {os.cpu_count()} CPU cores with {load:.0f} processes on them, no GPU"
    wall, cpu = first_verdict(page)
    took = f"first verdict after {wall} s, {cpu} s of CPU. {seconds:.0f} s in all, installation included"
    line = f"Followed by `tools/pages.py newcomer` on {today} ({machine}): {took}."
    return re.sub(r"^Followed by `tools/pages\.py newcomer`.*$", line, page, flags=re.MULTILINE)
