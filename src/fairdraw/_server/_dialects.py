"""The dialects: how a request is written, and how an answer is read.

A dialect is plain: an address, two functions, and what it has no words for. Extensions of vLLM and llama.cpp are fields
that are added to OpenAI's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fairdraw.contracts import Capability, Choice, GenerationRequest, NoAnswer, Position

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fairdraw._server._journal import JSON
    from fairdraw.contracts._server import Token

_WORDLESS = "top-k min-p min-tokens bad-words repetition-penalty"
_OPENAI_LACKS = {Capability(word): "OpenAI's dialect has no word for it" for word in _WORDLESS.split()}


_LLAMA_CPP_LACKS = {
    Capability.MIN_TOKENS: "llama.cpp has no word for it",
    Capability.BAD_WORDS: "llama.cpp has no word for it",
    Capability.N_CHOICES: "/completion answers one choice",
    Capability.PENALTIES: "llama.cpp counts the tokens of the prompt, too, which are not known here",
}
_SGLANG_LACKS = {Capability.BAD_WORDS: "SGLang has no word for it"}


class Dialect(ABC):
    """How to speak with a server.

    Args:
        path: Behind the root of the address.
        lacks: What it has no words for, with the reason.
        filters_after_temperature, stop_waits: As in `Claims`.
    """

    name: str
    path: str
    lacks: Mapping[Capability, str]
    filters_after_temperature: bool | None
    stop_waits: bool = True

    @abstractmethod
    def body(self, request: GenerationRequest, model: str) -> JSON:
        """Return what is sent."""

    @abstractmethod
    def choices(self, request: GenerationRequest, parts: Sequence[JSON]) -> tuple[Choice, ...]:
        """Return what came back in parts, or as one."""


def _given(**fields: Any) -> JSON:  # Any: JSON
    """The fields that are set."""
    return {name: value for name, value in fields.items() if value is not None}


def _shared(request: GenerationRequest) -> JSON:
    """What dialects name alike."""
    return _given(
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=request.top_k,
        min_p=request.min_p,
        n=request.n if request.n > 1 else None,
        stop=list(request.stop) or None,
        logit_bias={str(token): value for token, value in request.logit_bias} or None,
        presence_penalty=request.presence_penalty or None,
        frequency_penalty=request.frequency_penalty or None,
        repetition_penalty=request.repetition_penalty if request.repetition_penalty != 1 else None,
    )


def _common(request: GenerationRequest) -> JSON:
    """What both of OpenAI's endpoints take, with vLLM's additions, which are set where the server has them."""
    own = _given(max_tokens=request.max_tokens, seed=request.seed, stream=request.stream or None)
    added = _given(min_tokens=request.min_tokens or None, bad_words=list(request.bad_words) or None)
    return _shared(request) | own | added


_WITH_IDS = {"return_tokens_as_token_ids": True, "return_token_ids": True}
"""vLLM then names tokens by their ids: in lists, and where none is requested."""


class _OpenAI(Dialect):
    """An API of OpenAI's, with vLLM's extensions if the server is vLLM.

    Args:
        vendor: `vLLM`, or empty.
    """

    def __init__(self, vendor: str = "") -> None:
        self.vendor, self.lacks = vendor, {} if vendor else _OPENAI_LACKS
        self.name = f"OpenAI {self.path.split('/')[2]}" + (f" with {vendor}'s extensions" if vendor else "")
        self.filters_after_temperature = True if vendor == "vLLM" else None


class Completions(_OpenAI):
    """OpenAI's `/v1/completions`."""

    path = "/v1/completions"

    def body(self, request: GenerationRequest, model: str) -> JSON:
        prompt = request.prompt if isinstance(request.prompt, str) else list(request.prompt)
        own = _WITH_IDS if self.vendor else {}
        return _given(model=model or None, prompt=prompt, logprobs=request.logprobs) | _common(request) | own

    def choices(self, request: GenerationRequest, parts: Sequence[JSON]) -> tuple[Choice, ...]:
        return _joined(parts, _of_completion)


