"""A real decoding loop through the sampler under test: language models draft, the sampler verifies, requests grow.

Everything between two calls of the sampler is done here, plainly: the draft model is asked token by token, the target
model at every drafted place and at one beyond, logits are penalised and divided by the request's temperature, a bonus
token is drawn, and what the sampler emits is appended to the request. Requests are verified side by side and finish at
different times, as in an engine.

What comes out must be what the target model alone would have written; `decode_laws` says so in numbers.

Randomness:
    Everything follows from one seed by hashing: drafts and bonus tokens from one NumPy generator, the sampler's noise
    from a fresh seed per round. No global generator is read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np
import torch

from fairdraw.failures import CapabilityClosed
from fairdraw.harness import emit
from fairdraw.protocols import (
    GREEDY_TEMPERATURE,
    PLACEHOLDER_TOKEN_ID,
    Capabilities,
    Capability,
    ExplicitNoise,
    Noise,
    RejectionSampler,
    SeededNoise,
    SpecDecodeBatch,
)
from fairdraw.seeds import derive_seed
from fairdraw.statistical._checks import refuse
from fairdraw.statistical.language_models import NGramModel, Vocabulary, read_text
from fairdraw.statistical.laws import ROUNDING, softmax_probs

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["DecodeSetup", "Decoding", "decode", "make_noise"]


@dataclass(frozen=True, eq=False, kw_only=True)
class DecodeSetup:
    """What is decoded, by which models, under which parameters.

    Prompts and temperatures are dealt out in turn: request `i` has prompt `i % len(prompts)` and temperature
    `temperatures[i % len(temperatures)]`, so neighbours in a batch differ in both.

    Args:
        num_tokens: Tokens decoded per request, after its prompt.
        max_spec_len: Draft tokens per request and round.
        dense_drafts: Drafts are drawn from the draft model's law, which the sampler is told. Otherwise they are its
            most probable tokens, and one-hot.
        ragged: Each request and round has 0 to `max_spec_len` drafts at random, as if memory had run out.
        temperatures: 0 makes greedy requests.
        presence_penalty: Subtracted from the logit of a token that the request has decoded already.
        frequency_penalty: Subtracted once for every time that it has.
    """

    target: NGramModel
    draft: NGramModel
    vocabulary: Vocabulary
    prompts: NDArray[np.int64]  # [num_prompts, prompt_size] int64
    num_requests: int = 2048
    num_tokens: int = 12
    max_spec_len: int = 3
    dense_drafts: bool = True
    ragged: bool = False
    temperatures: tuple[float, ...] = (1.0,)
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0

    def __post_init__(self) -> None:
        for name in ("num_requests", "num_tokens", "max_spec_len"):
            if getattr(self, name) < 1:
                raise refuse("DecodeSetup", f"{name}={getattr(self, name)}", "it must be at least 1", "Decode some.")
        if not self.temperatures or min(self.temperatures) < 0:
            raise refuse("DecodeSetup", f"temperatures={self.temperatures}", "each must be at least 0", "Use 1.0.")

    @classmethod
    def of_shipped_text(
        cls,
        vocab_size: int = 32,
        *,
        target_order: int = 4,
        draft_order: int = 2,
        num_prompts: int = 64,
    ) -> Self:
        """Models of the shipped text, and prompts cut from it; change other fields with `dataclasses.replace`.

        Args:
            vocab_size: 32 for text that reads like English, 8 for a language whose sequences can be enumerated.
        """
        vocabulary = Vocabulary.of_text(read_text(), vocab_size)
        token_ids = vocabulary.encode(read_text())
        target = NGramModel(token_ids, vocab_size, target_order)
        draft = NGramModel(token_ids, vocab_size, draft_order)
        prompt_size = max(target.context_size, draft.context_size)
        starts = np.linspace(0, token_ids.size - prompt_size, num_prompts, dtype=np.int64)
        prompts = token_ids[starts[:, None] + np.arange(prompt_size)]
        return cls(target=target, draft=draft, vocabulary=vocabulary, prompts=prompts)

    @property
    def vocab_size(self) -> int:
        return self.target.vocab_size

    @property
    def prompt_size(self) -> int:
        return int(self.prompts.shape[1])

    @property
    def has_penalties(self) -> bool:
        return self.presence_penalty != 0 or self.frequency_penalty != 0

    def needs(self) -> tuple[Capability, ...]:
        """What a sampler must take to be asked."""
        wanted = {
            Capability.DENSE_DRAFTS: self.dense_drafts,
            Capability.ONE_HOT_DRAFTS: not self.dense_drafts,
            Capability.RAGGED: self.ragged,
            Capability.GREEDY: GREEDY_TEMPERATURE in self.temperatures,
        }
        return tuple(capability for capability, is_wanted in wanted.items() if is_wanted)

    def temperature(
        self,
        requests: NDArray[np.int64],  # [batch_size] int64
    ) -> NDArray[np.float32]:  # [batch_size] float32
        return np.asarray(self.temperatures, dtype=np.float32)[requests % len(self.temperatures)]

    def target_logits(
        self,
        prefixes: NDArray[np.int64],  # [batch_size, width] int64, -1 after the last token
        requests: NDArray[np.int64],  # [batch_size] int64
    ) -> NDArray[np.float32]:  # [batch_size, vocab_size] float32
        """Processed logits of the next token: a function of prefix and request alone, computed from scratch."""
        logits = self.target.next_logits(prefixes)
        if self.has_penalties:
            seen = _count_tokens(prefixes[:, self.prompt_size :], self.vocab_size)
            penalty = self.frequency_penalty * seen + self.presence_penalty * (seen > 0)
            logits = logits - penalty.astype(np.float32)
        return np.asarray(logits / _divisor(self.temperature(requests))[:, None])

    def target_probs(
        self,
        logits: NDArray[np.float32],  # [batch_size, vocab_size] float32
        requests: NDArray[np.int64],  # [batch_size] int64
    ) -> NDArray[np.float64]:  # [batch_size, vocab_size] float64
        """The law that processed logits stand for: their softmax, or all mass on the argmax of a greedy request."""
        probs = softmax_probs(logits)
        greedy = np.flatnonzero(self.temperature(requests) == GREEDY_TEMPERATURE)
        probs[greedy] = np.eye(self.vocab_size)[logits[greedy].argmax(axis=1)]
        return probs

    def draft_probs(
        self,
        prefixes: NDArray[np.int64],  # [batch_size, width] int64, -1 after the last token
        requests: NDArray[np.int64],  # [batch_size] int64
    ) -> NDArray[np.float32]:  # [batch_size, vocab_size] float32
        """The law of the next draft token: the draft model at the request's temperature; it knows no penalties."""
        logits = self.draft.next_logits(prefixes) / _divisor(self.temperature(requests))[:, None]
        return softmax_probs(logits).astype(np.float32)


