"""Correct rejection samplers that compute, verify or answer in another way than the oracle; none may fail a check.

They are written in vectorised torch, so that a `ci` run of each takes seconds. What their way costs is declared as any
user would declare it, in `unsupported`.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np
import torch

from fairdraw import contracts
from fairdraw._core.seeds import derive_seed
from fairdraw._mutants._mutant import name_of
from fairdraw._mutants._pairs import hashed
from fairdraw._mutants.distributions import BlockVerification
from fairdraw._oracles.rejection import draw_noise
from fairdraw.contracts import PLACEHOLDER_TOKEN_ID, Capability, ExplicitNoise, SeededNoise, rejection_sampler

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from fairdraw.contracts import FunctionSampler, Noise, SpecDecodeBatch

Kind = TypeVar("Kind")

OWN_STREAM: dict[str, str] = {Capability.UPSTREAM_STREAM: "tokens may differ from vLLM's"}
OWN_ROUNDING: dict[str, str] = OWN_STREAM | {Capability.REFERENCE_ROUNDING: "other formulas than the oracle's"}
OWN_RECOVERY: dict[str, str] = OWN_ROUNDING | {Capability.REFERENCE_RACE: "recovers in another way"}
OWN_SCHEME: dict[str, str] = OWN_RECOVERY | {
    Capability.TOKEN_VERIFICATION: "accepts by a lossless scheme of its own",
    Capability.SYNTHETIC_RATES: "has no such mode",
}


@dataclass(frozen=True)
class Step:
    """The drafted positions of a batch, flattened."""

    batch: SpecDecodeBatch
    noise: ExplicitNoise
    owner: Tensor  # [num_tokens] int64, the request of each position
    place: Tensor  # [num_tokens] int64, the position inside its request
    drafts: Tensor  # [num_tokens] int64, -1 is no token
    target: Tensor  # [num_tokens, vocab_size] float32 | float64

    def of_drafts(self, rows: Tensor) -> Tensor:  # [num_tokens, vocab_size] any -> [num_tokens] any
        """The entry of each position's draft; that of token 0 where there is none."""
        return rows.gather(1, self.drafts.clamp(min=0)[:, None]).squeeze(1)

    @property
    def draft_of_drafts(self) -> Tensor:  # [num_tokens] float32
        """The draft probability of each draft; 1 for one-hot drafts."""
        probs = self.batch.draft_probs
        return torch.ones(len(self.drafts), device=self.drafts.device) if probs is None else self.of_drafts(probs)


class Race:
    """A race of exponentials over weights, row by row."""

    def draw(self, weights: Tensor, exponentials: Tensor) -> Tensor:  # each [num_rows, vocab_size]
        """Token 0 where nothing has weight."""
        return self.winner(torch.where(weights > 0, self.scores(weights, exponentials), -1))

    def scores(self, weights: Tensor, exponentials: Tensor) -> Tensor:  # each [num_rows, vocab_size]
        return weights / exponentials

    def winner(self, scores: Tensor) -> Tensor:  # [num_rows, vocab_size] -> [num_rows] int64; -1 cannot win
        return scores.argmax(-1)


class LastOfTies(Race):
    """Among equal scores the last one stays."""

    def winner(self, scores: Tensor) -> Tensor:
        return torch.where((scores >= 0).any(-1), scores.shape[1] - 1 - scores.flip(-1).argmax(-1), 0)


class OneUniform(Race):
    """The inverse cumulative sum, with a uniform made of the first exponential."""

    def draw(self, weights: Tensor, exponentials: Tensor) -> Tensor:
        return inverse_cdf(weights, torch.exp(-exponentials[:, 0].double()).clamp(max=1 - 2.0**-53))


