"""Properties of tokens: greedy requests, filters, seeds, choices, and requests beside others."""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from scipy.special import pdtrc

from fairdraw._core.checks import Stage
from fairdraw._core.failures import CapabilityUnsupported
from fairdraw._oracles.server import IMPOSSIBLE, TIE, choice_cells, edits_of, listed
from fairdraw.contracts import Answer, Capability, Choice, GenerationRequest, Position
from fairdraw.properties._server_check import ALPHA, GREEDY, LISTS, Trial, failure, positions_of, require, server_check
from fairdraw.strategies import _server_requests as asks
from fairdraw.strategies._server_claims import TOLERANCE

_NUM = 8
_NUM_MET = 48
"""Requests among which two choices begin with the same token."""

_NUM_DRAWN = 40
"""Answers in which a silent greedy server is seen."""


# -- greedy -----------------------------------------------------------------------------------------------------------


@server_check("SRV121", (*LISTS, Capability.GREEDY), num_requests=_NUM)
def greedy_takes_the_most_probable_token(trial: Trial) -> None:
    """At temperature 0 each token is the most probable one of its list; any of equal ones will do.

    A temperature that is clamped to something small, or the argmax of other logits (drafts, raw ones under a bias).
    """
    mixed = [one for one in trial.take(asks.MIXED, _NUM_DRAWN) if one.request.is_greedy and not one.refused]
    known = [one for one in mixed if trial.claims.after_edits or not edits_of(one.request)]
    for answer, number, position in positions_of([*trial.take(GREEDY, _NUM), *known]):
        found = listed(position, answer.request.logprobs or 0)
        if found.tokens and position.logprob is not None:
            best = float(found.logprobs.max())
            effect = f"position {number}: token {position.token!r} has {position.logprob:.6g}, the best {best:.6g}"
            require(position.logprob >= best - TIE * max(1.0, abs(best)), answer, effect)


@server_check("SRV122", (Capability.GREEDY,), stage=Stage.INDEPENDENCE, num_requests=3 * _NUM)
def greedy_answers_are_repeated(trial: Trial) -> None:
    """The same greedy request gives the same tokens again, unless two tokens were almost equally probable.

    Alone, and side by side with requests at temperature 1. Randomness that reaches greedy requests, state of an earlier
    request, or a temperature of the batch. With `--against-journal`: what changed since an earlier run.
    """
    first, again = trial.take(GREEDY, _NUM), trial.take(asks.kind("greedy again", temperature=0.0), _NUM)
    require_same_greedy(first, again, "requested again")
    both = [(answer.request, answer.request.replace(temperature=1.0)) for answer in first]
    beside = trial.ask("greedy beside others", [request for pair in both for request in pair])
    require_same_greedy(first, beside[::2], "beside requests at temperature 1")
    require_same_greedy(*trial.earlier(first), "in an earlier run")


def paired(ones: Sequence[Answer], twos: Sequence[Answer]) -> Iterator[tuple[Answer, Choice, Choice]]:
    """Each choice of two answers to the same requests, with the second answer."""
    for one, two in zip(ones, twos, strict=True):
        for mine, theirs in zip(one.choices, two.choices, strict=True):
            yield two, mine, theirs


def shared(one: Position, two: Position) -> list[tuple[float, float]]:
    """The log-probabilities of the tokens that both lists have."""
    mine, theirs = dict(one.top), dict(two.top)
    return [(mine[token], theirs[token]) for token in mine if token in theirs]


def variation(one: Position, two: Position) -> float:
    """The total variation between two lists, of the tokens that both have."""
    return 0.5 * sum(abs(math.exp(mine) - math.exp(theirs)) for mine, theirs in shared(one, two))


