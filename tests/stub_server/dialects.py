"""How servers speak: what they read from a JSON body, and what they write, whole or as events of a stream.

The fields are those of vLLM 0.22 and 0.33 (`vllm`), SGLang 0.5.23 (`sglang`), llama.cpp's server of October 2026
(`llama.cpp`), and of OpenAI's documentation without any extension (`openai`).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from stub_server.engine import ORDER, Choice, Emitted, Request, Stage
from stub_server.model import BOS, EOS, SPECIAL, TEXTS, VOCAB_SIZE, tokens_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SGLANG_ORDER = ("temperature", "top_k_top_p", "min_p")
Kind = Literal["vllm", "openai", "sglang", "llama.cpp"]
Body = Mapping[str, Any]  # Any: JSON
MODEL = "toy"


class Refused(Exception):
    """A request that the server does not serve.

    Args:
        status: Of the answer.
    """

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Settings:
    """How a server was started.

    Args:
        stage: Of log-probabilities; `processed`: after all filters (`--logprobs-mode processed_logprobs`).
        max_logprobs: Longest list; vLLM's default is 20.
        caps_silently: Longer ones are not refused, and come out shorter.
        chats_only: Only the chat generates.
        has_logprobs: Whether there are log-probabilities at all; the field is ignored otherwise.
    """

    kind: Kind = "vllm"
    stage: Stage = "raw"
    max_logprobs: int = 20
    caps_silently: bool = False
    chats_only: bool = False
    has_logprobs: bool = True

    @property
    def has_ids(self) -> bool:
        """Whether answers carry token ids."""
        return self.kind != "openai"


def token_text(token: int) -> str:
    """Of one token: special ones are spelled, pieces of UTF-8 are not."""
    return TEXTS[token].decode(errors="replace")


def clamped(logprob: float | None) -> float | None:
    """JSON has no infinity."""
    return None if logprob is None else max(logprob, -9999.0)


class Dialect:
    """One route of a server.

    Args:
        settings: Of the server.
    """

    stream_end = b"data: [DONE]\n\n"

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def requests(self, body: Body) -> list[Request]:
        """One for each prompt."""
        raise NotImplementedError

    def whole(self, body: Body, choices: list[Choice]) -> Any:  # Any: JSON
        """The answer at once."""
        raise NotImplementedError

    def event(self, body: Body, choice: Choice, new: list[Emitted], text: str) -> Any:  # Any: JSON
        """The next part of the answer."""
        raise NotImplementedError

    def last_event(self, body: Body, choices: list[Choice]) -> Any | None:  # Any: JSON
        """Written when every choice has ended; `None` if nothing is."""
        return None


# -- OpenAI's completions and chat ------------------------------------------------------------------------------


class Completions(Dialect):
    """`/v1/completions`."""

    prefix, name, chunk_name = "cmpl", "text_completion", "text_completion"

    def requests(self, body: Body) -> list[Request]:
        checked(body)
        common = self.parameters(body)
        return [dataclasses.replace(common, prompt=prompt) for prompt in self.prompts(body)]

    def prompts(self, body: Body) -> list[tuple[int, ...]]:
        """Text or token ids, one or many."""
        prompt = body.get("prompt")
        if not prompt:
            raise Refused("Either prompt or prompt_embeds must be provided and non-empty.")
        return [prompt_tokens(one) for one in one_or_many(prompt)]

    def parameters(self, body: Body) -> Request:
        """Everything but the prompt."""
        request = Request(
            prompt=(),
            max_tokens=given(body, "max_tokens", 16),
            temperature=given(body, "temperature", 1.0),
            top_p=given(body, "top_p", 1.0),
            seed=body.get("seed"),
            n=given(body, "n", 1),
            logit_bias={int(token): bias for token, bias in (body.get("logit_bias") or {}).items()},
            stop=words(body.get("stop")),
            presence=given(body, "presence_penalty", 0.0),
            frequency=given(body, "frequency_penalty", 0.0),
            num_logprobs=self.num_logprobs(body),
            stage=self.stage,
        )
        request = extensions(request, body) if self.settings.has_ids else request
        if self.settings.kind == "sglang":
            request = dataclasses.replace(request, order=SGLANG_ORDER, penalised_prompt="none")
        return llama_order(request, body) if self.settings.kind == "llama.cpp" else ranges(request)

    @property
    def stage(self) -> Stage:
        """Of log-probabilities."""
        return "scaled" if self.settings.kind == "sglang" else self.settings.stage

    def num_logprobs(self, body: Body) -> int | None:
        """Length of the list beside each token, `None` if log-probabilities are not wanted."""
        return self.limited(body.get("logprobs"))

    def limited(self, wanted: int | None) -> int | None:
        """`wanted`, or a refusal as vLLM's."""
        if wanted is None or not self.settings.has_logprobs:
            return None
        if self.settings.kind == "llama.cpp":
            return wanted
        if self.settings.caps_silently:
            return min(wanted, self.settings.max_logprobs)
        if wanted < 0:
            raise Refused("`logprobs` must be a positive value or -1.")
        if wanted > self.settings.max_logprobs:
            limit = self.settings.max_logprobs
            raise Refused(f"Requested sample logprobs of {wanted}, which is greater than max allowed: {limit}")
        return wanted

    def whole(self, body: Body, choices: list[Choice]) -> Any:  # Any: JSON
        made = [
            self.part(body, choice, choice.emitted, choice.text) | {"index": index}
            for index, choice in enumerate(choices)
        ]
        return self.envelope(self.name, made) | {"usage": usage(choices)}

    def event(self, body: Body, choice: Choice, new: list[Emitted], text: str) -> Any:  # Any: JSON
        return self.envelope(self.chunk_name, [self.part(body, choice, new, text, streamed=True)])

    def envelope(self, name: str, choices: list[Any]) -> dict[str, Any]:
        """What stands around choices."""
        return {"id": f"{self.prefix}-0", "object": name, "created": 0, "model": MODEL, "choices": choices}

    def part(
        self, body: Body, choice: Choice, tokens: Sequence[Emitted], text: str, streamed: bool = False
    ) -> dict[str, Any]:
        """A choice, or the next part of one."""
        wanted = choice.request.num_logprobs is not None
        made: dict[str, Any] = {"index": choice.index, **self.content(text, streamed)}
        made["logprobs"] = self.logprobs(body, choice, tokens) if wanted else None
        made["finish_reason"] = choice.ended or None
        has_ids = self.settings.kind == "vllm" and body.get("return_token_ids")
        return made | ({"token_ids": [one.token for one in tokens]} if has_ids else {})

    def content(self, text: str, streamed: bool) -> dict[str, Any]:
        """Where the text stands."""
        return {"text": text}

    def logprobs(self, body: Body, choice: Choice, tokens: Sequence[Emitted]) -> dict[str, Any]:
        """A dictionary by text, or by `token_id:N` if that is asked for: texts of two tokens may be equal."""
        if self.settings.kind == "llama.cpp":
            return llama_content(tokens)
        named = self.named(body)
        return {
            "tokens": [named(one.token) for one in tokens],
            "token_logprobs": [clamped(one.logprob) for one in tokens],
            "top_logprobs": [
                None if one.logprob is None else {named(token): clamped(value) for token, value in sampled_first(one)}
                for one in tokens
            ],
        }

    def named(self, body: Body) -> Callable[[int], str]:
        """What a token is called."""
        by_id = self.settings.kind == "vllm" and body.get("return_tokens_as_token_ids")
        return (lambda token: f"token_id:{token}") if by_id else token_text


