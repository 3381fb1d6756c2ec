"""The matchers contract: the matcher of the specification, which keeps its text, with a fault in one step."""

from __future__ import annotations

from contextlib import suppress
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch

from exam.examined import Examined, Lazy
from fairdraw._oracles import matchers as spec
from fairdraw.contracts import Capabilities, MatcherGrammar, words_of
from fairdraw.contracts._matchers import tokens_of
from fairdraw.strategies.matchers import MatcherTrace

if TYPE_CHECKING:
    import random

    from torch import Tensor

# -- a trace ----------------------------------------------------------------------------------------------------------

REGEXES = (
    "name[abcdefghij]{1,8}",
    "n[abcdefghij]{1,3}(or[abcdefghij]{1,3})*",
    "(yes|no|maybe)",
    "(漢|字|é|a)*",
    "[xy]+(ab|abc)?",
    "x(yes|no){2}(z[abc]+é)*z",
)
SIZES = (48, 96, 128, 257, 1000, 4096, 32000)
METHODS = (*["accept"] * 12, "rollback", "rollback", "open", "fork", "forced", "reset")
CALLS, MOST = 120, 6
"""Calls of a trace, and matchers that it opens at most."""


def following(rest: spec.Expression) -> list[int]:
    """Return the bytes that may follow."""
    return [byte for byte in range(256) if spec.derive(rest, byte) != spec.NOTHING]


@cache
def grammar_of(number: int) -> MatcherGrammar:
    """Return a grammar with a vocabulary."""
    regex, size = REGEXES[number % len(REGEXES)], SIZES[number % len(SIZES)]
    return MatcherTrace((regex,), vocab_size=size, num_stops=1 + number % 3, seed=number).grammar(0)


def play(maker: Any, rng: random.Random) -> list[Any]:
    """Walk texts, drafts, forks and ends of some matchers; what happens depends on those of the specification alone."""
    grammar, answers = grammar_of(rng.randrange(42)), list[Any]()
    compiled, right = maker.compile_grammar(grammar), spec.OpensOracle(grammar)
    ids, pairs = range(len(grammar.vocabulary)), [(compiled.open(), right.open())]
    for _ in range(CALLS):
        pair, method, arguments = rng.choice(pairs), rng.choice(METHODS), list[int]()
        allowed, size = pair[1].followers(), len(pair[1].token_ids)
        if method == "accept":
            stops = [token for token in allowed if token in grammar.stop_token_ids]
            likely = allowed if allowed and rng.random() < 0.9 else ids
            arguments = [rng.choice(stops if stops and rng.random() < 0.2 else likely)]
        elif method == "rollback":
            arguments = [rng.randint(0, min(size, 5))]
        elif (method in ("open", "fork") and len(pairs) == MOST) or (method == "reset" and size <= 8):
            continue
        found = [getattr(one, method)(*arguments) for one in ((compiled, right) if method == "open" else pair)]
        if method in ("open", "fork"):
            pairs.append((found[0], found[1]))
        else:
            answers.append(found[0])
        rows = torch.full((3, grammar.num_words), rng.choice([0, -1, 0x55555555]), dtype=torch.int32)
        with suppress(RuntimeError):  # behind the end
            pair[0].fill(rows[1])
        answers += [pair[0].is_terminated, tokens_of(rows[1], len(ids)), rows[::2]]
    return answers


# -- the sampler ------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def about(grammar: MatcherGrammar) -> dict[str, np.ndarray]:  # each [vocab_size]
    """Return what the tokens of a vocabulary are."""
    texts, ids = grammar.vocabulary, np.arange(len(grammar.vocabulary))
    first = {text: i for i, text in reversed([*enumerate(texts)])}
    return {
        "token": ids,
        "token_bytes": np.array([len(text) for text in texts]),
        "parted": np.array(["\ufffd" in text.decode(errors="replace") for text in texts]),
        "twin": np.array([first[text] < i for i, text in enumerate(texts)]),
        "is_stop": np.isin(ids, grammar.stop_token_ids),
        "is_special": np.isin(ids, grammar.special_token_ids),
    }


