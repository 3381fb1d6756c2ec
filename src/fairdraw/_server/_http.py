"""A server over HTTP: which dialect it speaks and what it lacks, found by asking; its answers, a journal of them."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from fairdraw._core import foreign
from fairdraw._oracles.server import listed
from fairdraw._server._dialects import Chat, Completions, Dialect, LlamaCpp, SGLang
from fairdraw._server._journal import Journal, Reply
from fairdraw._server._transport import Transport
from fairdraw.contracts import Answer, Capabilities, Capability, Claims, GenerationRequest, NoAnswer, ServerSettings

if TYPE_CHECKING:
    from collections.abc import Sequence

    import httpx2


_TRIAL = GenerationRequest("The", max_tokens=2, temperature=1.0)
"""What every server is asked first."""

_LADDER = (1000, 100, 20, 10, 5, 2)
"""Lengths of lists that are tried, as servers refuse more than their limit."""

_REPEATED = 8
"""Characters of a prompt in a message that count as its repetition."""


def _repeats(message: str, prompt: str) -> bool:
    """Whether a part of the prompt stands in the message."""
    size = min(len(prompt), _REPEATED)
    return any(prompt[start : start + size] in message for start in range(len(prompt) - size + 1))


_STAGES = {
    "raw": Claims(),
    "temperature": Claims(after_temperature=True, after_edits=True),
    "processed": Claims(after_temperature=True, after_filters=("top_k", "top_p", "min_p"), after_edits=True),
}


@dataclass(frozen=True, eq=False)
class HttpServer:
    """A server under test.

    Args:
        name: Address and model.
        model: As it is sent.
    """

    name: str
    model: str
    transport: Transport
    dialect: Dialect
    settings: ServerSettings
    capabilities: Capabilities
    claims: Claims | None
    journal: Journal
    past: Journal
    device: str = "HTTP"
    contract: str = field(default="server")

    @classmethod
    def found(cls, spec: str, settings: ServerSettings, through: httpx2.BaseTransport | None = None) -> HttpServer:
        """Ask the server what it is; `through` as in `Transport`.

        Raises:
            NoAnswer: If it does not answer, or has no such model.
            ValueError: If the address holds a password or a query, or the journal is something else.
        """
        base, _, model = spec.partition("#")
        if "@" in urlsplit(base).netloc or "?" in base:
            remedy = "Put the key into the environment variable of --key-variable"
            raise ValueError(f"the address holds a password or a query, which reports would show. {remedy}")
        journal = Journal(settings.journal, uses_all=settings.old_answers == "all")
        past = Journal(settings.against, uses_all=True)
        transport = Transport(base.rstrip("/"), settings, through=through)
        model, vendor = _model_and_vendor(transport, settings.model or model)
        return _first_that_answers(transport, (journal, past), model, vendor)

    def about(self) -> list[str]:
        """What was found, for the header."""
        lists = Capability.TOP_LOGPROBS in self.capabilities
        ids = "token ids" if Capability.TOKEN_IDS in self.capabilities else "texts of tokens"
        judged = f"lists of {self.settings.logprobs} log-probabilities, {ids}" if lists else "no log-probabilities"
        return [
            f"dialect: {self.dialect.name}, model {self.model or 'unnamed'}: {judged}",
            f"cannot be judged: {', '.join(map(str, self.capabilities.unsupported)) or 'nothing'}",
            *self.journal.about(),
            *([f"SRV122 and SRV141 compare with {self.settings.against}"] if self.settings.against else []),
        ]

    @property
    def old_answers(self) -> str:
        """Return how many answers of an earlier run are used, for the verdict."""
        return self.journal.old

    def take_counts(self) -> dict[str, int]:
        """Return the requests that were sent since the last call, and troubles after which one was sent again."""
        return dict(self.transport.take_counts())

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Answer]:
        """As `Server.generate`. What the journal holds is not requested again."""
        with ThreadPoolExecutor(max(1, min(len(requests), self.settings.concurrency))) as threads:
            waiting = [threads.submit(self._answer, request) for request in requests]
            try:
                return [one.result() for one in waiting]
            except BaseException:
                threads.shutdown(cancel_futures=True)
                raise

    def earlier(self, requests: Sequence[GenerationRequest]) -> list[Answer | None]:
        """Return what an earlier run was answered, each answer once; `None` where it did not ask that, or as often."""
        found = [self.past.known((self._url, self.dialect.body(one, self.model))) for one in requests]
        return [None if reply is None else self._read(one, reply) for one, reply in zip(requests, found, strict=True)]

    @property
    def _url(self) -> str:
        return self.transport.root + self.dialect.path

    def _answer(self, request: GenerationRequest) -> Answer:
        if isinstance(self.dialect, Chat) and not isinstance(request.prompt, str):
            return Answer(request, refused="a chat takes text, not token ids")
        url, body = self._url, self.dialect.body(request, self.model)
        try:
            reply = self.journal.reply((url, body), lambda: self.transport.post(url, body, stream=request.stream))
        except NoAnswer as error:
            raise NoAnswer(self._without_prompt(str(error), request)) from None
        return self._read(request, reply)

    def _read(self, request: GenerationRequest, reply: Reply) -> Answer:
        url = self._url
        curl = self.transport.curl(url, self.dialect.body(self._shown(request), self.model))
        if reply.refused:
            return Answer(request, curl=curl, refused=self._without_prompt(reply.refused, request))
        try:
            return Answer(request, self.dialect.choices(request, reply.parts), curl)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
            missing = foreign.one_line(str(error), 200)
            raise NoAnswer(f"{url} sent an answer without {missing}, which {self.dialect.name} has") from error

    def _without_prompt(self, message: str, request: GenerationRequest) -> str:
        """A server's message, unless it repeats a prompt of the user's: validation errors do so."""
        prompt = str(request.prompt)
        if self._shown(request) is request or request.prompt not in self.settings.prompts:
            return message
        if not any(_repeats(message, one) for one in (prompt, json.dumps(prompt)[1:-1])):
            return message
        head = message[: message.find(": ")] if ": " in message else self.transport.base
        return f"{head} (its message repeats the prompt, see --keep-prompts)"

    def _shown(self, request: GenerationRequest) -> GenerationRequest:
        """The request as it may be shown: the user's own prompts are numbered."""
        own = self.settings.prompts
        if self.settings.keep_prompts or request.prompt not in own:
            return request
        return request.replace(prompt=f"PROMPT {own.index(str(request.prompt)) + 1}")


