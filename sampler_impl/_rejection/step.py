"""Argument checks of `rejection`: callers' arguments become a `VerifyStep` that both backends rely on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch import Tensor

from .._shared.checks import (
    FLOAT32,
    FLOAT64,
    FLOATS,
    IDS,
    MAX_SPEC_LEN,
    Generators,
    check_all,
    check_flags,
    check_generators,
    check_tensor,
)
from .._shared.kinds import Kinds

if TYPE_CHECKING:
    from .._shared.tensors import RequestRows, TokenRows, Uniforms

PLACEHOLDER_TOKEN_ID = -1
"""The id that fills the output after the last token, and stands for a placeholder draft token."""

GREEDY_TEMPERATURE = 0.0
"""vLLM's mark of a greedy request: equal to it, not below it. Flags may say that all requests are of one kind."""

SUM_TOLERANCE = 1e-3
"""Largest `abs(draft_probs.sum() - 1)`. Measured up to 151936 entries: a float32 softmax is within 2e-5, one computed
in bfloat16 is off by up to 3e-3, and draft tokens are then not distributed as those probabilities say."""

_check_tensor = partial(check_tensor, reference="num_draft_tokens and target_logits")


class SamplingMetadata(Protocol):
    """Metadata that is read from vLLM's `SamplingMetadata`; any object with these attributes will do."""

    @property
    def all_greedy(self) -> bool: ...
    @property
    def all_random(self) -> bool: ...
    @property
    def temperature(self) -> Tensor | None: ...  # [batch_size] float32
    @property
    def generators(self) -> Generators: ...


class VerifyStep(NamedTuple):
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
    temperature: Tensor | None  # [batch_size] float32; None: all requests are of one kind
    synthetic_rates: Tensor | None  # [max_spec_len] float32
    plan: Plan | None = None
    """Plan of the kernels, if a step of this kind was launched before."""

    @property
    def batch_size(self) -> int:
        return len(self.num_draft_tokens)

    @property
    def vocab_size(self) -> int:
        return self.target_logits.shape[-1]

    @property
    def device(self) -> torch.device:
        return self.target_logits.device

    def kind(self) -> tuple[object, ...]:
        """Return all that checks and launches depend on."""
        ids, counts, *rest, _ = self
        return ids, len(counts), sum(counts), *rest


Plan = Callable[[VerifyStep, "Tensor | None", "Tensor | None", "Tensor | None", "Tensor | None"], Tensor]
KNOWN: Kinds[Plan] = Kinds()
"""Plans of steps that passed their checks as they are and were launched."""


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
    if getattr(bonus_token_ids, "ndim", 2) == 1:
        bonus_token_ids = bonus_token_ids.unsqueeze(-1)
    metadata, rates = sampling_metadata, synthetic_conditional_rates if synthetic_mode else None
    drafts = draft_token_ids, num_draft_tokens, max_spec_len, cu_num_draft_tokens, draft_probs
    has_greedy, has_random = not metadata.all_random, not metadata.all_greedy
    temperature = metadata.temperature if has_greedy and has_random else None
    step = VerifyStep(*drafts, target_logits, bonus_token_ids, has_greedy, has_random, temperature, rates)
    plan = KNOWN.find(step.kind())
    if plan is None or (synthetic_mode and rates is None):
        _check_tensors(function, step, synthetic_mode)
        check_flags(function, metadata.all_greedy, metadata.all_random, step.batch_size, "temperature == 0")
        step = _contiguous(step)
    check_generators(function, metadata.generators, step.batch_size)
    return step._replace(plan=plan)


def _check_tensors(function: str, step: VerifyStep, synthetic_mode: bool) -> None:
    logits, rates, max_spec_len = step.target_logits, step.synthetic_rates, step.max_spec_len
    batch_size, num_tokens = step.batch_size, sum(step.num_draft_tokens)
    is_tensor = isinstance(logits, Tensor)
    vocab_size = logits.shape[-1] if is_tensor and logits.ndim else 0
    device = logits.device if is_tensor else torch.device("cpu")
    # One table of rates serves batches of any `max_spec_len`: it may be longer.
    num_rates = max(max_spec_len, rates.shape[0]) if isinstance(rates, Tensor) and rates.ndim == 1 else max_spec_len
    _check_tensor(function, "target_logits", logits, (num_tokens, vocab_size), FLOATS, device)
    if vocab_size == 0:
        raise ValueError(f"{function}: vocab_size=0, but it must be at least 1. Check target_logits.shape[-1].")
    for name, value, shape, dtypes, is_used in (
        ("draft_token_ids", step.draft_token_ids, (num_tokens,), IDS, True),
        ("cu_num_draft_tokens", step.cu_num_draft_tokens, (batch_size,), IDS, True),
        ("draft_probs", step.draft_probs, (num_tokens, vocab_size), FLOAT32, step.draft_probs is not None),
        ("bonus_token_ids", step.bonus_token_ids, (batch_size, 1), IDS, True),
        ("synthetic_conditional_rates", rates, (num_rates,), FLOAT32, synthetic_mode),
        ("temperature", step.temperature, (batch_size,), FLOATS, step.has_greedy and step.has_random),
    ):
        if is_used:
            _check_tensor(function, name, value, shape, dtypes, device)


