"""Benchmark batches of the other contracts: counts catch wasteful samplers, and wrong answers are not timed."""

from typing import Any

import pytest
import torch
from torch import Tensor

from fairdraw.contracts import logits_planner, token_sampler
from fairdraw.perf_regression._decision import Verdict
from fairdraw.perf_regression._findings import compare_counts
from fairdraw.perf_regression._limits import read_limits
from fairdraw.perf_regression._named import NoVerdictError, load
from fairdraw.perf_regression._timed import pair
from fairdraw.perf_regression._worlds import HOST_WORLDS, WORLDS, count_world, make_world, steps_of_both

SMALL: dict[str, int] = {"batch_size": 4, "vocab_size": 1_000, "length": 20}


def contender(name: str) -> Any:  # Any: of some contract
    return load("fairdraw.adapters:load")(name, "cpu")


def broken(world: str, subject: Any) -> set[str]:  # Any: of the world's contract
    made = make_world(world)
    row = count_world(made, made.step(subject)).as_row()
    found = compare_counts(row, read_limits().cases[world], **made.sizes.as_formula())
    return {finding.what for finding in found if finding.verdict is Verdict.FAIL}


def test_sampler_that_copies_its_logits_is_caught() -> None:
    right = contender("sampling")

    def copies(batch: Any, noise: Any) -> Tensor:  # [batch_size] int64
        return right.sample(batch.replace(logits=batch.logits.clone()), noise)  # type: ignore[no-any-return]

    assert broken("sampling.plain", token_sampler(copies)) == {"bytes", "copies", "operators", "allocations"}


def test_plan_that_always_copies_is_caught() -> None:
    always = load("fairdraw.adapters:load")("logits_plan/always-copy", "cpu")
    assert {"bytes", "copies"} <= broken("logits_plan.idle", always)
    assert {"bytes", "copies"} <= broken("logits_plan.busy", always)


def test_scanner_that_makes_a_tensor_is_caught() -> None:
    right = contender("thinking_budget")

    class Wrong:
        name, device, capabilities = "wrong", "cpu", right.capabilities

        def open_thinking(self, markers: Any) -> Any:
            session = right.open_thinking(markers)
            forced = session.forced
            session.forced = lambda batch: (torch.zeros(9), forced(batch))[1]
            return session

    assert broken("thinking_budget.step", Wrong()) == {"bytes", "operators", "allocations"}


def test_sampler_that_ignores_filters_is_not_timed() -> None:
    wrong = token_sampler(lambda batch, noise: torch.zeros(batch.batch_size, dtype=torch.int64), name="wrong")
    with pytest.raises(NoVerdictError, match="wrong does not keep the best token"):
        make_world("sampling.plain", **SMALL).step(wrong)


def test_plan_with_other_logits_is_not_timed() -> None:
    wrong = logits_planner(lambda batch, setup: batch.logits, name="wrong")
    with pytest.raises(NoVerdictError, match="give different logits"):
        steps_of_both(make_world("logits_plan.busy", **SMALL), wrong, contender("logits_plan"))


@pytest.mark.parametrize("world", [*WORLDS, *HOST_WORLDS])
def test_ours_and_upstream_agree_in_every_world(world: str) -> None:
    """Where answers are determined `pair` compares them; everywhere both arms run."""
    pytest.importorskip("vllm")
    contract = world.partition(".")[0]
    threads = torch.get_num_threads()
    rounds = pair(world, contract, f"{contract}/vllm", **SMALL)
    torch.set_num_threads(threads)
    assert rounds.run(2)[-1].seconds.keys() == {"ours", "reference"}
