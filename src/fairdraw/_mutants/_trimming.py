"""Verifiers that trim drafts first: by what they must not look at, each caught by DIST821."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fairdraw._mutants._distribution_sampler import DistributionSampler, Floats, Tokens
from fairdraw._mutants._mutant import Mutant, mutant_as, name_of
from fairdraw.protocols import FunctionSampler, rejection_sampler

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from fairdraw.protocols import ProposedDrafts

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


def as_trimming(kind: type[Any]) -> FunctionSampler:
    """A class that trims and verifies as a sampler, under its name."""
    made = kind()
    return rejection_sampler(made.verify, trim=made.trim, name=name_of(kind), unsupported=kind.unsupported)


mutant_trim = partial(mutant_as, as_trimming)


@mutant_trim("DIST821")
class TrimsByTheProbabilityOfTheDrawnToken(Trims):
    """The confidence is that of the token, which is at hand, instead of that of its row."""

    def confidence(self, probs: Floats, tokens: Tokens) -> Floats:
        return own(probs, tokens)


@mutant_trim("DIST821")
class DropsDraftsThatAreNotTheirRowsFirst(Trims):
    """Verifies a draft only if it is the drafter's favourite."""

    def confidence(self, probs: Floats, tokens: Tokens) -> Floats:
        return np.asarray(own(probs, tokens) >= probs.max(axis=2), dtype=np.float32)


@mutant_trim("DIST821")
class TrimsByTheRowBehind(Trims):
    """Off by one: a draft is kept if the row that was computed from it is sharp."""

    def confidence(self, probs: Floats, tokens: Tokens) -> Floats:
        found = super().confidence(probs, tokens)
        return np.append(found[:, 1:], np.ones_like(found[:, :1]), axis=1)


@mutant_trim("DIST821")
class KeepsAllOrNothing(Trims):
    """A block of drafts is verified if its rows are sharp on average, those made from its own tokens too."""

    def num_kept(self, confidence: Floats) -> NDArray[np.int64]:
        return np.where(confidence.mean(axis=1) > np.float32(0.4), confidence.shape[1], 0)


@mutant_trim("DIST821")
class SharesABudgetByTheProbabilityOfTheDrawnToken(Trims):
    """Half of all drafts are verified: those whose tokens are the most probable."""

    def confidence(self, probs: Floats, tokens: Tokens) -> Floats:
        return own(probs, tokens)

    def num_kept(self, confidence: Floats) -> NDArray[np.int64]:
        return best_half(np.cumprod(confidence, axis=1))


@mutant_trim("DIST821")
class DropsDraftsOfOneToken(Trims):
    """A token that ends the text is left to the target model, and so is what comes after it."""

    def confidence(self, probs: Floats, tokens: Tokens) -> Floats:
        return np.asarray(tokens != 0, dtype=np.float32)


@mutant_trim("DIST821", min_draws=4_000)
class LooksAtTheTokenOfTheLastPositionAlone(Trims):
    """The last draft has no row behind it, so its own probability fills the gap."""

    def confidence(self, probs: Floats, tokens: Tokens) -> Floats:
        last = (own(probs, tokens)[:, -1:] > np.float32(0.12)).astype(np.float32)
        return np.append(np.ones_like(own(probs, tokens)[:, 1:]), last, axis=1)


TRIM_MUTANTS: tuple[Mutant, ...] = tuple(value for value in list(vars().values()) if isinstance(value, Mutant))


def best_half(survival: Floats) -> NDArray[np.int64]:  # [batch_size] int64
    """How many of each request's drafts are among the better half of all; survival never grows along a request."""
    order = np.argsort(-survival.ravel(), kind="stable")[: survival.size // 2]
    return np.bincount(order // survival.shape[1], minlength=len(survival)).astype(np.int64)
