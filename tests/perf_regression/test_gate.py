"""How measurements become findings and outcomes of tests, and when there is no verdict."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fairdraw.contracts import rejection_sampler
from fairdraw.perf_regression import _benching as benching
from fairdraw.perf_regression._benching import judge_growth, judge_ratio, judge_roofline, measured, why_not_timed
from fairdraw.perf_regression._confirmation import Timed
from fairdraw.perf_regression._decision import Gate, Verdict
from fairdraw.perf_regression._device import count_on_device
from fairdraw.perf_regression._device_time import decide_roofline, require_cold_clock, roofline_rounds
from fairdraw.perf_regression._findings import Finding, compare_counts, exit_code, table
from fairdraw.perf_regression._limits import CaseLimits, read_limits
from fairdraw.perf_regression._named import NoVerdictError, import_path
from fairdraw.perf_regression._rejection import RejectionWorld
from fairdraw.perf_regression._rounds import Rounds
from fairdraw.perf_regression._world import Sizes
from fairdraw.perf_regression._worlds import HOST_WORLDS, WORLDS
from fairdraw.perf_regression.conftest import STRICT_VARIABLE

PASSED = Finding("one", "time", Verdict.PASS, 0.5, 1.0)
FAILED = Finding("two", "time", Verdict.FAIL, 1.5, 1.0, "too slow")
UNSURE = Finding("three", "time", Verdict.INCONCLUSIVE, 1.0, 1.0, "within the interval")
UNKNOWN = Finding("four", "time", Verdict.NO_VERDICT, reason="not measured")

TESTS = """
from fairdraw.perf_regression._decision import Decision, Interval, Verdict
from fairdraw.perf_regression._findings import Finding, from_decision

PASSED = Finding("penalties.step", "time", Verdict.PASS, 0.5, 1.0)
NEAR = Decision(Verdict.INCONCLUSIVE, "limit 1.05 lies within [0.98, 1.12]", Interval(1.02, 0.98, 1.12))

def test_near(verdicts):
    verdicts([PASSED, from_decision("sampling.step", NEAR, 1.05)])

def test_passed(verdicts):
    verdicts([PASSED])

def test_unknown(verdicts):
    verdicts([PASSED, Finding("thinking.step", "time", Verdict.NO_VERDICT, reason="not measured")])

def test_nothing(verdicts):
    verdicts([])

def test_failed(verdicts):
    verdicts([PASSED, Finding("two", "time", Verdict.FAIL, 1.5, 1.0, "too slow")])
"""
NEAR = (
    "INCONCLUSIVE: sampling.step: time of ours / reference=1.02 (0.98 to 1.12), limit 1.05: "
    "limit 1.05 lies within [0.98, 1.12]"
)
FAILURE = "*AssertionError: FAIL: two: time=1.5, limit 1.0: too slow"


@pytest.mark.parametrize(
    ("option", "outcomes", "lines"),
    [
        ([], {"passed": 1, "skipped": 3, "failed": 1, "warnings": 1}, [f"*InconclusiveWarning: {NEAR}", FAILURE]),
        (["--perf-strict"], {"passed": 1, "skipped": 1, "failed": 3}, [f"*AssertionError: {NEAR}", FAILURE]),
        (["-W", "error"], {"passed": 1, "skipped": 2, "failed": 2}, [f"*InconclusiveWarning: {NEAR}"]),
    ],
    ids=["as configured", "strict", "warnings requested as errors"],
)
def test_findings_decide_their_test(
    option: list[str],
    outcomes: dict[str, int],
    lines: list[str],
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is not known is a skip and not a pass. An ini that turns warnings into errors does not mean this one."""
    monkeypatch.setenv(STRICT_VARIABLE, "0")
    pytester.makepyfile(TESTS)
    pytester.makeini("[pytest]\nfilterwarnings = error\n")
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", import_path())
    ran = pytester.runpytest_subprocess("-rs", "-p", "fairdraw.perf_regression.conftest", *option)
    ran.assert_outcomes(**outcomes)
    ran.stdout.fnmatch_lines_random([line.replace("[", "[[]") for line in lines])


