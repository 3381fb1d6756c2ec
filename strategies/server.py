"""Strategies of the server contract: generation requests with their own parameters, and how a server is set up."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import strategies as st

from fairdraw.contracts import Capabilities, Capability, GenerationRequest, ServerSettings
from fairdraw.strategies._server_requests import FILTERS, PENALTIES, PROMPTS, TEMPERATURES, TOKENS_EACH, supported

__all__ = ["FILTERS", "PENALTIES", "PROMPTS", "TEMPERATURES", "generation_requests", "server_settings"]

_SEEDS = (None, 0, 1, 2, 65_536, 2**31 - 1)


def generation_requests(capabilities: Capabilities | None = None) -> st.SearchStrategy[GenerationRequest]:
    """Requests of all kinds: a temperature, at most one filter, penalties, a seed, some choices.

    Args:
        capabilities: Nothing is drawn that they do not support.

    Example:
        >>> from hypothesis import given
        >>> @given(generation_requests())
        ... def each(request):
        ...     assert 1 <= request.max_tokens <= 16
        >>> each()
    """
    can = capabilities or Capabilities()
    temperatures = TEMPERATURES if Capability.GREEDY in can else TEMPERATURES[:-1]

    def made(changes: tuple[Mapping[str, float], Mapping[str, float]], base: GenerationRequest) -> GenerationRequest:
        return base.replace(**changes[0], **changes[1])

    base = st.builds(
        GenerationRequest,
        prompt=st.sampled_from(PROMPTS),
        max_tokens=st.integers(1, TOKENS_EACH),
        temperature=st.sampled_from(temperatures),
        seed=st.sampled_from(_SEEDS if Capability.REQUEST_SEEDS in can else _SEEDS[:1]),
        n=st.sampled_from((1, 2, 4) if Capability.N_CHOICES in can else (1,)),
        logprobs=st.sampled_from((None, 2, 5, 20) if Capability.TOP_LOGPROBS in can else (None,)),
        stream=st.booleans() if Capability.STREAMING in can else st.just(False),
    )
    own = st.tuples(st.sampled_from(supported(FILTERS, can)), st.sampled_from(supported(PENALTIES, can)))
    return st.builds(made, own, base)


def server_settings() -> st.SearchStrategy[ServerSettings]:
    """How a server is asked: concurrency, length of the lists, and limits on requests and tokens."""
    return st.builds(
        ServerSettings,
        concurrency=st.integers(1, 16),
        logprobs=st.sampled_from((2, 5, 20, 1000)),
        requests=st.sampled_from((None, 100, 1000)),
        tokens=st.sampled_from((None, 2_000, 20_000)),
    )
