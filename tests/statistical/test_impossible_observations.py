"""A statistical failure decided by impossible observations names them, and says how often they were seen."""

import numpy as np
import pytest
from torch import Tensor

import fairdraw
from fairdraw._core.checks import PROFILES
from fairdraw._core.failures import CheckFailure
from fairdraw._oracles.sampling import sample
from fairdraw._run.loading import all_checks
from fairdraw.contracts import SamplingBatch, SamplingNoise
from fairdraw.statistical._count_tables import Table
from fairdraw.statistical._decision import weigh
from fairdraw.statistical._design import finest_plan
from fairdraw.statistical._pit import PitCells

TRANSFORMS = PitCells().table(1)
CHECKS = {check.code: check for check in all_checks("statistical")}


def impossible(counts: list[int], table: Table) -> str:
    plan = finest_plan(table, 10_000, 1e-6)
    return weigh("table", np.array(counts), plan, table).impossible


@pytest.mark.parametrize(
    ("counts", "reported"),
    [
        ([400, 600, 0, 0, 0, 0, 0, 0], ""),
        ([400, 600, 0, 0, 37, 0, 0, 0], "token 4 was seen 37 times, its probability is 0"),
        ([0, 0, 1, 0, 0, 0, 0, 0], "token 2 was seen once, its probability is 0"),
        (
            [400, 600, 1, 5, 2, 9, 1, 4],
            "token 5 was seen 9 times, its probability is 0; token 3 was seen 5 times, its probability is 0; "
            "token 4 was seen 2 times, its probability is 0; 2 more cells of probability 0 were seen 2 times; "
            "what is no cell of this table was seen 4 times",
        ),
    ],
)
def test_impossible_cells_are_named(counts: list[int], reported: str) -> None:
    assert impossible(counts, Table(np.array([0.4, 0.6, 0, 0, 0, 0, 0]), label="token {}".format)) == reported


def test_table_of_transforms_says_what_it_cannot_name() -> None:
    counts = PitCells().count(np.array([0.5, -1.0, -1.0]))
    assert impossible(counts.tolist(), TRANSFORMS) == f"{TRANSFORMS.outside} was seen 2 times"


def sometimes_four(batch: SamplingBatch, noise: SamplingNoise) -> Tensor:  # [batch_size] int64
    """Every 16th row gets the one impossible token."""
    tokens = sample(batch, noise)
    tokens[::16] = 4
    return tokens


def test_report_of_a_sampler_that_draws_an_impossible_token_names_it_first() -> None:
    sampler = fairdraw.token_sampler(sometimes_four, name="sometimes four")
    with pytest.raises(CheckFailure) as caught:
        CHECKS["DIST701"].run(sampler, profile=PROFILES["smoke"])
    assert caught.value.effect.startswith("T1 plain: token 4 was seen ")
    assert " times, its probability is 0; TV " in caught.value.effect
    assert caught.value.evidence.endswith("observations of probability 0; one decides")
