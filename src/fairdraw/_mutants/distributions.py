"""Rejection samplers with a wrong distribution, one fault each, and trivial ones: all must be caught.

Each function stands for one step of the correct sampler, with that step's arguments. First comes `right`, the correct
steps, or `answer`, that of the correct step.
"""

from collections.abc import Mapping
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairdraw._core.seeds import derive_seed
from fairdraw._mutants._distribution_sampler import Call, DistributionSampler, Drawn, Floats, Tokens, by_inverse_cdf
from fairdraw._mutants._lanes import lane_mutants, rejecting
from fairdraw._mutants._mutant import Memory, Mutant, as_rejection, mutant_as, mutants_in, patching
from fairdraw.contracts import Capability, Noise
from fairdraw.contracts import SpecDecodeBatch as Batch

Sampler = DistributionSampler

mutant_distribution = partial(mutant_as, lambda faulty: as_rejection(faulty()))
_patched = patching(mutant_distribution, Sampler)


def _first_rows(batch: Batch) -> Tokens:  # [num_tokens] int64
    """The first row of the request of each draft."""
    counts = np.array(batch.num_draft_tokens)
    return np.repeat(np.cumsum(counts) - counts, counts)


# Noise that serves twice.


@_patched("recover", "DIST203", "DIST101")
def recovers_with_the_drafters_noise(
    right: Sampler, weights: Floats, drawn: Drawn, requests: Tokens, rows: Tokens
) -> Tokens:
    """Recovery draws with the same uniforms as the drafter (vLLM #54282)."""
    stream = np.random.default_rng(derive_seed("draft", drawn.seed)).random(drawn.uniforms.size)
    return by_inverse_cdf(weights, stream[rows].astype(np.float32))


@_patched("recover", "DIST203", "DIST213", min_draws=4_000)
def recovers_with_the_uniform_that_rejected(
    right: Sampler, weights: Floats, drawn: Drawn, requests: Tokens, rows: Tokens
) -> Tokens:
    """Saves a uniform; but given a rejection it is large."""
    return by_inverse_cdf(weights, drawn.uniforms[rows])


@_patched("draw", "DIST101", min_draws=500_000)
def one_uniform_per_request(answer: Drawn, batch: Batch, seed: int) -> Drawn:
    """Positions of a request share their uniform, so the second draft is accepted too often after the first."""
    return Drawn(answer.uniforms[_first_rows(batch)], answer.exponentials, seed)


@_patched("draw", "DIST691", min_draws=4_000)
def one_noise_row_for_the_batch(right: Sampler, batch: Batch, seed: int) -> Drawn:
    """All requests have the numbers of the first."""
    drawn, positions = right.draw(batch, seed), np.arange(batch.num_tokens) - _first_rows(batch)
    return Drawn(drawn.uniforms[positions], np.repeat(drawn.exponentials[:1], batch.batch_size, axis=0), seed)