class Chat(Completions):
    """`/v1/chat/completions`."""

    prefix, name, chunk_name = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def prompts(self, body: Body) -> list[tuple[int, ...]]:
        messages = body.get("messages")
        if not messages:
            raise Refused("messages must not be empty")
        return [prompt_tokens("".join(f"{one['content']}\n" for one in messages))]

    def parameters(self, body: Body) -> Request:
        longest = body.get("max_completion_tokens") or body.get("max_tokens") or 64
        return dataclasses.replace(super().parameters(body), max_tokens=longest)

    def num_logprobs(self, body: Body) -> int | None:
        return self.limited(given(body, "top_logprobs", 0)) if body.get("logprobs") else None

    def content(self, text: str, streamed: bool) -> dict[str, Any]:
        return {"delta": {"content": text}} if streamed else {"message": {"role": "assistant", "content": text}}

    def logprobs(self, body: Body, choice: Choice, tokens: Sequence[Emitted]) -> dict[str, Any]:
        if self.settings.kind == "llama.cpp":
            return llama_content(tokens)
        named, length = self.named(body), choice.request.num_logprobs

        def entry(token: int, logprob: float | None) -> dict[str, Any]:
            text = named(token)
            return {"token": text, "logprob": clamped(logprob), "bytes": list(text.encode())}

        return {
            "content": [
                entry(one.token, one.logprob) | {"top_logprobs": [entry(*pair) for pair in sampled_first(one)[:length]]}
                for one in tokens
                if one.logprob is not None
            ]
        }


