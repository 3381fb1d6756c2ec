"""Stratified noise: a sampler's probabilities, almost exactly, from few draws.

A sampler that takes its random numbers from the caller (`ExplicitNoise`) need not get random ones. Stratified numbers,
`u_j = (j + 0.5) / n`, visit every part of the unit interval equally often, so that counting is integrating:

* *Acceptance.* With the uniforms of one position stratified, and those before it 0 (always accepted), the share of
  accepted draws is the acceptance probability, to within `0.5 / n`.
* *Recovery.* A race is decided by pairs. The favourite of the residual gets exponential 1, one opponent the stratified
  exponentials `-log(1 - u_j)`, every other token one that cannot win. The opponent wins if its exponential is less than
  `odds = weight / weight of the favourite`: in a share `1 - exp(-odds)` of the draws, to within `0.5 / n`.

The checks (`_stratified_check`) judge each of these shares by itself. Nothing is random, so there is no false-fail
rate: a correct sampler is within the bound, always.

Limits:
    Rounding may decide a stratum's edge, which the bound includes. This tests what a sampler does with given noise; how
    it makes its own (shared between rows, reused in the next call) is for the other statistics.
"""

import numpy as np
from numpy.typing import NDArray

from fairdraw.contracts import PLACEHOLDER_TOKEN_ID, ExplicitNoise, RejectionSampler, SpecDecodeBatch
from fairdraw.statistical._configurations import RequestDistributions, repeated

_HOPELESS = 1e30
"""An exponential with which no token of the residual wins against one whose exponential is of order 1."""


def stratified_uniforms(num_strata: int) -> NDArray[np.float64]:  # [num_strata] float64
    """The midpoints of equal parts of the unit interval.

    Example:
        >>> stratified_uniforms(4).tolist()
        [0.125, 0.375, 0.625, 0.875]
    """
    return (np.arange(num_strata) + 0.5) / num_strata


def stratified_exponentials(num_strata: int) -> NDArray[np.float64]:  # [num_strata] float64
    """Exponentials at those midpoints of their own distribution."""
    return np.asarray(-np.log1p(-stratified_uniforms(num_strata)))


class StratifiedDraws:
    """Calls of the sampler with stratified noise.

    `num_draws` counts rows, and `num_invalid` those that no noise can explain.
    """

    def __init__(self, sampler: RejectionSampler, request: RequestDistributions, num_strata: int) -> None:
        self.sampler, self.request, self.num_strata = sampler, request, num_strata
        self.num_draws = self.num_invalid = 0
        # Likely under both distributions, so that uniform 0 accepts them.
        likely = np.minimum(request.exact_target_probs()[:-1], request.exact_draft_probs())
        self._drafts = likely.argmax(axis=1).astype(np.int32)

    def accepted_share(self, position: int, draft_token_id: int) -> float:
        """The share of draws in which this draft token is accepted."""
        exponentials = np.ones((self.num_strata, self.request.vocab_size))
        rows = self._draw(position, draft_token_id, stratified_uniforms(self.num_strata), exponentials)
        return float(np.mean(self.num_emitted(rows) > position + 1))

    def won_share(
        self, position: int, draft_token_id: int, favourite: int, opponent: int, num_best: int | None = None
    ) -> float:
        """The share of draws in which `opponent` is recovered, in a race against `favourite` after this draft token.

        Args:
            num_best: Only so many strata, those of the opponent's best numbers; all if `None`.
        """
        numbers = stratified_exponentials(self.num_strata)[:num_best]
        exponentials = np.full((numbers.size, self.request.vocab_size), _HOPELESS)
        exponentials[:, favourite] = 1.0
        exponentials[:, opponent] = numbers
        # Just below 1: rejected wherever the acceptance probability is not 1.
        uniforms = np.full(numbers.size, np.nextafter(1.0, 0.0))
        emitted = self._draw(position, draft_token_id, uniforms, exponentials)[:, position]
        self.num_invalid += int(np.sum((emitted != favourite) & (emitted != opponent)))
        return float(np.mean(emitted == opponent))

    def _draw(
        self,
        position: int,
        draft_token_id: int,
        uniforms: NDArray[np.float64],  # [num_samples] float64
        exponentials: NDArray[np.float64],  # [num_samples, vocab_size] float64
    ) -> NDArray[np.int32]:  # [num_samples, num_draft + 1] int32
        """One draw per stratum: uniforms of the other positions are 0, which accepts."""
        all_uniforms = np.zeros((uniforms.size, self.request.num_draft))
        all_uniforms[:, position] = uniforms
        drafts = self._drafts.copy()
        drafts[position] = draft_token_id
        batch = self._batch(drafts, uniforms.size)
        tokens = self._emit(batch, all_uniforms, exponentials)
        self.num_draws += uniforms.size
        self.num_invalid += self._num_broken(tokens, batch)
        return tokens

    def emitted(
        self,
        drafts: NDArray[np.integer],  # [num_draft] int
        uniforms: NDArray[np.float64],  # [num_samples, num_draft] float64
        exponentials: NDArray[np.float64],  # [num_samples, vocab_size] float64
    ) -> NDArray[np.int32]:  # [num_samples, num_draft + 1] int32
        """One row per line of noise; nothing is counted."""
        return self._emit(self._batch(drafts, len(uniforms)), uniforms, exponentials)

    def _emit(
        self,
        batch: SpecDecodeBatch,
        uniforms: NDArray[np.float64],  # [num_samples, num_draft] float64
        exponentials: NDArray[np.float64],  # [num_samples, vocab_size] float64
    ) -> NDArray[np.int32]:  # [num_samples, num_draft + 1] int32
        """The sampler's tokens on this noise."""
        import torch

        from fairdraw.contracts._rejection import emit

        noise = ExplicitNoise(
            torch.from_numpy(uniforms.ravel()).to(batch.device),
            torch.from_numpy(exponentials.astype(np.float32)).to(batch.device),
        )
        return emit(self.sampler, batch, noise).tokens

    def _batch(self, drafts: NDArray[np.integer], num_rows: int) -> SpecDecodeBatch:  # [num_draft] int
        request, origin = self.request, f"<stratified batch, drafts {drafts.tolist()}>"
        probs = None if request.one_hot else request.draft_probs
        return repeated(drafts, num_rows, request.target_logits[:-1], probs, origin).to(self.sampler.device)

    def _num_broken(self, tokens: NDArray[np.int32], batch: SpecDecodeBatch) -> int:
        """Rows that are not accepted drafts, one more token (the bonus token if all are accepted), placeholders."""
        num_emitted = self.num_emitted(tokens)
        drafts = batch.draft_token_ids.cpu().numpy().reshape(len(tokens), -1)
        after_last = np.arange(tokens.shape[1]) >= num_emitted[:, None]
        before_last = np.arange(drafts.shape[1]) < num_emitted[:, None] - 1
        broken = (num_emitted == 0) | (after_last & (tokens != PLACEHOLDER_TOKEN_ID)).any(axis=1)
        broken |= (before_last & (tokens[:, :-1] != drafts)).any(axis=1)
        full = num_emitted == tokens.shape[1]
        broken |= full & (tokens[:, -1] != batch.bonus_token_ids.cpu().numpy()[:, 0])
        return int(broken.sum())

    def num_emitted(self, tokens: NDArray[np.int32]) -> NDArray[np.int64]:  # [num_strata] int64
        """Tokens per output row."""
        return np.asarray((tokens != PLACEHOLDER_TOKEN_ID).sum(axis=1), dtype=np.int64)
