"""A real server on loopback under `fairdraw check URL`: start, check, stop.

    python tools/servers llama.cpp                          # without and with speculation: what `make server` runs;
                                                            # both at a time, as there are cores
    python tools/servers mlx-draft --profile smoke          # this one
    python tools/servers all --record docs/records/servers.json

The model is a random Llama of two layers with 98 tokens, made on the spot. Defects that a server is known to have stand
in `known_defects.toml` beside this file, as strict expected failures. What follows is passed on to `fairdraw check`.
Exit code 0: all servers were judged, and fail as known or not at all; 2: a server does not run, and one sentence says
why; otherwise that of `fairdraw check`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matrix
from records import ROOT, cpu_seconds, python_path

from servers.defects import write_xfails
from servers.process import SERVERS, ServerError, running

if TYPE_CHECKING:
    from collections.abc import Sequence

    from servers.process import Running, Server

RECORD = ROOT / "docs" / "records" / "servers.json"
SECONDS = 1200
OK = (0, 10)
"""Green, also if a server returns nothing that distributions can be judged by."""


def main(arguments: list[str] | None = None) -> int:
    options, began = parsed(arguments), time.perf_counter()
    codes = []
    with ThreadPoolExecutor(options.jobs) as threads:
        found = {one: threads.submit(check, one, options.profile, options.rest) for one in options.servers}
        for server, future in found.items():
            try:
                code, report = future.result()
            except ServerError as error:
                print(error, file=sys.stderr)
                code, report = 2, None
            codes.append(0 if code in OK else code)
            if report is not None and options.record:
                from servers.page import row_of, write

                write(options.record, row_of(server, options.profile, report))
    if codes:
        print(f"{len(codes)} runs in {time.perf_counter() - began:.0f} s, {cpu_seconds():.0f} s of CPU", flush=True)
    return max(codes, default=0)


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Start a real server and check it by its address.")
    parser.add_argument("names", nargs="*", metavar="SERVER", help=f"all, or of {', '.join(SERVERS)}")
    parser.add_argument("--profile", default="smoke", help="smoke, ci or nightly (default: smoke)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="at a time; all cores if omitted")
    parser.add_argument("--record", type=Path, help="rows are written there; those of other servers stay")
    options, options.rest = parser.parse_known_args(arguments)  # the rest goes to fairdraw check
    if unknown := sorted(set(options.names) - {"all", *SERVERS}):
        parser.error(f"no such server: {', '.join(unknown)}; known: {', '.join(SERVERS)}")
    options.servers = selected(options.names)
    return options


def selected(names: Sequence[str]) -> list[Server]:
    """An engine's name stands for each way to start it."""
    return [one for one in SERVERS.values() if {"all", one.name, one.engine} & set(names)]


def check(server: Server, profile: str, rest: Sequence[str] = ()) -> tuple[int, matrix.Report]:
    """The exit code of `fairdraw check URL`, and what it wrote.

    Raises:
        ServerError: If the server does not run, or there is no verdict.
    """
    began = time.perf_counter()
    with contextlib.ExitStack() as stack:
        up, scratch = stack.enter_context(running(server)), stack.enter_context(tempfile.TemporaryDirectory())
        # Speculation must not change what is said: beside the server stands the same without it.
        other = stack.enter_context(running(SERVERS[server.reference])) if server.reference else None
        about = f"{server.packages[0]} {server.version} at {up.address}, up in {up.start_seconds} s"
        report = Path(scratch) / "report.json"
        xfails = write_xfails(server.name, Path(scratch) / "xfails.toml")
        command = [sys.executable, "-m", "fairdraw", "check", up.address, *words(up, other), "--profile", profile]
        command += ["--json", str(report), "--xfails", str(xfails), *rest]
        piped: dict[str, Any] = {"text": True, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        finished = subprocess.run(command, check=False, timeout=SECONDS, env=python_path(), **piped)
        took = f"exit code {finished.returncode} after {time.perf_counter() - began:.0f} s"
        print(f"[{server.name}] {about}\n{finished.stdout}[{server.name}] {took}", flush=True)  # as one block
        if not report.exists():
            raise ServerError(f"{server.name}: fairdraw check returned {finished.returncode} and no report. See above.")
        return finished.returncode, matrix.read_report(report)


def words(up: Running, other: Running | None) -> list[str]:
    """What a user would type behind the address."""
    reference = ["--reference", f"{other.address}#{other.model}"] if other else []
    return ["--model", up.model, *reference]
