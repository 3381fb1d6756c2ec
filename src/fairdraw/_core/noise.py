"""Seeds as noise, what a drafter returns, and the random generators around a call."""

from __future__ import annotations

import random
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import torch
    from torch import Tensor


@dataclass(frozen=True)
class SeededNoise:
    """Seeds from which the sampler draws its own random numbers.

    The harness seeds the global generators of torch, NumPy and `random` with `seed` just before the sampler, so a
    sampler that uses these need do nothing; one with its own counters should take `seed`.

    `generators` are made once for each object, and the harness reads the states in which the sampler left them. Most
    checks make one call with an object. Those of consecutive steps make several: a request's generator then goes on
    from where the call before left it, as in a server.

    The checks of a drafter and its verifier keep one object for all of its requests' calls, and seed torch's default
    generator before the first of them only. A sampler with counters draws by a request's seed and position; what it
    gives a request without a seed when it first sees it belongs into `kept`. That is empty at first, and what a sampler
    puts there it finds again at its next call with this object.

    Args:
        seed: For everything that has no generator of its own.
        request_seeds: Request to the seed of its own generator: any integer of 64 bits, negative ones among them,
            because users write them and torch's generators and vLLM's requests take them.
    """

    seed: int
    request_seeds: Mapping[int, int] = field(default_factory=dict)
    kept: dict[str, object] = field(default_factory=dict, init=False, repr=False, compare=False)
    _live: dict[int, torch.Generator] = field(default_factory=dict, init=False, repr=False, compare=False)

    def generators(self, device: str | torch.device = "cpu") -> dict[int, torch.Generator]:
        """One generator per seeded request; the same objects at every call."""
        import torch

        for request, seed in self.request_seeds.items():
            if request not in self._live:
                self._live[request] = torch.Generator(device).manual_seed(seed)
        return self._live


@dataclass(frozen=True, eq=False)
class Drafted:
    """What a drafter returns: a token per request, and the distribution that it was drawn from.

    Args:
        draft_probs: `None` from `propose` only: drafts are one-hot, whatever they were chosen by.
    """

    token_ids: Tensor  # [batch_size] int32 | int64
    draft_probs: Tensor | None  # [batch_size, vocab_size] float32


@contextmanager
def seeded(noise: object, device: torch.device) -> Iterator[None]:
    """Seed every global generator with the seed of `SeededNoise`: torch's of all devices, NumPy's and Python's.

    The states of torch's generators are put back afterwards; those of the others at the end of the check, since to keep
    them takes as long as a small call (`fairdraw._core.isolation.suite_state`).
    """
    import numpy as np
    import torch

    on_gpus = device.type == "cuda" or torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    with torch.random.fork_rng(devices=range(torch.cuda.device_count()) if on_gpus else []):
        if isinstance(noise, SeededNoise):
            random.seed(noise.seed & (1 << 64) - 1)  # the sign is lost otherwise
            np.random.seed((noise.seed ^ noise.seed >> 32) & 0xFFFFFFFF)
            # `torch.manual_seed` formats three stack traces, too, for devices that may wake later: a third of a call.
            (torch.manual_seed if on_gpus else torch.default_generator.manual_seed)(noise.seed)
        yield


def generator_states(noise: object, device: torch.device) -> dict[int, bytes]:
    """Request to the state of its own generator; empty unless the noise is `SeededNoise`."""
    generators = noise.generators(device) if isinstance(noise, SeededNoise) else {}
    return {request: generator.get_state().numpy().tobytes() for request, generator in generators.items()}


def default_state(device: torch.device) -> bytes:
    """The state of torch's default generator on `device`."""
    import torch

    state = torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()
    return state.numpy().tobytes()