class ExaminedMatcher(spec.MatcherOracle):
    """A matcher, which knows what was done to it and to the others of its grammar."""

    maker: Matchers

    def __init__(self, grammar: MatcherGrammar, shared: dict[Any, Any]) -> None:  # Any: as in the specification
        super().__init__(grammar, shared)
        self.others: list[ExaminedMatcher] = shared.setdefault("opened", [])
        self.number, self.done, self.mask = len(self.others), list[str](), about(grammar)["is_stop"]
        self.others.append(self)

    def values(self, token: int | slice = slice(None)) -> Lazy:
        """Return the features of a call on this matcher, about one token or all of them."""
        grammar, text, size, done = self.grammar, self.text, len(self.token_ids), self.done
        rest, others = spec.derive_all(spec.expression_of(grammar.regex), text), {*self.others} - {self}
        numbers = {"vocab_size": len(grammar.vocabulary), "num_stops": len(grammar.stop_token_ids)}
        numbers |= {"num_tokens": size, "num_bytes": len(text), "number": self.number, "fills": done.count("fill")}
        once = {f"had_{event}": event in done for event in ("rollback", "reset", "end", "fork")}
        just = {f"after_{event}": done[-1:] == [event] for event in ("rollback", "refusal", "fill")}
        flags = {
            "aligned": len(grammar.vocabulary) % 32 == 0,
            "several_stops": len(grammar.stop_token_ids) > 1,
            "ended": super().is_terminated,
            "complete": spec.is_complete(rest),
            "incomplete": not spec.is_complete(rest),
            "last": spec.is_complete(rest) and not following(rest),
            "forced": spec.longest_forced(grammar.regex, text) != b"",
            "inside": "\ufffd" in text.decode(errors="replace"),
            "walked": size > 0,
            "among_others": len(others) > 0,
            "after_other": self.shared.get("last", self) is not self,
            "beside_same": any(one.token_ids == self.token_ids for one in others),
            "among_longer": any(len(one.token_ids) > size for one in others),
            "among_ended": any("end" in one.done for one in others),
        }
        tokens = {name: values[token] for name, values in about(grammar).items()}
        return Lazy({**numbers, **once, **just, **flags, **tokens})

    def note(self, what: str) -> None:
        """Remember what was done."""
        self.done.append(what)
        self.shared["last"] = self

    def strikes(self, *effects: str, token: int = -1) -> str:
        """Return the one of these effects that strikes now."""
        effect = self.maker.effect
        return effect if effect in effects and self.maker.hit(effect, self.values(token)) else ""

    # -- steps

    @property
    def is_terminated(self) -> bool:
        if self.strikes("ends by itself"):
            return True
        return super().is_terminated and not self.strikes("end unseen")

    def accept(self, token_id: int) -> bool:
        before, right = list(self.token_ids), token_id in self.followers()
        after, ways = [*before, token_id] if right else before, dict[str, tuple[bool, list[int]]]()
        if right:
            ways |= {"refused": (False, before), "denied": (False, after)}
            ways |= {"not taken": (True, before), "taken twice": (True, [*after, token_id])}
        else:
            ways |= {"passed": (True, before), "cut": (False, before[:-1]), "forgets": (False, [])}
        answer, self.token_ids[:] = ways.get(self.strikes(*ways, token=token_id), (right, after))
        self.note("refusal" if not right else "end" if token_id in self.grammar.stop_token_ids else "accept")
        return answer

    def rollback(self, num_tokens: int) -> None:
        more = {"one left": -1, "one more": 1, "not taken back": -num_tokens, "end not counted": 1}
        super().rollback(num_tokens + (more.get(self.strikes(*more), 0) if num_tokens else 0))
        self.note("rollback")

    def reset(self) -> None:
        kept = {"not reset": len(self.token_ids), "one kept": 1}
        del self.token_ids[kept.get(self.strikes(*kept), 0) :]
        self.note("reset")

    def fork(self) -> Self:
        other, texts = super().fork(), {"anew": [], "lags": self.token_ids[:-1], "shared": self.token_ids}
        other.token_ids = texts.get(self.strikes(*texts), other.token_ids)
        self.note("fork")
        other.note("fork")
        return other

    def forced(self) -> bytes:
        right, earlier = super().forced(), b"".join(self.grammar.vocabulary[i] for i in self.token_ids[:-1])
        self.note("forced")
        match self.strikes("too long", "of before"):
            case "too long":
                rest = spec.derive_all(spec.expression_of(self.grammar.regex), self.text + right)
                return right + bytes(following(rest)[:1])
            case "of before":
                return spec.longest_forced(self.grammar.regex, earlier)
        return right

    def allowed(self) -> list[int]:
        if super().is_terminated and self.strikes("asked behind the end"):
            return list(self.grammar.stop_token_ids)
        return super().allowed()

    def fill(self, bitmask: Tensor) -> None:  # [num_words] int32
        tokens, before = about(self.grammar), self.mask
        flags = np.isin(tokens["token"], self.allowed())
        last, self.mask, self.shared["mask"] = self.shared.get("mask", flags), flags, flags
        changes = {
            "left out": lambda: np.zeros_like(flags),
            "let in": lambda: np.ones_like(flags),
            "no stop": lambda: flags & ~tokens["is_stop"],
            "first stop": lambda: flags & (~tokens["is_stop"] | (tokens["token"] == self.grammar.stop_token_ids[0])),
            "early stop": lambda: flags | tokens["is_stop"],
            "special": lambda: flags | tokens["is_special"],
            "parts lost": lambda: flags & ~tokens["parted"],
            "twins lost": lambda: flags & ~tokens["twin"],
            "long lost": lambda: flags & (tokens["token_bytes"] <= self.maker.size),
            "stale mask": lambda: before,
            "other's mask": lambda: last,
        }
        shown = self.maker.changed(changes, self.values(), flags) if self.maker.effect in changes else flags
        words = bitmask.new_tensor(words_of(np.flatnonzero(shown).tolist(), len(bitmask)))
        unwritten = {
            "bits of before": lambda: words | bitmask,
            "last word": lambda: torch.cat([words[:-1], bitmask[-1:]]),
            "empty words": lambda: torch.where(words == 0, bitmask, words),
        }
        if self.strikes("word behind"):
            bitmask.as_strided((len(bitmask) + 1,), (1,))[-1] = 7
        bitmask.copy_(unwritten.get(self.strikes(*unwritten), lambda: words)())
        self.note("fill")


class Matchers(Examined):
    """The maker of matchers."""

    contract = "matchers"
    sees_needs = True
    capabilities = Capabilities()

    def compile_grammar(self, grammar: MatcherGrammar) -> spec.OpensOracle:
        return spec.OpensOracle(grammar, type("Own", (ExaminedMatcher,), {"maker": self}))
