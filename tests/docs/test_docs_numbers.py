"""Numbers and names that the manual repeats are those of the code."""

import json
import re
from pathlib import Path

import pytest

from fairdraw._core.checks import PROFILES, Profile
from fairdraw._core.contracts import CONTRACTS, load_part
from fairdraw._core.seeds import DEFAULT_SEED
from fairdraw._report.files import schema_text
from fairdraw._run.loading import all_checks, load_sampler
from fairdraw.statistical import _distribution_check as distribution_check
from fairdraw.statistical import _nightly as keeping
from fairdraw.statistical import _stratified_check as stratified_check
from fairdraw.statistical import _workloads as subjects
from fairdraw.statistical import sampling
from fairdraw.statistical._design import E_PROCESS_FACTOR
from fairdraw.statistical._distribution_check import DistributionCheck
from fairdraw.statistical._evidence import CONCENTRATIONS
from fairdraw.statistical._pooling import MIN_EXPECTED, TILE_SIZE
from fairdraw.statistical._stratified_check import STRATIFIED_CHECKS
from fairdraw.statistical.rejection import DISTRIBUTION_CHECKS

ROOT = Path(__file__).resolve().parents[2]
CI, NIGHTLY = PROFILES["ci"], PROFILES["nightly"]
SLOWER = f"{NIGHTLY.slow_examples // CI.slow_examples} and {NIGHTLY.slow_draws / CI.slow_draws:g}"
MOST_CHECKPOINTS = 2 * subjects.NUM_CHECKPOINTS - 1
FEWEST_STRATA, MOST_STRATA = stratified_check._FEWEST, stratified_check._MOST
FIXED_RATE, FRESH_RATE = map(distribution_check.false_fail_rate, (DEFAULT_SEED, DEFAULT_SEED + 1))
RUNS = json.loads((ROOT / "statistical" / "records" / "false_alarms.json").read_text())["runs"]


def rate(number: float) -> str:
    """`1e-06` as people write it."""
    return f"{number:.0e}".replace("e-0", "e-")


def page(name: str) -> str:
    """A page of the manual as one line, so that sentences may be wrapped anywhere."""
    return " ".join((ROOT / "docs" / f"{name}.md").read_text().split())


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("design-statistics", f"until each is expected {MIN_EXPECTED:g} times"),
        ("design-statistics", f"tile of {TILE_SIZE:,} neighbours"),
        ("design-statistics", f"from `n_max/{1 / min(CONCENTRATIONS):g}` to `{max(CONCENTRATIONS):g} n_max`"),
        ("design-statistics", f"given {E_PROCESS_FACTOR:g} times the samples"),
        ("design-statistics", f"`n = {E_PROCESS_FACTOR:g} * lambda / (4 TV^2)`"),
        ("design-statistics", f"has power {1 - distribution_check.FALSE_PASS_RATE:g}"),
        ("design-statistics", f"as its draws allow, {MOST_CHECKPOINTS} at most"),
        ("design-statistics", f"gets {distribution_check._CUDA_FACTOR} times as many"),
        ("design-statistics", f"Alpha is {rate(FIXED_RATE)} for a run with the release's seed and {rate(FRESH_RATE)}"),
        ("design-statistics", f"({len(DISTRIBUTION_CHECKS)} that draw, and {len(STRATIFIED_CHECKS)} with stratified"),
        ("design-statistics", f"sampling ({len(sampling.CHECKS)} that draw)"),
        ("design-statistics", f"{FEWEST_STRATA} to {MOST_STRATA:,} strata"),
        ("design-statistics", f"share an error rate of {rate(keeping.LEDGER_RATE)}"),
        ("what-a-pass-means", f"at most {rate(FIXED_RATE)} per contract and run"),
        ("what-a-pass-means", f"release's seed, {rate(FRESH_RATE)} with any other"),
        ("what-a-pass-means", f"at most {rate(distribution_check.FALSE_PASS_RATE)} per table"),
        ("what-a-pass-means", f"{RUNS:,} runs of a correct sampler"),
        ("flaky-tests", f"[{RUNS:,} runs](what-a-pass-means.md"),
        ("flaky-tests", f"with the release's seed it is {100 * FIXED_RATE:.4f} %"),
        ("flaky-tests", f"at most {100 * FRESH_RATE:.2f} % for all checks of a run"),
        ("ci", f"tries {NIGHTLY.examples // CI.examples} times the examples of `ci`"),
        ("ci", f"and {NIGHTLY.draws // CI.draws} times its draws (for a sampler that declares itself slow, {SLOWER} "),
    ],
)
def test_number_is_that_of_the_code(name: str, words: str) -> None:
    assert words in page(name)


