"""Calls that come again: what was checked of arguments of one kind is not checked again for others of that kind.

A *kind* is all that checks depend on: of a tensor its type, device, shape, strides and sign bit, of a number itself.
Contents and addresses are no part of it. Engines call with few kinds, or with a new one per size of the batch: the last
ones are kept. No tensor is.
"""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

    from torch import Tensor

MOST = 512
"""Kinds of each function: 1 to 5 KB each."""

Plan = TypeVar("Plan")
_PLAIN = frozenset({type(None), bool, int})


class Kinds(Generic[Plan]):
    """Plans of calls that passed their checks, by the kind of their arguments. Any thread may find and add.

    Interpreted kernels add none: on a CPU `backend=None` is PyTorch, whatever kind of call was made before."""

    def __init__(self) -> None:
        self.plans: dict[Hashable, Plan] = {}
        self.lock = Lock()

    def find(self, arguments: Iterable[Any]) -> Plan | None:  # Any: of any kind, which is what is to be found out
        """Find the plan of a call; `None` also for arguments of a wrong kind: the checks name them."""
        try:
            return self.plans.get(kind_of(arguments))
        except (AttributeError, TypeError, RuntimeError):
            return None

    def find_or_make(self, arguments: Iterable[Any], make: Callable[[], Plan]) -> Plan:  # Any: as above
        """Find or make the plan of arguments that passed their checks."""
        kind = kind_of(arguments)
        plan = self.plans.get(kind)
        if plan is None:
            plan = make()
            with self.lock:
                while len(self.plans) >= MOST:
                    del self.plans[next(iter(self.plans))]
                self.plans[kind] = plan
        return plan


def kind_of(arguments: Iterable[Any]) -> Hashable:  # Any: as above
    return tuple([value if type(value) in _PLAIN else _kind_of_tensor(value) for value in arguments])


def _kind_of_tensor(
    tensor: Tensor,  # [...] any
) -> Hashable:
    return tensor.dtype, tensor.device, tensor.shape, tensor.stride(), tensor.is_neg()
