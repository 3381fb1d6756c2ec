"""Pictures and a ledger from the command line: what a run writes on request."""

import importlib
import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result
from helpers import fairdraw

from fairdraw import adapters
from fairdraw._core.checks import PROFILES
from fairdraw._core.failures import CheckFailure
from fairdraw._core.seeds import DEFAULT_SEED
from fairdraw._mutants._distribution_sampler import DistributionSampler, Floats, right_distribution
from fairdraw._mutants.distributions import DISTRIBUTION_MUTANTS
from fairdraw.contracts import SpecDecodeBatch, rejection_sampler
from fairdraw.statistical._nightly import fingerprint, judged_tables, ledger_check
from fairdraw.statistical.rejection import CHECKS

pytestmark = pytest.mark.usefixtures("no_controls")
SMOKE = PROFILES["smoke"]
DEPENDENCE = ("DIST203", "DIST213")
ONE_HOT_ROWS = [check for check in CHECKS if check.code == "DIST111"]


class TemperatureOneAndAHalfPercentOff(DistributionSampler):
    """So little that a smoke run passes it."""

    def target(self, batch: SpecDecodeBatch) -> Floats:
        return np.asarray((batch.target_logits / 1.015).softmax(dim=-1).numpy())


def checked(*arguments: str) -> Result:
    return fairdraw("check", "rejection/torch", "--only", "statistical", "--profile", "smoke", "-v", *arguments)


def test_pictures_are_written_for_every_judged_table(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra [report] is not installed")
    result = checked("-k", "DIST104", "-k", "DIST203", "--pictures", str(tmp_path / "pictures"))

    assert result.exit_code == 0, result.output
    assert "4 pictures in" in result.output
    assert sorted(path.name for path in (tmp_path / "pictures").iterdir()) == [
        "dist104-s4-draft-token-x-acceptance-at-position-0.png",
        "dist104-s4-draft-token-x-acceptance-at-position-1.png",
        "dist203-s3-rejected-draft-x-recovered-token-at-position-0.png",
        "dist203-s3-rejected-draft-x-recovered-token-at-position-1.png",
    ]


def test_every_statistic_has_a_table_to_draw() -> None:
    checks = [check for check in CHECKS if check.code in ("DIST101", "DIST102", "DIST104", *DEPENDENCE)]
    names = {one.name.split()[1] for one in judged_tables(checks, adapters.load("rejection/torch", "cpu"), SMOKE, 1)}
    assert names == {"S1", "S2", "S3", "S4"}


def test_picture_has_the_counts_of_the_decision_beside_it() -> None:
    """A clear fault is decided at the first checkpoint, and nothing is drawn for the picture."""
    check = next(check for check in CHECKS if check.code == "DIST102")
    wrong = next(mutant for mutant in DISTRIBUTION_MUTANTS if mutant.name == "recovers from the target").make()
    with pytest.raises(CheckFailure) as caught:
        check.run(wrong, profile=SMOKE, seed=1)
    (picture,) = judged_tables([check], wrong, SMOKE, 1)
    assert f" {picture.counts.sum()} samples" in caught.value.effect
    assert picture.counts.sum() < SMOKE.draws / 2


def test_nightly_runs_add_up_in_the_ledger(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.json"
    for seed in ("11", "12"):
        result = checked("-k", "DIST203", "--seed", seed, "--ledger", str(ledger))
        assert result.exit_code == 0, result.output

    assert "passed       DIST901 no evidence adds up over nightly runs" in result.output
    for entry in json.loads(ledger.read_text()).values():  # a table per position
        assert (entry["num_nightly_runs"], entry["seeds"]) == (2, [11, 12])


def test_nightly_run_with_the_seed_of_the_release_is_refused(tmp_path: Path) -> None:
    result = checked("-k", "DIST203", "--ledger", str(tmp_path / "ledger.json"))
    assert result.exit_code == 2
    assert f"seed={DEFAULT_SEED} is the release's, but nightly runs must differ. Add --seed fresh." in result.output


def test_same_nightly_run_twice_is_refused(tmp_path: Path) -> None:
    nightly = ledger_check(tmp_path / "ledger.json", ONE_HOT_ROWS, 7)
    assert nightly.run(right_distribution(DistributionSampler), profile=SMOKE, seed=7) == 1
    with pytest.raises(ValueError, match="seed=7, but nightly runs must differ"):
        nightly.run(right_distribution(DistributionSampler), profile=SMOKE, seed=7)


def test_temperature_too_little_off_for_one_nightly_run_is_caught(tmp_path: Path) -> None:
    wrong = right_distribution(TemperatureOneAndAHalfPercentOff)
    assert ONE_HOT_ROWS[0].run(wrong, profile=SMOKE, seed=1) > 0
    nightly = ledger_check(tmp_path / "ledger.json", ONE_HOT_ROWS, 1)

    def many_nightly_runs() -> None:
        for seed in range(2, 40):
            nightly.run(wrong, profile=SMOKE, seed=seed)

    with pytest.raises(CheckFailure, match=r"DIST111 S1 .*: over \d+ nightly runs E = 10\^"):
        many_nightly_runs()


def test_fingerprint_changes_with_the_source_of_the_sampler(third_party: Path) -> None:
    source = third_party / "changing.py"
    source.write_text("def verify(batch, noise): return batch\n")
    sampler = rejection_sampler(importlib.import_module("changing").verify)
    before = fingerprint(sampler)
    assert fingerprint(sampler) == before

    source.write_text("def verify(batch, noise): return noise\n")
    assert fingerprint(sampler) != before
