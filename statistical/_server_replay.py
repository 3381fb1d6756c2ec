"""Tokens judged by lists that came with other requests for the same prefixes: of the same server, or of a reference.

Engines take another path where no list is requested: vLLM's fused sampler, llama.cpp's `--backend-sampling`. And a
server's own lists may be missing or not trusted, above all beside speculation; the same server without it is then the
reference. Each token of an answer is one request for a list: prompt and tokens before it, as token ids.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from fairdraw._core.budget import guarded
from fairdraw._core.checks import Conditions
from fairdraw._core.failures import CapabilityUnsupported
from fairdraw._oracles.server import filters_of, is_ambiguous
from fairdraw.contracts import Answer, Capability, Choice, Claims, GenerationRequest, Position, Server
from fairdraw.contracts._server import Token
from fairdraw.statistical._server_slices import ServerSlices
from fairdraw.strategies._server_claims import AT_ONE, NUM_PROMPTS, claims_of
from fairdraw.strategies._server_requests import PLAIN, SPACES, Kind, Pool, pool_of

_PROMPTS = 8
_LENGTH = 6
"""Tokens of a prompt: the server's own, from texts that it made."""

_LISTS = "lists of prefixes"
_List = tuple[tuple[Token, float], ...]


class PlainSlices(ServerSlices):
    """A check of tokens that were requested without lists."""

    tokens_each = 2
    """Half of the requests have several choices, where a server has them."""

    def answers(self, server: Server, pool: Pool, kind: Kind, first: int, end: int) -> list[Answer]:
        """Return answers without lists, with those of their prefixes."""
        answers = [one for one in pool.take(server, kind, end)[first:] if one.choices and not one.request.is_greedy]
        if Capability.TOKEN_IDS not in server.capabilities:
            _require_spelled(pool.take(server, AT_ONE, NUM_PROMPTS))
        elif not any(isinstance(token, int) for one in answers if one.request.stream for token in _first(one).tokens):
            answers = [one for one in answers if not one.request.stream]  # such streams hold texts alone
        return _with_lists(answers, server, pool)


@dataclass(frozen=True)
class ReplayedSlices(ServerSlices):
    """A check of a server's tokens under the distributions of a reference."""

    reference: Server | None = field(default=None, kw_only=True)

    def judge(self, sampler: Server, under: Conditions) -> int:
        """Judge as `ServerSlices` does, with the reference of the run."""
        if Capability.TOKEN_IDS not in under.reference.capabilities:
            raise CapabilityUnsupported("token-ids is unsupported by the reference")
        return ServerSlices.judge(replace(self, reference=guarded(under.reference, under.out_of_time)), sampler, under)

    def claims(self, server: Server, pool: Pool) -> Claims:
        """Return what the reference's lists stand for."""
        assert self.reference is not None, "differential checks have one"
        return claims_of(self.reference, pool_of(self.reference, pool.seed))

    def answers(self, server: Server, pool: Pool, kind: Kind, first: int, end: int) -> list[Answer]:
        """Return answers to prompts of ids, with the reference's lists."""
        plain = pool.take(server, PLAIN, _PROMPTS)
        prompts = [tuple(token for token in _first(one).tokens if isinstance(token, int))[:_LENGTH] for one in plain]
        if not (prompts := [prompt for prompt in prompts if prompt]):
            raise CapabilityUnsupported("token-ids is unsupported: no prompt of token ids can be made")
        requests = [kind.request(number, server, pool.seed) for number in range(end)]
        asked = [one.replace(prompt=prompts[number % len(prompts)]) for number, one in enumerate(requests)]
        assert self.reference is not None, "differential checks have one"
        made = pool.ask(server, "prompts of ids", asked)[first:]
        return _with_lists(made, self.reference, pool_of(self.reference, pool.seed))


def _first(answer: Answer) -> Choice:
    return answer.choices[0] if answer.choices else Choice(())