def require_same_greedy(ones: Sequence[Answer], twos: Sequence[Answer], how: str) -> None:
    """Answers have the same tokens as before, as far as their own distributions decide it."""
    for two, mine, theirs in paired(ones, twos):
        at = _first_difference(mine, theirs)
        if at is None or _is_near_tie(mine, theirs, at):
            continue
        seen = [_shown(choice, at) for choice in (mine, theirs)]
        raise failure(two, f"{how}, position {at} is {seen[1]}, and was {seen[0]}")


def _shown(choice: Choice, at: int) -> str:
    return repr(choice.tokens[at]) if at < len(choice.tokens) else "the end"


def _first_difference(one: Choice, two: Choice) -> int | None:
    """The first position at which tokens differ; `None` if all are the same."""
    pairs = zip(one.tokens, two.tokens, strict=False)
    at = next((number for number, (a, b) in enumerate(pairs) if a != b), None)
    shorter = min(len(one.tokens), len(two.tokens))
    return at if at is not None else None if len(one.tokens) == len(two.tokens) else shorter


def _is_near_tie(one: Choice, two: Choice, at: int) -> bool:
    """Whether the model itself gave other numbers the second time, so near that another token may come."""
    if at >= min(len(one.positions), len(two.positions)):
        return False
    mine, theirs = one.positions[at], two.positions[at]
    if mine.logprob is None or theirs.logprob is None or not mine.top:
        return False
    other = dict(mine.top).get(theirs.token)
    return other is not None and abs(mine.logprob - other) <= min(_moved(one, two, at), 2 * TOLERANCE)


def _moved(one: Choice, two: Choice, at: int) -> float:
    """How far the log-probabilities of two equal prefixes are apart; rounding at least."""
    return max([2 * TIE, *(2 * abs(a - b) for a, b in shared(one.positions[at], two.positions[at]))])


def require_same_drawn(ones: Sequence[Answer], twos: Sequence[Answer], how: str) -> None:
    """Answers with seeds have the same tokens as before, as far as the model gave the same distributions.

    Where log-probabilities moved, another token may come, at most as often as distributions are apart. More differences
    than that are those of the sampler. Without log-probabilities more than half of the answers must differ.
    """
    answers = zip(ones, twos, strict=True)
    pairs = [(two, a, b) for one, two in answers for a, b in zip(one.choices, two.choices, strict=False)]
    places = [_first_difference(a, b) for _, a, b in pairs]
    num_different = sum(at is not None for at in places)
    if not num_different:
        return
    has_lists = all(a.positions and a.positions[0].top for _, a, _ in pairs if a.tokens)
    moved = [_apart(a, b, at) for (_, a, b), at in zip(pairs, places, strict=True)]
    chance = float(pdtrc(num_different - 1, 4 * sum(moved) + 1e-12))
    if chance >= ALPHA if has_lists else 2 * num_different <= len(pairs):
        return
    number = next(number for number, at in enumerate(places) if at is not None)
    (two, a, b), at = pairs[number], places[number] or 0
    said = f"distributions moved by {sum(moved):.2g} in all: a correct server does so with probability {chance:.1g}"
    effect = (
        f"{how}, {num_different} of {len(pairs)} texts differ: at position {at} {_shown(b, at)}, not {_shown(a, at)}"
    )
    raise failure(two, effect, evidence=said if has_lists else "")


def _apart(one: Choice, two: Choice, at: int | None) -> float:
    """The total variation between the lists of equal prefixes, added up; an end beyond the lists counts nothing."""
    most = min(len(one.positions), len(two.positions))
    places = range(most if at is None else min(at + 1, most))
    return sum(variation(one.positions[place], two.positions[place]) for place in places)


@server_check("SRV123", LISTS, stage=Stage.TOKENS)
def tokens_at_temperature_1_are_drawn(trial: Trial) -> None:
    """At temperature 1, not every token is the most probable one.

    The most common defect of servers: temperature ignored on some path, so that all requests are greedy. SGLang on ROCm
    ran every speculative step so (SGLang #39253).
    """
    answers = trial.take(asks.PLAIN, _NUM_DRAWN)
    log_chance = 0.0
    for answer, _, position in positions_of(answers):
        values = listed(position, answer.request.logprobs or 0)
        if position.logprob is None or not values.tokens:
            continue
        if position.logprob < float(values.logprobs.max()) - TIE:
            return
        log_chance += min(0.0, float(values.logprobs.max()))
    if log_chance < math.log(ALPHA):
        said = f"a correct server does so with probability 10^{log_chance / math.log(10):.0f}"
        raise failure(answers[0], f"all tokens of {len(answers)} answers are the most probable ones", evidence=said)


