"""Watermarks that are correct and unlike the specification's. The checks must pass every one of them."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairdraw._core.array_types import Float64s
from fairdraw._mutants._mutant import GENERATORS, name_of
from fairdraw._oracles import watermarks as oracles
from fairdraw._oracles.watermarks import WatermarksOracle, marking_context, marks
from fairdraw.contracts import Context, FunctionWatermarker, SamplingNoise, WatermarkBatch, WatermarkPolicy
from fairdraw.contracts import WatermarkSetup as Setup
from odd.sampling import VectorSampling


class HashesByBlake(WatermarksOracle):
    """Numbers of another hash, in float32 steps of 2**-24."""

    def row(self, setup: Setup, key: int, context: Context, vocab_size: int) -> Float64s:
        seed = hashlib.blake2b(repr((key, context)).encode(), digest_size=8).digest()
        found = np.random.default_rng(list(seed)).integers(2**24, size=(1, vocab_size))
        return np.asarray((found + 1.0) / (2**24 + 1))


class KeepsHistories(WatermarksOracle):
    """What a text had is kept by request, and begun anew if the text is not longer than before."""

    def __init__(self) -> None:
        self.kept: dict[int, tuple[int, int, set[Context]]] = {}

    def has_mark(self, context: Context, one: oracles.Marking) -> bool:
        length, width, asked = len(one.text.output_token_ids), one.setup.context_width, one.text.request_id
        size, kept_width, seen = self.kept.get(asked, (-1, 0, set()))
        if size != length - 1 or kept_width != width:
            seen = set(self.history(one))
        self.kept[asked] = length, width, seen | {context}
        return marks(self.policy, width, context, list(seen))


class VectorRace(VectorSampling):
    """All rows at once in torch, with Gumbel numbers added to filtered logits, as engines have it."""

    marks = WatermarksOracle()

    def sample_watermarked(self, batch: WatermarkBatch, noise: SamplingNoise) -> Tensor:  # [batch_size] int64
        tokens, width = self.sample(batch, noise), batch.setup.context_width
        contexts = [marking_context(self.marks.policy, width, one) for one in batch.requests]
        numbers = self.marks.watermark_numbers(batch.setup, [one or () for one in contexts], batch.vocab_size)[0, 0]
        raced = (self.filtered(batch).double() - (-numbers.log()).log()).argmax(-1)
        is_marked = torch.tensor([one is not None for one in contexts]) & ~batch.is_greedy
        return torch.where(is_marked, raced, tokens.long())


def _odd(kind: type[WatermarksOracle], **changes: Any) -> FunctionWatermarker:  # Any: arguments of `watermarker`
    return oracles.sampler_of(kind, **{"name": name_of(kind), "unsupported": GENERATORS, **changes})


_VECTOR = VectorRace()
_POLICIES = {
    "marks repeated contexts": WatermarkPolicy(repeated="marked"),
    "waits for a full context": WatermarkPolicy(short_context="plain"),
    "reads the prompt": WatermarkPolicy(context="text"),
    "draws green lists once": WatermarkPolicy("green_list", "output", "marked", "plain"),
}
_KINDS = (
    HashesByBlake, KeepsHistories, oracles.SeveralKeysOracle, oracles.DrawnKeysOracle, oracles.GreenListOracle,
    oracles.TournamentOracle,
)  # fmt: skip
ODD = (
    *map(_odd, _KINDS),
    *(_odd(type(name, (WatermarksOracle,), {"policy": policy}), name=name) for name, policy in _POLICIES.items()),
    _odd(WatermarksOracle, name="shows nothing", numbers=None, detect=None),
    replace(
        _odd(WatermarksOracle, name="vector race", unsupported=_VECTOR.unsupported, filters=_VECTOR.filters),
        function=_VECTOR.sample_watermarked,
    ),
)
