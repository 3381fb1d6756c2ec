"""The rejection contract, executable.

Read it beside algorithm 1 of Leviathan, Kalman, Matias (2022), arXiv:2211.17192. Three things are added to the paper:
which floating-point comparison decides (so that "bitwise" has a meaning), what happens to rows without mass, and in
which order seeded noise is drawn (vLLM's order since 0.10.2).
"""

from dataclasses import dataclass
from itertools import accumulate, repeat

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairdraw.contracts import PLACEHOLDER_TOKEN_ID, ExplicitNoise, Noise, SeededNoise, SpecDecodeBatch


@dataclass(slots=True)
class DraftStep:
    """One drafted position of one request, as the oracle sees it."""

    draft_token_id: int
    target_logits: NDArray[np.float32]  # [vocab_size] float32
    target_probs: NDArray[np.float32]  # [vocab_size] float32
    draft_probs: NDArray[np.float32] | None  # [vocab_size] float32, None for a one-hot draft
    uniform: float
    exponentials: NDArray[np.float32]  # [vocab_size] float32
    synthetic_rate: np.float32 | None

    @property
    def is_token(self) -> bool:
        """A placeholder (-1) is no token and is never accepted."""
        return 0 <= self.draft_token_id < self.target_probs.size


class RejectionOracle:
    """The specification as small overridable steps; a mutant overrides exactly one of them."""

    name = "oracle"

    def verify(self, batch: SpecDecodeBatch, noise: Noise) -> Tensor:  # [batch_size, max_spec_len + 1] int32
        """Accepted drafts, then one recovered or bonus token, then placeholders, for every request."""
        if isinstance(noise, SeededNoise):
            noise = self.draw_noise(batch, noise)
        output = np.full((batch.batch_size, batch.max_spec_len + 1), PLACEHOLDER_TOKEN_ID, dtype=np.int32)
        steps = self.steps(batch, noise)
        bonus = batch.bonus_token_ids.flatten().tolist()
        ends = list(accumulate(batch.num_draft_tokens))
        for request, is_greedy in enumerate(batch.is_greedy.tolist()):
            own = steps[ends[request] - batch.num_draft_tokens[request] : ends[request]]
            emitted = (self.greedy_request if is_greedy else self.random_request)(own, bonus[request])
            output[request, : len(emitted)] = emitted
        return torch.from_numpy(output).to(batch.device)

    def draw_noise(self, batch: SpecDecodeBatch, noise: SeededNoise) -> ExplicitNoise:
        return draw_noise(batch, noise)

    def steps(self, batch: SpecDecodeBatch, noise: ExplicitNoise) -> list[DraftStep]:
        """All drafted positions of the batch, flattened as in `draft_token_ids`."""
        exponentials = list(noise.exponentials.cpu().numpy())
        owners = [(i, j) for i, count in enumerate(batch.num_draft_tokens) for j in range(count)]
        rates = None if batch.synthetic_rates is None else batch.synthetic_rates.cpu().numpy()
        steps = map(
            DraftStep,
            batch.draft_token_ids.tolist(),
            batch.target_logits.float().cpu().numpy(),
            batch.target_probs().cpu().numpy(),
            repeat(None) if batch.draft_probs is None else batch.draft_probs.cpu().numpy(),
            noise.uniforms.tolist(),
            [exponentials[request] for request, _ in owners],
            repeat(None) if rates is None else [rates[position] for _, position in owners],
        )
        return list(steps)

    def greedy_request(self, steps: list[DraftStep], bonus_token_id: int) -> list[int]:
        """Argmax decoding: at each position the argmax is emitted; the first draft that differs ends the request."""
        emitted: list[int] = []
        for step in steps:
            best = self.greedy_token(step)
            accepted = step.draft_token_id == best if step.synthetic_rate is None else self.accepts(step)
            emitted.append(step.draft_token_id if accepted else best)
            if not accepted:
                return emitted
        return [*emitted, bonus_token_id]

    def random_request(self, steps: list[DraftStep], bonus_token_id: int) -> list[int]:
        """Accept from left to right; the first rejection is replaced by a recovered token and ends the request."""
        emitted: list[int] = []
        for step in steps:
            if not self.accepts(step):
                return [*emitted, self.recovered_token(step)]
            emitted.append(step.draft_token_id)
        return [*emitted, bonus_token_id]

    def greedy_token(self, step: DraftStep) -> int:
        """The id of the largest logit, lowest id on ties; NaN counts as largest (as torch.argmax has it)."""
        return int(np.argmax(step.target_logits))

    def accepts(self, step: DraftStep) -> bool:
        """Accept if `target / draft >= uniform`: a float32 quotient against a float64 uniform.

        A token without target probability is not accepted even at uniform 0, nor one that its drafter cannot draw.
        """
        if not step.is_token:
            return False
        if step.synthetic_rate is not None:
            return step.uniform < float(step.synthetic_rate)
        target_prob = step.target_probs[step.draft_token_id]
        draft_prob = np.float32(1.0) if step.draft_probs is None else step.draft_probs[step.draft_token_id]
        if not (draft_prob > 0 and target_prob > 0):
            return False
        with np.errstate(over="ignore"):
            return float(target_prob / draft_prob) >= step.uniform

    def recovered_token(self, step: DraftStep) -> int:
        """Draw from the residual; from the target if rounding left no residual; id 0 if there is no target either."""
        for weights in (self.residual(step), step.target_probs):
            if (weights > 0).any():
                return self.race(weights, step.exponentials)
        return 0

    def residual(self, step: DraftStep) -> NDArray[np.float32]:  # [vocab_size] float32, not normalised
        """max(target - draft, 0); a one-hot draft removes its own token and nothing else."""
        if step.draft_probs is not None:
            above: NDArray[np.float32] = np.maximum(step.target_probs - step.draft_probs, np.float32(0))
            return above
        weights = step.target_probs.copy()
        if step.is_token:
            weights[step.draft_token_id] = 0
        return weights

    def race(self, weights: NDArray[np.float32], exponentials: NDArray[np.float32]) -> int:
        """Exponential race: argmax of `weight / exponential` over tokens with weight, lowest id on ties."""
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            scores = self.scores(weights, exponentials)
        return int(np.argmax(np.where(weights > 0, scores, np.float32(-1.0))))

    def scores(self, weights: NDArray[np.float32], exponentials: NDArray[np.float32]) -> NDArray[np.float32]:
        """Weight times reciprocal, both rounded to float32, because vLLM does."""
        reciprocals: NDArray[np.float32] = np.divide(np.float32(1.0), exponentials)
        return weights * reciprocals


