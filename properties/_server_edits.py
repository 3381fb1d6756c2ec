"""Properties of what changes logits or ends a text: bias, penalties, bad words, min tokens, stop strings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from fairdraw._core.checks import Stage
from fairdraw._core.failures import CapabilityUnsupported
from fairdraw.contracts import Answer, Capability, Claims, GenerationRequest, Position
from fairdraw.contracts._server import Token
from fairdraw.properties._server_check import GREEDY, LISTS, Trial, count_of, require, server_check
from fairdraw.strategies._server_claims import AT_ONE, TOLERANCE
from fairdraw.strategies._server_requests import PLAIN, kind, other_modes, own_ids, supported

_BIASED = (*LISTS, Capability.TOKEN_IDS, Capability.LOGIT_BIAS)
_NUM = 8
_PENALISED = kind("penalised", frequency_penalty=1.0, presence_penalty=0.5)
_ONE_GREEDY = kind("one greedy token", temperature=0.0, max_tokens=1)


_WAYS: tuple[dict[str, Any], ...] = (  # Any: as the fields of a request
    *({}, {"top_k": 20}, {"seed": 3}, {"min_p": 1e-4}, {"n": 4}, {"top_p": 0.9999}, {"top_k": 19, "n": 4}, {"n": 2}),
)
"""What else a request may have that moves no log-odds between tokens that stay."""


def _each_way(trial: Trial, requests: Sequence[GenerationRequest]) -> list[GenerationRequest]:
    """Return the requests, each with something else that the server takes. vLLM refuses several greedy choices."""
    ways = supported(_WAYS, trial.server.capabilities)
    asked = [one.replace(**ways[number % len(ways)]) for number, one in enumerate(requests)]
    return [one.replace(n=1) if one.is_greedy else one for one in asked]


def _tokens_of(answer: Answer) -> tuple[Token, ...]:
    return answer.choices[0].tokens if answer.choices else ()


def _first_position(answer: Answer) -> Position | None:
    """Return the first position of the first choice, if there are log-probabilities."""
    return next(iter(answer.choices[0].positions), None) if answer.choices else None


def _listed_tokens(answer: Answer) -> list[Token]:
    """Tokens of the first list, the most probable first."""
    position = _first_position(answer)
    return [token for token, _ in sorted(position.top, key=lambda one: -one[1])] if position else []


@server_check("SRV151", _BIASED, num_requests=_NUM)
def a_bias_of_100_forces_its_token(trial: Trial) -> None:
    """With a bias of +100 on one token, every token is that one.

    A bias that is applied at the first position only, to the draft model only, or to another row of the batch; in a
    speculative step, to no row but the first.
    """
    plain, requests = trial.take(AT_ONE, _NUM // 2), []
    for answer in plain:
        forced = _listed_tokens(answer)[2:3]
        base = answer.request.replace(max_tokens=6, logit_bias=tuple((token, 100.0) for token in forced))
        requests += [base, base.replace(temperature=0.0)] if forced else []
    for answer in trial.ask("bias +100", _each_way(trial, requests)):
        (wanted, _), *_ = answer.request.logit_bias
        others = [token for choice in answer.choices for token in choice.tokens if token != wanted]
        require(not others, answer, f"token {wanted!r} has a bias of +100, but {others[:3]!r} came")


@server_check("SRV152", _BIASED, num_requests=_NUM)
def a_bias_of_minus_100_forbids_its_tokens(trial: Trial) -> None:
    """Tokens with a bias of -100 do not come: those that a greedy request without the bias has emitted.

    A bias that is applied at the first position only, or lost for tokens that were drafted.
    """
    plain = trial.take(GREEDY, _NUM)
    banned = [tuple((token, -100.0) for token in sorted(set(_tokens_of(answer)), key=str)) for answer in plain]
    requests = [answer.request.replace(logit_bias=bias) for answer, bias in zip(plain, banned, strict=True)]
    for answer in trial.ask("bias -100", _each_way(trial, requests)):
        forbidden = {token for token, _ in answer.request.logit_bias}
        came = [token for choice in answer.choices for token in choice.tokens if token in forbidden]
        require(not came, answer, f"tokens {came[:3]!r} have a bias of -100 and came")


@server_check("SRV153", _BIASED, num_requests=_NUM)
def a_bias_moves_the_log_odds_by_as_much(trial: Trial) -> None:
    """A bias of 2 moves the log-odds between its token and others by 2; log-probabilities that are raw do not move.

    A bias that is applied twice, after the temperature, or to the probabilities.
    """
    plain, requests = trial.take(AT_ONE, _NUM // 2) * 2, []
    for answer in plain:
        chosen = _listed_tokens(answer)[1:2]
        requests += [answer.request.replace(logit_bias=tuple((token, 2.0) for token in chosen))]
    shift = 2.0 if trial.claims.after_edits else 0.0
    for before, after in zip(plain, trial.ask("bias +2", _each_way(trial, requests)), strict=True):
        position = _first_position(before)
        if after.request.logit_bias and position and _first_position(after):
            _require_shift(position, after, 0, {after.request.logit_bias[0][0]: shift})


def _require_shift(before: Position, after: Answer, at: int, shifts: dict[Token, float]) -> None:
    """Between two lists of the same prefix, log-odds moved by these numbers, for all tokens that both list."""
    old, new = dict(before.top), dict(after.choices[0].positions[at].top)
    common = [token for token in old if token in new and min(old[token], new[token]) > _LEAST]
    still = next((token for token in common if not shifts.get(token)), None)
    for token in common:
        if still is None:
            return
        moved = (new[token] - new[still]) - (old[token] - old[still])
        wanted = shifts.get(token, 0.0)
        effect = f"position {at}: the log-odds of token {token!r} moved by {moved:.4g}, which should be {wanted:.4g}"
        require(abs(moved - wanted) <= TOLERANCE * max(1.0, abs(old[token])), after, effect)


_LEAST = -20.0


@server_check("SRV154", (*_BIASED, Capability.PENALTIES), num_requests=8 * _NUM)
def penalties_move_the_log_odds_by_what_was_emitted(trial: Trial) -> None:
    """Frequency and presence penalties lower a token by its count and by its presence in the output, and no other.

    The same tokens are sent again as a prompt, which is not penalised. A count that is too high or too low by one,
    tokens of the prompt counted as output, or a row of another request. Log-probabilities that are raw do not move.
    """
    ids = _ids_prompt(trial)
    answers = trial.ask("penalties", _each_way(trial, [one.replace(prompt=ids) for one in _penalised(trial)]))
    for number, answer in enumerate(answers):
        tokens = _tokens_of(answer)
        places = range(0, min(len(tokens), len(answer.choices[0].positions)), 2)
        plain = PLAIN.request(0, trial.server, 0).replace(max_tokens=1)
        prefixes = [plain.replace(prompt=(*ids, *(int(token) for token in tokens[:at]))) for at in places]
        replayed = trial.ask(f"without penalties, {number}", prefixes)
        for at, other in zip(places, replayed, strict=True):
            if position := _first_position(other):
                _require_shift(position, answer, at, _shifts(trial, answer, tokens[:at]))


def _penalised(trial: Trial) -> list[GenerationRequest]:
    """Every second one rewards tokens for coming again, so that some come more than once."""
    plain = [_PENALISED.request(number, trial.server, trial.pool.seed) for number in range(_NUM)]
    return [one.replace(frequency_penalty=-one.frequency_penalty) if n % 2 else one for n, one in enumerate(plain)]


def _shifts(trial: Trial, answer: Answer, before: tuple[Token, ...]) -> dict[Token, float]:
    """What the request's penalties take from each token."""
    if not trial.claims.after_edits:
        return {}
    one = answer.request
    return {token: -one.frequency_penalty * count - one.presence_penalty for token, count in Counter(before).items()}


