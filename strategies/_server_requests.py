"""What a run asks a server: kinds of requests, and the pool of their answers, which all checks of a run share.

Requests are the cost of a run. Each kind is an endless list that follows from the run's seed, so that a check takes the
first so many answers, and the next check takes the same ones. What was answered before a server died is kept.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fairdraw._core.checks import Profile
from fairdraw._core.failures import CapabilityUnsupported, Inconclusive, calling
from fairdraw._core.seeds import derive_seed
from fairdraw._core.wrapping import unwrapped
from fairdraw.contracts import Answer, Capabilities, Capability, GenerationRequest, NoAnswer, Server
from fairdraw.strategies._covering import covering_rows

PROMPTS = (
    "The weather today is",
    "Once upon a time",
    "def main():",
    "A list of colours: red,",
    "1, 2, 3, 4,",
    "My favourite animal is",
    "In the year 2050",
    "Dear Sir or Madam,",
)
"""Short and public. The user's own replace them."""

SPACES = str.maketrans({"Ġ": " ", "▁": " ", "Ċ": "\n"})
"""Blanks and ends of lines as tokenizers write them inside of a token, and as texts have them."""

TOKENS_EACH = 16
"""Of a request that distributions are judged by."""

_AT_ONCE = 4
"""Calls of `generate` hold so many times the concurrency: few enough that little is lost with a server that dies."""


