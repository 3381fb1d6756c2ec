"""Samplers whose masks are correct and unlike the specification's. The checks must pass every one of them."""

import dataclasses

import torch
from torch import Tensor

from fairdraw._mutants._mutant import name_of
from fairdraw.adapters._masks import write_ids
from fairdraw.adapters._step import words_of
from fairdraw.contracts import FunctionMaskedSampler, MaskedTokens, MaskPolicy, MaskRows, SamplingBatch, SamplingNoise
from fairdraw.contracts import masked_sampler as wrapped
from odd import sampling as vectors
from odd.sampling import VectorSampling


class VectorMasks:
    """The masks of all requests at once, of a vectorised sampler's filtered logits. Odd ones override a step."""

    policy = MaskPolicy()

    def __init__(self, sampling: type[VectorSampling] = VectorSampling) -> None:
        self.sampling = sampling()

    def sample_masked(self, batch: SamplingBatch, noise: SamplingNoise, into: MaskRows) -> MaskedTokens:
        tokens, filtered = self.sampling.sample(batch, noise), self.sampling.filtered(batch)
        kept = torch.where(batch.is_greedy[:, None], self.greedy(batch, tokens), self.kept(batch, filtered))
        into.words.copy_(words_of(kept))
        write_ids(into, batch.vocab_size)
        own = self.sampling.probs(batch).gather(1, tokens[:, None].long())[:, 0]
        return MaskedTokens(tokens, own.log().masked_fill(batch.is_greedy, 0.0).float())

    def greedy(self, batch: SamplingBatch, tokens: Tensor) -> Tensor:  # [batch_size, vocab_size] bool
        return batch.logits.isfinite()

    def kept(self, batch: SamplingBatch, filtered: Tensor) -> Tensor:  # each [batch_size, vocab_size]
        return filtered.isfinite()


class ListsByProbability(VectorMasks):
    """Ids by probability, as they come from a sort; the mask of a greedy request is its token."""

    policy = MaskPolicy(greedy_mask="token", ids_order="any")

    def greedy(self, batch: SamplingBatch, tokens: Tensor) -> Tensor:
        return torch.nn.functional.one_hot(tokens.long(), batch.vocab_size).bool()

    def sample_masked(self, batch: SamplingBatch, noise: SamplingNoise, into: MaskRows) -> MaskedTokens:
        found = super().sample_masked(batch, noise, into)
        kept = torch.arange(into.token_ids.shape[1]) < into.counts[:, None]
        logits = batch.logits.float().gather(1, into.token_ids.long() * kept)
        order = logits.masked_fill(~kept, -torch.inf).argsort(dim=1, descending=True, stable=True)
        into.token_ids.copy_(into.token_ids.gather(1, order))
        return found


class LeavesPlainMasksEmpty(VectorMasks):
    """Without filters there is nothing to renormalise over."""

    policy = MaskPolicy(plain_mask="none")

    def kept(self, batch: SamplingBatch, filtered: Tensor) -> Tensor:
        off = ((batch.top_k, batch.vocab_size), (batch.top_p, 1.0), (batch.min_p, 0.0))
        is_filtered = [values != one for values, one in off if values is not None]
        return filtered.isfinite() & torch.stack(is_filtered or [torch.zeros(len(filtered)).bool()]).any(0)[:, None]


class KeepsWhatHasProbability(VectorMasks):
    """Tokens whose probability is 0 in float32 are left out."""

    def kept(self, batch: SamplingBatch, filtered: Tensor) -> Tensor:
        return filtered.softmax(-1) > 0


class FillsTheWholeRow(VectorMasks):
    """Bits beyond the vocabulary are 1, ids behind the last -1; tokens are int32, and have no log-probabilities."""

    def sample_masked(self, batch: SamplingBatch, noise: SamplingNoise, into: MaskRows) -> MaskedTokens:
        into.token_ids.fill_(-1)
        found = super().sample_masked(batch, noise, into)
        if batch.vocab_size % 32:
            into.words[:, -1] |= -1 << batch.vocab_size % 32
        return dataclasses.replace(found, token_ids=found.token_ids.int(), logprobs=None)


def _odd(made: VectorMasks, name: str) -> FunctionMaskedSampler:
    own = made.sampling
    policies = {"filters": own.filters, "policy": made.policy}
    return wrapped(made.sample_masked, name=name, unsupported=own.unsupported, **policies)  # type: ignore[arg-type]


_KINDS = ListsByProbability, LeavesPlainMasksEmpty, KeepsWhatHasProbability, FillsTheWholeRow
_SAMPLERS = (
    VectorSampling, vectors.ComputesInFloat64, vectors.AddsGumbelNoise, vectors.WorksWithLogProbabilities,
    vectors.SumsTheNucleusFromTheTop, vectors.KeepsExactlyK, vectors.FiltersTopKFirst, vectors.IntersectsSupports,
    vectors.TempersLast,
)  # fmt: skip
ODD = (
    *(_odd(kind(), name_of(kind)) for kind in _KINDS),
    *(_odd(VectorMasks(one), name_of(one)) for one in _SAMPLERS),
)
