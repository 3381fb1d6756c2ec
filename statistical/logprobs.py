"""The statistical checks of the log-probabilities contract: tokens follow the distribution that is returned with them.

Nothing else is needed to judge it: no reference model, and no knowledge of filters. Each token becomes a uniform number
by the distribution that came with it (`_pit`), whatever that is; rows of any kind pool exactly.
"""

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairdraw._core.checks import Stage
from fairdraw._core.seeds import derive_seed
from fairdraw.contracts import Capability
from fairdraw.contracts._logprobs import Returned, call_draw
from fairdraw.statistical._count_tables import Counts, sum_counts
from fairdraw.statistical._distribution_check import DistributionCheck, sharing
from fairdraw.statistical._projections import TokenTables, numbers_of_rows
from fairdraw.statistical._sampling_requests import FILTERS, Kind, batch_of, noise_of
from fairdraw.statistical._sampling_workloads import supported_kinds
from fairdraw.statistical._workloads import NUM_CHECKPOINTS, SamplingPlan, Setting, Workload, checkpoints

__all__ = ["CHECKS"]

_SLOPE = 1.5
"""High ids are more probable, low ones less. If all ids were alike, tokens of all rows together would be uniform, and a
uniform claim would agree with them."""
_KINDS = (
    Kind("plain"),
    Kind("cool", temperature=0.6),
    Kind("all filters", temperature=1.2, top_k=50, top_p=0.8, min_p=0.02),
    Kind("hot", temperature=1.5),
)


def _by_id(seen: Returned) -> NDArray[np.float64]:  # [batch_size, vocab_size] float64
    """The distributions that were returned, whose sums float32 leaves a little beside 1."""
    probs = np.empty(seen.logprobs[:, 1:].shape)
    np.put_along_axis(probs, seen.token_ids[:, 1:], np.exp(seen.logprobs[:, 1:].astype(np.float64)), axis=1)
    return np.asarray(probs / probs.sum(axis=1, keepdims=True))


def drawn_tokens(what: str, group: str, vocab_size: int, share: float, slow_share: float) -> Workload:
    """Tokens under the distributions that came with them: rows of normal logits around a slope, no two alike."""
    slope, counted = np.linspace(-_SLOPE, _SLOPE, vocab_size), TokenTables(f"T8 {what}", (vocab_size,))

    def prepare(setting: Setting) -> SamplingPlan:
        batch_size = min(1024, max(16, setting.num_draws // (2 * NUM_CHECKPOINTS)))
        num_checkpoints, num_calls = checkpoints(setting.num_draws, batch_size)
        cycle = supported_kinds(_KINDS, setting.supported)
        kinds = [cycle[i % len(cycle)] for i in range(batch_size)]

        def count(sampler: Any, seed: int) -> Counts:  # Any: a function that draws, under this contract
            rng, parts = np.random.default_rng(derive_seed("rows", seed)), []
            for call in range(num_calls):
                logits = (2 * rng.normal(size=(batch_size, vocab_size)) + slope).astype(np.float32)
                batch = batch_of(kinds, logits, np.full(batch_size, call, dtype=np.int64), setting.device)
                seen = call_draw(sampler, batch, noise_of(sampler, batch, derive_seed("call", seed, call)))
                numbers = numbers_of_rows(_by_id(seen), seen.token_ids[:, 0], rng.random(batch_size))
                parts.append(counted.count(numbers))
            return sum_counts(parts)

        tables = counted.tables(num_calls * batch_size)
        return SamplingPlan(tables, count, max(1, num_checkpoints), num_calls * batch_size)

    return Workload(f"logprobs: drawn {what}s", group, share, slow_share, prepare, frozenset(FILTERS.values()))


_DRAWN = drawn_tokens("token", "tokens", 128, 0.15, 0.5)
_WIDE = drawn_tokens("wide token", "production vocabulary", 20_480, 0.006, 0.1)


_check = partial(
    DistributionCheck.of,
    needs=(Capability.DRAWN_TOKENS,),
    contract="logprobs",
    stage=Stage.TOKENS,
    depends_on=("LPR161",),
)


@_check("DIST951", _DRAWN)
def tokens_follow_the_log_probabilities_that_come_with_them_by_rank() -> tuple[str, ...]:
    """Tokens are drawn with the probabilities that are returned, at every temperature and with filters.

    Raw log-probabilities of tokens that were drawn at another temperature, or of another step: what is trained on
    them is off-policy.
    """
    return ("T8 token by rank",)


@_check("DIST952", _DRAWN)
def tokens_follow_the_log_probabilities_that_come_with_them_by_id() -> tuple[str, ...]:
    """Tokens are spread over the ids, and over their lanes and blocks, as the returned log-probabilities say.

    A tile of the vocabulary that is lost by the draw, or by the sum of the log-softmax.
    """
    return ("T8 token by id",)


@_check("DIST953", _WIDE, needs=(Capability.DRAWN_TOKENS, Capability.LARGE_VOCAB))
def tokens_follow_the_log_probabilities_that_come_with_them_at_a_production_vocabulary() -> tuple[str, ...]:
    """Tokens of 20480, by rank, by id and by lanes and blocks of ids, are drawn with the returned probabilities.

    A kernel for wide rows that weighs lanes or tiles differently in the draw and in the log-softmax.
    """
    return ("T8 wide token",)


CHECKS = sharing([value for value in list(globals().values()) if isinstance(value, DistributionCheck)])