class DividingOracle(RejectionOracle):
    """The same specification with the other float32 race: the quotient `weight / exponential`, rounded once.

    Both are right. They differ where two scores are equal up to rounding, and for exponentials so small that their
    reciprocal overflows. A sampler that supports `upstream-stream` is held to the product, any other to one of the two.
    """

    def scores(self, weights: NDArray[np.float32], exponentials: NDArray[np.float32]) -> NDArray[np.float32]:
        return weights / exponentials


def draw_noise(batch: SpecDecodeBatch, noise: SeededNoise) -> ExplicitNoise:
    """Draw what vLLM draws, in vLLM's order, on the batch's device.

    Randomness:
        Nothing if every request is greedy (and rates are not synthetic). Otherwise, in this order:
        `num_tokens` float64 uniforms from the default generator; per seeded request with drafts, in row order, its own
        uniforms from its generator; `[batch_size, vocab_size]` float32 exponentials from the default generator; per
        seeded request with drafts, its own row from its generator. The default generator advances even if every
        request is seeded.
    """
    size = batch.batch_size, batch.vocab_size
    all_greedy = bool(batch.is_greedy.all())
    if all_greedy and batch.synthetic_rates is None:
        uniforms = torch.zeros(batch.num_tokens, dtype=torch.float64, device=batch.device)
        return ExplicitNoise(uniforms, torch.ones(size, dtype=torch.float32, device=batch.device))

    counts, generators = batch.num_draft_tokens, noise.generators(batch.device)
    seeded = [request for request in sorted(generators) if counts[request] > 0]
    uniforms = torch.rand(batch.num_tokens, dtype=torch.float64, device=batch.device)
    ends = list(accumulate(counts)) if seeded else []
    for request in seeded:
        uniforms[ends[request] - counts[request] : ends[request]].uniform_(generator=generators[request])
    if all_greedy:
        return ExplicitNoise(uniforms, torch.ones(size, dtype=torch.float32, device=batch.device))

    exponentials = torch.empty(size, dtype=torch.float32, device=batch.device).exponential_()
    for request in seeded:
        exponentials[request].exponential_(generator=generators[request])
    return ExplicitNoise(uniforms, exponentials)


def verify(batch: SpecDecodeBatch, noise: Noise) -> Tensor:  # [batch_size, max_spec_len + 1] int32
    """The specification's answer."""
    return RejectionOracle().verify(batch, noise)
