"""Correct token samplers that compute, filter, draw or answer in another way than the oracle: none may fail a check.

They are written in vectorised torch, so that a `ci` run of each takes seconds. What their way costs is declared as any
user would declare it, in `unsupported` and as a `FilterPolicy`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from fairdraw._core.seeds import derive_seed
from fairdraw._mutants._mutant import GENERATORS, name_of
from fairdraw._oracles.sampling import draw_exponentials
from fairdraw.contracts import Capability, Drafted, FilterPolicy, RaceNoise, RowKeeper, SeededNoise, token_sampler
from odd.rejection import LastOfTies, OneUniform, Race, kinds_of

if TYPE_CHECKING:
    from torch import Tensor

    from fairdraw.contracts import FunctionTokenSampler, SamplingBatch, SamplingNoise

OWN_STREAM: dict[str, str] = GENERATORS | {Capability.UPSTREAM_STREAM: "tokens may differ from vLLM's"}
OWN_ROUNDING: dict[str, str] = OWN_STREAM | {Capability.REFERENCE_ROUNDING: "other formulas than the oracle's"}
OWN_RACE: dict[str, str] = OWN_ROUNDING | {Capability.REFERENCE_RACE: "draws in another way from the same numbers"}


class VectorSampling(Race):
    """Temperature, min-p, top-k, top-p, softmax and a race, all requests at once. Odd samplers override a step."""

    unsupported: ClassVar[dict[str, str]] = GENERATORS
    filters: ClassVar[FilterPolicy] = FilterPolicy()

    def sample(self, batch: SamplingBatch, noise: SamplingNoise) -> Tensor:  # [batch_size] int64
        return self.tokens(batch, self.probs(batch), noise)

    def draft(self, batch: SamplingBatch, noise: SamplingNoise) -> Drafted:
        """Greedy drafts, and those of rows without a distribution, are certain of their token."""
        probs = self.probs(batch)
        tokens = self.tokens(batch, probs, noise)
        certain = torch.nn.functional.one_hot(tokens.long(), batch.vocab_size).float()
        is_certain = batch.is_greedy | probs.isnan().any(-1)
        return Drafted(tokens, torch.where(is_certain[:, None], certain, probs.float()))

    def tokens(self, batch: SamplingBatch, probs: Tensor, noise: SamplingNoise) -> Tensor:  # [batch_size] int64
        drawn = self.draw(probs, noise.exponentials if isinstance(noise, RaceNoise) else self.numbers(batch, noise))
        return torch.where(batch.is_greedy, self.best(batch.logits.float()), drawn)

    def numbers(self, batch: SamplingBatch, noise: SeededNoise) -> Tensor:  # [batch_size, vocab_size] float32
        """Drawn in vLLM's order."""
        return draw_exponentials(batch, noise)

    def best(self, logits: Tensor) -> Tensor:  # [batch_size, vocab_size] float32 -> [batch_size] int64
        return logits.argmax(-1)

    def probs(self, batch: SamplingBatch) -> Tensor:  # [batch_size, vocab_size] float32 | float64
        return self.softmax(self.filtered(batch))

    def filtered(self, batch: SamplingBatch) -> Tensor:  # [batch_size, vocab_size] float32 | float64
        """Logits over temperature, -inf outside of the support; joint filters all look at the unfiltered ones."""
        logits = scaled = self.scaled(batch)
        for name in self.filters.order:
            values = getattr(batch, name)
            if values is not None:
                kept = getattr(self, f"{name}_keeps")(scaled if self.filters.joint else logits, values[:, None])
                logits = logits.masked_fill(~kept, -torch.inf)
        return logits

    def temperature(self, batch: SamplingBatch) -> Tensor:  # [batch_size, 1] float32
        return torch.where(batch.is_greedy, 1.0, batch.temperature)[:, None]

    def scaled(self, batch: SamplingBatch) -> Tensor:  # [batch_size, vocab_size] float32 | float64
        return batch.logits.float() / self.temperature(batch)

    def softmax(self, logits: Tensor) -> Tensor:  # [batch_size, vocab_size] -> the same
        return logits.softmax(-1)

    # What is kept, [batch_size, vocab_size] bool, of logits of that shape; parameters are [batch_size, 1].

    def min_p_keeps(self, logits: Tensor, min_p: Tensor) -> Tensor:
        probs = logits.softmax(-1)
        return ~(probs < probs.amax(-1, keepdim=True) * min_p) | (min_p <= 0)

    def top_k_keeps(self, logits: Tensor, top_k: Tensor) -> Tensor:
        vocab, kept = logits.shape[1], top_k.long()
        width = int(kept.masked_fill(kept >= vocab, 1).max()) if len(kept) else 1
        return ~(logits < logits.topk(width).values.gather(1, kept.clamp(max=width) - 1)) | (kept >= vocab)

    def top_p_keeps(self, logits: Tensor, top_p: Tensor) -> Tensor:
        on = (top_p[:, 0] < 1).nonzero()[:, 0]  # a sort takes long
        ascending, order = logits[on].sort(dim=-1, stable=True)
        mass = ascending.softmax(-1).cumsum(-1, dtype=torch.float64).float()
        removed = mass <= 1 - top_p[on]
        removed[:, -1] = False
        kept = ~torch.zeros_like(removed).scatter(1, order, removed)
        return torch.ones_like(logits, dtype=torch.bool).index_put((on,), kept)


