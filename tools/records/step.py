"""Ask the compiled step, on this GPU, for many rows and many draws, and keep its answers as a JSON record.

    python tools/record.py step --out statistical/records/step_h200.json                  # 100,000 rows, 1e8 draws
    python tools/record.py step --rows 64 --draws 2000 --device cpu --out /tmp/step.json   # in Triton's interpreter

Kept sets: rows with ties at every threshold, -inf, NaN, one token, flat, denormal and far apart (`step_cases.KINDS`),
with parameters of their own each, beside a float64 reference in PyTorch. A row whose reference is within 1e-6 of
`top_p` counts apart. A row with NaN or infinity, of which nothing in particular is kept, counts as equal.

Distributions: the first token of a request, by Pearson's chi-square against the exact distribution; cells that expect
less than 20 are pooled. Plain sampling, and verification of one draft that was drawn from another distribution:
one-hot, with its probabilities, or with bfloat16 logits over a temperature, whose logsumexp the step computes. What
verification emits first must follow the target whatever the draft. Every set of parameters alone, and all of them as
neighbours in one batch, which share its draws.

    python tools/record.py step --rows 0 --draws 10000000000 --sets "T=3 top-p 0.95" --drafts NONE --cards 4 --out F

shards the draws of each set over cards in parts, each with positions of its own, and adds up the counts. After
`--seconds` no part is begun, and the record says how many draws there were.
"""

from __future__ import annotations

import argparse
import itertools
import time
from pathlib import Path

import numpy as np
import torch
from benches.step import SETS as OF_BENCHES
from benches.vllm_step import OFF
from scipy.stats import chi2
from step_cases import KINDS, row_of
from torch import Tensor

from fairdraw.perf_regression._records import write_record
from fairdraw.sampler_impl.step import Capacity, Drafts, Parameters, StepInputs, StepPlan
from records import Json, commit, gpu, results

VOCAB_SIZE = 4096
LEAST_EXPECTED = 20
LARGEST_PART = 200_000_000
"""Draws that a card makes before the next part is begun."""
NEAR = 1e-6
DRAFT_TEMPERATURE = 0.7
"""Of draft logits."""


USUAL = "none", "T=0.6", "T=0.6 top-k 20 top-p 0.95", "T=0.7 top-p 0.9", "min-p 0.05", "top-k 1000"
SETS: dict[str, Json] = {
    **{name: sets[0] for name, sets in OF_BENCHES.items() if name in USUAL},
    "T=3 top-p 0.95": {"temperature": 3.0, "top_p": 0.95},
    "T=3 top-k 2500 top-p 0.9": {"temperature": 3.0, "top_k": 2500, "top_p": 0.9},
}
"""Parameters to draw with. The last two leave more candidates than a list holds: such rows have programs of their
own."""


def parameters_of(filters: list[Json], device: str) -> Parameters:
    """One slot each."""

    def column(name: str, dtype: torch.dtype = torch.float32) -> Tensor:  # [num_slots] any
        return torch.tensor([one.get(name, OFF[name]) for one in filters], dtype=dtype, device=device)

    return Parameters(column("temperature"), column("top_k", torch.int32), column("top_p"), column("min_p"))


def kept_reference(
    logits: Tensor,  # [num_rows, vocab_size] float32
    parameters: Parameters,
) -> tuple[Tensor, Tensor]:  # [num_rows, vocab_size] bool, [num_rows] bool
    """What the documented filters keep, and whether rounding may decide otherwise."""
    assert parameters.top_k is not None
    assert parameters.top_p is not None
    assert parameters.min_p is not None
    vocab_size = logits.shape[1]
    scaled = logits / parameters.temperature[:, None]
    floor = scaled.amax(-1, keepdim=True) + parameters.min_p.log()[:, None]
    scaled = scaled.masked_fill(scaled < floor, -torch.inf)
    descending, ids = scaled.sort(-1, descending=True)
    top_k = torch.where((parameters.top_k > 0) & (parameters.top_k < vocab_size), parameters.top_k, vocab_size)
    descending = descending.masked_fill(descending < descending.gather(1, top_k[:, None].long() - 1), -torch.inf)
    weights = (descending.double() - descending[:, :1].double()).exp()
    ends = weights.cumsum(-1)
    need = parameters.top_p[:, None].double() * ends[:, -1:]
    num_kept = ((ends - weights) < need).sum(-1, keepdim=True)
    num_kept = torch.where(parameters.top_p[:, None] < 1, num_kept, vocab_size)
    is_near = ((ends / need - 1).abs() < NEAR).any(-1) & (parameters.top_p < 1)
    kept = (descending >= descending.gather(1, (num_kept - 1).clamp(min=0))) & (descending > -torch.inf)
    return torch.zeros_like(kept).scatter_(1, ids, kept), is_near


