"""What a fault is: an engine with one changed step. `right` has the correct steps."""

from __future__ import annotations

import dataclasses
import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stub_server.dialects import Settings
from stub_server.engine import Choice, Engine, Request

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class Fault:
    """An engine with one changed step.

    Args:
        description: How such a fault comes about, or what it does.
        caught_by: Codes of the checks that must catch it; the first names it best.
        num_drafts: Of its speculation; 0 for none.
    """

    name: str
    description: str
    caught_by: tuple[str, ...]
    make: Callable[[int, int], Engine]
    settings: Settings
    num_drafts: int

    def engine(self, entropy: int) -> Engine:
        """A fresh one: some faults keep state."""
        return self.make(entropy, self.num_drafts)


class Right:
    """The correct steps of an engine, and its state.

    Args:
        steps: `super()` of the engine.
    """

    def __init__(self, steps: Any, engine: Engine) -> None:  # Any: super()
        self.steps, self.engine = steps, engine

    def __getattr__(self, name: str) -> Any:  # Any: a step or a field
        return getattr(self.steps if hasattr(Engine, name) else self.engine, name)


DEFAULT = Settings()
PROCESSED = Settings(stage="processed")
SGLANG = Settings("sglang")


def fault(
    step: str,
    *caught_by: str,
    settings: Settings = DEFAULT,
    drafts: int = 0,
) -> Callable[[Callable[..., Any]], Fault]:
    """Make a fault of a function that stands for `step`. Its name and docstring are the fault's."""

    def make(body: Callable[..., Any]) -> Fault:
        def replaced(self: Engine, *arguments: Any) -> Any:  # Any: those of the step
            return body(Right(super(faulty, self), self), *arguments)

        faulty: Any = type(body.__name__, (Engine,), {step: replaced})  # Any: a subclass of `Engine`
        about = inspect.cleandoc(body.__doc__ or "")
        return Fault(body.__name__.replace("_", " "), about, caught_by, faulty, settings, drafts)

    return make


def with_request(choice: Choice, **fields: Any) -> Choice:  # Any: fields of Request
    """The choice with other parameters."""
    return dataclasses.replace(choice, request=dataclasses.replace(choice.request, **fields))


def with_fields(request: Request, **fields: Any) -> Request:  # Any: fields of Request
    """The request with other parameters."""
    return dataclasses.replace(request, **fields)
