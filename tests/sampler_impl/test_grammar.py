"""Bitmasks of sampler_impl: what the checks of the contract cannot ask, refusals and a grammar that raises."""

import pytest
import torch

from fairdraw.sampler_impl.grammar import apply_bitmask, fork_bitmasks
from fairdraw.strategies.grammar import TokenAutomaton, TokenMatcher

AUTOMATON = TokenAutomaton(((0, 5, 1), (1, 33, 0), (1, 2, -1)))


class Raising(TokenMatcher):
    """It has no mask for state 1."""

    def fill(self, bitmask: torch.Tensor) -> None:  # [num_words] int32
        if self.state == 1:
            raise OSError("no mask")
        super().fill(bitmask)


def test_grammar_that_raises_is_rolled_back() -> None:
    matcher = Raising(AUTOMATON)
    with pytest.raises(OSError, match="no mask"):
        fork_bitmasks([matcher], [[5, 33]], torch.empty(3, 2, dtype=torch.int32))
    assert matcher.state == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"logits": torch.zeros(2, 40).double()}, "logits.dtype=torch.float64, but it must be torch.float32"),
        ({"logits": torch.zeros(40)}, r"logits=\[40\], but it must be a tensor of 2 dimensions"),
        ({"bitmask": torch.zeros(2, 2, dtype=torch.int64)}, "bitmask.dtype=torch.int64, but it must be torch.int32"),
        ({"bitmask": torch.zeros(1, 2, dtype=torch.int32)}, r"bitmask.shape=\[1, 2\], but it must be \[2, num_words\]"),
    ],
)
def test_wrong_tensors_are_refused_by_name(changes: dict[str, torch.Tensor], message: str) -> None:
    right = {"logits": torch.zeros(2, 40), "bitmask": torch.zeros(2, 2, dtype=torch.int32)}
    with pytest.raises((TypeError, ValueError), match=f"apply_bitmask: {message}"):
        apply_bitmask(**{**right, **changes})


def test_too_few_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="fork_bitmasks: 1 matchers, 1 requests and 2 rows, but"):
        fork_bitmasks([None], [[5, 33]], torch.empty(2, 2, dtype=torch.int32))
