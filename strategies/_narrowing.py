"""What a case may contain: the caller's options, narrowed to what a sampler supports."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fairdraw.contracts import MAX_SPEC_LEN, Capabilities, Capability
from fairdraw.strategies._arguments import check_interval, check_kinds
from fairdraw.strategies._recipe import DTYPES, LAYOUTS

_ORDINARY_VOCAB_SIZE = 1025
_ORDINARY_DRAFTS = 8
"""Limits for samplers without `LARGE_VOCAB` or `LONG_DRAFTS`."""

INVALID_ROW_NEEDS = {"empty": Capability.EMPTY_ROWS, "nan": Capability.NAN_LOGITS}
_TOKEN_NEEDS = {"placeholder": Capability.PLACEHOLDER_DRAFTS}
_DTYPE_NEEDS = dict.fromkeys(DTYPES[1:], Capability.HALF_LOGITS)
_LAYOUT_NEEDS = dict.fromkeys(LAYOUTS[1:], Capability.STRIDED_INPUTS)


@dataclass(frozen=True)
class Narrowing:
    """Checks the arguments of `function` one by one and narrows each to what is supported.

    Every method raises `ValueError` if nothing is left: the caller requires what the sampler does not support.
    """

    function: str
    can: Capabilities

    def _refusal(self, given: str, rule: str | None, remedy: str) -> ValueError:
        return ValueError(f"{self.function}: {given}, but {rule}. {remedy}")

    def _upper(self, name: str, low: int, high: int, limit: int, capability: Capability) -> int:
        if capability in self.can:
            return high
        if low > limit:
            raise self._refusal(f"min_{name}={low}", self.can.why_unsupported([capability]), f"Use at most {limit}.")
        return min(high, limit)

    def vocab_sizes(self, low: int, high: int) -> tuple[int, int]:
        """At most 1025 tokens without `LARGE_VOCAB`."""
        check_interval(self.function, "min_vocab_size", low, "max_vocab_size", high, at_least=1)
        return low, self._upper("vocab_size", low, high, _ORDINARY_VOCAB_SIZE, Capability.LARGE_VOCAB)

    def num_requests(self, low: int, high: int) -> tuple[int, int]:
        """At least one; no capability limits the number."""
        check_interval(self.function, "min_requests", low, "max_requests", high, at_least=1)
        return low, high

    def num_drafts(self, low: int, high: int) -> tuple[int, int]:
        """At most 8 drafts without `LONG_DRAFTS`, at least 1 without `RAGGED`."""
        check_interval(self.function, "min_drafts", low, "max_drafts", high, at_most=MAX_SPEC_LEN)
        high = self._upper("drafts", low, high, _ORDINARY_DRAFTS, Capability.LONG_DRAFTS)
        if Capability.RAGGED in self.can:
            return low, high
        if high == 0:
            why = self.can.why_unsupported([Capability.RAGGED])
            raise self._refusal("max_drafts=0", why, "Use at least 1.")
        return max(low, 1), high

    def flags(
        self, name: str, fixed: bool | None, *, true: Capability | None = None, false: Capability | None = None
    ) -> tuple[bool, ...]:
        """The values that a flag may have: the fixed one, or whatever is supported if `None`."""
        needs = {False: false, True: true}
        values = (False, True) if fixed is None else (fixed,)
        kept = tuple(value for value in values if (needed := needs[value]) is None or needed in self.can)
        if not kept:
            why = self.can.why_unsupported([needed for value in values if (needed := needs[value]) is not None])
            raise self._refusal(f"{name}={fixed}", why, "Ask for something that is open, or skip this sampler.")
        return kept

    def explicit(self, fixed: bool | None, request_seed: bool | None) -> tuple[bool, ...]:
        """Explicit noise first, because it is simpler to read. A sampler that supports neither kind gets seeds."""
        if fixed and request_seed:
            raise self._refusal(
                "explicit=True, request_seed=True",
                "only seeded noise has seeds",
                "Use explicit=False or request_seed=None.",
            )
        needs_seeds = Capability.SEEDED_NOISE if Capability.EXPLICIT_NOISE in self.can else None
        wanted = False if request_seed else fixed
        return self.flags("explicit", wanted, true=Capability.EXPLICIT_NOISE, false=needs_seeds)[::-1]

    def tokens(self, kinds: tuple[str, ...]) -> tuple[str, ...]:
        """Without placeholders where they are unsupported."""
        return self._open("tokens", kinds, _TOKEN_NEEDS)

    def rows(self, name: str, kinds: tuple[str, ...]) -> tuple[str, ...]:
        """Without NaN and empty rows where they are unsupported."""
        return self._open(name, kinds, INVALID_ROW_NEEDS)

    def dtypes(self, given: Sequence[str] | None) -> tuple[str, ...]:
        """float32 alone without `HALF_LOGITS`."""
        return self._open("dtypes", check_kinds(self.function, "dtypes", given, DTYPES), _DTYPE_NEEDS)

    def layouts(self, given: Sequence[str] | None) -> tuple[str, ...]:
        """Contiguous alone without `STRIDED_INPUTS`."""
        return self._open("layouts", check_kinds(self.function, "layouts", given, LAYOUTS), _LAYOUT_NEEDS)

    def _open(self, name: str, kinds: tuple[str, ...], needs: Mapping[str, Capability]) -> tuple[str, ...]:
        kept = tuple(kind for kind in kinds if kind not in needs or needs[kind] in self.can)
        if not kept:
            why = self.can.why_unsupported([needs[kind] for kind in kinds])
            raise self._refusal(f"{name}={kinds!r}", why, "Name a kind that is open.")
        return kept