def checked(body: Body) -> None:
    """Refuse another model."""
    if body.get("model") not in (None, "", MODEL):
        raise Refused(f"The model `{body['model']}` does not exist.", 404)


def given(body: Body, name: str, default: Any) -> Any:  # Any: a number
    """A field that may be null."""
    value = body.get(name)
    return default if value is None else value


def words(value: str | list[str] | None) -> tuple[str, ...]:
    """One or many strings."""
    return (value,) if isinstance(value, str) else tuple(value or ())


def one_or_many(prompt: Any) -> list[Any]:  # Any: text, token ids, or a list of either
    """Prompts."""
    return prompt if isinstance(prompt, list) and not isinstance(prompt[0], int) else [prompt]


def prompt_tokens(prompt: str | list[int]) -> tuple[int, ...]:
    """Ids as they are; text with a first token before it."""
    tokens = [BOS, *tokens_of(prompt)] if isinstance(prompt, str) else prompt
    if any(not 0 <= token < VOCAB_SIZE for token in tokens):
        raise Refused(f"Token id {max(tokens)} is out of vocabulary")
    return tuple(tokens)


def extensions(request: Request, body: Body) -> Request:
    """Parameters that are not OpenAI's, as vLLM names them; llama.cpp shares some."""
    return dataclasses.replace(
        request,
        top_k=max(given(body, "top_k", 0), 0),
        min_p=given(body, "min_p", 0.0),
        min_tokens=given(body, "min_tokens", 0),
        repetition=given(body, "repetition_penalty", 1.0),
        bad_words=tuple(spelled for word in body.get("bad_words") or () for spelled in spellings(word)),
    )


def spellings(word: str) -> set[tuple[int, ...]]:
    """A bad word's tokens, with and without a blank before it: the second only if it is as long, as in vLLM."""
    alone, inside = (tuple(tokens_of(text)) for text in (word.lstrip(), f" {word.lstrip()}"))
    return {alone, inside} if len(alone) == len(inside) else {alone}


def ranges(request: Request) -> Request:
    """Refuse values that mean nothing, as vLLM does."""
    wrong = {
        f"temperature must be non-negative, got {request.temperature}.": request.temperature < 0,
        f"top_p must be in (0, 1], got {request.top_p}.": not 0 < request.top_p <= 1,
        f"min_p must be in [0, 1], got {request.min_p}.": not 0 <= request.min_p <= 1,
        f"max_tokens must be at least 1, got {request.max_tokens}.": request.max_tokens < 1,
        f"n must be 1 when using greedy sampling, got {request.n}.": request.n > 1 and request.temperature == 0,
        "min_tokens must be less than or equal to max_tokens": request.min_tokens > request.max_tokens,
    }
    for message, is_wrong in wrong.items():
        if is_wrong:
            raise Refused(message)
    return request


def sampled_first(one: Emitted) -> list[tuple[int, float]]:
    """vLLM's order: the sampled token, then the largest; the sampled one stands there once."""
    sampled = [] if one.logprob is None or one.is_unlisted else [(one.token, one.logprob)]
    return sampled + [pair for pair in one.top if pair[0] != one.token]


def usage(choices: Sequence[Choice]) -> dict[str, int]:
    """Numbers of tokens."""
    read, made = len(choices[0].request.prompt), sum(len(choice.emitted) for choice in choices)
    return {"prompt_tokens": read, "completion_tokens": made, "total_tokens": read + made}


