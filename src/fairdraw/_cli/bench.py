"""The command `fairdraw bench`: what a sampler costs, compared with another one."""

from __future__ import annotations

import dataclasses
import json
import sys
from functools import partial
from typing import TYPE_CHECKING

import click

from fairdraw._cli.parts import FILE, FOLDER, POSITIVE, Number, echo, or_refuse, say_loading
from fairdraw._core.contracts import CONTRACTS, contract_name
from fairdraw._report.files import require_apart, require_writable
from fairdraw._report.verdict import NOTHING_RUN
from fairdraw._run.loading import CannotStart, last_line, load_sampler, require_extra

if TYPE_CHECKING:
    from pathlib import Path

    from fairdraw.perf_regression._bench import Bench, Contender

_EXIT_CODES = """\b
Exit codes:
  0  green: nothing is slower or moves more than the limit; INCONCLUSIVE lines are warnings
  1  FAIL: a limit is broken, at the error rate that is printed
  2  usage: unknown sampler, another contract, unwritable file
  3  NO VERDICT: a call raised an exception, or nothing was decided; with --strict also if anything was left undecided
"""


@click.command("bench", epilog=_EXIT_CODES)
@click.argument("spec")
@click.option("--against", metavar="SPEC", help="Compare with this sampler.  [default: vLLM's of the same contract]")
@click.option("--limit", type=POSITIVE, default=1.0, help="Allow at most this part of the other's time.")
@click.option("--roofline-min", type=Number(0, 1), help="Require this part of the copy bandwidth; needs a GPU.")
@click.option("--strict", is_flag=True, help="Count PASS alone as green.")
@click.option("--json", "json_file", type=FILE, help="Write findings and times.")
@click.option("--history", type=FILE, help="Append what was timed to this file, as JSON lines.")
@click.option("--plots", type=FOLDER, help="Write plots to this folder.")
def bench_command(
    spec: str,
    against: str | None,
    limit: float,
    roofline_min: float | None,
    strict: bool,
    json_file: Path | None,
    history: Path | None,
    plots: Path | None,
) -> None:
    """Compare the cost of the sampler SPEC with another sampler's, in one process.

    Exact counts come first (logical bytes, copies), then times in interleaved rounds, decided by the exact sign test.
    """
    files = [("--json", json_file), ("--history", history)]
    or_refuse(lambda: require_apart(files))
    for option, path in [*files, ("--plots", plots)]:
        or_refuse(partial(require_writable, option, path))
    if plots is not None:
        or_refuse(lambda: require_extra("--plots", "matplotlib"))
    say_loading(spec)
    ours, other = _contenders(spec, against)
    from fairdraw.perf_regression._bench import FAMILY_ALPHA, bench
    from fairdraw.perf_regression._findings import exit_code, table
    from fairdraw.perf_regression._records import append_history

    names = ours.sampler.name, other.sampler.name
    where = f"on {ours.sampler.device}; false alarms of a run: at most {FAMILY_ALPHA:.0%}"
    echo(f"{names[0]} against {names[1]} {where}")
    try:
        found = bench(ours, other, limit, echo, roofline_min=roofline_min)
    except (Exception, SystemExit) as error:
        echo(f"NO VERDICT: a call raised {last_line(error)}. Mend that first. Run: fairdraw check {spec}", err=True)
        sys.exit(NOTHING_RUN)
    echo("\n" + "\n".join(table(found.findings)))
    if json_file is not None:
        json_file.write_text(json.dumps(_as_json(found), indent=1) + "\n", encoding="utf-8")
    if history is not None:
        append_history(history, found.findings)
    if plots is not None:
        _plot(found, names, plots)
    sys.exit(exit_code(found.findings, strict=strict))


def _contenders(spec: str, against: str | None) -> tuple[Contender, Contender]:
    """Two samplers of one contract, by their names."""
    from fairdraw.perf_regression._bench import MEASURED, Contender

    try:
        ours = load_sampler(spec)
        contract = contract_name(ours)
        if contract not in MEASURED:
            rule = f"only {', '.join(MEASURED)} are measured"
            raise CannotStart(f"{spec}: contract={contract!r}, but {rule}. Use fairdraw check.")
        against = against or CONTRACTS[str(contract)].reference
        other = load_sampler(against)
    except CannotStart as error:
        raise click.UsageError(str(error)) from None
    if contract_name(other) != contract:
        given, rule = f"contract={contract_name(other)!r}", f"{spec} is under {contract!r}"
        raise click.UsageError(f"{against}: {given}, but {rule}. Name another --against.")
    return Contender(spec, ours), Contender(against, other)


def _as_json(found: Bench) -> dict[str, object]:
    findings = [{**dataclasses.asdict(one), "verdict": one.verdict.value} for one in found.findings]
    times = [{**dataclasses.asdict(sizes), "ours": ours, "reference": other} for sizes, ours, other in found.times]
    return {"findings": findings, "seconds_per_call": times}


def _plot(found: Bench, names: tuple[str, str], folder: Path) -> None:
    from fairdraw.perf_regression._named import NoVerdictError
    from fairdraw.perf_regression._pictures import plot_latency

    try:
        echo(f"written: {plot_latency(found.times, names, folder)}")
    except NoVerdictError as error:
        echo(f"no plots: {error}")
