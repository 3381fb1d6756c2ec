"""Fixed experiments: small distributions under which every event that a statistic looks at has enough probability.

Random distributions are good at finding crashes and bad at finding unfairness: most of them hardly ever reject, or
hardly ever reach the bonus token. These are chosen. Their rows are peaked, target and draft disagree (40 to 56 %
rejections per step), and each has tokens without target probability and tokens that the drafter cannot draw.
`AGREEING` has equal target and draft, so that every row ends in a bonus token. `RAGGED` mixes requests of different
length whose distributions differ, so that reading a neighbour's row cannot go unnoticed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from fairdraw._core.seeds import derive_seed
from fairdraw.contracts import GREEDY_TEMPERATURE, PLACEHOLDER_TOKEN_ID, SpecDecodeBatch
from fairdraw.statistical import _distributions as distributions
from fairdraw.statistical._validation import check_probs, refuse


@dataclass(frozen=True, eq=False)
class RequestDistributions:
    """The target and draft distributions of one request.

    Args:
        target_logits: One row per draft token, and one for the bonus token; the sampler gets the former as they are.
        draft_probs: What each draft token is drawn from.
        one_hot: The sampler does not get `draft_probs`.
        temperature: Of the batch; 0 for a greedy request, whose target is certain. Others are informative only.
        has_seed: It has a generator of its own, with a fresh seed in every call.
        placeholders: Positions whose draft is -1: never accepted, and the target itself is recovered. One-hot only.
        rates: Acceptance probability per position instead of the ratio.
        words: What distinguishes it from the others of its configuration, for reports.
    """

    target_logits: NDArray[np.floating]  # [num_draft + 1, vocab_size] float32
    draft_probs: NDArray[np.floating]  # [num_draft, vocab_size] float32
    one_hot: bool = False
    temperature: float = 1.0
    has_seed: bool = False
    placeholders: tuple[int, ...] = ()
    rates: tuple[float, ...] | None = None
    words: str = ""

    @property
    def num_draft(self) -> int:
        """Draft tokens of the request."""
        return len(self.draft_probs)

    @property
    def vocab_size(self) -> int:
        """Tokens in the vocabulary."""
        return int(self.target_logits.shape[1])

    def exact_target_probs(self) -> NDArray[np.float64]:  # [num_draft + 1, vocab_size] float64
        """The target distributions that the stored logits stand for; certain for drafts of a greedy request."""
        probs: NDArray[np.float64] = distributions.softmax_probs(self.target_logits)
        if self.temperature == GREEDY_TEMPERATURE:
            probs[:-1] = np.eye(self.vocab_size)[np.argmax(self.target_logits[:-1], axis=1)]
        return probs

    def drafts_at(self, position: int) -> tuple[int, ...]:
        """The draft tokens that may be given there."""
        return (PLACEHOLDER_TOKEN_ID,) if position in self.placeholders else tuple(range(self.vocab_size))

    def draft_prob(self, position: int, draft_token_id: int) -> float:
        """How often that draft token is given there."""
        if position in self.placeholders:
            return float(draft_token_id == PLACEHOLDER_TOKEN_ID)
        return float(self.exact_draft_probs()[position, draft_token_id])

    def exact_draft_probs(self) -> NDArray[np.float64]:  # [num_draft, vocab_size] float64
        """The draft distributions that the stored probabilities stand for."""
        return check_probs("exact_draft_probs", "draft_probs", self.draft_probs)

    def acceptance(self, position: int) -> NDArray[np.float64]:  # [vocab_size] float64
        """The acceptance probability of each draft token, given what the sampler gets."""
        if position in self.placeholders:
            return np.zeros(self.vocab_size)
        if self.rates is not None:
            return np.full(self.vocab_size, np.float64(np.float32(self.rates[position])))
        target = self.exact_target_probs()[position]
        return target if self.one_hot else distributions.acceptance_probs(target, self.exact_draft_probs()[position])

    def residual(self, position: int, draft_token_id: int) -> NDArray[np.float64]:  # [vocab_size] float64
        """The distribution of the token recovered after this draft token; zeros if it is never rejected."""
        if draft_token_id == PLACEHOLDER_TOKEN_ID:
            target: NDArray[np.float64] = self.exact_target_probs()[position]
            return target
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
        placeholder = [i in request.placeholders for request in self.requests for i in range(request.num_draft)]
        if any(placeholder):
            drafts[:, np.flatnonzero(placeholder).tolist()] = PLACEHOLDER_TOKEN_ID
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

    def request_seeds(self, batch_size: int, seed: int) -> dict[int, int]:
        """A seed for each request that has one: any 62 bits, fresh for every `seed`."""
        has_seed = [request.has_seed for request in self.requests]
        own = np.flatnonzero(np.tile(has_seed, batch_size // len(has_seed))).tolist()
        rng = np.random.default_rng(derive_seed("request seeds", seed))
        return dict(zip(own, rng.integers(0, 2**62, len(own)).tolist(), strict=True))


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
        temperature=torch.tensor([request.temperature for request in requests] * num_cycles),
        synthetic_rates=None if requests[0].rates is None else torch.tensor(requests[0].rates),
    ).to(device)
    check_batch(template)
    return template


_TARGET = [[0.40, 0.25, 0.15, 0.10, 0.10, 0.0], [0.05, 0.30, 0.30, 0.20, 0.0, 0.15], [0.1, 0.1, 0.2, 0.3, 0.3, 0.0]]
_UNTIED = [_TARGET[0], [0.05, 0.34, 0.26, 0.20, 0.0, 0.15], [0.1, 0.1, 0.2, 0.35, 0.25, 0.0]]
"""For greedy requests: which of equal logits is taken is open (`lowest-id-ties`)."""
_DRAFT = [[0.10, 0.20, 0.30, 0.25, 0.05, 0.10], [0.30, 0.25, 0.10, 0.15, 0.20, 0.0]]
_PEAKED_TARGET = [[0.6, 0.2, 0.1, 0.05, 0.05, 0.0], [0.1, 0.1, 0.0, 0.6, 0.1, 0.1], [0.0, 0.3, 0.3, 0.2, 0.1, 0.1]]
_PEAKED_DRAFT = [[0.8, 0.1, 0.05, 0.0, 0.0, 0.05], [0.05, 0.1, 0.05, 0.7, 0.1, 0.0]]
_SAME = [0.3, 0.25, 0.2, 0.15, 0.1, 0.0]

DISAGREEING = Configuration("disagreeing", (request_distributions(_TARGET, _DRAFT),), ("S1", "S2", "S3", "S4", "S5"))
"""0, 1 and 2 drafts are accepted in 40, 27 and 33 % of rows."""

ONE_HOT = Configuration(
    "one-hot", (request_distributions(_PEAKED_TARGET, _PEAKED_DRAFT, one_hot=True),), ("S1", "S2", "S3", "S4", "SD")
)
"""0, 1 and 2 drafts are accepted in 49, 28 and 23 % of rows."""

AGREEING = Configuration("agreeing", (request_distributions([_SAME] * 3, [_SAME] * 2),), ("S1", "S5"))
"""Both drafts are accepted in every row."""

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

_SURE_DRAFTS = [[0.0, 0.0, 1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0, 0.0, 0.0]]
"""Draft distributions of a drafter that is certain: a one-hot draft in a dense batch."""


def mixed(
    *, dense: bool, seeds: bool = False, greedy: bool = False, ragged: bool = False, placeholders: bool = False
) -> Configuration:
    """Requests as they stand side by side in a server, seven in a cycle: no power of two divides their places.

    With and without a seed of their own, greedy and random, of 0 to 2 drafts and of other temperatures (informative:
    they are applied already), a drafter that is certain, and a request with a placeholder draft.
    """

    def made(
        words: str,
        target: list[list[float]],
        draft: list[list[float]],
        **fields: Any,  # Any: fields of a request
    ) -> RequestDistributions:
        size = 2 if not ragged else len(draft)
        drafts = np.array((*draft, *_DRAFT[len(draft) :]), dtype=np.float64)[:size].reshape(size, 6)
        found = request_distributions((*target[:size], target[-1]), drafts, one_hot=not dense, roll=fields.pop("roll"))
        kept = {**fields, "has_seed": seeds and fields.get("has_seed", False)}
        if fields.get("temperature") == GREEDY_TEMPERATURE and not greedy:
            kept["temperature"] = 1.0
        return replace(found, words=words, **kept)

    requests = (
        made("between others", _TARGET, _DRAFT, roll=0, temperature=0.7),
        made("seeded", _TARGET, _DRAFT, roll=2, has_seed=True),
        made("greedy", _UNTIED, _DRAFT, roll=1, temperature=GREEDY_TEMPERATURE),
        made("seeded, one draft", _TARGET, _DRAFT[:1], roll=3, has_seed=True, temperature=1.8),
        made("without drafts", _TARGET, [], roll=0),
        made("certain drafter", _PEAKED_TARGET, _SURE_DRAFTS, roll=4, placeholders=(0,) if placeholders else ()),
        made("seeded, greedy", _UNTIED, _DRAFT[:1], roll=5, has_seed=True, temperature=GREEDY_TEMPERATURE),
    )
    return Configuration(f"mixed, {'dense' if dense else 'one-hot'}", requests, ("S1", "S2"))


CONFIGURATIONS = (DISAGREEING, ONE_HOT, AGREEING, RAGGED)
