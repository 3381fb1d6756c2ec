"""Faults of the draw: randomness, filters, seeds, choices, and what a neighbour in the batch does to a request."""

from __future__ import annotations

import dataclasses

from fairdraw._core.seeds import derive_seed
from stub_server.engine import Choice, Emitted, Engine, Request, Row, only
from stub_server.fault import fault, with_fields, with_request
from stub_server.model import logits_after

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


@fault("temperature", "DIST925")
def temperature_is_ignored(right: Engine, request: Request, logits: Row) -> Row:
    """The field is read under another name."""
    return logits


@fault("random_seed", "SRV143")
def the_batch_shares_its_noise(right: Engine, request: Request, index: int) -> int:
    """Two requests that arrive one after the other have the same row of noise."""
    if request.seed is not None:
        return right.random_seed(request, index)
    return derive_seed("row", right.entropy, right.arrived // 2, index)


# Filters.


@fault("verify", "SRV131", drafts=3)
def filters_are_ignored_on_drafts(right: Engine, choice: Choice, probs: Row, draft: int, draft_probs: Row) -> int:
    """Drafts are verified against the unfiltered distribution, as in LMDeploy."""
    bare = with_fields(choice.request, top_k=0, top_p=1.0, min_p=0.0)
    unfiltered = right.probs(bare, right.edited(choice, bare, logits_after(choice.context[-3:])))
    return int(right.verify(choice, unfiltered, draft, draft_probs))


# Greedy.


@fault("probs", "SRV121")
def greedy_takes_the_second(right: Engine, request: Request, logits: Row) -> Row:
    """Within one tenth of the largest logit, the first id wins: logits in eight bits."""
    if request.temperature:
        return right.probs(request, logits)
    return only(int((logits >= logits.max() - 0.1 * abs(logits.max())).argmax()))


# Seeds.


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
