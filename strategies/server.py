"""Strategies of the server contract: generation requests with their own parameters."""

from __future__ import annotations

from hypothesis import strategies as st

from fairdraw.contracts import Capabilities, Capability, GenerationRequest
from fairdraw.strategies._server_requests import FILTERS, PENALTIES, PROMPTS, TEMPERATURES, TOKENS_EACH, supported

__all__ = ["FILTERS", "PENALTIES", "PROMPTS", "TEMPERATURES", "generation_requests"]

_SEEDS = (None, 0, 1, 2, 65_536, 2**31 - 1)


def generation_requests(capabilities: Capabilities | None = None) -> st.SearchStrategy[GenerationRequest]:
    """Requests of all kinds: a temperature, a penalty or filters, a seed, some choices.

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

    base = st.builds(
        GenerationRequest,
        prompt=st.sampled_from(PROMPTS),
        max_tokens=st.integers(1, TOKENS_EACH),
        temperature=st.sampled_from(TEMPERATURES if Capability.GREEDY in can else TEMPERATURES[:-1]),
        seed=st.sampled_from(_SEEDS if Capability.REQUEST_SEEDS in can else _SEEDS[:1]),
        n=st.sampled_from((1, 2, 4) if Capability.N_CHOICES in can else (1,)),
        logprobs=st.sampled_from((None, 2, 5, 20) if Capability.TOP_LOGPROBS in can else (None,)),
        stream=st.booleans() if Capability.STREAMING in can else st.just(False),
    )
    change = st.sampled_from(supported([*FILTERS, *PENALTIES[1:]], can))
    return st.builds(lambda request, own: request.replace(**own), base, change)
