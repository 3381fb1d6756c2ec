"""The masks contract, executable: a token drawn as the sampling contract has it, and what was left for the draw."""

import numpy as np
import torch

from fairdraw._core.array_types import Row32, RowFlags, RowsFlags
from fairdraw._oracles.sampling import Request, SamplingOracle, requests_of
from fairdraw.contracts import MaskedTokens, MaskPolicy, MaskRows, SamplingBatch, SamplingNoise


class MasksOracle(SamplingOracle):
    """The specification as small steps; a mutant overrides exactly one of them."""

    policy = MaskPolicy()

    def sample_masked(self, batch: SamplingBatch, noise: SamplingNoise, into: MaskRows) -> MaskedTokens:
        """Draw the tokens, and write the mask of each request."""
        tokens, requests = self.sample(batch, noise), requests_of(batch)
        masks = list(map(self.mask, requests, tokens.tolist()))
        self.write(into, np.stack(masks))
        logprobs = list(map(self.logprob, requests, masks, tokens.tolist()))
        return MaskedTokens(tokens, torch.tensor(logprobs, dtype=torch.float32, device=batch.device))

    def mask(self, request: Request, token: int) -> RowFlags:
        """Return which tokens the filters leave."""
        if request.is_greedy:
            return self.mask_of_greedy(request, token)
        if (request.top_k, request.top_p, request.min_p) == (None, None, None) and self.policy.plain_mask == "none":
            return np.zeros(request.logits.size, bool)
        return self.support(request)

    def mask_of_greedy(self, request: Request, token: int) -> RowFlags:
        """Return the whole row, or the token alone."""
        is_token = np.arange(request.logits.size) == token
        return is_token if self.policy.greedy_mask == "token" else np.isfinite(request.logits)

    def support(self, request: Request) -> RowFlags:
        """Return the tokens whose processed logits are finite."""
        return np.isfinite(self.filtered(request))

    def write(self, into: MaskRows, masks: RowsFlags) -> None:
        """Write all masks."""
        ids = np.zeros(into.token_ids.shape, np.int32)
        for row, mask in zip(ids, masks, strict=True):
            found = self.ids(mask)[: len(row)]
            row[: len(found)] = found
        into.words.copy_(torch.from_numpy(self.words(masks)))
        into.token_ids.copy_(torch.from_numpy(ids))
        into.counts.copy_(torch.from_numpy(masks.sum(axis=1)))

    def words(self, masks: RowsFlags) -> np.ndarray:  # [batch_size, num_words] int32
        """Return words of bits, the lowest bit first."""
        bits = np.pad(masks, ((0, 0), (0, -masks.shape[1] % 32)))
        return np.packbits(bits, axis=1, bitorder="little").view(np.int32)

    def ids(self, mask: RowFlags) -> np.ndarray:  # [num_kept] int32
        """Return the ids that are mask, in ascending order."""
        return np.flatnonzero(mask).astype(np.int32)

    def logprob(self, request: Request, mask: RowFlags, token: int) -> float:
        """Return the token's log-probability, from the softmax over the mask."""
        return 0.0 if request.is_greedy else logprob_over(self.scaled(request), mask, token)


def logprob_over(scaled: Row32, mask: RowFlags, token: int) -> float:
    """Return a token's log-probability in the softmax over a mask; over the whole row if nothing is in the mask.

    Takes `scaled`: logits over temperature.
    """
    with np.errstate(all="ignore"):
        left = (scaled[mask] if mask.any() else scaled).astype(np.float64)
        below = np.float64(scaled[token] if mask[token] or not mask.any() else -np.inf) - left.max()
        return float(below - np.log(np.exp(left - left.max()).sum()))
