"""A server judged by another one: its tokens, under the distributions that the reference returns for the same prefixes.

For a server whose own log-probabilities are missing or not trusted, above all one with speculation beside the same one
without. Each token of an answer is one request to the reference: prompt and tokens before it, as token ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fairdraw._core.checks import Conditions
from fairdraw._core.failures import CapabilityUnsupported
from fairdraw.contracts import Answer, Capabilities, Choice, Claims, GenerationRequest, Position, Server, ServerSettings
from fairdraw.statistical._server_check import ServerDistributionCheck
from fairdraw.strategies._server_requests import PLAIN, pool_of

_PROMPTS = 8
_LENGTH = 6
"""Tokens of a prompt: the server's own, from texts that it made."""


@dataclass(eq=False)
class Replayed:
    """The server's tokens with the reference's lists, as one server.

    Args:
        prompts: Token ids.
    """

    server: Server
    reference: Server
    prompts: Sequence[tuple[int, ...]]
    contract: str = "server"

    @property
    def name(self) -> str:
        return self.server.name

    @property
    def device(self) -> str:
        return self.server.device

    @property
    def capabilities(self) -> Capabilities:
        return self.reference.capabilities

    @property
    def claims(self) -> Claims | None:
        return self.reference.claims

    @property
    def settings(self) -> ServerSettings:
        return self.reference.settings

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Answer]:
        """The server's answers to prompts of token ids, each with the reference's lists."""
        number = {prompt: place for place, prompt in enumerate(dict.fromkeys(one.prompt for one in requests))}
        own = self.server.settings.logprobs or None  # some servers return ids with log-probabilities only
        prompts = [self.prompts[number[one.prompt] % len(self.prompts)] for one in requests]
        mine = [one.replace(prompt=prompt, logprobs=own) for one, prompt in zip(requests, prompts, strict=True)]
        return [self._with_lists(answer) for answer in self.server.generate(mine)]

    def _with_lists(self, answer: Answer) -> Answer:
        made = [self._choice(answer, choice) for choice in answer.choices]
        return replace(answer, choices=tuple(made), request=answer.request.replace(logprobs=self.settings.logprobs))

    def _choice(self, answer: Answer, choice: Choice) -> Choice:
        """The choice with a list for each token."""
        tokens = [int(token) for token in choice.tokens if isinstance(token, int)]
        prompt = [int(token) for token in answer.request.prompt if isinstance(token, int)]
        asked = answer.request.replace(max_tokens=1, logprobs=self.settings.logprobs, n=1)
        prefixes = [asked.replace(prompt=(*prompt, *tokens[:at])) for at in range(len(tokens))]
        replayed = self.reference.generate(prefixes)
        refused = next((one.refused for one in replayed if one.refused), "")
        if refused:
            raise CapabilityUnsupported(f"token-ids is unsupported: the reference takes no prompt of ids: {refused}")
        lists = [one.choices[0].positions[0].top if one.choices[0].positions else () for one in replayed]
        pairs = zip(tokens, lists, strict=True)
        return replace(choice, positions=tuple(Position(token, dict(top).get(token), top) for token, top in pairs))


class ReplayedCheck(ServerDistributionCheck):
    """A check of a server's tokens under the reference's distributions."""

    def judge(self, sampler: Server, under: Conditions) -> int:
        """Judge as `ServerDistributionCheck` does."""
        under.require_time()
        plain = pool_of(sampler, under.seed).take(sampler, PLAIN, _PROMPTS)
        prompts = [tuple(t for t in answer.choices[0].tokens if isinstance(t, int))[:_LENGTH] for answer in plain]
        both = Replayed(sampler, under.reference, [prompt for prompt in prompts if prompt])
        if not both.prompts:
            raise CapabilityUnsupported("token-ids is unsupported: no prompt of token ids can be made")
        self.begin(both, under.reference, under.out_of_time)
        return super().judge(both, under)
