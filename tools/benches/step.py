"""Time the whole sampling step beside vLLM 0.33.0's on this GPU, and keep the result as a JSON record.

    python tools/install.py vllm 0.33.0 --target .cache/vllm/0.33.0
    python tools/bench.py step --vllm .cache/vllm/0.33.0 --out perf_regression/records/step_h200.json

Both arms begin with the model's bfloat16 logits and end with tokens: K=3 one-hot drafts and a bonus row per request,
over the parameter sets of `SETS`. Logits are Zipf-like, of peaked and flat rows; six of ten drafts are the row's best
token. `--data` takes the rows of `DATA` instead: how long a step takes must not depend on them. Every figure is the
median over rounds in one process, in microseconds; in each round every arm runs once, in turns, each after 256 MiB were
read to evict the L2 cache (`benches.clock`). Modes, of which `--modes` takes some:

======== ==============================================================================================================
graph    one CUDA graph replay between two events
eager    an ordinary call on an idle GPU, from the call until its result is there
host     the same until the call returns
alone    as host, but `IN_A_ROW` calls of one arm in a row, as in a loop: the host's caches hold what the arm needs
======== ==============================================================================================================

Arms: `ours` (a `StepPlan` that has what the set needs; tensors stay where they are, so its calls are replays), `ours
launched` (the same without replays, which is what a step costs while tensors still lie in new places), `vllm033`
(`RejectionSampler._verify`: float32 copy, penalties, temperature, filters, rejection), `copy` (graph only: moves as
many bytes as the logits have), and those of `flashinfer_step` where `python tools/gpu_kernels` has built their
library. The mean number of tokens per request stands beside the times: all arms draw from the same distributions. A
cell that fails is a row with its error, and the record is written after every cell.

With `--plain` each request has one row and no drafts, and ours is measured beside FlashInfer.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from records import Json, commit
from torch import Tensor

from benches import clock as clocks
from benches import flashinfer_step as flashinfer
from benches.clock import CpuClock, GpuClock
from benches.vllm_step import OFF, VERIFY, V2Step
from fairdraw.perf_regression._device import graph_of
from fairdraw.perf_regression._device_time import copy_of
from fairdraw.perf_regression._records import write_record
from fairdraw.sampler_impl.step import Capacity, Drafts, Parameters, Penalties, StepInputs, StepPlan

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benches.clock import Arm


CARD = {"temperature": 0.6, "top_k": 20, "top_p": 0.95}
"""Of Qwen3's model card."""
SETS: dict[str, list[Json]] = {
    "none": [{}],
    "T=0.6": [{"temperature": 0.6}],
    "T=0.6 top-k 20 top-p 0.95": [CARD],
    "T=0.6 top-k 20 top-p 0.95 presence 1.5": [{**CARD, "presence_penalty": 1.5}],
    "T=0.7 top-p 0.9": [{"temperature": 0.7, "top_p": 0.9}],
    "min-p 0.05": [{"min_p": 0.05}],
    "T=1 top-p 0.95": [{"top_p": 0.95}],
    "T=1.5 top-p 0.9": [{"temperature": 1.5, "top_p": 0.9}],
    "T=1 top-k 50 top-p 0.95": [{"top_k": 50, "top_p": 0.95}],
    "top-k 1000": [{"top_k": 1000}],
    "top-k 20000 top-p 0.9": [{"top_k": 20000, "top_p": 0.9}],
    "min-p 0.1": [{"min_p": 0.1}],
    "mixed": [
        {"temperature": 0.0},
        {},
        CARD,
        {"temperature": 0.7, "top_p": 0.9},
        {"min_p": 0.05},
        {**CARD, "presence_penalty": 1.5},
        {"temperature": 1.2, "top_k": 50, "repetition_penalty": 1.1},
    ],
}
"""Requests of a batch have these parameters in turn."""
Rows = Callable[[Tensor, Tensor], Tensor]  # [num_rows, vocab_size] float32, the same, and the same
"""Return logits, from two uniform numbers for each."""


