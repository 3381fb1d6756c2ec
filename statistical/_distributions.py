"""Exact output distributions of verification, by enumeration, in float64, from the very logits that the sampler got.

Shapes. Position `i` of a request has one distribution per prefix of `i` earlier tokens. An entry `i` of `target_probs`
or `draft_probs` is therefore `[vocab_size]` if the distribution ignores the prefix, or has one more axis per earlier
token: `[vocab_size] * (i + 1)`, as a language model would fill it. NumPy broadcasting makes the two the same code.

Three distributions meet at a drafted position, and mixing them up is a bug that was shipped (DeepSpec #31):

* `target_probs`: what the output must follow;
* `draft_probs`: what the sampler is *told* that the draft token was drawn from; it enters the acceptance ratio;
* `proposal_probs`: what the draft token was *really* drawn from. It defaults to `draft_probs`; a one-hot row
  (`one_hot_probs`) conditions on given draft tokens.

Limits:
    Enumeration costs `vocab_size ** (num_draft + 1)` cells, so these distributions are for small vocabularies;
    production vocabularies are judged one token at a time (`fairdraw.statistical._pit`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import softmax

from fairdraw.statistical._validation import check_probs, refuse

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

__all__ = [
    "OutputDistribution",
    "StepDistribution",
    "acceptance_probs",
    "block_verification_distribution",
    "chain_distribution",
    "exact_match_distribution",
    "exact_match_step",
    "one_hot_probs",
    "residual_probs",
    "softmax_probs",
    "token_verification_distribution",
    "token_verification_step",
]

ROUNDING = 2.0**-20
"""Relative gap of target and draft below which a float32 sampler may see either sign: 8 units in the last place."""


@dataclass(frozen=True)
class StepDistribution:
    """One drafted position, given that it is reached: joint distribution of draft token, verdict and emitted token."""

    accepted: NDArray[np.float64]  # [..., vocab_size] float64, draft token accepted
    rejected: NDArray[np.float64]  # [..., vocab_size, vocab_size] float64, draft token rejected x recovered token
    recoverable: NDArray[np.bool_]  # [..., vocab_size] bool, tokens that rounding leaves possible


@dataclass(frozen=True)
class OutputDistribution:
    """Joint distribution of the accepted count and all emitted tokens of one request.

    Args:
        by_num_accepted: Entry `a` is `P(a drafts accepted, a + 1 tokens emitted = index)`.
        possible: Cells that a correct float32 sampler may reach. A cell outside is never reached, however many samples.
    """

    by_num_accepted: tuple[NDArray[np.float64], ...]  # entry a: [vocab_size] * (a + 1) float64
    possible: tuple[NDArray[np.bool_], ...]  # entry a: [vocab_size] * (a + 1) bool

    @property
    def num_draft(self) -> int:
        return len(self.by_num_accepted) - 1

    @property
    def vocab_size(self) -> int:
        return int(self.by_num_accepted[0].shape[0])

    def num_accepted_probs(self) -> NDArray[np.float64]:  # [num_draft + 1] float64
        """The distribution of the number of accepted drafts."""
        return np.array([table.sum() for table in self.by_num_accepted])

    def mean_num_emitted(self) -> float:
        """Mean accepted length: output tokens per step."""
        return float(1 + np.arange(self.num_draft + 1) @ self.num_accepted_probs())

    def row_probs(self) -> NDArray[np.float64]:  # [(vocab_size + 1) ** (num_draft + 1)] float64
        """The distribution over whole rows as digits, the placeholder being the last one; malformed rows have
        probability 0.
        """
        return self._over_rows(self.by_num_accepted)

    def row_possible(self) -> NDArray[np.bool_]:  # [(vocab_size + 1) ** (num_draft + 1)] bool
        """Which output rows can occur at all."""
        return self._over_rows([mask.astype(np.float64) for mask in self.possible]) > 0

    def completed_probs(self, target_probs: Sequence[ArrayLike]) -> NDArray[np.float64]:
        """The distribution of the row completed with draws from the target: losslessness says it is the target's own.

        Returns:
            `[vocab_size] * (num_draft + 1)` float64.
        """
        target = _position_distributions("completed_probs", "target_probs", target_probs, self.num_draft + 1)
        total = np.zeros((self.vocab_size,) * (self.num_draft + 1))
        for num_accepted, table in enumerate(self.by_num_accepted):
            for distribution in target[num_accepted + 1 :]:
                table = table[..., None] * distribution
            total += table
        return total

    def _over_rows(self, tables: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
        """Spread the tables over a cube with one more index per axis, which stands for the placeholder."""
        cube = np.zeros((self.vocab_size + 1,) * (self.num_draft + 1))
        for num_accepted, table in enumerate(tables):
            tokens = (slice(0, self.vocab_size),) * (num_accepted + 1)
            placeholders = (self.vocab_size,) * (self.num_draft - num_accepted)
            cube[tokens + placeholders] = table
        return cube.ravel()


def softmax_probs(logits: ArrayLike, temperature: float = 1.0) -> NDArray[np.float64]:  # [..., vocab_size] float64
    """The distribution that stored logits stand for, in float64 whatever their own type.

    Raises:
        ValueError: If the temperature is not positive, or a row has NaN, +inf, or nothing but -inf.
    """
    rows = np.asarray(logits, dtype=np.float64)
    if not temperature > 0:
        raise refuse(
            "softmax_probs", f"temperature={temperature:g}", "it must be positive", "Greedy rows have no distribution."
        )
    if np.isnan(rows).any() or (rows == np.inf).any() or (rows.max(axis=-1) == -np.inf).any():
        raise refuse(
            "softmax_probs", "a row has NaN, +inf or only -inf", "it must have a distribution", "Look at the logits."
        )
    probs: NDArray[np.float64] = softmax(rows / temperature, axis=-1)
    return probs


def one_hot_probs(token_ids: Sequence[int], vocab_size: int) -> NDArray[np.float64]:  # [num_draft, vocab_size] float64
    """One row per token with all probability on it: a given draft, or an n-gram draft.

    Raises:
        ValueError: If an id lies outside the vocabulary.
    """
    ids = np.asarray(token_ids, dtype=np.int64)
    if ids.size and (ids.min() < 0 or ids.max() >= vocab_size):
        raise refuse("one_hot_probs", f"token_ids={ids.tolist()}", f"ids must lie in [0, {vocab_size})", "Check them.")
    return np.asarray(np.eye(vocab_size)[ids])


def acceptance_probs(
    target: NDArray[np.float64],  # [..., vocab_size] float64
    draft: NDArray[np.float64],  # [..., vocab_size] float64
) -> NDArray[np.float64]:  # [..., vocab_size] float64
    """`min(1, target / draft)` per token; 0 for a token that the drafter cannot draw, as vLLM has it."""
    return np.minimum(_quotient(target, draft), 1.0)


def residual_probs(
    target: NDArray[np.float64],  # [..., vocab_size] float64
    draft: NDArray[np.float64],  # [..., vocab_size] float64
) -> NDArray[np.float64]:  # [..., vocab_size] float64
    """`(target - draft)_+`, normalised; a row of zeros where the two distributions agree (nothing is ever rejected
    there).
    """
    excess = np.maximum(target - draft, 0.0)
    return _quotient(excess, excess.sum(axis=-1, keepdims=True))


def token_verification_step(
    target: NDArray[np.float64],  # [..., vocab_size] float64
    draft: NDArray[np.float64],  # [..., vocab_size] float64
    proposal: NDArray[np.float64],  # [..., vocab_size] float64
) -> StepDistribution:
    """Accept with `min(1, target / draft)`, else recover from the residual, independently of the rejected token."""
    acceptance = acceptance_probs(target, draft)
    refused = proposal * (1 - acceptance)
    return StepDistribution(
        accepted=proposal * acceptance,
        rejected=refused[..., :, None] * residual_probs(target, draft)[..., None, :],
        recoverable=(target > 0) & (target > (1 - ROUNDING) * draft),
    )


def exact_match_step(
    target: NDArray[np.float64],  # [..., vocab_size] float64
    proposal: NDArray[np.float64],  # [..., vocab_size] float64
) -> StepDistribution:
    """Draw one token from the target and emit it; the draft is accepted if it is the same token.

    One-hot (n-gram) drafts under token verification have this very distribution: the draft `d` is accepted with
    probability `target(d)`, and the residual is the target without `d`.
    """
    joint = proposal[..., :, None] * target[..., None, :]
    off_diagonal = ~np.eye(target.shape[-1], dtype=bool)
    return StepDistribution(accepted=proposal * target, rejected=joint * off_diagonal, recoverable=target > 0)


def token_verification_distribution(
    target_probs: Sequence[ArrayLike],
    draft_probs: Sequence[ArrayLike],
    proposal_probs: Sequence[ArrayLike] | None = None,
) -> OutputDistribution:
    """The distribution of token-by-token rejection sampling.

    Args:
        target_probs: One distribution per drafted position, and one for the bonus token.
        draft_probs: One distribution per drafted position.
        proposal_probs: What the drafts are really drawn from; `None` for `draft_probs`.

    Raises:
        ValueError: If a distribution is not one, or their number or widths disagree.

    Reference:
        Leviathan, Kalman, Matias (2022), arXiv:2211.17192, algorithm 1; Chen et al. (2023), arXiv:2302.01318.
    """
    target, draft, proposal = _three_distributions(
        "token_verification_distribution", target_probs, draft_probs, proposal_probs
    )
    steps = [
        token_verification_step(*distributions) for distributions in zip(target[:-1], draft, proposal, strict=True)
    ]
    return chain_distribution(steps, target[-1])


def exact_match_distribution(
    target_probs: Sequence[ArrayLike], proposal_probs: Sequence[ArrayLike]
) -> OutputDistribution:
    """The distribution of exact-match ("sampled") verification, and of one-hot drafts drawn from `proposal_probs`.

    Raises:
        ValueError: If a distribution is not one, or their number or widths disagree.
    """
    target, _, proposal = _three_distributions("exact_match_distribution", target_probs, proposal_probs, None)
    steps = [exact_match_step(*distributions) for distributions in zip(target[:-1], proposal, strict=True)]
    return chain_distribution(steps, target[-1])


def block_verification_distribution(
    target_probs: Sequence[ArrayLike],
    draft_probs: Sequence[ArrayLike],
    proposal_probs: Sequence[ArrayLike] | None = None,
) -> OutputDistribution:
    """The distribution of block verification: the longest prefix that passes its own test is accepted.

    With `ratio_0 = 1`, `ratio_{i+1} = min(1, ratio_i * target_i / draft_i)` along the drafts, and
    `spare_i = sum_v (ratio_i * target_i(v) - draft_i(v))_+`, the prefix of length `i` passes with probability
    `spare_i / (spare_i + 1 - ratio_i)` (with `ratio_i` if it is the whole draft), independently of the others.
    The token after it is drawn from `(ratio_i * target_i - draft_i)_+`, normalised.

    Args:
        target_probs: One distribution per drafted position, and one for the bonus token.
        draft_probs: One distribution per drafted position.
        proposal_probs: What the drafts are really drawn from; `None` for `draft_probs`.

    Raises:
        ValueError: If a distribution is not one, or their number or widths disagree.

    Reference:
        Sun et al. (2025), arXiv:2403.10444, algorithm 2, equations 4 and 5.
    """
    target, draft, proposal = _three_distributions(
        "block_verification_distribution", target_probs, draft_probs, proposal_probs
    )
    ratios = [np.ones(())]
    reach = [np.ones(())]
    for target_distribution, draft_distribution, proposal_distribution in zip(
        target[:-1], draft, proposal, strict=True
    ):
        ratios.append(np.minimum(ratios[-1][..., None] * _quotient(target_distribution, draft_distribution), 1.0))
        reach.append(reach[-1][..., None] * proposal_distribution)

    # Backwards: `none_longer[i]` is the probability, given i drafts, that no longer prefix passes.
    passes, none_longer = ratios[-1], np.ones(())
    tables = [(reach[-1] * passes)[..., None] * target[-1]]
    possible = [tables[0] > 0]
    for i in reversed(range(len(draft))):
        none_longer = (proposal[i] * (1 - passes) * none_longer).sum(axis=-1)
        scaled = ratios[i][..., None] * target[i]
        excess = np.maximum(scaled - draft[i], 0.0)
        spare = excess.sum(axis=-1)
        # 0 / 0 means ratio 1 and nothing spare: a longer prefix passes for certain, this one's test does not matter.
        passes = _quotient(spare, spare + (1 - ratios[i]))
        stops = reach[i] * passes * none_longer
        tables.insert(0, stops[..., None] * _quotient(excess, spare[..., None]))
        possible.insert(0, (reach[i] > 0)[..., None] & (scaled > 0) & (scaled > (1 - ROUNDING) * draft[i]))
    return _output_distribution(tables, possible)


def chain_distribution(
    steps: Sequence[StepDistribution],
    bonus: NDArray[np.float64],  # [..., vocab_size] float64
) -> OutputDistribution:
    """Accept from left to right; the first rejection ends the row, otherwise the bonus token does.

    Public because wrong steps have distributions too: how far a mutant is from honest code is computed, not guessed.
    """
    reach: NDArray[np.float64] = np.ones(())
    tables, possible = [], []
    for step in steps:
        tables.append(reach[..., None] * step.rejected.sum(axis=-2))
        possible.append((reach > 0)[..., None] & step.recoverable)
        reach = reach[..., None] * step.accepted
    tables.append(reach[..., None] * bonus)
    possible.append(tables[-1] > 0)
    return _output_distribution(tables, possible)


def _output_distribution(
    tables: Sequence[NDArray[np.float64]], possible: Sequence[NDArray[np.bool_]]
) -> OutputDistribution:
    vocab_size = tables[0].shape[-1]
    shapes = [(vocab_size,) * (num_accepted + 1) for num_accepted in range(len(tables))]
    return OutputDistribution(
        tuple(np.broadcast_to(table, shape) for table, shape in zip(tables, shapes, strict=True)),
        tuple(np.broadcast_to(mask, shape) for mask, shape in zip(possible, shapes, strict=True)),
    )


def _quotient(numerator: NDArray[np.float64], denominator: NDArray[np.float64]) -> NDArray[np.float64]:
    """The quotient, and 0 where there is nothing to divide by."""
    zeros = np.zeros(np.broadcast_shapes(numerator.shape, denominator.shape))
    with np.errstate(over="ignore"):
        return np.divide(numerator, denominator, out=zeros, where=denominator > 0)


def _three_distributions(
    function: str,
    target_probs: Sequence[ArrayLike],
    draft_probs: Sequence[ArrayLike],
    proposal_probs: Sequence[ArrayLike] | None,
) -> tuple[list[NDArray[np.float64]], list[NDArray[np.float64]], list[NDArray[np.float64]]]:
    """Target, draft and proposal distributions, checked; the target has one position more than the others."""
    num_draft = len(draft_probs)
    target = _position_distributions(function, "target_probs", target_probs, num_draft + 1)
    draft = _position_distributions(function, "draft_probs", draft_probs, num_draft)
    if proposal_probs is None:
        proposal = draft
    else:
        proposal = _position_distributions(function, "proposal_probs", proposal_probs, num_draft)
    widths = {distribution.shape[-1] for distribution in [*target, *draft, *proposal]}
    if len(widths) > 1:
        raise refuse(
            function, f"widths={sorted(widths)}", "all distributions must have one vocab_size", "Pad or cut them."
        )
    return target, draft, proposal


def _position_distributions(
    function: str, name: str, distributions: Sequence[ArrayLike], num_positions: int
) -> list[NDArray[np.float64]]:
    """Position `i` as an array with `i + 1` axes (or one, which broadcasts)."""
    if len(distributions) != num_positions:
        raise refuse(
            function,
            f"len({name})={len(distributions)}",
            f"it must be {num_positions}",
            "One distribution per position.",
        )
    checked = [check_probs(function, f"{name}[{i}]", distribution) for i, distribution in enumerate(distributions)]
    for i, distribution in enumerate(checked):
        if distribution.ndim not in (1, i + 1):
            raise refuse(
                function,
                f"{name}[{i}].ndim={distribution.ndim}",
                f"it must be 1 or {i + 1}",
                "One axis per earlier token.",
            )
    return checked