class Chat(_OpenAI):
    """OpenAI's `/v1/chat/completions`."""

    path = "/v1/chat/completions"

    def body(self, request: GenerationRequest, model: str) -> JSON:
        if not isinstance(request.prompt, str):
            raise ValueError("Chat.body: prompt is token ids, but a chat takes text. Use text.")
        asked = None if request.logprobs is None else True
        own = _WITH_IDS if self.vendor else {}
        message = [{"role": "user", "content": request.prompt}]
        head = _given(model=model or None, messages=message, logprobs=asked, top_logprobs=request.logprobs)
        return head | _common(request) | own

    def choices(self, request: GenerationRequest, parts: Sequence[JSON]) -> tuple[Choice, ...]:
        return _joined(parts, _of_chat)


class LlamaCpp(Dialect):
    """llama.cpp's `/completion`: its log-probabilities are raw, and its filters come before the temperature."""

    name, path = "llama.cpp /completion", "/completion"
    lacks, filters_after_temperature = _LLAMA_CPP_LACKS, False

    def body(self, request: GenerationRequest, model: str) -> JSON:
        # Its defaults filter (top_k 40, top_p 0.95, min_p 0.05), so that each filter is set, to nothing if need be.
        return _shared(request) | _given(
            prompt=request.prompt if isinstance(request.prompt, str) else list(request.prompt),
            n_predict=request.max_tokens,
            top_k=request.top_k or 0,
            top_p=1.0 if request.top_p is None else request.top_p,
            min_p=request.min_p or 0.0,
            seed=request.seed,
            n_probs=request.logprobs,
            return_tokens=True,
            stream=request.stream or None,
            logit_bias=[list(pair) for pair in request.logit_bias] or None,
            repeat_penalty=request.repetition_penalty if request.repetition_penalty != 1 else None,
            cache_prompt=False,
        )

    def choices(self, request: GenerationRequest, parts: Sequence[JSON]) -> tuple[Choice, ...]:
        rows = [row for part in parts for row in part.get("completion_probabilities") or ()]
        ids = [token for part in parts for token in part.get("tokens") or ()]
        positions = _aligned([_of_row(row) for row in rows], ids)
        last, text = parts[-1], "".join(str(part.get("content", "")) for part in parts)
        reason = {"limit": "length", "eos": "stop", "word": "stop"}.get(str(last.get("stop_type", "")), "")
        return (Choice(positions, text, reason, last.get("tokens_predicted")),)


class SGLang(Dialect):
    """SGLang's `/generate`."""

    name, path = "SGLang /generate", "/generate"
    lacks, filters_after_temperature = _SGLANG_LACKS, True
    stop_waits = False  # "until a stop word or EOS token is sampled", says its documentation

    def body(self, request: GenerationRequest, model: str) -> JSON:
        own = _given(sampling_seed=request.seed, min_new_tokens=request.min_tokens or None)
        params = _shared(request) | own | {"max_new_tokens": request.max_tokens}
        prompt = {"text": request.prompt} if isinstance(request.prompt, str) else {"input_ids": list(request.prompt)}
        asked = None if request.logprobs is None else True
        lists = _given(return_logprob=asked, top_logprobs_num=request.logprobs, stream=request.stream or None)
        return {**prompt, "sampling_params": params, **lists}

    def choices(self, request: GenerationRequest, parts: Sequence[JSON]) -> tuple[Choice, ...]:
        """Each part of a stream holds everything until then, so that the last one of each choice counts."""
        whole = parts[0]["choices"] if "choices" in parts[0] else [dict(parts[-1])]
        last = {part.get("index", 0): part for part in parts} if request.stream else {}
        return tuple(_of_generate(one) for one in ([last[k] for k in sorted(last)] or whole))


# -- reading ----------------------------------------------------------------------------------------------------------


def _token(name: Any, number: Any = None) -> Token:  # Any: JSON
    """The id of a token if the server says it, else its text."""
    if isinstance(number, int) and not isinstance(number, bool):
        return number
    text = str(name)
    return int(text[9:]) if text.startswith("token_id:") and text[9:].isdigit() else text


def _text(name: Any) -> str:  # Any: JSON
    """Return the text of a token; empty if the server names it by its id, as vLLM does on request."""
    return "" if isinstance(_token(name), int) else str(name or "")


