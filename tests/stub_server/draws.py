"""Faults of the draw: randomness, filters, seeds, choices, and what a neighbour in the batch does to a request."""

from __future__ import annotations

import dataclasses
import random

import numpy as np

from fairdraw._core.seeds import derive_seed
from stub_server.engine import Choice, Emitted, Engine, Request, Row, log_of, only, softmax
from stub_server.fault import fault, with_fields, with_request
from stub_server.model import VOCAB_SIZE, logits_after

# The draw.


@fault("draw", "SRV123", "DIST911")
def silent_greedy(right: Engine, choice: Choice, probs: Row) -> int:
    """Every draw is the argmax, as in SGLang on ROCm, where each EAGLE verification was (#39253)."""
    return int(probs.argmax())


@fault("accepts", "DIST911", drafts=3)
def verifies_drafts_as_greedy(right: Engine, choice: Choice, probs: Row, draft: int, draft_probs: Row) -> bool:
    """A draft stays if it is the argmax; whatever else would be drawn is lost."""
    return draft == int(probs.argmax())


@fault("draw", "DIST911")
def greedy_after_the_first_token(right: Engine, choice: Choice, probs: Row) -> int:
    """The prompt's step is right; the decode graph was captured for a greedy batch."""
    return int(probs.argmax()) if choice.emitted else right.draw(choice, probs)


@fault("draw", "SRV124")
def every_fiftieth_request_is_greedy(right: Engine, choice: Choice, probs: Row) -> int:
    """One of fifty replicas has an old configuration."""
    return int(probs.argmax()) if choice.number % 50 == 0 else right.draw(choice, probs)


@fault("temperature", "DIST925")
def temperature_is_ignored(right: Engine, request: Request, logits: Row) -> Row:
    """The field is read under another name."""
    return logits


@fault("temperature", "DIST911")
def temperature_is_doubled(right: Engine, request: Request, logits: Row) -> Row:
    """Twice as hot: logits of a fused projection, halved."""
    return logits / (2 * request.temperature)


@fault("temperature", "DIST925")
def temperature_is_applied_twice(right: Engine, request: Request, logits: Row) -> Row:
    """By the kernel, and by the caller, too."""
    return logits / request.temperature**2


@fault("temperature", "DIST925")
def temperature_is_multiplied(right: Engine, request: Request, logits: Row) -> Row:
    """The inverse was stored already, and is inverted again."""
    return logits * request.temperature


@fault("temperature", "DIST925")
def low_temperatures_are_greedy(right: Engine, request: Request, logits: Row) -> Row:
    """An epsilon that was meant for 1e-5, at 0.7."""
    return np.where(logits == logits.max(), 0.0, -np.inf) if request.temperature < 0.7 else logits / request.temperature


@fault("draw", "DIST911")
def draws_at_another_temperature(right: Engine, choice: Choice, probs: Row) -> int:
    """The distribution that is returned is right; tokens come from temperature 1.1."""
    return right.draw(choice, softmax(log_of(probs) / 1.1))


@fault("draw", "DIST911")
def loses_the_tail(right: Engine, choice: Choice, probs: Row) -> int:
    """A race of scores in eight bits: what is less probable than 1 in 100 underflows."""
    return right.draw(choice, np.where(probs < 0.01, 0.0, probs) if probs.max() < 1 else probs)


@fault("draw", "DIST911")
def prefers_the_most_probable(right: Engine, choice: Choice, probs: Row) -> int:
    """A tenth of the draws falls through to the argmax."""
    return int(probs.argmax()) if choice.rng.random() < 0.1 else right.draw(choice, probs)


@fault("draw", "DIST911")
def never_draws_the_highest_id(right: Engine, choice: Choice, probs: Row) -> int:
    """The last tiles of a padded vocabulary are cut: the ids above 55 are never drawn."""
    kept = np.where(np.arange(VOCAB_SIZE) > 55, 0.0, probs)
    return right.draw(choice, kept if kept.any() else probs)


