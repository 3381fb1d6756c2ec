"""The command `fairdraw bench`, with a third party's samplers and with the contracts of this project."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from fairdraw._cli.main import main
from fairdraw._core.contracts import contract_name
from fairdraw._oracles.rejection import verify
from fairdraw._oracles.sampling import sample
from fairdraw._run.loading import load_sampler
from fairdraw.contracts import ExplicitNoise, RaceNoise, rejection_sampler, token_sampler
from fairdraw.perf_regression import _costs
from fairdraw.perf_regression._costs import costs
from fairdraw.perf_regression._decision import Verdict
from fairdraw.perf_regression._named import NoVerdictError
from fairdraw.perf_regression._world import Sizes
from fairdraw.perf_regression._worlds import WORLDS, SamplingWorld

SAMPLERS = """
import time
from fairdraw._oracles.rejection import verify
import fairdraw

def slow(batch, noise):
    time.sleep(0.002)
    return verify(batch, noise)

def make(): return fairdraw.rejection_sampler(slow, name="slow")
def make_right(): return fairdraw.rejection_sampler(verify, name="right")

def raising(batch, noise): raise IndexError("lane")
def make_raising(): return fairdraw.rejection_sampler(raising)
"""
FASTER = ("bench_user:make_right", "--against", "bench_user:make")


@pytest.fixture(autouse=True)
def _few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts are exact: few steps show what many do."""
    monkeypatch.setattr(_costs, "_STEPS", 10)
    monkeypatch.setattr(_costs, "_CHANGING", _costs._CHANGING[:6])


@pytest.fixture
def user_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder with two samplers, and small sizes."""
    (tmp_path / "bench_user.py").write_text(SAMPLERS, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("fairdraw.perf_regression._bench.CPU_SIZES", (Sizes(1, 1, 50),))
    monkeypatch.setattr("fairdraw.perf_regression._bench.NUM_PROCESSES", 1)
    return tmp_path


def bench(*words: str) -> Result:
    return CliRunner().invoke(main, ["bench", *words])


def read(path: Path) -> list[Any]:  # Any: JSON
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_slower_sampler_fails(user_folder: Path) -> None:
    ran = bench("bench_user:make", "--against", "bench_user:make_right", "--json", "found.json")
    assert ran.exit_code == 1, ran.output
    assert "time of slow / right" in ran.output
    assert "; 1 fresh processes: " in ran.output
    found = json.loads((user_folder / "found.json").read_text(encoding="utf-8"))
    assert found["findings"][-1]["verdict"] == "FAIL"
    assert found["seconds_per_call"][0]["ours"] > 0.002


def test_faster_sampler_passes_is_drawn_and_appended_to_a_history(user_folder: Path) -> None:
    pytest.importorskip("matplotlib")
    for more in (("--plots", "pictures"), ()):
        ran = bench(*FASTER, "--history", "perf.jsonl", *more)
        assert ran.exit_code == 0, ran.output
    assert (user_folder / "pictures" / "latency.svg").stat().st_size > 1000
    lines = read(user_folder / "perf.jsonl")
    assert [line["what"] for line in lines] == ["time of right / slow"] * 2
    assert all(line["low"] <= line["value"] <= line["high"] < 1 for line in lines)


@pytest.mark.parametrize("contract", ["thinking_budget", "logits_plan"])
def test_other_contracts_are_compared_with_their_vllm(contract: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("vllm")
    small = {name: (make, Sizes(4, 0, 1_000, 2_000)) for name, (make, _) in WORLDS.items() if "busy" not in name}
    monkeypatch.setattr("fairdraw.perf_regression._bench.WORLDS", small)
    for name, world in small.items():
        monkeypatch.setitem(WORLDS, name, world)
    ran = bench(contract)
    assert ran.exit_code == 0, ran.output
    assert "FAIL" not in ran.output
    for what in ("bytes", "copies", "allocations", "syncs", "time of", "tokens read of", "variants of", "bytes kept"):
        assert f": {what}" in ran.output


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["sampling/counter", "--against", "thinking_budget"], 2, "contract='thinking_budget', but sampling/counter"),
        (["rejection/triton", "--against", "bench_user:make_right", "--strict"], 3, "runs in an interpreter"),
        ([*FASTER, "--roofline-min", "0.5", "--strict"], 3, "no GPU"),
        (["filters/oracle"], 2, "contract='filters', but only rejection, sampling, logits_plan, penalties, thinking_"),
        (["bench_user:make_raising", "--against", "bench_user:make_right"], 3, "raised IndexError: lane ("),
    ],
    ids=["two contracts", "interpreter", "roofline without a GPU", "contract that is not measured", "exception"],
)
@pytest.mark.usefixtures("user_folder")
def test_what_cannot_be_compared_is_refused_or_has_no_verdict(words: list[str], code: int, message: str) -> None:
    ran = bench(*words)
    assert ran.exit_code == code, ran.output
    assert message in ran.output


COSTLY = """
import torch, triton, fairdraw
import triton.language as tl
kept = []