@dataclass(frozen=True, eq=False)
class Decoding:
    """What the requests became, and how their drafts fared.

    Args:
        tokens: Prompt and decoded tokens; -1 from the place where the sampler's answer was malformed.
        acceptance_laws: Per request and round with drafts: the law of the number of accepted ones, given the drafts.
        num_accepted: The number that were; -1 if the answer was malformed.
    """

    seed: int
    tokens: NDArray[np.int64]  # [num_requests, prompt_size + num_tokens] int64
    acceptance_laws: NDArray[np.float64]  # [num_verified, max_spec_len + 1] float64
    num_accepted: NDArray[np.int64]  # [num_verified] int64


@dataclass(frozen=True, eq=False)
class _Drafts:
    """One round, before the sampler is asked. Places beyond a request's own drafts are filled but not shown to it."""

    requests: NDArray[np.int64]  # [batch_size] int64
    num_draft_tokens: NDArray[np.int64]  # [batch_size] int64
    token_ids: NDArray[np.int64]  # [batch_size, max_spec_len] int64
    draft_probs: NDArray[np.float32]  # [batch_size, max_spec_len, vocab_size] float32
    target_logits: NDArray[np.float32]  # [batch_size, max_spec_len + 1, vocab_size] float32
    target_probs: NDArray[np.float64]  # [batch_size, max_spec_len + 1, vocab_size] float64


def decode(sampler: RejectionSampler, setup: DecodeSetup, seed: int, noise: Capability | None = None) -> Decoding:
    """Decode all requests speculatively, round by round, until each has its tokens.

    A request whose answer is malformed (no token, an id outside the vocabulary, a token after a placeholder) ends
    there; its missing tokens count as impossible ones.

    Args:
        noise: `SEEDED_NOISE` or `EXPLICIT_NOISE`; by default the sampler's own random numbers if it takes seeds, since
            they are what it runs on.

    Raises:
        CapabilityClosed: If the sampler declines what the setup needs.
    """
    kind = _noise_kind(sampler.capabilities, setup, noise)
    rng = np.random.default_rng(derive_seed("decode", seed))
    tokens, lengths = _start(setup)
    laws = [np.empty((0, setup.max_spec_len + 1))]
    accepted = [np.empty(0, dtype=np.int64)]
    end = setup.prompt_size + setup.num_tokens
    for number in range(setup.num_tokens):  # each round adds a token to each request, or ends it
        requests = np.flatnonzero((lengths > 0) & (lengths < end))
        if requests.size == 0:
            break
        drafts = _draft(setup, tokens[requests], requests, rng)
        batch = _batch(setup, drafts, rng).to(sampler.device)
        output = emit(sampler, batch, make_noise(kind, batch, derive_seed("noise", seed, number))).tokens
        num_emitted = _num_emitted(output, setup.vocab_size)
        _append(tokens, lengths, requests, output, num_emitted)
        drafted = drafts.num_draft_tokens > 0
        laws.append(_acceptance_law(setup, drafts)[drafted])
        accepted.append(num_emitted[drafted] - 1)
    return Decoding(seed, tokens[:, :end], np.concatenate(laws), np.concatenate(accepted))


