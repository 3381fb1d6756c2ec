"""The check that looks everywhere: draws of serving traces, every projection, every slice, one decision."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self

from fairdraw._core.budget import BudgetEnded, cut_short, guarded, until_enough
from fairdraw._core.checks import Conditions, DrawnQuestion, OutOfTime, Profile, Resolution, Stage
from fairdraw._core.failures import CheckFailure, Ended
from fairdraw.statistical._distribution_check import false_fail_rate
from fairdraw.statistical._slices import Evidence, Found, Slices
from fairdraw.statistical._trace_draws import word
from fairdraw.strategies._trace_plans import flat_traces, traces, work_of

_SHOWN = 3
"""Slices that a report names."""


_SLICED = (
    "vocabulary",
    "dtype of the logits",
    "noise",
    "position",
    "draft distributions",
    "placeholders",
    "acceptance",
)
"""Features of coverage whose levels are slices, and no unions of them."""

_SMALLEST_WEIGHT = 1 / 3e6
"""Weight of a bet: one of some 60 projections in each of 1,100 levels of one of some 45 features."""


def distance_seen(num_draws: int, threshold: float) -> float:
    """Return by how much an event of chance 1/2 must be off in a slice to be seen with power 0.9.

    The log of the best bet grows by about `2 d^2` nats per draw (Kullback and Leibler), with a standard deviation of
    `2 d` per root of a draw. Solved for `d`, with a fifth more, since tilts are few.
    """
    nats = threshold - math.log(_SMALLEST_WEIGHT)
    root = (2 * 1.2816 + math.sqrt(4 * 1.2816**2 + 8 * nats)) / 4
    return min(1.0, 1.2 * root / math.sqrt(num_draws))


@dataclass(frozen=True)
class SliceCheck(DrawnQuestion):
    """A check of many draws, in all slices; a subclass collects them.

    Args:
        crossed: Features that are looked at two at a time.
        share: Of the run's false-fail rate.
    """

    crossed: tuple[str, ...] = field(default=(), kw_only=True)
    share: float = field(default=1.0, kw_only=True)

    @abstractmethod
    def drawn(self, slices: Slices, sampler: Any, profile: Profile, seed: int, out_of_time: OutOfTime) -> None:
        """Add the draws of a run to `slices`.

        Raises:
            BudgetEnded: If time is out.
            CheckFailure: If something was drawn that cannot be.
        """

    def evidence(
        self, sampler: Any, profile: Profile, seed: int, out_of_time: OutOfTime = lambda: False
    ) -> tuple[Evidence | None, int]:
        """Return what the draws show, `None` if nothing was drawn, and their number.

        What was drawn until time was out counts: it is weighed once, and the clock says when, not the draws (Markov's
        inequality holds as it does for all draws).
        """
        slices = Slices(self.crossed)
        with suppress(BudgetEnded):
            self.drawn(slices, sampler, profile, seed, out_of_time)
        return (slices.evidence() if slices.num_draws else None), slices.num_draws

    def judge(self, sampler: Any, under: Conditions) -> int:
        """Draw what `profile` says, and weigh it.

        Raises:
            CapabilityUnsupported, CheckFailure, Inconclusive: As `DistributionCheck.run`.

        Error rates:
            A correct sampler fails with probability at most `share * false_fail_rate(seed)`.
        """
        chosen, seed = under.profile, under.seed
        try:
            evidence, num_draws = self.evidence(sampler, chosen, seed, under.out_of_time)
        except CheckFailure as failure:
            failure.case = self.case(sampler, chosen)
            raise
        if evidence is not None and self.is_failed(evidence, seed):
            error: Ended = self._failure(evidence, self._threshold(seed))
        elif under.out_of_time():
            error = cut_short("not everything was drawn", num_draws)
        else:
            return num_draws
        error.case, error.tried = self.case(sampler, chosen), num_draws
        raise error

    def is_failed(self, evidence: Evidence, seed: int) -> bool:
        """Whether the evidence is beyond what a correct sampler shows at the check's rate."""
        return evidence.log_e_value >= self._threshold(seed)

    def resolution(self, sampler: Any, profile: Profile, seed: int, num_draws: int) -> Resolution:
        """Return the bias that its slices show, with power 0.9."""
        return Resolution(bias=distance_seen(max(1, num_draws), self._threshold(seed)), sliced=_SLICED)

    def _threshold(self, seed: int) -> float:
        return -math.log(self.share * false_fail_rate(seed))

    def _failure(self, evidence: Evidence, threshold: float) -> CheckFailure:
        first = evidence.found[0]
        effect = "; ".join(self._words_of(found) for found in evidence.found[:_SHOWN])
        numbers = f"E = 10^{evidence.log_e_value / math.log(10):.1f} >= threshold 10^{threshold / math.log(10):.1f}"
        shown = f"{numbers}, over {evidence.num_slices} slices and {len(evidence.deviations)} projections"
        distance = abs(first.num_hits - first.expected) / max(first.num_draws, 1)
        return CheckFailure(effect, evidence=shown, distance=distance)

    def _words_of(self, found: Found) -> str:
        where = ", ".join(f"{name} {word(name, level)}" for name, level in found.slice_of.items())
        draws = f"{found.num_hits} of {found.num_draws} draws, {found.expected:.1f} expected"
        return f"{found.projection}: {draws}, where {where}"


@dataclass(frozen=True)
class TraceSlices(SliceCheck):
    """A check of all draws of serving traces.

    Args:
        trace: From the sampler and the first fields of a trace to the trace.
        collect: Plays a trace and adds its draws: `(sampler, trace, slices)`.
    """

    plays_traces = True
    trace: Callable[..., Any]
    collect: Callable[..., Any]

    @classmethod
    def of(cls, code: str, trace: Callable[..., Any], **fields: Any) -> Callable[[Callable[..., None]], Self]:
        """Make a check of a function that adds the draws of a trace to slices."""

        about: dict[str, Any] = {"trace": trace, "stage": Stage.INDEPENDENCE, **fields}
        return lambda collect: cls.named(collect, code, suite="statistical", collect=collect, **about)

    def drawn(self, slices: Slices, sampler: Any, profile: Profile, seed: int, out_of_time: OutOfTime) -> None:
        wide, core = traces(self.trace, sampler, profile, seed)
        flat, judged = [*flat_traces(self.trace, sampler, profile, seed)], guarded(sampler, out_of_time)
        for trace in until_enough([*wide, *core, *flat], work_of, out_of_time):
            # The first trace of a kind begins with a sampler's first call. Not all do: a sampler that seeds its
            # generator when it is made draws the same noise again, which a correct one may.
            new = self.renew() if trace in (wide[0], core[0], flat[0]) else None
            self.collect(guarded(new, out_of_time) if new else judged, trace, slices)