def _with_lists(answers: Sequence[Answer], judge: Server, pool: Pool) -> list[Answer]:
    """Return answers with the lists that a server has for their prefixes, as if they had been requested.

    Raises:
        CapabilityUnsupported: If answers do not say which of the listed tokens came, or there are no such lists.
    """
    has_ids, length = Capability.TOKEN_IDS in judge.capabilities, judge.settings.logprobs
    tokens = [[_tokens(choice, has_ids=has_ids) for choice in answer.choices] for answer in answers]
    asked = [one.request.replace(n=1, seed=None, stream=False, max_tokens=1, logprobs=length) for one in answers]
    prefixes = [[_prefixes(base, one) for one in own] for base, own in zip(asked, tokens, strict=True)]
    lists = _lists(judge, pool, [one for answer in prefixes for choice in answer for one in choice])
    found = []
    for answer, own, before in zip(answers, tokens, prefixes, strict=True):
        rows = [zip(*pair, strict=True) for pair in zip(own, before, strict=True)]
        choices = [Choice(tuple(Position(token, top=lists[one]) for token, one in row)) for row in rows]
        found.append(replace(answer, request=answer.request.replace(logprobs=length), choices=tuple(choices)))
    return found


def _tokens(choice: Choice, *, has_ids: bool) -> tuple[Token, ...]:
    """Return the tokens of a choice; where a server returns no ids, its text, which is empty at an end token."""
    tokens = choice.tokens or ("",)
    if has_ids and not all(isinstance(token, int) for token in tokens):
        raise CapabilityUnsupported("token-ids is unsupported for this: its answers without lists hold no ids")
    return tokens


def _prefixes(base: GenerationRequest, tokens: Sequence[Token]) -> list[GenerationRequest]:
    """Return the request for the list of each token."""
    return [base.replace(prompt=(*base.prompt, *tokens[:at])) if at else base for at in range(len(tokens))]


def _lists(judge: Server, pool: Pool, prefixes: Sequence[GenerationRequest]) -> dict[GenerationRequest, _List]:
    """Return the list of each prefix, which is requested once in a run."""
    known = {one.request for one in pool.answers.get(_LISTS, ())}
    found = pool.extend(judge, _LISTS, [one for one in dict.fromkeys(prefixes) if one not in known])
    if found and all(one.refused for one in found):
        raise CapabilityUnsupported(f"the server refuses requests for lists of prefixes: {found[0].refused}")
    return {one.request: _list_of(one, has_ids=Capability.TOKEN_IDS in judge.capabilities) for one in found}


def _list_of(answer: Answer, *, has_ids: bool) -> _List:
    """Return the first list of an answer, as far as it can be compared with tokens of other answers.

    Of texts, those that several tokens have count together, and those that no text shows are left to the tokens behind
    the list. What a filter makes of such a list is not known.
    """
    top = next((position.top for position in _first(answer).positions), ())
    if has_ids:
        return top
    found: dict[Token, float] = {}
    for token, logprob in top:
        if text := _spelled(token):
            found[text] = float(np.logaddexp(found.get(text, -math.inf), logprob))
    return () if len(found) < len(top) and filters_of(answer.request) else tuple(found.items())


def _spelled(token: Token) -> str:
    """Return the text that a token makes; empty if that is not sure: of special tokens, and of pieces of letters."""
    text = str(token).translate(SPACES)
    return "" if is_ambiguous(text) or (len(text) > 2 and text[0] + text[-1] == "<>") else text


def _require_spelled(answers: Sequence[Answer]) -> None:
    """Raise if the text of a listed token is not that of the answer, so that texts do not tell which token came."""
    for choice in map(_first, answers):
        text = _spelled(choice.positions[0].token) if choice.positions else ""
        if text and text != choice.text:
            said = f"its answers spell {choice.text!r} what its lists spell {text!r}"
            raise CapabilityUnsupported(f"texts of tokens are unsupported: {said}")