def _ids_prompt(trial: Trial) -> tuple[int, ...]:
    """Return token ids that the server itself emitted, as a prompt."""
    if not (ids := own_ids(trial.server, trial.pool.seed)):
        raise CapabilityUnsupported("token-ids is unsupported: no prompt of token ids can be made")
    return ids


@server_check(
    "SRV155", (*LISTS, Capability.TOKEN_IDS, Capability.REPETITION_PENALTY, Capability.GREEDY), num_requests=8 * _NUM
)
def a_repetition_penalty_lowers_emitted_tokens_by_a_factor(trial: Trial) -> None:
    """A repetition penalty makes no token more probable, and lowers those that were emitted by a factor of the logit.

    A logit that is positive is divided, one that is negative multiplied. Dividing all of them rewards tokens with
    negative logits. Whether tokens of the prompt count is the server's own. Where log-probabilities are raw, the order
    of greedy tokens tells: a repeated one comes only if no new token was more probable.
    """
    ids, is_edited = _ids_prompt(trial), trial.claims.after_edits
    plain = [PLAIN.request(number, trial.server, 0) for number in range(_NUM)]
    changed = [one.replace(prompt=ids[number % 4 :], repetition_penalty=_FACTOR) for number, one in enumerate(plain)]
    # Hot texts repeat tokens with negative logits, too.
    answers = trial.ask("repetition", [one.replace(temperature=_HOT if is_edited else 0.0) for one in changed])
    for number, answer in enumerate(answers):
        if is_edited:
            _require_factor(trial, number, answer)
        else:
            _require_order(answer)


