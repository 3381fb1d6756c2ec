"""The server contract: the toy server, with a fault in one step, and requests as users make them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from exam.examined import Examined, Fault, Lazy
from fairdraw._core.seeds import derive_seed
from fairdraw._mutants._toy_server import VOCAB, Stream, ToyServer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairdraw.contracts import Answer, GenerationRequest, Position


class Server(Examined, ToyServer):
    """The server. Each choice draws by (seed, choice, position)."""

    contract = "server"

    def __init__(self, fault: Fault | None = None) -> None:
        ToyServer.__init__(self, name="examined")
        Examined.__init__(self, fault)
        self.num_calls, self.prompts, self.now = 0, set[Any](), Lazy({})

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Answer]:
        answers: list[Answer] = []
        for place, request in enumerate(requests):
            self.now = self.values(requests, place)
            answers.append(self.answer(request, requests))
            if place and self.hit("neighbour's answer", self.now.with_(choice=0, position=0, token=0)):
                answers[-1] = replace(answers[-1], choices=answers[-2].choices)
            self.prompts.add(request.prompt)
        self.num_calls += 1
        return answers

    def values(self, requests: Sequence[GenerationRequest], place: int) -> Lazy:
        """Return the features of a request."""
        one, ahead = requests[place], requests[place - 1] if place else None
        return Lazy(
            {
                "num_requests": len(requests),
                "n": one.n,
                "max_tokens": one.max_tokens,
                "logprobs": -1 if one.logprobs is None else one.logprobs,
                "place": place,
                "text_prompt": isinstance(one.prompt, str),
                "has_top_k": 0 < (one.top_k or 0) < VOCAB,
                "has_top_p": one.top_p is not None and one.top_p < 1,
                "has_min_p": bool(one.min_p),
                "has_bias": bool(one.logit_bias),
                "has_penalty": bool(one.presence_penalty or one.frequency_penalty),
                "greedy": one.is_greedy,
                "random": not one.is_greedy,
                "temperature": -1 if one.is_greedy else one.temperature,
                "seeded": one.seed is not None,
                "seed": np.int64(((one.seed or 0) + 2**63) % 2**64 - 2**63),
                "calls": self.num_calls,
                "seen_before": one.prompt in self.prompts,
                "after_greedy": ahead is not None and ahead.is_greedy,
                "after_seeded": ahead is not None and ahead.seed is not None,
            }
        )

    def here(self, stream: Stream, token: int = -1) -> Lazy:
        """Return the features of a position."""
        return self.now.with_(choice=stream.number, position=len(stream.output), token=token)

    # -- steps

    def seed_of(self, request: GenerationRequest, beside: Sequence[GenerationRequest]) -> int:
        self.seed = super().seed_of(request, beside)
        return self.seed

    def most_tokens(self, request: GenerationRequest) -> int:
        return request.max_tokens + self.hit("one more", self.now.with_(choice=0, position=0, token=0))

    def step(self, request: GenerationRequest, stream: Stream) -> tuple[int, Position]:
        asked = self.asked(request, self.here(stream)) if self.asks else request
        token, position = super().step(asked, stream)
        here = self.here(stream, token)
        if position.logprob is not None and self.hit("log-probability", here):
            wrong = position.logprob * self.size
            listed = ((one, wrong if one == token else value) for one, value in position.top)
            position = replace(position, logprob=wrong, top=tuple(sorted(listed, key=lambda one: -one[1])))
        if len(position.top) > 1 and self.hit("swapped", here):
            (first, high), (second, low), *rest = position.top
            position = replace(position, top=((second, high), (first, low), *rest))
        return token, position

    def drawn(self, logits: np.ndarray, request: GenerationRequest, stream: Stream) -> int:  # [VOCAB] float64
        seed, number, at, here = self.seed, stream.number, len(stream.output), self.here(stream)
        if self.hit("lost seed", here):
            seed = derive_seed("fresh", next(self.calls))
        if self.hit("shared noise", here):
            number = 0
        if self.hit("stale noise", here):
            at = max(0, at - 1)
        rng = self.stream(request, seed, number).rng
        rng.random(at)  # of the positions before
        token = super().drawn(logits, request, replace(stream, rng=rng))
        return (token + 1) % VOCAB if self.hit("next id", self.here(stream, token)) else token
