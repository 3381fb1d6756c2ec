"""Run checks one after the other, or spread over processes."""

from __future__ import annotations

import dataclasses
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import TYPE_CHECKING

from fairdraw.contracts import contract_name
from fairdraw.loading import NO_REFERENCE, CannotStart, all_checks, load_reference, load_sampler
from fairdraw.runner import CheckRecord, Session, run_check

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fairdraw.checks import AnyCheck
    from fairdraw.protocols import Subject

__all__ = ["run_checks"]


def run_checks(
    checks: Sequence[AnyCheck], sampler: Subject, session: Session, workers: int = 1
) -> Iterator[CheckRecord]:
    """A record of every check, as soon as it is there.

    Args:
        workers: Processes; each loads the sampler again, by `session.spec`. With more than one, records come in the
            order in which they are ready. What a check finds does not depend on it.

    Raises:
        CannotStart: If a worker dies.
    """
    if workers == 1:
        yield from (run_check(check, sampler, session) for check in checks)
        return
    # Samplers and references cannot be sent to another process; their names can. Forking would copy torch's threads.
    arguments = (dataclasses.replace(session, reference=None), session.reference is not None)
    with ProcessPoolExecutor(workers, get_context("spawn"), _start, arguments) as pool:
        waiting = [pool.submit(_run_one, check.code) for check in checks]
        try:
            yield from (future.result() for future in as_completed(waiting))
        except BrokenProcessPool:
            raise CannotStart("a worker process died: out of memory, or a crash in native code. Try: -n 1") from None


_here: list[tuple[Subject, Session]] = []
"""The sampler and the session of this worker process."""


def _start(session: Session, has_reference: bool) -> None:
    if session.spec is None:
        raise ValueError("run_checks: spec=None, but workers load the sampler by name. Use workers=1.")
    name = session.reference_spec if has_reference else NO_REFERENCE
    sampler = load_sampler(session.spec)
    reference, _ = load_reference(name, all_checks(contract=contract_name(sampler)))
    _here.append((sampler, dataclasses.replace(session, reference=reference)))


def _run_one(code: str) -> CheckRecord:
    sampler, session = _here[0]
    check = next(check for check in all_checks() if check.code == code)
    return run_check(check, sampler, session)
