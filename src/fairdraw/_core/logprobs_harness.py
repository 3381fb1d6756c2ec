"""How the suite calls a function of the log-probabilities contract: with batch and answer checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fairdraw._core.failures import AdapterError, calling
from fairdraw._core.harness import seeded
from fairdraw._core.sampling_harness import check_sampling_batch, check_sampling_noise
from fairdraw._core.validation import Validator, check_answer
from fairdraw.protocols import ALL_LOGPROBS, NOT_EMITTED, STAGES, Capability, LogprobsBatch, LogprobsResult

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from fairdraw.protocols import DrawingLogprobsSampler, LogprobsSampler, SamplingBatch, SamplingNoise

_DTYPES = {
    "logits": ("float32", "bfloat16", "float16"),
    "processed_logits": ("float32",),
    "token_ids": ("int64", "int32"),
}


@dataclass(frozen=True)
class Returned:
    """The result of one call; copies."""

    token_ids: NDArray[np.int64]  # [num_rows, 1 + N] int64
    logprobs: NDArray[np.float32]  # [num_rows, 1 + N] float32
    ranks: NDArray[np.int64] | None  # [num_rows] int64


def call_logprobs(sampler: LogprobsSampler, batch: LogprobsBatch) -> Returned:
    """Call `sampler.logprobs` once. The batch must already be on the sampler's device.

    Raises:
        ValueError, TypeError: If the batch breaks the contract (a fault of the caller).
        AdapterError: If the answer is not of the contract's type (a fault of the adapter).
        Exception: Whatever the sampler raises, marked as its own (`fairdraw._core.failures.raised_by`).
    """
    check_logprobs_batch(batch)
    with calling(sampler):
        answer, name = sampler.logprobs(batch), sampler.name
    has_ranks = Capability.TOKEN_RANKS in sampler.capabilities
    sizes = int(batch.logits.shape[0]), batch.most_logprobs
    return _copied(sampler, "logprobs", name, answer, *sizes, batch.device, has_ranks)


def call_draw(sampler: DrawingLogprobsSampler, batch: SamplingBatch, noise: SamplingNoise) -> Returned:
    """Call `sampler.draw` once; everything else is as in `call_logprobs`.

    Randomness:
        With `SeededNoise`, the global generators (torch's, NumPy's, Python's) are seeded with `noise.seed` just before
        the call. `seeded` says when their states are put back.
    """
    check_sampling_batch(batch)
    check_sampling_noise(batch, noise)
    with seeded(noise, batch.device):
        with calling(sampler):
            answer, name = sampler.draw(batch, noise), sampler.name
        return _copied(sampler, "draw", name, answer, batch.batch_size, batch.vocab_size, batch.device, False)


def _copied(
    sampler: object,
    method: str,
    name: str,
    answer: object,
    num_rows: int,
    number: int,
    device: torch.device,
    has_ranks: bool,
) -> Returned:
    if not isinstance(answer, LogprobsResult):
        raise AdapterError(
            f"{method}: sampler={name} returned {type(answer).__name__}, but it must return a LogprobsResult. "
            "Return LogprobsResult(token_ids, logprobs, ranks)."
        )

    def checked(field: str, value: object, shape: list[int], dtypes: tuple[str, ...]) -> Any:  # Any: a NumPy array
        hint = "([num_rows, 1 + N])." if len(shape) == 2 else "([num_rows])."
        tensor = check_answer(method, name, field, value, shape, dtypes, device, hint)
        with calling(sampler):  # the error of an asynchronous kernel surfaces where its result is waited for
            return tensor.detach().cpu().numpy().copy()

    integers, wide = ("int64", "int32"), [num_rows, 1 + number]
    return Returned(
        checked("token_ids", answer.token_ids, wide, integers).astype(np.int64),
        checked("logprobs", answer.logprobs, wide, ("float32",)),
        checked("ranks", answer.ranks, [num_rows], integers).astype(np.int64) if has_ranks else None,
    )


def check_logprobs_batch(batch: LogprobsBatch) -> None:
    """Refuse a batch that does not follow the contract.

    Raises:
        TypeError: If it is not a `LogprobsBatch`.
        ValueError: If shapes, dtypes, devices, ids, counts or the stage disagree with `LogprobsBatch`.
    """
    validator = Validator("check_logprobs_batch")
    given, rule = f"batch={type(batch).__name__}", "it must be a LogprobsBatch"
    validator.require(isinstance(batch, LogprobsBatch), given, rule, "Build one.", TypeError)
    known = ", ".join(STAGES)
    validator.require(batch.stage in STAGES, f"stage={batch.stage!r}", f"it must be one of: {known}", "Name one.")
    shape = list(batch.logits.shape)
    rule = f"it must be [{sum(batch.num_rows)}, vocab_size] with at least one token in the vocabulary"
    fits = len(shape) == 2 and shape[0] == sum(batch.num_rows) and shape[1] >= 1
    validator.require(fits, f"logits.shape={shape}", rule, "num_rows must add up to the rows of logits.")
    for name, tensor in batch.tensors().items():
        validator.dtype(name, tensor, _DTYPES[name])
        validator.shape(name, tensor, shape[: tensor.ndim], ", as of logits", "Give each row one token.")
        validator.device(name, tensor, batch.device, "logits")
    ids, size = batch.token_ids, batch.vocab_size
    rule, remedy = f"ids must lie in [0, {size}) or be {NOT_EMITTED}", "Use -1 for a row that emits none."
    validator.values("token_ids", ids, (ids >= NOT_EMITTED) & (ids < size), rule, remedy)
    _check_numbers(validator, batch)


def _check_numbers(validator: Validator, batch: LogprobsBatch) -> None:
    given, numbers = f"num_logprobs={batch.num_logprobs}", batch.num_logprobs
    rule = f"it must have one entry for each of {batch.batch_size} requests"
    validator.require(len(numbers) == batch.batch_size, given, rule, "Use None for none.")
    rule = f"each must be None, {ALL_LOGPROBS} or in [0, {batch.vocab_size}]"
    is_right = all(one is None or ALL_LOGPROBS <= one <= batch.vocab_size for one in numbers)
    validator.require(is_right, given, rule, "Use -1 for the whole vocabulary.")
    asks = any(one is not None for one in numbers)
    validator.require(asks, given, "one request must ask", "Do not call if nobody asks.")
