"""The command line: check, list, explain, replay, init, bench, schema, validate-vllm."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable
from pathlib import Path

import click

from fairdraw import __version__
from fairdraw._cli.bench import bench_command
from fairdraw._cli.check import check_command
from fairdraw._cli.init import write_skeleton
from fairdraw._cli.parts import EXIT_CODES, FOLDER, echo, find_check, or_refuse, say_loading, wants_colour
from fairdraw._cli.replay import replay_command
from fairdraw._cli.validate_vllm import validate_vllm_command
from fairdraw._core.checks import AnyCheck
from fairdraw._core.contracts import CONTRACTS, load_part
from fairdraw._core.last_words import last_words
from fairdraw._report.explanation import explanation
from fairdraw._report.files import schema_text
from fairdraw._report.verdict import INCOMPLETE
from fairdraw._run.capability_words import glossary, policy_lines
from fairdraw._run.failure_reports import raised_meanings
from fairdraw._run.loading import BESIDE_CHECKS, SUITES, all_checks, all_questions, left_out, sampler_lines


@click.group(epilog=EXIT_CODES, context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.version_option(__version__, prog_name="fairdraw")
@click.pass_context
def main(context: click.Context) -> None:
    """Test token samplers: correctness, distributions, performance."""
    context.color = wants_colour()  # of every command below, and of its refusals
    context.with_resource(last_words(_say_left))
    for stream in (sys.stdout, sys.stderr):  # a name that the terminal's encoding lacks is no reason to die
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _say_left(how: str) -> int:
    click.echo(f"INCOMPLETE: the sampler ended the process by {how}, before there was a verdict")
    return INCOMPLETE


main.add_command(bench_command)
main.add_command(check_command)
main.add_command(replay_command)
main.add_command(validate_vllm_command)


@main.command()
@click.argument("spec")
@click.option("--folder", type=FOLDER, default=Path(), help="Write to this folder.")
@click.option("--contract", type=click.Choice(list(CONTRACTS)), help="Set the contract.  [default: by its parameters]")
def init(spec: str, folder: Path, contract: str | None) -> None:
    """Write the adapter, a test file and a CI workflow for the function or class SPEC (pkg.module:callable).

    Files that exist are kept. What a signature does not say is marked QUESTION in the adapter, at its place.
    """
    say_loading(spec)
    click.echo("\n".join(or_refuse(lambda: write_skeleton(spec, folder, contract))))


@main.command("list")
@click.option("--only", type=click.Choice(list(SUITES)), help="List the checks of one suite.")
@click.option("--contract", type=click.Choice(list(CONTRACTS)), help="List the checks of one contract.")
@click.option("--samplers", is_flag=True, help="Name the samplers of fairdraw and of other installed packages instead.")
def list_checks(only: str | None, contract: str | None, samplers: bool) -> None:
    """List every check, by suite and contract, and the capabilities that each needs."""
    if samplers:
        echo("\n".join(sampler_lines()))
        return
    say_loading("the checks", err=True)
    for place, checks in _by_place(or_refuse(lambda: all_checks(only, contract))).items():
        click.echo(f"{place}: {len(checks)} checks")
        for one in checks:
            click.echo(f"  {one.id}" + (f"  [needs {', '.join(one.needed)}]" if one.needed else ""))
    raised = ", ".join(one.raised for name, one in CONTRACTS.items() if contract in (None, name))
    click.echo(f"exceptions instead of an answer: {raised}")
    for one in map(load_part, BESIDE_CHECKS):
        click.echo(f"run by an option of its own: {one.id}")
    if contract is None and (missing := left_out()):
        click.echo(f"Left out: {missing}")


@main.command()
def schema() -> None:
    """Print the JSON Schema of a line that `check --json` and `pytest --fairdraw-json` write."""
    click.echo(schema_text(), nl=False)


@main.command()
@click.argument("code")
def explain(code: str) -> None:
    """Say what the check CODE requires, and the usual cause of a failure.

    CODE may also be the word of a capability: what it means, and which checks are skipped if it is unsupported. Or a
    choice of a policy: which ways are right, and which engines have them.
    """
    say_loading(f"what is known of {code}", err=True)
    if raising := next((contract.name for contract in CONTRACTS.values() if contract.raised == code.upper()), ""):
        meanings = raised_meanings(raising)
        click.echo("\n\n".join(f"{code.upper()} {title}\n{meaning}" for title, meaning in meanings.items()))
        click.echo(f"\ncontract: {raising}")
    elif lines := policy_lines(code.lower()) or ((word := glossary().get(code.lower())) and word.lines()):
        click.echo("\n".join(lines))
    else:
        click.echo("\n".join(explanation(find_check(code, all_questions(), glossary())).lines()))


def _by_place(checks: Iterable[AnyCheck]) -> dict[str, list[AnyCheck]]:
    """Checks by suite and contract."""
    places: dict[str, list[AnyCheck]] = {}
    for one in checks:
        places.setdefault(f"{one.suite} of the {one.contract} contract", []).append(one)
    return places
