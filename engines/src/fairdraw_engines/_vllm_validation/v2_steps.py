"""Random steps of model runner V2, each with vLLM's own code and with the plugin's, on the same states.

    python -m fairdraw_engines._vllm_validation.v2_steps --steps 2000 --record FILE    # of the importable vLLM
    python -m fairdraw_engines._vllm_validation.v2_steps --device cuda --steps 2000    # with compiled kernels

Of every step must agree: the model's logits, which nobody may change; processed rows (`StepPlan.processed_logits`
against vLLM's), number by number, and so what is kept of them; the tokens of greedy requests; types and shapes of all
that the runner reads, and what follows from the tokens. The order of a batch must not matter. Tokens of random requests
are put together by the probability integral transform, and the suite's e-process decides.

Kept sets are equal but for declared cases, which are counted (`v2_rows`). With compiled kernels a row that divides or
subtracts a product may also differ by a stated number of roundings, which is counted, too.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest import mock

os.environ.setdefault("VLLM_MAX_NUM_BAD_WORDS", "8")  # vLLM's own variables; more of them take time here
os.environ.setdefault("VLLM_MAX_BAD_WORDS_TOTAL_TOKENS", "32")
if __name__ == "__main__":
    from fairdraw_engines._vllm_validation import v2_device

    v2_device.choose(sys.argv[1:])  # before vLLM and Triton are imported

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from fairdraw._core.interpreter import speed_up_interpreter
from fairdraw.adapters import derive_seed, quiet_floats
from fairdraw.perf_regression._records import provenance, write_record
from fairdraw.sampler_impl import vllm_plugin
from fairdraw.sampler_impl.step import StepPlan
from fairdraw.sampler_impl.vllm_plugin import _plugin, _step, _validated
from fairdraw.statistical._decision import Decision, Verdict, decide
from fairdraw.statistical._design import plan_tables
from fairdraw.statistical._pit import Order, PitCells, randomised_pit
from fairdraw_engines._others import Upstream
from fairdraw_engines._vllm_v2_runtime import use_torch_filters
from fairdraw_engines._vllm_validation.v2_device import DEVICES, VARIABLE
from fairdraw_engines._vllm_validation.v2_rows import KNOWN, NO_LEEWAY, compare_rows, leeway_of
from fairdraw_engines._vllm_validation.v2_server import DEVICE, RELEASE, Part, SamplingParams, Server, Trace, tokens_of

speed_up_interpreter()  # half of the time

FALSE_ALARM_RATE = 1e-6
"""Rate of one run of the program."""
PERMUTED_EVERY = 5
"""Steps; the batch is given again in another order."""


class NotInstalledError(Exception):
    """The plugin refused its piece for V2."""


@contextmanager
def plugin(backend: str | None = None) -> Iterator[None]:
    """Use the piece for V2, as it is when vLLM has made a V2 runner.

    Args:
        backend: Of the step: "torch" or "triton"; `None` chooses by device.
    """
    switches = {"FAIRDRAW_VLLM_PLUGIN": "1", "FAIRDRAW_VLLM_STEP": "1"}
    with mock.patch.dict(os.environ, switches), mock.patch.object(_step, "BACKEND", backend), quiet_floats():
        vllm_plugin.register()
        try:
            _plugin._current[0].runner_v2_made()
            if "step" not in vllm_plugin.installed():
                raise NotInstalledError("step was not installed; the log says why")
            yield
        finally:
            vllm_plugin.unpatch()


@dataclass(frozen=True)
class Ran:
    """A step's output where it was made, and the rows that it drew from, on the host.

    Args:
        processed: [num_rows, vocab_size] float32; `None` if the plugin left the step to vLLM.
    """

    output: Upstream
    processed: Tensor | None  # [num_rows, vocab_size] float32


def run_upstream(server: Server, parts: Sequence[Part]) -> Ran:
    """Run vLLM's own code."""
    rows: list[Tensor] = []  # [num_rows, vocab_size] float32 | as the model's

    def recording(function: Any, which: int) -> Callable[..., Any]:  # Any: vLLM's method and what it returns
        def recorded(*args: Any, **options: Any) -> Any:  # Any: as above
            found = function.__wrapped__(*args, **options)
            rows.append(found[which])
            return found

        return recorded

    verifier, sampler = type(server.verifier), type(server.sampler)
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(verifier, "_verify", recording(verifier._verify, 0)))
        stack.enter_context(mock.patch.object(sampler, "sample", recording(sampler.sample, 1)))
        output = server.step(parts)
    return Ran(output, rows[0].float().cpu())


