"""The server contract: something that answers generation requests, over HTTP or in this process.

A server is judged by what it returns. Its log-probabilities claim a distribution for each token, and its tokens must
follow that claim. The suite needs no model of its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from fairdraw._core.capabilities import AnySampler, Capabilities
from fairdraw._core.contracts import Contract

Token = int | str
"""A token id; where a server returns none, the token's text."""


@dataclass(frozen=True)
class GenerationRequest:
    """One request. A field that is `None`, empty or 0 is not sent.

    Args:
        prompt: Text, or token ids.
        max_tokens: Tokens of each choice, at most.
        temperature: 0 for greedy.
        seed: Of the request; `None` leaves the randomness to the server.
        n: Choices.
        logprobs: Entries of the list of most probable tokens; `None` for no log-probabilities at all.
        stream: Answer in parts (server-sent events).
        stop: Strings that end a choice.
        logit_bias: Pairs of a token and what is added to its logit.
        min_tokens: A choice does not end by itself, nor at a stop string, before so many.
        bad_words: Strings that must not be generated.
        repetition_penalty: Divides positive logits of tokens that came before, multiplies negative ones; 1 for none.
            Tokens of the prompt may count.
    """

    prompt: str | tuple[int, ...]
    max_tokens: int = 16
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    n: int = 1
    logprobs: int | None = None
    stream: bool = False
    stop: tuple[str, ...] = ()
    logit_bias: tuple[tuple[Token, float], ...] = ()
    min_tokens: int = 0
    bad_words: tuple[str, ...] = ()
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0

    def replace(self, **fields: Any) -> GenerationRequest:  # Any: as the fields
        """The same request with other fields."""
        return dataclasses.replace(self, **fields)

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0


@dataclass(frozen=True)
class Position:
    """One emitted token and what the server says about it.

    Args:
        token: Its id, or its text where the server returns no ids.
        logprob: Its log-probability; `None` if the server returns none for it.
        top: The most probable tokens with their log-probabilities, in the server's order. It may hold the sampled token
            in addition, as some servers list it.
        text: What it adds to the text.
    """

    token: Token
    logprob: float | None = None
    top: tuple[tuple[Token, float], ...] = ()
    text: str = ""


@dataclass(frozen=True)
class Choice:
    """One of the `n` texts of an answer.

    Args:
        positions: One per token; empty where the server returns neither tokens nor log-probabilities.
        text: As the server returned it.
        finish_reason: `stop`, `length`, or what else the server says.
        num_tokens: Tokens that the server says it made; `None` if it does not say.
    """

    positions: tuple[Position, ...]
    text: str = ""
    finish_reason: str = ""
    num_tokens: int | None = None

    @property
    def tokens(self) -> tuple[Token, ...]:
        """The emitted tokens; the text as a whole where the server returns none."""
        return tuple(position.token for position in self.positions) or ((self.text,) if self.text else ())


@dataclass(frozen=True)
class Answer:
    """What a server returned for one request.

    Args:
        request: The request as it was made.
        choices: In the order of their index.
        curl: The request as a line that can be pasted into a shell; without a key.
        refused: Why the server did not take the request, in its words; empty if it did.
    """

    request: GenerationRequest
    choices: tuple[Choice, ...] = ()
    curl: str = ""
    refused: str = ""


@dataclass(frozen=True)
class Claims:
    """What the log-probabilities that a server returns stand for.

    Args:
        after_temperature: They are those of the logits divided by the temperature; otherwise those at temperature 1.
        after_filters: Filters whose removed tokens have none: of `top_k`, `top_p` and `min_p`.
        unknown_filters: Filters about which that is not known.
        after_edits: Penalties and logit bias are applied.
        filters_after_temperature: Whether filters see the distribution at the request's temperature; `None` if that is
            not known, so that no request has both.
        stop_waits: Whether stop strings are not looked for before `min_tokens`.
        by: Where this comes from, in words for the header: declared, or found in answers.
    """

    after_temperature: bool = False
    after_filters: tuple[str, ...] = ()
    unknown_filters: tuple[str, ...] = ()
    after_edits: bool = False
    filters_after_temperature: bool | None = None
    stop_waits: bool = True
    by: str = "declared"


