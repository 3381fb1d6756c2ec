"""How verdicts become outcomes: of tests, of the command line, of a roofline; and when there is none."""

from __future__ import annotations

import gc
import json
import weakref
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from click.testing import CliRunner

from fairdraw._cli.main import main
from fairdraw.perf_regression import _benching as benching
from fairdraw.perf_regression import _device as device
from fairdraw.perf_regression._benching import (
    STRICT_VARIABLE,
    judge_growth,
    judge_ratio,
    judge_workspace,
    paired,
    settle,
    why_not_timed,
)
from fairdraw.perf_regression._cases import Sizes, rejection_batch, rejection_step
from fairdraw.perf_regression._confirmation import Timed
from fairdraw.perf_regression._decision import Gate, Verdict
from fairdraw.perf_regression._device import count_nodes, count_on_device
from fairdraw.perf_regression._findings import Finding, compare_counts, exit_code, table
from fairdraw.perf_regression._instructions import exponent, instructions_per_step
from fairdraw.perf_regression._limits import CaseLimits, Reference, read_limits
from fairdraw.perf_regression._named import NoVerdictError, load
from fairdraw.perf_regression._roofline import decide_roofline, roofline_rounds, why_warm
from fairdraw.perf_regression._rounds import Rounds
from fairdraw.perf_regression._worlds import WORLDS, WorldSizes
from fairdraw.protocols import SeededNoise, rejection_sampler

if TYPE_CHECKING:
    import ctypes
    from collections.abc import Callable

PASSED = Finding("one", "time", Verdict.PASS, 0.5, 1.0)
FAILED = Finding("two", "time", Verdict.FAIL, 1.5, 1.0, "too slow")
UNSURE = Finding("three", "time", Verdict.INCONCLUSIVE, 1.0, 1.0, "within the interval")
UNKNOWN = Finding("four", "time", Verdict.NO_VERDICT, reason="not measured")
ENABLED = SimpleNamespace(disabled=False)
CASE = CaseLimits("one", Reference("pytest", pytest.__version__), ratio_max=1.0)


@pytest.fixture(autouse=True)
def _not_strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(STRICT_VARIABLE, raising=False)
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)


def test_failure_fails_its_test() -> None:
    with pytest.raises(AssertionError, match=r"FAIL: two: time=1\.5, limit 1\.0: too slow"):
        settle([PASSED, FAILED, UNKNOWN])


@pytest.mark.filterwarnings("ignore::fairdraw.perf_regression._findings.InconclusiveWarning")
@pytest.mark.parametrize("findings", [[UNSURE], [UNKNOWN], [PASSED, UNKNOWN], []], ids=len)
def test_what_is_not_known_is_a_skip_and_not_a_pass(findings: list[Finding]) -> None:
    with pytest.raises(pytest.skip.Exception, match=r"INCONCLUSIVE|NO VERDICT"):
        settle(findings)


@pytest.mark.parametrize("finding", [UNSURE, UNKNOWN], ids=lambda one: one.verdict.value)
def test_strict_run_fails_for_what_is_not_known(monkeypatch: pytest.MonkeyPatch, finding: Finding) -> None:
    monkeypatch.setenv(STRICT_VARIABLE, "1")
    settle([PASSED])
    with pytest.raises(AssertionError, match=finding.verdict.value):
        settle([PASSED, finding])


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


def test_time_is_not_taken_under_xdist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw0")
    assert "xdist" in why_not_timed(ENABLED, CASE)


def test_time_is_not_taken_with_benchmarks_disabled() -> None:
    assert "--benchmark-disable" in why_not_timed(SimpleNamespace(disabled=True), CASE)


def test_time_is_not_compared_with_another_release() -> None:
    other = CaseLimits("one", Reference("pytest", "0.1"), ratio_max=1.0)
    assert why_not_timed(ENABLED, other) == f"limits were made for pytest==0.1, but installed is {pytest.__version__}"
    assert why_not_timed(ENABLED, CASE) == ""


class FakeBenchmark:
    """pytest-benchmark's fixture, reduced to what is used."""

    disabled = False

    def __init__(self) -> None:
        self.extra_info: dict[str, Any] = {}

    def pedantic(self, target: Callable[[], object], rounds: int, iterations: int, warmup_rounds: int) -> None:
        for _ in range(rounds):
            target()


