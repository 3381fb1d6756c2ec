"""A law that failed can be asked again: its crash file, before and after the fault is mended."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result

from fairdraw.checks import PROFILES
from fairdraw.cli import main
from fairdraw.crash import read_crash
from fairdraw.loading import all_checks, load_sampler
from fairdraw.protocols import Capabilities
from fairdraw.runner import CRASH_FOLDER, CheckRecord, Session, run_check

if TYPE_CHECKING:
    from pathlib import Path

PLANTED = """
import fairdraw
from fairdraw.mutants._law_sampler import LawSampler

class Planted(LawSampler):
    def residual(self, target, draft):
        return target

def make(slow=False):
    declined = {"explicit-noise": "draws its own numbers"}
    return fairdraw.rejection_sampler(Planted().verify, name="planted", closed=declined, slow=slow)

def make_slow(): return make(slow=True)
def make_right(): return fairdraw.rejection_sampler(LawSampler().verify, name="right")
"""
FAULT, MENDED = "return target", "return super().residual(target, draft)"
LAWS = {check.code: check for check in all_checks("statistical")}
SEED = 77


@pytest.fixture(autouse=True)
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory holds the module of a sampler that recovers from the target instead of the residual."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    module = tmp_path / "planted.py"
    module.write_text(PLANTED, encoding="utf-8")
    return module


def fairdraw(*arguments: str) -> Result:
    """A command, in a process whose modules are fresh."""
    sys.modules.pop("planted", None)
    result = CliRunner().invoke(main, arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def asked(spec: str, code: str = "LAW201") -> CheckRecord:
    """What became of a law in a smoke run, which writes its crash file."""
    sys.modules.pop("planted", None)
    return run_check(LAWS[code], load_sampler(spec), Session(spec, PROFILES["smoke"], SEED))


def effect(text: str) -> str:
    return next(line for line in text.splitlines() if line.startswith("effect: "))


def test_command_of_a_failed_law_writes_the_file_that_it_names() -> None:
    told = fairdraw("check", "planted:make", "-k", "LAW201", "--profile", "smoke", "--seed", str(SEED)).output
    (path,) = CRASH_FOLDER.iterdir()
    assert f"\nreproduce:\nfairdraw replay {path}\nsearch again:\nfairdraw check planted:make -k LAW201 " in told
    assert f"\ncrash file: {path}" in told
    assert "smallest example" not in told


def test_crash_file_of_a_law_is_check_sampler_seed_profile_and_budget() -> None:
    record = asked("planted:make")
    (path,) = CRASH_FOLDER.iterdir()
    crash = read_crash(path)
    assert (crash.check, crash.sampler, crash.contract, crash.seed) == ("LAW201", "planted:make", "rejection", SEED)
    assert crash.case == {"profile": "smoke", "num_draws": PROFILES["smoke"].draws}
    assert record.story is not None
    assert crash.effect == record.story.effect


def test_law_that_failed_is_caught_again_with_the_same_counts(planted: Path) -> None:
    record = asked("planted:make")
    result = fairdraw("replay", "LAW201")
    assert result.exit_code == 1
    assert result.stdout.startswith("FAILED: planted:make still breaks this promise with the stored seed and profile.")
    assert record.story is not None
    assert effect(result.output) == f"effect: {record.story.effect}"
    assert f"\nevidence: {record.story.evidence}\n" in result.output
    assert len(list(CRASH_FOLDER.iterdir())) == 1


def test_law_is_fixed_once_the_sampler_is_mended(planted: Path) -> None:
    record = asked("planted:make")
    planted.write_text(PLANTED.replace(FAULT, MENDED), encoding="utf-8")
    result = fairdraw("replay", "LAW201")
    assert result.exit_code == 0, result.output
    fixed, now, before = result.stdout.splitlines()
    assert fixed == f"FIXED: {LAWS['LAW201'].id}"
    assert now == "planted:make keeps this promise with the stored seed and profile now."
    assert record.story is not None
    assert before == f"It was broken so: {record.story.effect}"


def test_law_is_kept_by_another_sampler() -> None:
    asked("planted:make")
    result = fairdraw("replay", "LAW201", "--sampler", "planted:make_right")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("KEPT: LAW201")


def test_law_without_as_many_draws_is_undecided(planted: Path) -> None:
    """A slow sampler has few: what they do not show is not known to be mended."""
    asked("planted:make")
    planted.write_text(PLANTED.replace(FAULT, MENDED), encoding="utf-8")
    result = fairdraw("replay", "LAW201", "LAW201", "--sampler", "planted:make_slow")
    assert result.exit_code == 1
    assert "UNDECIDED: LAW201" in result.output
    assert "has a budget of 2000 draws here, and where the promise was broken there were 50000." in result.output
    assert result.output.splitlines()[-1] == "2 replayed: 0 failed, 2 undecided, 0 not run"


def test_budget_of_a_law_is_larger_on_a_gpu_and_that_of_strata_is_not() -> None:
    sampler, smoke = SimpleNamespace(device="cuda:0", capabilities=Capabilities()), PROFILES["smoke"]
    budgets = [LAWS[code].case(sampler, smoke).num_draws for code in ("LAW201", "LAW601")]
    assert budgets == [100 * smoke.draws, smoke.draws]


def test_law_is_caught_even_without_as_many_draws() -> None:
    """A failure is evidence with however few."""
    asked("planted:make")
    result = fairdraw("replay", "LAW201", "--sampler", "planted:make_slow")
    assert result.exit_code == 1
    assert result.stdout.startswith("FAILED: planted:make_slow still breaks")


def test_law_whose_budget_shows_nothing_is_undecided(planted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked("planted:make")
    planted.write_text(PLANTED.replace(FAULT, MENDED), encoding="utf-8")
    monkeypatch.setattr("fairdraw.checks.Profile.draws_for", lambda profile, capabilities: 100)
    result = fairdraw("replay", "LAW201")
    assert result.exit_code == 1
    assert result.stdout.startswith("UNDECIDED: LAW201")
    assert "the budget of draws shows too little" in result.output


def test_declined_law_is_not_run(planted: Path) -> None:
    asked("planted:make")
    planted.write_text(PLANTED.replace('"explicit-noise": ', '"dense-drafts": "none", "explicit-noise": '))
    result = fairdraw("replay", "LAW201")
    assert result.exit_code == 3
    assert result.stdout.startswith("NOT RUN: LAW201")


STRATIFIED = """
import fairdraw
from fairdraw.oracles.rejection import verify

