"""A real decoding loop through the sampler under test: language models draft, the sampler verifies, requests grow.

Everything between two calls of the sampler is done here: the draft model is run token by token, the target model at
every drafted place and at one beyond, logits are penalised and divided by the request's temperature, a bonus token is
drawn, and what the sampler emits is appended to the request. Requests are verified side by side and finish at different
times, as in an engine.

The text must have the distribution that the target model alone would give it; `decode_distributions` computes it.

Randomness:
    Everything follows from one seed by hashing: drafts and bonus tokens from one generator of the device (NumPy's on a
    CPU), the sampler's noise from a fresh seed per round. No global generator is read.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

import numpy as np
import torch

from fairdraw._core.seeds import derive_seed
from fairdraw.protocols import GREEDY_TEMPERATURE, PLACEHOLDER_TOKEN_ID, Capability, RejectionSampler, SpecDecodeBatch
from fairdraw.statistical._decode_models import DeviceStream, ModelsOnDevice, first_argmax, models_on
from fairdraw.statistical._distributions import ROUNDING
from fairdraw.statistical._language_models import NGramModel, Vocabulary, read_text
from fairdraw.statistical._noise import draw_rows
from fairdraw.statistical._validation import refuse

if TYPE_CHECKING:
    from collections.abc import Collection

    from numpy.typing import NDArray
    from torch import Tensor


@dataclass(frozen=True, eq=False, kw_only=True)
class DecodeSetup:
    """What is decoded, by which models, under which parameters.

    Prompts and temperatures are assigned in turn: request `i` has prompt `i % len(prompts)` and temperature
    `temperatures[i % len(temperatures)]`, so neighbours in a batch differ in both.

    Args:
        num_tokens: Tokens decoded per request, after its prompt.
        max_spec_len: Draft tokens per request and round.
        dense_drafts: Drafts are drawn from the draft model's distribution, which the sampler gets. Otherwise they are
            the model's most probable tokens, and one-hot.
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
        """Tokens in the vocabulary of both models."""
        return self.target.vocab_size

    @property
    def prompt_size(self) -> int:
        """Tokens per prompt."""
        return int(self.prompts.shape[1])

    @property
    def has_penalties(self) -> bool:
        """Whether logits depend on what a request has decoded."""
        return self.presence_penalty != 0 or self.frequency_penalty != 0

    def within(self, supported: Collection[Capability]) -> DecodeSetup:
        """The nearest setup that needs nothing but what is `supported`.

        Requests have equally many drafts, none is greedy, and drafts are one-hot or not, as the sampler takes them.
        """
        random = tuple(t for t in self.temperatures if t != GREEDY_TEMPERATURE or Capability.GREEDY in supported)
        drafts = Capability.DENSE_DRAFTS if self.dense_drafts else Capability.ONE_HOT_DRAFTS
        return replace(
            self,
            dense_drafts=self.dense_drafts == (drafts in supported),
            ragged=self.ragged and Capability.RAGGED in supported,
            temperatures=random or (1.0,),
        )


@dataclass(frozen=True, eq=False)
class Decoding:
    """The decoded requests, and how many of their drafts were accepted.

    Args:
        tokens: Prompt and decoded tokens; -1 from the place where the sampler's output was malformed.
        acceptance_distributions: Per request and round with drafts: the distribution of the number of accepted drafts,
            given the drafts.
        num_accepted: How many were accepted; -1 if the output was malformed.
        models: The models that decoded.
    """

    seed: int
    tokens: NDArray[np.int64]  # [num_requests, prompt_size + num_tokens] int64
    acceptance_distributions: NDArray[np.float64]  # [num_verified, max_spec_len + 1] float64
    num_accepted: NDArray[np.int64]  # [num_verified] int64
    models: ModelsOnDevice


