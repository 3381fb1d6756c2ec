"""The decoding loop end to end: correct samplers pass, and each fault shows in the tables made for it."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

import pytest
import torch

from fairdraw import adapters
from fairdraw._core.seeds import derive_seed
from fairdraw._mutants.distributions import DISTRIBUTION_MUTANTS
from fairdraw._oracles.rejection import RejectionOracle, draw_noise
from fairdraw._run.runner import one_torch_thread
from fairdraw.protocols import ExplicitNoise, rejection_sampler
from fairdraw.statistical._count_tables import Counts, sum_counts
from fairdraw.statistical._decision import Decision, Verdict, decide, weigh
from fairdraw.statistical._decode import decode
from fairdraw.statistical._decode_check import DecodeScenario, decode_scenarios
from fairdraw.statistical._design import SamplePlan, plan_tables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

    from fairdraw._oracles.rejection import DraftStep
    from fairdraw.protocols import Noise, RejectionSampler, SpecDecodeBatch

FALSE_FAIL_RATE = 1e-6
TEXT, PARAMETERS, N_GRAM, SEQUENCES = decode_scenarios(2, 2)
MUTANTS = {mutant.name: mutant for mutant in DISTRIBUTION_MUTANTS}


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """Tensors are small: threads would only wait for each other."""
    with one_torch_thread():
        yield


@pytest.fixture(scope="module")
def scenarios() -> dict[str, DecodeScenario]:
    return decode_scenarios(1024, 2048)


def counts_of(sampler: RejectionSampler, scenario: DecodeScenario, num_decodings: int) -> Iterator[Counts]:
    """The counts of one decoding after the other."""
    for number in range(num_decodings):
        yield scenario.count(decode(sampler, scenario.setup, derive_seed("decoding", 0, number)))


def decided(sampler: RejectionSampler, scenario: DecodeScenario, num_decodings: int = 4) -> Decision:
    """All tables of a scenario, judged together."""
    tables = scenario.tables(1)
    plans = plan_tables(tables, num_decodings, FALSE_FAIL_RATE)
    return decide(tables, plans, counts_of(sampler, scenario, num_decodings), FALSE_FAIL_RATE)


def shown(sampler: RejectionSampler, scenario: DecodeScenario, num_decodings: int = 4) -> set[str]:
    """The tables of which each alone would fail the sampler."""
    tables, counts = scenario.tables(num_decodings), sum_counts(counts_of(sampler, scenario, num_decodings))
    plans = plan_tables(tables, 1, FALSE_FAIL_RATE)
    evidence = (
        weigh(name, counts[name], plan, tables[name]) for name, plan in plans.items() if isinstance(plan, SamplePlan)
    )
    return {table.name for table in evidence if table.log_e_value > -math.log(FALSE_FAIL_RATE)}


# Correct samplers.


@pytest.mark.parametrize("scenario", [TEXT, PARAMETERS, N_GRAM, SEQUENCES])
@pytest.mark.parametrize(
    ("name", "unsupported"),
    [("rejection/torch", {}), ("rejection/torch", {"seeded-noise": "takes numbers"}), ("rejection/oracle", {})],
    ids=["torch on seeds", "torch on given noise", "oracle"],
)
def test_correct_sampler_decodes_like_its_target(
    scenarios: dict[str, DecodeScenario], scenario: str, name: str, unsupported: dict[str, str]
) -> None:
    sampler = rejection_sampler(adapters.load(name, "cpu").verify, unsupported=unsupported)
    assert decided(sampler, scenarios[scenario], 1 if name == "rejection/oracle" else 6).verdict is Verdict.PASS


class PlainDecoding(RejectionOracle):
    """Draws one token from the target and ignores the drafts."""

    def random_request(self, steps: list[DraftStep], bonus_token_id: int) -> list[int]:
        return [self.race(steps[0].target_probs, steps[0].exponentials)] if steps else [bonus_token_id]


@pytest.mark.parametrize("scenario", [TEXT, SEQUENCES])
def test_plain_decoding_differs_in_accepted_drafts_alone(scenarios: dict[str, DecodeScenario], scenario: str) -> None:
    """Decoding without drafts defines the null, so every distribution of tokens must hold for it."""
    assert shown(rejection_sampler(PlainDecoding().verify), scenarios[scenario]) == {"accepted drafts"}


# Mutants.


@pytest.mark.parametrize(
    ("name", "scenario", "table"),
    [
        ("recovers from the target", TEXT, "next token by rank"),
        ("recovers from the target", PARAMETERS, "next token by id"),
        ("recovers from the target", SEQUENCES, "first tokens at temperature 1.25"),
        ("recovers the rejected draft", N_GRAM, "next token by id"),
        ("bonus from the position before", TEXT, "next token by rank"),
        ("bonus from the position before", SEQUENCES, "next token by id"),
        ("applies the temperature again", PARAMETERS, "next token by rank"),
        ("one noise row for the batch", SEQUENCES, "first tokens at temperature 1.25"),
    ],
)
def test_mutant_shows_in_the_table_made_for_it(
    scenarios: dict[str, DecodeScenario], name: str, scenario: str, table: str
) -> None:
    assert table in shown(MUTANTS[name].make(), scenarios[scenario])


def test_ignored_draft_probabilities_show_in_acceptance_alone(scenarios: dict[str, DecodeScenario]) -> None:
    """They cost speed and nothing else: the text is the target's own."""
    assert shown(MUTANTS["ignores the draft distribution"].make(), scenarios[SEQUENCES]) == {"accepted drafts"}


