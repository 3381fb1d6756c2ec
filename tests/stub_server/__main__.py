"""Start the stub, until it is stopped: `PYTHONPATH=tests python -m stub_server --fault "silent greedy"`."""

from __future__ import annotations

import secrets
import threading

import click

from stub_server.app import ROUTES, make_app, serving
from stub_server.dialects import Settings
from stub_server.engine import Engine
from stub_server.faults import FAULTS
from stub_server.troubles import TROUBLES


@click.command()
@click.option("--fault", type=click.Choice(list(FAULTS)), help="What it does wrong.")
@click.option("--trouble", type=click.Choice(list(TROUBLES)), help="How it answers badly.")
@click.option("--kind", type=click.Choice(list(ROUTES)), default="vllm", show_default=True)
@click.option("--num-drafts", type=int, default=0, show_default=True, help="Drafts in each step.")
@click.option("--port", type=int, default=8000, show_default=True, help="0 for a free one.")
def main(fault: str | None, trouble: str | None, kind: str, num_drafts: int, port: int) -> None:
    """A server with a toy language model on loopback."""
    entropy = secrets.randbits(63)
    chosen = FAULTS[fault] if fault else None
    engine = Engine(entropy, num_drafts) if chosen is None else chosen.engine(entropy)
    settings = Settings(kind) if chosen is None else chosen.settings  # type: ignore[arg-type]  # click has checked it
    app = make_app(engine, settings, step_seconds=0.0005)
    with serving(TROUBLES[trouble].around(app) if trouble else app, port) as address:
        click.echo(address)
        threading.Event().wait()


main()
