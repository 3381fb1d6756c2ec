"""Ask FlashInfer's and SGLang's kernels on this GPU, and keep their answers as a JSON record, a row per line.

    python tools/gpu_kernels                                                        # the library; no GPU is needed
    python tools/gpu_kernels/record.py --out statistical/records/foreign_kernels_h200.json
    python tools/gpu_kernels/record.py --parts edges --draws 1e6 --out /tmp/edges.json

Parts of the record:

============= =========================================================================================================
contracts     `fairdraw check NAME` on each adapter: a row per check that ran
distributions one row of logits, many draws by one kernel, Pearson's chi-square against the exact distribution
kept          adversarial rows (ties at every threshold, -inf, flat, denormal) through the kernels that filter, beside a
              float64 reference; a row within 1e-6 of top-p counts apart
edges         what reading the kernels made us ask; each row says what is expected
============= =========================================================================================================

`result` is passed, failed, undecided, or known for a check that `known_defects.toml` names; `effect` is what was
counted. Seeds and offsets are FlashInfer's. Properties run at profile ci, statistics at smoke. Each question about a
distribution stops after `--each` seconds; `draws` says how many it took.
"""

from __future__ import annotations

import argparse
import functools
import json
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from records import commit, gpu, machine
from records.step import Filters, adversarial_rows, chi_square, exact_distribution, kept_reference, parameters_of
from torch import Tensor

from fairdraw.perf_regression._records import write_record
from fairdraw.protocols import SamplingBatch, SeededNoise
from fairdraw.sampler_impl.step import Parameters
from fairdraw_engines import _flashinfer, _gpu_kernels, _sglang_tree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Json = dict[str, Any]  # Any: JSON
ADAPTERS = (
    *("rejection/flashinfer", "rejection/sglang-tree"),
    *("sampling/flashinfer", "sampling/flashinfer-logits", "sampling/sglang-flashinfer"),
)
ALPHA = 1e-6
CARD = Filters(top_k=20, top_p=0.95)
PRODUCTION = 151936


@dataclass
class Run:
    """Rows of the record, each printed and written at once."""

    out: Path
    draws: int
    until: float
    record: Json
    each: float = 1e9
    fi: Any = field(default_factory=_flashinfer.load)  # Any: FlashInfer's module

    def add(self, part: str, kernel: str, check: str, result: bool | str, **found: object) -> None:
        """`result`: whether it passed, or the word that says so."""
        word = result if isinstance(result, str) else ("passed" if result else "failed")
        row = {"part": part, "kernel": kernel, "check": check, "result": word, **found}
        self.record["rows"].append(row)
        print(row, flush=True)
        write_record(self.out, self.record)

    def rounds(self, most: int, times: float = 1.0) -> Iterator[int]:
        """Rounds of a question: `most`, or as many as `times` its share of the time allows; at least one."""
        ends = time.monotonic() + times * self.each
        for number in range(most):
            yield number
            torch.cuda.synchronize()
            if time.monotonic() > ends:
                return

    def ask(self, part: str, name: str, function: Callable[[Run], None]) -> None:
        """One question; an error is an answer, too."""
        begin = time.monotonic()
        if begin > self.until:
            self.record.setdefault("left_out", []).append(name)
            return
        try:
            function(self)
            torch.cuda.synchronize()
        except Exception as error:  # whatever a kernel raises
            self.add(part, name, "runs", False, effect=f"{type(error).__name__}: {str(error)[-200:]}")
        print(f"{name}: {time.monotonic() - begin:.1f} s", flush=True)


# Contracts


@dataclass(frozen=True)
class Job:
    """One `fairdraw check`. `codes`: only these, by their beginnings."""

    name: str
    suite: str
    workers: int
    profile: str
    codes: tuple[str, ...] = ()

    def command(self, path: Path, seconds: float) -> list[str]:
        chosen = [word for code in self.codes for word in ("-k", code)]
        words = ["--only", self.suite, "--profile", self.profile, "-n", str(self.workers), *chosen]
        words += ["--time-budget", str(seconds), "-q", "--color", "never", "--json", str(path)]
        return [sys.executable, "-m", "fairdraw", "check", self.name, *words]


