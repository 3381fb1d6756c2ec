"""10x, 11x: each filter alone, against its paper."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairdraw.properties._filters_asserts import cases, check, require_rows
from fairdraw.protocols import capability_of

if TYPE_CHECKING:
    from fairdraw._core.checks import Check
    from fairdraw.protocols import LogitsFilterer
    from fairdraw.strategies.filters import FilterCase


def _alone(code: str, name: str, title: str, meaning: str) -> Check:
    """A check of one filter, with its usual settings."""

    def body(filterer: LogitsFilterer, case: FilterCase) -> None:
        require_rows(filterer, case)

    body.__name__, body.__doc__ = title, meaning
    return check(code, lambda can: cases(can, filters=(name,)), needs=(capability_of(name),))(body)


ALONE = tuple(
    _alone(code, name, title, meaning)
    for code, name, title, meaning in (
        (
            *("FIL101", "top_k", "top-k keeps the k most probable tokens"),
            """Top-k keeps the k largest logits, and all of them if there are not so many.

            A k-th value that is looked up in the wrong row, or sorted the wrong way round.
            """,
        ),
        (
            *("FIL102", "top_p", "top-p keeps the fewest most probable tokens that have the mass"),
            """Top-p keeps the smallest set of most probable tokens whose probabilities reach `top_p`.

            The token that reaches the mass is dropped, or one too many is kept: a comparison before the addition.
            """,
        ),
        (
            *("FIL103", "min_p", "min-p keeps tokens of at least a share of the largest probability"),
            """Min-p keeps tokens whose probability is at least `min_p` times the largest one.

            Probabilities are compared with `min_p` itself, or with the maximum of the batch.
            """,
        ),
        (
            *("FIL104", "typical_p", "typical-p keeps the fewest most typical tokens that have the mass"),
            """Typical-p sorts tokens by how far their surprise is from the entropy, and keeps the fewest that reach the
            mass (Meister et al. 2022, eq. 7).

            The token that reaches the mass is dropped, or a probability of 0 makes the entropy NaN.
            """,
        ),
        (
            *("FIL105", "top_n_sigma", "top-n-sigma keeps logits within n standard deviations of the largest"),
            """Top-n-sigma keeps logits of at least `max - n * sigma`; sigma is that of the logits that are left (Tang
            et al. 2024). Which of n and n - 1 it divides by is declared (`sigma_ddof`).

            The deviation of probabilities, of the batch, or with -inf among the logits, which makes it NaN.
            """,
        ),
        (
            *("FIL106", "top_a", "top-a keeps tokens above a share of the largest probability squared"),
            """Top-a keeps tokens whose probability is at least `top_a` times the square of the largest one.

            A threshold without the square is min-p.
            """,
        ),
        (
            *("FIL107", "tail_free", "tail-free sampling keeps tokens up to a share of the curvature"),
            """TFS sorts probabilities and keeps tokens as long as the absolute second differences have, added up, at
            most the given share of their sum; how many more is declared (`tail_free_extra`).

            First differences, no normalisation, or a sum without absolute values.
            """,
        ),
        (
            *("FIL108", "eta", "eta cutoff follows the entropy"),
            """Eta sampling keeps tokens of probability at least min(epsilon, sqrt(epsilon) exp(-entropy)), and the most
            probable one (Hewitt et al. 2022, eq. 4).

            An entropy in bits or of the wrong sign, or the larger of the two instead of the smaller.
            """,
        ),
        (
            *("FIL109", "epsilon", "epsilon cutoff keeps tokens of at least that probability"),
            """Epsilon sampling keeps tokens of probability at least epsilon, and the most probable one if none has it.

            A threshold in units of 1e-4, as some interfaces take it, or one relative to the largest probability.
            """,
        ),
        (
            *("FIL110", "xtc", "XTC leaves the least probable token above the threshold"),
            """With probability 1, XTC removes all tokens that reach the threshold but the least probable of them;
            with one such token or none it does nothing.

            All of them are removed, the most probable one stays, or the threshold is one of the sorted places.
            """,
        ),
        (
            *("FIL111", "temperature", "logits are divided by the temperature"),
            """Distances between logits are divided by the row's temperature.

            A product instead of a quotient, or another row's temperature.
            """,
        ),
        (
            *("FIL112", "dynatemp", "the dynamic temperature follows the entropy"),
            """The temperature is `low + (high - low) * share ** exponent`, where `share` is the entropy over the
            logarithm of the number of tokens that are left.

            Forbidden tokens that are counted, an exponent at the wrong place, or low and high exchanged.
            """,
        ),
        (
            *("FIL113", "smoothing", "quadratic smoothing bends logits around the largest"),
            """A logit at distance d from the largest becomes `max - f (3 - c) / 2 d**2 + f (c - 1) / 2 d**3`, with
            factor f and curve c.

            A maximum of the batch, or a cubic term of the wrong sign.
            """,
        ),
        (
            *("FIL114", "dry", "DRY penalises what would make a repetition longer"),
            """A token that followed an earlier copy of the last n tokens is penalised by
            `multiplier * base ** (n - allowed_length)` if n is at least `allowed_length`; the longest copy counts.

            Another copy than the longest, an exponent that is one off, or short repetitions that are penalised, too.
            """,
        ),
        (
            *("FIL115", "mirostat_v1", "mirostat keeps the k tokens of its estimate"),
            """In its first step, version 1 keeps k tokens, by the Zipf exponent of the most probable ones and mu = 2
            tau (Basu et al. 2021, algorithm 1).

            A logarithm to another base, an exponent of ranks that begin at 0, or a k that overflows.
            """,
        ),
        (
            *("FIL116", "mirostat_v2", "mirostat 2 keeps tokens up to a surprise"),
            """In its first step, version 2 keeps tokens whose surprise is at most mu = 2 tau bits, and the most
            probable one.

            Surprise in nats, or mu that begins at tau.
            """,
        ),
    )
)
