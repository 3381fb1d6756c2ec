"""Tokens counted by projections of their id: exact, in rows of any width, and named in failures and headers."""

import dataclasses

import numpy as np
import pytest

from fairdraw._core.checks import PROFILES
from fairdraw._core.failures import CheckFailure
from fairdraw._core.seeds import DEFAULT_SEED
from fairdraw._mutants.sampling_distributions import DISTRIBUTION_MUTANTS
from fairdraw._mutants.server import right as right_server
from fairdraw.contracts import Capability
from fairdraw.statistical._distributions import softmax_probs
from fairdraw.statistical._projections import PitDistributions, cell_masses, numbers_of_rows, projections
from fairdraw.statistical._server_check import ServerDistributionCheck, server_fairness
from fairdraw.statistical.sampling import CHECKS
from fairdraw.statistical.server import CHECKS as SERVER_CHECKS


@pytest.mark.parametrize("vocab_size", [2, 24, 1000, 5000])
def test_look_up_equals_the_transform_of_rows_in_every_way(vocab_size: int) -> None:
    rng = np.random.default_rng(vocab_size)
    logits = rng.normal(size=(5, vocab_size))
    logits[:, 1::5] = -np.inf
    rows = softmax_probs(logits)
    ids, tokens, uniforms = rng.integers(0, 5, 300), rng.integers(-1, vocab_size + 1, 300), rng.random(300)
    expected = numbers_of_rows(rows[ids], tokens, uniforms)
    pool = PitDistributions.by_way(rows, rows > 0)
    assert pool.keys() == expected.keys()
    for way, one in pool.items():
        np.testing.assert_allclose(one.transform(ids, tokens.astype(np.int32), uniforms), expected[way], atol=1e-12)


def test_left_out_token_equals_a_row_without_it() -> None:
    rng = np.random.default_rng(3)
    rows, ids, left_out = softmax_probs(rng.normal(size=(4, 40))), rng.integers(0, 4, 300), rng.integers(0, 40, 300)
    without = rows[ids]
    without[np.arange(300), left_out] = 0
    without /= without.sum(axis=1, keepdims=True)
    tokens, uniforms = rng.integers(0, 40, 300), rng.random(300)
    expected = numbers_of_rows(without, tokens, uniforms)
    same_cells = {way for way in expected if "best of" not in way}  # another token may then be the best
    for way, one in PitDistributions.by_way(rows, rows > 0).items():
        if way not in same_cells:
            continue
        found = one.transform(ids, tokens.astype(np.int32), uniforms, left_out.astype(np.int32))
        np.testing.assert_allclose(found, expected[way], atol=1e-12)


def test_cells_of_a_projection_share_the_mass_of_a_row() -> None:
    rows = softmax_probs(np.random.default_rng(0).normal(size=(3, 5000)))
    masses = cell_masses(rows)
    for one in (one for one in projections(5000) if not one.block):
        cells = one.cells(np.arange(5000))
        expected = [rows[:, cells == cell].sum(axis=1) for cell in range(one.num_cells)]
        np.testing.assert_allclose(masses[one.name], np.stack(expected, axis=1), atol=1e-12)


def test_wide_rows_whose_odd_ids_weigh_half_fail_and_are_named() -> None:
    """Issue 38: a distance of 0.17 in every row above 16,384 entries passed `ci`."""
    mutant = next(one for one in DISTRIBUTION_MUTANTS if one.name.startswith("odd ids weigh half above"))
    check = next(one for one in CHECKS if one.code == "DIST722")
    with pytest.raises(CheckFailure, match=r"(odd|even) ids, by mass, in rows of 32768 entries: .* times as often"):
        check.run(mutant.make(), profile=PROFILES["ci"], seed=DEFAULT_SEED)


def test_server_without_ids_is_judged_by_hashes_of_texts_alone() -> None:
    server = right_server()
    check = next(one for one in SERVER_CHECKS if isinstance(one, ServerDistributionCheck))
    with_ids = {table.seen_by for table in check.tables(server, PROFILES["ci"]).values()}
    server.capabilities = dataclasses.replace(server.capabilities, unsupported={Capability.TOKEN_IDS: "texts"})
    without = {table.seen_by for table in check.tables(server, PROFILES["ci"]).values()}
    assert with_ids - without == {*(f"id modulo {size}" for size in (2, 4, 8, 32)), "bits of the id"}
    assert "lanes of ids are not judged" in server_fairness(SERVER_CHECKS, server, PROFILES["ci"], 0)
    for way in ("rank", "id", "hashed halves"):
        assert f" by {way}" in server_fairness(SERVER_CHECKS, right_server(), PROFILES["ci"], 0)
