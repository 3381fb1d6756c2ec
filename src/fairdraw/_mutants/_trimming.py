"""Verifiers that trim drafts first: by what they must not look at, each caught by DIST821.

Each function stands for one step of the correct rule, with that step's arguments. First comes `right`, the correct
steps, or `answer`, that of the correct step.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairdraw._mutants._distribution_sampler import DistributionSampler, Floats, Tokens
from fairdraw._mutants._mutant import Mutant, mutants_in, patching
from fairdraw._mutants.distributions import mutant_distribution
from fairdraw.contracts import ProposedDrafts

_LEAST = 0.12
"""Of the survival of a draft that is kept."""


class Trims(DistributionSampler):
    """Keeps a draft while the product of the largest probabilities, up to its own row, is large."""

    def trim(self, drafts: ProposedDrafts) -> Tensor:  # [batch_size] int64
        """The number of drafts that are kept. All requests have equally many."""
        probs = drafts.draft_probs.numpy().reshape(drafts.batch_size, -1, drafts.draft_probs.shape[1])
        tokens = drafts.draft_token_ids.numpy().reshape(drafts.batch_size, -1).astype(np.int64)
        return torch.from_numpy(self.num_kept(self.confidence(probs, tokens)))

    def confidence(self, probs: Floats, tokens: Tokens) -> Floats:  # [batch_size, num_drafts] float32
        """From rows `[batch_size, num_drafts, vocab_size]` and the tokens drawn from them."""
        return np.asarray(probs.max(axis=2))

    def num_kept(self, confidence: Floats) -> NDArray[np.int64]:  # [batch_size] int64
        """The drafts before the first whose survival is small."""
        return np.asarray((np.cumprod(confidence, axis=1) > _LEAST).sum(axis=1))


def own(probs: Floats, tokens: Tokens) -> Floats:  # [batch_size, num_drafts] float32
    """The probabilities of the drawn tokens."""
    return np.asarray(np.take_along_axis(probs, tokens[..., None], axis=2)[..., 0])


_patched = patching(mutant_distribution, Trims)


@_patched("confidence", "DIST821")
def trims_by_the_probability_of_the_drawn_token(right: Trims, probs: Floats, tokens: Tokens) -> Floats:
    """The confidence is that of the token, which is at hand, instead of that of its row."""
    return own(probs, tokens)


@_patched("confidence", "DIST821")
def drops_drafts_that_are_not_their_rows_first(right: Trims, probs: Floats, tokens: Tokens) -> Floats:
    """Verifies a draft only if it is the drafter's favourite."""
    return np.asarray(own(probs, tokens) >= probs.max(axis=2), dtype=np.float32)


@_patched("confidence", "DIST821")
def trims_by_the_row_behind(answer: Floats, probs: Floats, tokens: Tokens) -> Floats:
    """Off by one: a draft is kept if the row that was computed from it is sharp."""
    return np.append(answer[:, 1:], np.ones_like(answer[:, :1]), axis=1)


@_patched("num_kept", "DIST821")
def keeps_all_or_nothing(right: Trims, confidence: Floats) -> NDArray[np.int64]:
    """A block of drafts is verified if its rows are sharp on average, those made from its own tokens too."""
    return np.where(confidence.mean(axis=1) > np.float32(0.4), confidence.shape[1], 0)


@mutant_distribution("DIST821")
class SharesABudgetByTheProbabilityOfTheDrawnToken(Trims):
    """Half of all drafts are verified: those whose tokens are the most probable."""

    def confidence(self, probs: Floats, tokens: Tokens) -> Floats:
        return own(probs, tokens)

    def num_kept(self, confidence: Floats) -> NDArray[np.int64]:
        return best_half(np.cumprod(confidence, axis=1))


@_patched("confidence", "DIST821")
def drops_drafts_of_one_token(right: Trims, probs: Floats, tokens: Tokens) -> Floats:
    """A token that ends the text is left to the target model, and so is what comes after it."""
    return np.asarray(tokens != 0, dtype=np.float32)


@_patched("confidence", "DIST821", min_draws=4_000)
def looks_at_the_token_of_the_last_position_alone(right: Trims, probs: Floats, tokens: Tokens) -> Floats:
    """The last draft has no row behind it, so its own probability fills the gap."""
    last = (own(probs, tokens)[:, -1:] > np.float32(0.12)).astype(np.float32)
    return np.append(np.ones_like(own(probs, tokens)[:, 1:]), last, axis=1)


TRIM_MUTANTS: tuple[Mutant, ...] = mutants_in(vars())


def best_half(survival: Floats) -> NDArray[np.int64]:  # [batch_size] int64
    """How many of each request's drafts are among the better half of all; survival never grows along a request."""
    order = np.argsort(-survival.ravel(), kind="stable")[: survival.size // 2]
    return np.bincount(order // survival.shape[1], minlength=len(survival)).astype(np.int64)