def right(batch, noise):
    probs = (batch.logits.float() / batch.temperature[:, None]).softmax(-1)
    return torch.multinomial(probs, 1)[:, 0].int()
def row_by_row(batch, noise):
    for row in batch.logits: row.max()
    return right(batch, noise)
def waiting(batch, noise):
    for temperature in batch.temperature: temperature.item()
    return right(batch, noise)
@triton.jit
def touch(scratch, num_rows: tl.constexpr): tl.store(scratch, 0.0)
def compiling(batch, noise):
    touch[(1,)](torch.zeros(1), len(batch.logits))
    return right(batch, noise)
def leaking(batch, noise):
    kept.append(batch.logits.clone())
    return right(batch, noise)

def make_right(): return fairdraw.token_sampler(right)
def make_row_by_row(): return fairdraw.token_sampler(row_by_row)
def make_waiting(): return fairdraw.token_sampler(waiting)
def make_compiling(): return fairdraw.token_sampler(compiling)
def make_leaking(): return fairdraw.token_sampler(leaking)

class Rereading:  # a thinking budget that reads every output at every step
    name, device, capabilities = "rereading", "cpu", fairdraw.Capabilities()
    def open_thinking(self, markers): return self
    def sync(self, changes): pass
    def forced(self, batch): return {row: [] for row, ids in enumerate(batch.output_token_ids) if sum(ids) < 0}
"""


@pytest.mark.parametrize(
    ("factory", "named"),
    [
        ("make_right", ""),
        ("make_row_by_row", "launches of a step over requests"),
        ("make_waiting", "syncs of a step over requests"),
        ("make_compiling", "variants of kernels"),
        ("make_leaking", "bytes kept"),
        ("Rereading", "tokens read of a step over output tokens"),
    ],
)
def test_cost_of_a_third_party_sampler_has_a_name(
    factory: str, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bench_costly.py").write_text(COSTLY, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    sampler = load_sampler(f"bench_costly:{factory}")
    failed = [finding.what for finding in costs(sampler, sampler_of_limits(sampler)) if finding.verdict is Verdict.FAIL]
    assert (named in failed) if named else not failed


def sampler_of_limits(sampler: Any) -> Any:  # Any: of either contract
    """A correct sampler of the same contract."""
    return load_sampler("sampling/torch" if contract_name(sampler) == "sampling" else "thinking_budget")


def exact(batch: Any, noise: Any) -> Any:  # Any: of either contract; a sampler that takes one kind of noise
    assert isinstance(noise, (ExplicitNoise, RaceNoise))
    return verify(batch, noise) if isinstance(noise, ExplicitNoise) else sample(batch, noise)


@pytest.mark.parametrize("wrap", [rejection_sampler, token_sampler])
def test_sampler_without_seeded_noise_is_measured(wrap: Any) -> None:  # Any: makes a sampler
    sampler = wrap(exact, unsupported={"seeded-noise": "is handed its numbers"})
    assert {finding.what for finding in costs(sampler, sampler)} >= {"bytes kept", "variants of kernels"}
    if wrap is token_sampler:
        SamplingWorld(Sizes(2, 0, 1_000), filtered=True).step(sampler)


@pytest.mark.parametrize("word", ["top-k", "top-p", "min-p", "half-logits"])
def test_sampler_is_not_given_what_it_does_not_support(word: str) -> None:
    sampler = token_sampler(exact, unsupported={"seeded-noise": "none", word: "mine"})
    with pytest.raises(NoVerdictError, match=f"cannot be given this batch: {word} is unsupported: mine"):
        SamplingWorld(Sizes(2, 0, 1_000), filtered=True).step(sampler)
