"""Run attacks on the product, and hold its rules against what happens (rules.py).

    python tools/attacks                       # all of them, on two cores
    python tools/attacks signals files         # these groups
    python tools/attacks --sample 60           # so many, the same ones at each call: a stage of .ci/run
    python tools/attacks --name 'os._exit'     # those whose name has it, with what they print

Each attack runs in a process forked from this one, which has loaded torch and the checks once. The process then does
what a fresh one does: it parses its command line, runs, and leaves by Python's own exit.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

from engine.process import end_group

from attacks.rules import Attack, Outcome, broken_rules

if TYPE_CHECKING:
    from collections.abc import Sequence


def gathered() -> list[Attack]:
    """All attacks, by group."""
    from attacks import files, options, servers, signals, verdicts

    groups = (verdicts, signals, options, files, servers)
    return [attack for group in groups for attack in group.attacks()]


def chosen(options: argparse.Namespace) -> list[Attack]:
    """Those that were asked for; a sample has some of every group."""
    found = [one for one in gathered() if not options.groups or one.group in options.groups]
    found = [one for one in found if options.name in str(one)]
    if options.sample is not None:
        found.sort(key=lambda one: blake2b(str(one).encode()).digest())
    return found[: options.sample]


class Running:
    """A process under attack."""

    def __init__(self, attack: Attack, folder: Path) -> None:
        self.attack, self.folder, self.began = attack, folder, time.monotonic()
        for name, content in attack.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content)
        self.pid = os.fork()

    def become(self) -> int:
        """In the process: take the attack's place in the world, run, and return the exit code."""
        os.setsid()
        os.closerange(3, 100)  # what the caller of this program holds is not the attack's
        os.chdir(self.folder)
        for number, name in enumerate(("/dev/null", "stdout", "stderr")):
            kept = os.open(name, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            os.dup2(kept, number)
            os.close(kept)
        path = [str(self.folder), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        os.environ.update(
            {"ATTACKED": str(os.getpid()), "PYTHONPATH": os.pathsep.join(path), **self.attack.environment}
        )
        sys.path.insert(0, str(self.folder))
        made = None if self.attack.prepare is None else self.attack.prepare()
        words = [word.replace("ADDRESS", str(made)) for word in self.attack.words]
        if words[0] == "pytest":
            import pytest

            return int(pytest.main([*words[1:], "-p", "no:xdist", "-p", "no:benchmark"]))
        from fairdraw._cli.main import main

        sys.argv = ["fairdraw", *words]
        return int(main(words, prog_name="fairdraw") or 0)

    def ended(self) -> Outcome | None:
        """How it ended; `None` while it runs."""
        done, status, used = os.wait4(self.pid, os.WNOHANG)
        is_late = time.monotonic() - self.began > self.attack.seconds
        if not done and not is_late:
            return None
        end_group(self.pid)  # with what the process left behind: its session is a group of its own
        if not done:
            _, _, used = os.wait4(self.pid, 0)
        texts = [(self.folder / name).read_text(errors="replace") for name in ("stdout", "stderr")]
        code = os.waitstatus_to_exitcode(status) if done else None
        return Outcome(code, used.ru_maxrss // 1024, *texts, self.folder)


def load() -> None:
    """Import what every attack needs, once."""
    import torch

    from fairdraw._cli import check  # noqa: F401  what `check` imports
    from fairdraw._run.loading import all_checks, load_sampler

    torch.set_num_threads(1)
    load_sampler("sampling")
    all_checks()


def main() -> int:
    """Run the chosen attacks; 1 if a rule was broken. In a process under attack: run that one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("groups", nargs="*")
    parser.add_argument("--sample", type=int)
    parser.add_argument("--name", default="")
    parser.add_argument("-j", "--jobs", type=int, default=2)
    options = parser.parse_args()
    os.environ.update({"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "100"})
    load()
    waiting, base, began = chosen(options), Path(tempfile.mkdtemp()), time.monotonic()
    total, running, broken = len(waiting), list[Running](), Counter[str]()
    while waiting or running:
        if waiting and len(running) < options.jobs:
            folder = base / str(len(waiting))
            folder.mkdir()
            running.append(Running(waiting.pop(0), folder))
            if not running[-1].pid:
                return running[-1].become()  # and so by Python's own exit
        for one in list(running):
            end = one.ended()
            if end is not None:
                running.remove(one)
                problems = broken_rules(one.attack, end)
                if problems and one.attack.known:
                    print(f"{one.attack}: known limit: {one.attack.known}", flush=True)
                    problems = []
                broken[one.attack.group] += bool(problems)
                say(one.attack, end, problems, verbose=bool(options.name))
                shutil.rmtree(one.folder, ignore_errors=True)
        time.sleep(0.01)
    shutil.rmtree(base, ignore_errors=True)
    by_group = ", ".join(f"{count} of {group}" for group, count in broken.items() if count)
    print(f"{total} attacks, {time.monotonic() - began:.0f} s; broken rules: {broken.total()}  {by_group}")
    return int(broken.total() > 0 or not total)


def say(attack: Attack, end: Outcome, problems: Sequence[str], *, verbose: bool) -> None:
    """Print what was broken, and with `verbose` everything."""
    if problems or verbose:
        print(f"{attack}  [exit code {end.code}, {end.megabytes} MB]  {' '.join(attack.words)}", flush=True)
    print("".join(f"    {line}\n" for problem in problems for line in problem.splitlines()), end="", flush=True)
    if verbose:
        print(end.out, end.err, sep="\n", flush=True)
