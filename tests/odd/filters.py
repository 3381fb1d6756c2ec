"""Correct filters of other making: what they declare, and what the contract leaves open."""

import dataclasses
from typing import Any

import numpy as np
import torch

from fairdraw._mutants._mutant import name_of
from fairdraw._oracles.filters import FilteredRow, FiltersOracle, RowContext
from fairdraw.contracts import FilterChain, FilterResult, FunctionLogitsFilterer, logits_filterer


class Row32(FilteredRow):
    """Log-probabilities in float32, with a sum from the first token to the last."""

    @property
    def log_probs(self) -> Any:
        logits = np.where(self.kept, self.values, -np.inf).astype(np.float32)
        shifted = logits - logits.max()
        with np.errstate(divide="ignore"):
            return (shifted - np.log(np.cumsum(np.exp(shifted), dtype=np.float32)[-1])).astype(np.float64)


class InFloat32(FiltersOracle):
    """Each filter computes in float32."""

    def row(self, logits: Any, context: RowContext) -> FilteredRow:
        row: FilteredRow = Row32.of(logits)
        for name in self.order(context):
            row = getattr(self, name)(row, context)
            row = dataclasses.replace(row, values=row.values.astype(np.float32).astype(np.float64))
        return row


class AddsSquaresInFloat32(FiltersOracle):
    """P-less adds squares one by one, and keeps the first of the largest where the sum rounds above every token."""

    def p_less(self, row: FilteredRow, context: RowContext) -> FilteredRow:
        probs = np.exp(row.log_probs).astype(np.float32)
        kept = probs >= np.cumsum(probs**2, dtype=np.float32)[-1]
        kept = kept if kept.any() else np.arange(len(kept)) == row.ids[0]
        return dataclasses.replace(row, kept=kept & row.kept)


class ReturnsLogProbabilities(FiltersOracle):
    """Rows with filters come back normalised."""

    def filter_logits(self, batch: Any, noise: Any) -> FilterResult:
        found = super().filter_logits(batch, noise)
        bent = torch.tensor([bool(one.enabled) for one in batch.params])[:, None]
        return dataclasses.replace(found, logits=torch.where(bent, found.logits.log_softmax(dim=1), found.logits))


class KeepsAllTies(FiltersOracle):
    """Whoever ties with the last token stays, too."""

    def row(self, logits: Any, context: RowContext) -> FilteredRow:
        row = super().row(logits, context)
        cuts = {"top_k", "top_p", "tail_free", "mirostat_v1"}
        ties = np.isin(row.values, row.values[row.kept]) if set(context.params.enabled) <= cuts else row.kept
        return dataclasses.replace(row, kept=row.possible & (row.kept | ties))


class PrefersHighIds(FiltersOracle):
    """Keeps the last of equal tokens."""

    def filter_logits(self, batch: Any, noise: Any) -> FilterResult:
        size = batch.vocab_size - 1
        texts = {
            name: [[size - token for token in row] for row in getattr(batch, name)]
            for name in ("prompt_token_ids", "output_token_ids")
        }
        params = [
            dataclasses.replace(one, dry_breakers=tuple(size - token for token in one.dry_breakers))
            for one in batch.params
        ]
        found = super().filter_logits(batch.replace(logits=batch.logits.flip(1), params=params, **texts), noise)
        assert found.token_ids is not None
        return FilterResult(found.logits.flip(1), size - found.token_ids)


class WritesInPlace(FiltersOracle):
    """Writes into the logits that it is given; ids are int32, and logits lie column by column."""

    def filter_logits(self, batch: Any, noise: Any) -> FilterResult:
        found = super().filter_logits(batch, noise)
        batch.logits.copy_(found.logits)
        assert found.token_ids is not None
        return FilterResult(batch.logits.t().contiguous().t(), found.token_ids.int())


class ReturnsTheTokenAlone(FiltersOracle):
    """Of a row with mirostat the drawn token comes back, and nothing else."""

    def filter_logits(self, batch: Any, noise: Any) -> FilterResult:
        found = super().filter_logits(batch, noise)
        assert found.token_ids is not None
        speaks = torch.tensor([bool(one.mirostat_v1_tau or one.mirostat_v2_tau) for one in batch.params])[:, None]
        alone = torch.full_like(found.logits, -torch.inf).scatter(1, found.token_ids[:, None], 1.0)
        return FilterResult(torch.where(speaks, alone, found.logits), found.token_ids)


def _odd(oracle: FiltersOracle, name: str) -> FunctionLogitsFilterer:
    return logits_filterer(oracle.filter_logits, chain=oracle.chain, name=name)


_ORDER = FilterChain().order
_KINDS = InFloat32, ReturnsLogProbabilities, KeepsAllTies, PrefersHighIds, WritesInPlace, AddsSquaresInFloat32

ODD: tuple[FunctionLogitsFilterer, ...] = (
    *(_odd(kind(), name_of(kind)) for kind in _KINDS),
    _odd(ReturnsTheTokenAlone(FilterChain(mirostat_one_hot=True)), "returns the token alone"),
    _odd(FiltersOracle(FilterChain(_ORDER[::-1])), "filters backwards"),
    _odd(FiltersOracle(FilterChain(sigma_ddof=1, tail_free_extra=0)), "other formulas"),
    _odd(FiltersOracle(FilterChain(mirostat_surprise="kept", mirostat_top=50)), "other mirostat"),
    _odd(FiltersOracle(FilterChain(mirostat_extra=1, dry_longest=50)), "one token more"),
    _odd(FiltersOracle(FilterChain(("min_p", "top_k"))), "two filters"),
)
"""Correct filters."""
