"""Play event traces of a vLLM server twice: with vLLM's own sampler objects, and with fairdraw's plugin installed.

    python -m fairdraw_engines._vllm_validation.soak --steps 100            # whatever vLLM is importable; prints JSON

Both runs must agree bit for bit in every step: in the processed logits of plain, bonus and draft rows, in the tokens,
and in all random generators afterwards. The event traces are made by `traces.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fairdraw.adapters import quiet_floats
from fairdraw.sampler_impl import vllm_plugin
from fairdraw.sampler_impl.vllm_plugin import _validated
from fairdraw.sampler_impl.vllm_plugin._pieces import PIECES
from fairdraw_engines._vllm_validation.traces import RELEASE, EventTrace, Record, Server, without_pinned_memory


def first_difference(theirs: list[Record], ours: list[Record]) -> str:
    """Return a description; empty if there is none."""
    for their, our in zip(theirs, ours, strict=False):
        if their != our:
            return f"step {their[0]}: {their[1]} differ" if their[:2] == our[:2] else f"step {their[0]}: other events"
    return "" if len(theirs) == len(ours) else "one event trace is longer"


def some_traces(num_steps: int) -> list[EventTrace]:
    """Return event traces of all kinds, with `num_steps` in total of each kind."""
    kinds = [(s, a, t) for s in (False, True) for a in (False, True) for t in (False, True)]
    return [EventTrace(seed, num_steps // 4, *kind) for kind in kinds for seed in range(4)]


class NotInstalledError(Exception):
    """The plugin refused a piece."""


@contextmanager
def plugin(*pieces: str) -> Iterator[None]:
    """Use the plugin with these pieces and no others; off if there are none."""
    for piece in PIECES:
        os.environ[piece.switch] = str(int(piece.name in pieces))
    os.environ["FAIRDRAW_VLLM_PLUGIN"] = str(int(bool(pieces)))
    vllm_plugin.register()
    try:
        missing = set(pieces) - set(vllm_plugin.installed())
        if missing:
            raise NotInstalledError(f"not installed: {', '.join(sorted(missing))}; the log says why")
        with quiet_floats():
            yield
    finally:
        vllm_plugin.unpatch()


def play_with(trace: EventTrace, *pieces: str) -> tuple[list[Record], dict[str, dict[str, int]], int]:
    """Return the records, counts of the calls, and the number of forced tokens."""
    with plugin(*pieces):
        server = Server(trace)
        return server.play(), vllm_plugin.calls(), server.num_forced


def soak(traces: list[EventTrace], names: list[str]) -> dict[str, Any]:  # Any: JSON
    """Play each piece alone, and all together, against vLLM's own code."""
    own = [play_with(trace) for trace in traces]
    pieces = {}
    for name in (*names, "all"):
        differences: list[str] = []
        calls: Counter[str] = Counter()
        for trace, (records, _, _) in zip(traces, own, strict=True):
            ours, served, _ = play_with(trace, *(names if name == "all" else [name]))
            differences += [f"{trace}: {text}" for text in [first_difference(records, ours)] if text]
            for piece, counts in served.items():
                calls.update({f"{piece}, {who}": count for who, count in counts.items()})
        pieces[name] = {"differences": differences, "calls": dict(sorted(calls.items()))}
    return {
        "vllm": RELEASE,
        "traces": len(traces),
        "steps": sum(trace.num_steps for trace in traces),
        "comparisons": sum(len(records) for records, _, _ in own),
        "forced": sum(forced for _, _, forced in own),
        "pieces": pieces,
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Play event traces of a vLLM server with and without fairdraw's plugin."
    )
    parser.add_argument("--steps", type=int, default=100, help="of each of eight kinds of event trace (default: 100)")
    parser.add_argument("--table", type=Path, help="validated sources, if not those of the package")
    options = parser.parse_args(arguments)
    if options.table:
        _validated.TABLE = options.table
    without_pinned_memory()
    known = json.loads(_validated.TABLE.read_text(encoding="utf-8"))[RELEASE]["pieces"]
    result = soak(some_traces(options.steps), list(known))
    print(json.dumps(result))
    return int(any(piece["differences"] for piece in result["pieces"].values()))


if __name__ == "__main__":
    sys.exit(main())
