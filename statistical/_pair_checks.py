"""The checks of a drafter and its verifier together: code, title and meaning of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fairdraw._core.checks import Stage
from fairdraw.contracts import Capability
from fairdraw.statistical._count_tables import Counts
from fairdraw.statistical._distribution_check import DistributionCheck
from fairdraw.statistical._pair_statistics import PairTables
from fairdraw.statistical._pair_steps import CYCLE, NUM_STEPS, PairLoop
from fairdraw.statistical._workloads import SamplingPlan, Setting, Workload, cycles_per_call

__all__ = ["PAIR_CHECKS"]

_MOST_CYCLES, _MOST_CYCLES_CUDA = 100, 3000
"""Of a set: 1000 requests, or 30000."""


_TOKEN = Capability.TOKEN_VERIFICATION
_ADAPTS_TO = (Capability.RAGGED, Capability.REQUEST_SEEDS, Capability.ONE_HOT_DRAFTS, Capability.GREEDY, _TOKEN)


@Workload.of("drafter and verifier", "drafter and verifier", 0.4, 0.5, *_ADAPTS_TO)
def drafter_and_verifier(setting: Setting) -> SamplingPlan:
    """Sets of requests that take some steps each; a draw is a step of one request."""
    most = _MOST_CYCLES_CUDA if setting.device.startswith("cuda") else _MOST_CYCLES
    num_cycles = cycles_per_call(setting.num_draws, NUM_STEPS * CYCLE, most)
    per_set = num_cycles * NUM_STEPS * CYCLE
    tables = PairTables(setting.supported, num_cycles)

    def count(sampler: Any, seed: int) -> Counts:  # Any: a sampler that brings its drafter
        return tables.count(PairLoop(setting.supported, num_cycles, setting.device, seed).run(sampler), seed)

    return SamplingPlan.of_calls(setting.num_draws, per_set, tables.tables, count, word="set")


def _check(
    code: str, *, stage: Stage, token: bool = True
) -> Callable[[Callable[[], tuple[str, ...]]], DistributionCheck]:
    """Make a check of the pair; all but two take token verification for granted."""
    needs = (Capability.DRAFTER, *[_TOKEN] * token)
    return DistributionCheck.of(code, drafter_and_verifier, needs, contract="rejection", stage=stage)


@_check("DIST801", stage=Stage.PROPOSAL, token=False)
def drafts_of_its_own_drafter_follow_the_distribution_that_it_reports() -> tuple[str, ...]:
    """Each draft token is drawn from the very distribution that `propose` returns with it, given all before it.

    A verifier trusts that distribution, so the text is wrong if it is not the one: a greedy drafter that reports
    a softmax, a temperature or a filter that is applied to one of the two, the row of another request or step. If
    later positions fail and the first does not, or DIST805 fails, too, noise is used twice: by all drafts of a
    step, or by the drafts of every step.
    """
    return ("P1",)


@_check("DIST802", stage=Stage.ACCEPTANCE)
def drafts_are_accepted_by_noise_that_their_drafter_has_not_used() -> tuple[str, ...]:
    """A draft of the sampler's own drafter is accepted with `min(1, target / draft)`, whatever noise drew it.

    If drafts from the suite are accepted rightly (DIST104), drafter and acceptance test share their noise: a
    uniform of the same seed and position, or a generator that is set back between the two.
    """
    return ("P2",)


@_check("DIST803", stage=Stage.RECOVERY)
def recovered_tokens_are_drawn_with_noise_that_the_drafter_has_not_used() -> tuple[str, ...]:
    """After a draft of the sampler's own drafter is rejected, the recovered token follows the residual.

    If it does for drafts from the suite (DIST203), drafter and verifier share noise: both draw with Gumbel or
    exponential noise of the same seed and position, and a token that has just lost against the draft loses again.
    Give the drafter a stream of its own, by a salt in the key. vLLM's model runner V2 had this fault from 0.18.0 to
    0.28.0 (vLLM #54282).
    """
    return ("P3",)


@_check("DIST804", stage=Stage.BONUS)
def bonus_tokens_are_drawn_with_noise_that_the_drafter_has_not_used() -> tuple[str, ...]:
    """After all drafts of the sampler's own drafter, the bonus token follows the target and nothing else.

    If it does for drafts from the suite, the bonus token shares its noise with the last draft: a position
    that is one too low, or a row of noise that is used twice.
    """
    return ("P4",)


@_check("DIST805", stage=Stage.INDEPENDENCE)
def the_next_step_draws_with_noise_that_no_step_has_used() -> tuple[str, ...]:
    """First draft, recovered and bonus token of a step do not depend on what the step before drew.

    A position that does not advance by what was emitted, so that the next step's first draft has the noise of the
    bonus token before it; or a drafter whose stream begins anew in every step. Drafts behind a rejected one do not
    count: nobody reads them, and their noise may be used again.
    """
    return ("P5",)


@_check("DIST806", stage=Stage.COMPLETED_ROWS, token=False)
def text_of_consecutive_steps_follows_the_target_with_its_own_drafts() -> tuple[str, ...]:
    """Drafted, verified and drafted again: pairs of neighbouring tokens follow the target, over the ends of steps.

    This is losslessness of drafter and verifier together, for every scheme of verification. If it fails alone,
    look at noise that several positions of a draft share.
    """
    return ("P6",)


PAIR_CHECKS = tuple(value for value in list(globals().values()) if isinstance(value, DistributionCheck))
"""They share their draws. Without a drafter they are skipped."""