def planted(batch, noise):
    return verify(batch, fairdraw.ExplicitNoise(noise.uniforms * 0.9, noise.exponentials))

def make(): return fairdraw.rejection_sampler(planted, name="planted", closed={"seeded-noise": "takes numbers"})
"""

TOKENS = """
from fairdraw.mutants.sampling_laws import LawTokenSampler, right_law

class AppliesTheTemperatureAgain(LawTokenSampler):
    def temperature(self, batch):
        return super().temperature(batch) ** 2

def make(): return right_law(AppliesTheTemperatureAgain)
"""


def test_stratified_law_that_failed_is_caught_again_and_fixed(planted: Path) -> None:
    planted.write_text(STRATIFIED, encoding="utf-8")
    assert asked("planted:make", "LAW601").status == "failed"
    assert fairdraw("replay", "LAW601").exit_code == 1
    planted.write_text(STRATIFIED.replace("* 0.9", "* 1.0"), encoding="utf-8")
    result = fairdraw("replay", "LAW601")
    assert (result.exit_code, result.stdout[:13]) == (0, "FIXED: LAW601")


def test_law_of_single_tokens_that_failed_is_caught_again_and_fixed(planted: Path) -> None:
    """The sampling contract has laws, too, and their cases are the same."""
    planted.write_text(TOKENS, encoding="utf-8")
    assert asked("planted:make", "LAW702").status == "failed"
    assert fairdraw("replay", "LAW702").exit_code == 1
    planted.write_text(TOKENS.replace("right_law(AppliesTheTemperatureAgain)", "right_law()"), encoding="utf-8")
    result = fairdraw("replay", "LAW702")
    assert (result.exit_code, result.stdout[:13]) == (0, "FIXED: LAW702")