@dataclass(frozen=True, eq=False)
class _Drafts:
    """The drafts of one round. Places beyond a request's own drafts are filled, but the sampler does not get them."""

    requests: Tensor  # [batch_size] int64
    num_draft_tokens: Tensor  # [batch_size] int64
    token_ids: Tensor  # [batch_size, max_spec_len] int64
    draft_probs: Tensor  # [batch_size, max_spec_len, vocab_size] float32
    target_logits: Tensor  # [batch_size, max_spec_len + 1, vocab_size] float32
    target_probs: Tensor  # [batch_size, max_spec_len + 1, vocab_size] float64
    temperature: Tensor  # [batch_size] float32


def decode(sampler: RejectionSampler, setup: DecodeSetup, seed: int) -> Decoding:
    """Decode all requests speculatively, round by round, until each has its tokens.

    A request whose output is malformed (no token, an id outside the vocabulary, a token after a placeholder) ends
    there; its missing tokens count as impossible ones.
    """
    models, stream = models_on(setup, sampler.device), DeviceStream(derive_seed("decode", seed), sampler.device)
    tokens, lengths = _start(setup, sampler.device)
    distributions = [torch.empty((0, setup.max_spec_len + 1), dtype=torch.float64, device=sampler.device)]
    accepted = [torch.empty(0, dtype=torch.int64, device=sampler.device)]
    end = setup.prompt_size + setup.num_tokens
    for number in range(setup.num_tokens):  # each round adds a token to each request, or ends it
        requests = ((lengths > 0) & (lengths < end)).nonzero()[:, 0]
        if len(requests) == 0:
            break
        drafts = _draft(models, tokens[requests], requests, stream)
        batch = _batch(setup, drafts, stream)
        output = draw_rows(sampler, batch, derive_seed("noise", seed, number))
        emitted = torch.from_numpy(output).to(sampler.device)
        num_emitted = _num_emitted(emitted, setup.vocab_size)
        _append(tokens, lengths, requests, emitted, num_emitted)
        drafted = drafts.num_draft_tokens > 0
        distributions.append(_acceptance_distribution(setup, drafts)[drafted])
        accepted.append(num_emitted[drafted] - 1)
    return Decoding(
        seed,
        tokens[:, :end].cpu().numpy(),
        torch.cat(distributions).cpu().numpy(),
        torch.cat(accepted).cpu().numpy(),
        models,
    )


def _start(setup: DecodeSetup, device: str) -> tuple[Tensor, Tensor]:
    """Requests that hold their prompts, with room for what the last round may add too much; and their lengths."""
    width = setup.prompt_size + setup.num_tokens + setup.max_spec_len
    tokens = torch.full((setup.num_requests, width), PLACEHOLDER_TOKEN_ID, dtype=torch.int64)
    prompts = np.resize(setup.prompts, (setup.num_requests, setup.prompt_size))
    tokens[:, : setup.prompt_size] = torch.from_numpy(prompts)
    return tokens.to(device), torch.full((setup.num_requests,), setup.prompt_size, device=device)


def _draft(
    models: ModelsOnDevice,
    prefixes: Tensor,  # [batch_size, width] int64, written
    requests: Tensor,  # [batch_size] int64
    stream: DeviceStream,
) -> _Drafts:
    """Run the draft model token by token, and the target model at every place on the way."""
    setup, batch_size, lengths = models.setup, len(requests), (prefixes >= 0).sum(dim=1)
    token_ids, draft_probs, target_logits = [], [], []
    for place in range(setup.max_spec_len + 1):
        target_logits.append(models.target_logits(prefixes, requests))
        if place < setup.max_spec_len:
            probs = models.draft_probs(prefixes, requests)
            draft_probs.append(probs)
            token_ids.append(stream.draw(probs) if setup.dense_drafts else first_argmax(probs))
            prefixes.scatter_(1, (lengths + place)[:, None], token_ids[-1][:, None])
    if setup.ragged:
        counts = stream.integers(setup.max_spec_len + 1, batch_size)
    else:
        counts = torch.full_like(requests, setup.max_spec_len)
    target_probs = [models.target_probs(logits, requests) for logits in target_logits]
    drawn, draft, logits, target = (
        torch.stack(parts, dim=1) for parts in (token_ids, draft_probs, target_logits, target_probs)
    )
    return _Drafts(requests, counts, drawn, draft, logits, target, models.temperature(requests))