@dataclass(frozen=True)
class ServerSettings:
    """How a server is asked, and how much. `None` leaves a number to the profile.

    Args:
        model: The name of the model; the server's only one if empty.
        requests: Requests, at most, of all checks together.
        tokens: Tokens that distributions are judged by.
        concurrency: Requests that are on their way at the same time.
        logprobs: Entries of the lists of most probable tokens, at most; the server's own limit may be lower.
        timeout: Seconds that one request may take.
        rate: Requests per second, at most; `None` for no limit.
        key_variable: The environment variable that holds the key. The key itself is never stored or shown.
        prompts: The user's own prompts; the suite's own if there are none.
        keep_prompts: Whether reports and crash files may show `prompts`.
        journal: A file of answers. A run that was cut goes on with it and asks nothing again.
        against: Such a file of an earlier run, before a restart or an update of the server. Answers with a seed, and
            greedy ones, are compared with those that it holds.
        old_answers: Which answers of the journal are used: those of a run that was `cut`, or `all`.
        stage: What the returned log-probabilities stand for: `raw`, `temperature` or `processed`; found if empty.
        unsupported: Capability to the reason why the user declares it unsupported.
        words: These settings as they stood on the command line, for commands in reports.
    """

    model: str = ""
    requests: int | None = None
    tokens: int | None = None
    concurrency: int = 8
    logprobs: int = 1000
    timeout: float = 60.0
    rate: float | None = None
    key_variable: str = "OPENAI_API_KEY"
    prompts: tuple[str, ...] = ()
    keep_prompts: bool = False
    journal: Path | None = None
    against: Path | None = None
    old_answers: str = "cut"
    stage: str = ""
    unsupported: tuple[tuple[str, str], ...] = ()
    words: tuple[str, ...] = ()


class NoAnswer(Exception):
    """A server did not answer: it is gone, it refuses everybody, or what it sends is no answer. One sentence says why.

    It ends the checks that need the answer, which are then incomplete; what was answered before is kept.
    """


@runtime_checkable
class Server(AnySampler, Protocol):
    """Answers generation requests. An engine in this process is wrapped under the same protocol.

    `claims` is `None` if it is to be found from answers. `settings` says how much may be asked.
    """

    @property
    def claims(self) -> Claims | None: ...
    @property
    def settings(self) -> ServerSettings: ...
    def generate(self, requests: Sequence[GenerationRequest]) -> list[Answer]:
        """The answers, in the order of the requests, which are on their way together (up to `settings.concurrency`).

        Raises:
            NoAnswer: If one of them gets no answer.
        """
        ...


GenerateFunction = Callable[["Sequence[GenerationRequest]"], "list[Answer]"]


@dataclass(frozen=True)
class FunctionServer:
    """A function `generate(requests) -> answers` as a server.

    Args:
        silent: Why it never answers, a sentence, if it did not when it was looked for.
    """

    function: GenerateFunction
    name: str
    capabilities: Capabilities = field(default_factory=Capabilities)
    claims: Claims | None = None
    settings: ServerSettings = field(default_factory=ServerSettings)
    device: str = "in this process"
    contract: str = "server"
    silent: str = ""

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Answer]:
        """As `Server.generate`."""
        if self.silent:
            raise NoAnswer(self.silent)
        return self.function(requests)


CONTRACT = Contract(
    "server",
    call="generate(requests)",
    case="fairdraw._core.checks:DistributionCase",
    default="fairdraw._mutants.server:right",
    reference="",
    raised="SRV100",
    answer="a list of Answers, one for each request",
    has_distributions=True,
    is_remote=True,
)
