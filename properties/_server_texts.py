"""Properties of texts: they need no log-probabilities, so that they hold for a server that returns none, too.

At a temperature of 100 a model's logits hardly matter: two texts of `_ENOUGH` tokens are equal by chance only where one
logit leads by more than some 500.
"""

from collections.abc import Sequence
from itertools import combinations

from fairdraw._core.checks import Stage
from fairdraw._core.failures import CapabilityUnsupported
from fairdraw.contracts import Answer, Capability, GenerationRequest, NoAnswer
from fairdraw.properties._server_answers import answers_of_all_kinds
from fairdraw.properties._server_check import LISTS, Trial, failure, require, server_check
from fairdraw.properties._server_tokens import require_same_greedy
from fairdraw.strategies._server_requests import PLAIN, SPACES

_HOT = 100.0
_NUM = 4
_ENOUGH = 8
"""Tokens of a text, or characters where the server does not count: shorter ones are not compared."""


def _hot(trial: Trial) -> GenerationRequest:
    return PLAIN.request(0, trial.server, 0).replace(temperature=_HOT, logprobs=None)


def _require_other_texts(answers: Sequence[Answer], what: str) -> None:
    """No two of the texts are equal."""
    for one, two in combinations(answers, 2):
        mine, theirs = one.choices[0], two.choices[0]
        if mine.text == theirs.text and min(len(mine.text), mine.num_tokens or len(mine.text)) >= _ENOUGH:
            effect = f"{what}, two of {len(answers)} texts at temperature {_HOT:g} are {mine.text[:60]!r}"
            raise failure(two, effect)


@server_check("SRV147", stage=Stage.INDEPENDENCE, num_requests=2 * _NUM, num_alone=2 * _NUM)
def texts_at_a_high_temperature_differ(trial: Trial) -> None:
    """At temperature 100 the same request gives another text each time, without a seed and with other seeds.

    The temperature is ignored, most often because sampling is a switch of its own that nobody turned on, so that every
    answer is greedy; or each request begins with the same random numbers.
    """
    _require_other_texts(trial.ask("hot", [_hot(trial)] * _NUM, alone=True), "without a seed")
    if Capability.REQUEST_SEEDS in trial.server.capabilities:
        seeded = [_hot(trial).replace(seed=seed) for seed in range(1, _NUM + 1)]
        _require_other_texts(trial.ask("hot, other seeds", seeded, alone=True), "with other seeds")


@server_check(
    "SRV148", (Capability.REQUEST_SEEDS,), stage=Stage.INDEPENDENCE, num_requests=2 * _NUM, num_alone=2 * _NUM
)
def a_seed_is_not_left_to_the_next_request(trial: Trial) -> None:
    """A request without a seed gives another text each time, also where a request with a seed came before it.

    The seed of a request is set for the whole process, and what comes next goes on from there: everybody who asks
    behind the same seeded request gets the same answer.
    """
    seeded = _hot(trial).replace(seed=5)
    answers = trial.ask("after a seed", [seeded, _hot(trial)] * _NUM, alone=True)
    _require_other_texts(answers[1::2], "after a request with seed 5")


@server_check("SRV149", LISTS, stage=Stage.SHAPE)
def the_tokens_are_those_of_the_text(trial: Trial) -> None:
    """The texts of the tokens that log-probabilities are listed for, one after the other, make the text.

    Log-probabilities of another token than the emitted one: the most probable, the drafted, or the first of a list that
    is not sorted. (Texts that are not ASCII are left out: bytes of a character may belong to several tokens.)
    """
    answers = answers_of_all_kinds(trial)
    if not any(position.text for answer in answers for choice in answer.choices for position in choice.positions):
        raise CapabilityUnsupported("texts of tokens are unsupported: its answers hold ids of tokens instead")
    for answer in answers:
        for choice in answer.choices:
            joined = "".join(position.text for position in choice.positions).translate(SPACES)
            text = choice.text.strip()
            # An end token has a text in some servers; a stop string is cut off.
            is_same = joined.strip().startswith(text)
            effect = f"the tokens are {joined[:60]!r}, the text is {choice.text[:60]!r}"
            require(is_same or not joined or not (joined + text).isascii(), answer, effect)


@server_check("SRV191", stage=Stage.SHAPE, num_requests=14, num_alone=14)
def values_that_mean_nothing_leave_the_server_well(trial: Trial) -> None:
    """A request with a value that means nothing is refused or answered. It breaks neither the connection nor what
    comes after it: greedy answers are the same. A prompt with an id beyond every vocabulary is refused.

    A value that only the engine looks at: an exception there ends the request with HTTP 500, or all of them, and an id
    reads memory behind a table. Servers that take a value as its nearest sound one (a temperature below 0 as 0) pass.
    """
    plain = PLAIN.request(0, trial.server, 0).replace(max_tokens=2)
    well = plain.replace(temperature=0.0) if Capability.GREEDY in trial.server.capabilities else None
    before = trial.ask("before nonsense", [well] if well else [], alone=True)
    wrong = [plain.replace(**{name: value}) for name, value in _NONSENSE]
    wrong += [plain.replace(prompt=(2**30, 2**30))] if Capability.TOKEN_IDS in trial.server.capabilities else []
    trial.num_judged += len(wrong)
    for number, request in enumerate(wrong):
        try:
            (answer,) = trial.pool.extend(trial.server, f"nonsense {number}", [request])
        except NoAnswer as error:
            raise failure(Answer(request), f"a request with {_worded(request, plain)} broke: {error}") from None
        is_known = isinstance(request.prompt, str)
        require(is_known or bool(answer.refused), answer, "a prompt with token id 2**30 is answered")
    after = trial.ask("after nonsense", [well] if well else [], alone=True)
    require_same_greedy(before, after, "after requests with values that mean nothing")


_NONSENSE = (("temperature", -1.0), ("top_p", -0.5), ("top_p", 1.5), ("max_tokens", 0), ("presence_penalty", 1e30))


def _worded(request: GenerationRequest, plain: GenerationRequest) -> str:
    """Return the field in which a request is another one."""
    return ", ".join(f"{name}={value!r}" for name, value in vars(request).items() if value != getattr(plain, name))
