"""The stub's engine: requests, one step after another, exact sampling in float64. A fault overrides one method.

It does what vLLM documents: log-probabilities are of the raw logits unless asked otherwise; a bias, minimum tokens,
bad words and penalties change the logits; then temperature, min-p, top-k and top-p. Other orders are fields of a
request.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from fairdraw._core.seeds import derive_seed
from stub_server.model import EOS, VOCAB_SIZE, draft_logits_after, logits_after, text_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Row = NDArray[np.float64]
"""A number for each token. Shape: [64]."""

Stage = Literal["raw", "scaled", "processed"]
"""Of log-probabilities: of the model's logits, of edited logits over the temperature, or after the filters, too."""
ORDER = ("temperature", "min_p", "top_k", "top_p")


@dataclass(frozen=True)
class Request:
    """What a client wants, in no dialect's words.

    Args:
        bad_words: Sequences of tokens that must not be completed.
        num_logprobs: Length of the list beside each token; `None` if no log-probabilities are wanted.
        order: Steps from logits to the distribution that is drawn from.
        penalised_prompt: Whose tokens the penalties count beside the output's: of none, repetition alone, or all three.
    """

    prompt: tuple[int, ...]
    max_tokens: int = 16
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    n: int = 1
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    repetition: float = 1.0
    presence: float = 0.0
    frequency: float = 0.0
    num_logprobs: int | None = None
    stage: Stage = "raw"
    order: tuple[str, ...] = ORDER
    penalised_prompt: Literal["none", "repetition", "all"] = "repetition"


@dataclass(frozen=True)
class Emitted:
    """A token with its log-probability and the list beside it: (token, log-probability), largest first.

    `is_unlisted` is a fault: the token is not put into the list.
    """

    token: int
    logprob: float | None
    top: tuple[tuple[int, float], ...]
    is_unlisted: bool = False


@dataclass
class Choice:
    """An output that is being made.

    Args:
        number: Of the request, in the order of arrival.
        index: Of the choice in its request.
        ended: Why it ended: "stop" or "length".
        matched: The stop string that ended it; empty if none did.
        text_end: Where the text is cut.
        sent: How much of the text has been streamed.
        streamed: What a stream has held, if its events hold everything so far; and the text.
    """

    request: Request
    number: int
    index: int
    rng: random.Random
    emitted: list[Emitted] = field(default_factory=list)
    ended: str = ""
    matched: str = ""
    text_end: int | None = None
    sent: int = 0
    streamed: list[Emitted] = field(default_factory=list)
    streamed_text: str = ""

    @property
    def tokens(self) -> list[int]:
        """The output so far."""
        return [one.token for one in self.emitted]

    @property
    def context(self) -> list[int]:
        """What the model has read. Penalties and the model look at it; a long prompt is cheap, as outputs are short."""
        return [*self.request.prompt, *self.tokens]

    @property
    def text(self) -> str:
        """The output's text, without what follows a stop string."""
        return text_of(self.tokens)[: self.text_end]


def softmax(logits: Row) -> Row:
    """Probabilities; a logit of -inf has none."""
    terms = np.exp(logits - logits.max())
    out: Row = terms / terms.sum()
    return out


def only(token: int) -> Row:
    """All probability on one token. Shape: [64]."""
    probs = np.zeros(VOCAB_SIZE)
    probs[token] = 1.0
    return probs


def log_of(probs: Row) -> Row:
    """Logarithms; -inf for 0."""
    with np.errstate(divide="ignore"):
        out: Row = np.log(probs)
    return out


