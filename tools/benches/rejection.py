"""Time verification steps against each other on this GPU and keep the result as a JSON record.

    python tools/gpu_kernels                                   # once, for the arms `flashinfer` and `chain`
    python tools/bench.py rejection --vllm-022 DIR --vllm-033 DIR \
        --commit $(git rev-parse HEAD) --out perf_regression/records/rejection_h200.json
    python tools/bench.py rejection --eager ... --out perf_regression/records/rejection_eager_h100.json

Every figure is the median over rounds in one process, in microseconds. In each round every arm runs once, in a new
random order, each after 256 MiB were read to evict the L2 cache. Modes:

======== ==============================================================================================================
graph    one CUDA graph replay between two events; an empty replay is timed alike and not subtracted
queued   (`--eager`) an ordinary call between two events, launched while the GPU is busy: launches are hidden
idle     (`--eager`) an ordinary call on an idle GPU, from the call until its result is there: launches are included
======== ==============================================================================================================

Arms:

========== ============================================================================================================
ours       `rejection_counter` from bfloat16 logits; bonus tokens given
ours+bonus the same with bonus rows, as vLLM 0.33.0 and FlashInfer have them
ours-alone ours without a workspace: its kernels wait for each other (K=3, V=128256)
vllm022    vLLM 0.22.0 `rejection_sample` from float32 logits, as its caller hands them; bonus tokens given
vllm033    vLLM 0.33.0 V2 `rejection_sample` from bfloat16 target and draft logits, with bonus rows
flashinfer softmax of target logits, bonus rows among them, and chain speculative sampling; `chain` is the second alone
copy       a copy that moves as many bytes as ours must: half read, half written
========== ============================================================================================================
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import platform
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl
from records import gpu
from torch import Tensor

from benches import equality as equality
from benches import flashinfer_step as flashinfer
from benches import vllm_kernels as upstream
from fairdraw.perf_regression._records import write_record
from fairdraw.sampler_impl import rejection_counter
from fairdraw_engines import _flashinfer

BATCH_SIZES = (1, 8, 64, 256)
VOCAB_SIZES = (32000, 128256, 151936, 202048)
SPEC_LENS = (1, 3, 7)
KINDS = ("probs", "logits+lse", "one-hot")
FLUSH_BYTES = 256 << 20
SPIN_CYCLES = 8_000_000
"""Some four milliseconds, longer than any arm takes to be launched."""

Arm = Callable[[], object]
Times = dict[str, list[float]]
Json = dict[str, Any]  # Any: JSON


@triton.jit  # type: ignore[untyped-decorator]  # Triton ships no types
def _copy_kernel(  # type: ignore[no-untyped-def]
    to_ptr,
    from_ptr,
    size,
    BLOCK: tl.constexpr,
):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(to_ptr + at, tl.load(from_ptr + at, mask=at < size), mask=at < size)


class Clock:
    """Times arms with a cold L2; their rounds are interleaved."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds
        self.flush = torch.ones(FLUSH_BYTES // 4, dtype=torch.int32, device="cuda")
        self.order = random.Random(0)

    def measure(self, arms: dict[str, Arm]) -> Times:
        """Graph replays."""
        return self._rounds({name: capture(arm).replay for name, arm in arms.items()}, self._between_events)

    def measure_queued(self, arms: dict[str, Arm]) -> Times:
        """Ordinary calls, launched while the GPU spins for some milliseconds."""
        return self._rounds(arms, lambda arm: self._between_events(arm, SPIN_CYCLES))

    def measure_idle(self, arms: dict[str, Arm]) -> Times:
        """Ordinary calls on an idle GPU, in seconds of the host."""
        return self._rounds(arms, self._on_the_host)

    def _rounds(self, arms: dict[str, Arm], time_one: Callable[[Arm], Callable[[], float]]) -> Times:
        """Sorted microseconds of every arm. The first two rounds warm clocks and caches and are discarded."""
        times: Times = {name: [] for name in arms}
        for round_ in range(self.rounds + 2):
            readers = {name: time_one(arms[name]) for name in self.order.sample(sorted(arms), len(arms))}
            torch.cuda.synchronize()
            if round_ >= 2:
                for name, reader in readers.items():
                    times[name].append(reader())
        return {name: sorted(values) for name, values in times.items()}

    def _between_events(self, arm: Arm, spin_cycles: int = 0) -> Callable[[], float]:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.flush.sum()
        if spin_cycles:
            torch.cuda._sleep(spin_cycles)
        begin.record()
        arm()
        end.record()
        if spin_cycles:
            torch.cuda.synchronize()
        return lambda: begin.elapsed_time(end) * 1e3

    def _on_the_host(self, arm: Arm) -> Callable[[], float]:
        self.flush.sum()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        arm()
        torch.cuda.synchronize()
        microseconds = (time.perf_counter() - begin) * 1e6
        return lambda: microseconds


def capture(arm: Arm) -> torch.cuda.CUDAGraph:
    """The arm as a graph, after everything is compiled and loaded."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        arm()
        arm()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        arm()
    return graph


def copy_arm(num_bytes: int) -> Arm:
    """Moves `num_bytes` in all."""
    source = torch.randint(1 << 30, (max(num_bytes // 8, 1),), dtype=torch.int32, device="cuda")
    target = torch.empty_like(source)
    grid = (triton.cdiv(len(source), 4096),)
    return lambda: _copy_kernel[grid](target, source, len(source), BLOCK=4096)  # pyright: ignore[reportArgumentType]


class Batch:
    """Random requests: draft tokens are drawn from the draft distribution, a noisy copy of the target distribution."""

    def __init__(self, batch_size: int, max_spec_len: int, vocab_size: int, kind: str) -> None:
        noise = torch.Generator("cuda").manual_seed(batch_size * 1000003 + max_spec_len * 1009 + vocab_size)
        num_tokens = batch_size * max_spec_len
        self.batch_size, self.max_spec_len, self.vocab_size, self.kind = batch_size, max_spec_len, vocab_size, kind
        draft = torch.randn(num_tokens, vocab_size, device="cuda", generator=noise).mul_(2)
        target = torch.randn(num_tokens, vocab_size, device="cuda", generator=noise).mul_(1.15).add_(draft)
        self.draft_probs = draft.softmax(-1)
        self.draft_token_ids = self.draft_probs.multinomial(1, generator=noise).flatten().int()
        if kind == "one-hot":
            self._lift_drafted(target, noise)
        self.draft_logits = draft.bfloat16()
        self.draft_logsumexp = self.draft_logits.float().logsumexp(-1)
        self.logits = target.bfloat16()
        with_bonus = torch.randn(batch_size, max_spec_len + 1, vocab_size, device="cuda", generator=noise).mul_(2)
        with_bonus[:, :-1] = target.view(batch_size, max_spec_len, vocab_size)
        self.logits_with_bonus = with_bonus.bfloat16().view(-1, vocab_size)
        ends = torch.arange(1, batch_size + 1, dtype=torch.int32, device="cuda") * max_spec_len
        self.cu_num_draft_tokens = ends
        self.bonus_token_ids = torch.randint(
            vocab_size, (batch_size, 1), dtype=torch.int32, device="cuda", generator=noise
        )
        self.temperature = torch.ones(batch_size, device="cuda")
        self.seeds = torch.randint(1 << 62, (batch_size,), device="cuda", generator=noise)
        self.positions = torch.randint(1 << 31, (batch_size,), device="cuda", generator=noise)
        self.workspace = rejection_counter.make_workspace(batch_size, max_spec_len, vocab_size, "cuda")

    def _lift_drafted(
        self,
        target: Tensor,  # [num_tokens, vocab_size] float32, written
        noise: torch.Generator,
    ) -> None:
        """Give the drafted ids a target probability of 0.15 to 0.95: an n-gram that is often right."""
        ids = self.draft_token_ids.long()[:, None]
        target.scatter_(1, ids, float("-inf"))
        probability = torch.rand(len(ids), 1, device="cuda", generator=noise) * 0.8 + 0.15
        rest = target.logsumexp(1, keepdim=True)
        target.scatter_(1, ids, rest + torch.log(probability / (1 - probability)))

    def draft(self) -> Json:
        if self.kind == "probs":
            return {"draft_probs": self.draft_probs}
        if self.kind == "logits+lse":
            return {"draft_logits": self.draft_logits, "draft_logsumexp": self.draft_logsumexp}
        return {"draft_logits": self.draft_logits} if self.kind == "logits" else {}

    def ours(self, bonus_rows: bool = False, **changes: Any) -> Tensor:  # Any: any argument
        arguments = (self.temperature, self.seeds, self.positions)
        rows = self.logits_with_bonus if bonus_rows else self.logits
        bonus = {} if bonus_rows else {"bonus_token_ids": self.bonus_token_ids}
        changes = {"workspace": self.workspace, **changes}
        return rejection_counter.rejection_sample(
            self.draft_token_ids, self.cu_num_draft_tokens, self.max_spec_len, rows, *arguments,
            **{**self.draft(), **bonus, **changes},
        )  # fmt: skip

    def rejecting(self) -> int:
        """Requests that recover a token."""
        return int((self.ours()[:, -1] < 0).sum())

    def rows_to_read(self) -> int:
        """Up to the first rejected one of each request."""
        return int((self.ours()[:, : self.max_spec_len] >= 0).sum())

    def bytes_to_move(self) -> int:
        """Those target logits once; of a rejected row the target logits again and the draft's row (one-hot: a tile)."""
        per_entry = {"probs": 6, "logits+lse": 4, "logits": 4, "one-hot": 0}[self.kind]
        tile = 2 * 1024 if self.kind == "one-hot" else 0
        once = self.rows_to_read() * 2 * self.vocab_size
        own = self.draft_logits.numel() * 2 if self.kind == "logits" else 0
        return once + own + self.rejecting() * (per_entry * self.vocab_size + tile)


def arms_of(batch: Batch, tools: Json) -> dict[str, Arm]:
    arms: dict[str, Arm] = {"ours": batch.ours, "ours+bonus": lambda: batch.ours(bonus_rows=True)}
    if batch.vocab_size == 128256 and batch.max_spec_len == 3:
        arms["ours-alone"] = lambda: batch.ours(workspace=None)
    arms["copy"] = copy_arm(batch.bytes_to_move())
    dense = batch.kind != "one-hot"
    if "vllm022" in tools:
        logits = batch.logits.float()
        counts = [batch.max_spec_len] * batch.batch_size
        metadata = upstream.v1_metadata(batch.batch_size)
        arms["vllm022"] = lambda: tools["vllm022"].rejection_sample(
            batch.draft_token_ids, counts, batch.max_spec_len, batch.cu_num_draft_tokens,
            batch.draft_probs if dense else None, logits, batch.bonus_token_ids, metadata,
        )  # fmt: skip
    if "vllm033" in tools:
        rest = upstream.v2_arguments(
            batch.draft_token_ids, batch.batch_size, batch.max_spec_len, batch.seeds, batch.positions
        )
        draft_logits = batch.draft_logits.view(batch.batch_size, batch.max_spec_len, -1) if dense else None
        arms["vllm033"] = lambda: tools["vllm033"].rejection_sample(batch.logits_with_bonus, draft_logits, *rest)
    if "flashinfer" in tools and batch.kind == "probs":
        chain = partial(_chained, tools["flashinfer"], batch)
        probs = batch.logits_with_bonus.softmax(-1, dtype=torch.float32)
        arms["chain"] = lambda: chain(probs)
        arms["flashinfer"] = lambda: chain(batch.logits_with_bonus.softmax(-1, dtype=torch.float32))
    return arms


def _chained(
    fi: Any,  # Any: FlashInfer's module
    batch: Batch,
    target_probs: Tensor,  # [num_rows, vocab_size] float32
) -> Tensor:  # [batch_size, max_spec_len + 1] int32
    shape, vocab_size = (batch.batch_size, batch.max_spec_len), target_probs.shape[1]
    output: Tensor = fi.chain_speculative_sampling(
        batch.draft_probs.view(*shape, vocab_size),
        batch.draft_token_ids.view(shape),
        target_probs.view(shape[0], shape[1] + 1, vocab_size),
        seed=7,
        offset=11,
    )[0]
    return output


def summary(times: list[float]) -> Json:
    quarter = len(times) // 4
    return {
        "median": round(statistics.median(times), 2),
        "low": round(times[quarter], 2),
        "high": round(times[-1 - quarter], 2),
    }


def measure_case(clock: Clock, tools: Json, batch: Batch) -> Json:
    times = {name: summary(values) for name, values in clock.measure(arms_of(batch, tools)).items()}
    moved = batch.bytes_to_move()
    median = {name: value["median"] for name, value in times.items()}
    case: Json = {"kind": batch.kind, "B": batch.batch_size, "K": batch.max_spec_len, "V": batch.vocab_size}
    case |= {"rejecting": batch.rejecting(), "bytes": moved, "us": times}
    case["of_copy"] = round(median["copy"] / median["ours"], 3)
    pairs = {"vllm022": "ours", "vllm033": "ours+bonus", "flashinfer": "ours+bonus"}
    case["ratio"] = {name: round(median[own] / median[name], 3) for name, own in pairs.items() if name in median}
    if "vllm033" in median:
        case["ratio"]["vllm033, bonus given to ours"] = round(median["ours"] / median["vllm033"], 3)
    print(batch.kind, batch.batch_size, batch.max_spec_len, batch.vocab_size, median, case["ratio"], flush=True)
    return case


def measure_copies(clock: Clock) -> list[Json]:
    """What the GPU can do: by a kernel, and by the driver's copy, which in a graph is slower beyond 512 MiB."""
    rows: list[Json] = []
    for mebibytes in (50, 100, 350, 1024, 4096):
        kernel = copy_arm(mebibytes << 20)
        source = torch.zeros(mebibytes << 19, dtype=torch.uint8, device="cuda").random_()
        target = torch.empty_like(source)
        arms: dict[str, Arm] = {
            "kernel": kernel,
            "driver": partial(target.copy_, source),
            "read": source.view(torch.int32).amax,
        }
        times = {name: statistics.median(values) for name, values in clock.measure(arms).items()}
        moved = {"kernel": mebibytes << 20, "driver": mebibytes << 20, "read": mebibytes << 19}
        rates = {name: round(moved[name] / value / 1e6, 3) for name, value in times.items()}
        rows.append({"MiB": mebibytes, "us": {k: round(v, 1) for k, v in times.items()}, "TB/s": rates})
        print("copy", rows[-1], flush=True)
    return rows


def measure_eager(clock: Clock, tools: Json) -> list[Json]:
    """Ordinary calls at K=3 and V=128256, as vLLM calls its sampler: while the GPU is busy, and on an idle one."""
    rows: list[Json] = []
    for kind in ("probs", "one-hot"):
        for batch_size in BATCH_SIZES:
            arms = arms_of(Batch(batch_size, 3, 128256, kind), tools)
            for name in ("copy", "chain", "ours-alone"):
                arms.pop(name, None)
            row: Json = {"kind": kind, "B": batch_size, "K": 3, "V": 128256}
            for mode, measure in (("queued", clock.measure_queued), ("idle", clock.measure_idle)):
                row[mode] = {name: summary(values) for name, values in measure(arms).items()}
            rows.append(row)
            print("eager", row, flush=True)
    return rows


def machine() -> Json:
    fields = "driver_version,clocks.sm,clocks.mem,clocks.max.sm,clocks.max.mem,temperature.gpu,power.draw"
    query = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"]
    shown = subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip()
    return {
        **gpu(),
        "nvidia-smi": dict(zip(fields.split(","), shown.split(", "), strict=False)),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def sources() -> dict[str, str]:
    """SHA-256 of the modules that were measured, which may be newer than the commit."""
    package = rejection_counter.__name__.rpartition(".")[0]
    loaded = {name: module.__file__ for name, module in sorted(sys.modules.items()) if name.startswith(package)}
    return {name: hashlib.sha256(Path(file).read_bytes()).hexdigest() for name, file in loaded.items() if file}


def load_tools(options: argparse.Namespace) -> tuple[Json, Json]:
    """What can be compared with here, and what the record says about it."""
    tools: Json = {}
    about: Json = {}
    for name, folder, module in (
        ("vllm022", options.vllm_022, upstream.V1),
        ("vllm033", options.vllm_033, upstream.V2),
    ):
        if folder is not None:
            tools[name], digest = upstream.load_vllm(folder, module)
            about[name] = {"module": module, "sha256": digest}
    if versions := flashinfer.versions():
        tools["flashinfer"], about["flashinfer"] = _flashinfer.load(), versions
    return tools, about


def main() -> int:
    parser = argparse.ArgumentParser(description="Time verification steps and keep the record.")
    parser.add_argument("--vllm-022", type=Path, help="folder that holds vllm/, release 0.22.0")
    parser.add_argument("--vllm-033", type=Path, help="folder that holds vllm/, release 0.33.0")
    parser.add_argument("--commit", required=True, help="of the tree that runs")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--quick", action="store_true", help="only V=128256, K=3, B=64 and 256")
    parser.add_argument("--eager", action="store_true", help="only ordinary calls, at K=3 and V=128256")
    options = parser.parse_args()
    tools, about = load_tools(options)
    clock = Clock(options.rounds)
    record: Json = {"commit": options.commit, "before": machine(), "rounds": options.rounds, "upstream": about}
    if options.eager:
        record["eager"] = measure_eager(clock, tools)
    else:
        record |= measure_graphs(clock, tools, options.quick)
    record |= {"after": machine(), "sources": sources()}
    write_record(options.out, record)
    print(f"written: {options.out}")
    return 0


def measure_graphs(clock: Clock, tools: Json, quick: bool) -> Json:
    grid = [(b, v, k, kind) for kind in KINDS for v in VOCAB_SIZES for k in SPEC_LENS for b in BATCH_SIZES]
    if quick:
        grid = [(b, 128256, 3, kind) for kind in (*KINDS, "logits") for b in (64, 256)]
    empty = torch.zeros(1, device="cuda")
    record: Json = {"empty_replay_us": summary(clock.measure({"empty": lambda: empty.add_(1)})["empty"])}
    record["copies"] = measure_copies(clock)
    if "vllm022" in tools:
        record["compatible"] = equality.measure(clock, tools["vllm022"])
        record["equality"] = equality.compare(tools["vllm022"], 200 if quick else 10_000)
    record["cases"] = [measure_case(clock, tools, Batch(b, k, v, kind)) for b, v, k, kind in grid]
    return record
