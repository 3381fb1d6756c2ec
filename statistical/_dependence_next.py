"""What is drawn next from the same stream: does it repeat the numbers that tokens were drawn with?

A call draws tokens, and then comes somebody else: a `torch.rand` (the coins of a verification), a race of torch's
exponentials or on `torch.rand` (a drafter), or the sampler's own next call. All draw from torch's default generator,
which nobody seeds between. Bits of the tokens and bits of what came next are features of one row, and `_dependence`
searches for relations between features, in the same row and at all distances.

torch's generator is seeded with another seed than the one that the sampler gets. So a sampler with a generator of its
own, or counters, does not repeat torch's numbers, although the suite's other checks seed both alike.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fairdraw._core.noise import seeded
from fairdraw._core.seeds import derive_seed
from fairdraw.contracts import Capability, SeededNoise
from fairdraw.contracts._rejection import emit_next
from fairdraw.contracts._sampling import sample_next
from fairdraw.statistical import _dependence_workloads as workloads
from fairdraw.statistical._dependence import gray_bits
from fairdraw.statistical._workloads import SamplingPlan, Setting, Workload

Bits = NDArray[np.bool_]  # [num_rows, num_features] bool


TABLES = "D1 rows apart", "D4"
"""All rows at one distance, and draws of one row. Two rows alone are not looked at: streams repeat in order."""


@dataclass(frozen=True)
class _Drawing:
    """How a contract draws, and what its draws are.

    Args:
        race: What is raced for: `[vocab_size] float64`.
        call: From a sampler, a number of rows, the seed of their noise and another seed to a function that makes the
            call and returns its bits. Its batch is built before.
    """

    features: tuple[str, ...]
    race: NDArray[np.float64]
    call: Callable[[Any, int, int, int], Callable[[], Bits]]  # Any: a sampler of either contract


def _uniforms(drawing: _Drawing, num_rows: int, device: str, seed: int) -> Bits:
    return gray_bits(torch.rand(num_rows, device=device).double().cpu().numpy(), 3)


def _raced(drawing: _Drawing, num_rows: int, device: str, seed: int, *, by_uniforms: bool = False) -> Bits:
    shape = num_rows, drawing.race.size
    numbers = torch.rand(shape, device=device) if by_uniforms else torch.empty(shape, device=device).exponential_()
    drawn = np.maximum(numbers.double().cpu().numpy(), 2.0**-60)
    tokens = np.argmax(drawing.race / (-np.log(drawn) if by_uniforms else drawn), axis=1)
    return workloads.pit_bits(drawing.race, tokens, np.ones(num_rows, bool), workloads.harness_rng(seed), 3)


_NEXT: dict[str, Callable[[_Drawing, int, str, int], Bits]] = {
    "torch.rand": _uniforms,
    "a race of torch's exponentials": _raced,
    "a race on torch.rand": partial(_raced, by_uniforms=True),
}
_AGAIN = "its next call"


def _plan(setting: Setting, drawing: _Drawing) -> SamplingPlan:
    """Enough for a checkpoint, however few the draws; a slow sampler is followed by `torch.rand` and itself alone."""
    enough = replace(setting, num_draws=max(_FEWEST, setting.num_draws))
    names = (*_NEXT, _AGAIN) if setting.num_draws >= _FEWEST_FOR_ALL else ("torch.rand", _AGAIN)
    return workloads.dependence_plan(enough, _kinds(drawing, setting.device, names), TABLES)


_FEWEST, _FEWEST_FOR_ALL = 256, 1000


def _kinds(drawing: _Drawing, device: str, names: tuple[str, ...]) -> tuple[workloads.Kind, ...]:
    """One for each that draws next."""

    def kind(name: str) -> workloads.Kind:
        def draw(sampler: Any, num_rows: int, noise_seed: int, seed: int) -> Bits:
            first = drawing.call(sampler, num_rows, noise_seed, seed)
            again = derive_seed("again", seed)
            then = drawing.call(sampler, num_rows, again, again) if name == _AGAIN else None
            with seeded(SeededNoise(derive_seed("torch", seed)), torch.device(device)):
                bits = first()
                after = then() if then else _NEXT[name](drawing, num_rows, device, again)
            return np.concatenate([bits, after], axis=1)

        later = drawing.features if name == _AGAIN else tuple(f"bit {i}" for i in range(3))
        return workloads.Kind(f"then {name}", (*drawing.features, *(f"{name}: {one}" for one in later)), draw, 2)

    return tuple(map(kind, names))


# -- rejection --------------------------------------------------------------------------------------------------------

_TOKEN, _DENSE = Capability.TOKEN_VERIFICATION, Capability.DENSE_DRAFTS
_ONE_DRAFT = workloads.Verified(
    "one draft", 0.5, (1 / 4, 1 / 4, 1 / 8, 1 / 8, 1 / 16, 1 / 16, 1 / 16, 1 / 16), (1, 3), 1
)


@Workload.of("rejection: what is drawn next", "dependence", 0.05, 0.2, _DENSE, _TOKEN)
def rejection_next(setting: Setting) -> SamplingPlan:
    """After a verification of one draft per request."""
    given, is_verified = _ONE_DRAFT.configuration(dense=_DENSE in setting.supported), _TOKEN in setting.supported
    read, features = _ONE_DRAFT.bits if is_verified else _ONE_DRAFT.emitted_bits, _ONE_DRAFT.features

    def call(sampler: Any, num_rows: int, noise_seed: int, seed: int) -> Callable[[], Bits]:
        batch, named = given.batch(num_rows, seed, setting.device), features(is_verified=is_verified)
        noise, rng = SeededNoise(noise_seed), workloads.harness_rng(seed)
        return lambda: read(given, emit_next(sampler, batch, noise), rng)[:, : len(named)]

    return _plan(setting, _Drawing(features(is_verified=is_verified), given.requests[0].residual(0, 0), call))


# -- sampling ---------------------------------------------------------------------------------------------------------


@Workload.of("sampling: what is drawn next", "dependence", 0.05, 0.2)
def sampling_next(setting: Setting) -> SamplingPlan:
    """After a draw of one token per request."""
    probs = workloads.PROBS["eight tokens"]
    row = np.log(probs).astype(np.float32)

    def call(sampler: Any, num_rows: int, noise_seed: int, seed: int) -> Callable[[], Bits]:
        batch = workloads.plain_batch(np.tile(row, (num_rows, 1)), seed % 1000, setting.device)
        noise, rng = SeededNoise(noise_seed), workloads.harness_rng(seed)
        return lambda: workloads.pit_bits(probs, sample_next(sampler, batch, noise), np.ones(num_rows, bool), rng, 3)

    return _plan(setting, _Drawing(tuple(f"token, bit {bit}" for bit in range(3)), probs, call))