class Engine:
    """A correct engine.

    Args:
        entropy: Where requests without a seed take their random numbers from.
        num_drafts: Tokens that a smaller model drafts in each step; 0 turns speculation off.
    """

    def __init__(self, entropy: int, num_drafts: int = 0) -> None:
        self.entropy, self.num_drafts = entropy, num_drafts
        self.running: list[Choice] = []
        self.arrived = 0
        self.kept: dict[int, float] = {}  # what a fault carries from one request to another

    # -- a request ---------------------------------------------------------------------------------------------

    def start(self, request: Request) -> list[Choice]:
        """Choices of a new request. They are running until `finish`."""
        self.arrived += 1
        choices = [self.choice(request, index) for index in range(request.n)]
        self.running += choices
        return choices

    def choice(self, request: Request, index: int) -> Choice:
        """One of them, with random numbers of its own."""
        return Choice(request, self.arrived, index, random.Random(self.random_seed(request, index)))

    def random_seed(self, request: Request, index: int) -> int:
        """Of a choice: a function of the request's seed, if it has one."""
        if request.seed is not None:
            return derive_seed("seeded", request.seed, index)
        return derive_seed("unseeded", self.entropy, self.arrived, index)

    def finish(self, choices: Sequence[Choice]) -> None:
        """They need no further step."""
        self.running = [one for one in self.running if not any(one is other for other in choices)]

    def neighbours(self, choice: Choice) -> list[Choice]:
        """Choices of other requests in the batch."""
        return [one for one in self.running if one.number != choice.number and not one.ended]

    # -- a step ------------------------------------------------------------------------------------------------

    def step(self, choice: Choice) -> list[Emitted]:
        """The next tokens: one, or up to `num_drafts` + 1. Drafts are verified one after another."""
        drafts, new = self.drafts(choice), []
        for position in range(len(drafts) + 1):
            draft = drafts[position] if position < len(drafts) else None
            new.append(self.emit(choice, draft))
            if choice.ended or draft is None or new[-1].token != draft[0]:
                break
        return new

    def drafts(self, choice: Choice) -> list[tuple[int, Row]]:
        """Drafted tokens, each with the distribution that it was drawn from. Shape: [64].

        The drafter is greedy, as most are, so that this distribution is one token.
        """
        context, drafts = choice.context, list[tuple[int, "Row"]]()
        for _ in range(self.num_drafts):
            token = int(draft_logits_after(context[-3:]).argmax())
            drafts.append((token, only(token)))
            context.append(token)
        return drafts

    def emit(self, choice: Choice, draft: tuple[int, Row] | None) -> Emitted:
        """One token: drawn, or a draft that is accepted, or what replaces it."""
        request = self.parameters(choice)
        raw = logits_after(choice.context[-3:])
        edited = self.edited(choice, request, raw)
        probs = self.probs(request, edited)
        token = self.draw(choice, probs) if draft is None else self.verify(choice, probs, *draft)
        emitted = self.reported(choice, token, raw, edited, probs, draft is not None and token == draft[0])
        choice.emitted.append(emitted)
        self.end(choice)
        return emitted

    def parameters(self, choice: Choice) -> Request:
        """Those that this step uses."""
        return choice.request

    # -- logits ------------------------------------------------------------------------------------------------

    def edited(self, choice: Choice, request: Request, raw: Row) -> Row:
        """Logits after everything that changes them by token. Shape: [64]."""
        logits = raw.copy()
        if len(choice.emitted) < request.min_tokens:
            logits[EOS] = -np.inf
        for word in request.bad_words:
            if choice.tokens[len(choice.emitted) - len(word) + 1 :] == list(word[:-1]):
                logits[word[-1]] = -np.inf
        for token, bias in request.logit_bias.items():
            logits[token] += bias
        return self.penalised(choice, request, logits)

    def penalised(self, choice: Choice, request: Request, logits: Row) -> Row:
        """Repetition, frequency and presence, in this order. Shape: [64]."""
        if (request.repetition, request.frequency, request.presence) == (1.0, 0.0, 0.0):
            return logits
        output, prompt = (self.counts(tokens) for tokens in (choice.tokens, list(request.prompt)))
        counted = output + prompt if request.penalised_prompt == "all" else output
        repeated = (output + prompt if request.penalised_prompt != "none" else output) > 0
        scaled = np.where(logits > 0, logits / request.repetition, logits * request.repetition)
        logits = np.where(repeated, scaled, logits)
        out: Row = logits - request.frequency * counted - request.presence * (counted > 0)
        return out

    def counts(self, tokens: list[int]) -> NDArray[np.int64]:
        """How often each token occurs. Shape: [64]."""
        return np.bincount(np.array(tokens, np.int64), minlength=VOCAB_SIZE)

    # -- the distribution --------------------------------------------------------------------------------------

    def probs(self, request: Request, logits: Row) -> Row:
        """What is drawn from. Shape: [64]."""
        if request.temperature == 0:
            return only(int(logits.argmax()))
        for name in request.order:
            logits = getattr(self, name)(request, logits)
        return softmax(logits)

    def temperature(self, request: Request, logits: Row) -> Row:
        """Logits over the temperature. Shape: [64]."""
        return logits / request.temperature

    def min_p(self, request: Request, logits: Row) -> Row:
        """Tokens of at least `min_p` times the largest probability. Shape: [64]."""
        if not request.min_p:
            return logits
        return np.where(logits >= logits.max() + np.log(request.min_p), logits, -np.inf)

    def top_k(self, request: Request, logits: Row) -> Row:
        """The `top_k` most probable tokens. Shape: [64]."""
        if not 0 < request.top_k < VOCAB_SIZE:
            return logits
        edge: float = np.sort(logits)[-request.top_k]
        return np.where(logits >= edge, logits, -np.inf)

    def top_p(self, request: Request, logits: Row) -> Row:
        """The fewest tokens that reach `top_p` together. Shape: [64]."""
        if request.top_p >= 1:
            return logits
        order = (-logits).argsort(kind="stable")
        probs = softmax(logits)[order]
        kept = np.empty(VOCAB_SIZE, bool)
        kept[order] = probs.cumsum() - probs < max(request.top_p, 1e-9)  # one is left
        return np.where(kept, logits, -np.inf)

    def top_k_top_p(self, request: Request, logits: Row) -> Row:
        """Both, on the same probabilities, as in SGLang: top-p does not see what top-k leaves. Shape: [64]."""
        both = np.isfinite(self.top_k(request, logits)) & np.isfinite(self.top_p(request, logits))
        return np.where(both, logits, -np.inf)

    # -- the draw ----------------------------------------------------------------------------------------------

    def pick(self, choice: Choice, probs: Row) -> int:
        """The token at a uniform number's place in the sum of probabilities."""
        edges = probs.cumsum()
        return int(edges.searchsorted(choice.rng.random() * edges[-1], side="right"))

    def draw(self, choice: Choice, probs: Row) -> int:
        """A token without a draft."""
        return self.pick(choice, probs)

    def verify(self, choice: Choice, probs: Row, draft: int, draft_probs: Row) -> int:
        """The draft, with probability `min(1, p / q)`; else a token from what the drafts leave."""
        if self.accepts(choice, probs, draft, draft_probs):
            return draft
        return self.pick(choice, np.maximum(probs - draft_probs, 0.0))

    def accepts(self, choice: Choice, probs: Row, draft: int, draft_probs: Row) -> bool:
        """Whether a draft stays."""
        return bool(choice.rng.random() * draft_probs[draft] < probs[draft])

    # -- what is returned --------------------------------------------------------------------------------------

    def reported(self, choice: Choice, token: int, raw: Row, edited: Row, probs: Row, drafted: bool) -> Emitted:
        """The token with the distribution that the server claims. `drafted`: it is an accepted draft."""
        if choice.request.num_logprobs is None:
            return Emitted(token, None, ())
        return self.listed(choice, token, self.claimed(choice, raw, edited, probs))

    def claimed(self, choice: Choice, raw: Row, edited: Row, probs: Row) -> Row:
        """Log-probabilities of the stage that is asked for. Shape: [64]."""
        request = choice.request
        if request.stage == "raw":
            return log_of(softmax(raw))
        if request.stage == "processed" and request.temperature:
            return log_of(probs)
        return log_of(softmax(edited / (request.temperature or 1.0)))

    def listed(self, choice: Choice, token: int, row: Row) -> Emitted:
        """The sampled token's, and the largest."""
        largest = (-row).argsort(kind="stable")[: choice.request.num_logprobs]
        return Emitted(token, float(row[token]), tuple((int(one), float(row[one])) for one in largest))

    # -- the end -----------------------------------------------------------------------------------------------

    def end(self, choice: Choice) -> None:
        """Note why the choice ended, if it did: a token, a stop string, or its length."""
        request, token, length = choice.request, choice.emitted[-1].token, len(choice.emitted)
        if token == EOS:
            choice.ended = "stop"
        elif request.stop and length > request.min_tokens and (found := self.stop_string(choice)):
            choice.ended, choice.matched = "stop", found
            choice.text_end = choice.text.index(found, self.waits_until(choice, found))
        elif length >= request.max_tokens:
            choice.ended = "length"

    def stop_string(self, choice: Choice) -> str:
        """The stop string that the text holds first; empty if there is none."""
        places = {one: choice.text.find(one, self.waits_until(choice, one)) for one in choice.request.stop}
        return min((one for one, place in places.items() if place >= 0), key=places.__getitem__, default="")

    def waits_until(self, choice: Choice, stop: str) -> int:
        """Where a stop string is looked for: it must end behind the text of `min_tokens` tokens."""
        least = choice.request.min_tokens
        return max(0, len(text_of(choice.tokens[:least])) - len(stop) + 1) if least else 0

    # -- a stream ----------------------------------------------------------------------------------------------

    def streamed(self, choice: Choice, new: list[Emitted]) -> tuple[list[Emitted], str]:
        """What the next event of a stream holds: tokens, and text.

        What might become a stop string, or half a letter, is kept back.
        """
        text = choice.text
        end = len(text)
        if not choice.ended:
            # Half a letter is not counted: whole, it may be the end of a stop string.
            end = len(text.rstrip("\ufffd")) - max((len(one) for one in choice.request.stop), default=1) + 1
        start, choice.sent = choice.sent, max(choice.sent, end)
        return new, text[start : choice.sent]