@_patched("draw", "DIST691", min_draws=50_000)
def neighbours_share_their_exponentials(answer: Drawn, batch: Batch, seed: int) -> Drawn:
    """Exponentials are indexed by `request // 2`."""
    return Drawn(answer.uniforms, answer.exponentials[np.arange(batch.batch_size) // 2], seed)


@_patched("draw", "DIST691", min_draws=4_000)
def decisions_are_bits_of_a_word(answer: Drawn, batch: Batch, seed: int) -> Drawn:
    """A word of 32 bits: drafts behind the 32nd are always accepted."""
    places = np.arange(batch.num_tokens) - _first_rows(batch)
    return Drawn(np.where(places < 32, answer.uniforms, np.float32(0)), answer.exponentials, seed)


@_patched("draw", "DIST322", min_draws=4_000)
def calls_share_their_noise(right: Sampler, batch: Batch, seed: int, *, kept: Memory) -> Drawn:
    """Every second call finds the noise of the call before still in its buffer."""
    before: Drawn | None = kept.pop("drawn", None)
    if before is not None and before.exponentials.shape[0] == batch.batch_size:
        return before
    drawn = kept["drawn"] = right.draw(batch, seed)
    return drawn


@_patched("bonus", "REJ701", min_draws=4_000)
def bonus_with_the_drafters_noise(right: Sampler, call: Call) -> Tokens:
    """Every fourth bonus token is the last draft: the right distribution by itself, but dependent."""
    last = call.drafts[np.maximum(call.batch.cu_num_draft_tokens.numpy() - 1, 0)]
    return np.where(np.arange(last.size) % 4 == 0, last, right.bonus(call))


# The wrong distribution, or that of another row.


@_patched("residual", "DIST102", "DIST101", min_draws=4_000)
def recovers_from_the_target(right: Sampler, target: Floats, draft: Floats) -> Floats:
    """Draft probabilities are not subtracted: drafts that were accepted already come once more."""
    return target


@_patched("residual", "DIST111", "DIST112", "DIST213")
def recovers_the_rejected_draft(right: Sampler, target: Floats, draft: Floats) -> Floats:
    """Without draft probabilities, the rejected draft stays in the race."""
    return np.where(draft.max(axis=1, keepdims=True) == 1, target, right.residual(target, draft))


@_patched("recover", "DIST213", "DIST111")
def forgets_to_normalise(right: Sampler, weights: Floats, drawn: Drawn, requests: Tokens, rows: Tokens) -> Tokens:
    """Inverse CDF over the residual as it is: what is missing to 1 goes to the last token."""
    uniforms = np.exp(-drawn.exponentials[requests, :1])
    return np.asarray(np.minimum((uniforms >= np.cumsum(weights, axis=1)).sum(axis=1), weights.shape[1] - 1))


class BlockVerification(DistributionSampler):
    """Keeps the longest prefix that passes its own test, so that a late token can save an early one.

    The ratio of a prefix is `min(1, ratio before * target / draft)`, 1 for the empty one. A prefix passes with
    probability `spare / (spare + 1 - ratio)`, where `spare` is the mass of `max(ratio * target - draft, 0)` at the next
    position; the whole draft passes with its ratio. Recovery is from that excess.

    Reference:
        Sun et al. (2025), arXiv:2403.10444, algorithm 2, equations 4 and 5.
    """

    unsupported: ClassVar[dict[str, str]] = DistributionSampler.unsupported | {
        Capability.TOKEN_VERIFICATION: "verifies a block of drafts at once (Sun et al., 2025)",
        Capability.PLACEHOLDER_DRAFTS: "its scheduler takes them out",
    }

    def accept(self, call: Call) -> tuple[Tokens, Floats]:
        num_draft, size = np.array(call.batch.num_draft_tokens), call.batch.batch_size
        ratio, longest_ratio = np.ones(size, dtype=np.float32), np.ones(size, dtype=np.float32)
        num_accepted = np.zeros(size, dtype=np.int64)
        for position in range(call.batch.max_spec_len):
            own = np.flatnonzero(call.places[:, position] >= 0)
            rows = call.places[own, position]
            token = call.drafts[rows]
            with np.errstate(over="ignore"):  # infinity is above 1, too
                ratio[own] = np.minimum(ratio[own] * call.target[rows, token] / call.draft[rows, token], 1)
            passing = ratio[own]
            before_last = num_draft[own] > position + 1
            passing[before_last] = self._passing(call, passing[before_last], rows[before_last] + 1)
            passed = own[call.drawn.uniforms[rows] < passing]
            num_accepted[passed], longest_ratio[passed] = position + 1, ratio[passed]
        return num_accepted, longest_ratio

    def _passing(self, call: Call, ratio: Floats, next_rows: Tokens) -> Floats:
        """Probability that a prefix passes which is not the whole draft."""
        spare = self.residual(ratio[:, None] * call.target[next_rows], call.draft[next_rows]).sum(axis=1)
        total = spare + (1 - ratio)
        return np.asarray(np.divide(spare, total, out=np.ones_like(total), where=total > 0))


@patching(mutant_distribution, BlockVerification)("accept", "DIST102", min_draws=50_000)
def wrong_residual_in_block_verification(answer: tuple[Tokens, Floats], call: Call) -> None:
    """Accepts blocks, and recovers as if tokens had been accepted one by one."""
    answer[1].fill(1)


@_patched("offset", "REJ701")
def reads_the_row_before(right: Sampler, rows: Tokens) -> Tokens:
    """`cu_num_draft_tokens` is read as if it had a leading 0."""
    return np.maximum(rows - 1, 0)


@_patched("bonus", "REJ701")
def bonus_from_the_position_before(right: Sampler, call: Call) -> Tokens:
    """The bonus token is drawn from the target of the last draft."""
    rows = np.maximum(call.batch.cu_num_draft_tokens.numpy() - 1, 0)
    drawn_there = np.argmax(call.target[rows] / call.drawn.exponentials, axis=1)
    return np.where(np.array(call.batch.num_draft_tokens) > 0, drawn_there, right.bonus(call))


@_patched("target", "DIST111", min_draws=500_000)
def temperature_two_percent_off(right: Sampler, batch: Batch) -> Floats:
    """Temperature is applied in half precision, or twice to a request at 1.02."""
    return np.asarray((batch.target_logits / 1.02).softmax(dim=-1).numpy())


@_patched("target", "DIST142", min_draws=500_000)
def temperature_one_percent_off(right: Sampler, batch: Batch) -> Floats:
    """A reciprocal of the temperature in bfloat16."""
    return np.asarray((batch.target_logits / 1.01).softmax(dim=-1).numpy())


@_patched("acceptance", "DIST142", min_draws=500_000)
def accepts_half_a_percent_less(right: Sampler, target: Floats, draft: Floats) -> Floats:
    """Uniforms are drawn from [0, 1.005]: TV 0.2 %."""
    return np.asarray(np.minimum(target / draft, 1) / np.float32(1.005), dtype=np.float32)


@_patched("target", "REJ701")
def loses_its_tail(answer: Floats, batch: Batch) -> Floats:
    """Small probabilities are flushed to zero: 1 % of the mass, 2 % in flat distributions."""
    return np.where(answer < 1 / (8 * batch.vocab_size), np.float32(0), answer)


@_patched("residual", "REJ701")
def loses_the_last_tile(answer: Floats, target: Floats, draft: Floats) -> None:
    """The last 4096 of 32768 tokens take no part in the race."""
    answer[:, answer.shape[1] * 7 // 8 :] = 0


# Requests of other kinds beside each other.


@_patched("numbers_of_seed", "DIST691")
def seeded_uniforms_fall_short(right: Sampler, seed: int, num_draft: int, vocab_size: int) -> tuple[Floats, Floats]:
    """Uniforms of seeded requests are drawn from [0, 0.9]."""
    uniforms, exponentials = right.numbers_of_seed(seed, num_draft, vocab_size)
    return uniforms * np.float32(0.9), exponentials


@_patched("seed_requests", "DIST691")
def seeded_requests_spoil_their_neighbours(
    answer: Drawn, drawn: Drawn, batch: Batch, request_seeds: Mapping[int, int]
) -> None:
    """Filling the row of a seeded request clears that of the next one, which then takes the likeliest token."""
    spoilt = [request + 1 for request in request_seeds if request + 1 not in request_seeds]
    answer.exponentials[[request for request in spoilt if request < batch.batch_size]] = 1


@mutant_distribution("REJ701")
class GreedyRequestsBesideSeededOnesDraw(DistributionSampler):
    """If a request of the batch has a seed, all go the way of random ones."""

    _mixes = False

    def seed_requests(self, drawn: Drawn, batch: Batch, request_seeds: Mapping[int, int]) -> Drawn:
        self._mixes = bool(request_seeds)
        return super().seed_requests(drawn, batch, request_seeds)

    def distributions(self, batch: Batch, drafts: Tokens) -> tuple[Floats, Floats]:
        random = batch.replace(temperature=batch.temperature.clamp(min=1)) if self._mixes else batch
        return super().distributions(random, drafts)


@_patched("distributions", "DIST691")
def placeholders_are_token_zero(answer: tuple[Floats, Floats], batch: Batch, drafts: Tokens) -> None:
    """The token recovered after a placeholder draft is never token 0: -1 is clamped."""
    _, draft = answer
    draft[drafts < 0, 0] = 1


@_patched("target", "REJ701", min_draws=50_000)
def half_logits_in_eight_bits(right: Sampler, batch: Batch) -> Floats:
    """Logits of half precision are kept in two bits of mantissa; float32 ones are not."""
    if batch.target_logits.dtype == torch.float32:
        return right.target(batch)
    mantissa, exponent = np.frexp(batch.target_logits.float().numpy())
    rounded = torch.from_numpy(np.ldexp(np.round(mantissa * 8) / 8, exponent))
    return np.asarray(rounded.softmax(dim=-1).numpy())


@_patched("rates", "REJ701", "DIST691", min_draws=4_000)
def rate_of_the_next_position(right: Sampler, rates: Floats, call: Call) -> Floats:
    """Synthetic rates are read one position too far."""
    return right.rates(np.append(rates[1:], rates[-1]), call)


@mutant_distribution("REJ701", "DIST691", min_draws=4_000)
class RecoversFromTheTargetUnderRates(DistributionSampler):
    """With synthetic rates, draft probabilities are not subtracted."""

    def verify(self, batch: Batch, noise: Noise) -> Tensor:  # [batch_size, max_spec_len + 1] int32
        self._has_rates = batch.synthetic_rates is not None
        return super().verify(batch, noise)

    def residual(self, target: Floats, draft: Floats) -> Floats:
        return target if self._has_rates else super().residual(target, draft)


# Acceptance.


@_patched("accept", "DIST101", min_draws=4_000)
def never_accepts_the_last_draft(right: Sampler, call: Call) -> tuple[Tokens, Floats]:
    """No row reaches its bonus token, so that nothing is there to be judged: that is the fault."""
    num_accepted, scale = right.accept(call)
    return np.minimum(num_accepted, np.maximum(np.array(call.batch.num_draft_tokens) - 1, 0)), scale


@_patched("acceptance", "DIST104", min_draws=4_000)
def accepts_with_the_square_root(right: Sampler, target: Floats, draft: Floats) -> Floats:
    """Accepts longer drafts than it may."""
    return np.asarray(np.sqrt(target / draft))


@_patched("distributions", "REJ701")
def ignores_the_draft_distribution(right: Sampler, batch: Batch, drafts: Tokens) -> tuple[Floats, Floats]:
    """Accepts and recovers as if drafts were one-hot: the text is right, and decoding is slow."""
    return right.distributions(batch.replace(draft_probs=None), drafts)


@_patched("acceptance", "REJ701")
def accepts_nine_in_ten(right: Sampler, target: Floats, draft: Floats) -> Floats:
    """A tenth of what should be accepted is rejected; the residual does not take that into account."""
    return np.asarray(np.float32(0.9) * np.minimum(target / draft, 1))


@_patched("draft", "DIST104", min_draws=500_000)
def draft_distribution_in_eight_bits(right: Sampler, draft: Floats) -> Floats:
    """Draft probabilities are stored with three bits of mantissa, after drafts were drawn."""
    mantissa, exponent = np.frexp(draft)
    return np.asarray(np.ldexp(np.round(mantissa * 16) / 16, exponent))


@_patched("acceptance", "REJ701")
def rejects_at_equal_probability(right: Sampler, target: Floats, draft: Floats) -> Floats:
    """Compares with half of the ratio at a tie."""
    return np.where(np.isclose(target, draft), np.float32(0.5), target / draft)


# Trivial: a check that passes these checks nothing.


@_patched("edit", "DIST101")
def always_the_first_token(right: Sampler, tokens: NDArray[np.int32]) -> NDArray[np.int32]:
    """Emits token 0 at every place."""
    return np.zeros_like(tokens)


@_patched("residual", "DIST102")
def any_token_alike(right: Sampler, target: Floats, draft: Floats) -> Floats:
    """Recovers from the uniform distribution."""
    return np.ones_like(target)


@_patched("acceptance", "DIST691", "DIST104")
def accepts_every_draft(right: Sampler, target: Floats, draft: Floats) -> Floats:
    """Returns the drafts."""
    return np.full_like(target, 2)


@_patched("recover", "DIST101")
def recovers_the_most_probable(right: Sampler, weights: Floats, drawn: Drawn, requests: Tokens, rows: Tokens) -> Tokens:
    """Argmax instead of a draw."""
    return np.asarray(np.argmax(weights, axis=1))


# Too small for sampling at an interpreter's budget; stratified noise shows them without chance.


class _TakesNoise(DistributionSampler):
    """Supports everything: its numbers may come from the caller."""

    unsupported: ClassVar[dict[str, str]] = {}


_patched_noise = patching(mutant_distribution, _TakesNoise)


@_patched_noise("acceptance", "DIST601")
def accepts_nineteen_in_twenty(right: Sampler, target: Floats, draft: Floats) -> Floats:
    """A twentieth of what should be accepted is rejected."""
    return np.asarray(np.float32(0.95) * np.minimum(target / draft, 1))


@_patched_noise("residual", "DIST602")
def flattens_the_residual(right: Sampler, target: Floats, draft: Floats) -> Floats:
    """The temperature is applied to the residual once more, at 1.1."""
    return np.asarray(right.residual(target, draft) ** (1 / 1.1))


@_patched_noise("target", "DIST601", "DIST602", min_draws=4_000)
def temperature_two_percent_off_in_few_draws(right: Sampler, batch: Batch) -> Floats:
    """Temperature 1.02, as after a division in half precision; sampling needs 200000 draws to see it."""
    return np.asarray((batch.target_logits / 1.02).softmax(dim=-1).numpy())


@_patched_noise("draft", "DIST601", min_draws=50_000)
def draft_distribution_in_bfloat16(right: Sampler, draft: Floats) -> Floats:
    """Draft probabilities are kept in bfloat16, and drafts were drawn before they were rounded."""
    bits = draft.view(np.uint32)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
    return rounded.astype(np.uint32).view(np.float32)


@_patched("recover", "DIST343", min_draws=500_000)
def races_on_weights_in_bfloat16(
    right: Sampler, weights: Floats, drawn: Drawn, requests: Tokens, rows: Tokens
) -> Tokens:
    """Residuals are kept in bfloat16 on the way to the race: 0.4 % at most, and 0.2 % of TV."""
    return right.recover(torch.from_numpy(weights).bfloat16().float().numpy(), drawn, requests, rows)


# Sizes.


@_patched("draw", "DIST691")
def late_uniforms_fall_short(right: Sampler, batch: Batch, seed: int) -> Drawn:
    """From position 64 on, a draft is accepted with a uniform of at most 0.97: a second block of another scale."""
    drawn, positions = right.draw(batch, seed), np.arange(batch.num_tokens) - _first_rows(batch)
    uniforms = np.where(positions >= 64, drawn.uniforms * np.float32(0.97), drawn.uniforms)
    return Drawn(uniforms, drawn.exponentials, seed)


@_patched("edit", "REJ701")
def late_tokens_come_twice(right: Sampler, tokens: NDArray[np.int32]) -> NDArray[np.int32]:
    """From position 65 on, the token of the position before is written again: an output row of two blocks."""
    if tokens.shape[1] > 66:
        tokens[:, 65:] = np.where(tokens[:, 65:] >= 0, tokens[:, 64:-1], tokens[:, 65:])
    return tokens


@_patched("recover", "REJ701")
def ids_in_sixteen_bits(right: Sampler, weights: Floats, drawn: Drawn, requests: Tokens, rows: Tokens) -> Tokens:
    """Recovered ids pass through 16 bits."""
    return right.recover(weights, drawn, requests, rows) % 65536


# Noise is not taken, but drawn with torch, where it can be handed in.


class DrawsWithTorch(DistributionSampler):
    """Draws with torch's default generator, as most samplers do; numbers can be injected there."""

    def draw(self, batch: Batch, seed: int) -> Drawn:
        exponentials = torch.empty(batch.batch_size, batch.vocab_size).exponential_()
        return Drawn(torch.rand(batch.num_tokens).numpy(), exponentials.numpy(), seed)


class DrawsByPositionAndMultinomial(DrawsWithTorch):
    """Uniforms position by position, for all requests; recovers with `torch.multinomial`."""

    def draw(self, batch: Batch, seed: int) -> Drawn:
        columns = [torch.rand(batch.batch_size, dtype=torch.float64) for _ in range(batch.max_spec_len)]
        has_draft = torch.arange(batch.max_spec_len) < torch.tensor(batch.num_draft_tokens)[:, None]
        uniforms = torch.stack([*columns, torch.zeros(batch.batch_size, dtype=torch.float64)], dim=1)[:, :-1][has_draft]
        return Drawn(uniforms.numpy(), np.ones((batch.batch_size, batch.vocab_size), dtype=np.float32), seed)

    def recover(self, weights: Floats, drawn: Drawn, requests: Tokens, rows: Tokens) -> Tokens:
        if not len(weights):
            return np.zeros(0, dtype=np.int64)
        return np.asarray(torch.multinomial(torch.from_numpy(weights), 1)[:, 0].numpy())


@patching(mutant_distribution, DrawsWithTorch)("target", "DIST621", min_draws=50_000)
def temperature_half_a_percent_off(right: Sampler, batch: Batch) -> Floats:
    """Temperature 1.005; sampling needs millions of draws to see it."""
    return np.asarray((batch.target_logits / 1.005).softmax(dim=-1).numpy())


_patched_draws = patching(mutant_distribution, DrawsByPositionAndMultinomial)


@_patched_draws("residual", "DIST622")
def flattens_the_residual_of_own_draws(right: Sampler, target: Floats, draft: Floats) -> Floats:
    """The temperature is applied to the residual once more, at 1.1."""
    return np.asarray(right.residual(target, draft) ** (1 / 1.1))


@_patched_draws("acceptance", "DIST621")
def accepts_nineteen_in_twenty_of_own_draws(right: Sampler, target: Floats, draft: Floats) -> Floats:
    """A twentieth of what should be accepted is rejected."""
    return np.asarray(np.float32(0.95) * np.minimum(target / draft, 1))


DISTRIBUTION_MUTANTS: tuple[Mutant, ...] = (
    *mutants_in(vars()),
    *lane_mutants(rejecting, "REJ701", "DIST691"),
)

STRATIFIED_MUTANTS = tuple(mutant for mutant in DISTRIBUTION_MUTANTS if mutant.caught_by[0].startswith("DIST60"))
"""Those that take noise from the caller."""
