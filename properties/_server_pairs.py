"""Properties that compare two ways to the same answer: streamed and whole, and a second server without speculation."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from fairdraw._core.checks import Stage
from fairdraw._core.failures import CapabilityUnsupported
from fairdraw.contracts import Answer, Capability, GenerationRequest, Position
from fairdraw.properties._server_check import GREEDY, LISTS, Trial, require, server_check
from fairdraw.properties._server_tokens import paired, require_same_greedy, shared, variation
from fairdraw.strategies._server_claims import TOLERANCE
from fairdraw.strategies._server_requests import PLAIN, pool_of

_NUM = 6


_LETTERS = ("Prices: 5 €, 10 €, 20 €", "café, thé, été, é", "😀 😃 😀 😃 😀")
"""Prompts whose texts go on with letters of several bytes, which several tokens may make."""


_NUM_STREAMED = 4


Ways = tuple[list[Answer], list[Answer]]
"""Answers as a whole, and streamed."""


def _pairs(trial: Trial) -> Ways:
    """The same requests as a whole and as a stream: greedy ones, seeded ones, and several choices."""
    requests = _repeatable(trial)
    whole, streamed = _both_ways(trial, "", requests)
    if Capability.N_CHOICES in trial.server.capabilities and requests[-1].seed is not None:
        with contextlib.suppress(CapabilityUnsupported):  # a server may refuse them
            choices = _both_ways(trial, " choices", [one.replace(n=2) for one in requests[-2:]])
            return whole + choices[0], streamed + choices[1]
    return whole, streamed


def _both_ways(trial: Trial, name: str, requests: Sequence[GenerationRequest]) -> Ways:
    whole = trial.ask(f"whole{name}", requests, alone=True)
    return whole, trial.ask(f"streamed{name}", [one.replace(stream=True) for one in requests], alone=True)


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


@server_check("SRV171", (Capability.STREAMING,), stage=Stage.SHAPE, num_requests=32, num_alone=32)
def a_stream_holds_the_same_text(trial: Trial) -> None:
    """The parts of a streamed answer make the text, the tokens and the finish reason of the answer as a whole.

    A part that is dropped or sent twice: at the end, where UTF-8 is incomplete, or where a step emits several tokens;
    parts of several choices that are mixed up.
    """
    _require_same_text(_pairs(trial))


def _require_same_text(pairs: Ways) -> None:
    for streamed, one, two in paired(*pairs):
        effect = f"streamed the text is {two.text[:80]!r}, as a whole {one.text[:80]!r}"
        require(one.text == two.text or _moved(one.positions, two.positions), streamed, effect)
        counts = (len(one.positions), len(two.positions))
        # A stream may hold texts alone.
        is_whole = counts[1] in (0, counts[0])
        require(is_whole, streamed, f"{counts[1]} tokens are streamed, of {counts[0]}")
        ends = (one.finish_reason, two.finish_reason)
        require(ends[0] == ends[1], streamed, f"streamed it ends with {ends[1]!r}, as a whole with {ends[0]!r}")


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
