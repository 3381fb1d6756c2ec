"""Words of adapters explained: capabilities, with the checks that each costs, and the choices of policies."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

from fairdraw._core.contracts import CONTRACTS
from fairdraw._run.loading import all_checks
from fairdraw.contracts import Capabilities, Capability


@dataclass(frozen=True)
class Word:
    """One capability.

    Args:
        meaning: What a sampler that supports it does.
        unsupported_if: When to declare it unsupported: a phrase that begins with `if` or `unless`.
        skipped: Contract to the codes of the checks that are skipped if it, and nothing else, is unsupported.
        totals: Contract to the number of its checks.
    """

    capability: Capability
    meaning: str
    unsupported_if: str
    skipped: Mapping[str, tuple[str, ...]]
    totals: Mapping[str, int]

    def cost(self, contract: str) -> str:
        """How many checks of `contract` are skipped without it, as words."""
        return f"{len(self.skipped[contract])} of {self.totals[contract]}"

    def row(self, only: str | None = None) -> str:
        """Return a row of the manual's table, with what it costs every contract or `only` one."""
        costs = (f"{one.replace('_', ' ')} {self.cost(one)}" for one in self.skipped if only in (None, one))
        return f"| `{self.capability}` | {self.meaning} | {self.unsupported_if} | {'; '.join(costs) or 'none'} |"

    def lines(self) -> list[str]:
        """What `fairdraw explain` says about it."""
        skipped = [
            f"{contract.replace('_', ' ')} contract: {self.cost(contract)} checks are skipped then: {', '.join(codes)}"
            for contract, codes in self.skipped.items()
        ]
        return [
            f"{self.capability}, a capability",
            "",
            self.meaning,
            f"Declare it unsupported {self.unsupported_if}",
            "",
            f'in the adapter: unsupported={{"{self.capability}": "your reason"}}',
            *(skipped or ["no check is skipped then; fewer cases are drawn"]),
        ]


@cache
def glossary() -> Mapping[str, Word]:
    """Every capability by its word, in the order of their definition."""
    texts = _strings_below_members()
    plain = "Takes `{}`. Declare it unsupported if you do not filter by it."
    said = {one: texts.get(one.name, plain.format(one.name.lower())) for one in Capability}
    return {str(one): _word(one, *text.split(" Declare it unsupported ")) for one, text in said.items()}


def _word(capability: Capability, meaning: str, unsupported_if: str) -> Word:
    checks = {name: [check for check in all_checks() if check.contract == name] for name in CONTRACTS}
    totals = {contract: len(own) for contract, own in checks.items()}
    lacking = Capabilities({capability: "it is the only one that is unsupported"})
    skipped = {contract: tuple(c.code for c in own if c.missing(lacking)) for contract, own in checks.items()}
    return Word(capability, meaning, unsupported_if, {name: codes for name, codes in skipped.items() if codes}, totals)


def _strings_below_members() -> dict[str, str]:
    """Member to the string below it, which Python itself does not keep."""
    texts = {}
    for member, below in pairwise(ast.walk(ast.parse(inspect.getsource(Capability)))):
        match member, below:
            case ast.Assign(targets=[ast.Name(id=name)]), ast.Expr(value=ast.Constant(value=str(text))):
                texts[name] = " ".join(text.split())
    return texts


def policy_lines(word: str) -> list[str]:
    """What `fairdraw explain` says about a choice of a policy; nothing if no policy has it."""
    for contract, one in CONTRACTS.items():
        kind = one.policy
        choice = kind.choices().get(word) if kind else None
        if kind and choice and choice.ways:
            default, other, *_ = choice.ways
            return [
                f"{word}, a choice of the {contract.replace('_', ' ')} contract",
                "",
                choice.meaning,
                *(f"  {way}: {line}" for way, line in choice.ways.items()),
                "",
                f"if nothing is declared: {default}",
                f"in the adapter: policy = fairdraw.contracts.{kind.__name__}({word}={other})",
            ]
    return []
