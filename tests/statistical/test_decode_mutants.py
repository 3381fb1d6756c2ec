"""End to end: right samplers decode like the target model alone, mutants do not, and which table says so."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

import pytest
import torch

from fairdraw import _adapters as adapters
from fairdraw._oracles.rejection import RejectionOracle, draw_noise
from fairdraw.protocols import Capability, ExplicitNoise, rejection_sampler
from fairdraw.statistical._decision import Verdict
from fairdraw.statistical._decode_check import DecodeScenario, check_decoding, decode_scenarios

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from fairdraw._oracles.rejection import DraftStep
    from fairdraw.protocols import Noise, RejectionSampler, SpecDecodeBatch
    from fairdraw.statistical._decision import TableEvidence

FALSE_FAIL_RATE = 1e-6
TEXT, PARAMETERS, N_GRAM, SEQUENCES = decode_scenarios(2, 2)


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """Tensors are small: threads would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def scenarios() -> dict[str, DecodeScenario]:
    return decode_scenarios(1024, 2048)


# Right samplers.


@pytest.mark.parametrize("scenario", [TEXT, PARAMETERS, N_GRAM, SEQUENCES])
@pytest.mark.parametrize("noise", [Capability.SEEDED_NOISE, Capability.EXPLICIT_NOISE])
def test_torch_sampler_decodes_like_its_target(
    scenarios: dict[str, DecodeScenario], scenario: str, noise: Capability
) -> None:
    decision = check_decoding(
        adapters.load("rejection/torch", "cpu"),
        scenarios[scenario],
        num_decodings=6,
        false_fail_rate=FALSE_FAIL_RATE,
        noise=noise,
    )
    assert decision.verdict is Verdict.PASS, decision


@pytest.mark.parametrize("scenario", [TEXT, PARAMETERS, N_GRAM, SEQUENCES])
def test_oracle_decodes_like_its_target(scenarios: dict[str, DecodeScenario], scenario: str) -> None:
    decision = check_decoding(
        adapters.load("rejection/oracle", "cpu"), scenarios[scenario], num_decodings=1, false_fail_rate=FALSE_FAIL_RATE
    )
    assert decision.verdict is Verdict.PASS, decision


class PlainDecoding(RejectionOracle):
    """Draws one token from the target and looks at no draft."""

    def random_request(self, steps: list[DraftStep], bonus_token_id: int) -> list[int]:
        return [self.race(steps[0].target_probs, steps[0].exponentials)] if steps else [bonus_token_id]


@pytest.mark.parametrize("scenario", [TEXT, SEQUENCES])
def test_plain_decoding_differs_in_accepted_drafts_alone(scenarios: dict[str, DecodeScenario], scenario: str) -> None:
    """Decoding without drafts is the reference of the whole suite, so every distribution of tokens must hold for it."""
    seen = evidence_of(sampler_of(PlainDecoding().verify), scenarios[scenario])
    assert shows(seen.pop("accepted drafts"))
    assert not any(shows(table) for table in seen.values())


# Mutants.


def sampler_of(verify: Callable[[SpecDecodeBatch, Noise], Tensor]) -> RejectionSampler:
    return rejection_sampler(verify, name="faulty")


def evidence_of(
    sampler: RejectionSampler, scenario: DecodeScenario, num_decodings: int = 4
) -> dict[str, TableEvidence]:
    """The tables of a check, by name; it stops at the first decoding that shows the fault."""
    decision = check_decoding(sampler, scenario, num_decodings=num_decodings, false_fail_rate=FALSE_FAIL_RATE)
    return {table.name: table for table in decision.evidence}


def shows(table: TableEvidence) -> bool:
    """Whether this table alone would fail the sampler."""
    return table.log_e_value > -math.log(FALSE_FAIL_RATE)


class RecoversFromTheTarget(RejectionOracle):
    def residual(self, step: DraftStep) -> NDArray[np.float32]:  # [vocab_size] float32
        return step.target_probs


class RecoversAsIfOneHot(RejectionOracle):
    """The draft distribution is known to the acceptance test, and forgotten in the residual."""

    def residual(self, step: DraftStep) -> NDArray[np.float32]:  # [vocab_size] float32
        return super().residual(dataclasses.replace(step, draft_probs=None))


