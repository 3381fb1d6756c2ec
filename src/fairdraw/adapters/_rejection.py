"""fairdraw's rejection samplers: with vLLM's order of draws, and with counters."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from fairdraw.adapters._runtime import triton_is_interpreted
from fairdraw.contracts import Drafted, DraftStep, ExplicitNoise, FunctionSampler, Noise, SeededNoise, SpecDecodeBatch

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from fairdraw._core.tensor_types import AnyLogitRows, OutputTokens, RequestInts, RowFlags
    from fairdraw.adapters._catalogue import SamplerRow
    from fairdraw.sampler_impl.sampling import SamplingNoise

Backend = Literal["torch", "triton"]


def race(row: SamplerRow, device: str, *, backend: Backend) -> FunctionSampler:
    """Return `fairdraw.sampler_impl.rejection`. In Triton's interpreter a call takes milliseconds."""
    slow = backend == "triton" and triton_is_interpreted(device)
    verify, capabilities = partial(_verify_race, backend), row.capabilities(slow=slow)
    return FunctionSampler(row.name, verify, device, capabilities, propose=_draft_by_race)


def counter(row: SamplerRow, device: str, *, backend: Backend | None = None) -> FunctionSampler:
    """Return `fairdraw.sampler_impl.rejection_counter`, on the production path of the device if `backend` is `None`."""
    backend = backend or ("torch" if device == "cpu" else "triton")
    slow = backend == "triton" and triton_is_interpreted(device)
    verify, capabilities = partial(_verify_counter, backend), row.capabilities(slow=slow)
    return FunctionSampler(row.name, verify, device, capabilities, propose=draft_by_counter)


class ReadFields(TypedDict):
    """Fields that `rejection_sample` reads of its sampling metadata."""

    temperature: Tensor  # [batch_size] float32
    all_greedy: bool
    all_random: bool
    generators: dict[int, torch.Generator]


def read_fields(batch: SpecDecodeBatch, noise: Noise) -> ReadFields:
    """Return sampling metadata of `batch`; generators are those of seeded noise."""
    is_greedy = batch.is_greedy
    return ReadFields(
        temperature=batch.temperature,
        all_greedy=bool(is_greedy.all()),
        all_random=not bool(is_greedy.any()),
        generators={} if isinstance(noise, ExplicitNoise) else noise.generators(batch.device),
    )


def _verify_race(backend: Backend, batch: SpecDecodeBatch, noise: Noise) -> OutputTokens:
    """Pass explicit noise on; without it the function draws in vLLM's order."""
    from fairdraw.sampler_impl.rejection import rejection_sample, verify_drafts

    names = ("draft_token_ids", "num_draft_tokens", "max_spec_len", "cu_num_draft_tokens", "draft_probs")
    same = {name: getattr(batch, name) for name in (*names, "target_logits", "bonus_token_ids")}
    arguments: dict[str, Any] = same | {  # Any: one type each
        "sampling_metadata": SimpleNamespace(**read_fields(batch, noise)),
        "synthetic_mode": batch.synthetic_rates is not None,
        "synthetic_conditional_rates": batch.synthetic_rates,
        "backend": backend,
    }
    if isinstance(noise, ExplicitNoise):
        return verify_drafts(**arguments, uniforms=noise.uniforms, exponentials=noise.exponentials)
    return rejection_sample(**arguments)


def _draft_by_race(step: DraftStep, noise: SeededNoise) -> Drafted:
    """Call `fairdraw.sampler_impl.sampling.draft` with the generators that verification goes on with."""
    from fairdraw.sampler_impl.sampling import UpstreamNoise

    return _drafted(step, UpstreamNoise(noise.generators(step.device)))


def draft_by_counter(step: DraftStep, noise: SeededNoise) -> Drafted:
    """Return the same with counters: (seed, position) as in verification, in a stream of its own."""
    from fairdraw.sampler_impl.sampling import CounterNoise

    return _drafted(step, CounterNoise(kept_seeds(step.batch_size, noise, step.device), step.positions))


def _drafted(step: DraftStep, noise: SamplingNoise) -> Drafted:
    from fairdraw.sampler_impl.sampling import SamplingParameters, draft

    drawn = draft(step.draft_logits, SamplingParameters(step.temperature), noise)
    return Drafted(drawn.sampled_token_ids, drawn.probs)