class MultipliesByReciprocals(VectorSampling):
    """`prob * (1 / exponential)`; vLLM divides here, and multiplies when it recovers."""

    unsupported = OWN_STREAM

    def scores(self, weights: Tensor, exponentials: Tensor) -> Tensor:
        return weights * (1 / exponentials)


class MultipliesByTheInverseTemperature(VectorSampling):
    """`logits * (1 / temperature)`: two roundings in place of one."""

    unsupported = OWN_ROUNDING

    def scaled(self, batch: SamplingBatch) -> Tensor:
        return batch.logits.float() * (1 / self.temperature(batch))


class ComputesInFloat64(VectorSampling):
    """Temperature, filters, softmax and race in float64."""

    unsupported = OWN_ROUNDING

    def scaled(self, batch: SamplingBatch) -> Tensor:
        return batch.logits.double() / self.temperature(batch).double()


class AddsGumbelNoise(VectorSampling):
    """Gumbel-max over the filtered logits; no softmax is taken for the draw."""

    unsupported = OWN_ROUNDING

    def tokens(self, batch: SamplingBatch, probs: Tensor, noise: SamplingNoise) -> Tensor:
        exponentials = noise.exponentials if isinstance(noise, RaceNoise) else self.numbers(batch, noise)
        logits = self.filtered(batch)
        scores = torch.where(logits > -torch.inf, logits - exponentials.log(), -torch.inf)
        drawn = torch.where(probs.isnan().any(-1), 0, scores.argmax(-1))
        return torch.where(batch.is_greedy, self.best(batch.logits.float()), drawn)


class WorksWithLogProbabilities(VectorSampling):
    """`exp(logits - logsumexp(logits))`, and filters on log-probabilities."""

    unsupported = OWN_ROUNDING

    def softmax(self, logits: Tensor) -> Tensor:
        return (logits - logits.logsumexp(-1, keepdim=True)).exp()

    def min_p_keeps(self, logits: Tensor, min_p: Tensor) -> Tensor:
        return ~(logits < logits.amax(-1, keepdim=True) + min_p.log())


class SumsTheNucleusFromTheTop(VectorSampling):
    """top-p keeps what the more probable tokens leave short of it, with float32 sums; all of tied tokens stay."""

    unsupported = OWN_ROUNDING
    filters = FilterPolicy(top_p_ties="all")

    def top_p_keeps(self, logits: Tensor, top_p: Tensor) -> Tensor:
        descending, _ = logits.sort(dim=-1, descending=True, stable=True)
        probs = descending.softmax(-1)
        kept = ((probs.cumsum(-1) - probs) < top_p).long().sum(-1, keepdim=True).clamp(min=1)
        return ~(logits < descending.gather(1, kept - 1)) | (top_p >= 1)


class KeepsExactlyK(VectorSampling):
    """Of the tokens tied at the edge of top-k the lowest ids stay."""

    filters = FilterPolicy(top_k_ties="some")

    def top_k_keeps(self, logits: Tensor, top_k: Tensor) -> Tensor:
        order = logits.sort(dim=-1, descending=True, stable=True).indices
        ranks = torch.arange(logits.shape[1], device=logits.device).expand_as(order)
        return torch.zeros_like(order).scatter(1, order, ranks) < top_k


class FiltersTopKFirst(VectorSampling):
    """top-k, top-p, min-p: the order of transformers."""

    unsupported = OWN_STREAM
    filters = FilterPolicy(order=("top_k", "top_p", "min_p"))


class IntersectsSupports(VectorSampling):
    """Every filter looks at the unfiltered distribution."""

    unsupported = OWN_STREAM
    filters = FilterPolicy(joint=True)