def run_ours(server: Server, parts: Sequence[Part]) -> Ran:
    """Run whatever the plugin has put in place."""
    rows: list[Tensor] = []  # [num_rows, vocab_size] float32
    draw = StepPlan.__call__

    def recorded(plan: StepPlan, inputs: Any, **options: Any) -> Any:  # Any: as StepPlan's
        rows.append(plan.processed_logits(inputs))
        return draw(plan, inputs, **options)

    with mock.patch.object(StepPlan, "__call__", recorded):
        output = server.step(parts)
    return Ran(output, rows[0].cpu() if rows else None)


@dataclass
class Tokens:
    """Tokens of random requests, each as its place in the distribution that it must follow: uniform if it does.

    Args:
        places: By order of the vocabulary, a number in [0, 1) per token.
    """

    places: dict[Order, list[float]] = field(default_factory=lambda: {order: [] for order in Order})
    groups: list[str] = field(default_factory=list)

    def add(self, parts: Sequence[Part], ran: Ran, rng: np.random.Generator) -> None:
        """Count a token that was emitted; it follows its row, given that the drafts before it were accepted."""
        assert ran.processed is not None
        probs = ran.processed.double().softmax(-1)
        rows, token_ids, first = [], [], 0
        for part, tokens in zip(parts, tokens_of(ran.output), strict=True):
            if part.request.params.temperature > 0:
                for place, token in enumerate(tokens):
                    if probs[first + place].isfinite().all():
                        rows.append(first + place)
                        token_ids.append(token)
                        self.groups.append(_group(part, place))
            first += part.num_rows
        uniforms = rng.random(len(rows))
        for order, places in self.places.items():
            places.extend(randomised_pit(probs[rows].numpy(), np.array(token_ids, np.int64), uniforms, order))

    def extend(self, other: Tokens) -> None:
        self.groups += other.groups
        for order, places in self.places.items():
            places += other.places[order]

    def decision(self) -> Decision:
        """Return all tokens together, and group by group, by rank and by id."""
        names, tables, counts = np.array(self.groups), {}, {}
        for order, places in self.places.items():
            transform = np.array(places)
            for group in ("all", *sorted(set(self.groups))):
                mine = (names == group) | (group == "all")
                cells = PitCells() if group == "all" else PitCells(num_equal=12, num_halvings=4)
                table = cells.table(int(mine.sum()))
                tables[f"{group}, by {order}"] = dataclasses.replace(table, is_optional=group != "all")
                counts[f"{group}, by {order}"] = cells.count(transform[mine])
        return decide(tables, plan_tables(tables, 1, FALSE_ALARM_RATE), [counts], FALSE_ALARM_RATE)


def _group(part: Part, place: int) -> str:
    if not part.drafts:
        return "without drafts"
    return "bonus" if place == len(part.drafts) else "first" if place == 0 else "after an accepted draft"