@server_check("SRV124", LISTS, stage=Stage.TOKENS)
def no_text_at_temperature_1_is_greedy(trial: Trial) -> None:
    """At temperature 1, no part of the texts is greedy: a text of most probable tokens alone is as seldom as it should.

    One replica of many that ignores the temperature, or one path that only some batches take. What all tokens together
    show is too little then.
    """
    answers = trial.take(
        asks.PLAIN, max(_NUM_DRAWN, round(0.4 * asks.num_tokens(trial.server, trial.profile) / asks.TOKENS_EACH))
    )
    factors = [(_greedy_factor(choice, one), one) for one in answers for choice in one.choices]
    for share in _GREEDY_SHARES:
        # Each factor has mean 1 for a correct server, and so has this product: an e-value.
        logs = [float(np.logaddexp(math.log1p(-share), math.log(share) + factor)) for factor, _ in factors]
        said = f"E = 10^{sum(logs) / math.log(10):.0f}, that {share:g} of the texts are greedy"
        if sum(logs) > -math.log(ALPHA):
            raise failure(max(factors, key=lambda one: one[0])[1], "some texts hold most probable tokens alone", said)


_GREEDY_SHARES = (0.02, 0.2)


def _greedy_factor(choice: Choice, answer: Answer) -> float:
    """The log of how much more probable the text is if it is greedy; -inf if it is not."""
    total = 0.0
    for position in choice.positions:
        found = listed(position, answer.request.logprobs or 0)
        if found.tokens:
            total -= min(0.0, float(found.logprobs[0])) if position.token == found.tokens[0] else math.inf
    return total


# -- filters ----------------------------------------------------------------------------------------------------------


def _require_support(trial: Trial, one: asks.Kind, what: str) -> None:
    """No token lies outside of what the filter leaves."""
    judged = 0
    for answer in trial.take(one, _NUM_DRAWN):
        for choice in answer.choices:
            for number, found in enumerate(choice_cells(choice, answer.request, trial.claims)):
                judged += found is not None
                token = choice.positions[number].token
                outside = found is not None and found.drawn == IMPOSSIBLE
                require(not outside, answer, f"position {number}: token {token!r} is not among what {what} leaves")
    if not judged:
        raise CapabilityUnsupported(f"top-logprobs is unsupported: lists are too short for {what}")


@server_check("SRV131", (*LISTS, Capability.TOP_K), stage=Stage.TOKENS)
def tokens_lie_within_top_k(trial: Trial) -> None:
    """With `top_k`, only the so many most probable tokens are emitted, and no more than those are listed.

    One token too many at the edge, a filter that is skipped on some path, or one of another request.
    """
    _require_support(trial, asks.TOP_K, "top-k")
    if "top_k" in trial.claims.after_filters:
        for answer, number, position in positions_of(trial.take(asks.TOP_K, _NUM_DRAWN)):
            count, most = sum(value > _REMOVED for _, value in position.top), answer.request.top_k or 0
            require(count <= most, answer, f"position {number}: {count} tokens are left by top_k={most}")


_REMOVED = -1e3
"""Log-probabilities below are those of removed tokens: servers write a large negative number for -inf."""


@server_check("SRV132", (*LISTS, Capability.TOP_P), stage=Stage.TOKENS)
def tokens_lie_within_top_p(trial: Trial) -> None:
    """With `top_p`, only the tokens that first reach it are emitted.

    A filter that is skipped on some path, one of another request, or one that sees other probabilities.
    """
    _require_support(trial, asks.TOP_P, "top-p")