class TempersLast(VectorSampling):
    """Filters see log-probabilities at temperature 1; what they leave is drawn at the temperature, as in MLX-LM."""

    unsupported = OWN_ROUNDING
    filters = FilterPolicy(order=("top_p", "min_p", "top_k"), temperature="last")

    def scaled(self, batch: SamplingBatch) -> Tensor:
        return batch.logits.float().log_softmax(-1)

    def probs(self, batch: SamplingBatch) -> Tensor:
        return (self.filtered(batch) / self.temperature(batch)).softmax(-1)


class DrawsInSortedOrder(VectorSampling):
    """Sorts first, draws a rank, and looks up its id; the numbers of an id go with it."""

    unsupported = OWN_ROUNDING

    def draw(self, weights: Tensor, exponentials: Tensor) -> Tensor:
        descending, order = weights.sort(dim=-1, descending=True, stable=True)
        ranks = super().draw(descending, exponentials.gather(1, order))
        return torch.where((weights > 0).any(-1), order.gather(1, ranks[:, None]).squeeze(1), 0)


class InvertsTheCdf(OneUniform, VectorSampling):
    """One uniform per request, made of its first exponential."""

    unsupported = OWN_RACE


class Counts(VectorSampling):
    """A counter-based generator (NumPy's Philox): numbers are a function of seed and position."""

    unsupported: ClassVar[dict[str, str]] = {
        Capability.EXPLICIT_NOISE: "draws inside",
        Capability.REFERENCE_RACE: "draws inside",
        Capability.UPSTREAM_STREAM: "uses no torch generator",
    }

    def numbers(self, batch: SamplingBatch, noise: SeededNoise) -> Tensor:
        drawn = np.empty((batch.batch_size, batch.vocab_size), np.float32)
        for request, position in enumerate(batch.positions.tolist()):
            own = noise.request_seeds.get(request)
            key = derive_seed("call", noise.seed, request) if own is None else derive_seed("own", own, position)
            rng = np.random.Generator(np.random.Philox(key=key))
            drawn[request] = rng.standard_exponential(batch.vocab_size)  # in float32 NumPy draws zeros
        return torch.from_numpy(drawn).to(batch.device)


class KeepsSeedsByRow(RowKeeper, Counts):
    """A row has the seed that its request entered with; the seeds of the noise are not looked at."""

    def numbers(self, batch: SamplingBatch, noise: SeededNoise) -> Tensor:
        return super().numbers(batch, SeededNoise(noise.seed, self.seeds()))


class TakesTheHighestIdOnTies(LastOfTies, VectorSampling):
    """Among equal logits, and equal scores in the race, the last one stays."""

    unsupported = OWN_STREAM | {Capability.LOWEST_ID_TIES: "the last of equal ones stays"}

    def best(self, logits: Tensor) -> Tensor:
        flipped = logits.shape[1] - 1 - logits.flip(-1).argmax(-1)
        return torch.where(logits.amax(-1).isfinite(), flipped, logits.argmax(-1))


class ReturnsAViewOfItsBuffer(VectorSampling):
    """int32, every second entry of memory that the next call writes again."""

    def __init__(self) -> None:
        self.memory = torch.empty(0, dtype=torch.int32)

    def tokens(self, batch: SamplingBatch, probs: Tensor, noise: SamplingNoise) -> Tensor:
        if self.memory.numel() < 2 * batch.batch_size:
            self.memory = torch.empty(2 * batch.batch_size, dtype=torch.int32)
        view = self.memory[: 2 * batch.batch_size : 2]
        view.copy_(super().tokens(batch, probs, noise))
        return view


class RefusesStridedLogits(VectorSampling):
    """Logits that are not contiguous are refused by name."""

    def probs(self, batch: SamplingBatch) -> Tensor:
        if not batch.logits.is_contiguous():
            raise ValueError(f"sample: logits.stride()={batch.logits.stride()}, but it must be contiguous. Copy it.")
        return super().probs(batch)


def as_odd(kind: type[VectorSampling]) -> FunctionTokenSampler:
    """A fresh sampler and drafter, named after its class."""
    one = kind()
    name, unsupported, sync = name_of(kind), kind.unsupported, getattr(one, "sync", None)
    return token_sampler(
        one.sample, drafting=one.draft, name=name, unsupported=unsupported, filters=kind.filters, sync=sync
    )


ODD: tuple[FunctionTokenSampler, ...] = tuple(map(as_odd, kinds_of(VectorSampling, globals())))
"""Correct samplers of another design, each with what it declares unsupported."""
