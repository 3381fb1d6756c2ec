"""The suite's border: what a batch, its noise and a sampler's answer must look like. Values are checked here, once."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

from fairdraw._core.failures import AdapterError
from fairdraw.protocols import MAX_SPEC_LEN, PLACEHOLDER_TOKEN_ID, ExplicitNoise, Noise, SeededNoise, SpecDecodeBatch

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["check_batch", "check_noise", "check_output"]

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
}
_NOISE_DTYPES = {"uniforms": ("float64",), "exponentials": ("float32",)}
_OPTIONAL = ("draft_probs", "synthetic_rates")


def _refusal(function: str, given: str, rule: str, remedy: str) -> ValueError:
    return ValueError(f"{function}: {given}, but {rule}. {remedy}")


def _wrong_type(function: str, given: str, rule: str, remedy: str) -> TypeError:
    return TypeError(f"{function}: {given}, but {rule}. {remedy}")


def check_batch(batch: SpecDecodeBatch) -> None:
    """Refuse a batch that no sampler could be asked about.

    Raises:
        TypeError: If a field is not of its type (a tensor, a list of integers, an integer).
        ValueError: If shapes, dtypes, devices, ids, counts or probabilities disagree with `SpecDecodeBatch`.
    """
    _check_types(batch)
    _check_counts(batch)
    _check_shapes(batch)
    for name, tensor in batch.tensors().items():
        _check_dtype("check_batch", name, tensor, _BATCH_DTYPES[name])
        _check_device("check_batch", name, tensor, batch)
    _check_cumulative_sum(batch)
    _check_ids(batch)
    _check_draft_probs(batch)
    _check_parameters(batch)


def _check_tensor(function: str, name: str, value: object, rule: str = "it must be a tensor") -> None:
    import torch

    if not isinstance(value, torch.Tensor):
        raise _wrong_type(function, f"{name}={type(value).__name__}", rule, f"Use torch.as_tensor({name}).")


def _check_types(batch: SpecDecodeBatch) -> None:
    if not isinstance(batch, SpecDecodeBatch):
        given = f"batch={type(batch).__name__}"
        raise _wrong_type("check_batch", given, "it must be a SpecDecodeBatch", "Build one from your tensors.")
    for name in _BATCH_DTYPES:
        value, may_be_none = getattr(batch, name), name in _OPTIONAL
        if not (may_be_none and value is None):
            _check_tensor("check_batch", name, value, f"it must be a tensor{' or None' if may_be_none else ''}")
    counts = batch.num_draft_tokens
    if not isinstance(counts, list) or not all(type(count) is int for count in counts):
        rule = "it must be a list of int"
        raise _wrong_type("check_batch", f"num_draft_tokens={counts!r}", rule, "Use .tolist() on a tensor or array.")
    if type(batch.max_spec_len) is not int:
        given = f"max_spec_len={batch.max_spec_len!r}"
        raise _wrong_type("check_batch", given, "it must be an int", "Use max(num_draft_tokens).")


def _check_counts(batch: SpecDecodeBatch) -> None:
    counts = batch.num_draft_tokens
    if not counts:
        raise _refusal("check_batch", "num_draft_tokens=[]", "there must be a request", "Do not call without requests.")
    if min(counts) < 0:
        given = f"num_draft_tokens={counts}"
        raise _refusal("check_batch", given, "counts must not be negative", "Use 0 for no drafts.")
    if not max(counts) <= batch.max_spec_len <= MAX_SPEC_LEN:
        raise _refusal(
            "check_batch",
            f"max_spec_len={batch.max_spec_len}",
            f"it must lie between max(num_draft_tokens)={max(counts)} and {MAX_SPEC_LEN}",
            "Use max(num_draft_tokens).",
        )


def _check_shapes(batch: SpecDecodeBatch) -> None:
    logits, num_tokens = batch.target_logits, sum(batch.num_draft_tokens)
    if logits.ndim != 2 or logits.shape[0] != num_tokens or logits.shape[1] < 1:
        rule = f"it must be [{num_tokens}, vocab_size] with at least one token in the vocabulary"
        remedy = "Give each draft token a row of logits."
        raise _refusal("check_batch", f"target_logits.shape={list(logits.shape)}", rule, remedy)
    expected = {
        "draft_token_ids": [num_tokens],
        "cu_num_draft_tokens": [batch.batch_size],
        "draft_probs": [num_tokens, batch.vocab_size],
        "target_logits": list(logits.shape),
        "bonus_token_ids": [batch.batch_size, 1],
        "temperature": [batch.batch_size],
        "synthetic_rates": [batch.max_spec_len],
    }
    for name, tensor in batch.tensors().items():
        if list(tensor.shape) != expected[name]:
            rule = f"it must be {expected[name]} for {num_tokens} draft tokens of {batch.batch_size} requests"
            remedy = "Flatten drafts over requests; give each request one bonus token."
            raise _refusal("check_batch", f"{name}.shape={list(tensor.shape)}", rule, remedy)


def _check_dtype(function: str, name: str, tensor: Tensor, wanted: tuple[str, ...]) -> None:
    given = str(tensor.dtype).removeprefix("torch.")
    if given not in wanted:
        raise _refusal(
            function, f"{name}.dtype={given}", f"it must be {' or '.join(wanted)}", f"Use {name}.to(torch.{wanted[0]})."
        )


def _check_device(function: str, name: str, tensor: Tensor, batch: SpecDecodeBatch) -> None:
    if tensor.device != batch.device:
        rule = f"it must be where target_logits is, {batch.device}"
        raise _refusal(function, f"{name}.device={tensor.device}", rule, f"Use {name}.to({str(batch.device)!r}).")


def _check_cumulative_sum(batch: SpecDecodeBatch) -> None:
    import torch

    given = batch.cu_num_draft_tokens
    running = torch.tensor(list(accumulate(batch.num_draft_tokens)), dtype=given.dtype, device=given.device)
    rule = "it must be the inclusive cumulative sum of num_draft_tokens"
    remedy = "Use torch.tensor(num_draft_tokens).cumsum(0, dtype=torch.int32)."
    _check_values("check_batch", "cu_num_draft_tokens", given, given == running, rule, remedy)


def _check_values(function: str, name: str, tensor: Tensor, is_right: Tensor, rule: str, remedy: str) -> None:
    """Refuse the first element of `tensor` for which `is_right` is false."""
    if not bool(is_right.all()):
        place = (~is_right).nonzero()[0].tolist()
        value = tensor[tuple(place)].item()
        raise _refusal(function, f"{name}{place}={value!r}", rule, remedy)


def _check_ids(batch: SpecDecodeBatch) -> None:
    drafts, bonus, size = batch.draft_token_ids, batch.bonus_token_ids, batch.vocab_size
    is_draft = (drafts >= PLACEHOLDER_TOKEN_ID) & (drafts < size)
    rule, remedy = f"ids must lie in [0, {size}) or be {PLACEHOLDER_TOKEN_ID}", "Use -1 for a placeholder draft."
    _check_values("check_batch", "draft_token_ids", drafts, is_draft, rule, remedy)
    is_bonus = (bonus >= 0) & (bonus < size)
    rule, remedy = f"ids must lie in [0, {size})", "Sample one bonus token per request from the target distribution."
    _check_values("check_batch", "bonus_token_ids", bonus, is_bonus, rule, remedy)


def _check_draft_probs(batch: SpecDecodeBatch) -> None:
    import torch

    if batch.draft_probs is None:
        return
    rows = batch.draft_probs
    _check_values("check_batch", "draft_probs", rows, rows >= 0, "probabilities must be at least 0", "Use softmax.")
    sums = rows.sum(-1, dtype=torch.float64)
    # A row of zeros is legal: "no draft distribution here", as for a placeholder draft.
    is_distribution = (sums - 1).abs().le(_ROW_SUM_TOLERANCE) | sums.eq(0)
    rule = f"a row must sum to 1 within {_ROW_SUM_TOLERANCE} (or be all 0)"
    _check_values("check_batch", "draft_probs.sum(-1)", sums, is_distribution, rule, "Use softmax(draft_logits, -1).")


def _check_parameters(batch: SpecDecodeBatch) -> None:
    values = batch.temperature
    rule, remedy = "temperatures must be finite and at least 0", "Use 0 for greedy."
    _check_values("check_batch", "temperature", values, (values >= 0) & values.isfinite(), rule, remedy)
    if batch.synthetic_rates is not None:
        rates = batch.synthetic_rates
        rule, remedy = "rates must lie in [0, 1]", "Use synthetic_rates.clamp(0, 1)."
        _check_values("check_batch", "synthetic_rates", rates, (rates >= 0) & (rates <= 1), rule, remedy)


def check_noise(batch: SpecDecodeBatch, noise: Noise) -> None:
    """Refuse noise that does not belong to `batch`.

    Raises:
        TypeError: If it is neither explicit nor seeded.
        ValueError: If a shape, dtype or device is wrong, a uniform lies outside [0, 1), an exponential is not positive,
            or a request that the batch does not have is given a seed.
    """
    if isinstance(noise, SeededNoise):
        _check_request_seeds(batch, noise)
    elif isinstance(noise, ExplicitNoise):
        _check_numbers(batch, noise)
    else:
        given, rule = f"noise={type(noise).__name__}", "it must be ExplicitNoise or SeededNoise"
        raise _wrong_type("check_noise", given, rule, "Use SeededNoise(seed).")


def _check_request_seeds(batch: SpecDecodeBatch, noise: SeededNoise) -> None:
    strangers = [request for request in noise.request_seeds if request not in range(batch.batch_size)]
    if strangers:
        rule = f"requests must lie in [0, {batch.batch_size})"
        raise _refusal(
            "check_noise", f"request_seeds has request {strangers[0]}", rule, "Number requests by their rows."
        )


def _check_numbers(batch: SpecDecodeBatch, noise: ExplicitNoise) -> None:
    expected = {"uniforms": [batch.num_tokens], "exponentials": [batch.batch_size, batch.vocab_size]}
    meaning = {"uniforms": "one per draft token", "exponentials": "one row per request"}
    for name, tensor in (("uniforms", noise.uniforms), ("exponentials", noise.exponentials)):
        _check_tensor("check_noise", name, tensor)
        if list(tensor.shape) != expected[name]:
            rule = f"it must be {expected[name]}, {meaning[name]}"
            raise _refusal("check_noise", f"{name}.shape={list(tensor.shape)}", rule, "Draw the noise for this batch.")
        _check_dtype("check_noise", name, tensor, _NOISE_DTYPES[name])
        _check_device("check_noise", name, tensor, batch)
    values = noise.uniforms
    rule, remedy = "uniforms must lie in [0, 1)", "Use torch.rand."
    _check_values("check_noise", "uniforms", values, (values >= 0) & (values < 1), rule, remedy)
    races = noise.exponentials
    rule, remedy = "exponentials must be positive", "Use Tensor.exponential_()."
    _check_values("check_noise", "exponentials", races, races > 0, rule, remedy)


def check_output(
    batch: SpecDecodeBatch, output: object, sampler: str
) -> Tensor:  # [batch_size, max_spec_len + 1] int32
    """The sampler's answer, if it is one.

    Raises:
        AdapterError: If it is not an int32 tensor of shape `[batch_size, max_spec_len + 1]` on the batch's device.
    """
    import torch

    shape = [batch.batch_size, batch.max_spec_len + 1]
    returned = f"verify: sampler={sampler} returned"
    if not isinstance(output, torch.Tensor):
        raise AdapterError(
            f"{returned} {type(output).__name__}, but it must return a tensor. "
            f"Return output_token_ids as int32 {shape}."
        )
    if list(output.shape) != shape:
        raise AdapterError(
            f"{returned} shape {list(output.shape)}, but it must be {shape} ([batch_size, max_spec_len + 1]). "
            f"Fill the end of short rows with {PLACEHOLDER_TOKEN_ID}."
        )
    if output.dtype != torch.int32:
        raise AdapterError(f"{returned} {output.dtype}, but it must be torch.int32. Return output.to(torch.int32).")
    if output.device != batch.device:
        raise AdapterError(
            f"{returned} a tensor on {output.device}, but the batch is on {batch.device}. "
            "Declare the sampler's device, or move the result."
        )
    return output
