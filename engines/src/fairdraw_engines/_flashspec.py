"""FlashSpec's verification (PyPI `flashspec`, tried: 0.3.1): `rejection_step` and `rejection_step_onehot`, in PyTorch.

Both take log-probabilities, and drafts of one length, so requests are grouped by their number of drafts. The
step draws the bonus token itself: it gets a last row that allows the batch's bonus token alone. With explicit noise the
race inside of `torch.multinomial` is run on the exponentials handed in.

Importing the package needs fastapi and more; the file of the sampler needs torch alone, so that
`pip install --no-deps flashspec` is enough (137 kB).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fairdraw.adapters import SamplerRow
from fairdraw.contracts import PLACEHOLDER_TOKEN_ID, ExplicitNoise, FunctionSampler, Noise, SpecDecodeBatch
from fairdraw_engines._bare import import_bare, release_of
from fairdraw_engines._transformers import multinomial_noise


def make(row: SamplerRow, device: str) -> FunctionSampler:
    """Return the step of the installed FlashSpec; its name carries the release."""
    facts = row.facts(release_of("flashspec"), device)
    stubs: dict[str, dict[str, Any]] = {"flashspec.utils.logging": {"get_logger": logging.getLogger}}  # Any: see _bare
    (module,) = import_bare("flashspec.sampling.rejection", stubs=stubs)
    return FunctionSampler(function=partial(_verify, module), **facts)


def _verify(
    module: Any,  # Any: of another project
    batch: SpecDecodeBatch,
    noise: Noise,
) -> Tensor:  # [batch_size, max_spec_len + 1] int32
    shape = (batch.batch_size, batch.max_spec_len + 1)
    tokens = torch.full(shape, PLACEHOLDER_TOKEN_ID, dtype=torch.int32, device=batch.device)
    tokens[:, 0] = batch.bonus_token_ids[:, 0]  # without drafts its engine decodes without this step
    for count in sorted(set(batch.num_draft_tokens) - {0}):
        requests = [i for i, own in enumerate(batch.num_draft_tokens) if own == count]
        with multinomial_noise(noise.select(batch, requests) if isinstance(noise, ExplicitNoise) else None):
            accepted, last = _step(module, batch, requests).unbind(1)
        rows = torch.nn.functional.pad(_of_requests(batch.draft_token_ids, batch, requests), (0, 1))
        columns = torch.arange(count + 1, device=batch.device)
        rows = torch.where(columns == accepted[:, None], last[:, None].int(), rows)
        tokens[requests, : count + 1] = rows.masked_fill(columns > accepted[:, None], PLACEHOLDER_TOKEN_ID)
    return tokens


def _step(
    module: Any,  # Any: of another project
    batch: SpecDecodeBatch,
    requests: Sequence[int],
) -> Tensor:  # [len(requests), 2] int64
    """Return the accepted drafts and the last token of requests with equally many drafts."""
    drafts = _of_requests(batch.draft_token_ids, batch, requests).long()
    bonus = torch.full((len(requests), batch.vocab_size), -torch.inf, device=batch.device)
    bonus.scatter_(1, batch.bonus_token_ids[list(requests)].long(), 0)
    target = _of_requests(batch.target_logits.float().log_softmax(-1), batch, requests)
    target = torch.cat([target, bonus[:, None]], 1)
    if batch.draft_probs is None:
        found: Tensor = module.rejection_step_onehot(drafts, target)
    else:
        found = module.rejection_step(drafts, _of_requests(batch.draft_probs.log(), batch, requests), target)
    return found


def _of_requests(rows: Tensor, batch: SpecDecodeBatch, requests: Sequence[int]) -> Tensor:
    """Turn `[num_tokens, ...]` to `[len(requests), num_drafts, ...]`."""
    counts = torch.tensor(batch.num_draft_tokens)
    first = (counts.cumsum(0) - counts)[list(requests), None]
    return rows[(first + torch.arange(batch.num_draft_tokens[requests[0]])).to(rows.device)]
