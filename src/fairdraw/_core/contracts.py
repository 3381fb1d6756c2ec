"""What a contract says of itself, and all contracts by name. This module names none of them, and is cheap to import."""

import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from inspect import signature
from typing import Any

from fairdraw._core.capabilities import Capabilities, Capability
from fairdraw._core.policies import Policy, policy_of


@dataclass(frozen=True)
class Contract:
    """One contract. Parts are written `module:attribute` and loaded when they are needed.

    Args:
        call: The method that an object under this contract has beside a name, a device and capabilities, and its
            arguments.
        case: The class of its cases, with `from_json`, `to_json` and `build`.
        raised: Code of a report of an exception.
        answer: What a call returns, as a sentence of reports.
        beside: Other methods that a sampler may have; beside one that a capability stands for, that capability and what
            a sampler without the method does.
        mutants: Where the mutants are; `{name}` stands for the contract's, here and below.
        right: Where the factory of the specification as a sampler is: what mutants are compared with.
        default: The sampler under test if none is named.
        reference: The sampler that differential checks compare with if none is named; empty for none.
        policy: The class of its policies, if several ways are right.
        features: Adds to a `Look` what the arguments of a call hold, where calls stand alone.
        session: From the arguments that open a session to what looks at its calls, as `_live.SessionLook` does.
        uses: What a batch holds that a correct sampler may not take: of an exception, the likely reason.
        has_distributions: Whether outputs are random, so that there are distributions to test.
        draws_with: The capability without which a sampler draws nothing, and has no distribution to test.
        is_remote: Whether calls go to a server: each costs time, and no argument is a tensor that coverage can look at.
        takes_noise: Whether noise can be an argument of a call.
        one_of: Words of capabilities of which a sampler must support one.
    """

    name: str
    call: str
    case: str
    raised: str
    answer: str
    beside: Mapping[str, tuple[Capability, str] | None] = field(default_factory=dict)
    mutants: tuple[str, ...] = ("fairdraw._mutants.{name}:MUTANTS",)
    right: str = "fairdraw._mutants.{name}:right"
    default: str = "{name}"
    reference: str = "{name}/vllm"
    policy: type[Policy] | None = None
    features: Callable[..., None] = lambda *_: None
    session: Callable[[Any], Any] | None = None  # Any: of the contract
    uses: Callable[[Any], Iterable[Capability]] = lambda _: ()  # Any: a batch of the contract
    has_distributions: bool = False
    draws_with: str = ""
    is_remote: bool = False
    takes_noise: bool = False
    one_of: tuple[str, ...] = ()

    @property
    def method(self) -> str:
        """The name of its method."""
        return self.call.partition("(")[0]

    def is_met(self, subject: object) -> bool:
        """Whether the method of `subject` takes the arguments, and so does the function that a wrapper of ours has."""
        method, home = getattr(subject, self.method, None), type(subject).__module__
        called = (method, getattr(subject, "function", method) if home.startswith("fairdraw.contracts.") else method)
        return all(_takes(one, self.call.count(",") + 1) for one in called)

    def __post_init__(self) -> None:
        object.__setattr__(self, "mutants", tuple(path.format(name=self.name) for path in self.mutants))
        for field_name in ("right", "default", "reference"):
            object.__setattr__(self, field_name, getattr(self, field_name).format(name=self.name))


class _Contracts(Mapping[str, Contract]):
    """The contracts by name, in the order of `fairdraw.contracts.NAMES`; imported when one is first asked for."""

    @cached_property
    def _found(self) -> dict[str, Contract]:
        package = "fairdraw.contracts"
        names = importlib.import_module(package).NAMES
        modules = (importlib.import_module(f"{package}._{name}") for name in names)
        return {module.CONTRACT.name: module.CONTRACT for module in modules}

    def __getitem__(self, name: str) -> Contract:
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)


CONTRACTS: Mapping[str, Contract] = _Contracts()
"""Every contract that has checks."""


def contract_of(subject: object) -> Contract | None:
    """Return the contract that `subject` declares, or whose method it has; `None` if there is none."""
    declared = CONTRACTS.get(str(getattr(subject, "contract", "")))
    having = (contract for contract in CONTRACTS.values() if hasattr(subject, contract.method))
    return declared or next(having, None)


def contract_name(subject: object) -> str | None:
    """Return the name of the contract of `subject`; `None` if it has none."""
    contract = contract_of(subject)
    return None if contract is None else contract.name


def what_lacks(subject: object) -> str:
    """Return what `subject` is and what it lacks to be under its contract, or under any; empty if it lacks nothing."""
    missing, contract = [name for name in ("name", "device") if not hasattr(subject, name)], contract_of(subject)
    if not isinstance(getattr(subject, "capabilities", None), Capabilities):
        missing.append("capabilities of the type fairdraw.Capabilities")
    if contract is None:
        missing.append(" or ".join(one.method for one in CONTRACTS.values()))
    elif not contract.is_met(subject):
        missing.append(contract.call.replace("(", " that takes (", 1))
    kind = f"the class {subject.__name__}" if isinstance(subject, type) else type(subject).__name__
    return f"{kind}, which has no {', '.join(missing)}" if missing else ""


def _takes(called: Any, number: int) -> bool:  # Any: whatever stands where a function should
    """Whether `called` takes so many arguments. What has no signature, as code in C, may."""
    try:
        signature(called).bind(*range(number))
    except (TypeError, ValueError) as error:
        return isinstance(error, ValueError)
    return True


def load_part(path: str) -> Any:  # Any: a class, a function or a tuple, as the field's docstring says
    """Return what `module:attribute` names."""
    module, _, attribute = path.partition(":")
    return getattr(importlib.import_module(module), attribute)


def declared_policy(subject: object, contract: str) -> Policy | None:
    """Return the policy of a sampler under `contract`; `None` if that contract has none.

    Raises:
        ValueError: If its attribute `policy` is something else.
    """
    kind = CONTRACTS[contract].policy
    return None if kind is None else policy_of(subject, kind)
