"""A failed distribution check can be replayed: its crash file, before and after the fault is fixed."""

import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import Result
from helpers import fairdraw, report_of

from fairdraw._core.checks import PROFILES
from fairdraw._run.crash import read_crash
from fairdraw._run.loading import all_checks, load_sampler
from fairdraw._run.runner import CRASH_FOLDER, CheckRecord, Session, run_check
from fairdraw.contracts import Capabilities

MUTANT = """
import fairdraw
from fairdraw._mutants._distribution_sampler import DistributionSampler

class ResidualMutant(DistributionSampler):
    def residual(self, target, draft):
        return target

def make(slow=False):
    unsupported = {"explicit-noise": "draws its own numbers"}
    return fairdraw.rejection_sampler(ResidualMutant().verify, name="mutant", unsupported=unsupported, slow=slow)

def make_slow(): return make(slow=True)
def make_right(): return fairdraw.rejection_sampler(DistributionSampler().verify, name="right")
"""
UNSEEDED = """
import os
from fairdraw.contracts import SeededNoise

def unseeded(batch, noise):
    drawn = noise if not isinstance(noise, SeededNoise) else SeededNoise(int.from_bytes(os.urandom(7), "big"))
    return DistributionSampler().verify(batch, drawn)
def make_unseeded(): return fairdraw.rejection_sampler(unseeded, unsupported={"explicit-noise": "draws inside"})
"""
MENDED = MUTANT.replace("return target", "return super().residual(target, draft)")
DISTRIBUTIONS = {check.code: check for check in all_checks("statistical")}
SEED = 77


@pytest.fixture(autouse=True)
def mutant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_controls: None) -> Path:
    """The current directory holds the module of a sampler that recovers from the target instead of the residual."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    module = tmp_path / "mutant.py"
    module.write_text(MUTANT, encoding="utf-8")
    return module


def afresh(*arguments: str) -> Result:
    """Run the command in a process whose modules are fresh."""
    sys.modules.pop("mutant", None)
    return fairdraw(*arguments)


def record_of(spec: str, code: str = "DIST203") -> CheckRecord:
    """The record of a check in a smoke run, which writes its crash file."""
    sys.modules.pop("mutant", None)
    return run_check(DISTRIBUTIONS[code], load_sampler(spec), Session(spec, PROFILES["smoke"], SEED))


def effect(text: str) -> str:
    return next(line for line in text.splitlines() if line.startswith("effect: "))


def test_command_of_a_failed_distribution_writes_the_file_that_it_names() -> None:
    output = afresh("check", "mutant:make", "-k", "DIST203", "--profile", "smoke", "--seed", str(SEED)).output
    (path,) = CRASH_FOLDER.iterdir()
    assert f"\nreproduce:\nfairdraw replay {path} -y\nsearch again:\nfairdraw check mutant:make -k DIST203 " in output
    assert f"\ncrash file: {path}" in output
    assert "smallest example" not in output


def test_crash_file_of_a_distribution_is_check_sampler_seed_profile_and_budget() -> None:
    record = record_of("mutant:make")
    (path,) = CRASH_FOLDER.iterdir()
    crash = read_crash(path)
    assert (crash.check, crash.sampler, crash.contract, crash.seed) == ("DIST203", "mutant:make", "rejection", SEED)
    assert crash.case == {"profile": "smoke", "num_draws": PROFILES["smoke"].draws}
    assert crash.effect == report_of(record).effect


def replayed(*words: str, now: str = MUTANT) -> tuple[CheckRecord, Result]:
    """Return the sampler's failure, and what its replay says once the sampler is as `now`."""
    record = record_of("mutant:make")
    Path("mutant.py").write_text(now, encoding="utf-8")
    return record, afresh("replay", *words)


def test_distribution_that_failed_is_caught_again_with_the_same_counts() -> None:
    record, result = replayed("DIST203", "-y")
    assert result.exit_code == 1
    assert result.stdout.startswith("FAILED: mutant:make still fails this check with the stored seed and profile.")
    assert effect(result.output) == f"effect: {report_of(record).effect}"
    assert f"\nevidence: {report_of(record).evidence}\n" in result.output
    assert len(list(CRASH_FOLDER.iterdir())) == 1


