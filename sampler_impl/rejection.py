"""Speculative decoding's verification step: keep what the target model agrees with, then add one token.

For each request, draft tokens are accepted from the left with probability `min(1, target / draft)`. The first rejected
one is replaced by a *recovered* token from the residual distribution `max(target - draft, 0)`; if none is rejected, the
*bonus* token is appended. Output tokens are therefore distributed as if drawn from the target model alone.

    draft tokens     a  b  c        accepted, accepted, rejected
    output tokens    a  b  r  -1    r: recovered at the first rejection; then placeholders

`rejection_sample` is a drop-in for vLLM 0.22.0's function of that name: same arguments, same random numbers in the same
order, so the same final generator states and, but for the deviations listed below, the same tokens. It does less work:
positions are decided first, and a token is recovered only at the one position of each request that needs it. `_verify`
below shows the whole step; the arithmetic is in `_rejection/kernels.py` (Triton) and, token for token the same, in
`_rejection/pytorch.py` (PyTorch).

Exactly, at one position of a random request:

* A draft token is accepted if its id is in the vocabulary, `draft_prob > 0`, `target_prob > 0` and
  `target_prob / draft_prob >= uniform`: the float32 quotient, correctly rounded, against a float64 uniform.
  Without `draft_probs` (n-gram drafts) `draft_prob` is 1.
* The recovered token wins an exponential race: highest `weight * (1 / exponential)`, both operations correctly rounded
  in float32, among the entries whose weight `target - draft` is positive; lowest id on ties. Without `draft_probs` the
  weight is the target's with the drafted id removed. If no weight is positive, the target row itself is raced; if that
  has no positive entry either (NaN logits, or all -inf), the token is 0. NaN never accepts and never wins.

Intentional deviations from vLLM 0.22.0, each held by a test:

===================== ============================================ ============================================
name                  vLLM 0.22.0                                  here, and why
===================== ============================================ ============================================
placeholder-draft     for a draft of -1 compares probabilities     never accepted (as vLLM from 0.25.0)
                      read outside the row, and may emit -1
unknown-draft         the same for a draft id >= vocab_size        never accepted: an output id names a token
synthetic-placeholder accepts -1 in synthetic mode and emits it    never accepted (as vLLM from 0.25.0)
zero-uniform          at uniform 0 accepts a draft token of target rejected: emitted tokens have positive
                      probability 0                                target probability
empty-residual        emits id 0, even if the target forbids it    races the target row: the token is one that
                                                                   the target allows
zero-score            if all scores underflow to 0, emits the      an entry without weight never wins
                      lowest id, even one without weight
infinite-reciprocal   for an exponential below 2**-128, 0 * inf    an entry without weight never wins
                      is NaN, which may win
out-of-vocabulary     compiled, a row of NaN may give an id >=     the token is 0; ids are in range by
                      vocab_size (GHSA-8wr5-jm2h-8r4f)             construction (vLLM clamps from 0.24.0)
rounded-quotient      on NVIDIA, an approximate quotient           correctly rounded: the same tokens on every
                                                                   device
64-bit-offsets        num_tokens * vocab_size wraps at 2**31       64-bit row offsets
===================== ============================================ ============================================

Reference:
    Leviathan, Kalman, Matias (2022), arXiv:2211.17192, algorithm 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from ._rejection import pytorch
from ._rejection.noise import generate_exponentials, generate_uniforms
from ._rejection.step import (
    GREEDY_TEMPERATURE,
    PLACEHOLDER_TOKEN_ID,
    SamplingMetadata,
    check_noise,
    check_noise_values,
    check_values,
    checked_step,
)
from ._shared.backend import BackendName, choose_backend
from ._shared.checks import FLOATS, IDS, MAX_SPEC_LEN, check_dimensions, check_tensor, check_written

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

    from ._rejection.step import VerifyStep
    from ._shared.tensors import RequestRows, Uniforms

__all__ = [
    "GREEDY_TEMPERATURE", "MAX_SPEC_LEN", "PLACEHOLDER_TOKEN_ID", "SamplingMetadata", "apply_temperature_",
    "expand_batch_to_tokens", "parse_output", "rejection_sample", "verify_drafts",
]  # fmt: skip


def rejection_sample(
    draft_token_ids: Tensor,  # [num_tokens] int32
    num_draft_tokens: Sequence[int],  # [batch_size]
    max_spec_len: int,
    cu_num_draft_tokens: Tensor,  # [batch_size] int32
    draft_probs: Tensor | None,  # [num_tokens, vocab_size] float32
    target_logits: Tensor,  # [num_tokens, vocab_size] float32
    bonus_token_ids: Tensor,  # [batch_size, 1] int32
    sampling_metadata: SamplingMetadata,
    synthetic_mode: bool = False,
    synthetic_conditional_rates: Tensor | None = None,  # [max_spec_len] float32
    *,
    backend: BackendName | None = None,
    validate: bool = False,
) -> Tensor:  # [batch_size, max_spec_len + 1] int32
    """Verify one batch of draft tokens; a drop-in for vLLM 0.22.0's `rejection_sample`, with its random numbers.

    Args:
        draft_token_ids: Flattened over requests; -1 is a placeholder draft token, which is never accepted.
        num_draft_tokens: Per request; 0 is legal and yields the bonus token.
        max_spec_len: At least `max(num_draft_tokens)`, at most 128.
        cu_num_draft_tokens: Inclusive cumulative sum of `num_draft_tokens`, no leading 0.
        draft_probs: The distribution that each draft token was drawn from; `None` if drafts are deterministic (n-gram).
        target_logits: Processed (temperature, penalties, filters); float32, bfloat16, float16 or float64, any strides.
        bonus_token_ids: Used only for requests whose drafts are all accepted; `[batch_size]` is accepted as well.
        sampling_metadata: `all_greedy` and `all_random` are trusted; otherwise temperature 0 marks a greedy request.
        synthetic_mode: Accept position `pos` with probability `synthetic_conditional_rates[pos]`, whatever the logits.
        synthetic_conditional_rates: At least `max_spec_len` long.
        backend: `None` takes Triton on a GPU and PyTorch elsewhere.
        validate: Also check values inside tensors. Waits for the device. Without it, values that break the contract
            (offsets that disagree with `num_draft_tokens`, say) give undefined tokens.

    Returns:
        Per request the accepted draft tokens, one recovered or bonus token, then `PLACEHOLDER_TOKEN_ID`.

    Raises:
        TypeError: If an argument is of the wrong kind.
        ValueError: If arguments disagree, or with `validate=True` a value is out of its range. Nothing is drawn then.

    Randomness:
        `num_tokens` float64 uniforms from the default generator, then those of requests with own generators from
        these, in request order; then `batch_size * vocab_size` float32 exponentials likewise, own generators in dict
        order. If all requests are greedy nothing is drawn (in synthetic mode: the uniforms).

    Limits:
        Acceptance is biased by the rounding of one float32 quotient, the race by that of one product: relative 2**-23.
    """
    name = "rejection_sample"
    drafts = (draft_token_ids, num_draft_tokens, max_spec_len, cu_num_draft_tokens, draft_probs)
    rates = (synthetic_mode, synthetic_conditional_rates)
    step = checked_step(name, *drafts, target_logits, bonus_token_ids, sampling_metadata, *rates)
    backend = _choose_backend(name, backend, step.device)
    if validate:
        check_values(name, step, sampling_metadata)
    uniforms = exponentials = None
    generators = sampling_metadata.generators
    if step.has_random or synthetic_mode:
        uniforms = generate_uniforms(num_draft_tokens, generators, step.device)
    if step.has_random:
        exponentials = generate_exponentials(num_draft_tokens, step.vocab_size, generators, step.device)
    return _verify(backend, step, uniforms, exponentials)


def verify_drafts(
    draft_token_ids: Tensor,  # [num_tokens] int32
    num_draft_tokens: Sequence[int],  # [batch_size]
    max_spec_len: int,
    cu_num_draft_tokens: Tensor,  # [batch_size] int32
    draft_probs: Tensor | None,  # [num_tokens, vocab_size] float32
    target_logits: Tensor,  # [num_tokens, vocab_size] float32
    bonus_token_ids: Tensor,  # [batch_size, 1] int32
    sampling_metadata: SamplingMetadata,
    synthetic_mode: bool = False,
    synthetic_conditional_rates: Tensor | None = None,  # [max_spec_len] float32
    *,
    uniforms: Tensor | None,  # [num_tokens] float64
    exponentials: Tensor | None,  # [batch_size, vocab_size] float32
    backend: BackendName | None = None,
    validate: bool = False,
) -> Tensor:  # [batch_size, max_spec_len + 1] int32
    """Do what `rejection_sample` does, with the random numbers handed in: a function of its arguments alone.

    Args:
        uniforms: In [0, 1). `None` if all requests are greedy (and the mode is not synthetic).
        exponentials: Not negative; 0 stands for a number too small for float32. `None` if all requests are greedy.

    Raises:
        TypeError, ValueError: As `rejection_sample`; also if noise is missing or of the wrong shape.
    """
    name = "verify_drafts"
    drafts = (draft_token_ids, num_draft_tokens, max_spec_len, cu_num_draft_tokens, draft_probs)
    rates = (synthetic_mode, synthetic_conditional_rates)
    step = checked_step(name, *drafts, target_logits, bonus_token_ids, sampling_metadata, *rates)
    check_noise(name, step, uniforms, exponentials)
    backend = _choose_backend(name, backend, step.device)
    if validate:
        check_values(name, step, sampling_metadata)
        check_noise_values(name, uniforms, exponentials)
    return _verify(backend, step, uniforms, exponentials)


def _verify(
    backend: BackendName, step: VerifyStep, uniforms: Uniforms | None, exponentials: RequestRows | None
) -> Tensor:  # [batch_size, max_spec_len + 1] int32
    """Verify a checked step: softmax and argmax are torch's; the rest is the backend's."""
    # Of the logits as they are: a softmax may round different logits to equal probabilities.
    target_argmax = step.target_logits.argmax(dim=-1) if step.has_greedy else None
    target_probs = None
    if step.has_random:
        target_probs = step.target_logits.softmax(dim=-1, dtype=torch.float32).contiguous()
    uniforms = None if uniforms is None else uniforms.contiguous()
    exponentials = None if exponentials is None or not step.has_random else exponentials.contiguous()
    tokens = _module_of(backend).verify(step, target_argmax, target_probs, uniforms, exponentials)
    return cast("Tensor", tokens)  # [batch_size, max_spec_len + 1] int32


def expand_batch_to_tokens(
    x: Tensor,  # [batch_size] any
    cu_num_tokens: Tensor,  # [batch_size] int32
    num_tokens: int,
    replace_from: float = 0,
    replace_to: float = 0,
    *,
    backend: BackendName | None = None,
) -> Tensor:  # [num_tokens] any
    """Repeat each request's value once per token: `[a, b, c]` and `[2, 2, 5]` give `[a, a, c, c, c]`.

    Args:
        cu_num_tokens: Inclusive cumulative sum, no leading 0.
        num_tokens: `cu_num_tokens[-1]`, known to the host. Tokens that no request has get the last one's value.
        replace_from: Requests with this value get `replace_to` instead.

    Raises:
        TypeError: If an argument is of the wrong kind.
        ValueError: If a shape, dtype or device is wrong, or there are tokens and no request.
    """
    name = "expand_batch_to_tokens"
    check_dimensions(name, "x", x, 1)
    check_tensor(name, "x", x, x.shape, (*FLOATS, *IDS), x.device)
    check_tensor(name, "cu_num_tokens", cu_num_tokens, x.shape, IDS, x.device, reference="x")
    if num_tokens < 0 or (num_tokens > 0 and len(x) == 0):
        raise ValueError(f"{name}: num_tokens={num_tokens} of {len(x)} requests, but it must be their sum. Correct it.")
    module = _module_of(_choose_backend(name, backend, x.device))
    expanded: Tensor = module.expand(x, cu_num_tokens, num_tokens, replace_from, replace_to)  # [num_tokens] any
    return expanded


def apply_temperature_(
    target_logits: Tensor,  # [num_tokens, vocab_size] float32
    cu_num_draft_tokens: Tensor,  # [batch_size] int32
    sampling_metadata: SamplingMetadata,
    *,
    backend: BackendName | None = None,
) -> Tensor:  # [num_tokens, vocab_size] float32
    """Divide each row by its request's temperature, in place; rows of greedy requests stay as they are.

    Raises:
        TypeError: If an argument is of the wrong kind.
        ValueError: If arguments disagree, or the logits cannot be written.
    """
    name = "apply_temperature_"
    check_dimensions(name, "target_logits", target_logits, 2)
    check_tensor(name, "target_logits", target_logits, target_logits.shape, FLOATS, target_logits.device)
    check_written(name, "target_logits", target_logits)
    if sampling_metadata.all_greedy:
        return target_logits
    temperature, device = sampling_metadata.temperature, target_logits.device
    if temperature is None:
        raise ValueError(f"{name}: temperature=None, but it must be a tensor unless all_greedy. Pass one.")
    for argument, value, dtypes in (
        ("cu_num_draft_tokens", cu_num_draft_tokens, IDS),
        ("temperature", temperature, FLOATS),
    ):
        check_tensor(name, argument, value, cu_num_draft_tokens.shape[:1], dtypes, device)
    per_token = expand_batch_to_tokens(
        temperature, cu_num_draft_tokens, target_logits.shape[0], GREEDY_TEMPERATURE, 1.0, backend=backend
    )
    return target_logits.div_(per_token.unsqueeze(-1))


def parse_output(
    output_token_ids: Tensor,  # [batch_size, max_spec_len + 1] int32
    vocab_size: int,
    discard_req_indices: Sequence[int] = (),
) -> list[list[int]]:
    """Return output tokens of each request as a list, without placeholders and ids outside the vocabulary.

    Waits for the device.

    Args:
        discard_req_indices: Requests whose tokens are dropped (those still in prefill): their lists are empty.
    """
    given = output_token_ids
    check_dimensions("parse_output", "output_token_ids", given, 2)
    check_tensor("parse_output", "output_token_ids", given, given.shape, IDS, given.device)
    host_ids = output_token_ids.cpu()
    kept = (host_ids >= 0) & (host_ids < vocab_size)
    kept[list(discard_req_indices)] = False
    token_ids = iter(host_ids[kept].tolist())
    return [[next(token_ids) for _ in range(count)] for count in kept.sum(dim=-1).tolist()]


def _choose_backend(function: str, backend: BackendName | None, device: torch.device) -> BackendName:
    return choose_backend(function, backend, device, place="target_logits.device")


def _module_of(backend: BackendName) -> ModuleType:
    """Return the backend's module. Both define `verify` and `expand`, with equal signatures."""
    if backend == "torch":
        return pytorch
    from ._rejection import kernels

    return kernels
