"""The statistical checks of the sampling contract: code, title and meaning of each."""

from __future__ import annotations

import dataclasses
import inspect
from typing import TYPE_CHECKING, Any

from fairdraw._core.checks import Stage
from fairdraw.protocols import Capability
from fairdraw.statistical._dependence_checks import SAMPLING_CHECKS
from fairdraw.statistical._distribution_check import DistributionCheck
from fairdraw.statistical._sampling_combinations import combinations_of_parameters
from fairdraw.statistical._sampling_traces import SLICES
from fairdraw.statistical._sampling_workloads import drafts, largest, production, small_distributions

if TYPE_CHECKING:
    from fairdraw.statistical._slice_check import SliceCheck
    from fairdraw.statistical._workloads import Workload

__all__ = ["CHECKS"]

_SMALL = small_distributions(1.0, 0.5)
_SEEDS = small_distributions(0.2, 0.5, request_seeds=True)
_PRODUCTION = production(0.03, 0.15)
_DRAFTS = drafts(0.25, 1.0)
_COMBINATIONS = combinations_of_parameters(0.6, 0.14)
_LARGEST = largest(0.0006, 0.018)

# A check needs what it judges. It does not need what its batches can go without (filters of other rows, a large
# vocabulary): workloads adapt to that.
_TOP_K, _TOP_P, _MIN_P = Capability.TOP_K, Capability.TOP_P, Capability.MIN_P
_TWO_FILTERS = ((_TOP_K, _TOP_P), (_TOP_P, _MIN_P), (_MIN_P, _TOP_K))
_OWN = (Capability.SEEDED_NOISE, Capability.REQUEST_SEEDS)
_ONE, _TWO, _ALL = ((f"T6 temperature and {number} of the filters",) for number in (1, 2, 3))


def _distribution(
    code: str,
    title: str,
    workload: Workload,
    tables: tuple[str, ...],
    needs: tuple[Capability, ...],
    meaning: str,
    **fields: Any,  # Any: other fields of a check
) -> DistributionCheck:
    """A check of the sampling contract."""
    text = inspect.cleandoc(meaning)
    return DistributionCheck(code, title, text, "sampling", "statistical", needs, workload, tables, **fields)