# -- SGLang's /generate -------------------------------------------------------------------------------------------


class Generate(Dialect):
    """`/generate` of SGLang. Events of a stream hold everything so far."""

    def requests(self, body: Body) -> list[Request]:
        prompt = body.get("input_ids") or body.get("text")
        if not prompt:
            raise Refused("Either text, input_ids or input_embeds should be provided.")
        common = self.parameters(body, body.get("sampling_params") or {})
        return [dataclasses.replace(common, prompt=prompt_tokens(one)) for one in one_or_many(prompt)]

    def parameters(self, body: Body, values: Body) -> Request:
        """Everything but the prompt. Log-probabilities are of edited logits over the temperature."""
        return ranges(
            Request(
                prompt=(),
                max_tokens=given(values, "max_new_tokens", 128),
                temperature=given(values, "temperature", 1.0),
                top_p=given(values, "top_p", 1.0),
                top_k=max(given(values, "top_k", -1), 0),
                min_p=given(values, "min_p", 0.0),
                seed=values.get("sampling_seed"),
                n=given(values, "n", 1),
                logit_bias={int(token): bias for token, bias in (values.get("logit_bias") or {}).items()},
                min_tokens=given(values, "min_new_tokens", 0),
                stop=words(values.get("stop")),
                repetition=given(values, "repetition_penalty", 1.0),
                presence=given(values, "presence_penalty", 0.0),
                frequency=given(values, "frequency_penalty", 0.0),
                num_logprobs=given(body, "top_logprobs_num", 0) if body.get("return_logprob") else None,
                stage="scaled",
                order=SGLANG_ORDER,
                penalised_prompt="none",
            )
        )

    def whole(self, body: Body, choices: list[Choice]) -> Any:  # Any: JSON
        made = [self.answer(body, choice) for choice in choices]
        return made[0] if len(made) == 1 else made

    def event(self, body: Body, choice: Choice, new: list[Emitted], text: str) -> Any:  # Any: JSON
        choice.streamed += new
        choice.streamed_text += text
        answer = self.answer(body, choice, choice.streamed, choice.streamed_text)
        return answer if choice.request.n == 1 else answer | {"index": choice.index}

    def answer(
        self, body: Body, choice: Choice, tokens: list[Emitted] | None = None, text: str | None = None
    ) -> dict[str, Any]:
        """Everything about a choice so far."""
        tokens = choice.emitted if tokens is None else tokens
        meta: dict[str, Any] = {
            "id": str(choice.number),
            "finish_reason": self.reason(choice),
            "prompt_tokens": len(choice.request.prompt),
            "completion_tokens": len(tokens),
            "cached_tokens": 0,
        }
        if choice.request.num_logprobs is not None:
            meta["input_token_logprobs"] = []
            meta["output_token_logprobs"] = [triple(one.logprob, one.token) for one in tokens]
            meta["output_token_logprobs_length"] = len(tokens)
            if choice.request.num_logprobs:
                meta["output_top_logprobs"] = [
                    [triple(value, token) for token, value in one.top] or None for one in tokens
                ]
        ids = [one.token for one in tokens]
        return {"text": choice.text if text is None else text, "output_ids": ids, "meta_info": meta}

    def reason(self, choice: Choice) -> dict[str, Any] | None:
        """Why it ended."""
        if choice.ended == "length":
            return {"type": "length", "length": choice.request.max_tokens}
        return {"type": "stop", "matched": choice.matched or EOS} if choice.ended else None


def triple(logprob: float | None, token: int) -> list[Any]:
    """SGLang's entry of a list, without its text."""
    return [clamped(logprob), token, None]


# -- llama.cpp's /completion --------------------------------------------------------------------------------------

LLAMA_ORDER = ("penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature")
LLAMA_DEFAULTS = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "repeat_penalty": 1.0}


