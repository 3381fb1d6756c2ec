"""Short cuts of counting and drawing change no number; and rows that are none are never green."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from click.testing import CliRunner

from fairdraw._cli.main import main
from fairdraw.statistical._configurations import draw_one_distribution, draw_tokens
from fairdraw.statistical._outcomes import Rows, distinct_rows
from fairdraw.statistical._production import _draw_from_pool
from fairdraw.statistical._rejection_statistics import (
    AcceptedCount,
    AcceptedDraft,
    BonusByDraft,
    CompletedRow,
    EmittedByDraft,
    OutputRow,
    RecoveredByDraft,
    Statistic,
    TableDistribution,
    count,
)

if TYPE_CHECKING:
    from pathlib import Path

ONE_ROW = (
    OutputRow(),
    CompletedRow(),
    AcceptedCount(),
    BonusByDraft(),
    RecoveredByDraft(1),
    AcceptedDraft(0),
    EmittedByDraft(1),
)


@pytest.mark.parametrize("statistic", ONE_ROW, ids=lambda statistic: statistic.title)
def test_distinct_rows_give_the_counts_of_all_rows(statistic: Statistic) -> None:
    """Tokens below, at and beyond the vocabulary among them."""
    rng = np.random.default_rng(3)
    tokens = rng.integers(-3, 7, (4, 500, 3)).astype(np.int32)
    drafts, fill = (rng.integers(0, 5, (4, 500, width)).astype(np.int32) for width in (2, 3))
    rows = Rows(tokens, drafts, fill, 5)

    seen, weights = distinct_rows(rows)

    assert weights.sum() == 2000
    np.testing.assert_array_equal(count(statistic, seen, weights), count(statistic, rows))


def test_cell_is_named_by_what_its_digits_are() -> None:
    probs = np.full(25, 1 / 25)
    pair = TableDistribution(probs, probs > 0, (5, 5), words=("rejected", "recovered"))
    row = TableDistribution(probs, probs > 0, (5, 5), placeholder=4)
    assert (pair.label(2 * 5 + 4), row.label(2 * 5 + 4)) == ("(rejected 2, recovered 4)", "(2, -1)")


def test_one_distribution_draws_what_rows_of_it_draw() -> None:
    distribution, uniforms = np.array([0.0, 0.3, 0.0, 0.2, 0.5, 0.0]), np.random.default_rng(1).random(10_000)
    edges = np.array([0.0, 0.3, np.nextafter(0.3, 0), 0.5, np.nextafter(1.0, 0)])
    chosen = np.concatenate([uniforms, edges])
    np.testing.assert_array_equal(
        draw_one_distribution(distribution, chosen), draw_tokens(np.tile(distribution, (chosen.size, 1)), chosen)
    )


def test_pool_draws_what_each_distribution_draws() -> None:
    rng = np.random.default_rng(2)
    cumulative = np.cumsum(rng.dirichlet(np.ones(9), size=4), axis=1)
    distribution_ids, uniforms = rng.integers(0, 4, 300), rng.random(300) * 0.999
    one_by_one = [np.searchsorted(cumulative[i], u, "right") for i, u in zip(distribution_ids, uniforms, strict=True)]
    assert _draw_from_pool(cumulative, distribution_ids, uniforms).tolist() == one_by_one


@pytest.mark.parametrize("fault", ["output[0, 0] = 10**6", "output = output[1:]", "output[:] = -1"])
def test_rows_that_are_none_are_never_green(stranger: Path, fault: str) -> None:
    (stranger / "malformed.py").write_text(
        "from fairdraw import rejection_sampler\n"
        "from fairdraw._mutants._distribution_sampler import DistributionSampler\n"
        "def verify(batch, noise):\n"
        "    output = DistributionSampler().verify(batch, noise)\n"
        f"    {fault}\n"
        "    return output\n"
        "def make(): return rejection_sampler(verify, unsupported={'explicit-noise': 'draws its own'})\n"
    )
    result = CliRunner().invoke(
        main, ["check", "malformed:make", "--profile", "smoke", "-k", "DIST102", "-k", "DIST301"]
    )

    assert result.exit_code == 1, result.output
    assert result.output.splitlines()[-1].startswith("RED")