@dataclass
class Comparison:
    """Comparison of all steps of some traces.

    Args:
        differences: What must agree and did not.
        counts: Steps, rows, ties, edges, zeros ...
        parameters: Compared rows by what their requests use.
        rounding: The largest difference of a number that was counted as rounding, as a share of what is allowed.
        searched: vLLM's filters are those that search.
    """

    differences: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    parameters: Counter[str] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)
    ours: Tokens = field(default_factory=Tokens)
    theirs: Tokens = field(default_factory=Tokens)
    rounding: float = 0.0
    searched: bool = False

    def extend(self, other: Comparison) -> None:
        """Add those of other traces."""
        self.differences += other.differences
        self.counts.update(other.counts)
        self.parameters.update(other.parameters)
        self.calls.update(other.calls)
        self.ours.extend(other.ours)
        self.theirs.extend(other.theirs)
        self.rounding = max(self.rounding, other.rounding)

    def play(self, trace: Trace) -> None:
        """Play all steps of a trace; the states follow the tokens of ours."""
        server, self.rng = Server(trace), np.random.default_rng(derive_seed("tokens of V2", trace))
        before: list[Any] = []  # Any: vLLM's SamplerOutput with copies of its tensors
        for number in range(trace.num_steps):
            parts = server.schedule()
            found = list(self._step(server, parts, number, before))
            self.differences += [f"{trace}, step {number}: {text}" for text in found]
            if found:
                return

    def _step(self, server: Server, parts: list[Part], number: int, before: list[Any]) -> Iterator[str]:
        theirs, ours = run_upstream(server, parts), run_ours(server, parts)
        self.counts["steps"] += 1
        if not torch.equal(server.logits.cpu(), torch.cat([part.logits for part in parts])):
            yield "the model's logits were changed"
        yield from _differences_of_structure(parts, theirs.output, ours.output)
        yield from overwritten(before)
        before[:] = [(ours.output, ours.output.sampled_token_ids.clone(), ours.output.num_sampled.clone())]
        is_left = any(part.request.params.thinking_token_budget is not None for part in parts)
        if is_left != (ours.processed is None):
            yield "a thinking budget was not left to vLLM" if is_left else "vLLM's own code ran without a reason"
        elif is_left:
            self.counts["left to vLLM"] += 1
            if tokens_of(theirs.output) != tokens_of(ours.output):
                yield "tokens differ, although vLLM's own code drew them"
        else:
            yield from self._differences_of_draws(server, parts, theirs, ours)
            if number % PERMUTED_EVERY == 0:
                yield from _differences_of_order(server, parts, ours.output)
        server.commit(parts, ours.output)

    def _differences_of_draws(self, server: Server, parts: list[Part], theirs: Ran, ours: Ran) -> Iterator[str]:
        assert theirs.processed is not None
        assert ours.processed is not None
        first = 0
        for i, part in enumerate(parts):
            self.parameters.update(dict.fromkeys(parameters_of(part), part.num_read))
            for row in range(first, first + part.num_read):
                self.counts["rows"] += 1
                kind = self._compare_rows(part, row - first, theirs.processed[row], ours.processed[row])
                self.counts[kind] += 1
                if kind not in KNOWN:
                    yield f"request {i}, row {row - first} of {part.num_rows}: {kind}"
            mine, yours = tokens_of(ours.output)[i], tokens_of(theirs.output)[i]
            if part.request.params.temperature == 0 and mine != yours:
                yield f"request {i}, greedy: tokens {mine}, but vLLM has {yours}"
            if mine and _ends_in_its_draft(part, mine) and ours.processed[first + len(mine) - 1].isfinite().any():
                yield f"request {i}: tokens {mine} end in an accepted draft, and nothing follows it"
            first += part.num_rows
        self.ours.add(parts, ours, self.rng)
        self.theirs.add(parts, theirs, self.rng)

    def _compare_rows(
        self,
        part: Part,
        place: int,
        theirs: Tensor,  # [vocab_size] float32
        ours: Tensor,  # [vocab_size] float32
    ) -> str:
        """Compare rows with leeway where kernels are compiled, and nowhere else."""
        is_compiled = DEVICE.type == "cuda"
        leeway = leeway_of(part, place, searched=self.searched) if is_compiled else NO_LEEWAY
        kind = compare_rows(theirs, ours, part.request.params, leeway)
        if kind in KNOWN:
            self.rounding = max(self.rounding, leeway.used(theirs, ours))
        return kind

    def report(self) -> dict[str, Any]:  # Any: JSON
        """Return differences, counts, and both verdicts about tokens."""
        verdicts = {name: tokens.decision() for name, tokens in (("ours", self.ours), ("theirs", self.theirs))}
        for name, decision in verdicts.items():
            if decision.verdict is Verdict.FAIL:
                self.differences.append(f"tokens of {name} do not follow their distributions: {decision.reason}")
        return {
            "vllm": RELEASE,
            **self._of_a_gpu(),
            "differences": self.differences,
            "counts": dict(sorted(self.counts.items())),
            "parameters": dict(sorted(self.parameters.items())),
            "calls": dict(self.calls),
            "tokens": {
                name: {"tokens": len(tokens.groups), "verdict": decision.verdict, "reason": decision.reason}
                for (name, decision), tokens in zip(verdicts.items(), (self.ours, self.theirs), strict=True)
            },
        }

    def _of_a_gpu(self) -> dict[str, Any]:  # Any: JSON
        """Return what a report says only of compiled kernels."""
        if DEVICE.type == "cpu":
            return {}
        filters = "triton" if self.searched else "pytorch"
        gpu = torch.cuda.get_device_name(DEVICE)
        return {"gpu": gpu, "vllm's filters": filters, "rounding, of what is allowed": round(self.rounding, 3)}


