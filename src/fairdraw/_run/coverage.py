"""Coverage: what the checks of a run have really given to the sampler. A wrapper around the sampler looks at each call.

*Properties* count cases: a case has a feature if one of its calls has it. *Distributions* count rows: the checks of one
workload judge the same draws, so that what was drawn for the first of them belongs to all. In the loops that draw, only
the first call of a kind and then every 64th is read; the calls between count as the last one that was.

Coverage changes no verdict.

The same wrapper makes no call as large as a wide one that hung or ended its process (`pulse.shun`): it costs one check,
which is named, and the others are judged on what is smaller.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from fairdraw._core import pulse
from fairdraw._core.checks import AnyCheck, Check, DrawnQuestion, Profile, Resolution
from fairdraw._core.contracts import CONTRACTS
from fairdraw._core.looks import CALLS, GREEDY, Look, add_sizes, look, signature, sizes_of
from fairdraw._core.wrapping import Around, Wrapped

_EVERY = 64
_MOST_REFUSED = 5
"""Cases that a check draws in vain before it is given up."""


@dataclass
class Drawn:
    """What one check judged.

    Args:
        by: `properties`, or the workload; checks of one workload share their draws.
        total: Cases, or rows.
        features: Feature to the number of cases, or rows, of each word that it may have, 0 included.
        sizes: Feature to the number of cases, or rows, by the power of two of a size (its bits).
        pairs: Two words on one request (`top-k + top-p`) to that number.
        ranges: Feature to its sizes: the smallest and the largest of each sub-range that occurred.
        tv, bias, sliced: As `Resolution`; nothing for properties.
    """

    by: str
    total: int = 0
    features: dict[str, dict[str, int]] = field(default_factory=dict)
    sizes: dict[str, dict[str, int]] = field(default_factory=dict)
    pairs: dict[str, int] = field(default_factory=dict)
    ranges: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    tv: float | None = None
    bias: float | None = None
    sliced: Sequence[str] = ()


class Watch:
    """Looks at the calls of one check, or of one workload.

    Args:
        case_by_case: Count cases, which `case` begins; otherwise rows.
    """

    def __init__(self, contract: str, by: str, *, case_by_case: bool) -> None:
        self._contract, self._by, self._case_by_case = CONTRACTS[contract], by, case_by_case
        self._look = partial(look, self._contract.features)
        self._counts: Counter[Any] = Counter()  # Any: as in `Look`
        self._ranges: dict[str, dict[int, tuple[int, int]]] = {}
        self._words: dict[str, tuple[str, ...]] = {}
        self._total = 0
        self._seen: set[Any] = set()  # Any: as above; of the current case
        self._calls = 0
        self._kinds: dict[Any, tuple[int, Look]] = {}  # Any: a signature
        self._last: Any = None  # Any: the batch that was looked at last
        self._num_made, self._num_refused, self._why_not = 0, 0, ""

    @property
    def why_nothing(self) -> str:
        """Why no call was made, if all were as large as one that did not end; empty if there is no such reason."""
        return "" if self._num_made else self._why_not

    def wrap(self, sampler: Any) -> Any:  # Any: a sampler of any contract, and the same
        """`sampler`, whose calls are looked at."""
        if self._contract.session is None:
            return Wrapped(sampler, self._call)
        return Wrapped(sampler, lambda call, _: call(), self._open)

    def _open(self, opened_with: tuple[Any, ...]) -> Around:  # Any: of the method that opens a session
        assert self._contract.session is not None
        session = self._contract.session(opened_with[0])

        def around(call: Callable[[], Any], arguments: tuple[Any, ...]) -> Any:  # Any: of a session's method
            self._calls += 1
            self.add(_or_nothing(session.look, arguments))
            return call()

        return around

    def _call(self, call: Callable[[], Any], arguments: tuple[Any, ...]) -> Any:  # Any: of the sampler's method
        self._calls += 1
        if not self._case_by_case:
            self.add(_or_nothing(self._of_a_kind, arguments))
        elif self._last is not arguments[0]:
            self._last = arguments[0]
            self.add(_or_nothing(self._look, arguments))
        return self._bounded(call, arguments)

    def _bounded(self, call: Callable[[], Any], arguments: tuple[Any, ...]) -> Any:  # Any: of the sampler's method
        """Make a call, and let its sizes be known meanwhile: it may be the one that ends this process."""
        sizes = sizes_of(arguments)
        if (like := pulse.shunned(sizes)) is not None:
            self._seen.clear()
            self._why_not = f"not called again with as much as{pulse.worded_sizes(like)}, which did not end"
            raise self._refusal()
        self._num_made += 1
        pulse.call_is_of(sizes)
        try:
            return call()
        finally:
            pulse.call_is_of((0, 0, 0))

    def _refusal(self) -> BaseException:
        """Properties try another case, unless none is small enough; draws cannot be exchanged."""
        self._num_refused += 1
        if not self._case_by_case or (self._num_refused >= _MOST_REFUSED and not self._num_made):
            return pulse.NotCalled(self._why_not)
        from hypothesis.errors import UnsatisfiedAssumption

        class SmallerCase(UnsatisfiedAssumption):
            """Ours, unlike one that the sampler raises (`fairdraw._core.failures.calling`)."""

        self._calls = 0
        return SmallerCase()

    def _of_a_kind(self, arguments: tuple[Any, ...]) -> Look:  # Any: of the sampler's method
        """What the last call of this kind held that was read."""
        kind = signature(arguments)
        number, found = self._kinds.get(kind, (0, None))
        if found is None or number % _EVERY == 0:
            found = self._look(arguments)
        self._kinds[kind] = number + 1, found
        return found

    def add(self, found: Look | None) -> None:
        if found is None:
            return
        self._words.update(found.words)
        for name, by_range in found.ranges.items():
            add_sizes(self._ranges.setdefault(name, {}), (size for both in by_range.values() for size in both))
        if self._case_by_case:
            self._seen.update(found.counts)
        else:
            self._total += found.rows
            self._counts.update(found.counts)

    def case(self) -> None:
        """A case begins; the one before it is counted."""
        if self._calls and self._case_by_case:
            self._counts.update([*self._seen, (CALLS, self._calls.bit_length())])
            add_sizes(self._ranges.setdefault(CALLS, {}), (self._calls,))
            self._total += 1
        self._seen, self._calls, self._last = set(), 0, None

    def drawn(self, resolution: Resolution | None = None) -> Drawn:
        """What was seen until now."""
        found = Drawn(self._by, self._total, **vars(resolution or Resolution()))
        found.features = {name: dict.fromkeys(words, 0) for name, words in self._words.items()}
        found.ranges = {name: sorted(own.values()) for name, own in self._ranges.items()}
        for one, count in self._counts.items():
            if not self._case_by_case and GREEDY in (one.split(" + ") if isinstance(one, str) else one):
                continue  # nothing is left to chance there
            if isinstance(one, str):
                found.pairs[one] = count
            elif isinstance(one[1], int):
                found.sizes.setdefault(one[0], {})[str(one[1])] = count
            else:
                found.features[one[0]][one[1]] = count
        return found


def _or_nothing(read: Callable[[tuple[Any, ...]], Look | None], arguments: tuple[Any, ...]) -> Look | None:
    """What `read` sees. Reading happens where exceptions are the sampler's: one of ours must not be blamed on it."""
    try:
        return read(arguments)
    except Exception:
        return None


