"""The server contract: a correct toy engine in this process, its features and effects.

Its model hashes the last four tokens into logits. Each choice draws by (seed, choice, position), or from
a counter of the server's where a request has no seed.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np

from exam.examined import Examined, Fault, Lazy, constants
from exam.rows import softmax
from fairdraw.contracts import Answer, Capabilities, Choice, Claims, GenerationRequest, Position, ServerSettings

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

VOCAB = 48


def ids_of(prompt: str | tuple[int, ...]) -> list[int]:
    """Return the ids of a prompt; a word that is no token's text has one of its own."""
    if not isinstance(prompt, str):
        return list(prompt)
    words = prompt.split()
    known = [word[1:] if word[:1] == "w" and word[1:].isdecimal() else "" for word in words]
    return [int(one) if one else 100 + sum(map(ord, word)) for one, word in zip(known, words, strict=True)]


def numbers(*parts: Any) -> np.random.Generator:
    """Return a generator that is hashed from these parts."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return np.random.default_rng(int.from_bytes(digest, "little"))


class Engine(Examined):
    """The server."""

    contract, device = "server", "in this process"
    claims = Claims(filters_after_temperature=True)
    settings = ServerSettings(logprobs=VOCAB)
    capabilities = Capabilities.of(
        dict.fromkeys(
            ("streaming", "stop-strings", "min-tokens", "bad-words", "repetition-penalty"), "it has no such mode"
        )
    )

    def __init__(self, fault: Fault | None = None) -> None:
        super().__init__(fault)
        self.calls, self.drawn, self.prompts = 0, 0, set[Any]()

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Answer]:
        answers: list[Answer] = []
        for place, request in enumerate(requests):
            values = self.values(requests, place)
            choices = tuple(self.choice(request, number, values.with_(choice=number)) for number in range(request.n))
            if place and self.hit("neighbour's answer", values.with_(choice=0, position=0, token=0)):
                choices = answers[-1].choices
            answers.append(Answer(request, choices))
            self.prompts.add(request.prompt)
        self.calls += 1
        return answers

    def values(self, requests: Sequence[GenerationRequest], place: int) -> Lazy:
        """Return the features of a request."""
        one = requests[place]
        ahead = requests[place - 1] if place else None
        values = {
            "num_requests": len(requests),
            "n": one.n,
            "max_tokens": one.max_tokens,
            "logprobs": -1 if one.logprobs is None else one.logprobs,
            "place": place,
            "text_prompt": isinstance(one.prompt, str),
            "has_top_k": bool(one.top_k) and one.top_k > 0 and one.top_k < VOCAB,  # type: ignore[operator]  # not None
            "has_top_p": one.top_p is not None and one.top_p < 1,
            "has_min_p": bool(one.min_p),
            "has_bias": bool(one.logit_bias),
            "has_penalty": bool(one.presence_penalty or one.frequency_penalty),
            "greedy": one.is_greedy,
            "random": not one.is_greedy,
            "temperature": -1 if one.is_greedy else one.temperature,
            "seeded": one.seed is not None,
            "seed": np.int64(((one.seed or 0) + 2**63) % 2**64 - 2**63),
            "calls": self.calls,
            "seen_before": one.prompt in self.prompts,
            "after_greedy": ahead is not None and ahead.is_greedy,
            "after_seeded": ahead is not None and ahead.seed is not None,
        }
        return Lazy(constants(values))

    def choice(self, request: GenerationRequest, number: int, values: Lazy) -> Choice:
        """Return one text."""
        tokens: list[int] = []
        positions: list[Position] = []
        self.drawn += 1
        source = ("own", self.drawn)
        length = request.max_tokens + self.hit("one more", values.with_(position=0, token=0))
        for position in range(length):
            here = values.with_(position=position, token=-1)
            logits = numbers([*ids_of(request.prompt), *tokens][-4:]).standard_normal(VOCAB) * 1.5
            probs = self.probs(request, logits, tokens, here)
            key: tuple[Any, ...] = source if request.seed is None else ("seed", request.seed, number)
            if self.hit("lost seed", here):
                key = source
            if self.hit("shared noise", here):
                key = (*key[:-1], 0) if request.seed is not None else ("own", self.drawn - number)
            at = max(0, position - 1) if self.hit("stale noise", here) else position
            uniform = numbers(key, at).random()
            drawn = int(np.searchsorted(probs.cumsum(), uniform * probs.sum(), side="right"))
            greedy = request.is_greedy and not self.hit("drawn", here)
            token = int(probs.argmax()) if greedy else min(drawn, int(probs.nonzero()[0][-1]))
            if self.hit("next id", here.with_(token=token)):
                token = (token + 1) % VOCAB
            tokens.append(token)
            positions.append(self.position(request, token, logits, here.with_(token=token)))
        text = "".join(one.text for one in positions)
        return Choice(tuple(positions), text, "length", len(tokens))

    def position(self, request: GenerationRequest, token: int, logits: np.ndarray, here: Lazy) -> Position:
        """Return a token and what is said about it: the raw distribution."""
        if request.logprobs is None:
            return Position(token, text=f" w{token}")
        scores = logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()
        if self.hit("log-probability", here):
            scores[token] *= self.size
        order = [int(one) for one in np.argsort(-scores, kind="stable")[: request.logprobs]]
        top = [(one, float(scores[one])) for one in order]
        if len(top) > 1 and self.hit("swapped", here):
            top[0], top[1] = (top[1][0], top[0][1]), (top[0][0], top[1][1])
        return Position(token, float(scores[token]), tuple(top), f" w{token}")

    def probs(self, request: GenerationRequest, logits: np.ndarray, tokens: list[int], here: Lazy) -> np.ndarray:
        """Return the distribution that a token is drawn from, [VOCAB] float64."""
        logits = logits.copy()
        if not self.hit("no bias", here):
            for token, bias in request.logit_bias:
                logits[int(token)] += bias
        if not self.hit("no penalty", here):
            counts = np.bincount(tokens, minlength=VOCAB)
            logits -= request.frequency_penalty * counts + request.presence_penalty * (counts > 0)
        heat = 1.0 if request.is_greedy or self.hit("no temperature", here) else request.temperature
        probs = softmax(logits / (heat * (self.size if self.hit("hot", here) else 1)))
        if request.is_greedy:
            return probs
        if request.min_p and not self.hit("no min_p", here):
            probs = np.where(probs < request.min_p * probs.max(), 0, probs)
        if request.top_k and 0 < request.top_k < VOCAB and not self.hit("no top_k", here):
            probs = np.where(probs < np.sort(probs)[VOCAB - request.top_k], 0, probs)
        probs = probs / probs.sum()
        if request.top_p is not None and request.top_p < 1 and not self.hit("no top_p", here):
            order = np.argsort(-probs, kind="stable")
            cut = order[np.cumsum(probs[order]) - probs[order] >= request.top_p]
            probs[cut] = 0
        return np.asarray(probs / probs.sum())


def play(server: Engine, rng: random.Random) -> list[Any]:
    """Return the tokens and log-probabilities of some requests, as users make them."""
    found: list[Any] = []
    for _ in range(12):
        requests = []
        for _ in range(rng.choice([1, 2, 4, 8])):
            choices: dict[str, list[Any]] = {
                "prompt": ["a", "b", (1, 2), f"p{rng.randrange(99)}"],
                "max_tokens": [1, 4, 8, 16, 24],
                "temperature": [0, 1, 0.5, 1.5],
                "seed": [None, None, rng.randrange(100), rng.randrange(-(2**63), 2**63)],
                "n": [1, 1, 2, 4, 6],
                "logprobs": [None, 0, 1, 5, 20],
                "logit_bias": [(), (), ((3, 5.0), (4, -5.0))],
                "top_k": [None, None, 3, 20],
                "top_p": [None, None, 0.6, 0.9],
                "min_p": [None, None, 0.1],
                "presence_penalty": [0, 0, 1.0],
                "frequency_penalty": [0, 0, 0.5],
            }
            requests.append(GenerationRequest(**{name: rng.choice(values) for name, values in choices.items()}))
        answers = server.generate(requests)
        found += [(p.token, p.logprob, p.top) for answer in answers for one in answer.choices for p in one.positions]
    return found