_TREE = ("DIST1", "DIST2", "DIST30", "DIST31", "DIST34", "DIST4", "DIST5")
_SAMPLING = ("DIST70", "DIST71", "DIST74", "DIST77")
JOBS = (
    *(Job(name, "properties", 1 if name.startswith("rejection") else 2, "ci") for name in ADAPTERS),
    Job("rejection/flashinfer", "statistical", 3, "smoke", (*_TREE, "DIST321")),
    Job("rejection/sglang-tree", "statistical", 1, "smoke", _TREE),
    Job("sampling/flashinfer", "statistical", 4, "smoke", (*_SAMPLING, "DIST72", "DIST761")),
    Job("sampling/flashinfer-logits", "statistical", 2, "smoke", _SAMPLING),
    Job("sampling/sglang-flashinfer", "statistical", 2, "smoke", _SAMPLING),
)
"""What ends within three minutes on 16 cores. Left out: large vocabularies for all but one, and most of the questions
whether rows and calls are independent; DIST321 and DIST761 ask that of rows."""


@contextmanager
def contracts(run: Run, seconds: float) -> Iterator[None]:
    """Every job in a process of its own, beside what the caller does meanwhile; their rows come last."""
    with tempfile.TemporaryDirectory() as folder:
        running = []
        for number, job in enumerate(JOBS):
            path, log = Path(folder) / f"{number}.json", run.out.with_suffix(f".{number}.txt")
            with log.open("w") as said:
                process = subprocess.Popen(job.command(path, seconds), stdout=said, stderr=subprocess.STDOUT)
            running.append((job, path, log, process))
        yield
        for job, path, log, process in running:
            process.wait(timeout=seconds + 120)
            if not path.exists():
                run.add("contracts", job.name, "runs", False, effect=log.read_text()[-300:])
                continue
            for line in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
                _add_check(run, job, line)


def _add_check(run: Run, job: Job, line: Json) -> None:
    if line["kind"] == "summary":
        names = ("passed", "failed", "error", "xfailed", "inconclusive", "incomplete", "skipped")
        counts = {name: line[name] for name in names}
        found = {**counts, "seconds": line["seconds"], "verdict": line["verdict"]}
        run.record.setdefault("contracts", {})[f"{job.name}, {job.suite} at {job.profile}"] = found
    if line["kind"] != "check" or line["status"] == "skipped":
        return
    report = line["failure_report"] or {}
    words = {"passed": "passed", "inconclusive": "undecided", "incomplete": "undecided", "xfailed": "known"}
    effect = report.get("effect") or line["reason"] or line["title"]
    drawn = {"draws": line["cases"], "seconds": line["seconds"], "reason": line["reason"]}
    run.add("contracts", job.name, line["code"], words.get(line["status"], "failed"), effect=effect, **drawn)


# Distributions


def zipf_row(vocab_size: int) -> Tensor:  # [1, vocab_size] float32
    noise = torch.Generator("cuda").manual_seed(vocab_size)
    ranks = torch.randperm(vocab_size, generator=noise, device="cuda").float()
    return (-1.1 * (1 + ranks).log() + 0.1 * ranks.cos())[None]


