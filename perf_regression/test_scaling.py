"""How time grows: not at all with the length of outputs, and with the vocabulary no faster than in proportion."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fairdraw.perf_regression import _scanner_arms as arms
from fairdraw.perf_regression._scanner_steps import Outputs
from fairdraw.perf_regression.cases import Sizes, noise_for, rejection_batch, rejection_step
from fairdraw.perf_regression.findings import Finding, from_decision
from fairdraw.perf_regression.limits import read_limits
from fairdraw.perf_regression.named import load
from fairdraw.perf_regression.rounds import Rounds, thread_clock
from fairdraw.perf_regression.scaling import decide_exponent

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Note = Callable[[list[Finding]], None]
    Step = Callable[[], object]

pytestmark = pytest.mark.timing
NUM_ROUNDS = 40
ALPHA = 0.01 / 3
"""One-sided, for each of three exponents: 1 % for the run."""
BATCH_SIZE = 64
SHORT, LONG = 1_000, 16_000
SMALL_VOCAB, LARGE_VOCAB = 8_000, 64_000


def judged(name: str, what: str, steps: Mapping[int, Step], advance: Step | None = None) -> Finding:
    """Exponent over two sizes, in rounds of both."""
    limit = read_limits().cases[name].time_exponent_max
    assert limit is not None
    named = {str(size): step for size, step in steps.items()}
    rounds = Rounds(named, clock=thread_clock, drop_switched=False, advance=advance)
    rounds.run(NUM_ROUNDS)
    decision = decide_exponent(rounds.found, min(steps), max(steps), limit, ALPHA)
    return from_decision(name, decision, limit, what)


@pytest.mark.parametrize("scanner", ["penalties", "thinking"])
def test_time_of_a_step_does_not_grow_with_length(scanner: str, verdicts: Note) -> None:
    arms.require_upstream()
    make = {"penalties": arms.penalties_arms, "thinking": arms.thinking_arms}[scanner]
    batches = {length: Outputs(BATCH_SIZE, max_length=2 * length) for length in (SHORT, LONG)}
    for length, outputs in batches.items():
        outputs.grow(length)
    steps = {length: make(outputs)["ours"] for length, outputs in batches.items()}

    def advance() -> None:
        for outputs in batches.values():
            outputs.advance()

    verdicts([judged(f"{scanner}.step", "time exponent in length", steps, advance)])


def test_time_grows_with_the_vocabulary_no_faster_than_in_proportion(verdicts: Note) -> None:
    sampler = load("fairdraw.adapters:load")("torch", "cpu")
    steps = {}
    for vocab_size in (SMALL_VOCAB, LARGE_VOCAB):
        batch = rejection_batch(Sizes(4, 3, vocab_size))
        steps[vocab_size] = rejection_step(sampler, batch, noise_for(sampler, batch))
    with load("fairdraw.runner:one_torch_thread")():
        verdicts([judged("rejection.torch", "time exponent in vocabulary", steps)])
