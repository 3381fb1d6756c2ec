"""Properties that compare two ways to the same answer: streamed and whole, and a second server without speculation."""

import contextlib
from collections.abc import Sequence
from typing import Any

from fairdraw._core.checks import Stage
from fairdraw._core.failures import CapabilityUnsupported
from fairdraw.contracts import Answer, Capability, GenerationRequest, Position
from fairdraw.properties._server_check import GREEDY, LISTS, Trial, require, server_check
from fairdraw.properties._server_tokens import paired, require_same_greedy, shared, strong, variation
from fairdraw.strategies._server_claims import TOLERANCE
from fairdraw.strategies._server_requests import PLAIN, other_modes, pool_of

_NUM = 6


_LETTERS = ("Prices: 5 €, 10 €, 20 €", "café, thé, été, é", "😀 😃 😀 😃 😀")
"""Prompts whose texts go on with letters of several bytes, which several tokens may make."""


_NUM_STREAMED = 4


Ways = tuple[list[Answer], list[Answer]]
"""Answers to plain requests, and to the same ones in other modes."""


def _pairs(trial: Trial) -> Ways:
    """Plain requests and the same ones in another mode: greedy, seeded, of several choices, with two parameters."""
    can, requests = trial.server.capabilities, _repeatable(trial)
    modes = other_modes(can)
    found = [_both_ways(trial, "", requests, modes[:1])]
    changes: list[dict[str, Any]] = [{}, *strong(trial, found[0][0])]  # Any: as the fields of a request
    groups = [[one.replace(n=2) for one in requests[-2:]]] if Capability.N_CHOICES in can and requests[-1].seed else []
    for number, change in enumerate(changes):
        places = (9 * number + 4 * place for place in range(len(modes)))  # greedy ones and seeded ones by turns
        both = change | changes[number - 2]
        groups.append([requests[place % len(requests)].replace(**both) for place in places])
    for number, group in enumerate(groups):
        with contextlib.suppress(CapabilityUnsupported):  # a server may refuse some
            found.append(_both_ways(trial, f", group {number}", group, modes))
    plain, other = ([answer for pair in found for answer in pair[side]] for side in (0, 1))
    return plain, other


def _both_ways(
    trial: Trial,
    name: str,
    requests: Sequence[GenerationRequest],
    modes: Sequence[dict[str, Any]] = ({"stream": True},),
) -> Ways:  # Any: as the fields of a request
    """Return answers to requests alone, plainly and in these modes by turns; a greedy one then has a seed, too."""
    others = [one.replace(**modes[number % len(modes)]) for number, one in enumerate(requests)]
    if Capability.REQUEST_SEEDS in trial.server.capabilities:
        others = [one.replace(seed=5) if one.is_greedy else one for one in others]
    return trial.ask(f"whole{name}", requests, alone=True), trial.ask(f"otherwise{name}", others, alone=True)


def _repeatable(trial: Trial) -> list[GenerationRequest]:
    """Requests whose answers can be repeated; the seeded ones come last."""
    can, plain = trial.server.capabilities, [PLAIN.request(number, trial.server, 0) for number in range(_NUM_STREAMED)]
    plain += [plain[0].replace(prompt=prompt) for prompt in _LETTERS]
    found = [one.replace(temperature=0.0) for one in plain] if Capability.GREEDY in can else []
    if Capability.REQUEST_SEEDS in can:
        found += [one.replace(seed=70 + number) for number, one in enumerate(plain)]
    if not found:
        raise CapabilityUnsupported("greedy and request-seeds are unsupported: no answer can be repeated")
    return found


@server_check("SRV171", stage=Stage.SHAPE, num_requests=86, num_alone=86)
def an_answer_is_the_same_in_every_mode(trial: Trial) -> None:
    """A greedy or seeded request has one text, the same tokens and finish reason: as a whole and streamed, with a list
    and without, a greedy one with a seed and without, whatever two parameters it has.

    A part of a stream that is dropped or sent twice: at the end, where UTF-8 is incomplete, or where a step emits
    several tokens; parts of several choices that are mixed up. Another path without lists, which ignores a parameter.
    """
    _require_same_text(_pairs(trial))


def _require_same_text(pairs: Ways) -> None:
    for other, one, two in paired(*pairs):
        how = _mode_of(other.request)
        effect = f"{how} the text is {two.text[:80]!r}, and else {one.text[:80]!r}"
        require(one.text == two.text or _moved(one.positions, two.positions), other, effect)
        counts = (len(one.positions), len(two.positions))
        # A stream may hold texts alone.
        is_whole = counts[1] in (0, counts[0])
        require(is_whole, other, f"{how} there are {counts[1]} tokens, and else {counts[0]}")
        ends = (one.finish_reason, two.finish_reason)
        require(ends[0] == ends[1], other, f"{how} it ends with {ends[1]!r}, and else with {ends[0]!r}")


