"""Fixed experiments: small distributions under which every event that a statistic looks at has enough probability.

Random distributions are good at finding crashes and bad at finding unfairness: most of them hardly ever reject, or
hardly ever reach the bonus token. These are chosen. Their rows are peaked, target and draft disagree (40 to 56 %
rejections per step), and each has tokens without target probability and tokens that the drafter cannot draw.
`RAGGED` mixes requests of different length whose distributions differ, so that reading a neighbour's row cannot go
unnoticed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from fairdraw._core.seeds import derive_seed
from fairdraw.contracts import SpecDecodeBatch
from fairdraw.statistical import _distributions as distributions
from fairdraw.statistical._validation import check_probs, refuse


@dataclass(frozen=True, eq=False)
class RequestDistributions:
    """The target and draft distributions of one request.

    Args:
        target_logits: One row per draft token, and one for the bonus token; the sampler gets the former as they are.
        draft_probs: What each draft token is drawn from.
        one_hot: The sampler does not get `draft_probs`.
    """

    target_logits: NDArray[np.floating]  # [num_draft + 1, vocab_size] float32
    draft_probs: NDArray[np.floating]  # [num_draft, vocab_size] float32
    one_hot: bool = False

    @property
    def num_draft(self) -> int:
        """Draft tokens of the request."""
        return len(self.draft_probs)

    @property
    def vocab_size(self) -> int:
        """Tokens in the vocabulary."""
        return int(self.target_logits.shape[1])

    def exact_target_probs(self) -> NDArray[np.float64]:  # [num_draft + 1, vocab_size] float64
        """Return the target distributions that the stored logits stand for."""
        return distributions.softmax_probs(self.target_logits)

    def exact_draft_probs(self) -> NDArray[np.float64]:  # [num_draft, vocab_size] float64
        """The draft distributions that the stored probabilities stand for."""
        return check_probs("exact_draft_probs", "draft_probs", self.draft_probs)

    def acceptance(self, position: int) -> NDArray[np.float64]:  # [vocab_size] float64
        """The acceptance probability of each draft token, given what the sampler gets."""
        target = self.exact_target_probs()[position]
        return target if self.one_hot else distributions.acceptance_probs(target, self.exact_draft_probs()[position])

    def residual(self, position: int, draft_token_id: int) -> NDArray[np.float64]:  # [vocab_size] float64
        """The distribution of the token recovered after this draft token; zeros if it is never rejected."""
        draft = np.eye(self.vocab_size)[draft_token_id] if self.one_hot else self.exact_draft_probs()[position]
        return distributions.residual_probs(self.exact_target_probs()[position], draft)

    def recoverable(self, position: int) -> NDArray[np.bool_]:  # [vocab_size] bool
        """Tokens that a correct float32 sampler may recover."""
        target = self.exact_target_probs()[position]
        return target > 0 if self.one_hot else distributions.recoverable(target, self.exact_draft_probs()[position])


def request_distributions(
    target_probs: ArrayLike, draft_probs: ArrayLike, *, one_hot: bool = False, roll: int = 0
) -> RequestDistributions:
    """Distributions from probabilities, stored in float32 as by a model; `roll` shifts the vocabulary cyclically."""
    with np.errstate(divide="ignore"):
        logits = np.log(np.roll(np.asarray(target_probs, dtype=np.float64), roll, axis=1))
    drafts = np.roll(np.asarray(draft_probs, dtype=np.float64), roll, axis=1)
    return RequestDistributions(logits.astype(np.float32), drafts.astype(np.float32), one_hot)


@dataclass(frozen=True, eq=False)
class Configuration:
    """A batch of requests whose distributions repeat in a cycle.

    Args:
        requests: Request `i` of a batch has the distributions `requests[i % len(requests)]`.
        targets: Codes of the statistics that it is made for; others would cost false-fail rate and find nothing new.
    """

    name: str
    requests: tuple[RequestDistributions, ...]
    targets: tuple[str, ...]

    @property
    def max_spec_len(self) -> int:
        """Most draft tokens of any request."""
        return max(request.num_draft for request in self.requests)

    def __str__(self) -> str:
        return self.name.upper().replace("-", "_")

    def without_draft_probs(self) -> Configuration:
        """The same distributions, but the sampler gets no draft probabilities: for samplers of one-hot drafts alone."""
        one_hot = tuple(replace(request, one_hot=True) for request in self.requests)
        return replace(self, name=f"{self.name}, one-hot", requests=one_hot)

    def batch(self, batch_size: int, seed: int, device: str = "cpu") -> SpecDecodeBatch:
        """A batch with fresh draft tokens and bonus tokens.

        Raises:
            ValueError: If `batch_size` is not a multiple of the cycle.

        Randomness:
            Drafts and bonus tokens from two streams, hashed from `seed`, that no sampler uses (`Uniforms`).
        """
        from fairdraw.statistical._token_draws import Uniforms, draw_tokens

        num_cycles, rest = divmod(batch_size, len(self.requests))
        if num_cycles == 0 or rest:
            cycle = len(self.requests)
            raise refuse("batch", f"batch_size={batch_size}", f"it must be a multiple of {cycle}", f"Use {cycle}.")

        def draw(probs: NDArray[np.float64], stream_seed: int) -> torch.Tensor:  # [num_cycles, len(probs)] int32
            """A token of each row of probabilities in every cycle."""
            uniforms = Uniforms(derive_seed("draft", stream_seed), device).draw(num_cycles, len(probs))
            return draw_tokens(probs, uniforms)

        drafts = draw(np.concatenate([request.exact_draft_probs() for request in self.requests]), seed)
        last = np.stack([request.exact_target_probs()[-1] for request in self.requests])
        bonus = draw(last, derive_seed("bonus", seed))
        template, where = _template(self, batch_size, device), "" if device == "cpu" else f", device={device!r}"
        # A copy, because a sampler may overwrite its inputs.
        return template.clone().replace(
            draft_token_ids=drafts.flatten(),
            bonus_token_ids=bonus.reshape(-1, 1),
            num_draft_tokens=list(template.num_draft_tokens),
            origin=f"{self}.batch({batch_size}, seed={seed}{where})",
        )


def repeated(
    drafts: NDArray[np.integer],  # [num_draft] int
    num_rows: int,
    target_logits: NDArray[np.floating],  # [num_draft, vocab_size] float32
    draft_probs: NDArray[np.floating] | None,  # [num_draft, vocab_size] float32
    origin: str,
) -> SpecDecodeBatch:
    """The same request `num_rows` times; bonus tokens differ from row to row."""
    counts = [len(drafts)] * num_rows
    return SpecDecodeBatch(
        draft_token_ids=torch.from_numpy(np.tile(drafts.astype(np.int32), num_rows)),
        num_draft_tokens=counts,
        cu_num_draft_tokens=torch.tensor(counts, dtype=torch.int32).cumsum(0, dtype=torch.int32),
        max_spec_len=len(drafts),
        draft_probs=None if draft_probs is None else torch.from_numpy(np.tile(draft_probs, (num_rows, 1))),
        target_logits=torch.from_numpy(np.tile(target_logits, (num_rows, 1))),
        bonus_token_ids=(torch.arange(num_rows, dtype=torch.int32) % target_logits.shape[1])[:, None],
        temperature=torch.ones(num_rows),
        origin=origin,
    )


@lru_cache(maxsize=16)
def _template(configuration: Configuration, batch_size: int, device: str) -> SpecDecodeBatch:
    """What all batches of a size have in common; its tokens are 0. It is checked, and they need not be."""
    from fairdraw.contracts._rejection import check_batch

    requests, num_cycles = configuration.requests, batch_size // len(configuration.requests)
    counts = [request.num_draft for request in requests] * num_cycles
    draft_probs = np.concatenate([request.draft_probs for request in requests])
    target_logits = np.concatenate([request.target_logits[:-1] for request in requests])
    template = SpecDecodeBatch(
        draft_token_ids=torch.zeros(sum(counts), dtype=torch.int32),
        num_draft_tokens=counts,
        cu_num_draft_tokens=torch.tensor(counts, dtype=torch.int32).cumsum(0, dtype=torch.int32),
        max_spec_len=configuration.max_spec_len,
        draft_probs=None if requests[0].one_hot else torch.from_numpy(np.tile(draft_probs, (num_cycles, 1))),
        target_logits=torch.from_numpy(np.tile(target_logits, (num_cycles, 1))),
        bonus_token_ids=torch.zeros((batch_size, 1), dtype=torch.int32),
        temperature=torch.ones(batch_size),
    ).to(device)
    check_batch(template)
    return template


_TARGET = [[0.40, 0.25, 0.15, 0.10, 0.10, 0.0], [0.05, 0.30, 0.30, 0.20, 0.0, 0.15], [0.1, 0.1, 0.2, 0.3, 0.3, 0.0]]
_DRAFT = [[0.10, 0.20, 0.30, 0.25, 0.05, 0.10], [0.30, 0.25, 0.10, 0.15, 0.20, 0.0]]
_PEAKED_TARGET = [[0.6, 0.2, 0.1, 0.05, 0.05, 0.0], [0.1, 0.1, 0.0, 0.6, 0.1, 0.1], [0.0, 0.3, 0.3, 0.2, 0.1, 0.1]]
_PEAKED_DRAFT = [[0.8, 0.1, 0.05, 0.0, 0.0, 0.05], [0.05, 0.1, 0.05, 0.7, 0.1, 0.0]]

DISAGREEING = Configuration("disagreeing", (request_distributions(_TARGET, _DRAFT),), ("S1", "S2", "S3", "S4"))
"""0, 1 and 2 drafts are accepted in 40, 27 and 33 % of rows."""

ONE_HOT = Configuration(
    "one-hot", (request_distributions(_PEAKED_TARGET, _PEAKED_DRAFT, one_hot=True),), ("S1", "S2", "S3", "SD")
)
"""0, 1 and 2 drafts are accepted in 49, 28 and 23 % of rows."""

RAGGED = Configuration(
    "ragged",
    (
        request_distributions(_TARGET, _DRAFT),
        request_distributions(_TARGET[:2], _DRAFT[:1], roll=2),
        request_distributions(_TARGET[1:2], np.empty((0, 6))),
        request_distributions(_TARGET, _DRAFT, roll=4),
    ),
    ("S1",),
)
"""Requests of 2, 1, 0 and 2 drafts, no two of them with the same distributions."""

CONFIGURATIONS = (DISAGREEING, ONE_HOT, RAGGED)