_FACTOR, _HOT = 1.5, 4.0
_LIFT = 40.0
"""Added to the logit of a token, so that it is listed."""


def _require_order(answer: Answer) -> None:
    """A greedy token is the most probable of its group: of those emitted before, of the prompt's, or of new ones.

    Emitted ones, and perhaps those of the prompt, are lowered, so that none of them comes before a new one that was
    more probable.
    """
    tokens, prompt = _tokens_of(answer), set(answer.request.prompt)
    for at, position in enumerate(answer.choices[0].positions):
        known = set(tokens[:at])
        group = dict.fromkeys(prompt, "prompt") | dict.fromkeys(known, "emitted")
        own = group.get(position.token, "new")
        rivals = [(value, token) for token, value in position.top if group.get(token, "new") in (own, "new")]
        if position.logprob is None or not rivals:
            continue
        best, token = max(rivals, key=lambda one: one[0])
        effect = f"position {at}: greedy token {position.token!r} ({position.logprob:.4g}, {own}) came before {token!r}"
        effect = f"{effect} ({best:.4g}, {group.get(token, 'new')}), which was lowered by no more"
        require(best <= position.logprob + TOLERANCE, answer, effect)


def _require_factor(trial: Trial, number: int, answer: Answer) -> None:
    """Emitted tokens moved as one penalty moves logits that differ from the log-probabilities by one number."""
    tokens, prompt, positions = _tokens_of(answer), set(answer.request.prompt), answer.choices[0].positions
    scale = answer.request.temperature if trial.claims.after_temperature else 1.0
    for at, old in _unpenalised(trial, number, answer, scale).items():
        new, known = {token: scale * value for token, value in _own(positions[at]).items()}, set(tokens[:at])
        common = [token for token in old if token in new and min(old[token], new[token]) > scale * _LEAST]
        still = next((token for token in common if token not in known | prompt), None)
        if still is None:
            continue
        moved = {token: (new[token] - new[still]) - (old[token] - old[still]) for token in common}
        for token in common:
            effect = f"position {at}: the logit of token {token!r} moved by {moved[token]:.4g}"
            least = -float("inf") if token in known | prompt else -scale * TOLERANCE
            require(moved[token] <= scale * TOLERANCE, answer, f"{effect}; a penalty makes none more probable")
            require(moved[token] >= least, answer, f"{effect}, but it is new")
        own = {token: moved[token] for token in common if token in known}
        fits = [_is_factor(one, old, own, scale) for token in own for one in _offsets(old[token], moved[token])]
        said = ", ".join(f"{token!r} by {value:.3g}" for token, value in own.items())
        require(any(fits) or not own, answer, f"position {at}: logits moved: {said}; no penalty of {_FACTOR} does that")


def _own(position: Position) -> dict[Token, float]:
    """The list with the emitted token."""
    return dict(position.top) | ({} if position.logprob is None else {position.token: position.logprob})


