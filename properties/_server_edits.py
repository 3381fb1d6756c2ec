"""Properties of what changes logits or ends a text: bias, penalties, bad words, min tokens, stop strings."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from fairdraw._core.checks import Stage
from fairdraw._core.failures import CapabilityUnsupported
from fairdraw.properties._server_check import Trial, require, server_check
from fairdraw.protocols import Capability
from fairdraw.strategies._server_claims import AT_ONE, TOLERANCE
from fairdraw.strategies._server_requests import PENALISED, PLAIN, kind

if TYPE_CHECKING:
    from fairdraw.protocols import Answer, GenerationRequest, Position
    from fairdraw.protocols._server import Token

_LISTS = (Capability.TOP_LOGPROBS,)
_BIASED = (*_LISTS, Capability.TOKEN_IDS, Capability.LOGIT_BIAS)
_NUM = 8
_GREEDY = kind("greedy", temperature=0.0)
_ONE_GREEDY = kind("one greedy token", temperature=0.0, max_tokens=1)


def _tokens_of(answer: Answer) -> tuple[Token, ...]:
    return answer.choices[0].tokens if answer.choices else ()


def _listed_tokens(answer: Answer) -> list[Token]:
    """Tokens of the first list, the most probable first."""
    positions = answer.choices[0].positions if answer.choices else ()
    return [token for token, _ in sorted(positions[0].top, key=lambda one: -one[1])] if positions else []


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
    for answer in trial.ask("bias +100", requests):
        (wanted, _), *_ = answer.request.logit_bias
        others = [token for token in _tokens_of(answer) if token != wanted]
        require(not others, answer, f"token {wanted!r} has a bias of +100, but {others[:3]!r} came")


@server_check("SRV152", _BIASED, num_requests=_NUM)
def a_bias_of_minus_100_forbids_its_tokens(trial: Trial) -> None:
    """Tokens with a bias of -100 do not come: those that a greedy request without the bias has emitted.

    A bias that is applied at the first position only, or lost for tokens that were drafted.
    """
    plain = trial.take(_GREEDY, _NUM)
    banned = [tuple((token, -100.0) for token in sorted(set(_tokens_of(answer)), key=str)) for answer in plain]
    requests = [answer.request.replace(logit_bias=bias) for answer, bias in zip(plain, banned, strict=True)]
    for answer in trial.ask("bias -100", requests):
        forbidden = {token for token, _ in answer.request.logit_bias}
        came = [token for token in _tokens_of(answer) if token in forbidden]
        require(not came, answer, f"tokens {came[:3]!r} have a bias of -100 and came")


@server_check("SRV153", _BIASED, num_requests=_NUM // 2)
def a_bias_moves_the_log_odds_by_as_much(trial: Trial) -> None:
    """A bias of 2 moves the log-odds between its token and others by 2; log-probabilities that are raw do not move.

    A bias that is applied twice, after the temperature, or to the probabilities.
    """
    plain, requests = trial.take(AT_ONE, _NUM // 2), []
    for answer in plain:
        chosen = _listed_tokens(answer)[1:2]
        requests += [answer.request.replace(logit_bias=tuple((token, 2.0) for token in chosen))]
    shift = 2.0 if trial.claims.after_edits else 0.0
    for before, after in zip(plain, trial.ask("bias +2", requests), strict=True):
        if not (after.request.logit_bias and before.choices[0].positions and after.choices[0].positions):
            continue
        (token, _), *_ = after.request.logit_bias
        _require_shift(before.choices[0].positions[0], after, 0, {token: shift})


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
    answers = trial.ask("penalties", [one.replace(prompt=ids) for one in _penalised(trial)])
    for number, answer in enumerate(answers):
        tokens = _tokens_of(answer)
        places = range(0, min(len(tokens), len(answer.choices[0].positions)), 2)
        plain = PLAIN.request(0, trial.server, 0).replace(max_tokens=1)
        prefixes = [plain.replace(prompt=(*ids, *(int(token) for token in tokens[:at]))) for at in places]
        replayed = trial.ask(f"without penalties, {number}", prefixes)
        for at, other in zip(places, replayed, strict=True):
            if other.choices and other.choices[0].positions:
                _require_shift(other.choices[0].positions[0], answer, at, _shifts(trial, answer, tokens[:at]))


def _penalised(trial: Trial) -> list[GenerationRequest]:
    return [PENALISED.request(number, trial.server, trial.pool.seed) for number in range(_NUM)]


def _shifts(trial: Trial, answer: Answer, before: tuple[Token, ...]) -> dict[Token, float]:
    """What the request's penalties take from each token."""
    if not trial.claims.after_edits:
        return {}
    one = answer.request
    return {token: -one.frequency_penalty * count - one.presence_penalty for token, count in Counter(before).items()}