class VectorRejection(Race):
    """Token verification and an exponential race, all requests at once. Odd samplers override a step."""

    unsupported: ClassVar[dict[str, str]] = {}
    slow: ClassVar[bool] = False

    def verify(self, batch: SpecDecodeBatch, noise: Noise) -> Tensor:  # [batch_size, max_spec_len + 1] int32
        given = self.numbers(batch, noise) if isinstance(noise, SeededNoise) else noise
        counts = torch.from_numpy(np.array(batch.num_draft_tokens, np.int64)).to(batch.device)
        first = counts.cumsum(0) - counts
        owner = torch.repeat_interleave(torch.arange(batch.batch_size, device=batch.device), counts)
        place = torch.arange(batch.num_tokens, device=batch.device) - first[owner]
        step = Step(batch, given, owner, place, batch.draft_token_ids.long(), self.target(batch.target_logits))
        accepted = self.decided(step)
        ends = torch.where(accepted, batch.max_spec_len, place)
        num_accepted = counts.scatter_reduce(0, owner, ends, "amin")
        last = batch.bonus_token_ids[:, 0].long().clone()
        cut = (num_accepted < counts).nonzero().squeeze(1)
        last[cut] = self.replaced(step, cut, (first + num_accepted)[cut])
        return self.output(step, num_accepted, last)

    def numbers(self, batch: SpecDecodeBatch, noise: SeededNoise) -> ExplicitNoise:
        """Drawn in vLLM's order."""
        return draw_noise(batch, noise)

    def target(self, logits: Tensor) -> Tensor:  # [num_tokens, vocab_size] -> the same
        return logits.softmax(-1, dtype=torch.float32)

    def decided(self, step: Step) -> Tensor:  # [num_tokens] bool
        """Which drafts are accepted if all before them are."""
        batch, is_token = step.batch, step.drafts >= 0
        if batch.synthetic_rates is not None:
            return (step.noise.uniforms < batch.synthetic_rates[step.place].double()) & is_token
        greedy = self.greedy_accepts(step)
        return torch.where(batch.is_greedy[step.owner], greedy, self.accepted(step) & is_token)

    def greedy_accepts(self, step: Step) -> Tensor:  # [num_tokens] bool
        return step.drafts == self.best(step.batch.target_logits)

    def best(self, logits: Tensor) -> Tensor:  # [num_rows, vocab_size] -> [num_rows] int64
        return logits.float().argmax(-1)

    def accepted(self, step: Step) -> Tensor:  # [num_tokens] bool
        target, draft = step.of_drafts(step.target), step.draft_of_drafts
        return self.passes(target, draft, step.noise.uniforms) & (target > 0) & (draft > 0)

    def passes(self, target: Tensor, draft: Tensor, uniforms: Tensor) -> Tensor:  # each [num_tokens]
        return target / draft >= uniforms

    def replaced(self, step: Step, requests: Tensor, rows: Tensor) -> Tensor:  # each [num_rejected] int64
        """The last token of the requests that are cut short at these rows."""
        drawn = self.recovered(step, requests, rows)
        return torch.where(step.batch.is_greedy[requests], self.best(step.batch.target_logits[rows]), drawn)

    def recovered(self, step: Step, requests: Tensor, rows: Tensor) -> Tensor:  # each [num_rejected] int64
        target = step.target[rows]
        residual = self.residual(step, rows)
        weights = torch.where((residual > 0).any(-1, keepdim=True), residual, target)
        return self.draw(weights, step.noise.exponentials[requests])

    def residual(self, step: Step, rows: Tensor) -> Tensor:  # [num_rejected] int64 -> [num_rejected, vocab_size]
        return (step.target[rows] - step.batch.dense_draft_probs()[rows]).clamp(min=0)

    def scores(self, weights: Tensor, exponentials: Tensor) -> Tensor:  # each [num_rejected, vocab_size]
        return weights * (1 / exponentials)

    def output(self, step: Step, num_accepted: Tensor, last: Tensor) -> Tensor:  # [batch_size, max_spec_len + 1] int32
        batch = step.batch
        tokens = self.buffer(batch.batch_size, batch.max_spec_len + 1).to(batch.device)
        kept = step.place < num_accepted[step.owner]
        tokens[step.owner[kept], step.place[kept]] = step.drafts[kept].int()
        tokens[torch.arange(batch.batch_size, device=batch.device), num_accepted] = last.int()
        return tokens

    def buffer(self, batch_size: int, width: int) -> Tensor:  # [batch_size, width] int32
        return torch.full((batch_size, width), PLACEHOLDER_TOKEN_ID, dtype=torch.int32)


