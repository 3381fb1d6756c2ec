"""Options of `fairdraw check` and `fairdraw replay`: how a server is asked, and what any sampler does not support."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from fairdraw._cli.parts import FILE, POSITIVE, with_options
from fairdraw._core.contracts import load_part
from fairdraw._core.spelling import did_you_mean
from fairdraw._run.loading import CannotStart, is_address
from fairdraw.contracts import Capability, ServerSettings

_USUAL = ServerSettings()

_COUNT = click.IntRange(1)
_JOURNAL = click.Path(exists=True, dir_okay=False, path_type=Path)
_EARLIER = "Compare seeded and greedy answers with those in this journal, of a run before a restart."
_OLD = "Use the journal's answers of a run that was cut, or of finished runs, too."
_STAGE = "Say at which stage log-probabilities are taken.  [default: found out]"


def _usual(name: str, kind: click.ParamType[Any] | None, text: str, metavar: str | None = None) -> Any:  # Any: click's
    """Return an option whose default is that of `ServerSettings`."""
    default = getattr(_USUAL, name.removeprefix("--").replace("-", "_"))
    return click.option(name, type=kind, metavar=metavar, default=default, help=text)


_OPTIONS = (
    click.option("--model", default="", show_default=False, help="Choose the server's model.  [default: its only one]"),
    click.option("--requests", type=_COUNT, metavar="N", help="Send at most so many requests."),
    click.option("--tokens", type=_COUNT, metavar="N", help="Judge distributions by so many tokens."),
    _usual("--concurrency", _COUNT, "Send so many requests at a time.", "N"),
    _usual("--timeout", POSITIVE, "Give a request so many seconds.", "SECONDS"),
    click.option("--rate", type=POSITIVE, metavar="N", help="Send at most so many requests per second."),
    _usual("--key-variable", None, "Take the server's key from this environment variable."),
    click.option("--prompts", type=FILE, help="Use these prompts, one per line."),
    click.option("--keep-prompts", is_flag=True, help="Let reports show your prompts."),
    click.option("--journal", type=FILE, help="Keep the answers in this file. A run that was cut goes on with them."),
    click.option("--against-journal", "against", type=_JOURNAL, help=_EARLIER),
    _usual("--old-answers", click.Choice(["cut", "all"]), _OLD),
    click.option("--stage", type=click.Choice(["raw", "temperature", "processed"]), help=_STAGE),
    click.option("--unsupported", metavar="WORD=WHY", multiple=True, help="Declare what is unsupported; repeatable."),
)

server_options = with_options(_OPTIONS)
"""Adds them to a command."""


def named(spec: str, model: str) -> str:
    """The spec with the model in it, so that commands in reports name it, too.

    Example:
        >>> named("http://127.0.0.1:8000/v1", "tiny"), named("rejection/torch", "tiny")
        ('http://127.0.0.1:8000/v1#tiny', 'rejection/torch')
    """
    return f"{spec}#{model}" if model and is_address(spec) and "#" not in spec else spec


def settings_of(options: dict[str, Any], specs: Iterable[str]) -> ServerSettings | None:  # Any: click's
    """Take these options out of `options`; `None` if no spec is an address, and nothing is declared unsupported.

    Raises:
        CannotStart: If the prompts cannot be read, or a capability is unknown.
    """
    names = ["model", "requests", "tokens", "concurrency", "timeout", "rate", "key_variable", "keep_prompts"]
    plain = {name: options.pop(name) for name in [*names, "journal", "against", "old_answers"]}
    prompts, stage, pairs = options.pop("prompts"), options.pop("stage"), tuple(map(_pair, options.pop("unsupported")))
    if not any(map(is_address, specs)):
        if given := [word for word in _given() if word.startswith("--") and word != "--unsupported"]:
            raise CannotStart(f"{given[0]} is an option of servers, but no SPEC is an address. Leave it out.")
        return ServerSettings(unsupported=pairs, words=_given()) if pairs else None
    return ServerSettings(**plain, prompts=_read(prompts), stage=stage or "", unsupported=pairs, words=_given())


_REPEATED = {one.name for one in dataclasses.fields(ServerSettings)} - {"model", "journal", "old_answers"}
"""Options, all but those that no other command repeats: a spec has the model, and a journal is of one run."""


def _given() -> tuple[str, ...]:
    """The options of servers that the user wrote, as words of a command."""
    context = click.get_current_context()
    words: list[str] = []
    for option in context.command.params:
        name = str(option.name)
        if name in _REPEATED and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            value, flag = context.params[name], max(option.opts, key=len)
            given = value if isinstance(value, tuple) else (value,)
            words += [flag] if value is True else chain(*((flag, str(one)) for one in given))
    return tuple(words)


def finish_journal(settings: ServerSettings | None) -> None:
    """Write into the journal, if there is one, that its run has ended."""
    if settings is not None and settings.journal is not None:
        load_part("fairdraw._server._journal:finish")(settings.journal)  # by name, as adapters are


def _read(path: Path | None) -> tuple[str, ...]:
    if path is None:
        return ()
    try:
        found = tuple(line for line in path.read_text(encoding="utf-8").splitlines() if line.strip())
    except (OSError, UnicodeDecodeError) as error:
        raise CannotStart(f"--prompts: {path} cannot be read: {error}") from None
    if not found:
        raise CannotStart(f"--prompts: {path} holds no prompt. Write one a line.")
    return found


def _pair(text: str) -> tuple[str, str]:
    word, _, why = text.partition("=")
    if word not in set(Capability) or not why.strip():
        remedy = did_you_mean(word, Capability) or "See: fairdraw list"
        raise CannotStart(f"--unsupported: {text!r}, but it must be a capability and a reason: WORD=WHY. {remedy}")
    return word, why