def _verify_counter(backend: Backend, batch: SpecDecodeBatch, noise: Noise) -> OutputTokens:
    """Verify with one seed per request and position 0; in the steps of a pair a request keeps its seed, and positions
    advance. On a GPU each call has a workspace, so that its kernels overlap and read as few rows as they can."""
    if isinstance(noise, ExplicitNoise):
        raise TypeError("verify: noise=ExplicitNoise, but it must be SeededNoise. This sampler supports no other.")
    drafts_are_own = batch.positions is not None
    seeds = kept_seeds(batch.batch_size, noise, batch.device) if drafts_are_own else seeds_of_step(batch, noise)
    return _counter_step(batch, seeds, backend, workspace=batch.device.type == "cuda")()


def captured_step(batch: SpecDecodeBatch, backend: Backend, *, workspace: bool) -> partial[Tensor]:
    """Return a call whose seeds keep their address: what a server captures in a CUDA graph.

    A graph stores addresses only. The result holds the tensors at these addresses, its workspace among them (as
    `keywords["workspace"]`), and must live as long as the graph.
    """
    import torch

    return _counter_step(batch, torch.arange(batch.batch_size, device=batch.device), backend, workspace=workspace)


def _counter_step(batch: SpecDecodeBatch, seeds: RequestInts, backend: Backend, *, workspace: bool) -> partial[Tensor]:
    import torch

    from fairdraw.sampler_impl.rejection_counter import make_workspace, rejection_sample

    sizes = (batch.batch_size, batch.max_spec_len, batch.target_logits.shape[1])
    return partial(
        rejection_sample,
        batch.draft_token_ids,
        batch.cu_num_draft_tokens,
        batch.max_spec_len,
        batch.target_logits if batch.bonus_logits is None else rows_of(batch, bonus_mask(batch)),
        torch.where(batch.is_greedy, 0.0, 1.0).to(torch.float32),  # logits are processed: a random request has 1
        seeds,
        seeds.new_zeros(batch.batch_size) if batch.positions is None else batch.positions,
        draft_probs=batch.draft_probs,
        bonus_token_ids=batch.bonus_token_ids if batch.bonus_logits is None else None,
        workspace=make_workspace(*sizes, batch.device) if workspace else None,
        backend=backend,
    )


def rows_of(batch: SpecDecodeBatch, is_bonus: RowFlags) -> AnyLogitRows:
    """Return each request's rows of target logits, and behind them the row that its bonus token is drawn from; where
    bonus tokens are given, those rows do not matter."""
    rows = batch.target_logits.new_zeros((len(is_bonus), batch.vocab_size))
    rows[~is_bonus] = batch.target_logits
    if batch.bonus_logits is not None:
        rows[is_bonus] = batch.bonus_logits.to(rows.dtype)
    return rows


def draft_counts(batch: SpecDecodeBatch) -> Tensor:  # [batch_size] int32
    """Return `num_draft_tokens` on the device: a list of a million numbers is slow to copy."""
    ends = batch.cu_num_draft_tokens
    return ends.diff(prepend=ends.new_zeros(1))


def bonus_mask(batch: SpecDecodeBatch) -> Tensor:  # [num_rows] bool
    """Return which rows are the last of their request, where each has one row more than drafts."""
    import torch

    counts = draft_counts(batch)
    is_bonus = torch.zeros(batch.num_tokens + batch.batch_size, dtype=torch.bool, device=batch.device)
    is_bonus[(counts + 1).cumsum(0) - 1] = True
    return is_bonus


def seeds_of_step(batch: SpecDecodeBatch, noise: SeededNoise) -> RequestInts:
    """Return one seed per request from torch's generator, which the caller has seeded; from the request's own if it has
    drafts."""
    import torch

    seeds = torch.empty(batch.batch_size, dtype=torch.int64, device=batch.device).random_()
    for request, generator in noise.generators(batch.device).items():
        if batch.num_draft_tokens[request] > 0:
            seeds[request].random_(generator=generator)
    return seeds


def kept_seeds(batch_size: int, noise: SeededNoise, device: torch.device) -> RequestInts:
    """Return one seed per request, kept from call to call; a request without one is given it at the first, as in a
    server."""
    import torch

    kept = noise.kept.get("seeds")
    if not isinstance(kept, torch.Tensor):
        noise.kept["seeds"] = kept = torch.empty(batch_size, dtype=torch.int64, device=device).random_()
        if noise.request_seeds:  # at once: on a GPU each assignment is a kernel
            requests, seeds = zip(*noise.request_seeds.items(), strict=True)
            kept[torch.tensor(requests, device=device)] = torch.tensor(seeds, device=device)
    return kept