_LISTED: tuple[DistributionCheck | SliceCheck, ...] = (
    _distribution(
        "DIST701",
        "tokens follow the softmax of their logits",
        _SMALL,
        ("T1 plain",),
        (),
        """Without filters, at temperature 1, tokens have the distribution that the logits give.

        Look at the race, or at the sums of an inverse CDF: uniforms with too few bits, a tail that is lost.
        """,
        stage=Stage.TOKENS,
    ),
    _distribution(
        "DIST702",
        "tokens follow the distribution at their temperature",
        _SMALL,
        ("T1 at temperature",),
        (),
        """At temperatures 0.7 and 2, side by side with others, tokens have the distribution of divided logits.

        The temperature of another request, of lower precision, or applied twice.
        """,
        stage=Stage.TOKENS,
    ),
    _distribution(
        "DIST703",
        "tokens follow the distribution that top-k leaves",
        _SMALL,
        ("T1 with top-k",),
        (_TOP_K,),
        """With `top_k` of 4 the four most probable tokens are drawn, in their proportions.

        One token too many or too few, or probabilities that were not normalised again.
        """,
        stage=Stage.TOKENS,
    ),
    _distribution(
        "DIST704",
        "tokens follow the distribution that top-p leaves",
        _SMALL,
        ("T1 with top-p",),
        (_TOP_P,),
        """With `top_p` of 0.65 the tokens that first reach it are drawn, in their proportions.

        The token that reaches `top_p` belongs to them; the next does not.
        """,
        stage=Stage.TOKENS,
    ),
    _distribution(
        "DIST705",
        "tokens follow the distribution that min-p leaves",
        _SMALL,
        ("T1 with min-p",),
        (_MIN_P,),
        """With `min_p` of 0.5 tokens of at least half of the largest probability are drawn, in their proportions.

        The threshold is relative to the largest probability of the row, at the request's temperature, which is 2;
        a sampler may declare that its filters see the distribution before the temperature.
        """,
        stage=Stage.TOKENS,
    ),
    _distribution(
        "DIST706",
        "tokens follow the distribution that all filters together leave",
        _SMALL,
        ("T1 with all filters",),
        (),
        """With temperature, min-p, top-k and top-p in one request, each works on what the one before it left.

        A sampler that supports two of the filters gets those two. The order is the sampler's own, as its `FilterPolicy`
        says. If the distributions of single filters hold, look at the order and at what is normalised in between.
        """,
        needs_one_of=_TWO_FILTERS,
        stage=Stage.TOKENS,
    ),
    _distribution(
        "DIST707",
        "requests with seeds of their own follow their distributions",
        _SEEDS,
        ("T1",),
        _OWN,
        """Every request has a per-request seed, and every kind of parameters: tokens have their distributions.

        Seeded requests draw their numbers in another way: look for a generator that has the same seed for several
        requests, or at its first numbers, which are poor in some generators.
        """,
        stage=Stage.INDEPENDENCE,
    ),
    _distribution(
        "DIST711",
        "rows of one call are independent",
        _SMALL,
        ("T2",),
        (),
        """Tokens of two rows of a call are independent: neighbours, and rows 8, 32 and 256 apart.

        Noise that is indexed by lane or block instead of row, or drawn once for the batch. It means this only if
        DIST701 and DIST702 pass: tokens that follow a wrong distribution fail this check, too. Rows that share all
        their noise fail most checks at once, and SAM162, which tests it directly.
        """,
        stage=Stage.INDEPENDENCE,
        depends_on=("DIST701", "DIST702"),
    ),
    _distribution(
        "DIST712",
        "consecutive calls are independent",
        _SMALL,
        ("T3",),
        (),
        """Tokens of the same row in two consecutive calls with different seeds are independent.

        A seed or offset that does not advance, or noise kept in a buffer. It means this only if DIST701 passes: tokens
        that follow a wrong distribution fail this check, too.
        """,
        stage=Stage.INDEPENDENCE,
        depends_on=("DIST701",),
    ),
    _distribution(
        "DIST713",
        "rows with seeds of their own are independent",
        _SEEDS,
        ("T2", "T3"),
        _OWN,
        """Rows of a call, and calls, are independent if every request has a seed of its own.

        Seeds that are folded into few bits, or a counter that forgets the position. It means this only if DIST707
        passes: tokens that follow a wrong distribution fail this check, too.
        """,
        stage=Stage.INDEPENDENCE,
        depends_on=("DIST707",),
    ),
    _distribution(
        "DIST721",
        "tokens follow their distribution at a production vocabulary, by rank",
        _PRODUCTION,
        ("T4 token by rank",),
        (),
        """Tokens of 32768, ordered by probability, are as often probable and improbable as they should be.

        A wrong temperature, a filter applied twice, a tail that is lost: by rank these show best. A sampler that does
        not support large vocabularies is judged at 1024 tokens.
        """,
        stage=Stage.LARGE_ROWS,
    ),
    _distribution(
        "DIST722",
        "tokens follow their distribution at a production vocabulary, by id",
        _PRODUCTION,
        ("T4 token by id",),
        (),
        """Tokens of 32768 are spread over the ids, and over their lanes and blocks, as they should be.

        A tile of the vocabulary that is lost or weighed twice, most often the last, or lanes of a kernel that weigh
        differently. A sampler that does not support large vocabularies is judged at 1024 tokens.
        """,
        stage=Stage.LARGE_ROWS,
    ),
    _distribution(
        "DIST723",
        "tokens follow their distribution at the largest vocabularies",
        _LARGEST,
        ("T7",),
        (Capability.LARGE_VOCAB,),
        """Tokens of 151936 and of 262144, by rank and by id, with temperature and each filter.

        Ids above 2**16 and 2**17 are drawn as often as others. Suspect ids of 16 bits, a top-k or top-p that looks at a
        part of the vocabulary, sums in half precision, and tiles that are lost.
        """,
        stage=Stage.LARGE_ROWS,
    ),
    _distribution(
        "DIST741",
        "tokens follow the distribution of a temperature with one filter",
        _COMBINATIONS,
        _ONE,
        (),
        """Temperatures of 0.5 to 2.5 with top-k, with top-p, and with min-p: no token outside of the support.

        A filter that sees the distribution before the temperature keeps other tokens. The rows have much mass just
        behind each edge, so that one wrong token comes soon; it decides. Some calls hold one kind of request only: if
        SAM112 fails, too, it is a path for these.
        """,
        needs_one_of=((_TOP_K, _TOP_P, _MIN_P),),
        stage=Stage.TOKENS,
    ),
    _distribution(
        "DIST742",
        "tokens follow the distribution of a temperature with two filters",
        _COMBINATIONS,
        _TWO,
        (),
        """Temperatures with every two of the filters, on rows where another order of the two keeps other tokens.

        Suspect the order, a filter that works on the unfiltered distribution, or a branch for one filter only.
        """,
        needs_one_of=_TWO_FILTERS,
        stage=Stage.TOKENS,
    ),
    _distribution(
        "DIST743",
        "tokens follow the distribution of a temperature with all filters",
        _COMBINATIONS,
        _ALL,
        (_TOP_K, _TOP_P, _MIN_P),
        """Temperature, min-p, top-k and top-p in one request, on rows where other orders keep other tokens.

        If DIST741 and DIST742 pass, look at what the third filter is given.
        """,
        stage=Stage.TOKENS,
    ),
    _distribution(
        "DIST744",
        "parameters at the edge of their range give their distribution",
        _COMBINATIONS,
        ("T6 edges",),
        (),
        """Off, minimum, maximum and just inside, and greedy requests, in one batch with all other kinds of requests.

        `top_k` of 1, of the vocabulary and of one less; `top_p` of 1e-7, denormal and one step below 1; `min_p` of 1;
        temperatures of 0, just above greedy, and 50. Suspect a comparison with the wrong side of the edge, a division
        by what is nearly 0, and a filter of another row.
        """,
        stage=Stage.TOKENS,
    ),
    _distribution(
        "DIST745",
        "requests with and without seeds follow their distributions side by side",
        _COMBINATIONS,
        ("T6 seeded", "T6 unseeded"),
        _OWN,
        """Half of the requests of each call have a seed of their own; both halves have their distributions.

        Two ways to draw, in one batch: look for a row that takes the numbers, or the parameters, of the other kind. It
        means this only if DIST741 and DIST744 pass: a wrong filter fails this check, too.
        """,
        stage=Stage.INDEPENDENCE,
        depends_on=("DIST741", "DIST744"),
    ),
    _distribution(
        "DIST746",
        "logits in half precision give their distribution",
        _COMBINATIONS,
        ("T6 bfloat16", "T6 float16"),
        (Capability.HALF_LOGITS,),
        """Logits that bfloat16 and float16 hold exactly give the distribution that they give in float32.

        A temperature, a softmax or a sum that is computed in half precision. It means this only if DIST741 and DIST744
        pass: a wrong filter fails this check, too.
        """,
        stage=Stage.TOKENS,
        depends_on=("DIST741", "DIST744"),
    ),
    _distribution(
        "DIST731",
        "drafts follow the distribution that comes with them, by rank",
        _DRAFTS,
        ("T5 draft by rank",),
        (Capability.DRAFT_DISTRIBUTION,),
        """Drafted tokens have the distribution that the drafter returned, whatever mask it used.

        A verifier divides by that distribution. If drafts come from another one, speculative decoding is lossy.
        """,
        stage=Stage.DRAFTS,
    ),
    _distribution(
        "DIST732",
        "drafts follow the distribution that comes with them, by id",
        _DRAFTS,
        ("T5 draft by id",),
        (Capability.DRAFT_DISTRIBUTION,),
        """Drafted tokens, ordered by id, have the distribution that the drafter returned.

        A tile that is lost between the draw and the distribution.
        """,
        stage=Stage.DRAFTS,
    ),
    *SAMPLING_CHECKS,
    SLICES,
)

CHECKS: tuple[DistributionCheck | SliceCheck, ...] = tuple(
    dataclasses.replace(check, share=1 / len(_LISTED)) for check in _LISTED
)