_OPTIONAL = (
    *("top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias"),
    *("allowed_token_ids", "min_tokens", "bad_words_token_ids", "seed", "logprobs"),
)
NEUTRAL = {name: (getattr(SamplingParams(), name),) for name in _OPTIONAL} | {"top_k": (-1, 0)}
"""Values that vLLM's `SamplingParams` holds where a parameter is not used."""


def parameters_of(part: Part) -> Iterator[str]:
    """Yield what a request uses in a step."""
    params = part.request.params
    yield "temperature 0" if params.temperature == 0 else "temperature above 0"
    yield from (name for name, neutral in NEUTRAL.items() if getattr(params, name) not in neutral)
    if part.drafts:
        yield "drafts" if part.draft_logits is None else "drafts with logits"
    if True in part.invalid:
        yield "invalid drafts"
    if part.logits.isneginf().any():
        yield "rows masked by a grammar"


def _differences_of_structure(parts: Sequence[Part], theirs: Upstream, ours: Upstream) -> Iterator[str]:
    """Compare what the runner and its drafter read: types, shapes, and numbers that follow from the tokens."""
    for name in ("sampled_token_ids", "num_sampled", "num_rejected"):
        one, other = getattr(theirs, name), getattr(ours, name)
        if (one.dtype, one.shape, one.stride()) != (other.dtype, other.shape, other.stride()):
            yield f"{name} is {other.dtype} {list(other.shape)}, but vLLM's is {one.dtype} {list(one.shape)}"
            return
    for i, (part, tokens) in enumerate(zip(parts, tokens_of(ours), strict=True)):
        rejected, expected = int(ours.num_rejected[i]), 0 if part.is_chunk else part.num_rows - len(tokens)
        most = part.num_read
        if rejected != expected or not (len(tokens) == 0 if part.is_chunk else 1 <= len(tokens) <= most):
            yield f"request {i} has {len(tokens)} tokens and {rejected} rejected of {len(part.drafts)} drafts"
        elif tuple(tokens[:-1]) != part.drafts[: len(tokens) - 1]:
            yield f"request {i}: tokens {tokens}, but its drafts are {part.drafts}"
    yield from _differences_of_logprobs(parts, theirs.logprobs_tensors, ours.logprobs_tensors, ours)


def _ends_in_its_draft(part: Part, tokens: Sequence[int]) -> bool:
    """Whether a token that replaces a draft is another one: what is drawn from excludes the draft. Where nothing is
    left to draw from, the token is 0, as documented, and the draft may be, too."""
    place = len(tokens) - 1
    return place < len(part.valid) and tokens[-1] == part.valid[place]


def _differences_of_logprobs(
    parts: Sequence[Part], theirs: Upstream, ours: Upstream, output: Upstream
) -> Iterator[str]:
    """Compare log-probabilities of raw rows: those of the most likely tokens are equal, and the drawn ones stand before
    them."""
    if (theirs is None) != (ours is None):
        yield "log-probabilities are missing on one side"
    if theirs is None or ours is None:
        return
    for name in ("logprob_token_ids", "logprobs"):
        if not torch.equal(getattr(theirs, name)[:, 1:], getattr(ours, name)[:, 1:]):
            yield f"{name} of the most likely tokens differ"
    first = 0
    for part, tokens in zip(parts, tokens_of(output), strict=True):
        if ours.logprob_token_ids[first : first + len(tokens), 0].tolist() != tokens:
            yield "log-probabilities are of other tokens"
        first += part.num_rows