def test_one_uniform_per_request_is_caught(scenarios: dict[str, DecodeScenario]) -> None:
    assert shown(MUTANTS["one uniform per request"].make(), scenarios[SEQUENCES], num_decodings=12)


class AcceptsAsIfOneHot(RejectionOracle):
    """The residual uses the draft probabilities, and the acceptance test does not."""

    def accepts(self, step: DraftStep) -> bool:
        return super().accepts(dataclasses.replace(step, draft_probs=None))


def test_draft_probabilities_forgotten_in_acceptance_are_caught(scenarios: dict[str, DecodeScenario]) -> None:
    found = shown(rejection_sampler(AcceptsAsIfOneHot().verify), scenarios[TEXT])
    assert {"next token by rank", "accepted drafts"} <= found


def test_cut_off_rare_tokens_show_by_rank_alone(scenarios: dict[str, DecodeScenario]) -> None:
    def cut(batch: SpecDecodeBatch, noise: ExplicitNoise) -> tuple[SpecDecodeBatch, ExplicitNoise]:
        logits = batch.target_logits.masked_fill(batch.target_probs() < 0.002, -torch.inf)
        return batch.replace(target_logits=logits), noise

    found = shown(faulty(cut), scenarios[TEXT], num_decodings=8)
    assert "next token by rank" in found
    assert "next token by id" not in found


def test_noise_shared_by_neighbours_shows_in_their_table_alone(scenarios: dict[str, DecodeScenario]) -> None:
    def share(batch: SpecDecodeBatch, noise: ExplicitNoise) -> tuple[SpecDecodeBatch, ExplicitNoise]:
        counts = torch.tensor(batch.num_draft_tokens)
        owners = torch.repeat_interleave(torch.arange(batch.batch_size), counts)
        starts, even = (batch.cu_num_draft_tokens - counts).long(), torch.arange(batch.batch_size) // 2 * 2
        places = torch.arange(batch.num_tokens) - starts[owners]
        rows = (starts[even[owners]] + places).clamp(max=batch.num_tokens - 1)
        return batch, ExplicitNoise(noise.uniforms[rows], noise.exponentials[even])

    assert shown(faulty(share), scenarios[SEQUENCES]) == {"first tokens of neighbours at temperatures 0.8 and 1.25"}


def faulty(
    change: Callable[[SpecDecodeBatch, ExplicitNoise], tuple[SpecDecodeBatch, ExplicitNoise]],
) -> RejectionSampler:
    """The torch sampler, which gets something else than it was given."""
    verify = adapters.load("rejection/torch", "cpu").verify

    def verify_changed(batch: SpecDecodeBatch, noise: Noise) -> Tensor:  # [batch_size, max_spec_len + 1] int32
        explicit = noise if isinstance(noise, ExplicitNoise) else draw_noise(batch, noise)
        return verify(*change(batch, explicit))

    return rejection_sampler(verify_changed, name="faulty")


@pytest.mark.parametrize("last", ["outside the vocabulary", "after a placeholder", "nothing at all"])
def test_malformed_output_is_caught(scenarios: dict[str, DecodeScenario], last: str) -> None:
    """A request that cannot go on ends, and its missing tokens count as impossible ones."""
    verify = adapters.load("rejection/torch", "cpu").verify

    def malformed(batch: SpecDecodeBatch, noise: Noise) -> Tensor:  # [batch_size, max_spec_len + 1] int32
        output = verify(batch, noise)
        if last == "outside the vocabulary":
            output[0, 0] = batch.vocab_size
        else:
            output[0] = -1
            output[0, -1] = 0 if last == "after a placeholder" else -1
        return output

    decision = decided(rejection_sampler(malformed), scenarios[SEQUENCES])
    assert decision.reason.startswith("impossible observations")
    assert decision.num_checkpoints == 1