def _mode_of(request: GenerationRequest) -> str:
    """Return what is not plain about a request."""
    seed = request.is_greedy and request.seed is not None
    words = {"streamed": request.stream, "without a list": request.logprobs is None, "with a seed": seed}
    return ", ".join(word for word, holds in words.items() if holds)


def _moved(ones: tuple[Position, ...], twos: tuple[Position, ...]) -> bool:
    """Whether the model gave other log-probabilities for the same prefix, so that tokens may differ."""
    for one, two in zip(ones, twos, strict=False):
        if one.top and two.top and not _are_near(one, two, 1e-6):
            return True
        if one.token != two.token:
            return False
    return False


def _are_near(one: Position, two: Position, tolerance: float) -> bool:
    return all(abs(mine - theirs) <= tolerance * max(1.0, abs(mine)) for mine, theirs in shared(one, two))


@server_check("SRV172", (*LISTS, Capability.STREAMING), stage=Stage.SHAPE)
def a_stream_holds_the_same_log_probabilities(trial: Trial) -> None:
    """Each streamed token comes with the list that it has in the answer as a whole.

    Lists that lag behind their tokens by a part, or that are sent for the first token of a part only.
    """
    pairs = _pairs(trial)
    if not any(choice.positions for streamed in pairs[1] for choice in streamed.choices):
        raise CapabilityUnsupported("streaming is unsupported for this: its streams hold no log-probabilities")
    for streamed, one, two in paired(*pairs):
        if streamed.request.logprobs is None:
            continue
        for number, (mine, theirs) in enumerate(zip(one.positions, two.positions, strict=False)):
            if mine.token != theirs.token:
                break
            require(bool(theirs.top), streamed, f"position {number}: no list is streamed")
            require(_are_near(mine, theirs, TOLERANCE), streamed, f"position {number}: the streamed list is another")


@server_check(
    "SRV173", (Capability.STREAMING, Capability.STOP_STRINGS), stage=Stage.SHAPE, num_requests=28, num_alone=28
)
def a_stream_with_stop_strings_holds_the_same_text(trial: Trial) -> None:
    """A streamed answer with stop strings has the text of the answer as a whole, whether one of them comes or not.

    What may become a stop string is held back. It is sent although it becomes one, or lost although it does not: when
    the text ends by its length in between.
    """
    requests = _repeatable(trial)
    whole = trial.ask("whole", requests, alone=True)
    texts = [(one, answer.choices[0].text) for one, answer in zip(requests, whole, strict=True) if answer.choices]
    # The first begins with the last letter of the text, so that this letter is held back; the second comes.
    chosen = [one.replace(stop=(f"{text[-1]}~~~",)) for one, text in texts if text][::2]
    chosen += [one.replace(stop=(text[len(text) // 2 :][:2],)) for one, text in texts if text.strip()][1::2]
    _require_same_text(_both_ways(trial, " stop", chosen))


@server_check("SRV181", (*LISTS, Capability.GREEDY), stage=Stage.PAIRS, differential=True, num_requests=_NUM)
def greedy_answers_equal_those_of_the_reference(trial: Trial) -> None:
    """Greedy requests give the tokens that the second server gives, unless two tokens are almost equally probable.

    The second server is the same one without speculation (`--reference ADDRESS`). A draft that is accepted although it
    is not the most probable token, or a token that is lost when a draft is rejected.
    """
    mine = trial.take(GREEDY, _NUM)
    require_same_greedy(_of_reference(trial), mine, "beside the reference")


def _of_reference(trial: Trial) -> list[Answer]:
    assert trial.reference is not None, "differential checks have one"
    return pool_of(trial.reference, trial.pool.seed).take(trial.reference, GREEDY, _NUM)


@server_check("SRV182", (*LISTS, Capability.GREEDY), stage=Stage.PAIRS, differential=True)
def log_probabilities_equal_those_of_the_reference(trial: Trial) -> None:
    """As long as greedy tokens are the same, the lists of both servers are: within a total variation of 0.02.

    Log-probabilities of the draft model, or of the position before; a cache that a rejected draft has changed.
    """
    mine = trial.take(GREEDY, _NUM)
    for answer, one, two in paired(_of_reference(trial), mine):
        for number, (theirs, own) in enumerate(zip(one.positions, two.positions, strict=False)):
            distance = variation(own, theirs)
            require(distance <= _MOST_APART, answer, f"position {number}: total variation {distance:.3g}")
            if own.token != theirs.token:
                break


_MOST_APART = 0.02