@pytest.mark.parametrize(
    ("seconds", "verdict", "num_rounds"),
    [(0.5, Verdict.PASS, 20), (1.2, Verdict.FAIL, 20), (1.0, Verdict.PASS, 20)],
    ids=["faster", "slower", "same"],
)
def test_gate_stops_at_the_first_look_that_decides(seconds: float, verdict: Verdict, num_rounds: int) -> None:
    benchmark = FakeBenchmark()
    cost = {"ours": seconds, "reference": 1.0}
    rounds = Rounds({name: (lambda name=name: name) for name in cost}, clock=lambda step, inner: cost[str(step())])
    decision = paired(benchmark, rounds, Gate(1.05))
    assert (decision.verdict, decision.num_rounds) == (verdict, num_rounds)
    assert decision.ratio is not None
    assert decision.ratio.middle == pytest.approx(seconds)


def growing(power: float) -> Rounds:
    """A step whose time grows with the size by this power."""
    steps = {str(size): (lambda size=size: size) for size in (1000, 2000, 4000)}
    return Rounds(steps, clock=lambda step, inner: float(str(step())) ** power)


@pytest.mark.parametrize(("power", "verdict"), [(1.0, Verdict.FAIL), (0.0, Verdict.PASS)], ids=["linear", "flat"])
def test_step_that_reads_the_whole_output_is_caught(
    power: float, verdict: Verdict, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Timed, "in_fresh_process", lambda self: power)
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    found = judge_growth("penalties.step", "L", Timed(f"{Path(__file__).stem}:growing", {"power": power}))
    assert (found.verdict, found.value) == (verdict, pytest.approx(power))


def test_ratio_that_fails_is_confirmed_and_kept_by_the_harness(monkeypatch: pytest.MonkeyPatch) -> None:
    cost = {"ours": 9.0, "vllm": 1.0}
    rounds = Rounds({name: (lambda name=name: name) for name in cost}, clock=lambda step, inner: cost[str(step())])
    monkeypatch.setattr(Timed, "rounds", lambda self: rounds)
    monkeypatch.setattr(Timed, "in_fresh_process", lambda self: 9.0)
    monkeypatch.setattr(Reference, "problem", lambda self: "")
    benchmark = FakeBenchmark()
    found = judge_ratio(benchmark, "penalties.step", Timed("nobody:nothing"))
    assert (found.verdict, found.value) == (Verdict.FAIL, pytest.approx(9.0))
    assert found.reason.endswith("3 fresh processes: 9, 9, 9")
    assert benchmark.extra_info["pair"]["verdict"] == "FAIL"


@pytest.mark.parametrize(
    ("ours", "verdict"),
    [(33e-6, Verdict.PASS), (35e-6, Verdict.INCONCLUSIVE), (40e-6, Verdict.FAIL)],
    ids=["faster", "slower by less than the floor", "slower"],
)
def test_workspace_that_costs_time_is_caught(ours: float, verdict: Verdict, monkeypatch: pytest.MonkeyPatch) -> None:
    cost = {"ours": ours, "reference": 34e-6}
    rounds = Rounds({name: (lambda name=name: name) for name in cost}, clock=lambda step, inner: cost[str(step())])
    monkeypatch.setattr(Timed, "rounds", lambda self: rounds)
    monkeypatch.setattr(Timed, "in_fresh_process", lambda self: ours / 34e-6)
    found = judge_workspace(FakeBenchmark(), "rejection.counter_triton.B64.workspace", Timed("nobody:nothing"))
    assert (found.verdict, found.what) == (verdict, "time with / without workspace")


def test_strict_option_asks_for_nothing_but_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STRICT_VARIABLE, "0")
    options = {"--perf-strict": True}
    config: Any = SimpleNamespace(stash={}, addinivalue_line=lambda *line: None, getoption=options.get)
    load("fairdraw.perf_regression.conftest:pytest_configure")(config)
    with pytest.raises(AssertionError, match="INCONCLUSIVE"):
        settle([PASSED, UNSURE])


def test_gate_looks_again_if_it_cannot_decide() -> None:
    samples = iter([1.0, 1.2] * 1000)
    rounds = Rounds({"ours": list, "reference": tuple}, clock=lambda step, inner: next(samples))
    decision = paired(FakeBenchmark(), rounds, Gate(1.0))
    assert (decision.verdict, decision.num_rounds) == (Verdict.INCONCLUSIVE, 80)


