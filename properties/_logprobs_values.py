"""Values against float64, and ranks against counting."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fairdraw._core.logprobs_harness import call_logprobs
from fairdraw.properties._logprobs_asserts import (
    LOGPROBS,
    RANKS,
    SOME,
    TOP,
    broken,
    cases,
    check,
    require_rank,
    require_values,
    rows_of,
    same_rows,
    seen_rows,
)
from fairdraw.protocols import Capability, LogprobsSampler

if TYPE_CHECKING:
    from fairdraw.strategies.logprobs import LogprobsCase

_SCORES = (Capability.LOGIT_SCORES,)
_ORDINARY = ("flat", "tied", "normal", "zipf", "peaked", "half", "twins")


@check("LPR121", lambda can: cases(can, stages=LOGPROBS[:1], logits=_ORDINARY, dtypes=("float32",)))
def raw_logprobs_are_the_log_softmax_of_raw_logits(sampler: LogprobsSampler, case: LogprobsCase) -> None:
    """Values of stage `raw_logprobs` are those of the logits that the model gave.

    Logits that a penalty, a mask or the temperature has changed, base 2 instead of e, or a sum over padded columns.
    """
    require_values(seen_rows(sampler, case))


@check("LPR122", lambda can: cases(can, stages=LOGPROBS[1:], logits=_ORDINARY, dtypes=("float32",)))
def processed_logprobs_are_the_log_softmax_of_processed_logits(sampler: LogprobsSampler, case: LogprobsCase) -> None:
    """Values of stage `processed_logprobs` are those of the logits that the token was drawn from.

    Training on raw values of tokens that were drawn at another temperature is off-policy without anyone noticing.
    """
    require_values(seen_rows(sampler, case))


@check("LPR123", lambda can: cases(can, stages=("raw_logits", "processed_logits")), needs=_SCORES)
def logits_are_returned_as_they_are(sampler: LogprobsSampler, case: LogprobsCase) -> None:
    """Values of the stages `*_logits` are the logits themselves, bit for bit, in float32.

    A softmax that is applied all the same, a shift by the maximum, or a cast to half precision on the way.
    """
    require_values(seen_rows(sampler, case))


@check(
    "LPR124",
    lambda can: cases(can, stages=LOGPROBS[:1], dtypes=("bfloat16", "float16")),
    needs=(Capability.HALF_LOGITS,),
)
def half_precision_logits_are_computed_in_float32(sampler: LogprobsSampler, case: LogprobsCase) -> None:
    """Logits in bfloat16 and float16 give the values that the same numbers give in float32, with the same tolerance.

    A log-softmax in the model's dtype: in bfloat16 a log-probability of -10 is off by up to 0.03.
    """
    require_values(seen_rows(sampler, case))


@check("LPR125", lambda can: cases(can, logits=("offset", "wide", "denormal"), stages=LOGPROBS, dtypes=("float32",)))
def logits_far_from_zero_lose_nothing(sampler: LogprobsSampler, case: LogprobsCase) -> None:
    """Logits around 6000, or hundreds apart, give values as exact as any others.

    `logit - logsumexp`, with a log-sum-exp that is rounded once: around 6000 it is off by 0.0002. Without the maximum
    subtracted, the sum overflows.
    """
    require_values(seen_rows(sampler, case))


@check(
    "LPR127",
    lambda can: cases(can, stages=LOGPROBS[1:], num_logprobs=(-1,), max_vocab_size=100),
    needs=TOP,
)
def processed_probabilities_sum_to_one_over_what_is_kept(sampler: LogprobsSampler, case: LogprobsCase) -> None:
    """Over the whole vocabulary `exp(logprob)` sums to 1 within 2**-16, and excluded tokens have -inf.

    Normalised before the mask was applied, or a mask of -1e4 instead of -inf.
    """
    for row in seen_rows(sampler, case):
        total = float(np.exp(row.values.astype(np.float64)).sum())
        if row.has_distribution and not abs(total - 1) <= 2.0**-16:
            broken(f"row {row.row}: the probabilities of all {len(row.values)} tokens sum to {total:.9g}")


@check(
    "LPR128",
    lambda can: cases(can, logits=("half", "one-hot", "last-only"), num_logprobs=(5, 20, -1), stages=LOGPROBS),
    needs=TOP,
)
def tokens_without_probability_have_minus_infinity(sampler: LogprobsSampler, case: LogprobsCase) -> None:
    """Where a list is longer than there are possible tokens, all of those are listed, and the others have -inf.

    A finite number in the place of -inf (-9999, the smallest float, `log(p + 1e-10)`), or a NaN.
    """
    require_values(seen_rows(sampler, case))


@check("LPR129", lambda can: cases(can, stages=LOGPROBS, logits=_ORDINARY))
def the_other_stage_has_no_influence(sampler: LogprobsSampler, case: LogprobsCase) -> None:
    """Raw values do not depend on processed logits, nor processed ones on raw logits.

    A buffer that both stages share: float32 logits that were processed in place, for which `to(float32)` is no copy.
    """
    batch = case.batch(sampler.device)
    name = "processed_logits" if case.stage.startswith("raw") else "logits"
    other = batch.replace(**{name: getattr(batch, name).flip(-1).contiguous()})
    before, after = (list(rows_of(one, call_logprobs(sampler, one))) for one in (batch, other))
    same_rows(sampler, before, after, f"with other {name}")


# -- ranks ------------------------------------------------------------------------------------------------------------


@check("LPR131", lambda can: cases(can, logits=("normal", "zipf", "peaked", "wide")), needs=RANKS)
def ranks_count_the_better_tokens(sampler: LogprobsSampler, case: LogprobsCase) -> None:
    """The most probable token has rank 1, the next has rank 2.

    Ranks from 0 on, a rank among the listed tokens only, or one of another stage.
    """
    for row in seen_rows(sampler, case):
        require_rank(sampler, row)


@check("LPR132", lambda can: cases(can, logits=("flat", "tied", "twins", "half", "one-hot", "denormal")), needs=RANKS)
def ranks_of_equal_tokens_are_as_declared(sampler: LogprobsSampler, case: LogprobsCase) -> None:
    """A token that ties with others has the last of their ranks, as vLLM counts, or the first, as the sampler declares.

    `>` where `>=` was meant, or the reverse.
    """
    for row in seen_rows(sampler, case):
        require_rank(sampler, row)


@check("LPR134", lambda can: cases(can, logits=("near-ties",), stages=LOGPROBS), needs=(*RANKS, Capability.EXACT_RANKS))
def ranks_tell_apart_logits_with_equal_logprobs(sampler: LogprobsSampler, case: LogprobsCase) -> None:
    """The token with the largest logit has rank 1, even if the log-probability of others is the same float32.

    Ranks that are counted on rounded log-probabilities: a greedy token gets rank 2.
    """
    for row in seen_rows(sampler, case):
        require_rank(sampler, row)


@check("LPR136", lambda can: cases(can, logits=("half", "one-hot", "last-only"), tokens=("unlikely",)), needs=RANKS)
def ranks_of_impossible_tokens_lie_in_the_vocabulary(sampler: LogprobsSampler, case: LogprobsCase) -> None:
    """A token whose logit is -inf, as one of a prompt may be, ties with all others that are impossible, and no more.

    Padded lanes of the last tile, which are -inf, too, and count: the rank is beyond the vocabulary.
    """
    for row in seen_rows(sampler, case):
        require_rank(sampler, row, masked=True)


@check("LPR135", lambda can: cases(can, num_logprobs=SOME), needs=(*RANKS, *TOP, Capability.EXACT_RANKS))
def rank_and_place_agree(sampler: LogprobsSampler, case: LogprobsCase) -> None:
    """A token whose rank, ties counted, is within the list is listed; without ties its place is its rank.

    A list of one stage and a rank of the other.
    """
    for row in seen_rows(sampler, case):
        places = np.flatnonzero(row.ids == row.token) + 1
        num_equal = int((row.logits == row.logits[row.token]).sum())
        if not row.has_distribution or num_equal > 1 or row.logits[row.token] == -np.inf:
            continue
        if row.rank <= row.number and places.tolist() != [row.rank]:
            broken(
                f"row {row.row}: token {row.token} has rank {row.rank} and stands at {places.tolist() or 'no place'}"
            )
        if row.rank > row.number and len(places):
            broken(f"row {row.row}: token {row.token} has rank {row.rank} and stands at place {places[0]}")
