"""The samplers without a fault: what they fail is a false alarm."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from exam.areas import EXAMPLE
from exam.correct_plan import Planner
from exam.correct_rejection import OwnRejection, Rejection, TorchRejection
from exam.correct_sampling import CounterSampling, OwnSampling, Sampling, TorchSampling
from exam.correct_scanners import Budgets, Penalties
from exam.registry import CONTROL, fault

if TYPE_CHECKING:
    import random

    from exam.registry import Wrong

CORRECT: dict[str, type[Any]] = {  # Any: a sampler of some contract
    "rejection": Rejection,
    "rejection_own_noise": OwnRejection,
    "rejection_torch_noise": TorchRejection,
    "sampling": Sampling,
    "sampling_own_noise": OwnSampling,
    "sampling_torch_noise": TorchSampling,
    "sampling_counters": CounterSampling,
    "penalties": Penalties,
    "thinking_budget": Budgets,
    "logits_plan": Planner,
}


def _register(name: str, kind: type[Any]) -> None:
    def builder(rng: random.Random) -> Wrong:
        return f"nothing: a correct sampler ({name.replace('_', ' ')})", kind

    builder.__name__ = f"correct_{name}"
    fault(CONTROL, EXAMPLE)(builder)


for _name, _kind in CORRECT.items():
    _register(_name, _kind)