def llama_order(request: Request, body: Body) -> Request:
    """llama.cpp's defaults, and temperature last unless `samplers` says otherwise."""
    names = body.get("samplers", LLAMA_ORDER)
    return dataclasses.replace(
        request,
        temperature=max(given(body, "temperature", LLAMA_DEFAULTS["temperature"]), 0.0),
        top_k=int(given(body, "top_k", LLAMA_DEFAULTS["top_k"])),
        top_p=given(body, "top_p", LLAMA_DEFAULTS["top_p"]),
        min_p=given(body, "min_p", LLAMA_DEFAULTS["min_p"]),
        repetition=given(body, "repeat_penalty", LLAMA_DEFAULTS["repeat_penalty"]),
        seed=None if request.seed in (-1, 2**32 - 1) else request.seed,
        order=tuple(name for name in names if name in ORDER),
        penalised_prompt="all",
    )


class LlamaCompletion(Dialect):
    """`/completion` of llama.cpp."""

    stream_end = b""

    def requests(self, body: Body) -> list[Request]:
        if not isinstance(body.get("prompt"), str | list) or body["prompt"] == []:
            raise Refused('"prompt" elements must be a string, a list of tokens, or a list of mixed strings & tokens.')
        request = Request(
            prompt=prompt_tokens(body["prompt"]),
            max_tokens=given(body, "n_predict", -1) if given(body, "n_predict", -1) > 0 else 128,
            seed=body.get("seed"),
            logit_bias={int(token): float(bias) for token, bias in body.get("logit_bias") or ()},
            stop=words(body.get("stop")),
            presence=given(body, "presence_penalty", 0.0),
            frequency=given(body, "frequency_penalty", 0.0),
            num_logprobs=body.get("n_probs") or None,
        )
        return [llama_order(request, body)]

    def whole(self, body: Body, choices: list[Choice]) -> Any:  # Any: JSON
        (choice,) = choices
        tokens = choice.emitted if body.get("return_tokens") else []
        answer = self.final(choice) | {"content": choice.text, "tokens": [one.token for one in tokens]}
        listed = choice.emitted
        if choice.matched:
            # As llama.cpp: the stop word's tokens have none.
            listed = listed[: max(len(listed) - len(tokens_of(choice.matched)), 0)]
        return answer | self.probabilities(choice, listed)

    def event(self, body: Body, choice: Choice, new: list[Emitted], text: str) -> Any:  # Any: JSON
        return {
            "index": 0,
            "content": text,
            "tokens": [one.token for one in new],
            "stop": False,
            "id_slot": -1,
            "tokens_predicted": len(choice.emitted),
            "tokens_evaluated": len(choice.request.prompt),
        } | self.probabilities(choice, new)

    def last_event(self, body: Body, choices: list[Choice]) -> Any | None:  # Any: JSON
        return self.final(choices[0])

    def final(self, choice: Choice) -> dict[str, Any]:
        """The end of an answer."""
        by_token = "word" if choice.matched else "eos"
        return {
            "index": 0,
            "content": "",
            "tokens": [],
            "id_slot": 0,
            "stop": True,
            "model": MODEL,
            "tokens_predicted": len(choice.emitted),
            "tokens_evaluated": len(choice.request.prompt),
            "stop_type": "limit" if choice.ended == "length" else by_token,
            "stopping_word": choice.matched,
            "truncated": False,
        }

    def probabilities(self, choice: Choice, tokens: Sequence[Emitted]) -> dict[str, Any]:
        """Beside the tokens, if they are wanted."""
        wanted = choice.request.num_logprobs is not None
        return {"completion_probabilities": llama_content(tokens)["content"]} if wanted else {}


def llama_content(tokens: Sequence[Emitted]) -> dict[str, Any]:
    """Ids, texts and bytes of the tokens that have log-probabilities."""

    def entry(token: int, logprob: float | None) -> dict[str, Any]:
        data = b"" if token < len(SPECIAL) else TEXTS[token]
        return {"id": token, "token": data.decode(errors="replace"), "bytes": list(data), "logprob": clamped(logprob)}

    listed = [one for one in tokens if one.logprob is not None]
    return {
        "content": [
            entry(one.token, one.logprob) | {"top_logprobs": [entry(*pair) for pair in one.top]} for one in listed
        ]
    }


def as_event(data: Any) -> bytes:  # Any: JSON
    """A server-sent event."""
    return f"data: {json.dumps(data)}\n\n".encode()
