"""The rejection sampler of vLLM's model runner V2 (PyPI `vllm`, tried: 0.22.0, 0.25.1, 0.28.0, 0.31.0, 0.33.0).

`vllm.v1.worker.gpu.spec_decode.rejection_sampler_utils.rejection_sample` takes logits of target and draft, and one row
more per request, from which it draws the bonus token: that row allows the batch's bonus token alone, but where the
batch brings bonus logits. `_vllm_v2_drafter` has the drafter of the release.

Its random numbers come from (seed, position) inside the kernels. With seeded noise, a request without a seed gets one
from torch's default generator, as its engine draws one.
"""

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fairdraw.adapters import Reasons, SamplerRow, UnusableRelease, quiet_floats, release_number
from fairdraw.contracts import PLACEHOLDER_TOKEN_ID, ExplicitNoise, FunctionSampler, Noise, SeededNoise, SpecDecodeBatch
from fairdraw_engines._chains import bonus_rows
from fairdraw_engines._others import vllm_module
from fairdraw_engines._vllm_v2_drafter import propose, row_positions, seeds_of
from fairdraw_engines._vllm_v2_kernels import import_kernels, require_arguments, try_once
from fairdraw_engines._vllm_v2_trim import trim_of

_MODULE = "worker.gpu.spec_decode.rejection_sampler_utils"
_NOISE = "worker.gpu.sample.gumbel"

_LARGE = {
    "in the interpreter a call with 151936 tokens took 27 s": ("large-vocab",),
    "in the interpreter a call with 35000 drafts took over 5 minutes": ("long-drafts",),
}
_NO_PLACEHOLDERS = {"this release does not take them, 0.25.0 brought them": ("placeholder-drafts",)}


def make(row: SamplerRow, device: str, **modes: Any) -> FunctionSampler:  # Any: arguments of vLLM's
    """Return the function of the importable vLLM; its name carries the release.

    Args:
        modes: More arguments for it, `use_block_verification=True`.

    Raises:
        UnusableRelease: If its signature is another, or its kernels cannot be interpreted.
    """
    release, interpreted = import_kernels(device, _MODULE, _NOISE)
    function = vllm_module(_MODULE).rejection_sample
    _require_modes(release, function, modes)
    require_arguments(release, function, {*kernel_arguments(trial_batch(device), SeededNoise(0)), *modes})
    verify = partial(_verify, partial(function, **modes))
    try_once(release, interpreted, lambda: verify(trial_batch(device), SeededNoise(0)))
    facts = row.facts(release, device, beyond(release, interpreted), slow=interpreted)
    return FunctionSampler(function=verify, propose=propose, trim=trim_of(device), **facts)


def beyond(release: str, interpreted: bool) -> Reasons:
    """Return what this release does not take, and what its interpreter takes too long for."""
    return {**(_LARGE if interpreted else {}), **(_NO_PLACEHOLDERS if release_number(release) < (0, 25) else {})}


def _require_modes(release: str, function: Callable[..., object], modes: Mapping[str, object]) -> None:
    missing = sorted(modes.keys() - inspect.signature(function).parameters)
    if missing:
        raise UnusableRelease(
            f"vLLM {release} has no {' and no '.join(missing)}",
            "Install a newer release: python tools/install.py vllm 0.33.0",
        )


def trial_batch(device: str) -> SpecDecodeBatch:
    """Return one request whose draft the target forbids, so that every kernel runs."""
    return SpecDecodeBatch(
        draft_token_ids=torch.zeros(1, dtype=torch.int32, device=device),
        num_draft_tokens=[1],
        cu_num_draft_tokens=torch.ones(1, dtype=torch.int32, device=device),
        max_spec_len=1,
        draft_probs=torch.full((1, 2), 0.5, device=device),
        target_logits=torch.tensor([[-torch.inf, 0.0]], device=device),
        bonus_token_ids=torch.ones(1, 1, dtype=torch.int32, device=device),
        temperature=torch.ones(1, device=device),
    )