def kept_sets(num_rows: int, device: str) -> Json:
    """How many rows agree, are near a threshold, or differ."""
    noise, rng = torch.Generator(device).manual_seed(19), np.random.default_rng(19)
    batch, counts = min(4096, num_rows), {"rows": 0, "equal": 0, "near a threshold": 0, "different": 0}
    plan = StepPlan(Capacity(batch, 0, VOCAB_SIZE, torch.float32, Drafts.NONE), device, backend="triton")
    every = torch.arange(batch + 1, dtype=torch.int32, device=device)
    while counts["rows"] < num_rows:
        kinds = (KINDS[i % len(KINDS)] for i in range(batch))
        logits = torch.tensor(np.stack([row_of(rng, kind, VOCAB_SIZE) for kind in kinds]), device=device)

        def one_of(*values: float, dtype: torch.dtype = torch.float32) -> Tensor:  # [batch_size] any
            chosen = torch.randint(len(values), (batch,), generator=noise, device=device)
            return torch.tensor(values, device=device, dtype=dtype)[chosen]

        parameters = Parameters(
            one_of(1.0, 0.6, 3.0, 0.05),
            one_of(-1, 0, 1, 2, 20, 50, 1000, VOCAB_SIZE - 1, VOCAB_SIZE, dtype=torch.int32),
            one_of(1.0, 0.95, 0.5, 0.999, 1e-6),
            one_of(0.0, 0.0, 0.05, 0.5, 1.0),
        )
        inputs = StepInputs(logits, parameters, every[:-1].long(), every[:-1].long(), every)
        found = plan.processed_logits(inputs) > -torch.inf
        kept, is_near = kept_reference(logits, parameters)
        is_row = (logits < torch.inf).all(-1)  # one with NaN or infinity keeps nothing in particular
        equal = (found == kept).all(-1) | ~is_row
        counts["rows"] += batch
        counts["equal"] += int(equal.sum())
        counts["near a threshold"] += int((~equal & is_near).sum())
        counts["different"] += int((~equal & ~is_near).sum())
    return counts


def exact_distribution(logits: Tensor, filters: Json, device: str) -> Tensor:  # [vocab_size] float64
    kept, _ = kept_reference(logits[None].float(), parameters_of([filters], device))
    scaled = (logits.float() / filters.get("temperature", 1)).double().masked_fill(~kept[0], -torch.inf)
    return scaled.softmax(-1)


def chi_square(counts: Tensor, probs: Tensor) -> tuple[float, int]:  # [vocab_size] int64, [vocab_size] float64
    """p-value and number of cells. A token that cannot be drawn and was gives 0."""
    if bool(((probs == 0) & (counts > 0)).any()):
        return 0.0, 0
    expected = probs * counts.sum()
    large = expected >= LEAST_EXPECTED
    seen = torch.cat([counts[large].double(), counts[~large].sum().double()[None]])
    due = torch.cat([expected[large], expected[~large].sum()[None]])
    seen, due = seen[due > 0], due[due > 0]
    statistic = float(((seen - due) ** 2 / due).sum())
    return float(chi2.sf(statistic, max(len(due) - 1, 1))), len(due)


