"""Requests as most users send them, without lists of log-probabilities, and the lists by which their tokens are judged.

Engines take another path for them: llama.cpp's `--backend-sampling` and vLLM's fused sampler run only where no list is
requested. One request with a list says what a prefix's distribution is; its plain requests must follow that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fairdraw._core.failures import CapabilityUnsupported
from fairdraw._core.seeds import derive_seed
from fairdraw._oracles.server import filters_of, is_ambiguous
from fairdraw.contracts import Answer, Capability, Choice, GenerationRequest, Position, Server
from fairdraw.contracts._server import Token
from fairdraw.strategies._server_claims import AT_ONE, NUM_PROMPTS
from fairdraw.strategies._server_requests import Kind, Pool, covered, supported

SPACES = str.maketrans({"Ġ": " ", "▁": " ", "Ċ": "\n"})
"""As tokenizers write them inside of a token."""

_List = tuple[tuple[Token, float], ...]
_LISTS = "lists of prefixes"
_CHOICES = 4
_BLOCK = 8
"""Requests that are sent alike: blocks have one choice, several, a stream, and several streams."""


@dataclass(frozen=True)
class PlainKind(Kind):
    """Requests of one token without a list; two neighbours have the same prompt."""

    has_lists = False

    def request(self, number: int, server: Server, seed: int) -> GenerationRequest:
        """The request of that number."""
        made = Kind(self.name, self.settings).request(number // 2, server, seed).replace(max_tokens=1, logprobs=None)
        if self.is_mixed:
            return made.replace(**_modes(number, server, seed))
        has_choices = number // _BLOCK % 2 == 1 and Capability.N_CHOICES in server.capabilities
        is_streamed = number // _BLOCK % 4 > 1 and Capability.STREAMING in server.capabilities
        return made.replace(n=_CHOICES if has_choices else 1, stream=is_streamed)


def _modes(number: int, server: Server, seed: int) -> dict[str, Any]:  # Any: as the fields of a request
    """Return how a request among others of all modes is sent: streamed, with a seed, beside a greedy one, and so on."""
    can = server.capabilities
    return covered(
        {
            "temperature": (1.0, 0.3, 0.0) if Capability.GREEDY in can else (1.0, 0.3),
            "top_p": (None, 0.7) if supported([{"top_p": 0.7}], can) else (None,),
            "n": (1, _CHOICES) if Capability.N_CHOICES in can else (1,),
            "seed": (None, derive_seed("mode", seed, number) % 2**31)[: 1 + (Capability.REQUEST_SEEDS in can)],
            "stream": (False, True)[: 1 + (Capability.STREAMING in can)],
        },
        number,
        seed,
    )


def _plain(name: str, **settings: object) -> PlainKind:
    return PlainKind(f"plain{name}", tuple(settings.items()))


PLAIN_KINDS = (
    _plain(""),
    _plain(", temperature 0.3", temperature=0.3),
    _plain(", top-k 4", top_k=4),
    _plain(", top-p 0.7", top_p=0.7),
    _plain(", min-p 0.2", min_p=0.2),
    PlainKind("without lists, in every mode", is_mixed=True),
)


def plain_answers(server: Server, pool: Pool, kind: Kind, first: int, end: int) -> list[Answer]:
    """Return the plain answers of a kind from `first` on, each token with the list of its prefix, as if requested.

    Raises:
        CapabilityUnsupported: If plain answers do not say which of the listed tokens came.
    """
    answers = [one for one in pool.take(server, kind, end)[first:] if one.choices and not one.request.is_greedy]
    has_ids, length = Capability.TOKEN_IDS in server.capabilities, server.settings.logprobs
    streams = [one for one in answers if one.request.stream]
    if has_ids and not any(isinstance(token, int) for one in streams for token in one.choices[0].tokens):
        answers = [one for one in answers if not one.request.stream]  # such streams hold texts alone
    prefixes = [one.request.replace(n=1, seed=None, stream=False, logprobs=length) for one in answers]
    found = _lists(server, pool, prefixes)
    if not has_ids:
        _require_spelled([*found.values(), *pool.take(server, AT_ONE, NUM_PROMPTS)])
    return [
        _judged(one, _list_of(found[prefix], has_ids=has_ids), length, has_ids=has_ids)
        for one, prefix in zip(answers, prefixes, strict=True)
    ]


def _lists(server: Server, pool: Pool, prefixes: Sequence[GenerationRequest]) -> dict[GenerationRequest, Answer]:
    """Return the answers with lists; each prefix is requested once in a run."""
    known = {one.request: one for one in pool.answers.get(_LISTS, ())}
    new = [one for one in dict.fromkeys(prefixes) if one not in known]
    return {one.request: one for one in pool.extend(server, _LISTS, new, at_once=max(1, len(new)))}


def _judged(answer: Answer, top: _List, length: int, *, has_ids: bool) -> Answer:
    """Return an answer with this list for the token of each choice."""
    choices = [replace(one, positions=(Position(_token(one, has_ids=has_ids), top=top),)) for one in answer.choices]
    return replace(answer, request=answer.request.replace(logprobs=length), choices=tuple(choices))


def _token(choice: Choice, *, has_ids: bool) -> Token:
    """Return the token of a choice; where a server returns no ids, its text, which is empty at an end token."""
    token = (*choice.tokens, "")[0]
    if has_ids and not isinstance(token, int):
        raise CapabilityUnsupported("token-ids is unsupported for this: its answers without lists hold no ids")
    return token


def _list_of(answer: Answer, *, has_ids: bool) -> _List:
    """Return the first list of an answer, as far as it can be compared with tokens of plain answers.

    Of texts, those that several tokens have count together, and those that no text shows are left to the tokens behind
    the list. What a filter makes of such a list is not known.
    """
    top = next((position.top for choice in answer.choices for position in choice.positions), ())
    if has_ids:
        return top
    found: dict[Token, float] = {}
    for token, logprob in top:
        text = _spelled(token)
        if text:
            found[text] = float(np.logaddexp(found.get(text, -math.inf), logprob))
    is_filtered = len(found) < len(top) and filters_of(answer.request)
    return () if is_filtered else tuple(found.items())


def _spelled(token: Token) -> str:
    """Return the text that a token makes; empty if that is not sure: of special tokens, and of pieces of letters."""
    text = str(token).translate(SPACES)
    is_special = is_ambiguous(text) or (len(text) > 2 and text[0] == "<" and text[-1] == ">")
    return "" if is_special else text


def _require_spelled(answers: Sequence[Answer]) -> None:
    """Raise if the text of a listed token is not that of the answer, so that texts do not tell which token came."""
    for choice in (choice for answer in answers for choice in answer.choices if choice.positions):
        text = _spelled(choice.positions[0].token)
        if text and text != choice.text:
            raise CapabilityUnsupported(
                f"texts of tokens are unsupported: its answers spell {choice.text!r} what its lists spell {text!r}"
            )
