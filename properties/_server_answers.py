"""Properties of single answers: tokens, lists of log-probabilities, and what belongs to what."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np

from fairdraw._core.checks import Stage
from fairdraw._oracles.server import TIE, is_ambiguous
from fairdraw.contracts import Answer, Capability, Position
from fairdraw.properties._server_check import LISTS, Trial, count_of, positions_of, require, server_check
from fairdraw.strategies._server_claims import AT_HALF, AT_ONE, AT_TWO, NUM_PROMPTS, TOLERANCE, first_list, powers
from fairdraw.strategies._server_requests import MIXED, PLAIN, kind

NUM_PLAIN = 24
"""Answers of a kind that are looked at one by one."""

_THREE = kind("three tokens", max_tokens=3)
_FEW = kind("one token, few log-probabilities", max_tokens=1, logprobs=2)
_SUM_TOLERANCE = 1e-3


def answers_of_all_kinds(trial: Trial) -> list[Answer]:
    """Return plain answers, those at temperatures 1/2 and 2, and some of requests with parameters of their own."""
    cold, hot = trial.take(AT_HALF, NUM_PROMPTS), trial.take(AT_TWO, NUM_PROMPTS)
    return [*trial.take(PLAIN, NUM_PLAIN), *cold, *hot, *trial.take(MIXED, NUM_PLAIN)]


def _is_cut(answer: Answer) -> bool:
    """Whether a filter may have removed tokens from its lists."""
    return bool(answer.request.top_k or answer.request.top_p or answer.request.min_p)


def _positions(answers: list[Answer]) -> Iterator[tuple[Answer, int, Position]]:
    """Every position of every choice, with its number; not those whose lists name several tokens by one text."""
    for answer, number, position in positions_of(answers):
        if not any(is_ambiguous(token) for token, _ in position.top):
            yield answer, number, position


@server_check("SRV101", stage=Stage.SHAPE, num_requests=8)
def an_answer_has_as_many_tokens_as_requested_at_most(trial: Trial) -> None:
    """A choice has at most `max_tokens` tokens; `length` is its finish reason if and only if it was cut there.

    Look at what counts tokens: several tokens of a speculative step, a stop string that is held back, an end token.
    """
    for answer in [*trial.take(PLAIN, NUM_PLAIN), *trial.take(_THREE, 8)]:
        require(len(answer.choices) == answer.request.n, answer, f"{len(answer.choices)} choices, not 1")
        for choice in answer.choices:
            count, most = count_of(choice), answer.request.max_tokens
            require(bool(choice.finish_reason), answer, "a choice has no finish reason")
            require(count is None or count <= most, answer, f"{count} tokens, but max_tokens is {most}")
            is_short = count is not None and count < most - 1
            require(not is_short or choice.finish_reason != "length", answer, f"cut at {count} of {most} tokens")


@server_check("SRV102", LISTS, stage=Stage.SHAPE)
def log_probabilities_are_finite_and_at_most_0(trial: Trial) -> None:
    """Every returned log-probability is a finite number and not above 0; -inf only for what a filter removed.

    Logits instead of log-probabilities, probabilities without the logarithm, or a row that was never filled.
    """
    for answer, number, position in _positions(answers_of_all_kinds(trial)):
        values = [value for _, value in position.top if not (_is_cut(answer) and value == -math.inf)]
        values += [] if position.logprob is None else [position.logprob]
        wrong = [value for value in values if value is None or not math.isfinite(value) or value > TIE]
        require(not wrong, answer, f"position {number}: the log-probability {wrong[:1]} is impossible")


@server_check("SRV103", LISTS, stage=Stage.SHAPE)
def the_sampled_token_has_its_log_probability(trial: Trial) -> None:
    """The emitted token has a log-probability; if it is listed, that is the one of the list, else none above the list.

    The log-probability of another token: an index that is off by one, or that of the draft token instead of the
    emitted one.
    """
    for answer, number, position in _positions(answers_of_all_kinds(trial)):
        where, own, top = f"position {number}", position.logprob, dict(position.top)
        require(own is not None, answer, f"{where}: the sampled token has no log-probability")
        if own is None or not top:
            continue
        if position.token in top:
            said = top[position.token]
            require(abs(said - own) <= _near(own), answer, f"{where}: the token has {own:.6g}, its entry {said:.6g}")
        else:
            least = min(top.values())
            is_full = len(top) >= (answer.request.logprobs or 0)
            effect = f"{where}: token {position.token!r} ({own:.6g}) is not listed, but others down to {least:.6g} are"
            require(is_full and own <= least + TIE, answer, effect)


def _near(value: float) -> float:
    """How far two printed forms of one number may be apart."""
    return TIE * max(1.0, abs(value))


@server_check("SRV104", LISTS, stage=Stage.SHAPE)
def every_token_has_a_list_of_its_own(trial: Trial) -> None:
    """There are as many lists as tokens; only the token that ends a text may be left out.

    Lists that are made once per step leave out the other tokens of a speculative step. llama.cpp's server does so:
    with speculation most tokens carry no log-probabilities (llama.cpp #27972).
    """
    for answer in answers_of_all_kinds(trial):
        for choice in answer.choices:
            made, shown = choice.num_tokens, len(choice.positions)
            end = choice.finish_reason == "stop"
            effect = f"{made} tokens, but {shown} have log-probabilities"
            require(made is None or made - end <= shown <= made + end, answer, effect)
            bare = sum(not position.top for position in choice.positions)
            require(not bare, answer, f"{bare} of {shown} tokens have no list of log-probabilities")


@server_check("SRV105", LISTS, stage=Stage.SHAPE)
def a_list_is_sorted_and_names_no_token_twice(trial: Trial) -> None:
    """Apart from the sampled token, which may come first, lists fall; each token occurs once, and none is left out.

    A partial sort, a merge of the lists of several shards, or the sampled token added although it is listed.
    """
    lengths: dict[int | None, dict[int, Answer]] = {}  # of lists that were asked for with one length
    for answer, number, position in _positions(answers_of_all_kinds(trial)):
        tokens = [token for token, _ in position.top]
        if Capability.TOKEN_IDS in trial.server.capabilities:
            require(len(set(tokens)) == len(tokens), answer, f"position {number}: a token is listed twice")
            if not _is_cut(answer):
                others_of = lengths.setdefault(answer.request.logprobs, {})
                others_of[len([token for token in tokens if token != position.token])] = answer
        others = [value for token, value in position.top if token != position.token]
        falls = all(one >= two - TIE for one, two in itertools.pairwise(others))
        require(falls, answer, f"position {number}: the list is not sorted: {[round(v, 4) for v in others[:8]]}")
    for found in lengths.values():
        least, most = min(found), max(found)
        require(most - least <= 1, found[least], f"lists have {least} to {most} other tokens")


@server_check("SRV106", LISTS)
def the_probabilities_of_a_list_sum_to_at_most_1(trial: Trial) -> None:
    """The listed probabilities of a position sum to at most 1, at every temperature and whatever a request asks for.

    Log-probabilities that were normalised over another set of tokens, or before something was added to the logits, or
    raw ones that are divided by the temperature.
    """
    for answer, number, position in _positions(answers_of_all_kinds(trial)):
        total = float(np.exp([value for _, value in dict(position.top).items()]).sum())
        require(total <= 1 + _SUM_TOLERANCE, answer, f"position {number}: the probabilities sum to {total:.6g}")


@server_check("SRV107", LISTS, num_requests=3 * NUM_PROMPTS)
def log_probabilities_are_raw_or_follow_the_temperature(trial: Trial) -> None:
    """From temperature 1 to 1/2 and 2, differences of log-probabilities stay as they are, or are divided by it; those
    that are divided sum to 1 again.

    Temperature applied twice, to the wrong rows, or to part of the vocabulary, or to log-probabilities in the place of
    logits. Raw ones that move belong to a model that does not give the same logits for the same prompt.
    """
    plain = trial.take(AT_ONE, NUM_PROMPTS)
    raw, processed = [], []
    for other in (AT_HALF, AT_TWO):
        found = powers(plain, trial.take(other, NUM_PROMPTS))
        answer = trial.take(other, NUM_PROMPTS)[0]
        power = f"the power is {found.exponent:.3g}, but it must be 1 or {1 / answer.request.temperature:g}"
        where = f"at temperature {answer.request.temperature:g} {found.num_pairs} differences of log-probabilities"
        effect = f"{where}: {power}; off by {min(found.equal, found.scaled):.3g}"
        require(min(found.equal, found.scaled) <= TOLERANCE, answer, effect)
        raw.append(found.equal <= TOLERANCE)
        processed.append(found.scaled <= TOLERANCE)
        if not raw[-1]:
            for one, two in zip(plain, trial.take(other, NUM_PROMPTS), strict=True):
                gap, said = _misplaced(one, two), f"at temperature {two.request.temperature:g}, of all tokens,"
                require(gap <= TOLERANCE, two, f"{said} log-probabilities are off by {gap:.3g}: they do not sum to 1")
    one_stage = all(raw) or all(processed)
    require(one_stage, plain[0], "log-probabilities are raw at one temperature and divided at another")


def _misplaced(plain: Answer, other: Answer) -> float:
    """Return how far the first log-probability at another temperature is from what its distribution allows.

    Unlisted tokens are no more probable than the last listed one, which bounds what they sum to.
    """
    before, after = first_list(plain), first_list(other)
    token, power = next(iter(before), None), 1 / other.request.temperature
    if token not in after:
        return 0.0
    values = np.array(list(before.values()))
    rest = max(0.0, 1 - float(np.exp(values).sum())) * float(np.exp(values.min() * (power - 1)))
    listed_sum = float(np.exp(values * power).sum())
    low, high = (before[token] * power - np.log(listed_sum + part) for part in (rest, 0.0))
    beyond = max(after[token] - high, (low - after[token]) * (power > 1))
    return float(max(0.0, beyond) / max(1.0, abs(before[token] * power)))


@server_check("SRV108", LISTS, num_requests=NUM_PROMPTS)
def log_probabilities_do_not_depend_on_how_many_are_requested(trial: Trial) -> None:
    """The entries of a list of two are the first of a longer list for the same prompt.

    Log-probabilities that are normalised over what is returned (vLLM #44319).
    """
    for full, few in zip(trial.take(AT_ONE, NUM_PROMPTS), trial.take(_FEW, NUM_PROMPTS), strict=True):
        if not (full.choices[0].positions and few.choices[0].positions):
            continue
        known = dict(full.choices[0].positions[0].top)
        for token, value in few.choices[0].positions[0].top:
            said = known.get(token, value)
            effect = f"token {token!r} has {value:.6g} in a list of 2, and {said:.6g} in a longer one"
            require(abs(said - value) <= TOLERANCE * max(1.0, abs(value)), few, effect)
