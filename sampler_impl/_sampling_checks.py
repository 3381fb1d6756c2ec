"""The border of the plain sampler: what its arguments must be.

Shapes, dtypes and devices are checked on every call, on the host. Values inside tensors would cost a device
synchronisation, so they are checked only when asked (`check_values`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ._checks import _check_all

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ._noise import Generators

GREEDY_BELOW = 1e-5
"""A request with a lower temperature is greedy, as in vLLM's `Sampler` (its rejection sampler asks for exactly 0)."""

_LOGITS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
_IDS = (torch.int32, torch.int64)


@dataclass(frozen=True, eq=False)
class SamplingParameters:
    """What requests ask for; `None` for a filter that no request uses.

    Args:
        temperature: Divides the logits. Below 1e-5 a request is greedy: the largest logit, the lowest id on ties, and
            no filter has a say.
        top_k: Between 1 and `vocab_size`, which keeps all.
        top_p: Above 0, at most 1, which keeps all.
        min_p: Between 0, which keeps all, and 1.
        all_greedy: Believed: nothing is drawn, and temperatures are not looked at.
        all_random: Believed: no temperature is below 1e-5.
    """

    temperature: Tensor  # [batch_size] float32
    top_k: Tensor | None = None  # [num_rows] int32
    top_p: Tensor | None = None  # [num_rows] float32
    min_p: Tensor | None = None  # [num_rows] float32
    all_greedy: bool = False
    all_random: bool = False

    @property
    def has_filters(self) -> bool:
        return any(values is not None for values in (self.top_k, self.top_p, self.min_p))

    @property
    def is_greedy(self) -> Tensor:  # [batch_size] bool
        """Which requests are greedy; decided here and nowhere else."""
        return self.temperature < GREEDY_BELOW


