"""Arguments of the plain sampler: parameters of requests, the kinds of noise, and their checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from .._shared.checks import (
    FLOAT32,
    FLOATS,
    IDS,
    INT64,
    Generators,
    check_all,
    check_flags,
    check_generators,
    check_tensor,
)
from .._shared.kinds import Kinds

if TYPE_CHECKING:
    from .._shared.tensors import LogitRows

GREEDY_BELOW = 1e-5
"""A request with a lower temperature is greedy, as in vLLM's `Sampler` (its rejection sampler requires exactly 0)."""


@dataclass(frozen=True, eq=False)
class SamplingParameters:
    """Parameters of all requests; `None` for a filter that no request uses.

    Args:
        temperature: Divides the logits. Below 1e-5 a request is greedy: the largest logit, the lowest id on ties;
            filters do not apply.
        top_k: Between 1 and `vocab_size`, which keeps all.
        top_p: Above 0, at most 1, which keeps all.
        min_p: Between 0, which keeps all, and 1.
        all_greedy: Trusted: nothing is drawn, and temperatures are not read.
        all_random: Trusted: no temperature is below 1e-5.
    """

    temperature: Tensor  # [batch_size] float32
    top_k: Tensor | None = None  # [num_rows] int32
    top_p: Tensor | None = None  # [num_rows] float32
    min_p: Tensor | None = None  # [num_rows] float32
    all_greedy: bool = False
    all_random: bool = False

    @property
    def is_greedy(self) -> Tensor:  # [batch_size] bool
        """Return which requests are greedy; decided here and nowhere else."""
        return self.temperature < GREEDY_BELOW


@dataclass(frozen=True, eq=False)
class UpstreamNoise:
    """Noise of vLLM 0.22.0: an exponential per request and token, from torch's default generator or the request's own.

    Args:
        generators: Request to its own generator.

    Randomness:
        `batch_size * vocab_size` exponentials from the default generator, unless every request has its own; then
        `vocab_size` from each own generator, in dict order, greedy requests included. If all are greedy, none.
    """

    generators: Generators = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class RaceNoise:
    """The exponentials themselves: a function of its arguments alone."""

    exponentials: Tensor  # [batch_size, vocab_size] float32


@dataclass(frozen=True, eq=False)
class CounterNoise:
    """One uniform per request, a function of (seed, position): other requests and earlier calls do not matter.

    Args:
        seeds: Of the requests; given by the user, or drawn once when the request arrives.
        positions: Index of the token to be drawn in its request's text. No two draws of a request may share it.
    """

    seeds: Tensor  # [batch_size] int64
    positions: Tensor  # [batch_size] int64


SamplingNoise = UpstreamNoise | RaceNoise | CounterNoise
"""Noise drawn as vLLM draws it, handed in, or a function of counters."""


class DrawCall(NamedTuple):
    """Arguments of the kernels. Rows are contiguous, and all other tensors altogether."""

    logits: Tensor  # [num_rows, vocab_size] float32
    temperature: Tensor  # [batch_size] float32
    min_p: Tensor | None  # [num_rows] float32
    seeds: Tensor  # [batch_size] int64
    positions: Tensor  # [batch_size] int64
    stream: int


Plan = Callable[[DrawCall], tuple[Tensor, Tensor]]
KNOWN: Kinds[Plan] = Kinds()
"""Plans of calls that passed their checks as they are and were launched."""


def check_arguments(
    function: str, logits: LogitRows, parameters: SamplingParameters, noise: SamplingNoise, validate: bool
) -> None:
    """Check everything that the host knows; with `validate` also values inside tensors.

    Raises:
        TypeError: If an argument is of the wrong kind.
        ValueError: If a shape, dtype, device, generator or value is wrong.
    """
    if not isinstance(logits, Tensor):
        raise TypeError(f"{function}: logits={logits!r}, but it must be a tensor [batch_size, vocab_size]. Pass one.")
    if logits.ndim != 2 or logits.shape[1] == 0:
        raise ValueError(
            f"{function}: logits.shape={list(logits.shape)}, but it must be [batch_size, vocab_size] with a token in "
            f"the vocabulary. Give each request a row."
        )
    check_tensor(function, "logits", logits, logits.shape, FLOATS, logits.device)
    batch_size, per_request = logits.shape[0], logits.shape[:1]
    check_flags(function, parameters.all_greedy, parameters.all_random, batch_size, f"temperature < {GREEDY_BELOW}")
    tensors: list[tuple[str, object, torch.Size, tuple[torch.dtype, ...]]] = [
        ("temperature", parameters.temperature, per_request, FLOAT32)
    ]
    filters = {"top_k": IDS, "top_p": FLOAT32, "min_p": FLOAT32}
    for name, known in filters.items():
        if getattr(parameters, name) is not None:
            tensors.append((name, getattr(parameters, name), per_request, known))
    if isinstance(noise, RaceNoise):
        tensors.append(("exponentials", noise.exponentials, logits.shape, FLOAT32))
    elif isinstance(noise, CounterNoise):
        tensors += [(name, getattr(noise, name), per_request, INT64) for name in ("seeds", "positions")]
    elif not isinstance(noise, UpstreamNoise):
        raise TypeError(
            f"{function}: noise={type(noise).__name__}, but it must be UpstreamNoise, RaceNoise or CounterNoise. "
            f"Use UpstreamNoise(generators)."
        )
    elif not isinstance(noise.generators, Mapping):
        raise TypeError(
            f"{function}: generators={type(noise.generators).__name__}, but it must map requests to generators. "
            f"Use a dict."
        )
    else:
        check_generators(function, noise.generators, batch_size)
    reference = f"logits.shape={list(logits.shape)}"
    for name, value, shape, dtypes in tensors:
        check_tensor(function, name, value, shape, dtypes, logits.device, reference=reference)
    if validate:
        _check_values(function, logits.shape[1], parameters, noise)


def _check_values(function: str, vocab_size: int, parameters: SamplingParameters, noise: SamplingNoise) -> None:
    """Check what only the device knows. Waits for it."""
    temperature, top_k, top_p, min_p = parameters.temperature, parameters.top_k, parameters.top_p, parameters.min_p
    good = (temperature >= 0) & temperature.isfinite()
    check_all(function, "temperature", temperature, good, "finite and at least 0. Use 0 for a greedy request.")
    if top_k is not None:
        rule = f"in [1, {vocab_size}]. Use vocab_size to keep all."
        check_all(function, "top_k", top_k, (top_k >= 1) & (top_k <= vocab_size), rule)
    if top_p is not None:
        check_all(function, "top_p", top_p, (top_p > 0) & (top_p <= 1), "in (0, 1]. Use 1 to keep all.")
    if min_p is not None:
        check_all(function, "min_p", min_p, (min_p >= 0) & (min_p <= 1), "in [0, 1]. Use 0 to keep all.")
    if isinstance(noise, RaceNoise):
        values = noise.exponentials
        check_all(function, "exponentials", values, values > 0, "positive. Use Tensor.exponential_.")
