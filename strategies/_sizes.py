"""Sizes: of vocabularies, and numbers of drafts per request."""

from __future__ import annotations

from hypothesis import strategies as st

from fairdraw.protocols import MAX_SPEC_LEN
from fairdraw.strategies._arguments import check_interval

AWKWARD_VOCAB_SIZES = (31, 100, 1023, 1024, 1025)
"""Off and on the edges of small kernel tiles."""

LARGE_VOCAB_SIZES = (8191, 8192, 8193, 32000, 128256, 151936, 262144)
"""Edges of an 8192 tile, and the vocabularies of Llama 2, Llama 3, Qwen 2 and Gemma 3."""

BATCH_SIZES = (5, 7, 9, 13, 15, 17, 31, 33, 63, 65, 100, 127, 128, 129, 255, 256, 257, 511, 513, 1000, 1023, 1025, 1100)
"""Primes, powers of two and their neighbours, round numbers: whatever a grid, a block or a bit mask was sized for."""

DRAFT_COUNTS = (33, 7, 128, 0, 1, 64, 17, 127, 2, 32, 31, 65, 8, 100)
"""Numbers of drafts that stand in one batch: none, few, and as many as there may be."""

_TINY = 8
# Three vocabularies in four are tiny: edges are met within a hundred examples, and examples stay fast.
_TINY_PER_EDGE = 3


@st.composite
def vocab_sizes(draw: st.DrawFn, min_size: int = 1, max_size: int = 1025) -> int:
    """Vocabulary sizes: mostly tiny (they shrink and print), one in four on the edge of a kernel tile.

    Args:
        max_size: 1025 keeps examples fast; 151936 adds `LARGE_VOCAB_SIZES`.

    Raises:
        ValueError: Unless `1 <= min_size <= max_size`.
    """
    check_interval("vocab_sizes", "min_size", min_size, "max_size", max_size, at_least=1)
    edges = [size for size in AWKWARD_VOCAB_SIZES + LARGE_VOCAB_SIZES if min_size <= size <= max_size]
    tiny = range(min_size, min(max(_TINY, min_size), max_size) + 1)
    # One choice from one list, so that an edge shrinks to any tiny size in one step; `one_of` would need two, and it
    # drops repeated branches.
    repeats = max(1, -(-_TINY_PER_EDGE * len(edges) // len(tiny)))
    sizes: list[int] = [*tiny] * repeats + edges
    return draw(st.sampled_from(sizes))


@st.composite
def num_draft_tokens(
    draw: st.DrawFn, min_requests: int = 1, max_requests: int = 4, *, min_drafts: int = 0, max_drafts: int = 4
) -> list[int]:
    """How many drafts each request of a batch has: ragged, 0 for some or for all.

    Raises:
        ValueError: Unless `1 <= min_requests <= max_requests` and `0 <= min_drafts <= max_drafts <= MAX_SPEC_LEN`.
    """
    check_interval("num_draft_tokens", "min_requests", min_requests, "max_requests", max_requests, at_least=1)
    check_interval("num_draft_tokens", "min_drafts", min_drafts, "max_drafts", max_drafts, at_most=MAX_SPEC_LEN)
    counts = st.integers(min_drafts, max_drafts)
    return draw(st.lists(counts, min_size=min_requests, max_size=max_requests))