def _verify(
    rejection_sample: Callable[..., tuple[Tensor, Tensor]], batch: SpecDecodeBatch, noise: Noise
) -> Tensor:  # [batch_size, max_spec_len + 1] int32
    assert not isinstance(noise, ExplicitNoise)  # unsupported
    with quiet_floats():
        tokens, lengths = rejection_sample(**kernel_arguments(batch, noise))
    return emitted(batch, tokens, lengths)


def emitted(
    batch: SpecDecodeBatch,
    tokens: Tensor,  # [batch_size, max_spec_len + 1] int64
    lengths: Tensor,  # [batch_size] int32
) -> Tensor:  # [batch_size, max_spec_len + 1] int32
    """Fill what is behind a row's tokens, where vLLM leaves whatever was in memory."""
    columns = torch.arange(batch.max_spec_len + 1, device=batch.device)
    return tokens.masked_fill(columns >= lengths[:, None], PLACEHOLDER_TOKEN_ID).int()


def kernel_arguments(batch: SpecDecodeBatch, noise: SeededNoise) -> dict[str, Any]:  # Any: one type each
    """Return a batch as `rejection_sample` takes it: rows of drafts and bonus tokens together, drafts one row late."""
    requests = torch.arange(batch.batch_size, device=batch.device)
    counts = torch.tensor(batch.num_draft_tokens, device=batch.device)
    is_bonus, row_request, row_position = _rows(counts, requests)
    width = max(batch.max_spec_len, 1)
    return {
        "target_logits": _target_logits(batch, is_bonus),
        "draft_logits": None if batch.draft_probs is None else batch.spread(batch.draft_probs.log(), width),
        "draft_sampled": _shifted_drafts(batch, is_bonus),
        "cu_num_logits": torch.nn.functional.pad((counts + 1).cumsum(0), (1, 0)).int(),
        "pos": row_positions(batch, row_request, row_position),
        "idx_mapping": requests.int(),
        "expanded_idx_mapping": row_request.int(),
        "expanded_local_pos": row_position.int(),
        # The batch's logits are processed, and from 0.28.0 on draft logits are divided by it, too.
        "temperature": torch.where(batch.is_greedy, 0.0, 1.0),
        "seed": seeds_of(noise, batch.batch_size, batch.device),
        "num_speculative_steps": batch.max_spec_len,
        "synthetic_conditional_rates": batch.synthetic_rates,
    }


def _rows(
    counts: Tensor,  # [batch_size] int64
    requests: Tensor,  # [batch_size] int64
) -> tuple[Tensor, Tensor, Tensor]:  # [num_rows] bool, [num_rows] int64, [num_rows] int64
    """Whether a row of target logits is a bonus row, whose it is, and its position within the request."""
    row_request = requests.repeat_interleave(counts + 1)
    starts = (counts + 1).cumsum(0) - counts - 1
    row_position = torch.arange(len(row_request), device=counts.device) - starts[row_request]
    return row_position == counts[row_request], row_request, row_position


def _target_logits(batch: SpecDecodeBatch, is_bonus: Tensor) -> Tensor:  # [num_rows, vocab_size] as the batch's
    """Return the batch's rows, and a row per request for its bonus token."""
    logits = batch.target_logits.new_empty((len(is_bonus), batch.vocab_size))
    logits[~is_bonus], logits[is_bonus] = batch.target_logits, bonus_rows(batch)
    return logits


def _shifted_drafts(batch: SpecDecodeBatch, is_bonus: Tensor) -> Tensor:  # [num_rows] int32
    """Return the token before each row: its engine hands over the inputs of the step, of which the first is no
    draft."""
    drafts = batch.draft_token_ids.new_zeros(len(is_bonus) + 1)
    drafts[1:][~is_bonus] = batch.draft_token_ids
    return drafts[:-1].contiguous()