class DividesInTheRace(VectorRejection):
    """`residual / exponential`, as the manual writes it; vLLM multiplies by a reciprocal."""

    unsupported = OWN_STREAM

    def scores(self, weights: Tensor, exponentials: Tensor) -> Tensor:
        return weights / exponentials


class ComputesInFloat64(DividesInTheRace):
    """Softmax, quotient and race in float64."""

    unsupported = OWN_ROUNDING

    def target(self, logits: Tensor) -> Tensor:
        return logits.double().softmax(-1)


class SubtractsTheLogNormaliser(VectorRejection):
    """`exp(logits - logsumexp(logits))`: the normaliser is rounded at the size of the logits."""

    unsupported = OWN_ROUNDING

    def target(self, logits: Tensor) -> Tensor:
        wide = logits.float()
        return (wide - wide.logsumexp(-1, keepdim=True)).exp()


class WorksWithLogProbabilities(SubtractsTheLogNormaliser):
    """Log-softmax, a difference of logarithms against the uniform's, and Gumbel-max over the log residual."""

    def passes(self, target: Tensor, draft: Tensor, uniforms: Tensor) -> Tensor:
        return target.log() - draft.log() >= uniforms.log().float()

    def draw(self, weights: Tensor, exponentials: Tensor) -> Tensor:
        scores = weights.log() - exponentials.log()
        return torch.where(weights > 0, scores, -torch.inf).argmax(-1)


class ComparesProducts(VectorRejection):
    """`draft * uniform < target`, without a division."""

    unsupported = OWN_ROUNDING

    def passes(self, target: Tensor, draft: Tensor, uniforms: Tensor) -> Tensor:
        return draft * uniforms < target


class RoundsUniformsToFloat32(VectorRejection):
    """Uniforms of 24 bits, kept below 1."""

    unsupported = OWN_ROUNDING

    def passes(self, target: Tensor, draft: Tensor, uniforms: Tensor) -> Tensor:
        return target / draft >= uniforms.float().clamp(max=1 - 2.0**-24)


class NormalisesTheResidual(VectorRejection):
    """The residual is divided by its sum before the race, as the paper writes it."""

    unsupported = OWN_ROUNDING

    def draw(self, weights: Tensor, exponentials: Tensor) -> Tensor:
        return super().draw(weights / weights.sum(-1, keepdim=True), exponentials)


class TakesTheHighestIdOnTies(LastOfTies, VectorRejection):
    """Among equal logits, and equal scores in the race, the last one stays."""

    unsupported = OWN_STREAM | {Capability.LOWEST_ID_TIES: "the last of equal ones stays"}

    def best(self, logits: Tensor) -> Tensor:
        wide = logits.float()
        wide = torch.where(wide.isnan().any(-1, keepdim=True), wide, wide.flip(-1))
        found = wide.argmax(-1)
        return torch.where(logits.isnan().any(-1) | (wide == -torch.inf).all(-1), found, logits.shape[1] - 1 - found)


class ReusesItsBuffer(VectorRejection):
    """Every call answers with a transposed view of the same memory."""

    def __init__(self) -> None:
        self.memory = torch.empty(0, dtype=torch.int32)

    def buffer(self, batch_size: int, width: int) -> Tensor:
        if self.memory.numel() < batch_size * width:
            self.memory = torch.empty(batch_size * width, dtype=torch.int32)
        view = self.memory[: batch_size * width].view(width, batch_size).t()
        return view.fill_(PLACEHOLDER_TOKEN_ID)


class RefusesStridedInputs(VectorRejection):
    """Tensors that are not contiguous are refused by name."""

    def verify(self, batch: SpecDecodeBatch, noise: Noise) -> Tensor:
        for name, tensor in batch.tensors().items():
            if not tensor.is_contiguous():
                raise ValueError(f"verify: {name}.stride()={tensor.stride()}, but it must be contiguous. Copy it.")
        return super().verify(batch, noise)


