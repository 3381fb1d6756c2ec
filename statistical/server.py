"""The statistical checks of the server contract: code, title and meaning of each."""

from collections.abc import Callable
from typing import Any, TypeVar

from fairdraw._core.checks import Stage
from fairdraw.contracts import Capability
from fairdraw.statistical._distribution_check import sharing
from fairdraw.statistical._server_check import ServerDistributionCheck
from fairdraw.statistical._server_replay import PlainSlices, ReplayedSlices
from fairdraw.statistical._server_slices import ServerSlices
from fairdraw.strategies import _server_requests as asks

__all__ = ["CHECKS"]

Judge = TypeVar("Judge", ServerDistributionCheck, ServerSlices, PlainSlices, ReplayedSlices)


def _check(
    judge: type[Judge], code: str, need: Capability, part: float, **fields: Any
) -> Callable[[Callable[[], tuple[asks.Kind, ...]]], Judge]:  # Any: other fields of a check
    """Make a check of a function that says which kinds of requests it judges; `part` is that of the run's tokens."""
    about: dict[str, Any] = {"contract": "server", "suite": "statistical", "needs": (need,), "part": part, **fields}
    return lambda kinds: judge.named(kinds, code, kinds=kinds(), **about)


@_check(ServerDistributionCheck, "DIST911", Capability.TOP_LOGPROBS, 0.4, stage=Stage.TOKENS)
def tokens_follow_the_distribution_that_is_returned_with_them() -> tuple[asks.Kind, ...]:
    """At temperature 1 without filters, each token is drawn from the distribution that the server returns.

    If probable tokens come too often, the server is greedy on some path, or its temperature is another. If they
    come too seldom, the log-probabilities are those of another position, request or stage.
    """
    return (asks.PLAIN,)


@_check(ServerSlices, "DIST921", Capability.TOP_LOGPROBS, 0.4, stage=Stage.INDEPENDENCE, depends_on=("DIST911",))
def tokens_of_neighbours_are_independent() -> tuple[asks.Kind, ...]:
    """Given their distributions, a token was drawn with a number that is independent of those of the position,
    of the choice and of the request before: of plain requests, of four choices, of seeds 2s and 2s + 1.

    A generator that does not advance, noise that tokens of a speculative step or rows of a batch share, a state
    that is copied for every choice, a seed that loses its lowest bit, or one for all that bring none.
    """
    return (asks.PLAIN, asks.FOUR_CHOICES, asks.CONSECUTIVE_SEEDS)


@_check(ServerSlices, "DIST925", Capability.TOP_LOGPROBS, 1.0, stage=Stage.INDEPENDENCE, depends_on=("DIST911",))
def tokens_of_requests_of_all_kinds_follow_their_distributions_in_every_slice() -> tuple[asks.Kind, ...]:
    """Temperatures, filters, penalties, biases, seeds, choices and lengths stand together in requests, every
    two of them, all on their way side by side. Every token is counted by what its request asks for, by its
    place and choice, and by what the request before asked for.

    The report names the slice. Look for what is different in just that one: parameters of another row of the
    batch, a path for requests that are alike, a parameter that another one switches off.
    """
    return (asks.MIXED,)


@_check(PlainSlices, "DIST941", Capability.TOP_LOGPROBS, 0.15, stage=Stage.INDEPENDENCE, depends_on=("DIST911",))
def tokens_without_lists_follow_the_lists_of_their_prefixes() -> tuple[asks.Kind, ...]:
    """Tokens of requests without log-probabilities, as most users send them, follow the distribution that the same
    prefix has in a request with them: plain, at a temperature, with a filter; and in every mode: streamed, with a
    seed, beside greedy requests, as one of several choices.

    Requests that want no list take another path: vLLM's fused sampler, llama.cpp's `--backend-sampling`. It ignores
    a filter or the temperature, is greedy, or draws with noise that requests share.
    """
    return (*asks.PLAIN_KINDS, asks.MIXED_WITHOUT_LISTS)


@_check(ReplayedSlices, "DIST931", Capability.TOKEN_IDS, 0.1, differential=True, stage=Stage.PAIRS)
def tokens_follow_the_distributions_that_the_reference_returns_for_their_prefixes() -> tuple[asks.Kind, ...]:
    """Each token follows the distribution that the second server returns for the same prompt and tokens before.

    The second server is the same one without speculation (`--reference ADDRESS`): speculation is then lossy, or
    log-probabilities and tokens of the first come from different logits. Two servers with other weights or
    another precision fail here, too.
    """
    return (asks.PLAIN,)


_OWN = [value for value in list(globals().values()) if isinstance(value, (ServerDistributionCheck, ServerSlices))]
CHECKS: tuple[ServerDistributionCheck | ServerSlices, ...] = sharing(_OWN)