def _zipf(ranked: Tensor, uniforms: Tensor) -> Tensor:  # [num_rows, vocab_size] float32
    slope = 1 + 1.5 * uniforms[:, :1]
    return 0.3 * uniforms - slope * (1 + ranked.argsort(-1)).log()


def _normal(sigma: float, contenders: int = 0, above: float = 0.0) -> Rows:
    """Return normal rows in which some ids, anywhere in the vocabulary, stand out."""

    def rows(uniforms: Tensor, others: Tensor) -> Tensor:  # [num_rows, vocab_size] float32
        normal = (-2 * (1 - uniforms).log()).sqrt() * (2 * torch.pi * others).cos() * sigma
        at = uniforms[:, :contenders].mul(uniforms.shape[1]).long()
        return normal.scatter_add(1, at, above + 2 * others[:, :contenders])

    return rows


_HALF = _normal(1.5, 48, 8.0)
DATA: dict[str, Rows] = {
    "zipf": _zipf,
    "model": _normal(1.5, 48, 14.0),
    "half in contenders": _HALF,
    "95 % in contenders": _normal(1.5, 3, 14.0),
    **{f"normal, sigma {sigma}": _normal(sigma) for sigma in (1, 2, 3, 4)},
    "flat": lambda uniforms, _: torch.zeros_like(uniforms),
    "ties": lambda uniforms, others: (2 * _normal(1)(uniforms, others)).round() / 2,
    "all accepted": _normal(1.5, 1, 40.0),
    "all rejected": _HALF,
    "mixed": lambda uniforms, others: torch.where(
        torch.arange(len(uniforms), device=uniforms.device)[:, None] // (NUM_DRAFTS + 1) % 4 == 0,
        _normal(1)(uniforms, others),
        _HALF(uniforms, others),
    ),
}
"""In `model` the contenders have all but 0.3 % of the probability at T=1. `mixed` has *normal, sigma 1* in every fourth
request, and *half in contenders* in the others, as *all rejected* has."""
NUM_DRAFTS = 3
OUTPUT_LENGTH = 4000
BATCH_SIZES = (1, 16, 64, 256)
VOCAB_SIZES = (128256, 151936)
WARM_CALLS = 32
"""Before the clock starts. Our plan captures its 17th step if all tensors stay where they are, and replays it."""


