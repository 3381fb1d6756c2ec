"""Runs of `python -m MODULE ...` that are forked from a process which has imported what all of them import.

A run has its own environment, folder, files and signals, and ends as Python ends: it is a child of the server, and else
like a fresh process. What a fresh one imports, and that it starts at all, is what other tests are about.
"""

from __future__ import annotations

import json
import os
import runpy
import select
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

SECONDS = 300
"""After which a run counts as one that hangs, and is killed."""


class ForkServer:
    """The server's client: starts it, orders runs, and ends it."""

    def __init__(self) -> None:
        command = [sys.executable, __file__]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(
        self, words: Sequence[str], environment: Mapping[str, str], interrupt: signal.Handlers = signal.SIG_DFL
    ) -> subprocess.CompletedProcess[str]:
        """Run `python -m WORDS` in this folder; files `stdout` and `stderr` have what it prints.

        A pipe would stay open for as long as a child that the run forked.

        Args:
            interrupt: What it does at SIGINT; a background process of a shell ignores it.
        """
        order = {"words": words, "environment": environment, "folder": str(Path.cwd()), "interrupt": int(interrupt)}
        print(json.dumps(order), file=self._process.stdin, flush=True)
        exit_code = int(self._process.stdout.readline())
        return subprocess.CompletedProcess(words, exit_code, Path("stdout").read_text(), Path("stderr").read_text())

    def end(self) -> None:
        self._process.communicate()


def _serve() -> None:
    """Fork a run for every order, and print its exit code. In the run itself, return when it is over."""
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            return _run(**json.loads(line))
        print(_exit_code_of(pid), flush=True)


def _run(words: Sequence[str], environment: Mapping[str, str], folder: str, interrupt: int) -> None:
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    for descriptor, (name, flags) in enumerate([(os.devnull, os.O_RDONLY), *((name, _WRITE) for name in _PRINTED)]):
        os.dup2(os.open(name, flags), descriptor)
    # As Python finds them: it has a handler of its own where SIGINT is not ignored.
    signal.signal(signal.SIGINT, signal.SIG_IGN if interrupt == signal.SIG_IGN else signal.default_int_handler)
    sys.path[:1] = [folder, *environment["PYTHONPATH"].split(os.pathsep)]
    sys.argv = list(words)
    runpy.run_module(words[0], run_name="__main__", alter_sys=True)


_PRINTED, _WRITE = ("stdout", "stderr"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC


def _exit_code_of(pid: int) -> int:
    """Wait for a run; the number of the signal that ended it is negative."""
    if not select.select([os.pidfd_open(pid)], [], [], SECONDS)[0]:
        os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _import_all() -> Any:  # Any: nobody reads it
    import hypothesis
    import torch

    import fairdraw._cli.main
    from fairdraw._run.loading import all_checks, load_sampler

    return hypothesis, torch, fairdraw, load_sampler("sampling"), all_checks()


if __name__ == "__main__":
    _import_all()
    _serve()