class AcceptsAsIfOneHot(RejectionOracle):
    """The draft distribution is known to the residual, and forgotten in the acceptance test."""

    def accepts(self, step: DraftStep) -> bool:
        return super().accepts(dataclasses.replace(step, draft_probs=None))


def faulty(
    change: Callable[[SpecDecodeBatch, ExplicitNoise], tuple[SpecDecodeBatch, ExplicitNoise]],
) -> RejectionSampler:
    """The torch sampler, handed something else than it was given."""
    verify = adapters.load("rejection/torch", "cpu").verify

    def verify_changed(batch: SpecDecodeBatch, noise: Noise) -> Tensor:  # [batch_size, max_spec_len + 1] int32
        explicit = noise if isinstance(noise, ExplicitNoise) else draw_noise(batch, noise)
        return verify(*change(batch, explicit))

    return sampler_of(verify_changed)


def owners(batch: SpecDecodeBatch) -> Tensor:  # [num_tokens] int64
    """The request of each draft token."""
    return torch.repeat_interleave(torch.arange(batch.batch_size), torch.tensor(batch.num_draft_tokens))


def bonus_from_the_wrong_row(batch: SpecDecodeBatch, noise: ExplicitNoise) -> tuple[SpecDecodeBatch, ExplicitNoise]:
    """The distribution of the last draft token serves for the bonus token, too."""
    last_rows = batch.target_probs()[(batch.cu_num_draft_tokens - 1).long()]
    drawn = (last_rows / noise.exponentials.roll(1, dims=0)).argmax(dim=-1, keepdim=True).to(torch.int32)
    has_drafts = torch.tensor(batch.num_draft_tokens)[:, None] > 0
    return batch.replace(bonus_token_ids=torch.where(has_drafts, drawn, batch.bonus_token_ids)), noise


def temperature_applied_again(batch: SpecDecodeBatch, noise: ExplicitNoise) -> tuple[SpecDecodeBatch, ExplicitNoise]:
    divisor = torch.where(batch.is_greedy, 1.0, batch.temperature)[owners(batch), None]
    return batch.replace(target_logits=batch.target_logits / divisor), noise


def draft_distribution_not_looked_at(
    batch: SpecDecodeBatch, noise: ExplicitNoise
) -> tuple[SpecDecodeBatch, ExplicitNoise]:
    return batch.replace(draft_probs=None), noise


def rare_tokens_cut_off(batch: SpecDecodeBatch, noise: ExplicitNoise) -> tuple[SpecDecodeBatch, ExplicitNoise]:
    return batch.replace(target_logits=batch.target_logits.masked_fill(batch.target_probs() < 0.002, -torch.inf)), noise


def noise_of(request: Tensor, batch: SpecDecodeBatch, noise: ExplicitNoise) -> ExplicitNoise:
    """Every request has the noise of the request named for it, as far as that has any."""
    counts = torch.tensor(batch.num_draft_tokens)
    starts = (batch.cu_num_draft_tokens - counts).long()
    places = torch.arange(batch.num_tokens) - starts[owners(batch)]
    rows = (starts[request[owners(batch)]] + places).clamp(max=batch.num_tokens - 1)
    return ExplicitNoise(noise.uniforms[rows], noise.exponentials[request])


def one_noise_row_for_all(batch: SpecDecodeBatch, noise: ExplicitNoise) -> tuple[SpecDecodeBatch, ExplicitNoise]:
    return batch, noise_of(torch.zeros(batch.batch_size, dtype=torch.int64), batch, noise)


