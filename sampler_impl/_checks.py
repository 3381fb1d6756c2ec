"""The border: callers' arguments become a `VerifyStep` whose promises both backends rely on.

Shapes, dtypes, devices and Python numbers are checked on every call, on the host, in microseconds. Values inside
tensors would cost a device synchronisation, so they are checked only when asked (`check_values`, `check_noise_values`).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ._noise import Generators

MAX_SPEC_LEN = 128
"""Most draft tokens per request, as in vLLM since 0.11.0; also the width of the kernels' position vector."""

GREEDY_TEMPERATURE = 0.0
"""vLLM's mark of a greedy request: equal to it, not below it."""

IDS = (torch.int32, torch.int64)
LOGITS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
FLOAT32 = (torch.float32,)
FLOAT64 = (torch.float64,)

SUM_TOLERANCE = 1e-3
"""Largest `abs(draft_probs.sum() - 1)`. Measured up to 151936 entries: a float32 softmax is within 2e-5, one computed
in bfloat16 is off by up to 3e-3, and draft tokens are then not distributed as those probabilities say."""


class SamplingMetadata(Protocol):
    """What is read from vLLM's `SamplingMetadata`; any object with these attributes will do."""

    @property
    def all_greedy(self) -> bool: ...
    @property
    def all_random(self) -> bool: ...
    @property
    def temperature(self) -> Tensor | None: ...  # [batch_size] float32
    @property
    def generators(self) -> Generators: ...


@dataclass(frozen=True, eq=False)
class VerifyStep:
    """Checked arguments of one call. Every tensor is contiguous except `target_logits`."""

    draft_token_ids: Tensor  # [num_tokens] int32
    num_draft_tokens: Sequence[int]  # [batch_size]
    max_spec_len: int
    cu_num_draft_tokens: Tensor  # [batch_size] int32
    draft_probs: Tensor | None  # [num_tokens, vocab_size] float32
    target_logits: Tensor  # [num_tokens, vocab_size] float32
    bonus_token_ids: Tensor  # [batch_size, 1] int32
    has_greedy: bool
    has_random: bool
    is_greedy: Tensor | None  # [batch_size] bool; None: all requests are of one kind
    synthetic_rates: Tensor | None  # [max_spec_len] float32

    @property
    def batch_size(self) -> int:
        return len(self.num_draft_tokens)

    @property
    def vocab_size(self) -> int:
        return self.target_logits.shape[-1]

    @property
    def device(self) -> torch.device:
        return self.target_logits.device


def checked_step(
    function: str,
    draft_token_ids: Tensor,  # [num_tokens] int32
    num_draft_tokens: Sequence[int],  # [batch_size]
    max_spec_len: int,
    cu_num_draft_tokens: Tensor,  # [batch_size] int32
    draft_probs: Tensor | None,  # [num_tokens, vocab_size] float32
    target_logits: Tensor,  # [num_tokens, vocab_size] float32
    bonus_token_ids: Tensor,  # [batch_size, 1] int32
    sampling_metadata: SamplingMetadata,
    synthetic_mode: bool,
    synthetic_conditional_rates: Tensor | None,  # [max_spec_len] float32
) -> VerifyStep:
    """Check everything that the host knows, and make the tensors contiguous.

    Raises:
        TypeError: If an argument is of the wrong kind.
        ValueError: If a shape, dtype, device or Python number is wrong.
    """
    _check_num_draft_tokens(function, num_draft_tokens, max_spec_len)
    batch_size, num_tokens = len(num_draft_tokens), sum(num_draft_tokens)
    _check_target_logits(function, target_logits, num_tokens)
    vocab_size, device = target_logits.shape[-1], target_logits.device
    check_tensor(function, "draft_token_ids", draft_token_ids, (num_tokens,), IDS, device)
    check_tensor(function, "cu_num_draft_tokens", cu_num_draft_tokens, (batch_size,), IDS, device)
    if draft_probs is not None:
        check_tensor(function, "draft_probs", draft_probs, (num_tokens, vocab_size), FLOAT32, device)
    bonus_token_ids = _column(bonus_token_ids)
    check_tensor(function, "bonus_token_ids", bonus_token_ids, (batch_size, 1), IDS, device)
    _check_metadata(function, sampling_metadata, batch_size, device)
    return VerifyStep(
        draft_token_ids=draft_token_ids.contiguous(),
        num_draft_tokens=num_draft_tokens,
        max_spec_len=max_spec_len,
        cu_num_draft_tokens=cu_num_draft_tokens.contiguous(),
        draft_probs=None if draft_probs is None else draft_probs.contiguous(),
        target_logits=target_logits,
        bonus_token_ids=bonus_token_ids.contiguous(),
        has_greedy=not sampling_metadata.all_random,
        has_random=not sampling_metadata.all_greedy,
        is_greedy=find_greedy(sampling_metadata),
        synthetic_rates=_checked_rates(function, synthetic_mode, synthetic_conditional_rates, max_spec_len, device),
    )


