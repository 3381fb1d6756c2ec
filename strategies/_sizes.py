"""Sizes: of vocabularies, and numbers of drafts per request."""

from hypothesis import strategies as st

from fairdraw._core.seeds import derive_seed
from fairdraw.contracts import MAX_SPEC_LEN
from fairdraw.strategies._arguments import check_interval

AWKWARD_VOCAB_SIZES = (31, 100, 1023, 1024, 1025)
"""Off and on the edges of small kernel tiles."""

LARGE_VOCAB_SIZES = (8191, 8192, 8193, 32000, 128256, 151936, 262144)
"""Edges of an 8192 tile, and the vocabularies of Llama 2, Llama 3, Qwen 2 and Gemma 3."""

TILES = (
    *sorted({*(m << a for m in (2, 3, 5, 7) for a in range(3, 13) if m << a <= 8192), 36, 72, 144, 288, 576, 1152}),
    *[100, 200, 250, 300, 400, 500, 1000, 2000, 3000, 4000, 5000],
)
"""Whatever a kernel may have cut its vocabulary into: powers of two and a few multiples of them, and round numbers."""

_SMALL_REST = 8


def tiled_vocab_sizes(seed: int, max_size: int, num_tiles: int = len(TILES)) -> list[tuple[int, int]]:
    """Pairs `(tile, vocab_size)`: for each of `num_tiles` different tiles two vocabularies of several tiles and a rest.

    The rest of the first is 1; that of the second is up to 8, or any number from one id short of a full tile on. Most
    have up to four tiles, so that few are large.

    Args:
        seed: How many tiles, which rests, and which tiles if not all are wanted.
        max_size: Of the vocabularies.
    """
    tiles = [tile for tile in TILES if tile + _SMALL_REST <= max_size]
    wanted = sorted(tiles, key=lambda tile: derive_seed("wanted", seed, tile))[:num_tiles]
    sizes = []
    for tile in wanted:
        numbers = [derive_seed("tiled", seed, tile, step) for step in range(5)]
        most = (max_size - _SMALL_REST) // tile
        few, any_rest = (1 + number % (most if number % 5 == 0 else min(most, 4)) for number in numbers[:2])
        rest = 2 + numbers[3] % (_SMALL_REST - 1) if numbers[2] % 2 else numbers[4] % (tile + 1) - 1
        sizes += [(tile, tile * few + 1), (tile, min(tile * any_rest + rest, max_size))]
    return sizes


def ids_around_tiles(tile: int, vocab_size: int) -> list[int]:
    """The last eight ids, the last one first; those on either side of the first and the last edge of a tile; 0."""
    last = vocab_size // tile * tile
    edges = [edge + step for edge in (last, tile, last - tile) for step in (0, -1, 1)]
    ids = [*range(vocab_size - 1, max(0, vocab_size - 9), -1), *edges, 0]
    return list(dict.fromkeys(i for i in ids if 0 <= i < vocab_size))


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
