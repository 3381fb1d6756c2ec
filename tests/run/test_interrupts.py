"""Where a signal may interrupt a run."""

import functools
import signal
from collections.abc import Callable, Iterator
from types import FunctionType

import pytest

from fairdraw._core.interrupts import Interrupted, Interrupts

NAMES = ("SIGINT", "SIGTERM", "SIGHUP")


@pytest.fixture(autouse=True)
def handled() -> Iterator[None]:
    before = {name: signal.signal(signal.Signals[name], signal.SIG_DFL) for name in NAMES}
    with Interrupts():
        yield
    for name, handler in before.items():
        signal.signal(signal.Signals[name], handler)


def calls() -> None:
    call()  # type: ignore[name-defined]  # noqa: F821  # of the globals that `interrupted_in` gives it


def interrupted_in(*packages: str, name: str = "SIGTERM") -> None:
    """Raise the signal in a function of the last package, which one of the package before it called."""
    call: Callable[[], object] = functools.partial(signal.raise_signal, signal.Signals[name])
    for package in reversed(packages):
        call = FunctionType(calls.__code__, {"__name__": f"{package}.module", "call": call})
    call()


@pytest.mark.parametrize("packages", [["fairdraw"], ["hypothesis", "fairdraw"], ["hypothesis", "fairdraw", "torch"]])
@pytest.mark.parametrize("name", NAMES)
def test_signal_interrupts_a_check_and_a_sampler(packages: list[str], name: str) -> None:
    with pytest.raises(Interrupted, match=name):
        interrupted_in(*packages, name=name)


@pytest.mark.parametrize("packages", [["fairdraw", "hypothesis"], ["fairdraw", "hypothesis", "sortedcontainers"]])
def test_signal_in_hypothesis_waits_for_the_end_of_the_next_call(packages: list[str]) -> None:
    interrupted_in(*packages)
    with pytest.raises(Interrupted, match="SIGTERM"):
        Interrupts.require_none()
