"""FlashSpec's verification (PyPI `flashspec`, tried: 0.3.1): `rejection_step` and `rejection_step_onehot`, in PyTorch.

Both take log-probabilities, and drafts of one length (`_chains`). The step draws the bonus token itself: it gets a last
row that allows the batch's bonus token alone. With explicit noise the race inside of `torch.multinomial` is run on the
exponentials handed in.

Importing the package needs fastapi and more; the file of the sampler needs torch alone, so that
`pip install --no-deps flashspec` is enough (137 kB).
"""

import logging
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fairdraw.adapters import SamplerRow
from fairdraw.contracts import PLACEHOLDER_TOKEN_ID, ExplicitNoise, FunctionSampler, Noise, SpecDecodeBatch
from fairdraw_engines._bare import import_bare, release_of
from fairdraw_engines._chains import Chains, verify_by_length
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
    def verify(chains: Chains) -> Tensor:  # [num_requests, num_drafts + 1] int32
        own = noise.select(batch, chains.requests.tolist()) if isinstance(noise, ExplicitNoise) else None
        with multinomial_noise(own):
            accepted, last = _step(module, batch, chains)[:, :, None].unbind(1)
        columns = torch.arange(chains.drafts.shape[1] + 1, device=batch.device)
        tokens = torch.nn.functional.pad(chains.drafts, (0, 1))
        tokens = torch.where(columns == accepted, last.int(), tokens)
        return tokens.masked_fill(columns > accepted, PLACEHOLDER_TOKEN_ID)

    return verify_by_length(batch, verify)


def _step(
    module: Any,  # Any: of another project
    batch: SpecDecodeBatch,
    chains: Chains,
) -> Tensor:  # [num_requests, 2] int64
    """Return the accepted drafts and the last token of requests with equally many drafts."""
    drafts, target = chains.drafts.long(), chains.logits.float().log_softmax(-1)
    if batch.draft_probs is None:
        found: Tensor = module.rejection_step_onehot(drafts, target)
    else:
        found = module.rejection_step(drafts, batch.draft_probs[chains.rows].log(), target)
    return found