def draws(names: list[str], form: Drafts, num_draws: int, cards: list[str], seconds: float) -> list[Json]:
    """The first tokens of many requests of one row of logits; requests have the named parameters in turn."""
    parts = len(cards) * max(1, num_draws // (LARGEST_PART * len(cards)))
    share = -(-num_draws // parts)
    tasks = [(names, form, share, cards[part % len(cards)], part * 4 * share) for part in range(parts)]
    counts, accepted, targets, graphs = zip(*results(_drawn, tasks, len(cards), seconds), strict=True)
    drawn, kept = (torch.stack(parts).sum(0) for parts in (counts, accepted))
    rows, beside = [], {"mixed": True} if len(names) > 1 else {}
    for name, own, taken, target in zip(names, drawn, kept.tolist(), targets[0], strict=True):
        p_value, cells = chi_square(own, target)
        total = int(own.sum())
        row = {"set": name, "drafts": form.name, **beside, "draws": total, "cells": cells, "p": p_value}
        rows.append({**row, "accepted": taken / total, "cards": len(cards), "graphs": min(graphs)})
    return rows


def _drawn(task: tuple[list[str], Drafts, int, str, int]) -> tuple[Tensor, Tensor, list[Tensor], int]:
    """The share of one card, from a position on: counts of tokens, accepted drafts, exact distributions and graphs."""
    names, form, num_draws, device, first = task
    noise = torch.Generator(device).manual_seed(190 + form.value)
    filters, rows_each = [SETS[name] for name in names], 1 if form is Drafts.NONE else 2
    has_rows = form in (Drafts.PROBS, Drafts.LOGITS)
    has_drafts = form is not Drafts.NONE
    batch = min(8192 if has_rows else 32768, num_draws) // len(names) * len(names)
    ranks = torch.randperm(VOCAB_SIZE, generator=noise, device=device).float()
    logits = (-1.3 * (1 + ranks).log() + 0.1 * ranks.cos()).bfloat16()
    targets = [exact_distribution(logits, one, device) for one in filters]
    draft = (0.5 * targets[0] + 0.5 * (-(1 + ranks.roll(7)).log() * 1.1).double().softmax(-1)).float()
    draft_logits = (draft.log() * DRAFT_TEMPERATURE).bfloat16()
    if form is Drafts.LOGITS:  # what the rounded logits give
        draft = (draft_logits.float() / DRAFT_TEMPERATURE).double().softmax(-1).float()
    has_filters = any(one.keys() - {"temperature"} for one in filters)
    capacity = Capacity(batch, rows_each - 1, VOCAB_SIZE, torch.bfloat16, form, filters=has_filters)
    plan, parameters = StepPlan(capacity, device, backend="triton"), parameters_of(filters, device)
    if not has_filters:
        parameters = Parameters(parameters.temperature)
    starts = torch.arange(batch + 1, dtype=torch.int32, device=device) * rows_each
    slots = torch.arange(batch, dtype=torch.int32, device=device) % len(names)
    counts = torch.zeros(len(names), VOCAB_SIZE, dtype=torch.int64, device=device)
    accepted, done = torch.zeros(len(names), dtype=torch.int64, device=device), 0
    seeds = torch.full((len(names),), 190, device=device)
    draft_temperature = torch.full((len(names),), DRAFT_TEMPERATURE, device=device)
    noise.manual_seed(190 + form.value + first)  # all cards have one row, and each drafts of its own
    while done < num_draws:
        drafted = torch.multinomial(draft, batch * rows_each, True, generator=noise).int() if has_drafts else None
        inputs = StepInputs(
            logits.expand(batch * rows_each, -1),
            parameters,
            seeds,
            torch.arange(batch, device=device) * 2 + done * 2 + first,
            starts,
            slots=slots,
            draft_token_ids=drafted,
            draft_probs=draft.expand(len(names), 1, -1) if form is Drafts.PROBS else None,
            draft_logits=draft_logits.expand(len(names), 1, -1) if form is Drafts.LOGITS else None,
            draft_temperature=draft_temperature if form is Drafts.LOGITS else None,
        )
        output = plan(inputs)
        cells = slots.long() * VOCAB_SIZE + output.token_ids[:, 0].long()
        counts += cells.bincount(minlength=counts.numel()).view_as(counts)
        accepted += (output.num_tokens > 1).long().view(-1, len(names)).sum(0)
        done += batch
    # Of 0 graphs all steps were launched; of some most were replays.
    return counts.cpu(), accepted.cpu(), [target.cpu() for target in targets], len(plan._replays.graphs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--draws", type=int, default=10**8)
    parser.add_argument("--sets", nargs="*", choices=SETS, help="only these, and none beside others")
    parser.add_argument("--drafts", nargs="*", choices=Drafts.__members__, default=[*Drafts.__members__])
    parser.add_argument("--cards", type=int, default=1, help="the first so many share the draws")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no further set or part after so long")
    options = parser.parse_args()
    begin = time.monotonic()
    record: Json = {
        "commit": commit(),
        "gpu": gpu() if options.device == "cuda" else "interpreted",
        "kept": {},
        "rows": [],
    }
    if options.rows:
        record["kept"] = kept_sets(options.rows, options.device)
        print(record["kept"], flush=True)
    cards = [f"cuda:{n}" for n in range(options.cards)] if options.device == "cuda" else [options.device]
    groups = [[name] for name in options.sets or SETS] + ([] if options.sets else [list(SETS)])
    for form, names in itertools.product((Drafts[name] for name in options.drafts), groups):
        left = options.seconds - (time.monotonic() - begin)
        for row in draws(names, form, options.draws, cards, left) if left > 0 else []:
            record["rows"].append(row | {"seconds": round(time.monotonic() - begin, 1)})
            print(record["rows"][-1], flush=True)
        write_record(options.out, record)
    write_record(options.out, record)
    return int(record["kept"].get("different", 0) > 0 or any(row["p"] < 1e-6 for row in record["rows"]))
