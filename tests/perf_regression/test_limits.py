"""The limits file: what it refuses, and that the shipped one is sound."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from fairdraw.perf_regression import _limits as limits_module
from fairdraw.perf_regression._limits import CaseLimits, LimitsError, evaluate, read_limits

HEAD = """
schema = 1
[policy]
family_alpha = 0.01
looks = [20, 40, 80]
drop_fraction_max = 0.25
confirm_processes = 3
[floor_us]
cpu = 20.0
gpu = 3.0
"""
GOLDEN = 'golden = { by = "H200", date = "2026-01-01", ratio = 0.2 }'
CASE = f"""
[case.one]
reference = "vllm==0.22.0"
ratio_max = 0.5
{GOLDEN}
"""


def limits_file(folder: Path, text: str) -> Path:
    path = folder / "limits.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_case_is_read_with_its_gate(tmp_path: Path) -> None:
    limits = read_limits(limits_file(tmp_path, HEAD + CASE + CASE.replace("one", "two")))
    gate = limits.gate(limits.cases["one"], "gpu")
    assert (gate.limit, gate.floor, gate.looks) == (0.5, 3e-6, (20, 40, 80))
    assert gate.alpha == 0.005  # two timing gates share 0.01
    assert limits.confirm_processes == 3


def test_every_timing_limit_has_its_share_of_alpha(tmp_path: Path) -> None:
    axes = "time_exponent_max = { L = 0.1, B = 1.15 }\nroofline_min = 0.5\nfixed_share_max = 0.3\nlaunches_max = 3"
    timed = f"{axes}\nown_ratio_max = 1.0"
    limits = read_limits(limits_file(tmp_path, f"{HEAD}{CASE}[case.two]\n{timed}\n{GOLDEN}"))
    assert limits.alpha == 0.01 / 6


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEAD.replace("[floor_us]", "colour = 1\n[floor_us]"), "unknown key 'colour'"),
        (HEAD + CASE.replace("ratio_max", "ratio_mx"), "unknown key 'ratio_mx'"),
        (HEAD + CASE.replace("ratio =", "ration ="), "unknown key 'ration'"),
        (HEAD + "\n[cases.one]\n", "unknown key 'cases'"),
        (HEAD + f"[case.one]\n{GOLDEN}", "has no limit"),
        (HEAD + "[case.one]\nlaunches_max = 3", "'golden' is missing"),
        (HEAD + CASE.replace(', date = "2026-01-01"', ""), "by whom and when"),
        (HEAD + CASE.replace("vllm==0.22.0", "vllm"), "must be package==version"),
        (HEAD + CASE.replace('reference = "vllm==0.22.0"', ""), "ratio_max has no reference"),
        (HEAD + CASE.replace("0.5", "true"), "must be a number"),
        (HEAD + f"[case.one]\ntime_exponent_max = 0.1\n{GOLDEN}", "must be a table"),
        (HEAD + f"[case.one]\ntime_exponent_max = {{ X = 0.1 }}\n{GOLDEN}", "unknown key 'X'"),
        (HEAD + f"[case.one]\ntime_exponent_max = {{ L = true }}\n{GOLDEN}", "L=True"),
        (HEAD.replace("confirm_processes = 3", ""), "'confirm_processes' is missing"),
        (HEAD + f'[case.one]\nbytes_max = "B*X"\n{GOLDEN}', "'X' is not"),
        (HEAD + f'[case.one]\nbytes_max = "__import__(1)"\n{GOLDEN}', "is not"),
        (HEAD.replace("schema = 1", "schema = 2"), "schema=2"),
        (HEAD.replace("0.01", '"1%"'), "family_alpha='1%'"),
        ("schema = ", "Invalid value"),
    ],
    ids=lambda value: value[-28:].strip().replace("\n", " ") if len(value) > 40 else value,
)
def test_bad_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(LimitsError, match=message.replace("(", r"\(")):
        read_limits(limits_file(tmp_path, text))
    with pytest.raises(LimitsError, match="No such file"):
        read_limits(tmp_path / "none.toml")


def _sizes(words: str) -> dict[str, int]:
    """Of `B=2 K=3 V=5001`."""
    return {name: int(size) for name, size in (word.split("=") for word in words.split())}


def test_shipped_limits_are_sound_and_leave_slack() -> None:
    """A limit closer than 2 % to what was measured would fail because processes differ."""
    for case in read_limits().cases.values():
        for name, measured in case.golden.items():
            if isinstance(measured, str):
                continue
            if name == "roofline":
                assert case.roofline_min is not None
                assert isinstance(measured, float)
                assert measured >= 1.02 * case.roofline_min, case.name
                continue
            limit = getattr(case, f"{name}_max")
            if name in ("bytes", "tokens_read"):
                limit = {sizes: evaluate(limit, **_sizes(sizes)) for sizes in measured}
            if not isinstance(measured, Mapping):
                measured, limit = {"": measured}, {"": limit}
            assert measured.keys() <= limit.keys(), (case.name, name)
            for axis, value in measured.items():
                exact = isinstance(limit[axis], int)
                assert value <= limit[axis] if exact else value <= 0.98 * limit[axis], (case.name, name, axis)


@pytest.mark.parametrize(("installed", "named"), [("0.22.0", ""), ("0.23.0", "0.23.0"), ("", "none")])
def test_reference_of_another_version_is_a_problem(installed: str, named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits_module, "release", lambda package: installed)
    problem = named and f"limits were made for vllm==0.22.0, but installed is {named}"
    assert CaseLimits("one", reference="vllm==0.22.0").reference_problem() == problem
    assert CaseLimits("one").reference_problem() == ""


def test_case_without_a_ratio_has_no_gate(tmp_path: Path) -> None:
    limits = read_limits(limits_file(tmp_path, f"{HEAD}[case.one]\nlaunches_max = 3\n{GOLDEN}"))
    with pytest.raises(LimitsError, match="no ratio_max"):
        limits.gate(limits.cases["one"], "cpu")