@pytest.mark.parametrize(
    ("step", "verdict"),
    [(1.1, Verdict.PASS), (2.0, Verdict.FAIL), (0.5, Verdict.NO_VERDICT)],
    ids=["near the roof", "far below", "above the roof: warm"],
)
def test_roofline_needs_a_fraction_of_the_copy_that_is_possible(step: float, verdict: Verdict) -> None:
    assert decide_roofline([(1.0, step)] * 40, limit=0.85, alpha=0.001).verdict is verdict


def test_roofline_with_a_missing_arm_has_no_verdict() -> None:
    assert decide_roofline([], limit=0.85, alpha=0.001).verdict is Verdict.NO_VERDICT


def test_warm_cache_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairdraw.perf_regression._roofline.copy_of", lambda num_bytes: list)
    same = why_warm(lambda step, inner: 1e-5, lambda step, inner: 1e-5, 1 << 20)
    assert same == "L2 was warm: a copy takes 10.0 us cold and 10.0 us warm"
    assert why_warm(lambda step, inner: 2e-5, lambda step, inner: 1e-5, 1 << 20) == ""


def test_device_without_a_gpu_has_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    for measure in (lambda: count_on_device(list), lambda: roofline_rounds(list, 1 << 20)):
        with pytest.raises(NoVerdictError, match="no GPU"):
            measure()


def test_replay_keeps_the_tensors_whose_addresses_its_graph_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """They were freed once, and an H200 answered with an illegal memory access."""
    replays: list[bool] = []
    graph = SimpleNamespace(replay=lambda: replays.append(True))
    monkeypatch.setattr(device, "graph_of", lambda step: graph)
    inputs = torch.zeros(1)
    lives = weakref.ref(inputs)
    replay = device.replay_of(partial(torch.add, inputs, 1))
    del inputs
    gc.collect()
    replay()
    assert lives() is not None
    assert replays == [True]


def test_roofline_of_disturbed_rounds_has_no_verdict() -> None:
    decision = decide_roofline([(1.0, 1.1)] * 40, limit=0.85, alpha=0.001, num_dropped=20)
    assert (decision.verdict, decision.reason) == (Verdict.NO_VERDICT, "20 of 60 rounds were disturbed")


class FakeDriver:
    """CUDA's driver with one graph of five nodes, at address 4096."""

    def cuGraphGetNodes(self, graph: ctypes.c_void_p, nodes: None, num_nodes: Any) -> int:
        if graph.value != 4096:
            return 400
        num_nodes._obj.value = 5
        return 0


def test_nodes_of_a_graph_are_counted_by_the_driver() -> None:
    assert count_nodes(4096, FakeDriver()) == 5
    with pytest.raises(RuntimeError, match="cuGraphGetNodes=400"):
        count_nodes(1, FakeDriver())


def test_graph_with_one_node_more_is_caught() -> None:
    limits = read_limits().cases["rejection.counter_triton.B64"]
    assert limits.graph_nodes_max is not None
    for num_nodes, wanted in ((limits.graph_nodes_max, Verdict.PASS), (limits.graph_nodes_max + 1, Verdict.FAIL)):
        assert [found.verdict for found in compare_counts({"graph_nodes": num_nodes}, limits)] == [wanted]


def test_wrong_sampler_is_not_timed() -> None:
    """It accepts what the target forbids: fast, and wrong."""
    batch = rejection_batch(Sizes(2, 3, 50))
    wrong = rejection_sampler(lambda batch, noise: batch.draft_token_ids.view(2, 3).repeat(1, 2)[:, :4])
    with pytest.raises(NoVerdictError, match="accepts draft tokens"):
        rejection_step(wrong, batch, SeededNoise(1))


@pytest.mark.parametrize("name", ["no.such.module:thing", "fairdraw:thing", "fairdraw"])
def test_what_cannot_be_loaded_has_no_verdict(name: str) -> None:
    with pytest.raises(NoVerdictError):
        load(name)


def test_missing_valgrind_has_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(NoVerdictError, match="valgrind is not installed"):
        instructions_per_step("fairdraw.perf_regression._scanner_steps:penalties_program", length=10)


def test_exponent_of_constant_cost_is_zero() -> None:
    assert exponent({1000: 7.0, 2000: 7.0, 32000: 7.0}) == pytest.approx(0.0)


