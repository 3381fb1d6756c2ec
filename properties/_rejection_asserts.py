"""What the checks share: run a case, run the specification, compare, and report a failure."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from fairdraw import contracts
from fairdraw._core import checks
from fairdraw._core.array_types import Outputs, Rows32
from fairdraw._core.failures import AdapterError, CheckFailure
from fairdraw._oracles.rejection import DividingOracle, draw_noise
from fairdraw._oracles.rejection import verify as oracle_verify
from fairdraw.contracts import ExplicitNoise, Noise, RaceNoise, RejectionSampler, SeededNoise, SpecDecodeBatch
from fairdraw.contracts._rejection import Emission, emit
from fairdraw.properties._rejection_settled import covered_requests, overflows
from fairdraw.strategies import RejectionCase
from fairdraw.strategies.rows import bulk_rng

check = partial(checks.check, contract="rejection")
differential = partial(checks.differential, contract="rejection")

ORACLE = contracts.rejection_sampler(oracle_verify, name="oracle")
DIVIDING = contracts.rejection_sampler(DividingOracle().verify, name="oracle that divides")


def broken(effect: str) -> NoReturn:
    """Fail the check; `effect` says what was seen, and where."""
    raise CheckFailure(effect)


def emit_case(sampler: RejectionSampler, case: RejectionCase) -> tuple[SpecDecodeBatch, Any, Emission]:  # Any: noise
    """Build the case on the sampler's device and run it once."""
    batch, noise = case.batch(sampler.device), case.noise(sampler.device)
    return batch, noise, emit(sampler, batch, noise)


def is_improbable(count: int, draws: int, prob: float) -> bool:
    """Whether so many of independent draws, or as few, come less often than once in 3e10 times.

    By Chernoff's bound: `exp(-draws * KL(count / draws, prob))` on each side.
    """
    seen = count / draws
    parts = ((seen, prob), (1 - seen, 1 - prob))
    return bool(draws * sum(p * np.log(p / q) for p, q in parts if p > 0) > 25)


def works_or_refuses(sampler: RejectionSampler, batch: SpecDecodeBatch, noise: Noise, argument: str) -> Emission | None:
    """Return the emission, or `None` if the call was refused by a message that names the argument or a strided one."""
    strided = [name for name, tensor in batch.tensors().items() if not tensor.is_contiguous()]
    names, what = (argument, *strided), f"{argument}, without naming it"
    return unless_refused(lambda: emit(sampler, batch, noise), names, what)


_Found = TypeVar("_Found")


def unless_refused(run: Callable[[], _Found], names: Sequence[str], what: str) -> _Found | None:
    """Return what a call on strided tensors gives, or `None` if its message has one of these names."""
    try:
        return run()
    except (AdapterError, CheckFailure):
        raise
    except Exception as refusal:
        if any(name in str(refusal) for name in names):
            return None
        broken(f"{type(refusal).__name__}({refusal}) for strided {what}")


def pick(case: Any, choices: Sequence[int]) -> int:  # Any: a case of either contract
    """One of `choices`, by the case's seed."""
    return choices[int(bulk_rng("pick", case.seed).integers(len(choices)))]


def same_rows(expected: Outputs, seen: Outputs, why: str) -> None:
    """Two outputs agree, row by row, placeholders included."""
    differing = np.flatnonzero((expected != seen).any(axis=1))
    if differing.size:
        row = int(differing[0])
        broken(
            f"{why}: row {row} is {seen[row].tolist()} instead of {expected[row].tolist()} "
            f"({differing.size} of {len(seen)} rows differ)"
        )


_Numbers = TypeVar("_Numbers", bound="ExplicitNoise | SeededNoise | RaceNoise")


def fresh(noise: _Numbers) -> _Numbers:
    """The same noise; generators start at their seeds."""
    return dataclasses.replace(noise)


def covered(sampler: RejectionSampler, batch: SpecDecodeBatch, noise: Noise) -> list[int]:
    """Requests whose tokens follow from the noise by what the sampler supports (`covered_requests`)."""
    if isinstance(noise, SeededNoise):
        with torch.random.fork_rng(devices=[batch.device] if batch.device.type == "cuda" else []):
            torch.manual_seed(noise.seed)
            noise = draw_noise(batch, SeededNoise(noise.seed, dict(noise.request_seeds)))
    return covered_requests(sampler, batch, noise)


def equals_the_oracle(sampler: RejectionSampler, case: RejectionCase) -> None:
    """Every request of the case has the oracle's tokens, as far as the sampler specifies them."""
    equals_the_oracle_on(sampler, case.batch(sampler.device), case.noise(sampler.device))


def equals_the_oracle_on(sampler: RejectionSampler, batch: SpecDecodeBatch, noise: Noise) -> None:
    """`equals_the_oracle` for a batch and noise that are already on the sampler's device."""
    seen = emit(sampler, batch.clone(), fresh(noise)).tokens
    expected, rows = disagreement(sampler, batch, noise, seen)
    same_rows(expected[rows], seen[rows], "the oracle disagrees")