@pytest.mark.parametrize(
    ("findings", "code", "strict_code"),
    [([PASSED], 0, 0), ([PASSED, UNSURE], 0, 3), ([PASSED, FAILED], 1, 1), ([UNKNOWN], 3, 3), ([], 3, 3)],
)
def test_exit_codes_are_those_of_the_command(findings: list[Finding], code: int, strict_code: int) -> None:
    assert exit_code(findings) == code
    assert exit_code(findings, strict=True) == strict_code


def test_table_shows_value_beside_limit() -> None:
    head, *rows = table([PASSED, UNKNOWN])
    assert head.split() == ["case", "what", "value", "limit", "verdict", "reason"]
    assert rows[0].split() == ["one", "time", "0.5", "1", "PASS"]
    assert rows[1].split(maxsplit=4)[2:] == ["-", "-", "NO VERDICT  not measured"]


@pytest.mark.parametrize(
    ("disabled", "version", "xdist", "reason"),
    [
        (False, pytest.__version__, "gw0", "tests run in parallel (xdist)"),
        (True, pytest.__version__, "", "--benchmark-disable"),
        (False, "0.1", "", f"limits were made for pytest==0.1, but installed is {pytest.__version__}"),
        (False, pytest.__version__, "", ""),
    ],
    ids=["xdist", "disabled", "another release", "as it should be"],
)
def test_time_is_not_taken_where_it_means_nothing(
    disabled: bool, version: str, xdist: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_XDIST_WORKER", xdist)
    case = CaseLimits("one", f"pytest=={version}", ratio_max=1.0)
    found = why_not_timed(SimpleNamespace(disabled=disabled), case)
    assert reason in found
    assert bool(reason) == bool(found)


class FakeBenchmark:
    """pytest-benchmark's fixture, reduced to what is used."""

    disabled = False

    def __init__(self) -> None:
        self.extra_info: dict[str, Any] = {}

    def pedantic(self, target: Callable[[], object], rounds: int, iterations: int, warmup_rounds: int) -> None:
        for _ in range(rounds):
            target()


def costing(**seconds: float) -> Rounds:
    """Arms that take exactly so long."""
    return Rounds({name: (lambda name=name: name) for name in seconds}, clock=lambda step, inner: seconds[str(step())])


@pytest.mark.parametrize("harness", [None, FakeBenchmark()], ids=["command", "test"])
@pytest.mark.parametrize(("seconds", "verdict"), [(0.5, Verdict.PASS), (1.2, Verdict.FAIL), (1.0, Verdict.PASS)])
def test_gate_stops_at_the_first_checkpoint_that_decides(harness: Any, seconds: float, verdict: Verdict) -> None:
    decision = measured(costing(ours=seconds, reference=1.0), Gate(1.05), harness)
    assert (decision.verdict, decision.num_rounds) == (verdict, 20)
    assert decision.ratio.middle == pytest.approx(seconds)


def test_gate_measures_on_if_it_cannot_decide() -> None:
    samples = iter([1.0, 1.2] * 1000)
    rounds = Rounds({"ours": list, "reference": tuple}, clock=lambda step, inner: next(samples))
    decision = measured(rounds, Gate(1.0), FakeBenchmark())
    assert (decision.verdict, decision.num_rounds) == (Verdict.INCONCLUSIVE, 80)


@pytest.mark.parametrize(("power", "verdict"), [(1.0, Verdict.FAIL), (0.0, Verdict.PASS)], ids=["linear", "flat"])
def test_step_that_reads_the_whole_output_is_detected(
    power: float, verdict: Verdict, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Timed, "in_fresh_process", lambda self: power)
    monkeypatch.setattr(Timed, "rounds", lambda self: costing(**{str(n): n**power for n in (1000, 2000, 4000)}))
    found = judge_growth("penalties.host", "L", Timed("nobody:nothing"))
    assert (found.verdict, found.value) == (verdict, pytest.approx(power))


@pytest.fixture
def xdist_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the gate measures, whatever runs these tests."""
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    monkeypatch.setattr(CaseLimits, "reference_problem", lambda self: "")


@pytest.mark.usefixtures("xdist_is_off")
def test_ratio_that_fails_is_confirmed_and_kept_by_pytest_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Timed, "rounds", lambda self: costing(ours=9.0, vllm=1.0))
    monkeypatch.setattr(Timed, "in_fresh_process", lambda self: 9.0)
    benchmark = FakeBenchmark()
    found = judge_ratio(benchmark, "penalties.host", Timed("nobody:nothing"))
    assert (found.verdict, found.value) == (Verdict.FAIL, pytest.approx(9.0))
    assert found.reason.endswith("3 fresh processes: 9, 9, 9")
    assert benchmark.extra_info["pair"]["verdict"] == "FAIL"
    assert benchmark.extra_info["pair"]["num_rounds"] == 20


@pytest.mark.usefixtures("xdist_is_off")
@pytest.mark.parametrize(
    ("ours", "verdict"),
    [(33e-6, Verdict.PASS), (35e-6, Verdict.INCONCLUSIVE), (40e-6, Verdict.FAIL)],
    ids=["faster", "slower by less than the floor", "slower"],
)
def test_workspace_that_costs_time_is_detected(ours: float, verdict: Verdict, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Timed, "rounds", lambda self: costing(ours=ours, reference=34e-6))
    monkeypatch.setattr(Timed, "in_fresh_process", lambda self: ours / 34e-6)
    found = judge_ratio(FakeBenchmark(), "rejection.counter_triton.B64.workspace", Timed("nobody:nothing"), "gpu")
    assert found.verdict is verdict


@pytest.mark.parametrize(
    ("step", "problem", "verdict", "reason"),
    [
        (1.1, "", Verdict.PASS, "fraction in [0.909, 0.909], limit 0.85"),
        (2.0, "", Verdict.FAIL, "fraction in [0.500, 0.500], limit 0.85"),
        (0.5, "", Verdict.NO_VERDICT, "2.00 of the copy bandwidth: bytes came from a cache, or were not moved"),
        (1.1, "hot", Verdict.NO_VERDICT, "40 of 40 rounds were disturbed"),
    ],
    ids=["near the roof", "far below", "above the roof: warm", "disturbed"],
)
def test_roofline_needs_a_fraction_of_the_copy_that_is_possible(
    step: float, problem: str, verdict: Verdict, reason: str
) -> None:
    seconds = {"copy": 1.0, "step": step}
    arms = {name: (lambda name=name: name) for name in seconds}
    rounds = Rounds(arms, clock=lambda step, inner: seconds[str(step())], watches=[lambda: lambda: problem])
    decision = decide_roofline(rounds, limit=0.85, alpha=0.001)
    assert (decision.verdict, decision.reason) == (verdict, reason)


def test_warm_cache_has_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("fairdraw.perf_regression._device_time.copy_of", lambda num_bytes: list)
    require_cold_clock(lambda step, inner: 2e-5, lambda step, inner: 1e-5)
    with pytest.raises(NoVerdictError, match=r"L2 was warm: a copy takes 10\.0 us cold and 10\.0 us warm"):
        require_cold_clock(lambda step, inner: 1e-5, lambda step, inner: 1e-5)


def test_device_without_a_gpu_has_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    for measure in (lambda: count_on_device(list), lambda: roofline_rounds(list, 1 << 20)):
        with pytest.raises(NoVerdictError, match="no GPU"):
            measure()
    found = judge_roofline("one", Timed("nobody:nothing"), 0.5, 0.01, 3)
    assert (found.verdict, found.reason) == (Verdict.NO_VERDICT, "no GPU: nothing can be timed on one here")


def test_graph_with_one_node_more_is_detected() -> None:
    limits = CaseLimits("one", graph_nodes_max=4)
    assert [found.verdict for found in compare_counts({"graph_nodes": 5}, limits)] == [Verdict.FAIL]


def test_wrong_sampler_is_not_timed() -> None:
    """It accepts what the target forbids: fast, and wrong."""
    wrong = rejection_sampler(lambda batch, noise: batch.draft_token_ids.view(2, 3).repeat(1, 2)[:, :4])
    with pytest.raises(NoVerdictError, match="accepts draft tokens"):
        RejectionWorld(Sizes(2, 3, 50)).step(wrong)


def test_every_case_of_the_limits_is_measured() -> None:
    """A limit that no test names would never be applied."""
    folder = Path(benching.__file__).parent
    text = "".join(path.read_text(encoding="utf-8") for path in folder.glob("test_*.py"))
    for name in read_limits().cases.keys() - {*WORLDS, *HOST_WORLDS}:
        kind, _, rest = name.partition(".")
        assert f"{kind}." in text or f'"{kind}"' in text, name
        assert all(word in text for word in rest.split(".")), name