def overwritten(before: Sequence[Any]) -> Iterator[str]:
    """Yield outputs of the step before, which the server may still be copying."""
    for output, tokens, counts in before:
        columns = torch.arange(tokens.shape[1], device=tokens.device) < counts[:, None]
        if not torch.equal(output.sampled_token_ids[columns], tokens[columns]):
            yield "the tokens of the step before were overwritten"
        if not torch.equal(output.num_sampled, counts):
            yield "the counts of the step before were overwritten"


def _differences_of_order(server: Server, parts: list[Part], output: Upstream) -> Iterator[str]:
    """Check that a request's tokens depend on its own inputs alone."""
    order = server.rng.permutation(len(parts))
    again = tokens_of(run_ours(server, [parts[i] for i in order]).output)
    tokens = tokens_of(output)
    if any(tokens[i] != again[place] for place, i in enumerate(order)):
        yield "tokens depend on the order of the batch"


def some_traces(num_steps: int) -> list[Trace]:
    """Return traces of all kinds, with some `num_steps` in total.

    Sizes are slots, tokens of the vocabulary and most drafts. Vocabularies lie on both sides of a tile (1024 entries)
    and of a mask's word (32), and a server may hold a single request.
    """
    kinds = [(dtype, drafts) for dtype in ("float32", "bfloat16") for drafts in (True, True, False)]
    with_logits = (False, True, False, True, False, False)
    sizes = [(6, 48, 5), (16, 1000, 3), (6, 48, 5), (12, 1057, 7), (3, 32, 1), (1, 2500, 4)]
    share = -(-num_steps // len(kinds))
    rows = enumerate(zip(kinds, sizes, with_logits, strict=True))
    return [Trace(seed, share, *kind, *size, probabilistic) for seed, (kind, size, probabilistic) in rows]


def played(trace: Trace, backend: str | None, table: Path, searched: bool = False) -> Comparison:
    """Return one trace, with the plugin installed. vLLM's filters search, or sort (PyTorch)."""
    _validated.TABLE = table
    comparison = Comparison(searched=searched)
    if not searched:
        use_torch_filters()
    with plugin(backend):
        comparison.play(trace)
        comparison.calls.update(vllm_plugin.calls().get("step", {}))
    return comparison


def compare(
    traces: Sequence[Trace], backend: str | None = None, workers: int = 1, *, searched: bool = False
) -> dict[str, Any]:  # Any: JSON
    """Return the report of some traces."""
    play = partial(played, backend=backend, table=_validated.TABLE, searched=searched)
    whole = Comparison(searched=searched)
    with ProcessPoolExecutor(workers, get_context("spawn")) if workers > 1 else nullcontext() as pool:
        largest_first = sorted(traces, key=lambda trace: -trace.num_slots * trace.most_drafts)
        for part in pool.map(play, largest_first) if pool is not None else map(play, traces):
            whole.extend(part)
    return whole.report()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Compare steps of model runner V2 with and without fairdraw's plugin.")
    parser.add_argument("--steps", type=int, default=120, help="in total (default: 120)")
    parser.add_argument("--backend", choices=["torch", "triton"], help="of the step; Triton is interpreted on a CPU")
    parser.add_argument("--table", type=Path, help="validated sources, if not those of the package")
    parser.add_argument("--record", type=Path, help="also written here, with machine and commit")
    parser.add_argument("--workers", type=int, default=1, help="processes (default: 1)")
    parser.add_argument("--device", choices=DEVICES, default=DEVICE.type, help="default: cpu")
    parser.add_argument("--filters", choices=["pytorch", "triton"], default="pytorch", help="vLLM's, on a GPU")
    options = parser.parse_args(arguments)
    if options.device != DEVICE.type:
        parser.error(f"--device {options.device} was given too late: set {VARIABLE} before vLLM is imported")
    if options.filters == "triton" and options.device == "cpu":
        parser.error("--filters triton needs --device cuda: the kernel asks how many cores the GPU has")
    if options.table:
        _validated.TABLE = options.table
    made_on = provenance()
    result = compare(some_traces(options.steps), options.backend, options.workers, searched=options.filters == "triton")
    if options.record:
        write_record(options.record, {**made_on, **result})
    print(json.dumps(result))
    return int(bool(result["differences"]))


if __name__ == "__main__":
    sys.exit(main())
