"""The models of a decoding setup as tensors on the sampler's device: from prefixes to logits and probabilities.

A GPU verifies a million drafts while a CPU looks up a thousand contexts, so models and draws are on the sampler's own
device; on a CPU they give the same as NumPy.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

import numpy as np
import torch

from fairdraw.protocols import GREEDY_TEMPERATURE
from fairdraw.statistical._validation import refuse

if TYPE_CHECKING:
    from torch import Tensor

    from fairdraw.statistical._decode import DecodeSetup


@lru_cache(maxsize=16)
def models_on(setup: DecodeSetup, device: str) -> ModelsOnDevice:
    """The models of `setup` on `device`, moved there once."""
    return ModelsOnDevice(setup, device)


@dataclass(frozen=True, eq=False)
class ModelsOnDevice:
    """Draft and target model of a setup, for tensors of `device`."""

    setup: DecodeSetup
    device: str

    @cached_property
    def _target(self) -> Tensor:  # [vocab_size ** context_size, vocab_size] float32
        """The logits of the target model."""
        return torch.from_numpy(self.setup.target.logits).to(self.device)

    @cached_property
    def _draft(self) -> Tensor:  # [vocab_size ** context_size, vocab_size] float32
        """The logits of the draft model."""
        return torch.from_numpy(self.setup.draft.logits).to(self.device)

    @cached_property
    def _temperatures(self) -> Tensor:  # [num_temperatures] float32
        """The temperatures of the setup."""
        return torch.tensor(self.setup.temperatures, dtype=torch.float32, device=self.device)

    def temperature(
        self,
        requests: Tensor,  # [batch_size] int64
    ) -> Tensor:  # [batch_size] float32
        """The temperature of each request."""
        return self._temperatures[requests % len(self._temperatures)]

    def target_logits(
        self,
        prefixes: Tensor,  # [batch_size, width] int64, -1 after the last token
        requests: Tensor,  # [batch_size] int64
    ) -> Tensor:  # [batch_size, vocab_size] float32
        """Processed logits of the next token: a function of prefix and request alone, computed from scratch."""
        setup, logits = self.setup, self._target[self.setup.target.contexts_of(prefixes)]
        if setup.has_penalties:
            seen = _count_tokens(prefixes[:, setup.prompt_size :], setup.vocab_size).double()
            penalty = setup.frequency_penalty * seen + setup.presence_penalty * (seen > 0)
            logits = logits - penalty.float()
        return logits / self._divisor(requests)

    def target_probs(
        self,
        logits: Tensor,  # [batch_size, vocab_size] float32
        requests: Tensor,  # [batch_size] int64
    ) -> Tensor:  # [batch_size, vocab_size] float64
        """The distribution that processed logits stand for: their softmax, or the argmax alone for a greedy request.

        Raises:
            ValueError: If a logit is not finite: the models have no impossible tokens.
        """
        if not bool(logits.isfinite().all()):
            raise refuse("target_probs", "a logit is not finite", "all must be", "Look at the penalties.")
        probs = logits.double().softmax(dim=1)
        if GREEDY_TEMPERATURE not in self.setup.temperatures:
            return probs
        is_greedy = self.temperature(requests) == GREEDY_TEMPERATURE
        best = torch.nn.functional.one_hot(first_argmax(logits), logits.shape[1])
        return torch.where(is_greedy[:, None], best.double(), probs)

    def draft_probs(
        self,
        prefixes: Tensor,  # [batch_size, width] int64, -1 after the last token
        requests: Tensor,  # [batch_size] int64
    ) -> Tensor:  # [batch_size, vocab_size] float32
        """The distribution of the next draft token: the draft model at the request's temperature, without penalties."""
        logits = self._draft[self.setup.draft.contexts_of(prefixes)] / self._divisor(requests)
        return logits.double().softmax(dim=1).float()

    def _divisor(
        self,
        requests: Tensor,  # [batch_size] int64
    ) -> Tensor:  # [batch_size, 1] float32
        """Greedy requests are not scaled."""
        temperature = self.temperature(requests)
        return torch.where(temperature == GREEDY_TEMPERATURE, 1.0, temperature)[:, None]


class DeviceStream:
    """Random numbers of one seed: from NumPy on a CPU, else from a generator of the device."""

    def __init__(self, seed: int, device: str) -> None:
        self._device, self._on_cpu = device, torch.device(device).type == "cpu"
        self._numpy = np.random.default_rng(seed)
        self._torch = torch.Generator(device).manual_seed(seed)

    def integers(self, high: int, size: int) -> Tensor:  # [size] int64
        """Integers in `[0, high)`."""
        if self._on_cpu:
            return torch.from_numpy(self._numpy.integers(0, high, size))
        return torch.randint(high, (size,), generator=self._torch, device=self._device)

    def draw(
        self,
        probs: Tensor,  # [batch_size, vocab_size] float
    ) -> Tensor:  # [batch_size] int64
        """One token per row by inverse CDF; a token of probability 0 is never drawn."""
        cdf, shape = probs.double().cumsum(dim=1), (len(probs), 1)
        if self._on_cpu:
            uniforms = torch.from_numpy(self._numpy.random(shape))
        else:
            uniforms = torch.rand(shape, generator=self._torch, dtype=torch.float64, device=self._device)
        return (cdf <= uniforms * cdf[:, -1:]).sum(dim=1)


def first_argmax(
    rows: Tensor,  # [batch_size, vocab_size] float
) -> Tensor:  # [batch_size] int64
    """The first of the largest: `Tensor.argmax` guarantees no order among equals."""
    places = torch.arange(rows.shape[1], device=rows.device)
    return torch.where(rows == rows.amax(dim=1, keepdim=True), places, rows.shape[1]).amin(dim=1)


def _count_tokens(
    tokens: Tensor,  # [batch_size, width] int64, -1 is no token
    vocab_size: int,
) -> Tensor:  # [batch_size, vocab_size] int64
    """How often each token occurs in each row."""
    rows = torch.arange(len(tokens), device=tokens.device)[:, None] * (vocab_size + 1)
    codes = torch.where(tokens >= 0, tokens, vocab_size) + rows
    counts = torch.bincount(codes.ravel(), minlength=len(tokens) * (vocab_size + 1))
    return counts.reshape(-1, vocab_size + 1)[:, :-1]
