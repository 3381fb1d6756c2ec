"""Watermarks that are correct and unlike the specification's. The checks must pass every one of them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairdraw._core.array_types import Float64s
from fairdraw._mutants._mutant import GENERATORS, name_of
from fairdraw._oracles.watermarks import (
    DrawnKeysOracle,
    GreenListOracle,
    Marking,
    SeveralKeysOracle,
    TournamentOracle,
    WatermarksOracle,
    contexts_of,
    marks,
)
from fairdraw.contracts import (
    Context,
    FunctionWatermarker,
    SamplingNoise,
    WatermarkBatch,
    WatermarkPolicy,
)
from fairdraw.contracts import WatermarkSetup as Setup
from fairdraw.contracts import watermarker as wrapped
from odd.sampling import VectorSampling


class HashesByBlake(WatermarksOracle):
    """Numbers of another hash, in float32 steps of 2**-24."""

    def row(self, setup: Setup, key: int, context: Context, vocab_size: int) -> Float64s:
        seed = hashlib.blake2b(repr((key, context)).encode(), digest_size=8).digest()
        found = np.random.default_rng(list(seed)).integers(2**24, size=(1, vocab_size))
        return np.asarray((found + 1.0) / (2**24 + 1))


class MarksRepeatedContexts(WatermarksOracle):
    """No history, as declared."""

    policy = WatermarkPolicy(repeated="marked")


class WaitsForAFullContext(WatermarksOracle):
    """The first tokens are ordinary, as declared."""

    policy = WatermarkPolicy(short_context="plain")


class ReadsThePrompt(WatermarksOracle):
    """One key, and contexts that go back into the prompt."""

    policy = WatermarkPolicy(context="text")


class DrawsGreenListsOnce(GreenListOracle):
    """Green lists that leave repeated contexts alone."""

    policy = WatermarkPolicy("green_list", "output", "marked", "plain")


class KeepsHistories(WatermarksOracle):
    """What a text had is kept by request, and begun anew if the text is not longer than before."""

    def __init__(self) -> None:
        self.kept: dict[int, tuple[int, int, set[Context]]] = {}

    def has_mark(self, context: Context, one: Marking) -> bool:
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
        tokens, setup, policy = self.sample(batch, noise), batch.setup, self.marks.policy
        texts = ((one.prompt_token_ids, one.output_token_ids) for one in batch.requests)
        contexts = [contexts_of(policy, setup.context_width, *text) for text in texts]
        numbers = self.marks.watermark_numbers(setup, [one[-1] for one in contexts], batch.vocab_size)[0, 0]
        raced = (self.filtered(batch).double() - (-numbers.log()).log()).argmax(-1)
        is_marked = [
            one.is_marked and marks(policy, setup.context_width, had[-1], had[:-1])
            for one, had in zip(batch.requests, contexts, strict=True)
        ]
        return torch.where(torch.tensor(is_marked) & ~batch.is_greedy, raced, tokens.long())

    def watermark_numbers(self, setup: Setup, contexts: Sequence[Context], vocab_size: int) -> Tensor:
        return self.marks.watermark_numbers(setup, contexts, vocab_size)


def _odd(kind: type[WatermarksOracle], **changes: Any) -> FunctionWatermarker:  # Any: arguments of `watermarker`
    made = kind()
    detect = made.detect if made.policy.scheme == "gumbel" else None
    about: dict[str, Any] = {"name": name_of(kind), "numbers": made.watermark_numbers, "detect": detect}
    return wrapped(made.sample_watermarked, **{**about, "policy": made.policy, "unsupported": GENERATORS, **changes})


def _vector() -> FunctionWatermarker:
    made = VectorRace()
    named = {"name": "vector race", "numbers": made.watermark_numbers, "detect": made.marks.detect}
    return wrapped(made.sample_watermarked, unsupported=made.unsupported, filters=made.filters, **named)  # type: ignore[arg-type]


_KINDS = (
    HashesByBlake, MarksRepeatedContexts, WaitsForAFullContext, ReadsThePrompt, DrawsGreenListsOnce, KeepsHistories,
    SeveralKeysOracle, DrawnKeysOracle, GreenListOracle, TournamentOracle,
)  # fmt: skip
ODD_WATERMARKS = (
    *map(_odd, _KINDS),
    _odd(WatermarksOracle, name="shows nothing", numbers=None, detect=None),
    _vector(),
)
