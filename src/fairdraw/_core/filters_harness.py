"""How the suite calls a sampler's filters: the same way everywhere, with batch and answer checked."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from fairdraw._core.failures import AdapterError, calling
from fairdraw._core.harness import seeded
from fairdraw._core.seeds import derive_seed
from fairdraw._core.validation import Validator, check_answer
from fairdraw.protocols import FilterBatch, FilterParams, FilterResult, SeededNoise

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fairdraw.protocols import LogitsFilterer


_STEPS = "fairdraw: steps"
"""In `SeededNoise.kept`: the number of the last step."""


@dataclass(frozen=True)
class Filtered:
    """The result of one call; copies."""

    logits: NDArray[np.float32]  # [num_rows, vocab_size] float32
    token_ids: NDArray[np.int64] | None  # [num_rows] int64


def call_filters(filterer: LogitsFilterer, batch: FilterBatch, noise: SeededNoise) -> Filtered:
    """Call `filter_logits` once, with a copy of the batch.

    Raises:
        ValueError, TypeError: If the batch breaks the contract (a fault of the caller).
        AdapterError: If the answer is not of the contract's type (a fault of the adapter).
        Exception: Whatever the filterer raises, marked as its own.

    Randomness:
        The global generators are seeded just before the call: with `noise.seed` for the first step with this noise
        object, and otherwise for each later one. `seeded` says when their states are put back.
    """
    check_filter_batch(batch)
    shape, num_rows = list(batch.logits.shape), batch.batch_size
    step = noise.kept[_STEPS] = int(str(noise.kept.get(_STEPS, -1))) + 1
    own = SeededNoise(derive_seed("step", noise.seed, step) if step else noise.seed)
    with seeded(own, batch.device):
        with calling(filterer):
            answer, name = filterer.filter_logits(batch.clone(), noise), filterer.name
        if not isinstance(answer, FilterResult):
            raise AdapterError(
                f"filter_logits: sampler={name} returned {type(answer).__name__}, but it must return a FilterResult. "
                "Return FilterResult(logits)."
            )
        hint = "([num_rows, vocab_size]). Return the filtered logits."
        logits = check_answer("filter_logits", name, "logits", answer.logits, shape, ("float32",), batch.device, hint)
        tokens, integers = answer.token_ids, ("int64", "int32")
        if tokens is not None:
            hint = "([num_rows])."
            tokens = check_answer("filter_logits", name, "token_ids", tokens, [num_rows], integers, batch.device, hint)
        with calling(filterer):  # the error of an asynchronous kernel surfaces where its result is waited for
            ids = None if tokens is None else tokens.cpu().numpy().astype(np.int64)
            return Filtered(logits.detach().cpu().numpy().copy(), ids)


def check_filter_batch(batch: FilterBatch) -> None:
    """Refuse a batch that does not follow the contract.

    Raises:
        TypeError: If it is not a `FilterBatch`.
        ValueError: If shapes, lengths, logits or parameters are out of range.
    """
    validator = Validator("check_filter_batch")
    given, rule = f"batch={type(batch).__name__}", "it must be a FilterBatch"
    validator.require(isinstance(batch, FilterBatch), given, rule, "Build one.", TypeError)
    shape = list(batch.logits.shape)
    rule = f"it must be [{batch.batch_size}, vocab_size] with at least one row and one token"
    fits = len(shape) == 2 and shape[0] == batch.batch_size >= 1 and shape[1] >= 1
    validator.require(fits, f"logits.shape={shape}", rule, "Give each row its parameters.")
    validator.dtype("logits", batch.logits, ("float32",))
    valid = ~batch.logits.isnan() & (batch.logits != torch.inf)
    validator.values("logits", batch.logits, valid, "it must be finite or -inf", "Mask with -inf.")
    alive = batch.logits.isfinite().any(dim=1)
    validator.require(bool(alive.all()), "a row is all -inf", "a token must be possible", "Leave the row out.")
    for name in ("prompt_token_ids", "output_token_ids"):
        rows = getattr(batch, name)
        given, rule = f"{name} has {len(rows)} lists", f"it must have one for each of {batch.batch_size} rows"
        validator.require(len(rows) == batch.batch_size, given, rule, "Use [] for none.")
        inside = all(0 <= token < batch.vocab_size for row in rows for token in row)
        validator.require(inside, f"{name} has other ids", "they must be of the vocabulary", "Leave them out.")
    for params in batch.params:
        _check_params(validator, params)


_RANGES = {
    **dict.fromkeys(("top_p", "min_p", "typical_p", "top_a", "tail_free", "eta", "epsilon"), (0.0, 1.0)),
    **dict.fromkeys(("xtc_probability", "xtc_threshold"), (0.0, 1.0)),
    "temperature": (1e-3, 1e6),
    "dry_base": (1.0, 1e6),
    "dry_allowed_length": (1, 1 << 30),
}
"""Parameter to its smallest and largest value; others must not be negative."""


def _check_params(validator: Validator, params: FilterParams) -> None:
    for one in dataclasses.fields(params):
        value = getattr(params, one.name)
        if one.name != "dry_breakers":
            low, high = _RANGES.get(one.name, (0, 1e30))
            rule = f"it must lie in [{low}, {high}]"
            validator.require(low <= value <= high, f"{one.name}={value!r}", rule, "Use a value in range.")
    cuts = set(params.enabled) - {"temperature", "mirostat_v1", "mirostat_v2"}
    alone = not (params.mirostat_v1_tau or params.mirostat_v2_tau) or not cuts
    given, rule = f"params={params!r}", "a row with mirostat has no other filter but a temperature"
    validator.require(alone, given, rule, "Switch the others off.")