class GoesThroughRequestsBackwards(VectorRejection):
    """The last request first, each in a batch of its own; a `ci` run for a fast sampler would take an hour."""

    slow = True

    def verify(self, batch: SpecDecodeBatch, noise: Noise) -> Tensor:
        given = self.numbers(batch, noise) if isinstance(noise, SeededNoise) else noise
        requests = reversed(range(batch.batch_size))
        rows = [super(type(self), self).verify(batch.select([i]), given.select(batch, [i])) for i in requests]
        return torch.cat(rows[::-1])


class RecoversAtEveryPosition(VectorRejection):
    """A token is recovered for every draft before any is accepted, as vLLM does."""

    def recovered(self, step: Step, requests: Tensor, rows: Tensor) -> Tensor:
        every = torch.arange(len(step.drafts), device=rows.device)
        return super().recovered(step, step.owner, every)[rows]


class InvertsTheCdf(OneUniform, VectorRejection):
    """Recovers by the residual's inverse cumulative sum."""

    unsupported = OWN_RECOVERY


class HashesItsNoise(VectorRejection):
    """No generator at all: every number is a hash of the seed, the request and the place inside it."""

    unsupported = OWN_RECOVERY | {Capability.EXPLICIT_NOISE: "draws inside"}

    def numbers(self, batch: SpecDecodeBatch, noise: SeededNoise) -> ExplicitNoise:
        requests = np.arange(batch.batch_size, dtype=np.uint64)
        keys = hashed(np.uint64(derive_seed("call", noise.seed)), requests)
        for request, own in noise.request_seeds.items():
            keys[request] = derive_seed("own", own, 0 if batch.positions is None else int(batch.positions[request]))
        counts = np.array(batch.num_draft_tokens)
        place = np.arange(batch.num_tokens) - np.repeat(counts.cumsum() - counts, counts)
        uniforms = _open_uniforms(np.repeat(keys, counts), batch.vocab_size + place)
        exponentials = np.empty((batch.batch_size, batch.vocab_size), np.float32)
        step = max(1, _HASHED_AT_ONCE // batch.vocab_size)
        for first in range(0, batch.batch_size, step):
            drawn = _open_uniforms(keys[first : first + step, None], np.arange(batch.vocab_size))
            # Of float64 uniforms above 0: none of them is 0 in float32.
            exponentials[first : first + step] = np.negative(np.log(drawn, out=drawn), out=drawn)
        numbers = torch.from_numpy(uniforms), torch.from_numpy(exponentials)
        return ExplicitNoise(*(one.to(batch.device) for one in numbers))


_HASHED_AT_ONCE = 2**15
"""Numbers that a processor's cache holds with what they are made of."""


def _open_uniforms(keys: NDArray[np.uint64], places: NDArray[np.int64]) -> NDArray[np.float64]:  # [...], broadcast
    """Return uniforms in (0, 1) of 52 bits."""
    words = hashed(keys, places.astype(np.uint64)) >> np.uint64(12)
    return np.asarray((words + 0.5) * 2.0**-52, dtype=np.float64)


class KeepsSeedsByRow(contracts.RowKeeper, HashesItsNoise):
    """A row has the seed that its request entered with, which is hashed with its position."""

    def numbers(self, batch: SpecDecodeBatch, noise: SeededNoise) -> ExplicitNoise:
        positions = [0] * batch.batch_size if batch.positions is None else batch.positions.tolist()
        own = {row: derive_seed("at", seed, positions[row]) for row, seed in self.seeds().items()}
        return super().numbers(batch, SeededNoise(noise.seed, own))


class MakesItsOwnGenerators(VectorRejection):
    """A generator of the CPU per request with a seed and one for the others: it heeds 32 bits of each seed."""

    unsupported = OWN_STREAM | {Capability.EXPLICIT_NOISE: "draws inside"}

    def numbers(self, batch: SpecDecodeBatch, noise: SeededNoise) -> ExplicitNoise:
        shared = torch.Generator().manual_seed(noise.seed)
        uniforms = torch.rand(batch.num_tokens, dtype=torch.float64, generator=shared)
        exponentials = torch.empty(batch.batch_size, batch.vocab_size).exponential_(generator=shared)
        ends = list(accumulate(batch.num_draft_tokens))  # `token_slice` adds up all requests before, for each
        for request, seed in noise.request_seeds.items():
            own: Any = noise.kept.setdefault(str(request), torch.Generator().manual_seed(seed))  # Any: it goes on
            uniforms[ends[request] - batch.num_draft_tokens[request] : ends[request]].uniform_(generator=own)
            exponentials[request].exponential_(generator=own)
        return ExplicitNoise(uniforms.to(batch.device), exponentials.to(batch.device))


class MatchesExactly(VectorRejection):
    """Draws a token from the target at each position, and accepts the draft if it is that token."""

    unsupported = OWN_SCHEME

    def accepted(self, step: Step) -> Tensor:
        has_probabilities = (step.target > 0).any(-1)
        return (step.drafts == inverse_cdf(step.target, step.noise.uniforms)) & has_probabilities

    def recovered(self, step: Step, requests: Tensor, rows: Tensor) -> Tensor:
        return inverse_cdf(step.target[rows], step.noise.uniforms[rows])


class AcceptsNothing(VectorRejection):
    """The first token is drawn from the target, whatever the draft, and ends the request: lossless, and slow."""

    unsupported = OWN_SCHEME

    def accepted(self, step: Step) -> Tensor:
        return torch.zeros_like(step.drafts, dtype=torch.bool)

    greedy_accepts = accepted

    def residual(self, step: Step, rows: Tensor) -> Tensor:
        return step.target[rows]


class AcceptsHalfAsOften(VectorRejection):
    """Accepts with half of the probability, and recovers from what that leaves of the target."""

    unsupported = OWN_SCHEME

    def passes(self, target: Tensor, draft: Tensor, uniforms: Tensor) -> Tensor:
        return (target / draft).clamp(max=1) / 2 >= uniforms

    def residual(self, step: Step, rows: Tensor) -> Tensor:
        target = step.target[rows]
        return target - torch.minimum(target, step.batch.dense_draft_probs()[rows]) / 2


def inverse_cdf(weights: Tensor, uniforms: Tensor) -> Tensor:  # [num_rows, vocab_size], [num_rows] -> [num_rows] int64
    """One token per row; token 0 where nothing has weight."""
    sums = weights.nan_to_num().double().cumsum(-1)
    drawn = torch.searchsorted(sums, uniforms[:, None].double() * sums[:, -1:], right=True).squeeze(1)
    last = weights.shape[1] - 1 - (weights.flip(-1) > 0).int().argmax(-1)
    return torch.where((weights > 0).any(-1), torch.minimum(drawn, last), 0)


def kinds_of(base: type[Kind], names: dict[str, Any]) -> list[type[Kind]]:  # Any: whatever a module has
    """Return `base` and its subclasses in a module, by name."""
    return [kind for _, kind in sorted(names.items()) if inspect.isclass(kind) and issubclass(kind, base)]


def as_odd(kind: type[VectorRejection]) -> FunctionSampler:
    """A fresh sampler, named after its class."""
    one = kind()
    sync, unsupported = getattr(one, "sync", None), kind.unsupported
    return rejection_sampler(one.verify, name=name_of(kind), sync=sync, unsupported=unsupported, slow=kind.slow)


_OF_BLOCKS = {**OWN_SCHEME, **BlockVerification.unsupported, Capability.REQUEST_SEEDS: "one generator serves all"}


ODD: tuple[FunctionSampler, ...] = (
    *map(as_odd, kinds_of(VectorRejection, globals())),
    rejection_sampler(BlockVerification().verify, name="verifies a block", unsupported=_OF_BLOCKS),
)
"""Correct samplers of another design, each with what it declares unsupported."""