def disagreement(
    sampler: RejectionSampler, batch: SpecDecodeBatch, noise: Noise, seen: Outputs
) -> tuple[NDArray[np.int32], list[int]]:
    """Return the oracle's tokens, and the requests whose tokens are others, though the sampler specifies them.

    A race may divide or multiply by a reciprocal. A sampler that supports `upstream-stream` multiplies, as vLLM does,
    where torch's generators can tell the two apart.
    """
    expected = emit(ORACLE, batch.clone(), fresh(noise)).tokens
    differing = (expected != seen).any(axis=1)
    if not differing.any():
        return expected, []
    free = np.full(batch.batch_size, contracts.Capability.UPSTREAM_STREAM not in sampler.capabilities)
    if isinstance(noise, ExplicitNoise):
        free |= [overflows(row) for row in noise.exponentials.cpu().numpy()]
    right = free & (emit(DIVIDING, batch, fresh(noise)).tokens == seen).all(axis=1)
    return expected, [i for i in covered(sampler, batch, noise) if differing[i] and not right[i]]


def is_left_to(sampler: RejectionSampler, seen: Sequence[int], drafts: Sequence[int]) -> bool:
    """Whether these tokens are accepted drafts, cut off by a sampler that may accept fewer than token verification."""
    may_stop = contracts.Capability.TOKEN_VERIFICATION not in sampler.capabilities
    return may_stop and 0 < len(seen) <= len(drafts) and list(seen) == list(drafts[: len(seen)])


@dataclass(frozen=True)
class Answer:
    """One request and what was emitted for it."""

    batch: SpecDecodeBatch
    request: int
    drafts: list[int]
    bonus_token_id: int
    is_greedy: bool
    first_row: int
    tokens: list[int]

    def forbid(self, holds: bool, what: str) -> None:
        """Fail the check if `holds`; the message is this answer, then `what`."""
        if holds:
            broken(f"{self}{what}")

    @property
    def target_logits(self) -> Rows32:  # [num_draft_tokens, vocab_size] float32
        """Return the target logits of its drafts."""
        return self.batch.target_logits[self.batch.token_slice(self.request)].float().cpu().numpy()

    @property
    def leaves_vocabulary(self) -> bool:
        return not all(0 <= token < self.batch.vocab_size for token in self.tokens)

    @property
    def num_accepted(self) -> int:
        """Tokens before the last one; -1 if nothing was emitted."""
        return len(self.tokens) - 1

    @property
    def is_fully_accepted(self) -> bool:
        return self.num_accepted == len(self.drafts)

    @property
    def is_cut_short(self) -> bool:
        """A draft was rejected, so that the last token is a recovered one."""
        return 0 <= self.num_accepted < len(self.drafts)

    def is_masked(self, position: int) -> bool:
        """Whether the token there has logit -inf. An id outside the vocabulary has no logit; REJ101 names it."""
        token, logits = self.tokens[position], self.batch.target_logits
        return 0 <= token < self.batch.vocab_size and float(logits[self.first_row + position, token]) == -np.inf

    def __str__(self) -> str:
        return f"request {self.request} (drafts {self.drafts}) emitted {self.tokens}"


def answers(batch: SpecDecodeBatch, emission: Emission) -> list[Answer]:
    """What each request was given and what it got."""
    drafts, bonus, greedy = batch.draft_token_ids.tolist(), batch.bonus_token_ids.tolist(), batch.is_greedy.tolist()
    return [
        Answer(batch, i, drafts[rows], bonus[i][0], greedy[i], rows.start, emission.emitted(i))
        for i, rows in enumerate(map(batch.token_slice, range(batch.batch_size)))
    ]


def emitted(sampler: RejectionSampler, case: RejectionCase) -> list[Answer]:
    """Run the case once: what each request was given and what it got."""
    batch, _, emission = emit_case(sampler, case)
    return answers(batch, emission)


def argmax_decoding(answer: Answer) -> list[int]:
    """What decoding token by token would have emitted; `np.argmax` takes the lowest id on ties."""
    emitted: list[int] = []
    for draft, row in zip(answer.drafts, answer.target_logits, strict=True):
        emitted.append(int(np.argmax(row)))
        if emitted[-1] != draft:
            return emitted
    return [*emitted, answer.bonus_token_id]


def decodes_argmax(sampler: RejectionSampler, answer: Answer) -> bool:
    """Whether the answer is argmax decoding, with the ties and the early ends that the sampler leaves open."""
    tokens, drafts, last = answer.tokens, answer.drafts, answer.num_accepted
    if not 0 <= last <= len(drafts) or tokens[:last] != drafts[:last]:
        return False
    if not all(token in _argmaxes(sampler, row) for token, row in zip(tokens, answer.target_logits, strict=False)):
        return False
    if answer.is_fully_accepted:
        return tokens[-1] == answer.bonus_token_id
    return tokens[-1] != drafts[last] or is_left_to(sampler, tokens, drafts)


def _argmaxes(sampler: RejectionSampler, row: NDArray[np.float32]) -> list[int]:  # [vocab_size] float32
    if contracts.Capability.LOWEST_ID_TIES in sampler.capabilities or np.isnan(row).any():
        return [int(np.argmax(row))]
    return [int(token) for token in np.flatnonzero(row == row.max())]


def probabilities(batch: SpecDecodeBatch) -> tuple[Rows32, Rows32]:
    """Target and draft distributions; a one-hot draft has all of its mass on the drafted token."""
    target_probs = batch.target_probs().cpu().numpy()
    if batch.draft_probs is not None:
        return target_probs, batch.draft_probs.cpu().numpy()
    draft_probs = np.zeros_like(target_probs)
    for row, token in enumerate(batch.draft_token_ids.tolist()):
        if token != contracts.PLACEHOLDER_TOKEN_ID:
            draft_probs[row, token] = 1
    return target_probs, draft_probs
