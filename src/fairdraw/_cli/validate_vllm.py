"""The command `fairdraw validate-vllm`: let the vLLM plugin serve a vLLM that we have not validated."""

from __future__ import annotations

import subprocess
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import click

from fairdraw._cli.parts import FILE

_OWN_TABLE = "FAIRDRAW_VLLM_VALIDATED"
_PLACE = "Take vLLM from this folder, such as a site-packages.  [default: what can be imported]"
_ENTRY = "Write the entry to this file; entries of other releases stay."
_PROFILE = "Choose the profile of the suite's properties."
_EXIT_CODES = """\b
Exit codes:
  0  every piece of the plugin is validated for this source
  1  a piece differed, or is not there: vLLM's own code keeps its place
  2  usage: there is no vLLM, or it cannot be run on a CPU
"""


@click.command("validate-vllm", epilog=_EXIT_CODES)
@click.option("--folder", type=click.Path(exists=True, file_okay=False, path_type=Path), help=_PLACE)
@click.option("--table", type=FILE, default=Path("fairdraw-validated.json"), help=_ENTRY)
@click.option("--steps", type=click.IntRange(4), default=100, help="Play so many per kind of trace.")
@click.option("--profile", type=click.Choice(["smoke", "ci", "nightly"]), default="ci", help=_PROFILE)
def validate_vllm_command(folder: Path | None, table: Path, steps: int, profile: str) -> None:
    """Validate the vLLM that is installed here, patched or not, for fairdraw's vLLM plugin.

    Some minutes on a CPU, for model runner V2 a quarter of an hour: event traces with and without the plugin must agree
    bit for bit; of V2 rows and distributions must, in 20 times as many random steps; and the suite's properties must
    hold. Run it where no GPU is visible, in a container say. Then start vLLM with FAIRDRAW_VLLM_VALIDATED naming the
    table.
    """
    place = (folder or _importable()).resolve()
    release = _release(place)
    module = _validation()
    click.echo(f"vLLM {release} in {place}: some minutes ...")
    try:
        entry, problems = module.validate(release, place, steps, profile)
    except (module.NotValidatedError, subprocess.TimeoutExpired) as error:
        raise click.UsageError(f"vLLM {release}: {error}") from None
    module.write_entry(table, release, entry)
    click.echo("\n".join(f"left to vLLM: {problem}" for problem in problems) or "no piece differed")
    click.echo(f"validated: {', '.join(entry['pieces']) or 'nothing'}. To use it: {_OWN_TABLE}={table.resolve()}")
    raise SystemExit(int(bool(problems)))


def _validation() -> ModuleType:
    """Import what validates, by name: no command needs it to start."""
    try:
        return import_module("fairdraw_engines._vllm_validation.validate")
    except ModuleNotFoundError as error:
        if error.name != "fairdraw_engines":
            raise
        raise click.UsageError("fairdraw-engines, which validates vLLM, is missing. Install it with pip.") from None


def _importable() -> Path:
    """What contains the importable vLLM; it is not imported."""
    spec = find_spec("vllm")
    if spec is None or spec.origin is None:
        raise click.UsageError("no vLLM can be imported here. Name its place by --folder.")
    return Path(spec.origin).parents[1]


def _release(folder: Path) -> str:
    """The version of vLLM in `folder`, without local parts.

    Raises:
        click.UsageError: If there is none.
    """
    found = next(iter(metadata.distributions(name="vllm", path=[str(folder)])), None)
    if found is None or not (folder / "vllm" / "__init__.py").exists():
        raise click.UsageError(f"--folder {folder} has no vLLM with its metadata. Name a site-packages folder.")
    return found.version.partition("+")[0]