def _ids_prompt(trial: Trial) -> tuple[int, ...]:
    """Token ids that the server itself emitted, as a prompt."""
    tokens = [token for answer in trial.pool.take(trial.server, PLAIN, 2) for token in _tokens_of(answer)[:4]]
    if not tokens or not all(isinstance(token, int) for token in tokens):
        raise CapabilityUnsupported("token-ids is unsupported: no prompt of token ids can be made")
    return tuple(int(token) for token in tokens)


# -- ends -------------------------------------------------------------------------------------------------------------


@server_check("SRV161", (Capability.STOP_STRINGS, Capability.GREEDY), stage=Stage.SHAPE, num_requests=_NUM)
def a_stop_string_ends_the_text_before_it(trial: Trial) -> None:
    """With a stop string that a greedy answer holds, the same request gives the text before it, and says `stop`.

    A stop string that is found too late because it spans tokens, sent before it is recognised, or left in the text.
    """
    plain, wanted, requests = trial.take(_GREEDY, _NUM), [], []
    for answer in plain:
        text = answer.choices[0].text if answer.choices else ""
        stop = text[len(text) // 2 : len(text) // 2 + 2]
        if len(text) >= 4 and "\ufffd" not in text and stop.strip():
            requests.append(answer.request.replace(stop=(stop,)))
            wanted.append(text[: text.index(stop)])
    if not requests:
        raise CapabilityUnsupported("stop-strings is unsupported: greedy answers hold too little text to stop in")
    for answer, text in zip(trial.ask("stop", requests), wanted, strict=True):
        (choice,), (stop,) = answer.choices, answer.request.stop
        require(choice.text == text, answer, f"with stop={stop!r} the text is {choice.text!r}, not {text!r}")
        require(choice.finish_reason != "length", answer, f"the finish reason of stop={stop!r} is length")


@server_check("SRV162", (Capability.MIN_TOKENS,), stage=Stage.SHAPE, num_requests=16)
def a_text_does_not_end_before_min_tokens(trial: Trial) -> None:
    """With `min_tokens` equal to `max_tokens`, no choice ends by itself.

    The end token has no probability until then. A count that is off by one, or a mask that drafts do not see.
    """
    num_ended = sum(answer.choices[0].finish_reason == "stop" for answer in trial.take(PLAIN, 48))
    if num_ended < _LEAST_ENDS:
        raise CapabilityUnsupported(f"{num_ended} of 48 texts end by themselves, so min_tokens would change nothing")
    requests = [PLAIN.request(number, trial.server, 0).replace(max_tokens=32, min_tokens=32) for number in range(16)]
    for answer in trial.ask("min tokens", requests):
        choice = answer.choices[0]
        count = len(choice.positions) or choice.num_tokens
        require(count is None or count >= 32, answer, f"the text ended after {count} tokens, but min_tokens is 32")


_LEAST_ENDS = 4


@server_check("SRV163", (*_LISTS, Capability.BAD_WORDS, Capability.GREEDY), num_requests=_NUM)
def bad_words_do_not_come(trial: Trial) -> None:
    """A word of one token, with which a greedy answer begins, does not come if it is a bad word.

    Only the first token of a word is looked at, or only rows without drafts are.
    """
    first = [answer for answer in trial.take(_ONE_GREEDY, _NUM) if _tokens_of(answer)]
    words = {_tokens_of(answer)[0]: answer.choices[0].text for answer in first}
    words = {token: text for token, text in words.items() if text.isascii() and text.isalnum()}  # no space before it
    chosen = [answer for answer in first if _tokens_of(answer)[0] in words]
    requests = [
        answer.request.replace(bad_words=(words[_tokens_of(answer)[0]],), max_tokens=8, temperature=temperature)
        for answer in chosen
        for temperature in (0.0, 1.0)
    ]
    if not requests:
        raise CapabilityUnsupported("bad-words is unsupported: no greedy answer begins with a word of one token")
    tokens = {text: token for token, text in words.items()}
    for answer in trial.ask("bad words", requests):
        (word,) = answer.request.bad_words
        came = tokens[word] in _tokens_of(answer)
        require(not came, answer, f"the bad word {word!r} came: {answer.choices[0].text!r}")
