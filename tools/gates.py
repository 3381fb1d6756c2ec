"""Shows that every gate of CI can fail: puts defects into a copy of the tree, runs the gate, and reads what it says.

    python tools/gates.py                  # those that take seconds; a stage of .ci/run
    python tools/gates.py --all            # all of them, some ten minutes
    python tools/gates.py docs pyright     # these; gates.toml has all but the stages of .ci/run

A gate holds if it ends with another exit code than 0 and names each defect. Defects of one gate are in the tree at
once, so one run shows, for example, that a type checker reads every folder.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[1]
SECONDS = 500
"""After which a gate counts as one that does not answer."""
_AT_ONCE = 2
"""Gates that run beside each other, each in a copy of the tree: most of a gate is one process that imports."""
_WORDS = {
    # Without a look at whether the environment is older than the files that it is made of.
    "make": "make --old-file=.venv/.ready",
    "pytest": ".venv/bin/python -m pytest -p no:cacheprovider",
    # The one test that a gate brings, run as `make tests` runs all.
    "tests": "{pytest} tests/run/test_gate.py -n 2 --dist worksteal --sampler rejection/torch --fairdraw-profile=smoke",
}


@dataclass(frozen=True)
class Defect:
    """A change of one file, and what the gate must say about it.

    Args:
        text: Stands at the end of the file, or in the place of `old`.
        says: A regular expression of the gate's output.
        old: The first place of it is replaced.
    """

    path: str
    text: str
    says: str
    old: str = ""

    def put_into(self, tree: Path) -> None:
        """Change the file; one that does not exist is made.

        Raises:
            ValueError: If `old` does not stand in it.
        """
        path = tree / self.path
        path.parent.mkdir(parents=True, exist_ok=True)
        before = path.read_text(encoding="utf-8") if path.exists() else ""
        if self.old not in before:
            raise ValueError(f"Defect: old={self.old!r}, but {self.path} does not have it. Choose another place.")
        after = before.replace(self.old, self.text, 1) if self.old else f"{before}\n\n{self.text}\n"
        path.write_text(after, encoding="utf-8")


@dataclass(frozen=True)
class Gate:
    """A command of CI, and defects that it must see.

    Args:
        is_slow: It takes longer than half a minute: run by `--all`, or by its name.
    """

    name: str
    command: str
    defects: tuple[Defect, ...]
    is_slow: bool = False

    def problems(self, tree: Path) -> Iterator[str]:
        """Yield what the gate did not see; nothing if it holds."""
        paths = {tree / one.path for one in self.defects}
        before = {path: path.read_text(encoding="utf-8") for path in paths if path.exists()}
        for defect in self.defects:
            defect.put_into(tree)
        try:
            code, output = _run(self.command, tree)
        finally:
            for path in paths:
                path.unlink(missing_ok=True)
            for path, text in before.items():
                path.write_text(text, encoding="utf-8")
        unseen = [one for one in self.defects if not re.search(one.says, output)]
        if code == 0:
            yield "ended with exit code 0"
        yield from (f"did not say {one.says!r} of {one.path}" for one in unseen)
        if code == 0 or unseen:
            yield output[-3000:]


def _run(command: str, tree: Path) -> tuple[int | None, str]:
    """Exit code and output; without a code if it took too long."""
    path = os.pathsep.join([str(tree / "src"), str(tree / "engines" / "src"), str(tree)])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "NO_COLOR": "1", "COLUMNS": "200"}
    for name in ("FAIRDRAW_SITE", "PYTEST_ADDOPTS", "MAKEFLAGS", "MAKELEVEL"):
        environment.pop(name, None)
    words = ["bash", "-c", command]
    try:
        done = subprocess.run(
            words, cwd=tree, env=environment, capture_output=True, text=True, check=False, timeout=SECONDS
        )
    except subprocess.TimeoutExpired as late:
        return None, str(late)
    return done.returncode, done.stdout + done.stderr


def copied(folder: Path) -> Path:
    """Copy what git knows or would add, with the environment of this tree; git knows the copy, too."""
    tree = folder / "tree"
    tree.mkdir(parents=True)
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True).stdout
    packed = subprocess.run(["tar", "c", "--null", "-T", "-"], cwd=ROOT, input=names, check=True, capture_output=True)
    subprocess.run(["tar", "x"], cwd=tree, input=packed.stdout, check=True)
    if not (tree / ".venv").exists():
        (tree / ".venv").symlink_to(ROOT / ".venv")
    subprocess.run("git init -q && git add -A", shell=True, cwd=tree, check=True)
    return tree


def _read() -> Iterator[Gate]:
    """Yield the gates of gates.toml, and the stages of .ci/run with a `make` that fails for one target."""
    for row in tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))["gate"]:
        command = row["command"]
        for word in ("tests", "pytest", "make"):
            command = command.replace(f"{{{word}}}", _WORDS[word])
        defects = (defect for one in row["defect"] for defect in _defects(**one))
        yield Gate(row["name"], command, tuple(defects), row.get("is_slow", False))
    for target in (".venv/.ready", "lint", "docs", "tests", "gates", "perf", "check"):
        text = f'#!/bin/sh\ncase " $* " in *" {target} "*) exit 3;; esac'
        says = r"(?s)=== [\w-]+ FAILED with exit code 3.*total"
        command = "touch .cache/bin/chromium; chmod +x .cache/bin/*; PATH=$PWD/.cache/bin:$PATH .ci/run"
        yield Gate(f".ci/run: {target}", command, (Defect(".cache/bin/make", text, says),))


def _defects(paths: list[str], text: str, says: str, old: str = "", times: int = 1) -> Iterator[Defect]:
    """Yield a defect per path; the last line of the text stands there so many times."""
    last = text.splitlines()[-1:] * (times - 1)
    for path in paths:
        yield Defect(path, "\n".join([text, *last]), says.replace("{path}", re.escape(path)), old)


GATES = tuple(_read())


def _tried(gate: Gate, trees: SimpleQueue[Path]) -> tuple[list[str], str]:
    """Run a gate in a tree that no other gate has now. Return what it did not see, and a line about it."""
    tree, began = trees.get(), time.monotonic()
    problems = list(gate.problems(tree))
    trees.put(tree)
    return problems, f"{'CANNOT FAIL' if problems else 'fails'}  {gate.name} ({time.monotonic() - began:.0f} s)"


def main() -> int:
    """Run the chosen gates; 1 if one of them did not see its defect."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="gates whose name begins so")
    parser.add_argument("--all", action="store_true", help="the slow ones, too")
    options = parser.parse_args()
    named = tuple(options.names)
    chosen = [gate for gate in GATES if (gate.name.startswith(named) if named else options.all or not gate.is_slow)]
    failed = 0 if chosen else 1
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(_AT_ONCE) as threads:
        trees = SimpleQueue[Path]()
        for number in range(_AT_ONCE):
            trees.put(copied(Path(folder) / str(number)))
        for problems, line in threads.map(lambda gate: _tried(gate, trees), chosen):
            failed += bool(problems)
            print(line, *(f"    {line}" for line in "\n".join(problems).splitlines()), sep="\n", flush=True)
    print(f"{len(chosen) - failed} of {len(chosen)} gates fail when they should")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
