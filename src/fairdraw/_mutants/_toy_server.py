"""A server in this process: a toy language model, and every step between logits and an answer as a method.

It speaks the protocol and nothing else. A mutant replaces a step, as engines get steps wrong one at a time. The model
has 24 tokens and looks at the last one, so that lists are made once.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from fairdraw._core.array_types import Float64s
from fairdraw._core.seeds import derive_seed
from fairdraw.contracts import Answer, Capabilities, Choice, Claims, GenerationRequest, Position, ServerSettings

VOCAB = 24
END = 0
"""Ends a text."""

WORDS = ("", *" abcdefghijklmnopqrstuvwxyz"[: VOCAB - 1])
"""Texts of the tokens; the end has none."""


@lru_cache(maxsize=256)
def logits_after(last: int) -> Float64s:  # [VOCAB] float64
    """The model. No two logits of a row are near each other; the end is improbable, and no token is certain."""
    rng = np.random.default_rng(derive_seed("toy", last))
    row = 0.25 * rng.permutation(VOCAB) + 0.02 * rng.random(VOCAB)
    row[END] = row.max() - 2.4
    return np.asarray(row - 3.0)  # logits of both signs, as repetition penalties see them


def log_softmax(row: Float64s) -> Float64s:
    """In float64; a row of -inf alone stays so."""
    top = row.max()
    return row - top - np.log(np.exp(row - top).sum()) if np.isfinite(top) else row


@dataclass
class Stream:
    """The randomness of one choice, and what the choice is."""

    request: GenerationRequest
    number: int
    rng: np.random.Generator
    output: tuple[int, ...] = ()
    kept: float = 0.0
    """A number that a mutant uses twice."""


@dataclass(eq=False)
class ToyServer:
    """The right server.

    Args:
        claims: Its documentation: filters come after the temperature; the rest is found in its answers.
        beside: All requests that are on their way together.
    """

    claims: Claims | None = Claims(filters_after_temperature=True, by="")  # noqa: RUF009  # it is frozen
    settings: ServerSettings = ServerSettings(concurrency=8, logprobs=VOCAB + 1)  # noqa: RUF009  # it is frozen
    name: str = "toy server"
    device: str = "in this process"
    capabilities: Capabilities = Capabilities()  # noqa: RUF009  # it is frozen
    contract: str = "server"
    beside: Sequence[GenerationRequest] = ()
    stage = "raw"

    @cached_property
    def calls(self) -> itertools.count[int]:
        """Float64s of the requests without a seed."""
        return itertools.count()

    # -- requests

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Answer]:
        """The answers."""
        return [self.answer(request, requests) for request in requests]

    def answer(self, request: GenerationRequest, beside: Sequence[GenerationRequest]) -> Answer:
        """One answer.

        Args:
            beside: All requests that are on their way together.
        """
        self.beside = beside
        if refusal := self.refusal(request):
            return Answer(request, refused=refusal)
        seed = self.seed_of(request, beside)
        made = [self.choice(request, number, self.stream(request, seed, number)) for number in range(request.n)]
        return Answer(request, tuple(made), f"toy {request.prompt!r}")

    def refusal(self, request: GenerationRequest) -> str:
        """Return why a request is not served; empty if it is."""
        is_known = isinstance(request.prompt, str) or max(request.prompt) < VOCAB
        is_sound = request.temperature >= 0 and 0 < (request.top_p or 1) <= 1 and request.max_tokens > 0
        return "" if is_known and is_sound else "a value that means nothing"

    def seed_of(self, request: GenerationRequest, beside: Sequence[GenerationRequest]) -> int:
        """The request's seed, or a fresh one."""
        return derive_seed("fresh", next(self.calls)) if request.seed is None else request.seed

    def stream(self, request: GenerationRequest, seed: int, number: int) -> Stream:
        """The randomness of one choice."""
        return Stream(request, number, np.random.default_rng(derive_seed("choice", seed, number)))

    # -- tokens

    def choice(self, request: GenerationRequest, number: int, stream: Stream) -> Choice:
        """One text, token by token."""
        positions: list[Position] = []
        reason = "length"
        while len(positions) < self.most_tokens(request):
            token, position = self.step(request, stream)
            positions.append(position)
            stream.output = (*stream.output, token)
            if token == END or self.is_stopped(stream):
                reason = "stop"
                break
        return self.finished(stream, tuple(positions), reason)

    def most_tokens(self, request: GenerationRequest) -> int:
        return request.max_tokens

    def is_stopped(self, stream: Stream) -> bool:
        """Whether the text holds a stop string."""
        text = self.text(stream.output)
        return len(stream.output) > stream.request.min_tokens and any(one in text for one in stream.request.stop)

    def finished(self, stream: Stream, positions: tuple[Position, ...], reason: str) -> Choice:
        """The choice as it is sent."""
        text = self.cut(self.text(stream.output), stream.request.stop)
        made = Choice(positions, text, reason, len(positions))
        return self.streamed(made) if stream.request.stream else made

    def streamed(self, made: Choice) -> Choice:
        """The choice, put together from the parts of a stream."""
        return made

    def text(self, tokens: Sequence[int]) -> str:
        return "".join(WORDS[token] for token in tokens)

    def cut(self, text: str, stop: Sequence[str]) -> str:
        """The text before the first stop string."""
        return text[: min([text.find(one) for one in stop if one in text] or [len(text)])]

    def step(self, request: GenerationRequest, stream: Stream) -> tuple[int, Position]:
        """One token, and what is said about it."""
        raw = self.logits(request, stream.output)
        edited = self.edited(raw, request, stream.output)
        scaled = self.scaled(edited, request)
        kept = self.filtered(scaled, request)
        token = self.drawn(kept, request, stream)
        stages = {"raw": raw, "temperature": scaled, "processed": kept}
        return token, self.position(token, log_softmax(stages[self.stage]), request)

    def logits(self, request: GenerationRequest, output: Sequence[int]) -> Float64s:  # [VOCAB] float64
        if output or not isinstance(request.prompt, str):
            return logits_after(int([*request.prompt, *output][-1]))
        return logits_after(100 + sum(map(ord, request.prompt)) % 7)

    def edited(self, logits: Float64s, request: GenerationRequest, output: Sequence[int]) -> Float64s:
        """Logit bias, penalties, min tokens and bad words."""
        row = logits.copy()
        for token, bias in request.logit_bias:
            row[int(token)] += bias
        row = self.penalised(row, request, output)
        if len(output) < request.min_tokens:
            row[END] = -np.inf
        for word in self.banned(request):
            row[WORDS.index(word)] = -np.inf
        return row

    def penalised(self, row: Float64s, request: GenerationRequest, output: Sequence[int]) -> Float64s:
        counts = np.bincount(np.array(output, dtype=np.int64), minlength=VOCAB)
        if request.repetition_penalty != 1:
            row = np.where(counts > 0, self.repeated(row, request.repetition_penalty), row)
        return np.asarray(row - request.frequency_penalty * counts - request.presence_penalty * (counts > 0))

    def repeated(self, row: Float64s, factor: float) -> Float64s:
        """Logits of tokens that were emitted before."""
        return np.where(row > 0, row / factor, row * factor)

    def banned(self, request: GenerationRequest) -> Sequence[str]:
        """Bad words of one token."""
        return [word for word in request.bad_words if word in WORDS]

    def scaled(self, logits: Float64s, request: GenerationRequest) -> Float64s:
        return logits if request.is_greedy else logits / self.temperature(request)

    def temperature(self, request: GenerationRequest) -> float:
        return request.temperature

    def filtered(self, logits: Float64s, request: GenerationRequest) -> Float64s:
        """Min-p, top-k and top-p, in this order."""
        row = logits
        if request.min_p:
            row = np.where(row >= row.max() + np.log(request.min_p), row, -np.inf)
        if request.top_k:
            row = np.where(row >= np.sort(row)[-min(request.top_k, VOCAB)], row, -np.inf)
        return self.nucleus(row, request.top_p) if request.top_p is not None else row

    def nucleus(self, row: Float64s, top_p: float) -> Float64s:
        """The tokens that first reach `top_p`."""
        order = np.argsort(-row, kind="stable")
        probs = np.exp(log_softmax(row))[order]
        kept = np.cumsum(probs) - probs < top_p
        found = np.full(VOCAB, -np.inf)
        found[order[kept]] = row[order[kept]]
        return found

    def drawn(self, logits: Float64s, request: GenerationRequest, stream: Stream) -> int:
        """The token."""
        if request.is_greedy:
            return int(logits.argmax())
        sums = np.cumsum(np.exp(log_softmax(logits)))
        return int(min(np.searchsorted(sums, stream.rng.random() * sums[-1], side="right"), VOCAB - 1))

    # -- what is said

    def position(self, token: int, logprobs: Float64s, request: GenerationRequest) -> Position:
        """The token with its log-probability and its list."""
        if request.logprobs is None:
            return Position(token, text=WORDS[token])
        order = self.listed(token, logprobs, request)
        top = tuple((int(one), float(logprobs[one])) for one in order if np.isfinite(logprobs[one]))
        return Position(token, float(logprobs[token]), top, WORDS[token])

    def listed(self, token: int, logprobs: Float64s, request: GenerationRequest) -> list[int]:
        """The most probable tokens, and the sampled one."""
        order: list[int] = np.argsort(-logprobs, kind="stable")[: request.logprobs].tolist()
        return order if token in order else [*order, token]


class ProcessedServer(ToyServer):
    """Its log-probabilities are those that tokens are drawn from."""

    stage = "processed"


def with_short_lists() -> ToyServer:
    """It lists six tokens, and the sampled one."""
    return ToyServer(settings=ServerSettings(logprobs=6))