def _joined(parts: Sequence[JSON], read: Any) -> tuple[Choice, ...]:  # Any: a function from JSON to Choice
    """The choices of an answer, or of all parts of a stream, by their index."""
    found: dict[int, Choice] = {}
    for part in parts:
        for one in part["choices"]:
            index, new = int(one.get("index", 0)), read(one)
            old = found.get(index, Choice(()))
            reason = new.finish_reason or old.finish_reason
            found[index] = Choice((*old.positions, *new.positions), old.text + new.text, reason)
    if not found:
        raise KeyError("choices")
    counted = (parts[-1].get("usage") or {}).get("completion_tokens") if len(found) == 1 else None
    return tuple(replace(one, num_tokens=counted) for _, one in sorted(found.items()))


def _of_completion(one: JSON) -> Choice:
    """A choice of `/v1/completions`: OpenAI's columns, or rows as a chat has them (llama.cpp)."""
    logprobs = one.get("logprobs") or {}
    if "content" in logprobs:
        positions = tuple(_of_row(row) for row in logprobs["content"] or ())
    else:
        positions = _of_columns(logprobs, one.get("token_ids"))
    return Choice(positions, str(one.get("text") or ""), str(one.get("finish_reason") or ""))


def _of_columns(logprobs: JSON, ids: Sequence[int] | None) -> tuple[Position, ...]:
    """Positions of OpenAI's columns."""
    texts, own = logprobs.get("tokens") or [], logprobs.get("token_logprobs") or []
    lists = logprobs.get("top_logprobs") or [None] * len(texts)
    if not len(texts) == len(own) == len(lists):
        numbers = f"{len(texts)} tokens, {len(own)} log-probabilities"
        raise NoAnswer(f"an answer lists {numbers} and {len(lists)} lists of them")
    if not texts and ids:
        return tuple(Position(token) for token in ids)
    return tuple(
        Position(_token(text), logprob, _pairs(top), _text(text))
        for text, logprob, top in zip(texts, own, lists, strict=True)
    )


def _pairs(top: Any) -> tuple[tuple[Token, float], ...]:  # Any: JSON
    if isinstance(top, dict):
        return tuple((_token(name), float(value)) for name, value in top.items() if value is not None)
    return tuple((_token(row.get("token"), row.get("id")), float(row["logprob"])) for row in top or ())


def _of_chat(one: JSON) -> Choice:
    message = one.get("message") or one.get("delta") or {}
    rows = (one.get("logprobs") or {}).get("content") or ()
    positions = tuple(_of_row(row) for row in rows) or tuple(map(Position, one.get("token_ids") or ()))
    return Choice(positions, str(message.get("content") or ""), str(one.get("finish_reason") or ""))


def _of_row(row: JSON) -> Position:
    """One token with its list, as chats and llama.cpp write it."""
    token, own = row.get("token"), row.get("logprob")
    top = _pairs(row.get("top_logprobs") or row.get("top_probs") or ())
    return Position(_token(token, row.get("id")), None if own is None else float(own), top, _text(token))


def _aligned(rows: Sequence[Position], ids: Sequence[int]) -> tuple[Position, ...]:
    """A position per token; one that has no row (llama.cpp leaves out speculated ones) has no list."""
    if len(ids) <= len(rows):
        return tuple(rows)
    found, waiting = [], iter([*rows, None])
    row = next(waiting)
    for token in ids:
        is_own = row is not None and row.token == token
        found.append(row if is_own and row is not None else Position(token))
        row = next(waiting) if is_own else row
    return tuple(found)


def _of_generate(one: JSON) -> Choice:
    """A choice of SGLang: log-probability, id and text of each token."""
    about = one.get("meta_info") or {}
    own, lists = about.get("output_token_logprobs") or [], about.get("output_top_logprobs") or []
    lists = lists or [None] * len(own)
    positions = tuple(
        Position(int(row[1]), float(row[0]), tuple((int(two[1]), float(two[0])) for two in top or ()))
        for row, top in zip(own, lists, strict=True)
    )
    positions = positions or tuple(Position(int(token)) for token in one.get("output_ids") or ())
    reason = about.get("finish_reason") or {}
    kind = reason.get("type", "") if isinstance(reason, dict) else str(reason)
    return Choice(positions, str(one.get("text") or ""), str(kind), about.get("completion_tokens"))