def noise_shared_by_neighbours(batch: SpecDecodeBatch, noise: ExplicitNoise) -> tuple[SpecDecodeBatch, ExplicitNoise]:
    return batch, noise_of(torch.arange(batch.batch_size) // 2 * 2, batch, noise)


def one_uniform_per_request(batch: SpecDecodeBatch, noise: ExplicitNoise) -> tuple[SpecDecodeBatch, ExplicitNoise]:
    first = (batch.cu_num_draft_tokens - torch.tensor(batch.num_draft_tokens)).long()
    return batch, ExplicitNoise(noise.uniforms[first[owners(batch)]], noise.exponentials)


@pytest.mark.parametrize(
    ("scenario", "table"),
    [
        (TEXT, "next token by rank"),
        (PARAMETERS, "next token by rank"),
        (N_GRAM, "next token by id"),
        (SEQUENCES, "first tokens at temperature 1.25"),
    ],
)
def test_recovery_from_the_target_is_caught(scenarios: dict[str, DecodeScenario], scenario: str, table: str) -> None:
    assert shows(evidence_of(sampler_of(RecoversFromTheTarget().verify), scenarios[scenario])[table])


@pytest.mark.parametrize(("scenario", "table"), [(TEXT, "next token by rank"), (SEQUENCES, "next token by id")])
def test_bonus_from_the_wrong_row_is_caught(scenarios: dict[str, DecodeScenario], scenario: str, table: str) -> None:
    assert shows(evidence_of(faulty(bonus_from_the_wrong_row), scenarios[scenario])[table])


def test_draft_distribution_forgotten_in_recovery_is_caught(scenarios: dict[str, DecodeScenario]) -> None:
    assert shows(evidence_of(sampler_of(RecoversAsIfOneHot().verify), scenarios[TEXT])["next token by rank"])


def test_draft_distribution_forgotten_in_acceptance_is_caught(scenarios: dict[str, DecodeScenario]) -> None:
    seen = evidence_of(sampler_of(AcceptsAsIfOneHot().verify), scenarios[TEXT])
    assert shows(seen["next token by rank"])
    assert shows(seen["accepted drafts"])


def test_draft_distribution_not_looked_at_is_caught(scenarios: dict[str, DecodeScenario]) -> None:
    """It costs speed and nothing else: the text is the target's own."""
    seen = evidence_of(faulty(draft_distribution_not_looked_at), scenarios[SEQUENCES])
    assert shows(seen.pop("accepted drafts"))
    assert not any(shows(table) for table in seen.values())


def test_temperature_applied_again_is_caught(scenarios: dict[str, DecodeScenario]) -> None:
    seen = evidence_of(faulty(temperature_applied_again), scenarios[SEQUENCES])
    assert any(shows(table) for name, table in seen.items() if name.startswith("first tokens at"))


def test_rare_tokens_cut_off_is_caught(scenarios: dict[str, DecodeScenario]) -> None:
    seen = evidence_of(faulty(rare_tokens_cut_off), scenarios[TEXT], num_decodings=8)
    assert shows(seen["next token by rank"])
    assert not shows(seen["next token by id"])


@pytest.mark.parametrize("scenario", [N_GRAM, SEQUENCES])
def test_one_noise_row_for_all_requests_is_caught(scenarios: dict[str, DecodeScenario], scenario: str) -> None:
    assert any(shows(table) for table in evidence_of(faulty(one_noise_row_for_all), scenarios[scenario]).values())


def test_noise_shared_by_neighbours_is_caught(scenarios: dict[str, DecodeScenario]) -> None:
    seen = evidence_of(faulty(noise_shared_by_neighbours), scenarios[SEQUENCES])
    assert shows(seen.pop("first tokens of neighbours at temperatures 0.8 and 1.25"))
    assert not any(shows(table) for table in seen.values())


@pytest.mark.parametrize("scenario", [N_GRAM, SEQUENCES])
def test_one_uniform_per_request_is_caught(scenarios: dict[str, DecodeScenario], scenario: str) -> None:
    seen = evidence_of(faulty(one_uniform_per_request), scenarios[scenario], num_decodings=12)
    assert any(shows(table) for table in seen.values())


@pytest.mark.parametrize("last", ["outside the vocabulary", "after a placeholder", "nothing at all"])
def test_malformed_answer_is_caught(scenarios: dict[str, DecodeScenario], last: str) -> None:
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

    decision = check_decoding(
        sampler_of(malformed), scenarios[SEQUENCES], num_decodings=4, false_fail_rate=FALSE_FAIL_RATE
    )
    assert decision.verdict is Verdict.FAIL
    assert decision.reason.startswith("impossible observations")
    assert decision.evidence[0].num_samples == 2048 * 4  # the first decoding showed it