def _unpenalised(trial: Trial, number: int, answer: Answer, scale: float) -> dict[int, dict[Token, float]]:
    """Of each position, the list times the temperature, as it is without a penalty.

    A token that is emitted again is lifted into it by a bias, which is subtracted.
    """
    tokens = _tokens_of(answer)
    can_lift = Capability.LOGIT_BIAS in trial.server.capabilities
    lifts = {at: {token: _LIFT} if can_lift and token in tokens[:at] else {} for at, token in enumerate(tokens) if at}
    plain = answer.request.replace(max_tokens=1, repetition_penalty=1.0)
    prefixes = [
        plain.replace(prompt=(*answer.request.prompt, *tokens[:at]), logit_bias=tuple(lift.items()))
        for at, lift in lifts.items()
    ]
    found = zip(lifts.items(), trial.ask(f"without repetition, {number}", prefixes), strict=True)
    return {
        at: {token: scale * value - lift.get(token, 0.0) for token, value in position.top}
        for (at, lift), one in found
        if (position := _first_position(one))
    }


def _offsets(logprob: float, moved: float) -> tuple[float, float]:
    """Logit minus log-probability, if the logit was positive (and divided), or negative (and multiplied)."""
    return -moved / (1 - 1 / _FACTOR) - logprob, moved / (_FACTOR - 1) - logprob


def _is_factor(offset: float, logprobs: Mapping[Token, float], moved: Mapping[Token, float], scale: float) -> bool:
    """Whether all tokens moved as their logits say, if these are the log-probabilities plus `offset`."""
    logits = {token: logprobs[token] + offset for token in moved}
    wanted = {token: -one * (1 - 1 / _FACTOR) if one > 0 else one * (_FACTOR - 1) for token, one in logits.items()}
    return all(abs(wanted[token] - moved[token]) <= TOLERANCE * max(scale, abs(logits[token])) for token in moved)


# -- ends -------------------------------------------------------------------------------------------------------------


@server_check("SRV161", (Capability.STOP_STRINGS, Capability.GREEDY), stage=Stage.SHAPE, num_requests=_NUM)
def a_stop_string_ends_the_text_before_it(trial: Trial) -> None:
    """With a stop string that a greedy answer holds, the same request gives the text before it, and says `stop`.

    A stop string that is found too late because it spans tokens, sent before it is recognised, or left in the text.
    """
    found = _stopping(trial)
    _require_stopped(trial.ask("stop", [request for request, _ in found]), [text for _, text in found])


def _require_stopped(answers: Sequence[Answer], texts: Sequence[str]) -> None:
    """The texts end before their stop strings, and say so."""
    for answer, text in zip(answers, texts, strict=True):
        (choice,), stop = answer.choices, answer.request.stop
        require(choice.text == text, answer, f"with stop={stop!r} the text is {choice.text!r}, not {text!r}")
        require(choice.finish_reason != "length", answer, f"the finish reason of stop={stop!r} is length")


def _stopping(trial: Trial) -> list[tuple[GenerationRequest, str]]:
    """Greedy requests with a stop string of two or five letters that their answer holds, and the text before it."""
    found = []
    for number, answer in enumerate(trial.take(GREEDY, _NUM)):
        text = answer.choices[0].text if answer.choices else ""
        middle, size = len(text) // 2, 5 if number % 2 else 2
        stop = text[middle : middle + size]
        if len(text) >= 4 and "\ufffd" not in text and stop.strip():
            found.append((answer.request.replace(stop=(stop,)), text[: text.index(stop)]))
    if not found:
        raise CapabilityUnsupported("stop-strings is unsupported: greedy answers hold too little text to stop in")
    return found


@server_check("SRV165", (Capability.STOP_STRINGS, Capability.GREEDY), stage=Stage.SHAPE, num_requests=_NUM)
def one_of_several_stop_strings_ends_the_text(trial: Trial) -> None:
    """The second of two stop strings ends the text, and what the first one held back before is there.

    Only the first of a list is looked for, or text that might have become one stop string is lost when another comes.
    """
    found = _stopping(trial)
    requests = [one.replace(stop=(f"{text[-1:]}~~~", *one.stop)) for one, text in found]  # it begins before the other
    _require_stopped(trial.ask("several stop strings", requests), [text for _, text in found])