def find_greedy(sampling_metadata: SamplingMetadata) -> Tensor | None:  # [batch_size] bool
    """Which requests are greedy; decided here and nowhere else. `None` if the flags say that all are of one kind."""
    if sampling_metadata.all_greedy or sampling_metadata.all_random:
        return None
    assert sampling_metadata.temperature is not None  # _check_metadata
    return sampling_metadata.temperature == GREEDY_TEMPERATURE


def check_tensor(
    function: str,
    name: str,
    value: object,
    shape: tuple[int, ...],
    dtypes: tuple[torch.dtype, ...],
    device: torch.device,
) -> None:
    """Kind, shape, dtype and device of one argument."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{function}: {name}={value!r}, but it must be a tensor of shape {list(shape)}. Pass one.")
    if value.shape != shape:
        raise ValueError(
            f"{function}: {name}.shape={list(value.shape)}, but it must be {list(shape)}. "
            f"Check it against num_draft_tokens and target_logits."
        )
    if value.dtype not in dtypes:
        known = " or ".join(str(dtype) for dtype in dtypes)
        raise ValueError(f"{function}: {name}.dtype={value.dtype}, but it must be {known}. Use {name}.to({dtypes[0]}).")
    if value.device != device:
        raise ValueError(
            f"{function}: {name}.device={value.device}, but it must be {device}, where target_logits are. "
            f"Use {name}.to(target_logits.device)."
        )


def _column(bonus_token_ids: Tensor) -> Tensor:  # [batch_size, 1] int32
    """`[batch_size]` is welcome as well."""
    return bonus_token_ids.unsqueeze(-1) if getattr(bonus_token_ids, "ndim", 2) == 1 else bonus_token_ids


def _check_num_draft_tokens(function: str, num_draft_tokens: Sequence[int], max_spec_len: int) -> None:
    if isinstance(num_draft_tokens, Tensor) or not set(map(type, num_draft_tokens)) <= {int}:
        raise TypeError(
            f"{function}: num_draft_tokens={num_draft_tokens!r}, but it must be a list of int, because the host "
            f"needs it without waiting for the device. Use num_draft_tokens.tolist()."
        )
    if min(num_draft_tokens, default=0) < 0:
        req_idx = min(range(len(num_draft_tokens)), key=num_draft_tokens.__getitem__)
        raise ValueError(
            f"{function}: num_draft_tokens[{req_idx}]={num_draft_tokens[req_idx]}, but it must be at least 0. "
            f"Use 0 for a request without draft tokens."
        )
    most = max(num_draft_tokens, default=0)
    if not most <= max_spec_len <= MAX_SPEC_LEN:
        raise ValueError(
            f"{function}: max_spec_len={max_spec_len}, but it must be at least max(num_draft_tokens)={most} "
            f"and at most {MAX_SPEC_LEN}. Use max(num_draft_tokens)."
        )


def _check_target_logits(
    function: str,
    target_logits: Tensor,  # [num_tokens, vocab_size] float32
    num_tokens: int,
) -> None:
    vocab_size = target_logits.shape[-1] if isinstance(target_logits, Tensor) and target_logits.ndim else 0
    device = target_logits.device if isinstance(target_logits, Tensor) else torch.device("cpu")
    check_tensor(function, "target_logits", target_logits, (num_tokens, vocab_size), LOGITS, device)
    if vocab_size == 0:
        raise ValueError(f"{function}: vocab_size=0, but it must be at least 1. Check target_logits.shape[-1].")


def _check_metadata(function: str, metadata: SamplingMetadata, batch_size: int, device: torch.device) -> None:
    if metadata.all_greedy and metadata.all_random and batch_size > 0:
        raise ValueError(
            f"{function}: all_greedy=True and all_random=True, but at most one can hold for {batch_size} requests. "
            f"Use temperature == 0 to tell."
        )
    if not (metadata.all_greedy or metadata.all_random):
        check_tensor(function, "temperature", metadata.temperature, (batch_size,), LOGITS, device)
    for req_idx in metadata.generators:
        if not 0 <= req_idx < batch_size:
            raise ValueError(
                f"{function}: generators has key {req_idx}, but keys must be requests in [0, {batch_size}). "
                f"Drop generators of requests that left the batch."
            )


def _checked_rates(
    function: str,
    synthetic_mode: bool,
    synthetic_conditional_rates: Tensor | None,  # [max_spec_len] float32
    max_spec_len: int,
    device: torch.device,
) -> Tensor | None:  # [max_spec_len] float32
    """The rates if they are in use; longer tables are welcome, as one table serves batches of any `max_spec_len`."""
    if not synthetic_mode:
        return None
    rates = synthetic_conditional_rates
    length = max(max_spec_len, rates.shape[0]) if isinstance(rates, Tensor) and rates.ndim == 1 else max_spec_len
    check_tensor(function, "synthetic_conditional_rates", rates, (length,), FLOAT32, device)
    return None if rates is None else rates.contiguous()


def check_noise(
    function: str,
    step: VerifyStep,
    uniforms: Tensor | None,  # [num_tokens] float64
    exponentials: Tensor | None,  # [batch_size, vocab_size] float32
) -> None:
    """Explicit noise has the shape that this step consumes; what it does not consume may be `None`."""
    num_tokens = sum(step.num_draft_tokens)
    if step.has_random or step.synthetic_rates is not None or uniforms is not None:
        check_tensor(function, "uniforms", uniforms, (num_tokens,), FLOAT64, step.device)
    if step.has_random or exponentials is not None:
        shape = (step.batch_size, step.vocab_size)
        check_tensor(function, "exponentials", exponentials, shape, FLOAT32, step.device)


def check_values(function: str, step: VerifyStep, sampling_metadata: SamplingMetadata) -> None:
    """What only the device knows: ids, offsets, probabilities, temperatures. Waits for the device.

    Raises:
        ValueError: At the first value that is out of its range.
    """
    _check_offsets(function, step)
    vocabulary = f"in [0, {step.vocab_size})"
    _check_all(
        function,
        "draft_token_ids",
        step.draft_token_ids,
        (step.draft_token_ids >= -1) & (step.draft_token_ids < step.vocab_size),
        f"{vocabulary}, or -1. Use -1 to withdraw a draft token.",
    )
    _check_all(
        function,
        "bonus_token_ids",
        step.bonus_token_ids,
        (step.bonus_token_ids >= 0) & (step.bonus_token_ids < step.vocab_size),
        f"{vocabulary}. Sample bonus tokens from the target model.",
    )
    if step.draft_probs is not None:
        _check_draft_probs(function, step.draft_probs)
    if step.synthetic_rates is not None:
        rates = step.synthetic_rates
        rule = "in [0, 1]. Use conditional acceptance rates, one per position."
        _check_all(function, "synthetic_conditional_rates", rates, (rates >= 0) & (rates <= 1), rule)
    _check_temperature(function, sampling_metadata)


def check_noise_values(
    function: str,
    uniforms: Tensor | None,  # [num_tokens] float64
    exponentials: Tensor | None,  # [batch_size, vocab_size] float32
) -> None:
    """Uniforms are in [0, 1), exponentials are not negative. Waits for the device."""
    if uniforms is not None:
        _check_all(function, "uniforms", uniforms, (uniforms >= 0) & (uniforms < 1), "in [0, 1). Use torch.rand.")
    if exponentials is not None:
        _check_all(function, "exponentials", exponentials, exponentials >= 0, "at least 0. Use exponential_.")


def _check_draft_probs(
    function: str,
    draft_probs: Tensor,  # [num_tokens, vocab_size] float32
) -> None:
    remedy = "Use draft_logits.softmax(-1, dtype=torch.float32)."
    _check_all(function, "draft_probs", draft_probs, draft_probs >= 0, f"at least 0. {remedy}")
    sums = draft_probs.sum(-1, dtype=torch.float64)
    rule = f"1 within {SUM_TOLERANCE}. {remedy}"
    _check_all(function, "draft_probs.sum(-1)", sums, (sums - 1).abs() <= SUM_TOLERANCE, rule)


def _check_offsets(function: str, step: VerifyStep) -> None:
    expected = list(accumulate(step.num_draft_tokens))
    for req_idx, (given, end) in enumerate(zip(step.cu_num_draft_tokens.tolist(), expected, strict=True)):
        if given != end:
            raise ValueError(
                f"{function}: cu_num_draft_tokens[{req_idx}]={given}, but it must be {end}, the inclusive cumulative "
                f"sum of num_draft_tokens. Use torch.tensor(num_draft_tokens).cumsum(0)."
            )


def _check_temperature(function: str, metadata: SamplingMetadata) -> None:
    temperature = metadata.temperature
    if temperature is None:
        return
    _check_all(function, "temperature", temperature, temperature >= 0, "at least 0. Use 0 for a greedy request.")
    greedy = temperature == GREEDY_TEMPERATURE
    remedy = "Set all_greedy and all_random from temperature == 0."
    if metadata.all_greedy:
        _check_all(function, "temperature", temperature, greedy, f"0 as all_greedy=True. {remedy}")
    if metadata.all_random:
        _check_all(function, "temperature", temperature, ~greedy, f"positive as all_random=True. {remedy}")


def _check_all(
    function: str,
    name: str,
    values: Tensor,  # [...] any
    good: Tensor,  # [...] bool
    rule: str,
) -> None:
    """Complain about the first value that is not good, with its index; `rule` ends in the remedy."""
    bad = (~good).nonzero()
    if len(bad) > 0:
        index = bad[0].tolist()
        raise ValueError(f"{function}: {name}{index}={values[tuple(index)].item():.9g}, but it must be {rule}")