@server_check("SRV133", (*LISTS, Capability.MIN_P), stage=Stage.TOKENS)
def tokens_lie_within_min_p(trial: Trial) -> None:
    """With `min_p`, only tokens of at least so many times the largest probability are emitted.

    A threshold that is absolute, or a filter that is skipped on some path.
    """
    _require_support(trial, asks.MIN_P, "min-p")


# -- seeds ------------------------------------------------------------------------------------------------------------


def _seeded(trial: Trial, count: int, **fields: object) -> list[GenerationRequest]:
    """Return requests with seeds."""
    one = asks.Kind("seeds", tuple(fields.items()), seeded=True)
    return [one.request(number, trial.server, trial.pool.seed) for number in range(count)]


@server_check(
    "SRV141", (Capability.REQUEST_SEEDS,), stage=Stage.INDEPENDENCE, num_requests=4 * _NUM, num_alone=4 * _NUM
)
def equal_seeds_give_equal_tokens(trial: Trial) -> None:
    """The same request with the same seed, alone both times, gives the same tokens, whatever its parameters are.

    A seed that is ignored, be it only where a filter or a penalty is set, or a generator that goes on from request to
    request. With `--against-journal`: what a process draws once, and mixes into every seed.
    """
    requests = _seeded(trial, _NUM)
    first = trial.ask("seeds", requests, alone=True)
    require_same_drawn(first, trial.ask("seeds again", requests, alone=True), "with the same seeds")
    require_same_drawn(*trial.earlier(first), "with the same seeds as in an earlier run")
    changed = _changed(trial, requests, first)
    first, again = (trial.ask(f"{_CHANGED}, {name}", changed, alone=True) for name in ("alone", "again"))
    require_same_drawn(first, again, "with the same seeds and parameters")


def _require_different(answers: Sequence[Answer], choices: Sequence[Choice], what: str) -> None:
    """No text comes more often than is probable."""
    for tokens, number in Counter(choice.tokens for choice in choices if choice.tokens).items():
        place = max(at for at, choice in enumerate(choices) if choice.tokens == tokens)
        log_chance = _log_chance(choices[place])
        if log_chance is None or number < 2:
            continue
        # All but the first of them are equal to it; and so many of the choices may be those.
        log_bound = (number - 1) * log_chance + math.log(math.comb(len(choices), number) * len(choices))
        if log_bound < math.log(ALPHA):
            said = f"the text has probability 10^{log_chance / math.log(10):.1f}"
            effect = f"{what}: {number} of {len(choices)} are the same {len(tokens)} tokens"
            raise failure(answers[min(place, len(answers) - 1)], effect, evidence=said)


def _log_chance(choice: Choice) -> float | None:
    """The log-probability of the text by the server's own numbers; `None` if it does not return all of them."""
    own = [position.logprob for position in choice.positions]
    return None if not own or None in own else float(np.sum([value for value in own if value is not None]))


@server_check("SRV142", (*LISTS, Capability.REQUEST_SEEDS), stage=Stage.INDEPENDENCE, num_requests=_NUM)
def different_seeds_give_different_tokens(trial: Trial) -> None:
    """The same request with other seeds gives other tokens, as seldom equal as its own probabilities say.

    A seed that is cut to few bits or ignored in favour of a fixed one, or greedy decoding.
    """
    base = asks.PLAIN.request(0, trial.server, 0)
    answers = trial.ask("other seeds", [base.replace(seed=seed) for seed in _SEEDS])
    _require_different(answers, [answer.choices[0] for answer in answers], "with different seeds")


_SEEDS = (0, 1, 2, 3, 256, 65_536, 2**31 - 1, 1_234_567)
"""Neighbours, and seeds that are equal in their lowest 8 or 16 bits."""