class Workload:
    """Logits and drafts of the largest batch; smaller ones are its first requests."""

    def __init__(self, most: int, vocab_size: int, output_length: int, device: str, data: str = "zipf") -> None:
        self.noise = torch.Generator(device).manual_seed(vocab_size)
        num_rows = most * (NUM_DRAFTS + 1)
        self.logits = torch.empty(num_rows, vocab_size, dtype=torch.bfloat16, device=device)
        for rows in torch.arange(num_rows, device=device).split(64):  # ranks are int64
            uniforms = self._uniforms(len(rows), vocab_size)
            self.logits[rows] = DATA[data](uniforms, self._uniforms(len(rows), vocab_size)).bfloat16()
        best = self.logits.argmax(-1)
        others = torch.randint(vocab_size, (num_rows,), generator=self.noise, device=device)
        share = {"all accepted": 1.0, "all rejected": 0.0}.get(data, 0.6)
        self.draft_token_ids = torch.where(self._uniforms(num_rows) < share, best, others).int()
        text = torch.randint(vocab_size, (most, output_length), generator=self.noise, device=device)
        # A text has frequent tokens: half of it are the best tokens of the request's rows.
        text[:, ::2] = best.view(most, -1)[:, :1]
        self.outputs = text
        self.seeds = torch.randint(1 << 62, (most,), generator=self.noise, device=device)
        self.positions = torch.full((most,), output_length, device=device)

    def _uniforms(self, *shape: int) -> Tensor:  # [...] float32
        return torch.rand(*shape, generator=self.noise, device=self.noise.device)

    def ours(
        self, batch_size: int, parameters: list[Json], backend: Any, num_drafts: int, replays: int = 32
    ) -> Arm:  # Any: a word, or None
        """Return a step of a plan with what the set needs."""
        device, vocab_size = self.logits.device, self.logits.shape[1]
        filters = any({"top_k", "top_p", "min_p"} & one.keys() for one in parameters)
        penalties = any(name.endswith("_penalty") for one in parameters for name in one)
        form = Drafts.ONE_HOT if num_drafts else Drafts.NONE
        capacity = Capacity(batch_size, num_drafts, vocab_size, drafts=form, filters=filters, penalties=penalties)
        plan = StepPlan(capacity, device, backend=backend, replays=replays)
        rows = batch_size * (num_drafts + 1)

        def column(name: str, dtype: torch.dtype = torch.float32) -> Tensor:  # [batch_size] any
            return torch.tensor([one.get(name, OFF[name]) for one in parameters], dtype=dtype, device=device)

        counts = torch.zeros(batch_size, vocab_size, dtype=torch.int32, device=device) if penalties else None
        if counts is not None:
            text = self.outputs[:batch_size]
            counts.scatter_add_(1, text, torch.ones_like(text, dtype=torch.int32))
        factors = (column(f"{name}_penalty") for name in ("presence", "frequency", "repetition"))
        prompt = torch.zeros(batch_size, -(-vocab_size // 32), dtype=torch.int32, device=device)
        filtered = (column("top_k", torch.int32), column("top_p"), column("min_p")) if filters else (None, None, None)
        inputs = StepInputs(
            self.logits[:rows],
            Parameters(column("temperature"), *filtered),
            self.seeds[:batch_size],
            self.positions[:batch_size],
            torch.arange(0, rows + 1, num_drafts + 1, dtype=torch.int32, device=device),
            draft_token_ids=self.draft_token_ids[:rows] if num_drafts else None,
            penalties=None if counts is None else Penalties(*factors, counts, prompt),
        )
        return lambda: plan(inputs).num_tokens

    def vllm(self, folder: Path, batch_size: int, parameters: list[Json]) -> Arm:
        """Logits are its own copy: without work it may write into them."""
        rows = batch_size * (NUM_DRAFTS + 1)
        step = V2Step(
            folder,
            self.logits[:rows].clone(),
            self.draft_token_ids[:rows],
            parameters,
            self.outputs[:batch_size],
            self.seeds[:batch_size],
            self.positions[:batch_size],
        )
        return lambda: step()[1]


@dataclass
class Run:
    """Rows of a record, each printed and written at once."""

    out: Path
    record: Json

    def add(self, **row: object) -> None:
        self.record["rows"].append(row)
        print(row, flush=True)
        write_record(self.out, self.record)

    @contextmanager
    def errors_are_rows(self, **cell: object) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # whatever a kernel, a compiler or a foreign file raises
            self.add(**cell, error=f"{type(error).__name__}: {str(error)[-300:]}")


def measure_cell(
    run: Run, clock: GpuClock | CpuClock, workload: Workload, folder: Path | None, cell: Json, modes: list[str]
) -> None:
    """These modes of one batch size and parameter set."""
    batch_size, own = cell["B"], SETS[cell["set"]]
    num_drafts = cell.get("drafts", NUM_DRAFTS)
    rows = batch_size * (num_drafts + 1)
    parameters = [own[i % len(own)] for i in range(batch_size)]
    on_gpu = isinstance(clock, GpuClock)
    makers: dict[str, Callable[[], Arm]] = {
        "ours": lambda: workload.ours(batch_size, parameters, None if on_gpu else "triton", num_drafts)
    }
    if on_gpu:
        makers["ours launched"] = lambda: workload.ours(batch_size, parameters, None, num_drafts, replays=0)
    if folder is not None and num_drafts:
        makers["vllm033"] = lambda: workload.vllm(folder, batch_size, parameters)
    arms: dict[str, Arm] = {}
    tokens: dict[str, float] = {}
    for name, make in makers.items():
        with run.errors_are_rows(**cell, arm=name):
            arm = make()
            for _ in range(WARM_CALLS if on_gpu else 1):
                arm()
            tokens[name] = round(float(arm().float().mean()), 3)  # type: ignore[attr-defined]  # [batch_size] int32
            arms[name] = arm
    if on_gpu and len(own) == 1 and flashinfer.versions():
        with run.errors_are_rows(**cell, arm="flashinfer"):
            theirs = flashinfer.arms(workload.logits[:rows], workload.draft_token_ids[:rows], batch_size, own[0])
            answers = {name: arm() for name, arm in theirs.items()}
            if num_drafts and "flashinfer" in answers:
                tokens["flashinfer"] = round(1 + float(answers["flashinfer"].float().mean()), 3)
            arms |= theirs
    for mode, measure in clock.modes().items():
        if mode not in modes:
            continue
        timed = dict(arms)
        if mode == "graph":
            captured = [name for name in arms if name != "ours launched"]
            timed = {name: arms[name] for name in captured if is_captured(run, arms[name], **cell, mode=mode, arm=name)}
            timed["copy"] = copy_of(2 * rows * cell["V"])
        with run.errors_are_rows(**cell, mode=mode):
            times = {name: clocks.summary(values) for name, values in measure(timed).items()}
            medians = {name: time["median"] for name, time in times.items()}
            ratio: Json = {}
            for key, other in (("ratio", "vllm033"), ("ratio_flashinfer", "flashinfer")):
                if {"ours", other} <= medians.keys():
                    ratio[key] = round(medians["ours"] / medians[other], 3)
            run.add(**cell, mode=mode, us=times, tokens=tokens, **ratio)


def is_captured(run: Run, function: Arm, **cell: object) -> bool:
    """Whether the arm can be captured in a graph; a row says if not."""
    with run.errors_are_rows(**cell):
        graph_of(function)
        return True
    return False


def main() -> int:
    parser = argparse.ArgumentParser(description="Time the whole sampling step and keep the record.")
    parser.add_argument("--vllm", type=Path, help="folder that holds vllm/ of 0.33.0")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--sets", nargs="*", choices=SETS, default=[*SETS], help="only these parameter sets")
    parser.add_argument("--batches", nargs="*", type=int, help="only these batch sizes")
    parser.add_argument("--vocab", nargs="*", type=int, help="only these vocabularies")
    parser.add_argument("--data", nargs="*", choices=DATA, default=["zipf"], help="only these kinds of rows")
    parser.add_argument("--modes", nargs="*", default=["graph", "eager", "host", "alone"], help="only these")
    parser.add_argument("--plain", action="store_true", help="one row per request and no drafts, beside FlashInfer")
    parser.add_argument("--interpret", action="store_true", help="tiny sizes, in Triton's interpreter, on the CPU")
    options = parser.parse_args()
    is_tiny = options.interpret
    batch_sizes = options.batches or ((2,) if is_tiny else BATCH_SIZES)
    device, length = ("cpu", 20) if is_tiny else ("cuda", OUTPUT_LENGTH)
    clock = CpuClock() if is_tiny else GpuClock(options.rounds)
    begin = time.monotonic()
    known: Json = {
        "commit": commit(),
        "before": clocks.machine(),
        "rounds": options.rounds,
        "upstream": VERIFY,
        "flashinfer": None if is_tiny else flashinfer.versions(),
    }
    drafts = {"drafts": 0} if options.plain else {}
    run = Run(options.out, {**known, "rows": []})
    sizes = options.vocab or ((300,) if is_tiny else VOCAB_SIZES)
    for vocab_size, data in itertools.product(sizes, options.data):
        workload = Workload(max(batch_sizes), vocab_size, length, device, data)
        for name, batch_size in itertools.product(options.sets, batch_sizes):
            cell = {"B": batch_size, "V": vocab_size, "data": data, "set": name, **drafts}
            measure_cell(run, clock, workload, options.vllm, cell, options.modes)
    run.record |= {"after": clocks.machine(), "sources": clocks.sources(), "seconds": round(time.monotonic() - begin)}
    write_record(options.out, run.record)
    print(f"written: {options.out}, {len(run.record['rows'])} rows in {run.record['seconds']} s")
    return 0
