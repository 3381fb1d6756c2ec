"""A missing capability never hides a wrong distribution: every check needs what it tests, and nothing else."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from helpers import CHECKS
from torch import Tensor

from fairdraw._core.checks import PROFILES, AnyCheck, Profile
from fairdraw._core.contracts import CONTRACTS, load_part
from fairdraw._core.seeds import DEFAULT_SEED
from fairdraw._mutants._distribution_sampler import DistributionSampler
from fairdraw._mutants._lifecycle_scanners import Copy, PenaltiesFollower, Scanner, ThinkingFollower
from fairdraw._mutants._toy_server import Stream, ToyServer
from fairdraw._mutants.logprobs import Drawing
from fairdraw._mutants.matchers import maker_of
from fairdraw._mutants.sampling_distributions import DistributionTokenSampler
from fairdraw._oracles.logits_plan import LogitsPlanOracle
from fairdraw._oracles.logprobs import LogprobsOracle
from fairdraw._oracles.matchers import MatcherOracle
from fairdraw._run.capability_words import glossary
from fairdraw._run.controls import sees
from fairdraw._run.loading import all_checks
from fairdraw.contracts import (
    AnySampler,
    Capabilities,
    Capability,
    GenerationRequest,
    LogitsBatch,
    MaskRows,
    Noise,
    PlanSetup,
    RaceNoise,
    SamplingBatch,
    SamplingNoise,
    SeededNoise,
    SpecDecodeBatch,
    grammar_masker,
    logits_filterer,
    logits_planner,
    logprobs_sampler,
    masked_sampler,
    rejection_sampler,
    token_sampler,
)

SMOKE = PROFILES["smoke"]

UNJUDGED = {
    ("logprobs", Capability.DRAWN_TOKENS): "a function that is given its tokens draws none",
    ("filters", Capability.XTC): "no other filter tosses a coin",
    ("server", Capability.TOP_LOGPROBS): "tokens without log-probabilities claim no distribution",
}
"""Contract and capability to the reason why no distribution can be tested without it."""

LEAST = {"rejection": ("DIST321", "DIST322", "DIST691"), "sampling": ("DIST701", "DIST761", "DIST791")}
"""Checks of distributions that are run whatever a sampler lacks."""


# Samplers that are sound, and look at neither probabilities nor history.


class UniformSampler(DistributionSampler):
    """Accepts half of the drafts that may be rejected, and recovers uniformly among what the residual leaves."""

    def acceptance(self, target: Any, draft: Any) -> Any:
        return np.where(target >= draft, 2.0, np.where(target > 0, 0.5, 0.0))

    def residual(self, target: Any, draft: Any) -> Any:
        left = target > draft
        return np.where(left.any(axis=1, keepdims=True), left, target > 0).astype(np.float32)


class UniformTokenSampler(DistributionTokenSampler):
    """Uniform over the support that temperature and filters leave; greedy requests get their largest logit."""

    def distribution(self, batch: SamplingBatch) -> Any:
        greedy = batch.is_greedy.numpy()
        warm = batch.replace(temperature=batch.temperature.masked_fill(batch.is_greedy, 1.0))
        kept = super().distribution(warm) >= 2.0**-149  # what a float32 softmax can tell from 0
        kept[greedy] = np.eye(batch.vocab_size, dtype=bool)[batch.logits.float().numpy()[greedy].argmax(axis=1)]
        return kept / kept.sum(axis=1, keepdims=True)

    def drawn(self, batch: SamplingBatch, noise: SamplingNoise) -> Any:
        return noise.exponentials.double().numpy() if isinstance(noise, RaceNoise) else self.draw(batch, noise)


class ForgetfulPenalties(PenaltiesFollower):
    """No output has any token."""

    def tokens(self, copy: Copy) -> list[int]:
        return []


class ForgetfulThinking(ThinkingFollower):
    """No output has any token."""

    def tokens(self, copy: Copy) -> list[int]:
        return []


def forgetful(batch: LogitsBatch, setup: PlanSetup) -> Tensor:  # [num_rows, vocab_size] float32
    """Every request stands at its beginning."""
    requests = (dataclasses.replace(request, output_token_ids=[]) for request in batch.requests)
    return LogitsPlanOracle().process(batch.replace(requests=tuple(requests)), setup)


class UniformLogprobs(LogprobsOracle):
    """Every token is as probable as any other."""

    def log_softmax(self, logits: Any) -> Any:
        return np.full(logits.shape, -np.log(logits.shape[1]))


class UniformDrawing(Drawing):
    """Says that everything possible is equally probable, whatever it drew from."""

    def returned(self, batch: SamplingBatch, distribution: Any) -> Any:
        return (distribution > 0) / (distribution > 0).sum(axis=1, keepdims=True)

    def drawn(self, batch: SamplingBatch, noise: SamplingNoise) -> Any:
        return noise.exponentials.double().numpy() if isinstance(noise, RaceNoise) else self.draw(batch, noise)


class AllowsEverything(MatcherOracle):
    """Every token may follow, and ends nothing."""

    def followers(self) -> list[int]:
        return list(range(len(self.grammar.vocabulary)))


def without_masks(batch: SamplingBatch, noise: SamplingNoise, into: MaskRows) -> Tensor:  # [batch_size] int64
    """Writes no mask."""
    return UniformTokenSampler().sample(batch, noise)


class UniformServer(ToyServer):
    """Every token is as probable as any other, whatever the lists say."""

    def drawn(self, logits: Any, request: GenerationRequest, stream: Stream) -> int:  # Any: an array of float64
        return int(stream.rng.random() * len(logits))


def ignorant(contract: str) -> AnySampler:
    """A sampler under `contract` that supports everything and ignores what matters."""
    made: dict[str, Callable[[], AnySampler]] = {
        "rejection": lambda: rejection_sampler(UniformSampler().verify, name="uniform"),
        "sampling": lambda: token_sampler(UniformTokenSampler().sample, drafting=UniformTokenSampler().draft),
        "logits_plan": lambda: logits_planner(forgetful),
        "penalties": lambda: Scanner("forgetful", ForgetfulPenalties, "penalties"),
        "thinking_budget": lambda: Scanner("forgetful", ForgetfulThinking, "thinking_budget"),
        "logprobs": lambda: logprobs_sampler(UniformLogprobs().logprobs, drawing=UniformDrawing().answer),
        "grammar": lambda: grammar_masker(lambda batch: batch.logits, drafts=lambda batch: batch.logits, name="idle"),
        "matchers": lambda: maker_of(AllowsEverything),
        "masks": lambda: masked_sampler(without_masks),
        "filters": lambda: logits_filterer(lambda batch, noise: batch.logits, name="idle"),
        "server": UniformServer,
    }
    return made[contract]()


class Lacking:
    """The sampler, without one capability."""

    def __init__(self, sampler: Any, *capabilities: Capability) -> None:
        self._sampler, unsupported = sampler, dict.fromkeys(capabilities, "for the test")
        self.capabilities = Capabilities({**sampler.capabilities.unsupported, **unsupported})

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sampler, name)


def fails(check: AnyCheck, sampler: Any, profile: Profile = SMOKE) -> bool:
    """Whether the sampler fails `check` in a run of `profile`."""
    return sees(check, sampler, profile, DEFAULT_SEED)[0]


def asked_of(sampler: object, suite: str, contract: str) -> list[AnyCheck]:
    return [check for check in all_checks(suite, contract) if check.why_not(sampler) is None]


class Consulted(Mapping[Capability, str]):
    """No capability is unsupported; keeps those that were asked for."""

    def __init__(self) -> None:
        self.asked: set[Capability] = set()

    def __getitem__(self, capability: Capability) -> str:
        self.asked.add(capability)
        raise KeyError(capability)

    def __iter__(self) -> Iterator[Capability]:
        self.asked.update(Capability)
        return iter(())

    def __len__(self) -> int:
        return len(list(self))


def require_red(sampler: Any, contract: str, *lacking: Capability) -> None:
    """If no distribution could be tested, a property must fail, and the verdict must say so."""
    of_distributions = asked_of(sampler, "statistical", contract)
    unjudged = any((contract, one) in UNJUDGED for one in lacking)
    assert bool(of_distributions) == bool(all_checks("statistical", contract)) or unjudged, lacking
    checks = of_distributions or asked_of(sampler, "properties", contract)
    assert any(fails(check, sampler) for check in checks), lacking


@pytest.mark.parametrize("contract", CONTRACTS)
def test_sampler_that_ignores_what_matters_is_red_whatever_it_lacks(contract: str) -> None:
    """With `smoke`, the smallest profile. A capability that nobody asks for changes nothing."""
    complete, consulted = Lacking(ignorant(contract)), Consulted()
    object.__setattr__(complete.capabilities, "unsupported", consulted)
    require_red(complete, contract)
    for check in all_checks(contract=contract):
        check.why_not(complete)
    assert consulted.asked < set(Capability)
    for capability in consulted.asked:
        require_red(Lacking(ignorant(contract), capability), contract, capability)


@pytest.mark.parametrize("contract", LEAST)
def test_distributions_are_judged_whatever_a_sampler_lacks(contract: str) -> None:
    lost = {code for word in glossary().values() for code in word.skipped.get(contract, ())}
    assert lost.isdisjoint(LEAST[contract])
    assert contract not in {name for name, _ in UNJUDGED}


def test_plain_softmax_needs_nothing() -> None:
    assert CHECKS["DIST701"].needed == ()


def test_sampler_that_lacks_nearly_everything_is_judged_too() -> None:
    """One kind of drafts is all that is left; the seed may be ignored."""
    for contract, kept in (("rejection", Capability.ONE_HOT_DRAFTS), ("sampling", None)):
        sampler = Lacking(ignorant(contract), *(one for one in Capability if one is not kept))
        assert any(fails(check, sampler) for check in asked_of(sampler, "statistical", contract)), contract


# Correct samplers stay right: cases go without what is not supported.

NARROWED = (
    ("REJ108", Capability.ONE_HOT_DRAFTS),
    ("REJ310", Capability.RAGGED), ("REJ701", Capability.RAGGED), ("REJ701", Capability.PLACEHOLDER_DRAFTS),
    ("SAM102", Capability.TOP_K), ("SAM102", Capability.TOP_P), ("SAM102", Capability.MIN_P),
    ("PLAN114", Capability.NAN_LOGITS), ("PLAN114", Capability.EMPTY_ROWS),
)  # fmt: skip


def _fills_empty_rows(batch: LogitsBatch, setup: PlanSetup) -> Tensor:  # [num_rows, vocab_size] float32
    is_empty = torch.isneginf(batch.logits).all(dim=-1, keepdim=True)
    return LogitsPlanOracle().process(batch.replace(logits=batch.logits.masked_fill(is_empty, 0.0)), setup)


FAULTS: dict[tuple[str, Capability], AnySampler] = {
    ("PLAN114", Capability.NAN_LOGITS): logits_planner(_fills_empty_rows)
}
"""Where the mutants of a check show in what is left out only: others."""


@pytest.mark.parametrize(("code", "capability"), NARROWED)
def test_property_runs_without_what_it_can_go_without(code: str, capability: Capability) -> None:
    """The correct sampler refuses what it says it does not support, passes, and each of them is seen failing."""
    check = CHECKS[code]
    contract = CONTRACTS[check.contract]
    right = Refusing(load_part(contract.right)(), capability)
    assert check.why_not(right) is None
    assert check.run(right, profile=SMOKE.scaled(0.1), seed=DEFAULT_SEED) > 0
    named, mutants = FAULTS.get((code, capability)), load_part(contract.mutants[0])
    wrong = [named] if named else [mutant.make() for mutant in mutants if code in mutant.caught_by]
    profiles = (SMOKE,) if check.plays_traces else (SMOKE, PROFILES["ci"])  # as a mutation control, at most
    assert any(fails(check, Lacking(sampler, capability), profile) for profile in profiles for sampler in wrong)


class Refusing(Lacking):
    """Without a capability, and it fails if a check uses that."""

    def verify(self, batch: SpecDecodeBatch, noise: Noise) -> Tensor:  # [batch_size, max_spec_len + 1] int32
        lengths = {*batch.num_draft_tokens, batch.max_spec_len}
        has_drafts = batch.num_tokens > 0
        self._refuse(
            {
                Capability.RAGGED: len(lengths) > 1,
                Capability.ONE_HOT_DRAFTS: has_drafts and batch.draft_probs is None,
                Capability.PLACEHOLDER_DRAFTS: bool((batch.draft_token_ids < 0).any()),
                **_invalid(batch.target_logits),
            }
        )
        return self._sampler.verify(batch, noise)

    def sample(self, batch: SamplingBatch, noise: SamplingNoise) -> Tensor:  # [batch_size] int64
        self._refuse(
            {
                Capability.EXPLICIT_NOISE: isinstance(noise, RaceNoise),
                Capability.SEEDED_NOISE: isinstance(noise, SeededNoise),
                Capability.TOP_K: batch.top_k is not None,
                Capability.TOP_P: batch.top_p is not None,
                Capability.MIN_P: batch.min_p is not None,
            }
        )
        return self._sampler.sample(batch, noise)

    def open_plan(self, setup: PlanSetup) -> Any:
        return _RefusingSession(self, self._sampler.open_plan(setup))

    def _refuse(self, used: dict[Capability, bool]) -> None:
        wanted = [one for one, is_used in used.items() if is_used and one not in self.capabilities]
        assert not wanted, f"needs {wanted}"


@dataclasses.dataclass
class _RefusingSession:
    owner: Refusing
    session: Any

    def process(self, batch: LogitsBatch) -> Tensor:  # [num_rows, vocab_size] float32
        self.owner._refuse(_invalid(batch.logits))
        return self.session.process(batch)


def _invalid(logits: Tensor) -> dict[Capability, bool]:  # [num_rows, vocab_size] any
    nan = torch.isnan(logits).any(dim=-1)
    return {
        Capability.NAN_LOGITS: bool(nan.any()),
        Capability.EMPTY_ROWS: bool((torch.isneginf(logits).all(dim=-1) & ~nan).any()),
    }


# What people read.


def test_one_of_a_group_is_enough() -> None:
    check = CHECKS["SAM186"]
    for capability in (Capability.TOP_K, Capability.TOP_P, Capability.MIN_P):
        assert check.missing(Capabilities({capability: "no such filter"})) is None
    lacking = Capabilities(dict.fromkeys((Capability.TOP_K, Capability.TOP_P, Capability.MIN_P), "never"))
    assert check.missing(lacking) == "top-k and top-p and min-p are unsupported: never"


def test_uniform_samplers_are_sound() -> None:
    """What is red here is red for its distribution: every property of structure holds."""
    for code in ("REJ101", "REJ102", "REJ103", "REJ104", "REJ105", "REJ106", "REJ107", "REJ108"):
        assert not fails(CHECKS[code], ignorant("rejection")), code
    for code in ("SAM101", "SAM102", "SAM121"):
        assert not fails(CHECKS[code], ignorant("sampling")), code
