"""The samplers without a fault: what they fail is a false alarm."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from exam.areas import EXAMPLE
from exam.registry import CONTROL, fault
from exam.right_plan import Planner
from exam.right_rejection import OwnRejection, Rejection, TorchRejection
from exam.right_sampling import CounterSampling, OwnSampling, Sampling, TorchSampling
from exam.right_scanners import Budgets, Penalties

if TYPE_CHECKING:
    import random

    from exam.registry import Planted

_RIGHT: dict[str, type[Any]] = {  # Any: a sampler of some contract
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
    def builder(rng: random.Random) -> Planted:
        return f"nothing: a right sampler ({name.replace('_', ' ')})", kind

    builder.__name__ = f"right_{name}"
    fault(CONTROL, EXAMPLE)(builder)


for _name, _kind in _RIGHT.items():
    _register(_name, _kind)