def _batch(setup: DecodeSetup, drafts: _Drafts, stream: DeviceStream) -> SpecDecodeBatch:
    """The round as the sampler gets it; the bonus token is drawn from the target at the place after the drafts."""
    counts, batch_size = drafts.num_draft_tokens, len(drafts.requests)
    drafted = torch.arange(setup.max_spec_len, device=counts.device) < counts[:, None]
    bonus = stream.draw(drafts.target_probs[torch.arange(batch_size, device=counts.device), counts])
    return SpecDecodeBatch(
        draft_token_ids=drafts.token_ids[drafted].int(),
        num_draft_tokens=counts.tolist(),
        cu_num_draft_tokens=counts.cumsum(0, dtype=torch.int32),
        max_spec_len=setup.max_spec_len,
        draft_probs=drafts.draft_probs[drafted] if setup.dense_drafts else None,
        target_logits=drafts.target_logits[:, :-1][drafted],
        bonus_token_ids=bonus.int()[:, None],
        temperature=drafts.temperature.clone(),
        origin=f"<round of {batch_size} requests by statistical.decode>",
    )


def _num_emitted(
    output: Tensor,  # [batch_size, max_spec_len + 1] int32
    vocab_size: int,
) -> Tensor:  # [batch_size] int64
    """Tokens per row; 0 for a malformed row."""
    is_token = (output >= 0) & (output < vocab_size)
    counts = is_token.sum(dim=1)
    is_prefix = is_token == (torch.arange(output.shape[1], device=output.device) < counts[:, None])
    return counts * (is_prefix & (is_token | (output == PLACEHOLDER_TOKEN_ID))).all(dim=1)


def _append(
    tokens: Tensor,  # [num_requests, width] int64, written
    lengths: Tensor,  # [num_requests] int64, written
    requests: Tensor,  # [batch_size] int64
    output: Tensor,  # [batch_size, max_spec_len + 1] int32
    num_emitted: Tensor,  # [batch_size] int64
) -> None:
    """Add what was emitted to each request; length 0 marks a request that ended with a malformed output."""
    for place in range(output.shape[1]):
        growing = num_emitted > place
        tokens[requests[growing], lengths[requests[growing]] + place] = output[growing, place].long()
    lengths[requests] = torch.where(num_emitted > 0, lengths[requests] + num_emitted, 0)


def _acceptance_distribution(setup: DecodeSetup, drafts: _Drafts) -> Tensor:  # [batch_size, max_spec_len + 1] float64
    """`P(a drafts accepted | drafts)`: a chain of `min(1, target / draft)`, which ends where the drafts end."""
    chosen = drafts.token_ids[..., None]
    acceptance = drafts.target_probs[:, :-1].gather(2, chosen)[..., 0]
    if setup.dense_drafts:
        draft = drafts.draft_probs.gather(2, chosen)[..., 0]
        is_random = drafts.temperature[:, None] != GREEDY_TEMPERATURE
        acceptance = torch.where(is_random, _at_most_certain(acceptance / draft), acceptance)
    places = torch.arange(setup.max_spec_len, device=chosen.device)
    acceptance = torch.where(places < drafts.num_draft_tokens[:, None], acceptance, 0.0)
    reached = torch.cat([torch.ones_like(acceptance[:, :1]), acceptance.cumprod(dim=1)], dim=1)
    return torch.cat([reached[:, :-1] * (1 - acceptance), reached[:, -1:]], dim=1)


def _at_most_certain(
    ratios: Tensor,  # [batch_size, max_spec_len] float64
) -> Tensor:  # [batch_size, max_spec_len] float64
    """`min(1, ratio)`; but a ratio so near 1 that float32 may see less leaves a rejection possible, if hardly so."""
    return torch.where(ratios > 1 + ROUNDING, 1.0, ratios.clamp(max=1 - ROUNDING))
