"""Validation of what passes between the suite and a sampler: batches, noise and outputs. Values are checked once, here.

`Validator` refuses in the name of a function; both contracts of single calls (rejection and sampling) use it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fairdraw._core.failures import AdapterError
from fairdraw.protocols import (
    MAX_SPEC_LEN,
    PLACEHOLDER_TOKEN_ID,
    Drafted,
    DraftStep,
    ExplicitNoise,
    Noise,
    ProposedDrafts,
    SeededNoise,
    SpecDecodeBatch,
)

if TYPE_CHECKING:
    import torch
    from torch import Tensor

# Rounding a row to bfloat16 moves its sum by up to 2**-9; rounding 151936 tokens to multiples of 2**-24, as float16
# does with small numbers, by up to 151936 * 2**-25 = 0.0045. A forgotten normalisation moves it by far more.
_ROW_SUM_TOLERANCE = 2.0**-7

_BATCH_DTYPES = {
    "draft_token_ids": ("int32",),
    "cu_num_draft_tokens": ("int32",),
    "draft_probs": ("float32",),
    "target_logits": ("float32", "bfloat16", "float16"),
    "bonus_token_ids": ("int32",),
    "temperature": ("float32",),
    "synthetic_rates": ("float32",),
    "positions": ("int64",),
    "bonus_logits": ("float32",),
}
_OPTIONAL = ("draft_probs", "synthetic_rates", "positions", "bonus_logits")


@dataclass(frozen=True)
class Validator:
    """Refusals of one function: `function: name=value, but rule. Remedy.`"""

    function: str

    def require(
        self, holds: bool, given: str, rule: str, remedy: str, kind: type[ValueError | TypeError] = ValueError
    ) -> None:
        """Raise `kind` unless `holds`."""
        if not holds:
            raise kind(f"{self.function}: {given}, but {rule}. {remedy}")

    def tensor(self, name: str, value: object, or_none: str = "") -> None:
        import torch

        given, remedy = f"{name}={type(value).__name__}", f"Use torch.as_tensor({name})."
        self.require(isinstance(value, torch.Tensor), given, f"it must be a tensor{or_none}", remedy, TypeError)

    def shape(self, name: str, tensor: Tensor, wanted: list[int], why: str, remedy: str) -> None:
        given = list(tensor.shape)
        self.require(given == wanted, f"{name}.shape={given}", f"it must be {wanted}{why}", remedy)

    def dtype(self, name: str, tensor: Tensor, wanted: tuple[str, ...]) -> None:
        given, rule = str(tensor.dtype).removeprefix("torch."), f"it must be {' or '.join(wanted)}"
        self.require(given in wanted, f"{name}.dtype={given}", rule, f"Use {name}.to(torch.{wanted[0]}).")

    def device(self, name: str, tensor: Tensor, device: torch.device, beside: str) -> None:
        rule, remedy = f"it must be where {beside} is, {device}", f"Use {name}.to({str(device)!r})."
        self.require(tensor.device == device, f"{name}.device={tensor.device}", rule, remedy)

    def values(self, name: str, tensor: Tensor, is_right: Tensor, rule: str, remedy: str) -> None:
        """Refuse the first element of `tensor` for which `is_right` is false."""
        if not bool(is_right.all()):
            place = (~is_right).nonzero()[0].tolist()
            self.require(False, f"{name}{place}={tensor[tuple(place)].item()!r}", rule, remedy)

    def request_seeds(self, noise: SeededNoise, batch_size: int) -> None:
        unknown = next((request for request in noise.request_seeds if request not in range(batch_size)), None)
        rule = f"requests must lie in [0, {batch_size})"
        remedy = "Number requests by their rows."
        self.require(unknown is None, f"request_seeds has request {unknown}", rule, remedy)


def check_batch(batch: SpecDecodeBatch) -> None:
    """Refuse a batch that does not follow the contract.

    Raises:
        TypeError: If a field is not of its type (a tensor, a list of integers, an integer).
        ValueError: If shapes, dtypes, devices, ids, counts or probabilities disagree with `SpecDecodeBatch`.
    """
    validator = Validator("check_batch")
    _check_types(validator, batch)
    _check_counts(validator, batch)
    _check_shapes(validator, batch)
    for name, tensor in batch.tensors().items():
        validator.dtype(name, tensor, _BATCH_DTYPES[name])
        validator.device(name, tensor, batch.device, "target_logits")
    _check_tokens(validator, batch)
    _check_draft_probs(validator, batch)
    _check_parameters(validator, batch)


def _check_types(validator: Validator, batch: SpecDecodeBatch) -> None:
    given, rule = f"batch={type(batch).__name__}", "it must be a SpecDecodeBatch"
    validator.require(isinstance(batch, SpecDecodeBatch), given, rule, "Build one from your tensors.", TypeError)
    for name in _BATCH_DTYPES:
        value, may_be_none = getattr(batch, name), name in _OPTIONAL
        if not (may_be_none and value is None):
            validator.tensor(name, value, " or None" if may_be_none else "")
    counts, remedy = batch.num_draft_tokens, "Use .tolist() on a tensor or array."
    are_ints = isinstance(counts, list) and {*map(type, counts)} <= {int}
    given = "" if are_ints else f"num_draft_tokens={counts!r}"  # thousands of numbers: written only if it is read
    validator.require(are_ints, given, "it must be a list of int", remedy, TypeError)
    given, is_int = f"max_spec_len={batch.max_spec_len!r}", type(batch.max_spec_len) is int
    validator.require(is_int, given, "it must be an int", "Use max(num_draft_tokens).", TypeError)


def _check_counts(validator: Validator, batch: SpecDecodeBatch) -> None:
    counts = batch.num_draft_tokens
    given = "" if counts and min(counts) >= 0 else f"num_draft_tokens={counts}"
    validator.require(bool(counts), given, "there must be a request", "Do not call without requests.")
    validator.require(min(counts) >= 0, given, "counts must not be negative", "Use 0 for no drafts.")
    rule = f"it must lie between max(num_draft_tokens)={max(counts)} and {MAX_SPEC_LEN}"
    fits = max(counts) <= batch.max_spec_len <= MAX_SPEC_LEN
    validator.require(fits, f"max_spec_len={batch.max_spec_len}", rule, "Use max(num_draft_tokens).")


def _check_shapes(validator: Validator, batch: SpecDecodeBatch) -> None:
    logits, num_tokens = batch.target_logits, sum(batch.num_draft_tokens)
    fits = logits.ndim == 2 and logits.shape[0] == num_tokens and logits.shape[1] >= 1
    rule = f"it must be [{num_tokens}, vocab_size] with at least one token in the vocabulary"
    remedy = "Give each draft token a row of logits."
    validator.require(fits, f"target_logits.shape={list(logits.shape)}", rule, remedy)
    expected = {
        "draft_token_ids": [num_tokens],
        "cu_num_draft_tokens": [batch.batch_size],
        "draft_probs": [num_tokens, batch.vocab_size],
        "target_logits": list(logits.shape),
        "bonus_token_ids": [batch.batch_size, 1],
        "temperature": [batch.batch_size],
        "synthetic_rates": [batch.max_spec_len],
        "positions": [batch.batch_size],
        "bonus_logits": [batch.batch_size, batch.vocab_size],
    }
    why = f" for {num_tokens} draft tokens of {batch.batch_size} requests"
    remedy = "Flatten drafts over requests; give each request one bonus token."
    for name, tensor in batch.tensors().items():
        validator.shape(name, tensor, expected[name], why, remedy)


def _check_tokens(validator: Validator, batch: SpecDecodeBatch) -> None:
    import numpy as np
    import torch

    given = batch.cu_num_draft_tokens
    counts = np.fromiter(batch.num_draft_tokens, np.int64, batch.batch_size)  # of a long list the fastest
    running = torch.from_numpy(counts.cumsum()).to(given)
    rule = "it must be the inclusive cumulative sum of num_draft_tokens"
    remedy = "Use torch.tensor(num_draft_tokens).cumsum(0, dtype=torch.int32)."
    validator.values("cu_num_draft_tokens", given, given == running, rule, remedy)
    drafts, bonus, size = batch.draft_token_ids, batch.bonus_token_ids, batch.vocab_size
    is_draft = (drafts >= PLACEHOLDER_TOKEN_ID) & (drafts < size)
    rule, remedy = f"ids must lie in [0, {size}) or be {PLACEHOLDER_TOKEN_ID}", "Use -1 for a placeholder draft."
    validator.values("draft_token_ids", drafts, is_draft, rule, remedy)
    rule, remedy = f"ids must lie in [0, {size})", "Sample one bonus token per request from the target distribution."
    validator.values("bonus_token_ids", bonus, (bonus >= 0) & (bonus < size), rule, remedy)


def _check_draft_probs(validator: Validator, batch: SpecDecodeBatch) -> None:
    import torch

    if batch.draft_probs is None:
        return
    rows = batch.draft_probs
    if _are_clearly_distributions(rows):
        return
    validator.values("draft_probs", rows, rows >= 0, "probabilities must be at least 0", "Use softmax.")
    sums = rows.sum(-1, dtype=torch.float64)
    # A row of zeros is legal: "no draft distribution here", as for a placeholder draft.
    is_right = (sums - 1).abs().le(_ROW_SUM_TOLERANCE) | sums.eq(0)
    rule = f"a row must sum to 1 within {_ROW_SUM_TOLERANCE} (or be all 0)"
    validator.values("draft_probs.sum(-1)", sums, is_right, rule, "Use softmax(draft_logits, -1).")


def _are_clearly_distributions(rows: Tensor) -> bool:  # [num_tokens, vocab_size] float32
    """By sums in float32, which are a third of the work; false if they leave a doubt, or a row is 0."""
    if not rows.numel():
        return False
    return bool((rows.amin() >= 0) & ((rows.sum(-1) - 1).abs() <= _ROW_SUM_TOLERANCE / 2).all())


def _check_parameters(validator: Validator, batch: SpecDecodeBatch) -> None:
    values, rates = batch.temperature, batch.synthetic_rates
    rule, remedy = "temperatures must be finite and at least 0", "Use 0 for greedy."
    validator.values("temperature", values, (values >= 0) & values.isfinite(), rule, remedy)
    if rates is not None:
        rule, remedy = "rates must lie in [0, 1]", "Use synthetic_rates.clamp(0, 1)."
        validator.values("synthetic_rates", rates, (rates >= 0) & (rates <= 1), rule, remedy)


def check_noise(batch: SpecDecodeBatch, noise: Noise) -> None:
    """Refuse noise that does not belong to `batch`.

    Raises:
        TypeError: If it is neither explicit nor seeded.
        ValueError: If a shape, dtype or device is wrong, a uniform lies outside [0, 1), an exponential is not positive,
            or a request that the batch does not have is given a seed.
    """
    validator = Validator("check_noise")
    if isinstance(noise, SeededNoise):
        validator.request_seeds(noise, batch.batch_size)
        return
    given, rule = f"noise={type(noise).__name__}", "it must be ExplicitNoise or SeededNoise"
    validator.require(isinstance(noise, ExplicitNoise), given, rule, "Use SeededNoise(seed).", TypeError)
    uniforms, exponentials = noise.uniforms, noise.exponentials
    for name, tensor, shape, why, dtype in (
        ("uniforms", uniforms, [batch.num_tokens], ", one per draft token", "float64"),
        ("exponentials", exponentials, [batch.batch_size, batch.vocab_size], ", one row per request", "float32"),
    ):
        validator.tensor(name, tensor)
        validator.shape(name, tensor, shape, why, "Draw the noise for this batch.")
        validator.dtype(name, tensor, (dtype,))
        validator.device(name, tensor, batch.device, "target_logits")
    is_right = (uniforms >= 0) & (uniforms < 1)
    validator.values("uniforms", uniforms, is_right, "uniforms must lie in [0, 1)", "Use torch.rand.")
    rule, remedy = "exponentials must be positive", "Use Tensor.exponential_()."
    validator.values("exponentials", exponentials, exponentials > 0, rule, remedy)


def check_output(
    batch: SpecDecodeBatch, output: object, sampler: str
) -> Tensor:  # [batch_size, max_spec_len + 1] int32
    """The sampler's output, if it is one.

    Raises:
        AdapterError: If it is not an int32 tensor of shape `[batch_size, max_spec_len + 1]` on the batch's device.
    """
    shape = [batch.batch_size, batch.max_spec_len + 1]
    hint = f"([batch_size, max_spec_len + 1]). Fill the end of short rows with {PLACEHOLDER_TOKEN_ID}."
    return check_answer("verify", sampler, "output_token_ids", output, shape, ("int32",), batch.device, hint)


def check_proposal(step: DraftStep, answer: object, sampler: str) -> Drafted:
    """What a drafter returned, if it is a token of the vocabulary and a distribution (or none) per request.

    Raises:
        AdapterError: If it is not.
    """
    import torch

    returned = f"propose: sampler={sampler} returned"
    if not isinstance(answer, Drafted):
        raise AdapterError(
            f"{returned} {type(answer).__name__}, but it must return a Drafted. Return Drafted(token_ids, draft_probs)."
        )
    batch_size, vocab_size = step.batch_size, step.vocab_size
    hint = "([batch_size]). Return one token per request."
    integers, device = ("int32", "int64"), step.device
    ids = check_answer("propose", sampler, "token_ids", answer.token_ids, [batch_size], integers, device, hint)
    if bool(((ids < 0) | (ids >= vocab_size)).any()):
        raise AdapterError(f"{returned} ids outside the vocabulary, but they must lie in [0, {vocab_size}).")
    if answer.draft_probs is not None:
        shape, hint = [batch_size, vocab_size], "([batch_size, vocab_size])."
        probs = check_answer("propose", sampler, "draft_probs", answer.draft_probs, shape, ("float32",), device, hint)
        sums = probs.sum(dim=1, dtype=torch.float64)
        if not bool(((probs >= 0).all(dim=1) & ((sums - 1).abs() <= _ROW_SUM_TOLERANCE)).all()):
            raise AdapterError(f"{returned} draft_probs that are no distributions. Rows must be positive and sum to 1.")
    return answer


def check_trim(drafts: ProposedDrafts, answer: object, sampler: str) -> Tensor:  # [batch_size] int32 | int64
    """What `trim` returned, if it is a number of each request's drafts.

    Raises:
        AdapterError: If it is not.
    """
    import torch

    shape, integers, hint = [drafts.batch_size], ("int32", "int64"), "([batch_size])."
    kept = check_answer("trim", sampler, "num_kept", answer, shape, integers, drafts.device, hint)
    if bool(((kept < 0) | (kept > torch.tensor(drafts.num_draft_tokens, device=kept.device))).any()):
        raise AdapterError(
            f"trim: sampler={sampler} returned {kept.tolist()[:8]}, but each must lie between 0 and the request's "
            "number of drafts. Count the drafts that are verified."
        )
    return kept


def check_answer(
    method: str,
    sampler: str,
    name: str,
    output: object,
    shape: list[int],
    dtypes: tuple[str, ...],
    device: torch.device,
    shape_hint: str,
) -> Tensor:
    """`output`, which `method` of a sampler returned as `name`, if it is a tensor of this shape, dtype and device.

    Raises:
        AdapterError: If it is not.
    """
    import torch

    returned, wanted = f"{method}: sampler={sampler} returned", " or ".join(f"torch.{one}" for one in dtypes)
    if not isinstance(output, torch.Tensor):
        raise AdapterError(
            f"{returned} {type(output).__name__}, but it must return a tensor. Return {name} as {dtypes[0]} {shape}."
        )
    if list(output.shape) != shape:
        raise AdapterError(f"{returned} {name} of shape {list(output.shape)}, but it must be {shape} {shape_hint}")
    if str(output.dtype).removeprefix("torch.") not in dtypes:
        raise AdapterError(f"{returned} {output.dtype}, but it must be {wanted}. Return {name}.to(torch.{dtypes[0]}).")
    if output.device != device:
        raise AdapterError(
            f"{returned} a tensor on {output.device}, but the batch is on {device}. "
            "Declare the sampler's device, or move the result."
        )
    return output
