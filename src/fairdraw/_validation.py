"""The suite's border: what a batch, a noise object and a sampler's answer must look like. Values are checked here, once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairdraw.failures import AdapterError
from fairdraw.protocols import MAX_SPEC_LEN, PLACEHOLDER_TOKEN_ID, ExplicitNoise, SpecDecodeBatch

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["check_batch", "check_noise", "check_output"]

# Rows rounded to bfloat16 miss 1 by up to 2**-9 relative; a forgotten normalisation misses it by far more.
_ROW_SUM_TOLERANCE = 0.02


def _refuse(function: str, what: str, rule: str, remedy: str) -> ValueError:
    return ValueError(f"{function}: {what}, but {rule}. {remedy}")


def check_batch(batch: SpecDecodeBatch) -> None:
    """Refuse a batch that no sampler could be asked about.

    Raises:
        ValueError: If shapes, dtypes, devices, ids, counts or probabilities disagree with `SpecDecodeBatch`.
    """
    _check_counts(batch)
    _check_shapes(batch)
    _check_dtypes(batch)
    _check_devices(batch)
    _check_ids(batch)
    _check_draft_probs(batch)
    _check_parameters(batch)


def _check_counts(batch: SpecDecodeBatch) -> None:
    counts = batch.num_draft_tokens
    if any(count < 0 for count in counts):
        raise _refuse("check_batch", f"num_draft_tokens={counts}", "counts must not be negative", "Use 0 for no drafts.")
    running, total = [], 0
    for count in counts:
        total += count
        running.append(total)
    given = batch.cu_num_draft_tokens.tolist()
    if given != running:
        raise _refuse(
            "check_batch",
            f"cu_num_draft_tokens={given}",
            f"it must be the inclusive cumulative sum of num_draft_tokens={counts}",
            f"Use {running}.",
        )
    longest = max(counts, default=0)
    if not longest <= batch.max_spec_len <= MAX_SPEC_LEN:
        raise _refuse(
            "check_batch",
            f"max_spec_len={batch.max_spec_len}",
            f"it must lie between max(num_draft_tokens)={longest} and {MAX_SPEC_LEN}",
            "Use max(num_draft_tokens).",
        )


def _check_shapes(batch: SpecDecodeBatch) -> None:
    num_tokens, vocab_size = sum(batch.num_draft_tokens), int(batch.target_logits.shape[-1])
    expected = {
        "draft_token_ids": (num_tokens,),
        "draft_probs": (num_tokens, vocab_size),
        "target_logits": (num_tokens, vocab_size),
        "bonus_token_ids": (batch.batch_size, 1),
        "temperature": (batch.batch_size,),
        "synthetic_rates": (batch.max_spec_len,),
    }
    for name, tensor in batch.tensors().items():
        if name in expected and tuple(tensor.shape) != expected[name]:
            raise _refuse(
                "check_batch",
                f"{name}.shape={list(tensor.shape)}",
                f"it must be {list(expected[name])}",
                "Flatten drafts over requests; one bonus token per request.",
            )
    if vocab_size < 1:
        raise _refuse("check_batch", "vocab_size=0", "a law needs at least one token", "Give target_logits a width.")


def _check_dtypes(batch: SpecDecodeBatch) -> None:
    allowed = {
        "draft_token_ids": ("int32",),
        "cu_num_draft_tokens": ("int32",),
        "draft_probs": ("float32",),
        "target_logits": ("float32", "bfloat16", "float16"),
        "bonus_token_ids": ("int32",),
        "temperature": ("float32",),
        "synthetic_rates": ("float32",),
    }
    for name, tensor in batch.tensors().items():
        given = str(tensor.dtype).removeprefix("torch.")
        if given not in allowed[name]:
            wanted = " or ".join(allowed[name])
            raise _refuse("check_batch", f"{name}.dtype={given}", f"it must be {wanted}", f"Use .to(torch.{allowed[name][0]}).")


def _check_devices(batch: SpecDecodeBatch) -> None:
    for name, tensor in batch.tensors().items():
        if tensor.device != batch.device:
            raise _refuse(
                "check_batch",
                f"{name}.device={tensor.device}",
                f"it must be where target_logits is, {batch.device}",
                f"Use batch.to({str(batch.device)!r}).",
            )


def _check_ids(batch: SpecDecodeBatch) -> None:
    drafts, bonus = batch.draft_token_ids.cpu(), batch.bonus_token_ids.cpu()
    bad_drafts = drafts[(drafts < PLACEHOLDER_TOKEN_ID) | (drafts >= batch.vocab_size)]
    if bad_drafts.numel():
        raise _refuse(
            "check_batch",
            f"draft_token_ids={bad_drafts.tolist()[:4]}",
            f"ids must lie in [0, {batch.vocab_size}) or be {PLACEHOLDER_TOKEN_ID}",
            f"Use {PLACEHOLDER_TOKEN_ID} for a withdrawn draft.",
        )
    bad_bonus = bonus[(bonus < 0) | (bonus >= batch.vocab_size)]
    if bad_bonus.numel():
        raise _refuse(
            "check_batch",
            f"bonus_token_ids={bad_bonus.tolist()[:4]}",
            f"ids must lie in [0, {batch.vocab_size})",
            "Sample one bonus token per request from the target law.",
        )


def _check_draft_probs(batch: SpecDecodeBatch) -> None:
    if batch.draft_probs is None:
        return
    rows = batch.draft_probs.double().cpu()
    if bool((rows < 0).any()) or bool(rows.isnan().any()):
        raise _refuse(
            "check_batch", f"draft_probs min={rows.min().item()}", "probabilities must be at least 0", "Use softmax."
        )
    sums = rows.sum(-1)
    # A row of zeros is legal: "no draft law here", as for a withdrawn draft.
    bad = (sums - 1).abs().gt(_ROW_SUM_TOLERANCE) & sums.ne(0)
    if bool(bad.any()):
        row = int(bad.nonzero()[0])
        raise _refuse(
            "check_batch",
            f"draft_probs[{row}].sum()={sums[row].item():.6g}",
            "a row must sum to 1 (or be all 0)",
            "Use softmax(draft_logits, -1).",
        )


def _check_parameters(batch: SpecDecodeBatch) -> None:
    temperature = batch.temperature.cpu()
    if not bool((temperature >= 0).all()):
        raise _refuse(
            "check_batch", f"temperature={temperature.tolist()}", "temperatures must be at least 0", "Use 0 for greedy."
        )
    if batch.synthetic_rates is not None:
        rates = batch.synthetic_rates.cpu()
        if not bool(((rates >= 0) & (rates <= 1)).all()):
            raise _refuse("check_batch", f"synthetic_rates={rates.tolist()}", "rates must lie in [0, 1]", "Clamp them.")


def check_noise(batch: SpecDecodeBatch, noise: ExplicitNoise) -> None:
    """Refuse explicit noise that does not belong to `batch`.

    Raises:
        ValueError: If a shape or dtype is wrong, a uniform lies outside [0, 1), or an exponential is not positive.
    """
    import torch

    shape = (batch.batch_size, batch.vocab_size)
    if tuple(noise.uniforms.shape) != (batch.num_tokens,) or noise.uniforms.dtype != torch.float64:
        given = f"{noise.uniforms.dtype} {list(noise.uniforms.shape)}"
        raise _refuse("check_noise", f"uniforms={given}", f"they must be float64 [{batch.num_tokens}]", "One per draft token.")
    if tuple(noise.exponentials.shape) != shape or noise.exponentials.dtype != torch.float32:
        given = f"{noise.exponentials.dtype} {list(noise.exponentials.shape)}"
        raise _refuse("check_noise", f"exponentials={given}", f"they must be float32 {list(shape)}", "One row per request.")
    if not bool(((noise.uniforms >= 0) & (noise.uniforms < 1)).all()):
        raise _refuse("check_noise", "uniforms outside [0, 1)", "u = 1 never occurs in torch.rand", "Use values below 1.")
    if not bool((noise.exponentials > 0).all()):
        raise _refuse("check_noise", "exponentials <= 0 or NaN", "they must be positive", "Use Tensor.exponential_().")


def check_output(batch: SpecDecodeBatch, output: object, sampler: str) -> Tensor:  # [batch_size, max_spec_len + 1] int32
    """The sampler's answer, if it is one.

    Raises:
        AdapterError: If it is not an int32 tensor of shape `[batch_size, max_spec_len + 1]` on the batch's device.
    """
    import torch

    shape = [batch.batch_size, batch.max_spec_len + 1]
    if not isinstance(output, torch.Tensor):
        raise AdapterError(
            f"verify: sampler={sampler} returned {type(output).__name__}, but it must return a tensor. "
            f"Return output_token_ids as int32 {shape}."
        )
    if list(output.shape) != shape:
        raise AdapterError(
            f"verify: sampler={sampler} returned shape {list(output.shape)}, but it must be {shape} "
            f"([batch_size, max_spec_len + 1]). Fill the end of short rows with {PLACEHOLDER_TOKEN_ID}."
        )
    if output.dtype != torch.int32:
        raise AdapterError(
            f"verify: sampler={sampler} returned {output.dtype}, but it must be torch.int32. Return output.to(torch.int32)."
        )
    if output.device.type != batch.device.type:
        raise AdapterError(
            f"verify: sampler={sampler} returned a tensor on {output.device}, but the batch is on {batch.device}. "
            f"Declare the sampler's device, or move the result."
        )
    return output
