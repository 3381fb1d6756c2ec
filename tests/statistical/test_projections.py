"""Tokens counted by projections of their id: exact, in rows of any width, and named in failures and headers."""

import dataclasses

import numpy as np

from fairdraw._core.checks import PROFILES
from fairdraw._mutants.server import right as right_server
from fairdraw.contracts import Capability
from fairdraw.statistical._distributions import softmax_probs
from fairdraw.statistical._projections import cell_masses, projections
from fairdraw.statistical._server_check import ServerDistributionCheck, server_fairness
from fairdraw.statistical.server import CHECKS as SERVER_CHECKS


def test_cells_of_a_projection_share_the_mass_of_a_row() -> None:
    rows = softmax_probs(np.random.default_rng(0).normal(size=(3, 5000)))
    masses = cell_masses(rows)
    for one in (one for one in projections(5000) if not one.block):
        cells = one.cells(np.arange(5000))
        expected = [rows[:, cells == cell].sum(axis=1) for cell in range(one.num_cells)]
        np.testing.assert_allclose(masses[one.name], np.stack(expected, axis=1), atol=1e-12)


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
