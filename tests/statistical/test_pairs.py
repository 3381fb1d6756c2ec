"""Drafters with verifiers: right pairs pass, and bad answers are named; `make check` tries the mutants."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from helpers import report_of

from fairdraw import adapters
from fairdraw._core.checks import PROFILES, Profile, Stage
from fairdraw._core.failures import CapabilityUnsupported
from fairdraw._core.seeds import DEFAULT_SEED
from fairdraw._mutants._mutant import as_rejection
from fairdraw._mutants._pairs import PAIR_MUTANTS, Pair
from fairdraw._report.causes import find_causes
from fairdraw._run.runner import Session, run_check
from fairdraw.contracts import Drafted, DraftStep, FunctionSampler, SeededNoise, rejection_sampler
from fairdraw.statistical._pair_statistics import Numbers
from fairdraw.statistical._pair_steps import NUM_STEPS, PairLoop
from fairdraw.statistical.rejection import CHECKS
from odd.rejection_draws import ODD_PAIRS

SMOKE = PROFILES["smoke"]
OWN = {check.code: check for check in CHECKS if check.code.startswith("DIST80")}


@pytest.mark.parametrize("kind", ODD_PAIRS)
def test_right_pair_passes(kind: type[Pair]) -> None:
    sampler = as_rejection(kind())
    asked = [check for check in OWN.values() if check.why_not(sampler) is None]
    assert {"DIST801", "DIST806"} <= {check.code for check in asked}
    for check in asked:
        assert check.run(sampler, profile=SMOKE.scaled(0.4), seed=DEFAULT_SEED) > 0


def test_our_own_drafter_and_verifier_pass() -> None:
    """`make tests` runs all checks on `rejection/torch`."""
    ours = adapters.load("rejection/counter", "cpu")  # one: checks share its draws
    for check in OWN.values():
        assert check.run(ours, profile=SMOKE.scaled(0.2), seed=DEFAULT_SEED) > 0


def test_sampler_without_drafter_is_not_asked() -> None:
    sampler = rejection_sampler(Pair().verify)
    with pytest.raises(CapabilityUnsupported, match=r"drafter is unsupported: it brings no drafter \(a method `prop"):
        OWN["DIST803"].run(sampler, profile=SMOKE)


def test_first_report_of_shared_noise_names_the_drafter() -> None:
    session = Session(spec="mine:pair", profile=SMOKE, seed=DEFAULT_SEED, crash_folder=None)
    records = [run_check(check, PAIR_MUTANTS[0].make(), session) for check in OWN.values()]
    first = find_causes(records)[0].reported
    assert (first.code, first.stage) == ("DIST803", Stage.RECOVERY)
    assert first.title == "recovered tokens are drawn with noise that the drafter has not used"


@pytest.mark.parametrize("kind", ODD_PAIRS)
def test_numbers_are_uniform_where_their_event_happened(kind: type[Pair]) -> None:
    supported = as_rejection(kind()).capabilities
    steps = PairLoop(supported, 20, "cpu", 5).run(as_rejection(kind()))  # type: ignore[arg-type]  # it has a drafter
    numbers = Numbers(steps, np.random.default_rng(0))
    assert numbers.is_right.all()
    assert (numbers.draft[numbers.is_reached] >= 0).all()
    if "token-verification" in supported.unsupported:
        return
    for found, happened in (
        (numbers.acceptance, numbers.is_reached),
        (numbers.rejected, numbers.is_recovered),
        (numbers.recovered, numbers.is_recovered),
        (numbers.accepted, numbers.is_bonus),
        (numbers.bonus, numbers.is_bonus),
    ):
        own = found[happened]
        assert ((own >= 0) & (own < 1)).all()
        assert abs(own.mean() - 0.5) < 5 / np.sqrt(12 * own.size)


def test_positions_advance_by_what_was_emitted() -> None:
    asked: list[tuple[int, torch.Tensor]] = []
    emitted: list[torch.Tensor] = []
    noises: set[int] = set()
    pair = Pair()

    def propose(step: DraftStep, noise: SeededNoise) -> Drafted:
        asked.append((step.step, step.positions.clone()))
        noises.add(id(noise))
        return pair.propose(step, noise)

    def verify(batch: Any, noise: Any) -> torch.Tensor:
        assert torch.equal(batch.positions, asked[-5][1])
        noises.add(id(noise))
        emitted.append(pair.verify(batch, noise))
        return emitted[-1]

    sampler = rejection_sampler(verify, propose=propose)
    PairLoop(sampler.capabilities, 1, "cpu", 0).run(sampler)  # type: ignore[arg-type]  # it has a drafter

    assert [step for step, _ in asked] == [0, 1, 2, 3, 4] * NUM_STEPS
    for number in range(NUM_STEPS - 1):
        advanced = asked[5 * (number + 1)][1] - asked[5 * number][1]
        assert torch.equal(advanced, (emitted[number] >= 0).sum(dim=1))
    assert len(noises) == 1


def answering(change: Callable[[Drafted], object]) -> FunctionSampler:
    pair = Pair()
    return rejection_sampler(pair.verify, propose=lambda step, noise: change(pair.propose(step, noise)))  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda found: found.token_ids, "returned Tensor, but it must return a Drafted"),
        (lambda found: Drafted(found.token_ids[1:], None), "token_ids of shape [10], but it must be [11]"),
        (lambda found: Drafted(found.token_ids + 99, None), "ids outside the vocabulary"),
        (lambda found: Drafted(found.token_ids, found.draft_probs * 2), "draft_probs that are no distributions"),
    ],
    ids=["no Drafted", "too few", "outside", "sums to 2"],
)
def test_answer_that_is_no_draft_is_an_error_of_the_adapter(change: Callable[[Drafted], object], words: str) -> None:
    session = Session(profile=Profile("few", 2, 2, 1000, 1000), crash_folder=None)
    record = run_check(OWN["DIST801"], answering(change), session)
    assert record.status == "error"
    assert words in str(report_of(record))