def counted(
    run: Run, draw: Callable[[Tensor], Tensor], vocab_size: int, num_draws: int
) -> Tensor:  # [vocab_size] int64
    """How often each token comes; `draw` takes the row of each output, all of them 0."""
    indices = torch.zeros(min(1 << 18, num_draws), dtype=torch.int32, device="cuda")
    counts = torch.zeros(vocab_size + 1, dtype=torch.int64, device="cuda")
    for _ in run.rounds(-(-num_draws // len(indices))):
        tokens = draw(indices).long()
        inside = (tokens >= 0) & (tokens < vocab_size)
        counts += torch.where(inside, tokens, vocab_size).bincount(minlength=vocab_size + 1)
    if int(counts[-1]):
        raise RuntimeError(f"{int(counts[-1])} of {num_draws} ids outside the vocabulary")
    return counts[:-1]


def compare(run: Run, kernel: str, check: str, counts: Tensor, exact: Tensor) -> None:  # both [vocab_size]
    """One row of the record by a chi-square."""
    p_value, cells = chi_square(counts, exact)
    total = int(counts.sum())
    distance = 0.5 * float((counts / total - exact).abs().sum())
    forbidden = int(counts[exact == 0].sum())
    effect = f"p {p_value:.3g}, {cells} cells, TV {distance:.2g} with noise" + (
        f", {forbidden} forbidden" * bool(forbidden)
    )
    run.add("distributions", kernel, check, p_value > ALPHA, effect=effect, draws=total)


def joint_distribution(logits: Tensor, filters: Filters) -> Tensor:  # [vocab_size] float64
    """Both filters look at the whole distribution."""
    kept = [
        kept_reference(logits[None], parameters_of([one], "cuda"))[0][0]
        for one in (Filters(top_k=filters.top_k), Filters(top_p=filters.top_p))
    ]
    return logits.double().masked_fill(~(kept[0] & kept[1]), -torch.inf).softmax(-1)


def draws_of(run: Run, vocab_size: int) -> Iterator[tuple[str, str, Callable[[Tensor], Tensor], Tensor]]:
    """Kernel, what is drawn, the draw, its exact distribution."""
    fi, logits = run.fi, zipf_row(vocab_size)
    probs = fi.softmax(logits)
    cold = fi.softmax(logits, 0.6)

    def exact(filters: Filters) -> Tensor:  # [vocab_size] float64
        return exact_distribution(logits[0], filters, "cuda")

    def one(number: float, dtype: torch.dtype = torch.float32) -> Tensor:  # [1] any
        return torch.tensor([number], dtype=dtype, device="cuda")

    k20, k1000, ints = one(20, torch.int32), one(1000, torch.int32), torch.int32
    p95, joint = one(0.95), "joint"
    yield "sampling_from_probs", "softmax", lambda at: fi.sampling_from_probs(probs, at), exact(Filters())
    yield "softmax", "T=0.6", lambda at: fi.sampling_from_probs(cold, at), exact(Filters(0.6))
    yield "sampling_from_logits", "softmax", lambda at: fi.sampling_from_logits(logits, at), exact(Filters())
    for top_k in (k20, k1000, one(1, ints)):
        name = f"top-k {int(top_k)}"
        target = exact(Filters(top_k=int(top_k)))
        yield "top_k_sampling_from_probs", name, lambda at, k=top_k: fi.top_k_sampling_from_probs(probs, k, at), target
    for number in (0.9, 0.5, 0.999):
        top_p, target = one(number), exact(Filters(top_p=float(one(number))))
        yield (
            "top_p_sampling_from_probs",
            f"top-p {number}",
            lambda at, p=top_p: fi.top_p_sampling_from_probs(probs, p, at),
            target,
        )
    for number in (0.05, 1e-4, 0.0):
        min_p, target = one(number), exact(Filters(min_p=float(one(number))))
        yield (
            "min_p_sampling_from_probs",
            f"min-p {number}",
            lambda at, p=min_p: fi.min_p_sampling_from_probs(probs, p, at),
            target,
        )
    in_turn = functools.partial(fi.top_k_top_p_sampling_from_probs, probs, k20, p95)
    yield "top_k_top_p_sampling_from_probs", "top-k 20, then top-p 0.95", in_turn, exact(CARD)
    fused = functools.partial(fi.top_k_top_p_sampling_from_probs, probs, k1000, one(0.8), filter_apply_order=joint)
    target = joint_distribution(logits[0], Filters(top_k=1000, top_p=float(one(0.8))))
    yield "top_k_top_p_sampling_from_probs", "top-k 1000 and top-p 0.8, joint", fused, target
    from_logits = functools.partial(fi.top_k_top_p_sampling_from_logits, logits, k20, p95)
    yield "top_k_top_p_sampling_from_logits", "top-k 20, then top-p 0.95", from_logits, exact(CARD)


def distributions(run: Run, vocab_size: int, num_draws: int) -> None:
    for kernel, what, draw, exact in draws_of(run, vocab_size):
        check = f"{what}, {vocab_size} tokens"

        def question(
            run: Run, kernel: str = kernel, check: str = check, draw: Any = draw, exact: Tensor = exact
        ) -> None:
            compare(run, kernel, check, counted(run, draw, vocab_size, num_draws), exact)

        run.ask("distributions", f"{kernel}, {check}", question)


def verified(run: Run, kernel: str, vocab_size: int, num_draws: int) -> None:
    """The first token of a request with one draft follows the target, and so does the bonus token."""
    target = zipf_row(vocab_size)[0]
    exact, draft = target.double().softmax(-1), (target.roll(7) * 0.9).softmax(-1)
    batch = min(4096, num_draws)
    targets = target.softmax(-1).expand(batch, 2, -1).contiguous()
    counts = torch.zeros(2, vocab_size, dtype=torch.int64, device="cuda")
    drafts = draft.expand(batch, 1, -1).contiguous()
    for _ in run.rounds(-(-num_draws // batch)):
        ids = draft.multinomial(batch, replacement=True)[:, None].int()
        tokens = VERIFY[kernel](run, drafts, ids, targets)
        counts[0] += tokens[:, 0].long().bincount(minlength=vocab_size)
        counts[1] += tokens[tokens[:, 1] >= 0, 1].long().bincount(minlength=vocab_size)
    compare(run, kernel, f"first token, {vocab_size} tokens", counts[0], exact)
    compare(run, kernel, f"bonus token, {vocab_size} tokens", counts[1], exact)


def _chain(run: Run, drafts: Tensor, ids: Tensor, targets: Tensor) -> Tensor:  # [batch_size, num_drafts + 1] int32
    tokens: Tensor = run.fi.chain_speculative_sampling(drafts, ids, targets)[0]
    return tokens


def _tree(run: Run, drafts: Tensor, ids: Tensor, targets: Tensor) -> Tensor:  # [batch_size, num_drafts + 1] int32
    batch, nodes = targets.shape[:2]
    tokens = torch.full((batch, nodes), -1, dtype=torch.int32, device="cuda")
    slots = torch.arange(tokens.numel(), device="cuda").view(batch, nodes)
    _sglang_tree.verify_chains(
        predicts=tokens,
        accept_index=torch.full_like(tokens, -1),
        accept_token_num=torch.empty(batch, dtype=torch.int32, device="cuda"),
        candidates=torch.nn.functional.pad(ids.long(), (1, 0)),
        retrive_index=slots,
        uniform_samples=torch.rand(batch, nodes, device="cuda"),
        uniform_samples_for_final_sampling=torch.rand(batch, device="cuda"),
        target_probs=targets,
        threshold_single=1.0,
        threshold_acc=1.0,
    )
    return tokens


VERIFY = {"chain_speculative_sampling": _chain, "tree_speculative_sampling_target_only": _tree}


# Kept sets


TINY = torch.finfo(torch.float32).tiny
"""Compiled with fast math, the kernels take smaller numbers for 0, and equal to each other."""
TAIL = 1e-6
"""Of the mass. Where top-p is 1, a float32 sum has reached it before tokens that together have less."""


@dataclass
class Tally:
    """Rows of one kernel, and of which kind and parameter those are that differ."""

    equal: int = 0
    near: int = 0
    different: int = 0
    where: dict[str, int] = field(default_factory=dict)

    def add(self, is_equal: Tensor, is_near: Tensor, parameter: Tensor, kind: Tensor) -> None:  # all [num_rows]
        self.equal += int(is_equal.sum())
        self.near += int((~is_equal & is_near).sum())
        other = ~is_equal & ~is_near
        self.different += int(other.sum())
        for value, number in zip(parameter[other].tolist(), kind[other].tolist(), strict=True):
            name = f"kind {number}, parameter {value:.4g}"
            self.where[name] = self.where.get(name, 0) + 1


def kept(run: Run, vocab_size: int, num_rows: int) -> None:
    """Which tokens of adversarial rows the filtering kernels leave. Ties at a threshold stay together."""
    noise, batch = torch.Generator("cuda").manual_seed(21), min(4096, num_rows)
    names = ("top_k_renorm_probs", "top_k_mask_logits", "top_p_renorm_probs")
    found = {name: Tally() for name in names}
    for _ in run.rounds(-(-num_rows // batch), times=3.0):
        logits = adversarial_rows(batch, vocab_size, noise, "cuda")
        is_row = ~logits.isnan().any(-1)
        kind, logits = (torch.arange(batch, device="cuda") % 8)[is_row], logits[is_row].contiguous()
        probs = logits.softmax(-1)
        ks = torch.tensor([1, 2, 20, 50, vocab_size - 1, vocab_size], device="cuda")
        top_k = ks[torch.randint(len(ks), (len(logits),), generator=noise, device="cuda")].int()
        ps = torch.tensor([1.0, 0.95, 0.5, 0.999, 1e-6], device="cuda")
        top_p = ps[torch.randint(len(ps), (len(logits),), generator=noise, device="cuda")]
        answers = {
            "top_k_renorm_probs": (run.fi.top_k_renorm_probs(probs, top_k) > 0, probs.log(), {"top_k": top_k}),
            "top_k_mask_logits": (run.fi.top_k_mask_logits(logits, top_k) > -torch.inf, logits, {"top_k": top_k}),
            "top_p_renorm_probs": (run.fi.top_p_renorm_probs(probs, top_p) > 0, probs.log(), {"top_p": top_p}),
        }
        for name, (answer, given, parameter) in answers.items():
            (column,) = parameter.values()
            found[name].add(*_compared(answer, given, probs, parameter), column, kind)
    for name, tally in found.items():
        counts = {"equal": tally.equal, "within rounding of a threshold": tally.near, "different": tally.different}
        check = f"kept tokens equal the reference's, {vocab_size} tokens"
        total = tally.equal + tally.near + tally.different
        run.add("kept", name, check, not tally.different, effect=counts, draws=total, where=tally.where)


def _compared(
    answer: Tensor,  # [num_rows, vocab_size] bool
    logits: Tensor,  # [num_rows, vocab_size] float32: what the kernel is given, or its logarithm
    probs: Tensor,  # [num_rows, vocab_size] float32
    parameter: dict[str, Tensor],
) -> tuple[Tensor, Tensor]:  # both [num_rows] bool
    """Whether a row is equal, and whether rounding may decide it otherwise."""
    off = parameters_of([Filters()], "cuda")
    columns = {name: getattr(off, name).expand(len(logits)) for name in ("temperature", "top_k", "top_p", "min_p")}
    flushed = torch.where(logits.abs() < TINY, 0.0, logits)
    reference, is_near = kept_reference(flushed, Parameters(**{**columns, **parameter}))
    differ = (answer != reference) & (probs >= TINY)
    lost = probs.double().masked_fill(~(differ & reference), 0.0).sum(-1)
    is_off = parameter.get("top_p", torch.zeros(1, device="cuda")) >= 1
    return ~differ.any(-1), is_near | (is_off & (lost < TAIL) & ~(differ & answer).any(-1))


# Edges


def shares_noise_with_torch(run: Run) -> None:
    """A flat row shows the uniform of each draw. torch.rand, called next, must draw others."""
    rows, size = 1024, 1 << 16
    probs = torch.full((rows, size), 1 / size, device="cuda")
    torch.manual_seed(21)
    before = torch.rand(rows, device="cuda")
    tokens = run.fi.sampling_from_probs(probs)
    after = torch.rand(rows, device="cuda")
    again = run.fi.sampling_from_probs(probs)

    def equal(other: Tensor) -> float:  # [num_rows] float32
        return float(((tokens + 0.5) / size - other).abs().lt(2 / size).float().mean())

    effect = {
        "torch.rand after": equal(after),
        "torch.rand before": equal(before),
        "next call": equal((again + 0.5) / size),
    }
    check = "a row's uniform is not torch's next one"
    run.add("edges", "sampling_from_probs", check, max(effect.values()) < 0.02, effect=effect, draws=rows)


def coin_follows_the_token(run: Run) -> None:
    """SGLang's order: FlashInfer draws the first token, then `torch.rand` the coins that verify the next drafts."""
    calls, rows = 4096, 8
    probs = torch.full((rows, 2), 0.5, device="cuda")
    top_k, top_p = torch.full((rows,), 2, dtype=torch.int32, device="cuda"), torch.ones(rows, device="cuda")
    accepted = torch.zeros(2, 2, device="cuda")  # by token: draws, drafts accepted
    for _ in range(calls):
        tokens = run.fi.top_k_top_p_sampling_from_probs(probs, top_k, top_p, filter_apply_order="joint")
        coins = torch.rand(rows, 4, device="cuda")
        accepted[tokens[0].long()] += torch.stack([torch.ones((), device="cuda"), (coins[0, 0] < 0.5).float()])
    rates = (accepted[:, 1] / accepted[:, 0]).tolist()
    effect = {"a draft of probability 0.5 is accepted after token 0": rates[0], "after token 1": rates[1]}
    check = "SGLang's first coin does not depend on the token before"
    run.add(
        "edges", "top_k_top_p_sampling_from_probs", check, abs(rates[0] - rates[1]) < 0.2, effect=effect, draws=calls
    )


def many(run: Run, draw: Callable[[int], Tensor], num_draws: int, batch: int = 1 << 20) -> tuple[int, int]:
    """How often `draw(batch)`, whose answer is bool, says yes, and of how many."""
    total, asked = torch.zeros((), dtype=torch.int64, device="cuda"), 0
    for _ in run.rounds(-(-num_draws // batch)):
        total += draw(batch).sum()
        asked += batch
    return int(total), asked


def min_p_of_zero_keeps_the_support(run: Run) -> None:
    """The last token is forbidden, and rows beside others with min-p have min-p 0, as in SGLang's batches."""
    for size, num_draws in ((8, 10 * run.draws), (PRODUCTION, run.draws // 4)):
        logits = zipf_row(size)
        logits[0, size - 1] = -torch.inf
        probs = run.fi.top_k_renorm_probs(
            logits.softmax(-1), torch.tensor([min(20, size)], dtype=torch.int32, device="cuda")
        )
        for number in (0.0, 0.01):
            min_p = torch.tensor([number], device="cuda")

            def forbidden(batch: int, probs: Tensor = probs, min_p: Tensor = min_p) -> Tensor:  # [batch_size] bool
                indices = torch.zeros(batch, dtype=torch.int32, device="cuda")
                return probs[0, run.fi.min_p_sampling_from_probs(probs, min_p, indices).long()] == 0

            count, asked = many(run, forbidden, num_draws)
            check = f"min-p {number}: a forbidden token never comes, {size} tokens"
            run.add("edges", "min_p_sampling_from_probs", check, count == 0, effect=f"{count} times", draws=asked)


def samplers_keep_the_support(run: Run) -> None:
    """The same of the other samplers."""
    logits = zipf_row(8)
    logits[0, 7] = -torch.inf
    probs, ones = logits.softmax(-1), torch.ones(1, device="cuda")
    all_tokens = torch.full((1,), 8, dtype=torch.int32, device="cuda")
    samplers = {
        "sampling_from_probs": lambda at: run.fi.sampling_from_probs(probs, at),
        "sampling_from_logits": lambda at: run.fi.sampling_from_logits(logits, at),
        "top_p_sampling_from_probs": lambda at: run.fi.top_p_sampling_from_probs(probs, ones, at),
        "top_k_sampling_from_probs": lambda at: run.fi.top_k_sampling_from_probs(probs, all_tokens, at),
        "top_k_top_p_sampling_from_probs": lambda at: run.fi.top_k_top_p_sampling_from_probs(
            probs, all_tokens, ones, at, filter_apply_order="joint"
        ),
    }
    for name, sample in samplers.items():

        def forbidden(batch: int, sample: Callable[[Tensor], Tensor] = sample) -> Tensor:  # [batch_size] bool
            return sample(torch.zeros(batch, dtype=torch.int32, device="cuda")) == 7

        count, asked = many(run, forbidden, 4 * run.draws)
        check = "a forbidden token never comes, 8 tokens"
        run.add("edges", name, check, count == 0, effect=f"{count} times", draws=asked)


def certain_drafts_are_kept(run: Run) -> None:
    """Target and drafter are certain of the same token: nothing else may come."""
    size, token, batch = 8, 3, 1 << 20
    certain = torch.nn.functional.one_hot(torch.tensor([token], device="cuda"), size).float()
    drafts, targets = certain.expand(batch, 1, -1).contiguous(), certain.expand(batch, 2, -1).contiguous()
    ids = torch.full((batch, 1), token, dtype=torch.int32, device="cuda")
    num_draws = 10 * run.draws
    for name, verify in VERIFY.items():
        calls, wrong = 0, []
        for _ in run.rounds(max(1, num_draws // batch), times=5.0):
            calls += 1
            first = verify(run, drafts, ids, targets)[:, 0]
            wrong.append(first[first != token])
        seen = torch.cat(wrong).tolist()
        effect = {"other tokens": len(seen), "ids": sorted(set(seen))[:20], "vocab_size": size}
        run.add("edges", name, "a draft that both are certain of is kept", not seen, effect=effect, draws=calls * batch)


def rows_without_residual(run: Run) -> None:
    """A rejected draft whose residual is empty, after a call with a larger vocabulary: which id comes."""
    size, batch = 8, 4096
    flat = torch.full((batch, PRODUCTION // 4), 4 / PRODUCTION, device="cuda")
    certain = torch.nn.functional.one_hot(torch.tensor([3], device="cuda"), size).float()
    drafts = certain.expand(batch, 1, -1).contiguous()
    ids = torch.full((batch, 1), 3, dtype=torch.int32, device="cuda")
    for what, value in (("zero", 0.0), ("NaN", torch.nan)):
        targets = torch.full((batch, 2, size), value, device="cuda")
        for name, verify in VERIFY.items():
            run.fi.sampling_from_probs(flat)
            first = verify(run, drafts, ids, targets)[:, 0]
            outside = int(((first < 0) | (first >= size)).sum())
            effect = {
                "ids outside the vocabulary": outside,
                "ids": sorted(set(first.tolist()))[:20],
                "vocab_size": size,
            }
            check = f"a target row of {what} gives an id within the vocabulary"
            run.add("edges", name, check, outside == 0, effect=effect, draws=batch)


def tails_keep_their_mass(run: Run) -> None:
    """One token of probability 1/2, and a flat tail that has the other half."""
    logits = torch.zeros(1, PRODUCTION, device="cuda")
    logits[0, 77] = torch.tensor(float(PRODUCTION - 1)).log()
    probs, num_draws = logits.softmax(-1), max(run.draws // 10, 1)
    samplers = {
        "sampling_from_logits": lambda at: run.fi.sampling_from_logits(logits, at),
        "sampling_from_probs": lambda at: run.fi.sampling_from_probs(probs, at),
    }
    for name, sample in samplers.items():
        head = counted(run, sample, PRODUCTION, num_draws)
        total = int(head.sum())
        share = float(head[77]) / total
        z = (share - 0.5) / (0.25 / total) ** 0.5
        effect = {"share of a token of probability 0.5": round(share, 6), "z": round(z, 1)}
        check = f"a flat tail of {PRODUCTION - 1} tokens keeps its half"
        run.add("edges", name, check, abs(z) < 5, effect=effect, draws=total)


def disabled_top_p_keeps_all(run: Run) -> None:
    """top_p_renorm_probs with 1 for a row, as beside other requests that have a top-p."""
    for size in (1000, 4096, PRODUCTION):
        probs = zipf_row(size).mul(4).softmax(-1)
        renormed = run.fi.top_p_renorm_probs(probs, torch.ones(1, device="cuda"))
        lost = (renormed == 0) & (probs >= torch.finfo(torch.float32).tiny)
        effect = {"tokens lost": int(lost.sum()), "their mass": float(probs.double()[lost].sum())}
        check = f"top-p 1 keeps every token, {size} tokens"
        run.add("edges", "top_p_renorm_probs", check, not bool(lost.any()), effect=effect, draws=1)


def rows_do_not_depend_on_the_batch(run: Run) -> None:
    """The same rows in batches of 128 and of 129, for which the kernel differs. No documentation says equal bits."""
    noise = torch.Generator("cuda").manual_seed(5)
    logits = torch.randn(129, PRODUCTION, generator=noise, device="cuda") * 3
    small, large = run.fi.softmax(logits[:128].contiguous()), run.fi.softmax(logits)[:128]
    most = float(((small - large).abs() / large).max())
    effect = {"rows with other bits": int((small != large).any(-1).sum()), "largest relative difference": most}
    check = "a row has the same probabilities in any batch, to 1e-5"
    run.add("edges", "softmax", check, most < 1e-5, effect=effect, draws=128)


def min_p_beside_others(run: Run) -> None:
    """SGLang: a request with top-k and top-p, alone and beside one with a min-p."""
    size, batch = 100, 1 << 16
    logits = torch.linspace(0, -0.1, size, device="cuda").expand(batch, -1).contiguous()
    column = functools.partial(torch.full, (batch,), device="cuda")
    min_p = column(0.0)
    positions = torch.arange(batch, device="cuda")
    top_k, top_p = column(50, dtype=torch.int32), column(0.5)
    kept = {}
    for what, last in (("alone", 0.0), ("beside min-p 0.05", 0.05)):
        min_p[-1] = last
        given = SamplingBatch(logits, column(1.0), top_k, top_p, min_p.clone(), positions)
        kept[what] = len(_flashinfer.as_sglang(run.fi, given, SeededNoise(0))[:-1].unique())
    check = "SGLang: the tokens of a request do not depend on its neighbours' min-p"
    run.add("edges", "backend flashinfer", check, len(set(kept.values())) == 1, effect=kept, draws=2 * batch)


EDGES = (
    shares_noise_with_torch,
    coin_follows_the_token,
    rows_without_residual,
    disabled_top_p_keeps_all,
    rows_do_not_depend_on_the_batch,
    min_p_beside_others,
    tails_keep_their_mass,
    certain_drafts_are_kept,
    min_p_of_zero_keeps_the_support,
    samplers_keep_the_support,
)


def kernels(run: Run, parts: list[str], num_rows: int) -> None:
    """All parts but the contracts."""
    if "edges" in parts:
        for edge in EDGES:
            run.ask("edges", edge.__name__, edge)
    if "kept" in parts:
        for size in (1000, 4096):
            run.ask("kept", f"kept sets, {size}", lambda run, size=size: kept(run, size, num_rows))
    if "distributions" in parts:
        for size, share in ((1000, 1), (PRODUCTION, 1)):
            distributions(run, size, run.draws // share)
            few = run.draws // share // 10
            for name in VERIFY:
                run.ask("distributions", name, lambda run, n=name, s=size, few=few: verified(run, n, s, few))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--draws", type=float, default=1e8, help="of each distribution")
    parser.add_argument("--rows", type=int, default=100_000, help="of the kept sets")
    parser.add_argument("--parts", nargs="*", default=["edges", "kept", "distributions", "contracts"])
    parser.add_argument("--each", type=float, default=1e9, help="seconds of one question about a distribution")
    parser.add_argument("--seconds", type=float, default=1e9, help="ask nothing further after so long")
    options = parser.parse_args()
    begin, draws = time.monotonic(), int(options.draws)
    versions = _gpu_kernels.versions()
    record: Json = {
        "commit": commit(),
        "machine": {**machine(), **gpu()},
        "versions": versions,
        "draws": draws,
        "rows": [],
    }
    run = Run(options.out, draws, begin + options.seconds, record, options.each)
    seconds = min(options.seconds, 1200.0)
    with contracts(run, seconds) if "contracts" in options.parts else nullcontext():
        kernels(run, options.parts, options.rows)
    run.record["seconds"] = round(time.monotonic() - begin)
    write_record(options.out, run.record)
    print(f"written: {options.out}, {len(record['rows'])} rows in {record['seconds']} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
