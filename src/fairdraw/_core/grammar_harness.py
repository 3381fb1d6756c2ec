"""How the suite calls a masker: the same way everywhere, with batch and answer checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fairdraw._core.failures import calling
from fairdraw._core.harness import seeded
from fairdraw._core.validation import Validator, check_answer
from fairdraw.protocols import BitmaskBatch, GrammarBatch, GrammarMasker, SeededNoise

if TYPE_CHECKING:
    from numpy.typing import NDArray

_FLOATS = ("float32", "bfloat16", "float16")


def mask_rows(masker: GrammarMasker, batch: BitmaskBatch) -> torch.Tensor:  # [num_rows, vocab_size] as the logits
    """Call `apply_bitmask` once; a contiguous copy of the answer on the CPU.

    Raises:
        ValueError, TypeError: If the batch breaks the contract (a fault of the caller).
        AdapterError: If the answer is not of the contract's type (a fault of the adapter).
        Exception: Whatever the masker raises, marked as its own.
    """
    check_bitmask_batch(batch)
    with calling(masker):
        answer, name = masker.apply_bitmask(batch), masker.name
    return _copied(masker, "apply_bitmask", name, answer, batch.logits)


def mask_step(masker: Any, batch: GrammarBatch) -> torch.Tensor:  # Any: with `mask_drafts`  # [num_rows, vocab_size]
    """Call `mask_drafts` once; everything else is as in `mask_rows`."""
    with calling(masker):
        answer, name = masker.mask_drafts(batch), masker.name
    return _copied(masker, "mask_drafts", name, answer, batch.logits)


def emit_step(
    masker: Any,  # Any: with `emit`
    batch: GrammarBatch,
    noise: SeededNoise,
) -> NDArray[np.int64]:  # [batch_size, max_spec_len + 1] int64
    """Call `emit` once; the tokens of each request, -1 behind the last."""
    with seeded(noise, batch.device), calling(masker):
        answer, name = masker.emit(batch, noise), masker.name
    shape, hint = [batch.batch_size, batch.max_spec_len + 1], "([batch_size, max_spec_len + 1])."
    tokens = check_answer("emit", name, "token_ids", answer, shape, ("int32", "int64"), batch.device, hint)
    return tokens.cpu().numpy().astype(np.int64)


def _copied(
    masker: Any,  # Any: as above
    method: str,
    name: str,
    answer: object,
    logits: torch.Tensor,  # [num_rows, vocab_size]
) -> torch.Tensor:  # [num_rows, vocab_size] as the logits
    dtype = str(logits.dtype).removeprefix("torch.")
    hint = "([num_rows, vocab_size]). Return the masked logits."
    checked = check_answer(method, name, "logits", answer, list(logits.shape), (dtype,), logits.device, hint)
    with calling(masker):  # the error of an asynchronous kernel surfaces where its result is waited for
        return checked.cpu().clone(memory_format=torch.contiguous_format)


def check_bitmask_batch(batch: BitmaskBatch) -> None:
    """Refuse a batch that does not follow the contract.

    Raises:
        TypeError: If it is not a `BitmaskBatch`.
        ValueError: If shapes, dtypes or devices disagree, or an index is no row.
    """
    validator = Validator("check_bitmask_batch")
    given, rule = f"batch={type(batch).__name__}", "it must be a BitmaskBatch"
    validator.require(isinstance(batch, BitmaskBatch), given, rule, "Build one.", TypeError)
    for name, tensor, dimensions, dtypes in (
        ("logits", batch.logits, 2, _FLOATS),
        ("bitmask", batch.bitmask, 2, ("int32",)),
        ("rows", batch.rows, 1, ("int64",)),
    ):
        rule, remedy = f"it must have {dimensions} dimensions", "Use view."
        validator.require(tensor.ndim == dimensions, f"{name}.shape={list(tensor.shape)}", rule, remedy)
        validator.dtype(name, tensor, dtypes)
        validator.device(name, tensor, batch.device, "logits")
    most = min(batch.batch_size, len(batch.bitmask))
    is_right = (batch.rows >= 0) & (batch.rows < most)
    validator.values("rows", batch.rows, is_right, f"it must lie in [0, {most})", "Give each row of logits a bitmask.")


def bits_of(logits: torch.Tensor) -> NDArray[np.integer]:  # [num_rows, vocab_size] int32 | int16
    """The bits of floats, so that -0.0 differs from 0.0; NaN equals NaN, whatever its payload is."""
    as_integer = torch.int32 if logits.element_size() == torch.int32.itemsize else torch.int16
    bits = logits.contiguous().view(as_integer)
    return np.asarray(bits.masked_fill(logits.isnan(), -1).numpy())