# -- a check ----------------------------------------------------------------------------------------------------------


class Recorder:
    """Watches one check after another. Draws of a workload are remembered as long as the sampler is the same."""

    def __init__(self) -> None:
        self._sampler: Any = None  # Any: of any contract
        self._workloads: dict[Any, Watch] = {}  # Any: workload, profile and seed

    def watched(self, check: AnyCheck, sampler: Any, profile: Profile, seed: int) -> Watched:  # Any: as above
        """The check and the sampler, to be run in their place."""
        if CONTRACTS[check.contract].is_remote:
            return Watched(check, sampler, Watch(check.contract, check.code, case_by_case=False))
        if sampler is not self._sampler:
            if self._sampler is not None:  # a worker knows what its predecessor shunned
                pulse.shun_nothing()
            self._sampler, self._workloads = sampler, {}
        if isinstance(check, Check):
            watch = Watch(check.contract, check.suite, case_by_case=True)
            return Watched(_case_by_case(check, watch), watch.wrap(sampler), watch)
        by = getattr(getattr(check, "workload", None), "name", check.code)
        watch = self._workloads.setdefault((by, profile.whole, seed), Watch(check.contract, by, case_by_case=False))
        return Watched(check, watch.wrap(sampler), watch)


@dataclass(frozen=True)
class Watched:
    """A check that is about to run, and what sees its calls."""

    check: AnyCheck
    sampler: Any  # Any: of the check's contract
    watch: Watch

    def drawn(self, sampler: Any, profile: Profile, seed: int, num_draws: int) -> Drawn:  # Any: not the wrapped one
        """What the check judged."""
        self.watch.case()
        if isinstance(self.check, DrawnQuestion):
            self.watch.add(self.check.seen(sampler, seed))
            return self.watch.drawn(self.check.resolution(sampler, profile, seed, num_draws))
        return self.watch.drawn()


recorder = Recorder()
"""Of this process."""


def _case_by_case(check: Check, watch: Watch) -> Check:
    """The same check, which says when a case begins. Events of one trace have the same first argument."""
    last: list[Any] = [None]  # Any: a case, or what plays an event trace

    def body(subject: Any, case: Any, *reference: Any) -> None:  # Any: those of the check's own body
        begun = subject if hasattr(check, "machine") else case
        if begun is not last[0]:
            watch.case()
            last[0] = begun
        check.body(subject, case, *reference)

    return dataclasses.replace(check, body=body)