@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda profile: profile.name)
def test_draws_of_a_profile_stand_in_the_table(profile: Profile) -> None:
    assert f"| `{profile.name}` | {profile.draws:,} | {profile.slow_draws:,} |" in page("design-statistics")


@pytest.mark.parametrize("profile", ["smoke", "ci"])
def test_no_check_looks_more_often_than_the_manual_says(profile: str) -> None:
    sampler = load_sampler("rejection/oracle")
    numbers = {
        check.code: check.sampling_plan(sampler, PROFILES[profile]).num_checkpoints
        for check in DISTRIBUTION_CHECKS
        if isinstance(check, DistributionCheck)
    }
    assert max(numbers.values()) <= MOST_CHECKPOINTS


def test_contracts_with_distribution_checks_are_named() -> None:
    drawn = {check.contract for check in all_checks("statistical")}
    assert drawn == {"rejection", "sampling", "logprobs", "grammar", "watermarks", "filters", "server"}
    for name in ("design-statistics", "what-a-pass-means"):
        assert "ogits plans, penalties and thinking budgets" in page(name)


def test_properties_that_decide_by_chance_are_named() -> None:
    lines = (ROOT / "docs" / "what-a-pass-means.md").read_text().splitlines()
    row = next(line for line in lines if "by chance" in line)
    named = {
        f"{letters}{number}"
        for letters, first, last in re.findall(r"`([A-Z]+)(\d+)`(?: to `[A-Z]+(\d+)`)?", row)
        for number in range(int(first), int(last or first) + 1)
    }
    assert named == {check.code for check in all_checks() if "False failures" in check.meaning}


def test_checks_without_a_mutant_are_named() -> None:
    mutants = [mutant for contract in CONTRACTS.values() for path in contract.mutants for mutant in load_part(path)]
    unseen = {check.code for check in all_checks()} - {code for mutant in mutants for code in mutant.caught_by}
    readme = (ROOT / "README.md").read_text().partition("## What a pass means")[2]
    for text in (page("what-a-pass-means"), readme, (ROOT / "ARCHITECTURE.md").read_text()):
        assert set(re.findall(r"\b(?:PEN|THK)\d+", text)) == unseen


def test_every_field_of_a_json_line_is_in_the_manual() -> None:
    text = (ROOT / "docs" / "ci.md").read_text()
    kinds = json.loads(schema_text())["$defs"]
    missing = [
        f"{kind}.{name}"
        for kind, schema in kinds.items()
        for name in schema["properties"]
        if name != "kind" and f"`{name}`" not in text
    ]
    assert missing == []


def test_both_pages_give_a_verdict_the_same_exit_codes() -> None:
    def codes(name: str, row: str) -> set[tuple[str, str]]:
        return set(re.findall(row, (ROOT / "docs" / f"{name}.md").read_text(), flags=re.MULTILINE))

    long = codes("what-a-pass-means", r"^\|[^|]*\| (\d+) \| (\d+) \|")
    short = codes("ci", r"^\| (\d+) \| (\d+) \|")
    assert long == short
    assert len(long) == 7
