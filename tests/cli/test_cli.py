"""The command line: exit codes are stable, and every mistake of the caller is answered by one sentence."""

import dataclasses
import json
import os
import re
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
from click.testing import Result
from helpers import fairdraw, printed_by

from fairdraw._cli.replay import NOT_REPRODUCED, tries_needed
from fairdraw._run.crash import read_crash, write_crash
from fairdraw._run.loading import all_checks, load_sampler

pytestmark = pytest.mark.usefixtures("third_party", "no_controls")

CHECKS = all_checks()
ONE = f"1 of {len(all_checks(contract='rejection'))} checks"


def check(factory: str, *options: str) -> Result:
    return fairdraw("check", f"third_party:{factory}", "-k", "REJ101", "--profile", "smoke", *options)


# -- check


def test_fourth_failure_is_named_only(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = check("make_beyond", "-k", "REJ105", "-k", "REJ106").output
    assert shown.count("\nmeaning:") == 3
    assert "\nalso failed" not in shown
    monkeypatch.setattr("fairdraw._cli.check._MOST_REPORTS", 2)
    shown = check("make_beyond", "-k", "REJ105", "-k", "REJ106").output
    assert shown.count("\nmeaning:") == 2
    assert re.search(r"\nalso failed .*:\n  REJ10\d [a-z ]+\n", shown)


def test_first_failure_ends_the_run_where_asked() -> None:
    result = check("make_beyond", "-k", "REJ10", "-x")
    assert result.exit_code == 1
    assert result.output.splitlines()[-1].startswith("RED: checks failed: 1; checks not run: ")


def test_verdict_names_controls_that_were_left_out() -> None:
    shown = check("make_right", "--no-controls").output
    assert shown.rstrip().endswith("whether the checks can fail was not tried: --no-controls")


def test_no_matching_check_is_not_green() -> None:
    result = fairdraw("check", "rejection/oracle", "-k", "zzz", "-k", "yyy")
    assert result.exit_code == 3
    assert result.output.splitlines()[1:] == ["NOTHING MEASURED: no check has 'zzz' or 'yyy' in its code or title"]


def test_fresh_seed_is_printed() -> None:
    seeds = [re.findall(r"seed (\d+)", check("make_right", "--seed", "fresh").output)[0] for _ in range(2)]
    assert seeds[0] != seeds[1]


def test_workers_find_what_one_process_finds() -> None:
    alone, spread = (check("make_beyond", "-k", "REJ103", *options) for options in ((), ("-n", "2")))
    assert spread.exit_code == alone.exit_code == 1
    # Workers try their mutants: a fixture of this process does not reach them.
    reports = [
        re.sub(r"\d+\.\d s|mutation controls.*", "", result.output).split("\n\n", 1)[1] for result in (alone, spread)
    ]
    assert reports[0] == reports[1]


# -- several samplers


OPTIONS = ("-k", "REJ101", "--profile", "smoke")


def test_each_has_a_verdict_and_the_worst_one_decides() -> None:
    result = fairdraw("check", "third_party:make_right", "third_party:make_beyond", *OPTIONS)
    assert result.exit_code == 1
    green = f"GREEN, distributions not judged: -k REJ101 (1 property check passed; {ONE})"
    lines = result.output.splitlines()
    assert f"third_party:make_right: {green}" in lines
    assert "third_party:make_beyond: RED: checks failed: 1" in lines
    assert lines[-1] == (
        "all samplers: RED: 1 of 2 samplers (third_party:make_beyond); GREEN: 1 of 2 samplers (third_party:make_right)"
    )


def test_one_that_cannot_start_does_not_stop_the_others() -> None:
    result = fairdraw("check", "oracel", "third_party:make_right", *OPTIONS)
    assert result.exit_code == 2
    assert "third_party:make_right: GREEN" in result.output
    assert "Did you mean rejection/oracle" in result.output


def test_each_has_files_of_its_own(third_party: Path) -> None:
    names = ("third_party:make_right", "third_party:make_beyond")
    refused = fairdraw("check", *names, "--html", "run.html", *OPTIONS)
    assert refused.exit_code == 2
    assert "Write --html 'run-{sampler}.html'." in refused.output
    fairdraw("check", *names, "--html", "run-{sampler}.html", "--json", "{sampler}.jsonl", *OPTIONS)
    assert 'id="verdict">GREEN' in (third_party / "run-third-party-make-right.html").read_text()
    assert 'id="verdict">RED' in (third_party / "run-third-party-make-beyond.html").read_text()
    *_, last = (third_party / "third-party-make-beyond.jsonl").read_text().splitlines()
    assert json.loads(last)["exit_code"] == 1


# -- mistakes


def test_exit_codes_are_documented() -> None:
    shown = fairdraw("check", "-h").output
    for code in ("0  green", "1  red", "2  usage", "3  nothing", "10  green, but", "11  incompl", "130  incompl"):
        assert code in shown


def test_shell_completes_commands() -> None:
    environment = {**os.environ, "_FAIRDRAW_COMPLETE": "bash_complete", "COMP_WORDS": "fairdraw che", "COMP_CWORD": "1"}
    assert printed_by("-m", "fairdraw", env=environment) == "plain,check\n"


LUCKY = """
import itertools
from fairdraw import rejection_sampler
from fairdraw._oracles.rejection import verify
number = itertools.count(1)

def sometimes_beyond(batch, noise):
    tokens = verify(batch, noise)
    return tokens.fill_(batch.vocab_size) if not next(number) % 3 else tokens

def make(): return rejection_sampler(sometimes_beyond)
"""


# -- replay


def crash_file(third_party: Path) -> str:
    assert check("make_beyond").exit_code == 1
    (path,) = (third_party / ".fairdraw" / "crashes").iterdir()
    return str(path)


def mended_file(third_party: Path) -> str:
    """A file as it would be if the sampler had been repaired since."""
    crash = read_crash(Path(crash_file(third_party)))
    return str(write_crash(third_party / "mended", dataclasses.replace(crash, sampler="third_party:make_right")))


def test_sampler_with_the_fault_still_fails(third_party: Path) -> None:
    path, before = crash_file(third_party), sorted(third_party.rglob("*.json"))
    result = fairdraw("replay", path, "-y")
    assert result.exit_code == 1
    assert sorted(third_party.rglob("*.json")) == before, "a replay writes no file"
    assert result.stdout.startswith("FAILED: third_party:make_beyond still fails this check")
    assert "effect:" in result.output
    assert "\nreproduce:\nfairdraw replay" in result.output
    assert "\nthe batch, in numbers:\n  draft_token_ids: " in result.output


def test_sampler_of_another_contract_is_refused(third_party: Path) -> None:
    result = fairdraw("replay", crash_file(third_party), "--sampler", "fairdraw._mutants.sampling:right")
    assert result.exit_code == 2
    assert "contract='sampling', but" in result.output


def test_failure_that_depends_on_chance_is_not_called_fixed_after_one_pass(third_party: Path) -> None:
    """A sampler that nobody can seed fails every third call."""
    (third_party / "lucky.py").write_text(LUCKY)
    assert fairdraw("check", "lucky:make", "-k", "REJ101", "--profile", "smoke").exit_code == 1
    (path,) = (third_party / ".fairdraw" / "crashes").iterdir()
    failed, tried = json.loads(path.read_text())["repeats"]
    assert 0 < failed < tried == 20
    for _ in range(3):
        assert fairdraw("replay", str(path), "-y").stdout.startswith("FAILED")
    (third_party / "lucky.py").write_text(LUCKY.replace("% 3", "% 3 + 1"))
    sys.modules.pop("lucky")
    mended = fairdraw("replay", str(path), "-y")
    assert (mended.exit_code, mended.stdout[:5]) == (0, "FIXED")
    assert f"on the stored case, {tries_needed([failed, tried])} times now" in mended.stdout


@pytest.mark.parametrize("repeats", [[0, 20], [0, 1], [1, 20]])
def test_rare_failure_is_not_called_fixed(third_party: Path, repeats: list[int]) -> None:
    crash = read_crash(Path(mended_file(third_party)))
    path = write_crash(third_party / "rare", dataclasses.replace(crash, repeats=repeats))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fairdraw._cli.replay._MOST_TRIES", 5)
        patch.setattr("fairdraw._cli.replay._TRYING_SECONDS", 0.1)
        result = fairdraw("replay", str(path), "-y")
    assert result.exit_code == NOT_REPRODUCED == 12
    assert result.stdout.startswith("NOT REPRODUCED: REJ101")
    assert f"where {repeats[0]} of {repeats[1]} tries failed when it was found" in result.stdout


def test_code_stands_for_its_crash_files(third_party: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, loading = crash_file(third_party), Mock(wraps=load_sampler)
    monkeypatch.setattr("fairdraw._cli.replay.load_sampler", loading)
    assert fairdraw("replay", "rej101", "-y").stdout.startswith("FAILED: third_party:make_beyond")
    (third_party / ".fairdraw" / "crashes" / "REJ101-second.json").write_text((third_party / path).read_text())
    result = fairdraw("replay", "REJ101", "-y")
    assert result.exit_code == 1
    assert result.output.count("FAILED: ") == 2
    assert result.output.splitlines()[-1] == "2 replayed: 2 failed, 0 not run"
    assert loading.call_count == 3  # a fault of first calls passes on a sampler that another file has called


def test_repaired_sampler_is_fixed_and_several_files_fail_if_one_does(third_party: Path) -> None:
    mended = mended_file(third_party)
    (path,) = (third_party / ".fairdraw" / "crashes").iterdir()
    result = fairdraw("replay", mended, str(path), "-y")
    assert result.exit_code == 1
    assert result.output.splitlines()[-1] == "2 replayed: 1 failed, 0 not run"
    assert fairdraw("replay", mended, mended, "-y").exit_code == 0
    assert fairdraw("replay", mended, "-y").stdout.startswith("FIXED: REJ101")


def test_unsupported_capability_is_not_run(third_party: Path) -> None:
    needs_noise = next(c for c in CHECKS if c.suite == "properties" and "explicit-noise" in c.needs)
    content = json.loads((third_party / crash_file(third_party)).read_text())
    (third_party / "noise.json").write_text(json.dumps({**content, "check": needs_noise.code}))
    result = fairdraw("replay", "noise.json", "--sampler", "third_party:make_unsupported")
    assert result.exit_code == 3
    assert result.stdout.startswith("NOT RUN:")