def test_every_case_of_the_limits_is_measured() -> None:
    """A limit that no test asks for would never be looked at."""
    folder = Path(benching.__file__).parent
    text = "".join(path.read_text(encoding="utf-8") for path in folder.glob("test_*.py"))
    for name in read_limits().cases.keys() - WORLDS.keys():
        kind, _, rest = name.partition(".")
        assert f"{kind}." in text or f'"{kind}"' in text, name
        assert all(word in text for word in rest.split(".")), name


SLOW = """
import time
from fairdraw._oracles.rejection import verify
import fairdraw

def slow(batch, noise):
    time.sleep(0.002)
    return verify(batch, noise)

def make(): return fairdraw.rejection_sampler(slow, name="slow")
def make_right(): return fairdraw.rejection_sampler(verify, name="right")
"""


@pytest.fixture
def stranger_bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder with two samplers, and small sizes."""
    (tmp_path / "bench_stranger.py").write_text(SLOW, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("fairdraw.perf_regression._bench.CPU_SIZES", (Sizes(1, 1, 50),))
    monkeypatch.setattr("fairdraw.perf_regression._bench.NUM_PROCESSES", 1)
    return tmp_path


def test_command_fails_for_a_slower_sampler(stranger_bench: Path) -> None:
    command = ["bench", "bench_stranger:make", "--against", "bench_stranger:make_right", "--json", "found.json"]
    ran = CliRunner().invoke(main, command)
    assert ran.exit_code == 1, ran.output
    assert "time of slow / right" in ran.output
    assert "; 1 fresh processes: " in ran.output
    assert "FAIL" in ran.output
    found = json.loads((stranger_bench / "found.json").read_text(encoding="utf-8"))
    assert found["findings"][-1]["verdict"] == "FAIL"
    assert found["seconds_per_call"][0]["ours"] > 0.002


def test_command_passes_for_a_faster_sampler(stranger_bench: Path) -> None:
    ran = CliRunner().invoke(main, ["bench", "bench_stranger:make_right", "--against", "bench_stranger:make"])
    assert ran.exit_code == 0, ran.output


def test_command_appends_to_a_history(stranger_bench: Path) -> None:
    command = ["bench", "bench_stranger:make_right", "--against", "bench_stranger:make", "--history", "perf.jsonl"]
    for _ in range(2):
        assert CliRunner().invoke(main, command).exit_code == 0
    lines = [json.loads(line) for line in (stranger_bench / "perf.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [line["what"] for line in lines] == ["time of right / slow"] * 2
    assert all(line["low"] <= line["value"] <= line["high"] < 1 for line in lines)


@pytest.mark.parametrize("contract", ["thinking_budget", "logits_plan"])
def test_command_reaches_other_contracts(contract: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against the contract's vLLM, which nobody has to name."""
    pytest.importorskip("vllm")
    small = {name: (make, WorldSizes(4, 1_000, 2_000)) for name, (make, _) in WORLDS.items() if "busy" not in name}
    monkeypatch.setattr("fairdraw.perf_regression._bench.WORLDS", small)
    for name, world in small.items():
        monkeypatch.setitem(WORLDS, name, world)
    ran = CliRunner().invoke(main, ["bench", contract])
    assert ran.exit_code == 0, ran.output
    assert ran.output.count("PASS") == 2 * len(["bytes", "copies", "time"])  # each told, then in the table


def test_command_refuses_samplers_of_two_contracts() -> None:
    ran = CliRunner().invoke(main, ["bench", "sampling/counter", "--against", "thinking_budget"])
    assert ran.exit_code == 2
    assert "thinking_budget: contract='thinking_budget', but sampling/counter is under 'sampling'" in ran.output


def test_command_has_no_verdict_on_the_time_of_an_interpreter(stranger_bench: Path) -> None:
    ran = CliRunner().invoke(main, ["bench", "rejection/triton", "--against", "bench_stranger:make_right", "--strict"])
    assert ran.exit_code == 3, ran.output
    assert "runs in an interpreter" in ran.output


def test_command_draws_on_request(stranger_bench: Path) -> None:
    pytest.importorskip("matplotlib")
    command = ["bench", "bench_stranger:make_right", "--against", "bench_stranger:make", "--plots", "pictures"]
    assert CliRunner().invoke(main, command).exit_code == 0
    assert (stranger_bench / "pictures" / "latency.svg").stat().st_size > 1000


@pytest.mark.parametrize("spec", ["no_such_sampler", "bench_stranger:none"])
def test_command_refuses_an_unknown_sampler(stranger_bench: Path, spec: str) -> None:
    assert CliRunner().invoke(main, ["bench", spec]).exit_code == 2