@server_check("SRV143", LISTS, stage=Stage.INDEPENDENCE, num_requests=3 * _NUM, num_alone=_NUM)
def requests_without_a_seed_give_different_tokens(trial: Trial) -> None:
    """The same request without a seed gives other tokens each time, one after the other and side by side.

    A generator with a fixed seed for every request that brings none, as mlx-vlm had it (#1818), or one answer for
    requests that look alike.
    """
    # Two prompts, as one of the texts may be short.
    requests = [asks.PLAIN.request(number, trial.server, 0) for number in range(2)]
    for number, request in enumerate(requests):
        alone = trial.ask(f"alike, alone, {number}", [request] * (_NUM // 2), alone=True)
        beside = trial.ask(f"alike, side by side, {number}", [request] * _NUM)
        answers = [*alone, *beside]
        _require_different(answers, [answer.choices[0] for answer in answers], "without a seed")


@server_check("SRV144", (*LISTS, Capability.N_CHOICES), stage=Stage.INDEPENDENCE, num_requests=8)
def choices_of_a_request_differ(trial: Trial) -> None:
    """The `n` choices of a request, up to 64, are other tokens, with a seed and without.

    One generator state that is copied for every choice, the request's seed taken for each of them, or choices that
    are counted anew on each worker. With a seed, all of them are the same again: not only the first one has it.
    """
    plain = asks.PLAIN.request(0, trial.server, 0)
    _require_choices(trial, [plain.replace(n=4), plain.replace(n=4, prompt=_prompts(trial)[1])])
    with contextlib.suppress(CapabilityUnsupported):  # a server may allow few
        _require_choices(trial, [plain.replace(n=_MOST_CHOICES)])


_MOST_CHOICES = 64


def _require_choices(trial: Trial, requests: Sequence[GenerationRequest]) -> None:
    """Choices of each request differ; with seeds beside, they also come again."""
    if Capability.REQUEST_SEEDS in trial.server.capabilities:
        requests = [*requests, *(one.replace(seed=11 + number) for number, one in enumerate(requests))]
    name = f"{requests[0].n} choices"
    answers = trial.ask(name, requests)
    for answer in answers:
        found, wanted = len(answer.choices), answer.request.n
        require(found == wanted, answer, f"{found} choices, not {wanted}")
        _require_different([answer], answer.choices, "choices of one request")
    seeded = [answer for answer in answers if answer.request.seed is not None]
    again = trial.ask(f"{name} again", [answer.request for answer in seeded])
    require_same_drawn(seeded, again, "with the same seeds")


@server_check("SRV150", (*LISTS, Capability.N_CHOICES), stage=Stage.INDEPENDENCE, num_requests=_NUM_MET)
def choices_of_a_request_may_be_equal(trial: Trial) -> None:
    """The first tokens of the `n` choices of a request are sometimes equal, as independent ones are.

    Drawn without replacement: the most probable tokens by their noise, one for each choice. Texts look more diverse
    than the model is.
    """
    answers = trial.take(asks.kind("one token of four choices", n=4, max_tokens=1), _NUM_MET)
    first = [[choice.tokens[0] for choice in one.choices if choice.tokens] for one in answers]
    if any(len(set(tokens)) < len(tokens) for tokens in first):
        return
    chances = [_chance_of_all_different(answer) for answer in answers]
    log_chance = sum(math.log(chance) for chance in chances)
    if log_chance < math.log(ALPHA):
        said = f"a correct server does so with probability 10^{log_chance / math.log(10):.1f}"
        raise failure(answers[0], f"in {len(answers)} requests no first tokens of two choices are equal", said)


def _chance_of_all_different(answer: Answer) -> float:
    """At most: tokens that are not listed count as different ones."""
    position = next((p for choice in answer.choices for p in choice.positions), None)
    found = listed(position, answer.request.logprobs or 0) if position is not None else None
    if found is None or not found.tokens:
        return 1.0
    number = len(answer.choices)
    ways = np.array([found.rest**k / math.factorial(k) for k in range(number + 1)])  # of k unlisted ones, in any order
    for chance in np.exp(found.logprobs):
        ways[1:] += chance * ways[:-1]
    return min(1.0, float(ways[number]) * math.factorial(number))


def _prompts(trial: Trial) -> Sequence[str]:
    own = trial.server.settings.prompts
    return own if len(own) > 1 else asks.PROMPTS


@server_check("SRV145", (Capability.REQUEST_SEEDS,), stage=Stage.INDEPENDENCE, num_requests=9 * _NUM)
def neighbours_do_not_change_a_seeded_answer(trial: Trial) -> None:
    """A request with a seed gives the tokens that it gave alone, beside requests of any kind, whatever its own is.

    A generator for the whole batch, a seed that is ignored as soon as a request without one is there, or a row of
    parameters that belongs to a neighbour: its temperature, filter, penalty, bias, stop string. Where the
    log-probabilities themselves move, it is the model that depends on its batch; such a difference is not counted.
    """
    requests = _seeded(trial, _NUM)
    alone = trial.ask("seeds", requests, alone=True)
    for name, others in _neighbours(trial, requests).items():
        _require_same_beside(trial, alone, name, others)
    every = {name: value for one in strong(trial, alone) for name, value in one.items()}
    _require_same_beside(trial, alone, _CHANGED, [one.replace(seed=None, **every) for one in reversed(requests)])
    changed = _changed(trial, requests, alone)
    plain = _neighbours(trial, requests)["requests without a seed"]
    _require_same_beside(trial, trial.ask(f"{_CHANGED}, alone", changed, alone=True), f"others, {_CHANGED}", plain)


_CHANGED = "requests with parameters"


def _require_same_beside(trial: Trial, alone: Sequence[Answer], name: str, others: Sequence[GenerationRequest]) -> None:
    """Every answer is the same once more, with another request beside each; so is that one if it is among them."""
    known = {one.request: one for one in alone}
    asked = [request for pair in zip(known, others, strict=True) for request in pair]
    beside = [one for one in trial.ask(f"seeds beside {name}", asked) if one.request in known]
    require_same_drawn([known[one.request] for one in beside], beside, f"beside {name}")


def _neighbours(trial: Trial, requests: Sequence[GenerationRequest]) -> dict[str, list[GenerationRequest]]:
    """What stands beside these requests with seeds."""
    plain = [asks.PLAIN.request(number, trial.server, 0) for number in range(_NUM)]
    seeded = [one.replace(seed=900 + number, temperature=1.5) for number, one in enumerate(plain)]
    mixed = [one.replace(temperature=0.0) if number % 2 else one for number, one in enumerate(plain)]
    if Capability.GREEDY not in trial.server.capabilities:
        mixed = plain
    return {"requests without a seed": mixed, "requests with other seeds": seeded, "themselves": list(requests)}


def _changed(trial: Trial, requests: Sequence[GenerationRequest], alone: Sequence[Answer]) -> list[GenerationRequest]:
    """The requests, each with one parameter that changes its answer."""
    found = strong(trial, alone)
    return [one.replace(**found[number % len(found)]) for number, one in enumerate(requests)]


def strong(trial: Trial, alone: Sequence[Answer]) -> list[dict[str, Any]]:  # Any: as the fields of a request
    """Parameters that the server takes, each of which changes an answer."""
    tokens = [token for one in alone for choice in one.choices for token in choice.tokens[:1]]
    bias: dict[str, Any] = {"logit_bias": ((tokens[0], 100.0),)} if tokens and isinstance(tokens[0], int) else {}
    filters: list[dict[str, Any]] = [{"top_k": 2}, {"top_p": 0.1}, {"min_p": 0.5}, bias]
    others: list[dict[str, Any]] = [{"stop": ("e", " ")}, {"presence_penalty": 2.0}, {"frequency_penalty": 2.0}]
    return asks.supported([*filters, *others, {"min_tokens": asks.TOKENS_EACH}], trial.server.capabilities)
