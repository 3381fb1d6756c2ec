"""Grammar matchers of xgrammar, llguidance and outlines-core, and vLLM's class around the first.

Tried: `xgrammar` 0.2.8, `llguidance` 1.9.1, `outlines-core` 0.2.14, `vllm` 0.22.0. Each gets the vocabulary as bytes,
and special tokens in the way that it documents.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from importlib import metadata
from types import SimpleNamespace
from typing import Any

from torch import Tensor

from fairdraw.adapters import SamplerRow, quiet_imports
from fairdraw.contracts import MatcherGrammar, MatcherPolicy, SessionSampler
from fairdraw_engines._others import Upstream


def _maker(
    row: SamplerRow, package: str, device: str, opens: Callable[[MatcherGrammar], Callable[[], Any]], **policy: Any
) -> SessionSampler:  # Any: a matcher; fields of the policy
    def compiled(grammar: MatcherGrammar) -> SimpleNamespace:
        return SimpleNamespace(open=opens(grammar))

    facts = row.facts(metadata.version(package), device)
    return SessionSampler(function=compiled, contract="matchers", policy=MatcherPolicy(**policy), **facts)


def _library(name: str) -> Upstream:
    with quiet_imports():
        return importlib.import_module(name)


# xgrammar


def _of_xgrammar(grammar: MatcherGrammar) -> tuple[Upstream, Upstream]:
    """Return the tokenizer's facts and the compiled grammar; a token without bytes is special."""
    library = _library("xgrammar")
    vocabulary = [b"" if i in grammar.special_token_ids else token for i, token in enumerate(grammar.vocabulary)]
    stops, raw = list(grammar.stop_token_ids), library.VocabType.RAW
    info = library.TokenizerInfo(vocabulary, raw, vocab_size=len(vocabulary), stop_token_ids=stops)
    return library, library.GrammarCompiler(info, max_threads=1).compile_regex(grammar.regex)


class _XGrammar:
    """`GrammarMatcher`."""

    def __init__(self, matcher: Upstream) -> None:
        self._matcher = matcher
        self.rollback, self.reset, self.accept = matcher.rollback, matcher.reset, matcher.accept_token

    @property
    def is_terminated(self) -> bool:
        return bool(self._matcher.is_terminated())

    def fill(self, bitmask: Tensor) -> None:  # [num_words] int32
        """Write the mask, unless the answer says that nothing is forbidden: then it is not written."""
        if not self._matcher.fill_next_token_bitmask(bitmask[None]):
            bitmask.fill_(-1)

    def fork(self) -> _XGrammar:
        return _XGrammar(self._matcher.fork())

    def forced(self) -> bytes:
        return str(self._matcher.find_jump_forward_string()).encode()


def xgrammar(row: SamplerRow, device: str) -> SessionSampler:
    """Return `GrammarMatcher`."""

    def opens(grammar: MatcherGrammar) -> Callable[[], _XGrammar]:
        library, compiled = _of_xgrammar(grammar)
        return lambda: _XGrammar(library.GrammarMatcher(compiled))

    return _maker(row, "xgrammar", device, opens)


# llguidance


class _Vocabulary:
    """A tokenizer as `TokenizerWrapper` wants it."""

    bos_token_id = None

    def __init__(self, grammar: MatcherGrammar) -> None:
        self.tokens, self.eos_token_id = list(grammar.vocabulary), grammar.stop_token_ids[0]
        self.special_token_ids = [*grammar.special_token_ids, *grammar.stop_token_ids]
        self._ids = {token: i for i, token in grammar.text_tokens.items()}

    def __call__(self, text: str | bytes) -> list[int]:
        return [self._ids[bytes([byte])] for byte in (text if isinstance(text, bytes) else text.encode())]


