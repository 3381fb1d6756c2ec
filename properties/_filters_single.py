"""10x, 11x: each filter alone, against its paper, with its usual settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairdraw.contracts import capability_of
from fairdraw.properties._filters_asserts import cases, check, require_rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairdraw._core.checks import Check
    from fairdraw.contracts import LogitsFilterer
    from fairdraw.strategies.filters import FilterCase


def _check(code: str, name: str) -> Callable[[Callable[..., None]], Check]:
    """Return a check of one filter."""
    return check(code, lambda can: cases(can, filters=(name,)), needs=(capability_of(name),))


@_check("FIL101", "top_k")
def top_k_keeps_the_k_most_probable_tokens(filterer: LogitsFilterer, case: FilterCase) -> None:
    """Top-k keeps the k largest logits, and all of them if there are not so many.

    A k-th value that is looked up in the wrong row, or sorted the wrong way round.
    """
    require_rows(filterer, case)


@_check("FIL102", "top_p")
def top_p_keeps_the_fewest_most_probable_tokens_that_have_the_mass(filterer: LogitsFilterer, case: FilterCase) -> None:
    """Top-p keeps the smallest set of most probable tokens whose probabilities reach `top_p`.

    The token that reaches the mass is dropped, or one too many is kept: a comparison before the addition.
    """
    require_rows(filterer, case)


@_check("FIL103", "min_p")
def min_p_keeps_tokens_of_at_least_a_share_of_the_largest_probability(
    filterer: LogitsFilterer, case: FilterCase
) -> None:
    """Min-p keeps tokens whose probability is at least `min_p` times the largest one.

    Probabilities are compared with `min_p` itself, or with the maximum of the batch.
    """
    require_rows(filterer, case)


@_check("FIL104", "typical_p")
def typical_p_keeps_the_fewest_most_typical_tokens_that_have_the_mass(
    filterer: LogitsFilterer, case: FilterCase
) -> None:
    """Typical-p sorts tokens by how far their surprise is from the entropy, and keeps the fewest that reach the
    mass (Meister et al. 2022, eq. 7).

    The token that reaches the mass is dropped, or a probability of 0 makes the entropy NaN.
    """
    require_rows(filterer, case)


@_check("FIL105", "top_n_sigma")
def top_n_sigma_keeps_logits_within_n_standard_deviations_of_the_largest(
    filterer: LogitsFilterer, case: FilterCase
) -> None:
    """Top-n-sigma keeps logits of at least `max - n * sigma`; sigma is that of the logits that are left (Tang
    et al. 2024). Which of n and n - 1 it divides by is declared (`sigma_ddof`).

    The deviation of probabilities, of the batch, or with -inf among the logits, which makes it NaN.
    """
    require_rows(filterer, case)


@_check("FIL106", "top_a")
def top_a_keeps_tokens_above_a_share_of_the_largest_probability_squared(
    filterer: LogitsFilterer, case: FilterCase
) -> None:
    """Top-a keeps tokens whose probability is at least `top_a` times the square of the largest one.

    A threshold without the square is min-p.
    """
    require_rows(filterer, case)


@_check("FIL107", "tail_free")
def tail_free_sampling_keeps_tokens_up_to_a_share_of_the_curvature(filterer: LogitsFilterer, case: FilterCase) -> None:
    """TFS sorts probabilities and keeps tokens as long as the absolute second differences have, added up, at
    most the given share of their sum; how many more is declared (`tail_free_extra`).

    First differences, no normalisation, or a sum without absolute values.
    """
    require_rows(filterer, case)


@_check("FIL108", "eta")
def eta_cutoff_follows_the_entropy(filterer: LogitsFilterer, case: FilterCase) -> None:
    """Eta sampling keeps tokens of probability at least min(epsilon, sqrt(epsilon) exp(-entropy)), and the most
    probable one (Hewitt et al. 2022, eq. 4).

    An entropy in bits or of the wrong sign, or the larger of the two instead of the smaller.
    """
    require_rows(filterer, case)


@_check("FIL109", "epsilon")
def epsilon_cutoff_keeps_tokens_of_at_least_that_probability(filterer: LogitsFilterer, case: FilterCase) -> None:
    """Epsilon sampling keeps tokens of probability at least epsilon, and the most probable one if none has it.

    A threshold in units of 1e-4, as some interfaces take it, or one relative to the largest probability.
    """
    require_rows(filterer, case)


@_check("FIL110", "xtc")
def xtc_leaves_the_least_probable_token_above_the_threshold(filterer: LogitsFilterer, case: FilterCase) -> None:
    """With probability 1, XTC removes all tokens that reach the threshold but the least probable of them;
    with one such token or none it does nothing.

    All of them are removed, the most probable one stays, or the threshold is one of the sorted places.
    """
    require_rows(filterer, case)


@_check("FIL111", "temperature")
def logits_are_divided_by_the_temperature(filterer: LogitsFilterer, case: FilterCase) -> None:
    """Distances between logits are divided by the row's temperature.

    A product instead of a quotient, or another row's temperature.
    """
    require_rows(filterer, case)


@_check("FIL112", "dynatemp")
def the_dynamic_temperature_follows_the_entropy(filterer: LogitsFilterer, case: FilterCase) -> None:
    """The temperature is `low + (high - low) * share ** exponent`, where `share` is the entropy over the
    logarithm of the number of tokens that are left.

    Forbidden tokens that are counted, an exponent at the wrong place, or low and high exchanged.
    """
    require_rows(filterer, case)


@_check("FIL113", "smoothing")
def quadratic_smoothing_bends_logits_around_the_largest(filterer: LogitsFilterer, case: FilterCase) -> None:
    """A logit at distance d from the largest becomes `max - f (3 - c) / 2 d**2 + f (c - 1) / 2 d**3`, with
    factor f and curve c.

    A maximum of the batch, or a cubic term of the wrong sign.
    """
    require_rows(filterer, case)


@_check("FIL114", "dry")
def dry_penalises_what_would_make_a_repetition_longer(filterer: LogitsFilterer, case: FilterCase) -> None:
    """A token that followed an earlier copy of the last n tokens is penalised by
    `multiplier * base ** (n - allowed_length)` if n is at least `allowed_length`; the longest copy counts.

    Another copy than the longest, an exponent that is one off, or short repetitions that are penalised, too.
    """
    require_rows(filterer, case)


@_check("FIL115", "mirostat_v1")
def mirostat_keeps_the_k_tokens_of_its_estimate(filterer: LogitsFilterer, case: FilterCase) -> None:
    """In its first step, version 1 keeps k tokens, by the Zipf exponent of the most probable ones and mu = 2
    tau (Basu et al. 2021, algorithm 1).

    A logarithm to another base, an exponent of ranks that begin at 0, or a k that overflows.
    """
    require_rows(filterer, case)


@_check("FIL116", "mirostat_v2")
def mirostat_2_keeps_tokens_up_to_a_surprise(filterer: LogitsFilterer, case: FilterCase) -> None:
    """In its first step, version 2 keeps tokens whose surprise is at most mu = 2 tau bits, and the most
    probable one.

    Surprise in nats, or mu that begins at tau.
    """
    require_rows(filterer, case)


@_check("FIL117", "p_less")
def p_less_keeps_tokens_of_at_least_the_sum_of_squared_probabilities(
    filterer: LogitsFilterer, case: FilterCase
) -> None:
    """P-less keeps tokens whose probability is at least that of drawing the same token twice, the sum of squared
    probabilities; one token at least (Tan et al. 2025).

    Another power than the square, the largest probability alone, or a sum that rounds above every token of a flat row.
    """
    require_rows(filterer, case)