@server_check("SRV162", (Capability.MIN_TOKENS,), stage=Stage.SHAPE, num_requests=24)
def a_text_does_not_end_before_min_tokens(trial: Trial) -> None:
    """With `min_tokens` equal to `max_tokens`, no choice ends by itself.

    The end token has no probability until then. A count that is off by one, or a mask that drafts do not see.
    """
    num_ended = sum(answer.choices[0].finish_reason == "stop" for answer in trial.take(PLAIN, 48))
    if num_ended < _LEAST_ENDS:
        raise CapabilityUnsupported(f"{num_ended} of 48 texts end by themselves, so min_tokens would change nothing")
    modes = ({}, *other_modes(trial.server.capabilities))
    plain = [PLAIN.request(number, trial.server, 0).replace(max_tokens=32, min_tokens=32) for number in range(24)]
    for answer in trial.ask("min tokens", [one.replace(**modes[n % len(modes)]) for n, one in enumerate(plain)]):
        choice = answer.choices[0]
        count = count_of(choice)
        require(count is None or count >= 32, answer, f"the text ended after {count} tokens, but min_tokens is 32")


_LEAST_ENDS = 4


@server_check(
    "SRV164", (Capability.STOP_STRINGS, Capability.MIN_TOKENS, Capability.GREEDY), stage=Stage.SHAPE, num_requests=_NUM
)
def a_stop_string_waits_for_min_tokens(trial: Trial) -> None:
    """With `min_tokens` equal to `max_tokens`, a stop string in the middle does not end the text.

    `min_tokens` masks the end token and nothing looks at it where stop strings are found. SGLang documents that stop
    strings end a text before `min_new_tokens`; there this is not required.
    """
    if not (trial.server.claims or Claims()).stop_waits:
        raise CapabilityUnsupported("min-tokens is unsupported for this: its stop strings need not wait, as documented")
    requests = [request.replace(min_tokens=request.max_tokens) for request, _ in _stopping(trial)]
    for answer in trial.ask("stop and min tokens", requests):
        choice, least = answer.choices[0], answer.request.min_tokens
        count = count_of(choice)
        effect = f"stop={answer.request.stop!r} ended the text after {count} tokens, but min_tokens is {least}"
        require(count is None or count >= least, answer, effect)


@server_check("SRV163", (*LISTS, Capability.BAD_WORDS, Capability.GREEDY), num_requests=4 * _NUM)
def bad_words_do_not_come(trial: Trial) -> None:
    """A word of one token, which a greedy answer holds, does not come if it is a bad word: at no place.

    Only the first token of an answer is masked, only the first of several words is, or only rows without drafts are.
    """
    found = _words(trial)
    if not found:
        raise CapabilityUnsupported("bad-words is unsupported: no greedy answer begins with words of one token")
    words = {word: token for _, word, token in found}
    requests = [answer.request.replace(bad_words=(word,), max_tokens=8) for answer, word, _ in found]
    every = PLAIN.request(0, trial.server, 0).replace(bad_words=tuple(words))
    requests += [every.replace(prompt=answer.request.prompt) for answer in trial.take(_ONE_GREEDY, _NUM)]
    if Capability.MIN_TOKENS in trial.server.capabilities:  # by turns
        requests = [one.replace(min_tokens=one.max_tokens * (n % 2)) for n, one in enumerate(requests)]
    for answer in trial.ask("bad words", requests):
        came = [word for word in answer.request.bad_words if words[word] in _tokens_of(answer)]
        require(not came, answer, f"the bad words {came!r} came: {answer.choices[0].text!r}")


def _words(trial: Trial) -> list[tuple[Answer, str, Token]]:
    """Greedy answers with the word and the token of their first places, where those are words without a space."""
    ladder = [_ONE_GREEDY, *(kind(f"{count} greedy tokens", temperature=0.0, max_tokens=count) for count in (2, 3))]
    rows = zip(*(trial.take(one, _NUM) for one in ladder), strict=True)
    found = []
    for row in rows:
        text = ""
        tokens: tuple[Token, ...] = ()
        for answer in row:
            now, made = _tokens_of(answer), answer.choices[0].text if answer.choices else ""
            if now[:-1] == tokens and made.startswith(text) and now:
                found.append((answer, made.removeprefix(text), now[-1]))
            text, tokens = made, now
    return [one for one in found if one[1].isascii() and one[1].isalnum()]