class _LLGuidance:
    """`LLMatcher`. It stops by itself where nothing can follow; the text has ended once the stop token was accepted."""

    def __init__(self, matcher: Upstream, stops: tuple[int, ...], ended: bool = False) -> None:
        self._matcher, self._stops, self.is_terminated = matcher, stops, ended

    def accept(self, token_id: int) -> bool:
        if self.is_terminated or (self._matcher.is_stopped() and token_id not in self._stops):
            return False
        answer = bool(self._matcher.try_consume_tokens([token_id]) == 1 or self._matcher.is_stopped())
        self.is_terminated = answer and token_id in self._stops
        return answer

    def rollback(self, num_tokens: int) -> None:
        self._matcher.rollback(num_tokens)
        self.is_terminated = self.is_terminated and num_tokens == 0

    def reset(self) -> None:
        self._matcher.reset()
        self.is_terminated = False

    def fill(self, bitmask: Tensor) -> None:  # [num_words] int32
        _library("llguidance.torch").fill_next_token_bitmask(self._matcher, bitmask[None])

    def fork(self) -> _LLGuidance:
        return _LLGuidance(self._matcher.deep_copy(), self._stops, self.is_terminated)

    def forced(self) -> bytes:
        return bytes(self._matcher.compute_ff_bytes())


def llguidance(row: SamplerRow, device: str) -> SessionSampler:
    """Return `LLMatcher`."""
    library = _library("llguidance")

    def opens(grammar: MatcherGrammar) -> Callable[[], _LLGuidance]:
        wrapper, stops = library.TokenizerWrapper(_Vocabulary(grammar)), grammar.stop_token_ids
        tokenizer = library.LLTokenizer(wrapper, eos_token=list(stops))
        words = library.LLMatcher.grammar_from_regex(grammar.regex)
        return lambda: _LLGuidance(library.LLMatcher(tokenizer, words), stops)

    return _maker(row, "llguidance", device, opens, ended_mask="stops", forced_tokens="some")


# outlines-core


class _Outlines:
    """`Guide`. A stop token leads to no state, so that the caller counts it."""

    def __init__(self, guide: Upstream, stop: int) -> None:
        self._guide, self._stop, self.is_terminated = guide, stop, False

    def accept(self, token_id: int) -> bool:
        if self.is_terminated or not self._guide.accepts_tokens([token_id]):
            is_end = not self.is_terminated and token_id == self._stop and self._guide.is_finished()
            self.is_terminated = self.is_terminated or is_end
            return bool(is_end)
        self._guide.advance(token_id, return_tokens=False)
        return True

    def rollback(self, num_tokens: int) -> None:
        self._guide.rollback_state(num_tokens - (self.is_terminated and num_tokens > 0))
        self.is_terminated = self.is_terminated and num_tokens == 0

    def reset(self) -> None:
        self._guide.reset()
        self.is_terminated = False

    def fill(self, bitmask: Tensor) -> None:  # [num_words] int32
        self._guide.write_mask_into(bitmask.data_ptr(), bitmask.numel(), bitmask.element_size())


def outlines(row: SamplerRow, device: str) -> SessionSampler:
    """Return `Guide`."""
    library = _library("outlines_core")

    def opens(grammar: MatcherGrammar) -> Callable[[], _Outlines]:
        (stop,), ids = grammar.stop_token_ids, dict[bytes, list[int]]()
        for token_id, token in grammar.text_tokens.items():
            ids.setdefault(token, []).append(token_id)
        index = library.Index(grammar.regex, library.Vocabulary(stop, ids))
        return lambda: _Outlines(library.Guide(index, max_rollback=4096), stop)

    return _maker(row, "outlines-core", device, opens, ended_mask="unasked", stop_tokens="one")


# vLLM


class _VLLM:
    """A `StructuredOutputGrammar`: its scheduler validates drafts, and accepts what was emitted."""

    def __init__(self, grammar: Upstream) -> None:
        self._grammar, self.rollback, self.reset = grammar, grammar.rollback, grammar.reset

    @property
    def is_terminated(self) -> bool:
        return bool(self._grammar.is_terminated())

    def accept(self, token_id: int) -> bool:
        return bool(self._grammar.validate_tokens([token_id]) and self._grammar.accept_tokens("request", [token_id]))

    def fill(self, bitmask: Tensor) -> None:  # [num_words] int32
        self._grammar.fill_bitmask(bitmask[None], 0)


def vllm(row: SamplerRow, device: str) -> SessionSampler:
    """Return `XgrammarGrammar`."""
    made = _library("vllm.v1.structured_output.backend_xgrammar").XgrammarGrammar

    def opens(grammar: MatcherGrammar) -> Callable[[], _VLLM]:
        library, compiled = _of_xgrammar(grammar)
        return lambda: _VLLM(made(len(grammar.vocabulary), library.GrammarMatcher(compiled), compiled))

    return _maker(row, "vllm", device, opens)
