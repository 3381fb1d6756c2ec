"""Checks that play serving traces: which traces a profile has, and how a failing one is made small.

A trace is hundreds of calls of one sampler. Every other trace is played on a new one, so that first calls are judged.
What failed is looked for in fewer calls and rows: the call alone, then the row alone; if the call does not fail alone,
it needs some of those before it, and the report says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from hypothesis import strategies as st

from fairdraw._core.array_types import Flags, Ints
from fairdraw._core.budget import BudgetEnded, until_enough
from fairdraw._core.checks import Check, Conditions, Profile, Timed
from fairdraw._core.failures import CheckFailure, failed
from fairdraw.contracts import Capability, SeededNoise
from fairdraw.strategies._trace_plans import traces, work_of

Fresh = Callable[[], Any]  # Any: a sampler of the check's contract


class WrongRow(CheckFailure):
    """A failure in one row of one call of a trace; both are numbers."""

    def __init__(self, effect: str, call: int, row: int) -> None:
        super().__init__(f"in call {call}, {effect}")
        self.call, self.row = call, row


def require_none(call: Any, wrong: Flags, said: Callable[[int], str], things: str) -> None:  # Any: call of a trace
    """Raise for the first of these rows, in words that name the circumstances."""
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        setting = ", ".join(f"{name} {value}" for name, value in call.setting.items())
        raise WrongRow(f"{said(row)} ({int(wrong.sum())} {things} of the call; {setting})", call.number, row)


def have_own_noise(call: Any) -> Flags:  # Any: call of a trace
    """Return the random requests that have seeds of their own, or all of them if the noise is given."""
    own = np.zeros(call.batch.batch_size, dtype=bool)
    own[list(call.noise.request_seeds) if isinstance(call.noise, SeededNoise) else slice(None)] = True
    return np.asarray(own & call.is_random)


def asked_again(own: Flags, rng: np.random.Generator, most: int) -> Ints:
    """Return rows in another order, two of them twice: the first and the last, and others among them."""
    rows = np.flatnonzero(own)
    inner = rng.permutation(rows[1:-1])[: most - 2]
    order = rng.permutation(np.concatenate([rows[:1], inner, rows[-1:]]))
    return np.append(order, order[:2])


@contextmanager
def left_alone(batch: Any, noise: object = None, *, number: int | None = None) -> Iterator[None]:  # Any: a batch
    """Fail if a call writes into its batch, or into noise that it is given: a tensor, or the list of numbers of drafts.

    Args:
        number: Of the call, if it is one of a trace.
    """
    numbers = {name: getattr(noise, name) for name in ("uniforms", "exponentials") if hasattr(noise, name)}
    given = {name: (tensor, tensor.clone()) for name, tensor in (batch.tensors() | numbers).items()}
    counts = list(getattr(batch, "num_draft_tokens", ()))
    yield
    written = [name for name, (now, old) in given.items() if (now.ne(old) & ~(now.isnan() & old.isnan())).any()]
    written += ["num_draft_tokens"] * (counts != list(getattr(batch, "num_draft_tokens", ())))
    if written:
        effect = f"the sampler wrote into {', '.join(written)}, which it is given to read"
        raise CheckFailure(effect) if number is None else WrongRow(effect, number, 0)


@dataclass(frozen=True)
class TraceCheck(Check):
    """A check of whole serving traces; `body(sampler, trace)` raises `WrongRow`.

    Args:
        trace: From the sampler and the first fields of a trace to the trace.
        is_single: One trace of many sizes will do: the body makes calls of its own.
    """

    plays_traces = True
    trace: Callable[..., Any] = lambda: None
    is_single: bool = False

    def judge(self, sampler: Any, under: Conditions) -> int:
        """Play the traces of `profile`, and make the first that fails small.

        Randomness:
            Traces follow from (seed, profile, capabilities) alone.
        """
        under.require_time()
        timed, tried = Timed(under.out_of_time), 0
        for trace in until_enough(self._traces(sampler, under.profile, under.seed), work_of, under.out_of_time):
            fresh = partial(self._fresh, sampler, timed, tried)
            try:
                timed.require_time()
                self.on_case(fresh(), trace)
            except BudgetEnded:
                raise timed.ended(tried, "traces") from None
            except (Exception, SystemExit) as error:
                timed.failed(trace, error)
                smaller = self._smaller(fresh, trace, error, timed, tried + 1)
                raise smaller from smaller.__cause__
            tried += 1
        return tried

    def _fresh(self, sampler: Any, timed: Timed, number: int) -> Any:
        """Return a new sampler for every other trace, and the one under test, which has served other sizes, between."""
        return timed.guarded((number % 2 == 0 and self.renew()) or sampler)

    def _traces(self, sampler: Any, profile: Profile, seed: int) -> list[Any]:
        wide, core = traces(self.trace, sampler, profile, seed)
        return core[:1] if self.is_single else wide + core

    def _smaller(self, fresh: Fresh, trace: Any, error: BaseException, timed: Timed, tried: int) -> Exception:
        """Return the failure of the smallest trace found that fails alike."""
        found, remarks = (trace, error), []
        try:
            if isinstance(error, WrongRow):
                found = self._fewer_rows(fresh, *self._fewer_calls(fresh, trace, error))
            else:
                found = self._first_call(fresh, trace, error)
        except BudgetEnded:
            remarks.append("shrinking was cut, as it took long: a shorter trace may fail, too")
        if len(found[0].calls) > 1:
            remarks.append(f"call {found[0].calls[-1]} alone does not fail: it needs calls before it")
        return failed(found[1], found[0], tried, tuple(remarks))

    def _failure(self, fresh: Fresh, trace: Any) -> WrongRow | None:
        try:
            self.on_case(fresh(), trace)
        except Exception as error:
            return error if isinstance(error, WrongRow) else None
        return None

    def _first_call(self, fresh: Fresh, trace: Any, error: BaseException) -> tuple[Any, BaseException]:
        """Return the first call that raises such an exception alone, with one row if that will do; or the trace."""
        for number, rows in product(range(len(trace.sizes())), ((0,), ())):
            alone = replace(trace, calls=(number,), rows=rows)
            try:
                self.on_case(fresh(), alone)
            except type(error) as found:
                return alone, found
            except WrongRow:
                continue
        return trace, error

    def _fewer_calls(self, fresh: Fresh, trace: Any, error: WrongRow) -> tuple[Any, WrongRow]:
        """Return the trace of the failing call alone; or of the last calls before it, as few as still fail."""
        last, size = error.call, 1
        while size <= last:
            shorter = replace(trace, calls=tuple(range(last - size + 1, last + 1)))
            if (found := self._failure(fresh, shorter)) is not None:
                return shorter, found
            size *= 2
        whole = replace(trace, calls=tuple(range(last + 1)))
        return (whole, found) if (found := self._failure(fresh, whole)) is not None else (trace, error)

    def _fewer_rows(self, fresh: Fresh, trace: Any, error: WrongRow) -> tuple[Any, WrongRow]:
        """Return the trace whose last call has the failing row alone, or it and some beside it."""
        for rows in ((error.row,), tuple(range(error.row + 1)), (error.row, error.row + 1)):
            if trace.calls and not trace.rows:
                fewer = replace(trace, rows=rows)
                try:
                    found = self._failure(fresh, fewer)
                except IndexError:
                    continue
                if found is not None:
                    return fewer, found
        return trace, error


def trace_check(
    code: str, contract: str, trace: Callable[..., Any], body: Callable[..., None], **fields: Any
) -> TraceCheck:
    """Return a check of a contract's traces. Any: traces, and other fields of a check."""
    about = {"contract": contract, "cases": lambda can: st.nothing(), "body": body, "trace": trace, **fields}
    return TraceCheck.named(body, code, **about)


def trace_checks(
    contract: str,
    family: str,
    trace: Callable[..., Any],
    *,
    legal: Callable[..., None],
    repeat: Callable[..., None],
    apart: Callable[..., None],
    seeds: Capability = Capability.REQUEST_SEEDS,
    depends_on: tuple[str, ...] = (),
) -> tuple[TraceCheck, ...]:
    """Return the checks of a contract's traces: exact, asked again, and seeds of a family.

    Args:
        family: Beginning of their codes.
        trace: As `TraceCheck` has it.
        seeds: What repeats: requests, or whole calls.
        depends_on: Checks that what is asked again rests on.
    """
    of = partial(trace_check, contract=contract, trace=trace)
    either, seeded = (seeds, Capability.EXPLICIT_NOISE), tuple(dict.fromkeys((Capability.SEEDED_NOISE, seeds)))
    return (
        of(f"{family}1", body=legal),
        of(f"{family}2", body=repeat, needs_one_of=(either,), depends_on=depends_on),
        of(f"{family}3", body=apart, needs=seeded, is_single=True, depends_on=depends_on),
    )