@dataclass(frozen=True)
class Kind:
    """A kind of requests: an endless list.

    Args:
        settings: Fields of all of them.
        seeded: Each has a seed; two neighbours have the same prompt, and seeds that follow each other.
        is_mixed: Each has parameters of its own, every two values of which some request has together.
    """

    name: str
    settings: tuple[tuple[str, object], ...] = ()
    seeded: bool = False
    is_mixed: bool = False
    has_lists = True

    def request(self, number: int, server: Server, seed: int) -> GenerationRequest:
        """The request of that number."""
        prompts = server.settings.prompts or PROMPTS
        prompt = prompts[(number // 2 if self.seeded else number) % len(prompts)]
        # Servers take 31 bits.
        own = derive_seed("pair", seed, self.name, number // 2) % 2**30 * 2 + number % 2 if self.seeded else None
        base = GenerationRequest(prompt, max_tokens=TOKENS_EACH, logprobs=server.settings.logprobs or None, seed=own)
        return base.replace(**dict(self.settings), **(_mixture(number, server, seed) if self.is_mixed else {}))

    def is_supported(self, can: Capabilities) -> bool:
        """Whether a server takes such requests."""
        names = [*dict(self.settings), *["seed"] * self.seeded]
        return all(_NEEDED[name] in can for name in names if name in _NEEDED)


CHANGES = ("top_k", "top_p", "min_p", "frequency_penalty", "presence_penalty", "logit_bias")
MODES = {
    "list": ("with a list", "without a list"),
    "sent": ("whole", "streamed"),
    "seed": ("no seed", "per-request seed"),
    "choices": ("one choice", "several choices"),
    "prompt": ("a text", "token ids"),
    "change": ("no change", *CHANGES),
}
"""How a request may be made, the usual mode first."""


def modes_of(request: GenerationRequest, *, has_list: bool) -> tuple[str, ...]:
    """Return the mode of a request for each feature of `MODES`."""
    change = next((place for place, name in enumerate(CHANGES, 1) if getattr(request, name)), 0)
    own = (not has_list, request.stream, request.seed is not None, request.n > 1, not isinstance(request.prompt, str))
    return tuple(words[place] for words, place in zip(MODES.values(), (*own, change), strict=True))


def other_modes(can: Capabilities) -> tuple[dict[str, Any], ...]:  # Any: as the fields of a request
    """Return what makes a request another one than most of a run: a stream, no list, both."""
    modes: tuple[dict[str, Any], ...] = ({"stream": True}, {"stream": True, "logprobs": None}, {"logprobs": None})
    return modes if Capability.STREAMING in can else modes[2:]


TEMPERATURES = (1.0, 0.6, 1.5, 0.3, 2.0, 0.0)
"""Of requests of all kinds."""

_CUTS = {"top_k": (4, 1, 2, 10), "top_p": (0.7, 0.05, 0.3, 0.95), "min_p": (0.2, 0.01, 0.5, 1.0)}
_BOTH = tuple({"top_k": top_k, "min_p": min_p} for top_k, min_p in ((4, 0.01), (10, 0.2)))
FILTERS: tuple[dict[str, float], ...] = ({}, *({name: one} for name, values in _CUTS.items() for one in values), *_BOTH)
"""One at most, or two that leave the same in any order: the order of others is the server's own."""

_BENDS = {"frequency_penalty": (1.0, -0.5, 2.0), "presence_penalty": (0.5, -1.0, 2.0)}
PENALTIES: tuple[dict[str, float], ...] = ({}, *({name: one} for name, values in _BENDS.items() for one in values))
"""One at most: a failure then names it."""

_NEEDED = {
    "top_k": Capability.TOP_K,
    "top_p": Capability.TOP_P,
    "min_p": Capability.MIN_P,
    "frequency_penalty": Capability.PENALTIES,
    "presence_penalty": Capability.PENALTIES,
    "logit_bias": Capability.LOGIT_BIAS,
    "stop": Capability.STOP_STRINGS,
    "min_tokens": Capability.MIN_TOKENS,
    "n": Capability.N_CHOICES,
    "seed": Capability.REQUEST_SEEDS,
}


def supported(choices: Sequence[dict[str, Any]], capabilities: Capabilities) -> list[dict[str, Any]]:
    """Those of some settings that a server takes. Any: as the fields of a request."""
    return [one for one in choices if all(_NEEDED[name] in capabilities for name in one)]


def _mixture(number: int, server: Server, seed: int) -> dict[str, Any]:  # Any: as the fields of a request
    """Return the parameters of one request among others of all kinds."""
    can, ids = server.capabilities, own_ids(server, seed)
    # A token has one bias: of two, servers take the first, the last or their sum.
    biases = [{"logit_bias": tuple({ids[-1]: -bias, ids[0]: bias}.items())} for bias in (4.0, -2.0) if ids]
    values: dict[str, Sequence[Any]] = {
        "temperature": TEMPERATURES if Capability.GREEDY in can else TEMPERATURES[:-1],
        "filter": [{}] * 6 + supported(FILTERS, can),  # a list may say too little of what one leaves
        "edit": [{}] * 3 + supported([*PENALTIES, *biases], can),
        "n": (1, 2, 4, 3) if Capability.N_CHOICES in can else (1,),
        "max_tokens": (TOKENS_EACH, TOKENS_EACH - 1, 7),
        "logprobs": (None, *(most - less for less in (1, 15) if (most := server.settings.logprobs) > 15)),
        "seed": (None, derive_seed("mixture", seed, number) % 2**31)[: 1 + (Capability.REQUEST_SEEDS in can)],
        "prompt": (None, ids)[: 1 + bool(ids)],
        "stream": (False, True)[: 1 + (Capability.STREAMING in can)],
    }
    rows = covering_rows(tuple(map(len, values.values())), seed=seed)
    turn, row = divmod(number, len(rows))  # values that stand for each other by turns still cover all pairs
    shifts = [derive_seed("turn", seed, turn, name) for name in values]
    chosen = zip(values.items(), rows[row], shifts, strict=True)
    settings = {name: choices[(place + by) % len(choices)] for (name, choices), place, by in chosen}
    changes: dict[str, Any] = settings.pop("filter") | settings.pop("edit")
    return changes | {name: value for name, value in settings.items() if value is not None}


def own_ids(server: Server, seed: int) -> tuple[int, ...]:
    """Return token ids that the server itself emitted in this run, for a prompt; none if its tokens are texts."""
    answers = pool_of(server, seed).take(server, PLAIN, 2) if Capability.TOKEN_IDS in server.capabilities else []
    tokens = [token for answer in answers for choice in answer.choices[:1] for token in choice.tokens[:4]]
    return tuple(int(token) for token in tokens) if all(isinstance(token, int) for token in tokens) else ()


def kind(name: str, **settings: object) -> Kind:
    """A kind, by its fields."""
    return Kind(name, tuple(settings.items()))


PLAIN = kind("temperature 1")
TOP_K, TOP_P, MIN_P = kind("top-k 4", top_k=4), kind("top-p 0.7", top_p=0.7), kind("min-p 0.2", min_p=0.2)
CONSECUTIVE_SEEDS = Kind("consecutive seeds", seeded=True)
FOUR_CHOICES = kind("four choices", n=4)
MIXED = Kind("requests of all kinds", is_mixed=True)

_BLOCK = 8
"""Plain requests that are sent alike: blocks have one choice, several, a stream, and several streams."""


class PlainKind(Kind):
    """Requests of one token without a list, as most users send them; two neighbours have the same prompt."""

    has_lists = False

    def request(self, number: int, server: Server, seed: int) -> GenerationRequest:
        """The request of that number."""
        made = super().request(number if self.is_mixed else number // 2, server, seed)
        can, block = server.capabilities, number // _BLOCK
        n, stream = 4 if Capability.N_CHOICES in can and block % 2 else 1, Capability.STREAMING in can and block % 4 > 1
        return made.replace(max_tokens=1, logprobs=None, **({} if self.is_mixed else {"n": n, "stream": stream}))


COLD = kind("temperature 0.3", temperature=0.3)
PLAIN_KINDS = tuple(PlainKind(f"plain, {one.name}", one.settings) for one in (PLAIN, COLD, TOP_K, TOP_P, MIN_P))
MIXED_WITHOUT_LISTS = PlainKind("requests of all kinds without lists", is_mixed=True)

_TOKENS = {"smoke": 4_000, "ci": 20_000, "nightly": 400_000}
"""Of a profile; a server's own settings replace them."""


def num_tokens(server: Server, profile: Profile) -> int:
    """How many tokens distributions are judged by, all kinds of requests together."""
    return server.settings.tokens or round(_TOKENS.get(profile.name, _TOKENS["ci"]) * profile.scale)


@dataclass
class Pool:
    """The answers of one server in one run.

    Args:
        answers: By the name of what was asked.
        num_requests: Made so far.
        judged: By the code of a check, the modes of the request of each token that it judged.
        silent: Why the server does not answer any more; empty as long as it does. It is not tried again.
    """

    seed: int
    answers: dict[str, list[Answer]] = field(default_factory=dict)
    num_requests: int = 0
    judged: dict[str, list[tuple[str, ...]]] = field(default_factory=dict)
    silent: str = ""

    def take(self, server: Server, one: Kind, count: int) -> list[Answer]:
        """The first `count` answers of a kind."""
        known = len(self.answers.get(one.name, ()))
        wanted = [one.request(number, server, self.seed) for number in range(known, count)]
        answers = self.extend(server, one.name, wanted)[:count]
        return answers if one.is_mixed else _taken(answers)  # requests of all kinds have nothing in common

    def ask(
        self, server: Server, name: str, requests: Sequence[GenerationRequest], *, alone: bool = False
    ) -> list[Answer]:
        """The answers to these requests, which are made once under this name.

        Args:
            alone: One after the other; otherwise all of them are on their way together.
        """
        name = f"these: {name}"  # a kind may have the same name
        known = len(self.answers.get(name, ()))
        answers = self.extend(server, name, requests[known:], at_once=1 if alone else len(requests))
        return _taken(answers)[: len(requests)]

    def extend(
        self, server: Server, name: str, requests: Sequence[GenerationRequest], *, at_once: int | None = None
    ) -> list[Answer]:
        """Return all answers under this name, after these requests.

        Raises:
            Inconclusive: If the run may make no more requests.
        """
        answers = self.answers.setdefault(name, [])
        size = at_once or _AT_ONCE * server.settings.concurrency
        for first in range(0, len(requests), size):
            part = requests[first : first + size]
            self._require(server, len(part))
            try:
                answers += self._answered(server, part)
            except NoAnswer as error:
                self.silent = "" if self._answers_plainly(server) else str(error)
                raise
        return answers

    def _answered(self, server: Server, requests: Sequence[GenerationRequest]) -> list[Answer]:
        self.num_requests += len(requests)
        with calling(unwrapped(server)):
            return server.generate(requests)

    def _answers_plainly(self, server: Server) -> bool:
        """Whether the server still answers a plain request: then only requests of that kind break."""
        try:
            (answer,) = self._answered(server, [PLAIN.request(0, server, self.seed)])
        except NoAnswer:
            return False
        return not answer.refused

    def _require(self, server: Server, count: int) -> None:
        if self.silent:
            raise NoAnswer(self.silent)
        most = server.settings.requests
        if most is not None and self.num_requests + count > most:
            raise Inconclusive(f"too few requests: --requests {most} are used up. Allow more.")


def _taken(answers: list[Answer]) -> list[Answer]:
    """Return the answers; raises `CapabilityUnsupported` if the server refused one."""
    if refusal := next((answer.refused for answer in answers if answer.refused), ""):
        raise CapabilityUnsupported(f"the server refuses such a request: {refusal}")
    return answers


_pools: dict[int, tuple[weakref.ref[Any], dict[int, Pool]]] = {}


def pool_of(server: Server, seed: int) -> Pool:
    """The pool of a server: of the same object, in whatever wrapper."""
    inner: Any = unwrapped(server)  # Any: the object itself, which need not be hashable
    known, pools = _pools.get(id(inner), (None, {}))
    if known is None or known() is not inner:  # an id is used again once its object is gone
        _pools[id(inner)] = weakref.ref(inner), (pools := {})
    return pools.setdefault(seed, Pool(seed))
