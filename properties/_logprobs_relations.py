"""What a row gets depends on that row alone; the order of an answer, and ranks."""

from __future__ import annotations

from fairdraw._core.checks import Stage
from fairdraw.contracts import ALL_LOGPROBS, Capability, LogprobsSampler
from fairdraw.properties._logprobs_asserts import Rows, another_first, check, require, require_same, wrong_ranks
from fairdraw.strategies.logprobs import LogprobsCase, logprobs_cases


@check("LPR101", logprobs_cases, stage=Stage.SHAPE)
def the_emitted_token_comes_first(sampler: LogprobsSampler, case: LogprobsCase) -> None:
    """The first column is the token that the row emitted, also if it is not the most probable one.

    A client that reads the first entry as the sampled token computes a reward or a perplexity of another text.
    """
    rows = Rows.of(sampler, case.batch(sampler.device))
    require(rows, another_first(rows))


@check(
    "LPR136",
    lambda can: logprobs_cases(can, logits=("half", "one-hot", "last-only"), tokens=("unlikely",)),
    needs=(Capability.TOKEN_RANKS,),
)
def ranks_of_impossible_tokens_lie_in_the_vocabulary(sampler: LogprobsSampler, case: LogprobsCase) -> None:
    """A token whose logit is -inf, as one of a prompt may be, ties with all others that are impossible, and no more.

    Padded lanes of the last tile, which are -inf, too, and count: the rank is beyond the vocabulary.
    """
    rows = Rows.of(sampler, case.batch(sampler.device))
    require(rows, wrong_ranks(rows, sampler))


@check("LPR141", lambda can: logprobs_cases(can, max_requests=3), needs=(Capability.TOP_LOGPROBS,))
def values_do_not_depend_on_how_many_are_asked_for(sampler: LogprobsSampler, case: LogprobsCase) -> None:
    """For 0, 1, 5, 20 and all, values are the same, bit for bit, and shorter lists are the beginning of longer ones.

    Normalised over the listed tokens, or another kernel for long lists. vLLM #44319 is of this kind.
    """
    batch = case.batch(sampler.device)
    longest = Rows.of(sampler, batch.replace(num_logprobs=[ALL_LOGPROBS] * batch.batch_size))
    for number in (0, 1, 5, 20):
        numbers = [min(number, batch.vocab_size)] * batch.batch_size
        fewer = Rows.of(sampler, batch.replace(num_logprobs=numbers))
        for row in range(len(longest.places)):
            require_same(sampler, longest, row, fewer, row, f"with {number} log-probabilities")


@check("LPR142", logprobs_cases, needs=(Capability.BATCH_INVARIANT,))
def rows_do_not_depend_on_other_rows(sampler: LogprobsSampler, case: LogprobsCase) -> None:
    """Each row gets in a batch what it gets alone, bit for bit.

    A maximum, a sum or a number of log-probabilities of the whole batch.
    """
    batch = case.batch(sampler.device)
    together = Rows.of(sampler, batch)
    for row, place in enumerate(together.places.tolist()):
        alone = Rows.of(sampler, batch.select([place]))
        require_same(sampler, alone, 0, together, row, "beside other rows")