@fault("draw", "DIST911")
def the_id_after_it(right: Engine, choice: Choice, probs: Row) -> int:
    """A shard's offset is wrong by one: sometimes the token beside the one that was drawn."""
    token = right.draw(choice, probs)
    return min(token + 1, VOCAB_SIZE - 1) if token % 8 == 7 else token


@fault("pick", "DIST921")
def draws_are_stratified_over_requests(right: Engine, choice: Choice, probs: Row) -> int:
    """Quasi-random numbers: each is uniform, together they avoid each other."""
    if choice.request.seed is not None:
        return int(right.pick(choice, probs))
    start = random.Random(derive_seed("start", right.entropy, len(choice.emitted))).random()
    number = (start + (choice.number + choice.index) * 0.6180339887498949) % 1.0
    return int(probs.cumsum().searchsorted(number * probs.sum(), side="right"))


@fault("pick", "DIST921")
def one_random_number_for_all_positions(right: Engine, choice: Choice, probs: Row) -> int:
    """The counter does not advance with the position."""
    state = choice.rng.getstate()
    token = int(right.pick(choice, probs))
    choice.rng.setstate(state)
    return token


@fault("random_seed", "SRV143")
def the_batch_shares_its_noise(right: Engine, request: Request, index: int) -> int:
    """Two requests that arrive one after the other have the same row of noise."""
    if request.seed is not None:
        return right.random_seed(request, index)
    return derive_seed("row", right.entropy, right.arrived // 2, index)


# Filters.


@fault("probs", "DIST925")
def top_p_before_temperature(right: Engine, request: Request, logits: Row) -> Row:
    """The order of another engine."""
    return right.probs(with_fields(request, order=("min_p", "top_k", "top_p", "temperature")), logits)


@fault("probs", "SRV131")
def top_k_keeps_one_more(right: Engine, request: Request, logits: Row) -> Row:
    """`<=` where `<` was meant."""
    return right.probs(with_fields(request, top_k=request.top_k + bool(request.top_k)), logits)


@fault("probs", "DIST925")
def top_k_keeps_one_less(right: Engine, request: Request, logits: Row) -> Row:
    """`<` where `<=` was meant; one token stays in any case."""
    return right.probs(with_fields(request, top_k=max(request.top_k - 1, 1) if request.top_k else 0), logits)


@fault("probs", "SRV131")
def top_k_is_ignored(right: Engine, request: Request, logits: Row) -> Row:
    """Unknown to this sampler."""
    return right.probs(with_fields(request, top_k=0), logits)


@fault("probs", "SRV132")
def top_p_is_ignored(right: Engine, request: Request, logits: Row) -> Row:
    """Unknown to this sampler."""
    return right.probs(with_fields(request, top_p=1.0), logits)


@fault("probs", "SRV133")
def min_p_is_ignored(right: Engine, request: Request, logits: Row) -> Row:
    """Unknown to this sampler."""
    return right.probs(with_fields(request, min_p=0.0), logits)


@fault("verify", "SRV131", drafts=3)
def filters_are_ignored_on_drafts(right: Engine, choice: Choice, probs: Row, draft: int, draft_probs: Row) -> int:
    """Drafts are verified against the unfiltered distribution, as in LMDeploy."""
    bare = with_fields(choice.request, top_k=0, top_p=1.0, min_p=0.0)
    unfiltered = right.probs(bare, right.edited(choice, bare, logits_after(choice.context[-3:])))
    return int(right.verify(choice, unfiltered, draft, draft_probs))


@fault("top_p", "DIST925")
def top_p_drops_the_crossing_token(right: Engine, request: Request, logits: Row) -> Row:
    """The token that reaches the limit is cut, if another is left."""
    kept = np.isfinite(right.top_p(request, logits))
    if request.top_p < 1 and kept.sum() > 1:
        kept[np.where(kept, logits, np.inf).argmin()] = False
    return np.where(kept, logits, -np.inf)


@fault("min_p", "DIST925")
def min_p_without_the_maximum(right: Engine, request: Request, logits: Row) -> Row:
    """An absolute limit: `min_p` is compared with the probability itself."""
    probs = softmax(logits)
    return np.where((probs >= request.min_p) | (probs == probs.max()), logits, -np.inf)


@fault("probs", "DIST925")
def min_p_before_temperature(right: Engine, request: Request, logits: Row) -> Row:
    """Relative to the largest probability at temperature 1."""
    kept = right.min_p(request, logits)
    return right.probs(with_fields(request, min_p=0.0), kept)


# Greedy.


@fault("probs", "SRV121")
def greedy_is_sampled(right: Engine, request: Request, logits: Row) -> Row:
    """Temperature 0 falls back to the default of 1."""
    return right.probs(with_fields(request, temperature=request.temperature or 1.0), logits)


@fault("probs", "SRV121")
def greedy_takes_the_second(right: Engine, request: Request, logits: Row) -> Row:
    """Within one tenth of the largest logit, the first id wins: logits in eight bits."""
    if request.temperature:
        return right.probs(request, logits)
    return only(int((logits >= logits.max() - 0.1 * abs(logits.max())).argmax()))


# Seeds.


@fault("random_seed", "SRV143")
def unseeded_requests_share_a_seed(right: Engine, request: Request, index: int) -> int:
    """`seed or 0`: every request without a seed has seed 0 (mlx-vlm #1818)."""
    return derive_seed("seeded", request.seed or 0, index)


@fault("random_seed", "SRV143")
def unseeded_requests_are_cached(right: Engine, request: Request, index: int) -> int:
    """The same prompt gets the same answer for as long as the cache keeps it."""
    if request.seed is not None:
        return right.random_seed(request, index)
    return derive_seed("cached", right.entropy, request.prompt, request.max_tokens, index)


@fault("random_seed", "SRV141")
def seed_is_ignored(right: Engine, request: Request, index: int) -> int:
    """It is not passed on."""
    return right.random_seed(with_fields(request, seed=None), index)


@fault("random_seed", "SRV144")
def seed_is_ignored_for_all_but_the_first_choice(right: Engine, request: Request, index: int) -> int:
    """Only the parent request has a generator."""
    return right.random_seed(with_fields(request, seed=None) if index else request, index)


@fault("draw", "SRV141")
def seed_is_ignored_with_filters(right: Engine, choice: Choice, probs: Row) -> int:
    """The kernel that filters has a generator of its own."""
    if choice.request.top_k or choice.request.top_p < 1 or choice.request.min_p:
        choice.rng.seed(derive_seed("kernel", right.entropy, choice.number, choice.index, len(choice.emitted)))
    return right.draw(choice, probs)


@fault("random_seed", "SRV142")
def all_seeds_are_equal(right: Engine, request: Request, index: int) -> int:
    """A Boolean is stored: there is a seed."""
    return right.random_seed(with_fields(request, seed=None if request.seed is None else 1), index)


@fault("random_seed", "SRV141")
def seed_beside_a_counter(right: Engine, request: Request, index: int) -> int:
    """The generator is seeded once and goes on: the answer depends on how many requests came before."""
    if request.seed is None:
        return right.random_seed(request, index)
    return derive_seed("going on", request.seed, right.arrived, index)


@fault("draw", "SRV145")
def seed_is_ignored_beside_an_unseeded_request(right: Engine, choice: Choice, probs: Row) -> int:
    """One request without a generator sends the whole batch to the fused kernel."""
    if choice.request.seed is not None and any(one.request.seed is None for one in right.neighbours(choice)):
        choice.rng.seed(derive_seed("fused", right.entropy, choice.number, len(choice.emitted)))
    return right.draw(choice, probs)


@fault("draw", "SRV145")
def seed_is_ignored_in_company(right: Engine, choice: Choice, probs: Row) -> int:
    """Noise is keyed by the row in the batch."""
    if choice.request.seed is not None and (others := right.neighbours(choice)):
        choice.rng.seed(derive_seed("row", choice.request.seed, len(others), choice.number, len(choice.emitted)))
    return right.draw(choice, probs)


# Choices.


@fault("random_seed", "SRV144")
def choices_are_equal(right: Engine, request: Request, index: int) -> int:
    """The generator is copied, and not advanced."""
    return right.random_seed(request, 0)


@fault("draw", "SRV150")
def choices_avoid_each_other(right: Engine, choice: Choice, probs: Row) -> int:
    """The second choice's first token is drawn from what the first left."""
    taken = [
        one.tokens[0] for one in right.running if one.number == choice.number and one is not choice and one.emitted
    ]
    if choice.emitted or not taken:
        return right.draw(choice, probs)
    left = probs.copy()
    left[taken] = 0.0
    return right.draw(choice, left if left.any() else probs)


@fault("reported", "DIST921")
def choices_share_log_probabilities(
    right: Engine, choice: Choice, token: int, raw: Row, edited: Row, probs: Row, drafted: bool
) -> Emitted:
    """Every choice gets the lists of the first."""
    mine = right.reported(choice, token, raw, edited, probs, drafted)
    first = next(one for one in right.running if one.number == choice.number)
    position = len(choice.emitted)
    if first is choice or position >= len(first.emitted):
        return mine
    return dataclasses.replace(first.emitted[position], token=token)


# Neighbours.


@fault("parameters", "SRV145")
def a_neighbours_temperature(right: Engine, choice: Choice) -> Request:
    """The batch's array of temperatures is not moved when its rows are."""
    others = right.neighbours(choice)
    return with_fields(choice.request, temperature=others[0].request.temperature) if others else choice.request


@fault("parameters", "SRV145")
def a_neighbours_filters(right: Engine, choice: Choice) -> Request:
    """Top-k and top-p of another row."""
    others = right.neighbours(choice)
    if not others:
        return choice.request
    return with_fields(choice.request, top_k=others[0].request.top_k, top_p=others[0].request.top_p)


@fault("parameters", "SRV145", "DIST925")
def a_neighbours_penalties(right: Engine, choice: Choice) -> Request:
    """Presence and frequency of another row."""
    others = [one.request for one in right.neighbours(choice)]
    if not others:
        return choice.request
    return with_fields(choice.request, presence=others[0].presence, frequency=others[0].frequency)


@fault("parameters", "SRV145")
def no_filters_beside_a_bare_request(right: Engine, choice: Choice) -> Request:
    """One request without filters, and the batch takes the path that has none."""
    is_bare = any(
        (one.request.top_k, one.request.top_p, one.request.min_p) == (0, 1, 0) for one in right.neighbours(choice)
    )
    return with_fields(choice.request, top_k=0, top_p=1.0, min_p=0.0) if is_bare else choice.request


@fault("end", "SRV145")
def a_neighbours_stop_strings(right: Engine, choice: Choice) -> None:
    """The stop strings of the batch are looked for in every text."""
    stops = {stop for one in right.neighbours(choice) for stop in one.request.stop}
    bare = with_request(choice, stop=(*choice.request.stop, *sorted(stops)))
    right.end(bare)
    choice.ended, choice.matched, choice.text_end = bare.ended, bare.matched, bare.text_end


@fault("parameters", "SRV151")
def a_neighbours_bias(right: Engine, choice: Choice) -> Request:
    """A bias is scattered into the rows of the whole batch."""
    biases = {token: bias for one in right.neighbours(choice) for token, bias in one.request.logit_bias.items()}
    return with_fields(choice.request, logit_bias={**biases, **choice.request.logit_bias})


@fault("parameters", "SRV145")
def greedy_beside_a_greedy_request(right: Engine, choice: Choice) -> Request:
    """One greedy request makes its batch greedy, as Aphrodite's top-n-sigma does."""
    is_greedy = any(one.request.temperature == 0 for one in right.neighbours(choice))
    return with_fields(choice.request, temperature=0.0) if is_greedy else choice.request


@fault("parameters", "SRV122")
def sampled_beside_a_sampled_request(right: Engine, choice: Choice) -> Request:
    """A greedy request in a batch that samples is sampled, too."""
    hottest = max((one.request.temperature for one in right.neighbours(choice)), default=0.0)
    return with_fields(choice.request, temperature=choice.request.temperature or hottest)