def _noise_kind(capabilities: Capabilities, setup: DecodeSetup, noise: Capability | None) -> Capability:
    reason = capabilities.why_closed(setup.needs())
    kinds = (Capability.SEEDED_NOISE, Capability.EXPLICIT_NOISE) if noise is None else (noise,)
    taken = [kind for kind in kinds if kind in capabilities]
    if reason is not None or not taken:
        raise CapabilityClosed(reason or capabilities.why_closed(kinds))
    return taken[0]


def _start(setup: DecodeSetup) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Requests that hold their prompts, with room for what the last round may add too much; and their lengths."""
    width = setup.prompt_size + setup.num_tokens + setup.max_spec_len
    tokens = np.full((setup.num_requests, width), PLACEHOLDER_TOKEN_ID, dtype=np.int64)
    tokens[:, : setup.prompt_size] = np.resize(setup.prompts, (setup.num_requests, setup.prompt_size))
    return tokens, np.full(setup.num_requests, setup.prompt_size)


def _draft(
    setup: DecodeSetup,
    prefixes: NDArray[np.int64],  # [batch_size, width] int64, written
    requests: NDArray[np.int64],  # [batch_size] int64
    rng: np.random.Generator,
) -> _Drafts:
    """Ask the draft model for one token after another, and the target model at every place on the way."""
    num_draft, shape = setup.max_spec_len, (requests.size, setup.max_spec_len + 1, setup.vocab_size)
    lengths, rows = (prefixes >= 0).sum(axis=1), np.arange(requests.size)
    token_ids = np.empty((requests.size, num_draft), dtype=np.int64)
    draft_probs = np.empty((requests.size, num_draft, setup.vocab_size), dtype=np.float32)
    target_logits, target_probs = np.empty(shape, dtype=np.float32), np.empty(shape)
    for place in range(num_draft + 1):
        target_logits[:, place] = setup.target_logits(prefixes, requests)
        target_probs[:, place] = setup.target_probs(target_logits[:, place], requests)
        if place < num_draft:
            probs = setup.draft_probs(prefixes, requests)
            draft_probs[:, place] = probs
            token_ids[:, place] = _draw(probs, rng) if setup.dense_drafts else probs.argmax(axis=1)
            prefixes[rows, lengths + place] = token_ids[:, place]
    counts = rng.integers(0, num_draft + 1, requests.size) if setup.ragged else np.full(requests.size, num_draft)
    return _Drafts(requests, counts, token_ids, draft_probs, target_logits, target_probs)


def _batch(setup: DecodeSetup, drafts: _Drafts, rng: np.random.Generator) -> SpecDecodeBatch:
    """The round as the sampler is given it; the bonus token is drawn from the target at the place after the drafts."""
    counts = drafts.num_draft_tokens
    drafted = np.arange(setup.max_spec_len) < counts[:, None]
    bonus = _draw(drafts.target_probs[np.arange(counts.size), counts], rng)
    return SpecDecodeBatch(
        draft_token_ids=torch.from_numpy(drafts.token_ids[drafted].astype(np.int32)),
        num_draft_tokens=counts.tolist(),
        cu_num_draft_tokens=torch.from_numpy(counts.cumsum().astype(np.int32)),
        max_spec_len=setup.max_spec_len,
        draft_probs=torch.from_numpy(drafts.draft_probs[drafted]) if setup.dense_drafts else None,
        target_logits=torch.from_numpy(drafts.target_logits[:, :-1][drafted]),
        bonus_token_ids=torch.from_numpy(bonus.astype(np.int32)[:, None]),
        temperature=torch.from_numpy(setup.temperature(drafts.requests)),
        origin=f"<round of {counts.size} requests by statistical.decode>",
    )


def make_noise(kind: Capability, batch: SpecDecodeBatch, seed: int) -> Noise:
    """Noise of the kind `SEEDED_NOISE` or `EXPLICIT_NOISE`, fresh for every seed."""
    if kind is Capability.SEEDED_NOISE:
        return SeededNoise(seed)
    rng = np.random.default_rng(seed)
    exponentials = rng.standard_exponential((batch.batch_size, batch.vocab_size), dtype=np.float32)
    return ExplicitNoise(
        torch.from_numpy(rng.random(batch.num_tokens)).to(batch.device),
        # The contract wants positive exponentials; NumPy gives a 0 about once in 2**23 draws (27 in 2**28).
        torch.from_numpy(np.maximum(exponentials, np.finfo(np.float32).tiny)).to(batch.device),
    )


def _num_emitted(
    output: NDArray[np.int32],  # [batch_size, max_spec_len + 1] int32
    vocab_size: int,
) -> NDArray[np.int64]:  # [batch_size] int64
    """Tokens per row; 0 for a malformed row."""
    is_token = (output >= 0) & (output < vocab_size)
    counts = is_token.sum(axis=1)
    is_prefix = is_token == (np.arange(output.shape[1]) < counts[:, None])
    return np.where((is_prefix & (is_token | (output == PLACEHOLDER_TOKEN_ID))).all(axis=1), counts, 0)


def _append(
    tokens: NDArray[np.int64],  # [num_requests, width] int64, written
    lengths: NDArray[np.int64],  # [num_requests] int64, written
    requests: NDArray[np.int64],  # [batch_size] int64
    output: NDArray[np.int32],  # [batch_size, max_spec_len + 1] int32
    num_emitted: NDArray[np.int64],  # [batch_size] int64
) -> None:
    """Add what was emitted to each request; length 0 marks a request that ended with a malformed answer."""
    for place in range(output.shape[1]):
        growing = num_emitted > place
        tokens[requests[growing], lengths[requests[growing]] + place] = output[growing, place]
    lengths[requests] = np.where(num_emitted > 0, lengths[requests] + num_emitted, 0)


def _acceptance_law(setup: DecodeSetup, drafts: _Drafts) -> NDArray[np.float64]:  # [batch_size, max_spec_len + 1]
    """`P(a drafts accepted | drafts)`: a chain of `min(1, target / draft)`, which ends where the drafts end."""
    chosen = drafts.token_ids[..., None]
    acceptance = np.take_along_axis(drafts.target_probs[:, :-1], chosen, axis=2)[..., 0]
    if setup.dense_drafts:
        told = np.take_along_axis(drafts.draft_probs, chosen, axis=2)[..., 0]
        is_random = setup.temperature(drafts.requests)[:, None] != GREEDY_TEMPERATURE
        acceptance = np.where(is_random, _at_most_certain(acceptance / told), acceptance)
    acceptance[np.arange(setup.max_spec_len) >= drafts.num_draft_tokens[:, None]] = 0.0
    reached = np.cumprod(np.column_stack([np.ones(len(acceptance)), acceptance]), axis=1)
    return np.column_stack([reached[:, :-1] * (1 - acceptance), reached[:, -1]]).astype(np.float64)


def _at_most_certain(
    ratios: NDArray[np.floating],  # [batch_size, max_spec_len] float64
) -> NDArray[np.float64]:  # [batch_size, max_spec_len] float64
    """`min(1, ratio)`; but a ratio so near 1 that float32 may see less leaves a rejection possible, if hardly so."""
    return np.where(ratios > 1 + ROUNDING, 1.0, np.minimum(ratios, 1 - ROUNDING)).astype(np.float64)


def _draw(
    probs: NDArray[np.floating],  # [batch_size, vocab_size] float
    rng: np.random.Generator,
) -> NDArray[np.int64]:  # [batch_size] int64
    """One token per row by inverse CDF; a token of probability 0 is never drawn."""
    cdf = np.cumsum(probs, axis=1, dtype=np.float64)
    return np.asarray((cdf <= rng.random((len(cdf), 1)) * cdf[:, -1:]).sum(axis=1))


def _count_tokens(
    tokens: NDArray[np.int64],  # [batch_size, width] int64, -1 is no token
    vocab_size: int,
) -> NDArray[np.int64]:  # [batch_size, vocab_size] int64
    codes = np.where(tokens >= 0, tokens, vocab_size) + np.arange(len(tokens))[:, None] * (vocab_size + 1)
    counts = np.bincount(codes.ravel(), minlength=len(tokens) * (vocab_size + 1))
    return counts.reshape(-1, vocab_size + 1)[:, :-1]


def _divisor(
    temperature: NDArray[np.float32],  # [batch_size] float32
) -> NDArray[np.float32]:  # [batch_size] float32
    """Greedy requests are not scaled."""
    return np.where(temperature == GREEDY_TEMPERATURE, np.float32(1), temperature)
