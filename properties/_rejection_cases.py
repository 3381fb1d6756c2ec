"""The cases of the rejection checks.

Most checks use *ordinary* cases: what an engine can meet. What only a fault upstream of the sampler, a rounding
error or an adversary brings about (placeholder drafts, rejections without a residual, uniform 0 on a token without
probability, denormal exponentials, rows without a distribution) has checks of its own. So a sampler that mishandles one
such thing fails the checks that name it, and no others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from fairdraw.contracts import Capabilities, Capability
from fairdraw.strategies import DraftRecipe, RejectionCase, RequestRecipe, rejection_cases
from fairdraw.strategies.rows import bulk_seeds

Cases = st.SearchStrategy[RejectionCase]

POSITIVE = ("flat", "normal", "zipf", "peaked", "tied")
"""Target rows with mass on every token."""

MASKED = ("one-hot", "last-only", "half")
"""Target rows in which some tokens are masked with -inf, so that their probability is exactly 0 in any arithmetic."""

_EXPONENTIALS = ("random", "equal", "coarse", "tiny", "huge", "twins")

# A one-hot draft may be any token: its drafter (n-gram lookup) does not look at the target. Its residual is never
# empty.
_ONE_HOT = {
    "dense": False,
    "tokens": ("likely", "drawn", "unlikely", "first", "last", "any"),
    "uniforms": ("random", "half", "smallest", "above", "largest"),
    "exponentials": _EXPONENTIALS,
}

# A dense draft is drawn from its distribution. Distributions within rounding of the target stay away from uniforms
# close to 1: there a rejection would leave no residual.
_DENSE = {
    "dense": True,
    "drafts": ("uniform", "independent", "reversed", "sparse", "elsewhere"),
    "tokens": ("drawn",),
    "uniforms": ("random", "half", "smallest"),
    "exponentials": _EXPONENTIALS,
}


def _either(
    can: Capabilities,
    one_hot: dict[str, Any],  # Any: arguments of rejection_cases
    dense: dict[str, Any],  # Any: the same
    narrow: dict[str, Any],  # Any: the same
) -> Cases:
    """One-hot or dense drafts, whichever the sampler takes and the check has not excluded."""
    fixed = narrow.get("dense")
    worlds = []
    if Capability.ONE_HOT_DRAFTS in can and fixed is not True:
        worlds.append(rejection_cases(can, **{**_ONE_HOT, **one_hot, **narrow}))
    if Capability.DENSE_DRAFTS in can and fixed is not False:
        worlds.append(rejection_cases(can, **{**_DENSE, **dense, **narrow}))
    return st.one_of(worlds)


def ordinary(can: Capabilities, **narrow: Any) -> Cases:  # Any: arguments of rejection_cases
    """What an engine can meet."""
    return _either(can, {}, {}, narrow)


def rejecting(can: Capabilities, **narrow: Any) -> Cases:  # Any: arguments of rejection_cases
    """Ordinary steps of random requests in which most drafts are rejected."""
    one_hot = {"tokens": ("unlikely", "any"), "uniforms": ("half", "random", "largest")}
    dense = {"drafts": ("elsewhere", "independent", "reversed"), "uniforms": ("half", "random")}
    return _either(can, one_hot, dense, {"min_vocab_size": 2, "min_drafts": 1, "greedy": False, **narrow})


def accepting(can: Capabilities, **narrow: Any) -> Cases:  # Any: arguments of rejection_cases
    """Ordinary steps in which most drafts are accepted."""
    one_hot = {"targets": ("one-hot", "last-only", "peaked"), "tokens": ("likely",)}
    return _either(can, one_hot, {"drafts": ("same",)}, {"uniforms": ("random", "half", "smallest"), **narrow})


def lively(can: Capabilities, **narrow: Any) -> Cases:  # Any: arguments of rejection_cases
    """Ordinary steps, half of them with many rejections: the cases of equality checks."""
    return ordinary(can, **narrow) | rejecting(can, **{"greedy": None, **narrow})


_CERTAIN = DraftRecipe(target="last-only", draft="same", token="likely", uniform="half")
_PLACEHOLDER = DraftRecipe(target="last-only", draft="uniform", token="placeholder", uniform="half")


def _with_a_tempting_placeholder_draft(case: RejectionCase) -> RejectionCase:
    """The first request reaches a placeholder draft, and what lies before that row has probability 1."""
    count = len(case.requests[0].drafts)
    tempting = RequestRecipe(drafts=(*(_CERTAIN,) * (count - 1), _PLACEHOLDER))
    return case.replace(requests=(tempting, *case.requests[1:]))


def withdrawing(can: Capabilities, **narrow: Any) -> Cases:  # Any: arguments of rejection_cases
    """Steps with placeholder drafts; a sampler that reads `probs[row, -1]` accepts one of them in every case."""
    shared = {"min_vocab_size": 2, "min_drafts": 2, "targets": POSITIVE, "drafts": ("independent",)}
    tokens = {"tokens": ("placeholder", "likely"), "uniforms": ("random", "half")}
    return _either(can, {}, {}, {**shared, **tokens, **narrow}).map(_with_a_tempting_placeholder_draft)


def synthetic(can: Capabilities, **narrow: Any) -> Cases:  # Any: arguments of rejection_cases
    """Acceptance by given rates. Any draft may be rejected, so every case leaves a residual."""
    shared = {
        "synthetic": True,
        "min_vocab_size": 2,
        "targets": POSITIVE,
        "uniforms": ("random", "half", "zero", "largest"),
    }
    return _either(can, {}, {"drafts": ("independent",)}, {**shared, **narrow})


def batch_of(
    can: Capabilities,
    vocab_sizes: Sequence[int],
    requests: st.SearchStrategy[tuple[RequestRecipe, ...]],
    *,
    explicit: bool = True,
) -> Cases:
    """These requests, with one-hot drafts or dense ones, and with noise that is handed in if the sampler takes it."""
    kinds = ((False, Capability.ONE_HOT_DRAFTS), (True, Capability.DENSE_DRAFTS))
    return st.builds(
        RejectionCase,
        vocab_size=st.sampled_from(vocab_sizes),
        requests=requests,
        dense=st.sampled_from([is_dense for is_dense, capability in kinds if capability in can]),
        explicit=st.just(explicit and Capability.EXPLICIT_NOISE in can),
        seed=bulk_seeds(),
    )


def identical_requests(can: Capabilities, vocab_size: int, num_drafts: int) -> Cases:
    """One request to be repeated: a flat target, drafts that are certain to their drafter.

    Each draft is accepted with probability `1 / vocab_size`, and a recovered token is uniform over the others.
    """
    draft = DraftRecipe(target="flat", draft="elsewhere", token="drawn")
    request = RequestRecipe(drafts=(draft,) * num_drafts)
    return batch_of(can, (vocab_size,), st.just((request,)), explicit=False)
