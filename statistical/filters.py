"""The statistical checks of the filters contract: how often XTC fires.

A row with one clear choice above a threshold shows whether XTC fired: its most probable token is out. Coins of
different probabilities stand in one batch. Neighbouring rows, and consecutive steps of a row, must be independent.
"""

from functools import partial
from typing import Any

import numpy as np
import torch

from fairdraw._core.checks import Stage
from fairdraw.contracts import Capability, FilterBatch, FilterParams, SeededNoise
from fairdraw.contracts._filters import call_filters
from fairdraw.statistical._count_tables import Counts, Table, count_codes, joint_codes
from fairdraw.statistical._distribution_check import DistributionCheck
from fairdraw.statistical._workloads import SamplingPlan, Setting, Workload

__all__ = ["CHECKS"]

_LOGITS = (2.0, 1.0, 0.5, -6.0)
"""The first three reach the threshold of 0.1: where XTC fires, the first is out."""
_PROBABILITIES = (0.5, 0.1, 0.5, 0.9)
_WORDS = ("stays", "out")
_MOST_ROWS = 64


def _batch(batch_size: int, device: str) -> FilterBatch:
    params = [FilterParams(xtc_probability=_PROBABILITIES[i % 4], xtc_threshold=0.1) for i in range(batch_size)]
    logits = torch.tensor(_LOGITS, device=device).repeat(batch_size, 1)
    return FilterBatch(logits, params, [[] for _ in params], [[] for _ in params])


def _fired(batch_size: int, device: str, filterer: Any, seed: int) -> Counts:  # Any: under this contract
    """Two steps of one batch, with one noise object."""
    noise = SeededNoise(seed)
    steps = [call_filters(filterer, _batch(batch_size, device), noise).logits for _ in range(2)]
    first, second = (np.isneginf(logits[:, 0]).astype(np.int64) for logits in steps)
    coins = np.array(_PROBABILITIES * (batch_size // 4))
    found = {
        f"X1 fires with {one}": count_codes(np.concatenate([first[coins == one], second[coins == one]]), 2)
        for one in sorted(set(_PROBABILITIES))
    }
    even = first[coins == 0.5].reshape(-1, 2)
    found["X2 neighbouring rows"] = count_codes(joint_codes(even[:, 0], even[:, 1], sizes=(2, 2)), 4)
    later = second[coins == 0.5].reshape(-1, 2)
    found["X3 consecutive steps"] = count_codes(joint_codes(even[:, 0], later[:, 0], sizes=(2, 2)), 4)
    return found


def _label(cell: int) -> str:
    return f"(first {_WORDS[cell // 2]}, second {_WORDS[cell % 2]})"


@Workload.of("filters: coins", "coins of XTC", 0.05, 1.0)
def coins(setting: Setting) -> SamplingPlan:
    """Rows with XTC, two steps each; a draw is a coin."""
    batch_size = min(_MOST_ROWS, max(4, setting.num_draws // 64 // 4 * 4))

    def tables(num_calls: int) -> dict[str, Table]:
        quarter = num_calls * batch_size // 4
        found = {
            f"X1 fires with {one}": Table(
                np.array([1 - one, one]), label=_WORDS.__getitem__, num_draws=2 * quarter * _PROBABILITIES.count(one)
            )
            for one in sorted(set(_PROBABILITIES))
        }
        for name in ("X2 neighbouring rows", "X3 consecutive steps"):
            found[name] = Table(np.full(4, 0.25), label=_label, num_draws=quarter)
        return found

    count = partial(_fired, batch_size, setting.device)
    return SamplingPlan.of_calls(max(setting.num_draws, 2 * batch_size), 2 * batch_size, tables, count)


_check = partial(
    DistributionCheck.of, workload=coins, needs=(Capability.XTC,), contract="filters", depends_on=("FIL110",)
)


@_check("DIST981", stage=Stage.TOKENS)
def xtc_fires_with_its_probability() -> tuple[str, ...]:
    """In a batch of rows with probabilities 0.1, 0.5 and 0.9, XTC fires as often as each row says.

    The complement of the probability, one coin or one probability for the batch, a coin that is drawn twice.
    """
    return ("X1",)


@_check("DIST982", stage=Stage.INDEPENDENCE)
def coins_of_xtc_are_independent() -> tuple[str, ...]:
    """Rows of a batch, and consecutive steps of a row, do not fire together more often than by chance.

    One coin for the batch, or a generator that is seeded anew in every step.
    """
    return ("X2", "X3")


CHECKS = tuple(value for value in list(globals().values()) if isinstance(value, DistributionCheck))