def _contiguous(step: VerifyStep) -> VerifyStep:
    """Make all tensors contiguous but the logits, which only torch reads."""
    found: dict[str, Any] = {  # Any: the type of the field
        name: value.contiguous()
        for name, value in step._asdict().items()
        if isinstance(value, Tensor) and name != "target_logits"
    }
    return step._replace(**found)


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


def check_noise(function: str, step: VerifyStep, uniforms: Uniforms | None, exponentials: RequestRows | None) -> None:
    """Check that explicit noise has the shape that this step consumes; what it does not consume may be `None`."""
    num_tokens = sum(step.num_draft_tokens)
    if step.has_random or step.synthetic_rates is not None or uniforms is not None:
        _check_tensor(function, "uniforms", uniforms, (num_tokens,), FLOAT64, step.device)
    if step.has_random or exponentials is not None:
        shape = (step.batch_size, step.vocab_size)
        _check_tensor(function, "exponentials", exponentials, shape, FLOAT32, step.device)


def check_values(function: str, step: VerifyStep, sampling_metadata: SamplingMetadata) -> None:
    """Check what only the device knows: ids, offsets, probabilities, temperatures. Waits for the device.

    Raises:
        ValueError: At the first value that is out of its range.
    """
    _check_offsets(function, step)
    ids, bonus, rates, vocab_size = step.draft_token_ids, step.bonus_token_ids, step.synthetic_rates, step.vocab_size
    rule = f"in [0, {vocab_size}), or -1. Use -1 for a placeholder draft token."
    check_all(function, "draft_token_ids", ids, (ids >= -1) & (ids < vocab_size), rule)
    rule = f"in [0, {vocab_size}). Sample bonus tokens from the target model."
    check_all(function, "bonus_token_ids", bonus, (bonus >= 0) & (bonus < vocab_size), rule)
    if step.draft_probs is not None:
        _check_draft_probs(function, step.draft_probs)
    if rates is not None:
        rule = "in [0, 1]. Use conditional acceptance rates, one per position."
        check_all(function, "synthetic_conditional_rates", rates, (rates >= 0) & (rates <= 1), rule)
    _check_temperature(function, sampling_metadata)


def check_noise_values(function: str, uniforms: Uniforms | None, exponentials: RequestRows | None) -> None:
    """Check that uniforms are in [0, 1), exponentials are not negative. Waits for the device."""
    if uniforms is not None:
        check_all(function, "uniforms", uniforms, (uniforms >= 0) & (uniforms < 1), "in [0, 1). Use torch.rand.")
    if exponentials is not None:
        check_all(function, "exponentials", exponentials, exponentials >= 0, "at least 0. Use exponential_.")


def _check_draft_probs(function: str, draft_probs: TokenRows) -> None:
    remedy = "Use draft_logits.softmax(-1, dtype=torch.float32)."
    check_all(function, "draft_probs", draft_probs, draft_probs >= 0, f"at least 0. {remedy}")
    sums = draft_probs.sum(-1, dtype=torch.float64)
    rule = f"1 within {SUM_TOLERANCE}. {remedy}"
    check_all(function, "draft_probs.sum(-1)", sums, (sums - 1).abs() <= SUM_TOLERANCE, rule)


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
    check_all(function, "temperature", temperature, temperature >= 0, "at least 0. Use 0 for a greedy request.")
    greedy = temperature == GREEDY_TEMPERATURE
    remedy = "Set all_greedy and all_random from temperature == 0."
    if metadata.all_greedy:
        check_all(function, "temperature", temperature, greedy, f"0 as all_greedy=True. {remedy}")
    if metadata.all_random:
        check_all(function, "temperature", temperature, ~greedy, f"positive as all_random=True. {remedy}")