def _model_and_vendor(transport: Transport, asked: str) -> tuple[str, str]:
    """The model's name, and who made the server if its pages say so."""
    listed = transport.get(f"{transport.root}/v1/models")
    rows = listed.get("data") or [] if isinstance(listed, dict) else []
    names = [str(row.get("id")) for row in rows if isinstance(row, dict)]
    if asked and names and asked not in names:
        known = foreign.one_line(", ".join(names[:5]), 200)
        raise NoAnswer(f"{transport.base} has no model {asked!r}; it has {known} (--model)")
    owners = {str(row.get("owned_by", "")) for row in rows if isinstance(row, dict)}
    vendor = "vLLM" if "vllm" in owners else "SGLang" if "sglang" in owners else ""
    if not vendor and isinstance(transport.get(f"{transport.root}/props"), dict):
        vendor = "llama.cpp"
    if not vendor and isinstance(transport.get(f"{transport.root}/get_model_info"), dict):
        vendor = "SGLang"
    return asked or (names[0] if names else ""), vendor


def _first_that_answers(transport: Transport, journals: tuple[Journal, Journal], model: str, vendor: str) -> HttpServer:
    """The server in the first dialect that returns lists; if none does, in the first that answers at all."""
    extensions = vendor if vendor == "vLLM" else ""
    native: dict[str, Dialect] = {"llama.cpp": LlamaCpp(), "SGLang": SGLang()}
    known: list[Dialect] = [*([native[vendor]] if vendor in native else []), Completions(extensions), Chat(extensions)]
    found, reasons = [], []
    for dialect in known:
        try:
            server = _with_lists(_bare(transport, journals, model, dialect))
        except NoAnswer as error:
            reasons.append(str(error))
            continue
        if Capability.TOP_LOGPROBS in server.capabilities:
            return server
        found.append(server)
    if not found:
        raise NoAnswer(reasons[-1])
    return found[0]


def _bare(transport: Transport, journals: tuple[Journal, Journal], model: str, dialect: Dialect) -> HttpServer:
    settings = transport.settings
    unsupported = {str(one): why for one, why in dialect.lacks.items()} | dict(settings.unsupported)
    order = dialect.filters_after_temperature
    claims = _STAGES.get(settings.stage, Claims(by=""))
    claims = dataclasses.replace(claims, filters_after_temperature=order, stop_waits=dialect.stop_waits)
    name, can = transport.base + (f"#{model}" if model else ""), Capabilities.of(unsupported, slow=True)
    return HttpServer(name, model, transport, dialect, settings, can, claims, *journals)


def _with_lists(server: HttpServer) -> HttpServer:
    """The server with the longest lists that it returns.

    Raises:
        NoAnswer: If it does not answer in this dialect.
    """
    lengths = [length for length in _LADDER if length < server.settings.logprobs]
    refused = ""
    for length in (server.settings.logprobs, *lengths):
        (answer,) = server.generate([_TRIAL.replace(logprobs=length)])
        positions = answer.choices[0].positions if answer.choices else ()
        most = max((len(position.top) for position in positions), default=0)
        if not answer.refused and (most > 1 or length == _LADDER[-1]):
            is_whole = any(listed(position, length).is_whole for position in positions)  # else it is capped in silence
            return _as_found(server, positions, length if is_whole else min(most, length))
        refused = answer.refused or refused
    (answer,) = server.generate([_TRIAL])
    if answer.refused:
        raise NoAnswer(f"{server.transport.base} refuses a plain request ({server.dialect.name}): {answer.refused}")
    return _as_found(server, (), 0, refused)


def _as_found(server: HttpServer, positions: Sequence[object], length: int, refused: str = "") -> HttpServer:
    """The server with what its first answer shows."""
    tokens = [getattr(position, "token", "") for position in positions]
    lacks = dict(server.capabilities.unsupported)
    if length < 2:
        lacks.setdefault(Capability.TOP_LOGPROBS, refused or "its answers hold no lists of log-probabilities")
    if not tokens or not all(isinstance(token, int) for token in tokens):
        lacks.setdefault(Capability.TOKEN_IDS, "its answers hold texts of tokens and no ids")
        lacks.setdefault(Capability.LOGIT_BIAS, "its answers hold no token ids, so that no token can be named")
    trials = {Capability.STREAMING: _TRIAL.replace(stream=True), Capability.N_CHOICES: _TRIAL.replace(n=2)}
    with contextlib.suppress(NoAnswer):  # a check will meet what breaks, and say so
        answers = zip(trials, server.generate(list(trials.values())), strict=True)
        lacks = {name: one.refused for name, one in answers if one.refused} | lacks
    settings = dataclasses.replace(server.settings, logprobs=length)
    return dataclasses.replace(server, settings=settings, capabilities=Capabilities(lacks, slow=True))
