"""Many tasks in several processes, as long as there is time: for the tools that make records."""

from __future__ import annotations

import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

T, R = TypeVar("T"), TypeVar("R")


def results(function: Callable[[T], R], tasks: Iterable[T], jobs: int, seconds: float = float("inf")) -> Iterator[R]:
    """Results as they are ready. After `seconds` no task is begun.

    A task that raises, or whose process dies, is named on stderr and has no result. With one job everything runs in
    this process, and an error ends it.
    """
    ends_at = time.monotonic() + seconds
    if jobs <= 1:
        yield from (function(task) for task in tasks if time.monotonic() < ends_at)
        return
    # Without `max_tasks_per_child`: in CPython 3.11 and 3.12 the workers that it ends are not all replaced.
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        futures = {pool.submit(function, task): task for task in tasks}
        for future in as_completed(futures):
            if time.monotonic() >= ends_at:
                pool.shutdown(wait=False, cancel_futures=True)
            if future.cancelled():
                continue
            error = future.exception()
            if error is None:
                yield future.result()
            else:
                print(f"no result: {futures[future]}: {error!r}", file=sys.stderr, flush=True)
