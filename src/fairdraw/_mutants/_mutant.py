"""What a mutant is, and how an oracle with one changed step becomes one."""

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from fairdraw.contracts import Capability, FunctionSampler, FunctionTokenSampler, rejection_sampler, token_sampler

Memory = dict[Any, Any]  # Any: whatever a mutant keeps from call to call

EXPLICIT, RATES = (Capability.EXPLICIT_NOISE,), (Capability.SYNTHETIC_RATES,)
RACED, STREAM = (Capability.REFERENCE_RACE,), (Capability.UPSTREAM_STREAM,)
GIVEN, DRAWN, GIVEN_RATES = (*RACED, *EXPLICIT), (*RACED, *STREAM), (*RACED, *RATES, *EXPLICIT)
"""What a property needs to show a mutant (`Mutant.needs`): noise that was given, or that torch drew, and its race."""

GENERATORS: dict[str, str] = {Capability.COUNTER_NOISE.value: "draws from torch generators, which advance"}


@dataclass(frozen=True)
class Mutant:
    """A sampler with one deliberate fault.

    Args:
        name: What it does wrong, in a few words.
        description: How such a fault comes about, or what it does to the text.
        caught_by: Codes of checks that must catch it; the first names it best.
        make: Makes a fresh sampler (some faults keep state between calls).
        min_draws: A statistical check with fewer draws per distribution is not expected to catch it.
        needs: Capabilities without which no property can show it.
    """

    name: str
    description: str
    caught_by: tuple[str, ...]
    make: Callable[[], Any]  # Any: of any contract
    min_draws: int = 0
    needs: tuple[Capability, ...] = ()

    def __str__(self) -> str:
        return self.name


def mutants_in(*namespaces: Mapping[str, object]) -> tuple[Mutant, ...]:
    """Return the mutants that are defined there, in their order: `vars()` are those of the module that calls."""
    return tuple(value for names in namespaces for value in names.values() if isinstance(value, Mutant))


def as_if_dense(tensor: Any) -> Any:  # Any: a tensor, and the same numbers of memory
    """Return a tensor of the same shape and address whose rows are thought to lie one behind the other."""
    return tensor.as_strided(tensor.shape, (*tensor.shape[1:], 1))


def reseeded(noise: Any, read: Callable[[int], int]) -> Any:  # Any: seeded noise, and the same
    """Return noise of which the seeds of requests are what `read` makes of them."""
    return replace(noise, request_seeds={request: read(seed) for request, seed in noise.request_seeds.items()})


def name_of(made: Any) -> str:  # Any: a class or a function
    """Its name in words.

    Example:
        >>> name_of(FunctionTokenSampler)
        'function token sampler'
    """
    return re.sub(r"(?<!^)(?=[A-Z])", " ", made.__name__).replace("_", " ").lower()


def mutant_as(
    make: Callable[[type[Any]], Any], *caught_by: str, min_draws: int = 0, needs: tuple[Capability, ...] = ()
) -> Callable[[type[Any]], Mutant]:
    """Make a mutant of a class with changed steps: its name becomes the name, its docstring the description.

    Args:
        make: From the class to a sampler. Any: of and under whatever contract.
    """

    def make_mutant(faulty: type[Any]) -> Mutant:  # Any: as above
        description = inspect.cleandoc(faulty.__doc__ or "")
        return Mutant(name_of(faulty), description, caught_by, lambda: make(faulty), min_draws, needs)

    return make_mutant


def as_mutant(
    *caught_by: str, unsupported: Mapping[str, str] | None = None, needs: tuple[Capability, ...] = ()
) -> Callable[[type[Any]], Mutant]:
    """Make a mutant of an oracle with changed steps.

    Args:
        unsupported: What it does not support; by default nothing, or what an oracle of the sampling contract does not.
    """

    def make(faulty: type[Any]) -> object:  # Any: an oracle of either contract
        if hasattr(faulty, "verify"):
            return as_rejection(faulty(), unsupported=unsupported)
        return as_token_sampler(faulty(), name_of(faulty), GENERATORS if unsupported is None else unsupported)

    return mutant_as(make, *caught_by, needs=needs)


def patched(oracle: type[Any], step: str, *caught_by: str, **fields: Any) -> Callable[[Callable[..., Any]], Mutant]:
    """Make a mutant of `oracle` with one step replaced by a function, which also gets the correct steps, as `right`.

    Args:
        oracle: Any: of the rejection or the sampling contract.
        fields: Any: as `as_mutant` takes them.
    """
    return patching(as_mutant, oracle)(step, *caught_by, **fields)


def patching(
    make: Callable[..., Callable[[type[Any]], Mutant]], oracle: type[Any]
) -> Callable[..., Callable[[Callable[..., Any]], Mutant]]:
    """Return a decorator: it makes a mutant of `oracle` by a function that replaces one step.

    The function also gets the correct steps, as `right`, or the correct step's answer (`with_step`). Its name and
    docstring are the mutant's. The decorator takes the name of the step, and what `make` takes.

    Args:
        make: From codes and fields of a mutant to what makes one of a class. Any: an oracle of any contract.
    """

    def patched(step: str, *caught_by: str, **fields: Any) -> Callable[[Callable[..., Any]], Mutant]:  # Any: as above
        make_mutant = make(*caught_by, **fields)
        return lambda body: make_mutant(with_step(oracle, step, body))

    return patched


def with_step(oracle: type[Any], step: str, body: Callable[..., Any]) -> type[Any]:  # Any: an oracle of any contract
    """Derive a class of `oracle` with one step replaced by `body`, under the name of that function.

    A function whose first argument is `answer` gets what the correct step answers, not the correct steps; if it returns
    nothing, it changes that in place. One with an argument `kept` gets a dictionary there, which is the mutant's own
    from call to call; one with an argument `own` gets the mutant itself, which has more than steps.
    """
    signature = inspect.signature(body)
    takes_answer, wanted = "answer" in signature.parameters, {"own", "kept"} & signature.parameters.keys()
    is_in_place = takes_answer and signature.return_annotation in ("None", None)

    def replaced(self: object, *arguments: Any, **named: Any) -> Any:  # Any: those of the step
        right = super(faulty, self)
        first = getattr(right, step)(*arguments, **named) if takes_answer else right
        beside = {"own": self, "kept": vars(self).setdefault("kept", {})}
        found = body(first, *arguments, **named, **{name: beside[name] for name in wanted})
        return first if is_in_place else found

    faulty: Any = type(body.__name__, (oracle,), {step: replaced, "__doc__": body.__doc__})  # Any: as above
    return faulty  # type: ignore[no-any-return]


def as_rejection(made: Any, name: str = "", unsupported: Mapping[str, str] | None = None) -> FunctionSampler:
    """Return what has the steps of verification as a sampler, with what else it has. Any: an object of any class."""
    beside: dict[str, Any] = {one: getattr(made, one, None) for one in ("propose", "trim", "sync", "size_switches")}
    lacks = getattr(made, "unsupported", None) if unsupported is None else unsupported
    return rejection_sampler(made.verify, name=name or name_of(type(made)), unsupported=lacks, **beside)


def as_token_sampler(made: Any, name: str, lacks: Mapping[str, str], filters: Any = None) -> FunctionTokenSampler:
    """Return what has the steps of sampling as a sampler and drafter. Any: an object of any class, and a policy."""
    own: dict[str, Any] = {one: getattr(made, one, None) for one in ("sync", "size_switches")}  # Any: a field each
    return token_sampler(made.sample, drafting=made.draft, name=name, unsupported=lacks, filters=filters, **own)