@dataclass(frozen=True, eq=False)
class UpstreamNoise:
    """vLLM 0.22.0's: an exponential per request and token, from torch's default generator or the request's own.

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
    """One uniform per request, a function of (seed, position): no batch mate, batch size or earlier call has a say.

    Args:
        seeds: Of the requests; given by the user, or drawn once when the request arrives.
        positions: Index of the token to be drawn in its request's text. No two draws of a request may share it.
    """

    seeds: Tensor  # [batch_size] int64
    positions: Tensor  # [batch_size] int64


SamplingNoise = UpstreamNoise | RaceNoise | CounterNoise
"""Whose noise: drawn as vLLM draws it, handed over, or a function of counters."""


def check_arguments(
    function: str,
    logits: Tensor,  # [num_rows, vocab_size] float32
    parameters: SamplingParameters,
    noise: SamplingNoise,
) -> None:
    """Everything that the host knows.

    Raises:
        TypeError: If an argument is of the wrong kind.
        ValueError: If a shape, dtype, device or generator is wrong.
    """
    _check_logits(function, logits)
    batch_size, vocab_size = logits.shape
    if parameters.all_greedy and parameters.all_random and batch_size > 0:
        raise ValueError(
            f"{function}: all_greedy=True and all_random=True, but at most one can hold for {batch_size} requests. "
            f"Use temperature < {GREEDY_BELOW} to tell."
        )
    _check_tensor(function, "temperature", parameters.temperature, (batch_size,), (torch.float32,), logits)
    filters = {"top_k": _IDS, "top_p": (torch.float32,), "min_p": (torch.float32,)}
    for name, dtypes in filters.items():
        if getattr(parameters, name) is not None:
            _check_tensor(function, name, getattr(parameters, name), (batch_size,), dtypes, logits)
    if isinstance(noise, RaceNoise):
        shape = (batch_size, vocab_size)
        _check_tensor(function, "exponentials", noise.exponentials, shape, (torch.float32,), logits)
    elif isinstance(noise, CounterNoise):
        _check_tensor(function, "seeds", noise.seeds, (batch_size,), (torch.int64,), logits)
        _check_tensor(function, "positions", noise.positions, (batch_size,), (torch.int64,), logits)
    elif isinstance(noise, UpstreamNoise):
        _check_generators(function, noise.generators, batch_size)
    else:
        raise TypeError(
            f"{function}: noise={type(noise).__name__}, but it must be UpstreamNoise, RaceNoise or CounterNoise. "
            f"Use UpstreamNoise(generators)."
        )


def check_values(
    function: str,
    logits: Tensor,  # [num_rows, vocab_size] float32
    parameters: SamplingParameters,
    noise: SamplingNoise,
) -> None:
    """What only the device knows. Waits for it.

    Raises:
        ValueError: At the first value that is out of its range.
    """
    temperature, top_k, top_p, min_p = (
        parameters.temperature,
        parameters.top_k,
        parameters.top_p,
        parameters.min_p,
    )
    good = (temperature >= 0) & temperature.isfinite()
    _check_all(function, "temperature", temperature, good, "finite and at least 0. Use 0 for a greedy request.")
    if top_k is not None:
        rule = f"in [1, {logits.shape[1]}]. Use vocab_size to keep all."
        _check_all(function, "top_k", top_k, (top_k >= 1) & (top_k <= logits.shape[1]), rule)
    if top_p is not None:
        _check_all(function, "top_p", top_p, (top_p > 0) & (top_p <= 1), "in (0, 1]. Use 1 to keep all.")
    if min_p is not None:
        _check_all(function, "min_p", min_p, (min_p >= 0) & (min_p <= 1), "in [0, 1]. Use 0 to keep all.")
    if isinstance(noise, RaceNoise):
        values = noise.exponentials
        _check_all(function, "exponentials", values, values > 0, "positive. Use Tensor.exponential_.")


def _check_logits(
    function: str,
    logits: Tensor,  # [num_rows, vocab_size] float32
) -> None:
    if not isinstance(logits, Tensor):
        raise TypeError(f"{function}: logits={logits!r}, but it must be a tensor [batch_size, vocab_size]. Pass one.")
    if logits.ndim != 2 or logits.shape[1] == 0:
        raise ValueError(
            f"{function}: logits.shape={list(logits.shape)}, but it must be [batch_size, vocab_size] with a token in "
            f"the vocabulary. Give each request a row."
        )
    if logits.dtype not in _LOGITS:
        raise ValueError(f"{function}: logits.dtype={logits.dtype}, but it must be a float. Use logits.float().")


def _check_tensor(
    function: str,
    name: str,
    value: object,
    shape: Sequence[int],
    dtypes: Sequence[torch.dtype],
    logits: Tensor,  # [num_rows, vocab_size] float32
) -> None:
    if not isinstance(value, Tensor):
        raise TypeError(f"{function}: {name}={value!r}, but it must be a tensor of shape {list(shape)}. Pass one.")
    if list(value.shape) != list(shape):
        raise ValueError(
            f"{function}: {name}.shape={list(value.shape)}, but it must be {list(shape)}. "
            f"Check it against logits.shape={list(logits.shape)}."
        )
    if value.dtype not in dtypes:
        known = " or ".join(str(dtype) for dtype in dtypes)
        raise ValueError(f"{function}: {name}.dtype={value.dtype}, but it must be {known}. Use {name}.to({dtypes[0]}).")
    if value.device != logits.device:
        raise ValueError(
            f"{function}: {name}.device={value.device}, but it must be {logits.device}, where logits are. "
            f"Use {name}.to(logits.device)."
        )


def _check_generators(function: str, generators: object, batch_size: int) -> None:
    if not isinstance(generators, Mapping):
        raise TypeError(
            f"{function}: generators={type(generators).__name__}, but it must map requests to generators. Use a dict."
        )
    for req_idx in generators:
        if not 0 <= req_idx < batch_size:
            raise ValueError(
                f"{function}: generators has key {req_idx}, but keys must be requests in [0, {batch_size}). "
                f"Drop generators of requests that left the batch."
            )
