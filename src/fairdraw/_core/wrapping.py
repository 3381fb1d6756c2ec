"""The sampler in a wrapper: every call goes through a function that may look at it or refuse it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from fairdraw._core.capabilities import Capabilities
from fairdraw._core.contracts import CONTRACTS

Around = Callable[[Callable[[], Any], tuple[Any, ...]], Any]
"""What a wrapper does with a call, a function of `call`, which makes it, and of the arguments that it is given."""

OfSession = Callable[[tuple[Any, ...]], Around]  # Any: arguments of the call that opens a session


@cache
def _methods() -> dict[str, bool]:
    """Return every method of a contract that a wrapper goes around, and whether it opens a session."""
    beside = dict.fromkeys((name for contract in CONTRACTS.values() for name in contract.beside), False)
    return beside | {contract.method: contract.session is not None for contract in CONTRACTS.values()}


class Wrapped:
    """A sampler, or a session that it opened, whose calls go through `around`; all other attributes are its own.

    Sampler: the methods of its contract. Session: every method.

    Args:
        of_session: From the arguments of the call that opens a session to what is done with its calls, if that is
            something else.
    """

    def __init__(  # Any: of any contract
        self, inner: Any, around: Around, of_session: OfSession | None = None, *, is_session: bool = False
    ) -> None:
        self._inner, self._around, self._is_session = inner, around, is_session
        self._of_session = of_session or (lambda _: around)

    def __getattr__(self, name: str) -> Any:  # Any: whatever the sampler has
        found = getattr(self._inner, name)
        if not callable(found) or not (self._is_session or name in _methods()):
            return found
        around, opens = self._around, not self._is_session and _methods()[name]

        def called(*arguments: Any, **named: Any) -> Any:  # Any: those of the method
            given = (*arguments, *named.values())
            answer = around(lambda: found(*arguments, **named), given)
            return Wrapped(answer, self._of_session(given), is_session=True) if opens else answer

        return called


def unwrapped(sampler: Any) -> Any:  # Any: a sampler of any contract
    """The sampler in all its wrappers."""
    while isinstance(sampler, Wrapped):
        sampler = sampler._inner
    return sampler


class Limited:
    """Another object for a sampler, with other capabilities, which decide on its cases and its number of draws."""

    def __init__(self, sampler: Any, capabilities: Capabilities) -> None:  # Any: of any contract
        self._sampler, self.capabilities = sampler, capabilities
        self.name, self.device = sampler.name, sampler.device

    def __getattr__(self, name: str) -> Any:  # Any: whatever the sampler has
        return getattr(self._sampler, name)