def test_distribution_is_fixed_once_the_sampler_is_fixed() -> None:
    record, result = replayed("DIST203", "-y", now=MENDED)
    assert result.exit_code == 0, result.output
    fixed, now, before = result.stdout.splitlines()
    assert fixed == f"FIXED: {DISTRIBUTIONS['DIST203'].id}"
    assert now == "mutant:make passes this check with the stored seed and profile now."
    assert before == f"The failure was: {report_of(record).effect}"


AGAIN: dict[str, tuple[str, str, int, list[str]]] = {
    # A generator that no seed reaches draws other tokens than those that failed.
    "other draws are not called fixed": (
        "DIST203 --sampler mutant:make_unseeded", MENDED + UNSEEDED, 12,
        ["NOT REPRODUCED: DIST203", "the stored seed gives other tokens each time"],
    ),
    "kept by another sampler": ("DIST203 --sampler mutant:make_right", MUTANT, 0, ["PASSED: DIST203"]),
    # A slow sampler has few draws: what they do not show is not known to be fixed, and a failure is evidence.
    "not as many draws": (
        "DIST203 DIST203 --sampler mutant:make_slow", MENDED, 1,
        ["UNDECIDED: DIST203", "draws 2000 times here; where the check failed there were 50000 draws.",
         "2 replayed: 0 failed, 2 undecided, 0 not run"],
    ),
    "caught with fewer": ("DIST203 --sampler mutant:make_slow", MUTANT, 1, ["FAILED: mutant:make_slow still fails"]),
    "unsupported": (
        "DIST203 -y", MUTANT.replace('"explicit-noise": ', '"dense-drafts": "none", "explicit-noise": '), 3,
        ["NOT RUN: DIST203"],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("words", "now", "code", "said"), AGAIN.values(), ids=AGAIN)
def test_replay_says_what_became_of_the_failure(words: str, now: str, code: int, said: list[str]) -> None:
    _, result = replayed(*words.split(), now=now)
    assert result.exit_code == code, result.output
    assert re.search(f"^{re.escape(said[0])}", result.output, re.MULTILINE), result.output
    assert [text for text in said if text not in result.output] == []


def test_budget_of_a_distribution_is_larger_on_a_gpu_and_that_of_strata_is_not() -> None:
    sampler, smoke = SimpleNamespace(device="cuda:0", capabilities=Capabilities()), PROFILES["smoke"]
    budgets = [DISTRIBUTIONS[code].case(sampler, smoke).num_draws for code in ("DIST203", "DIST601")]
    assert budgets == [100 * smoke.draws, smoke.draws]


def test_distribution_whose_budget_shows_nothing_is_undecided(mutant: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record_of("mutant:make")
    mutant.write_text(MENDED, encoding="utf-8")
    monkeypatch.setattr("fairdraw._core.checks.Profile.draws_for", lambda profile, capabilities: 10)
    result = afresh("replay", "DIST203", "-y")
    assert result.exit_code == 1
    assert result.stdout.startswith("UNDECIDED: DIST203")
    assert "the budget of draws shows too little" in result.output


STRATIFIED = """
import fairdraw
from fairdraw._oracles.rejection import verify

def mutant(batch, noise):
    return verify(batch, fairdraw.ExplicitNoise(noise.uniforms * 0.9, noise.exponentials))

def make(): return fairdraw.rejection_sampler(mutant, name="mutant", unsupported={"seeded-noise": "takes numbers"})
"""

TOKENS = """
from fairdraw._mutants.sampling_distributions import DistributionTokenSampler, right_distribution

class AppliesTheTemperatureAgain(DistributionTokenSampler):
    def temperature(self, given):
        return given ** 2

def make(): return right_distribution(AppliesTheTemperatureAgain)
"""


@pytest.mark.parametrize(
    ("code", "source", "fault", "right"),
    [
        ("DIST601", STRATIFIED, "* 0.9", "* 1.0"),
        ("DIST701", TOKENS, "right_distribution(AppliesTheTemperatureAgain)", "right_distribution()"),
    ],
    ids=["strata", "single tokens"],
)
def test_other_distribution_that_failed_is_caught_again_and_fixed(
    mutant: Path, code: str, source: str, fault: str, right: str
) -> None:
    mutant.write_text(source, encoding="utf-8")
    assert record_of("mutant:make", code).status == "failed"
    assert afresh("replay", code, "-y").exit_code == 1
    mutant.write_text(source.replace(fault, right), encoding="utf-8")
    result = afresh("replay", code, "-y")
    assert (result.exit_code, result.stdout[:14]) == (0, f"FIXED: {code}")
