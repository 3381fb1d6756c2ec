"""Members: a correct sampler with one fault, a random condition times a random effect, both drawn from a seed.

A member is rejected, and another drawn, if its condition holds in no row of 300 calls (or 40 steps of each of some
traces) of a simulated engine, or if the answers of the faulty sampler do not differ there from those of the correct
one. A fault that strikes at random is compared as if it always struck.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from exam import plan, rejection, rows, sampling, scanners, server, traces
from exam.conditions import CLASSES, Condition, atom_of, condition_of, log_uniform
from exam.examined import Fault, Lazy, catalogue

if TYPE_CHECKING:
    from collections.abc import Callable

    from exam.examined import Effect

SEED = 39
CALLS = 300
"""Calls of the simulated engine in which a condition must hold."""
MOST = 0.5
"""Share of the rows of these calls in which it holds at most."""


class Contract(NamedTuple):
    """What the exam has for a contract: its sampler, what plays a trace on it, and how many members a class has.

    Of a contract that is not played, calls are observed first, without their logits (`module`).
    """

    make: Callable[..., Any]
    play: Callable[[Any, random.Random], list[Any]] | None
    per_class: int


CONTRACTS = {
    "sampling": Contract(sampling.Sampling, None, 12),
    "rejection": Contract(rejection.Rejection, None, 12),
    "grammar": Contract(rows.Masker, traces.play_grammar, 3),
    "logprobs": Contract(rows.Logprobs, traces.play_logprobs, 3),
    "filters": Contract(rows.Filters, traces.play_filters, 4),
    "penalties": Contract(scanners.Penalties, traces.play_penalties, 3),
    "thinking_budget": Contract(scanners.Budgets, traces.play_thinking, 3),
    "logits_plan": Contract(plan.Planner, traces.play_plan, 3),
    "server": Contract(server.Engine, server.play, 2),
}


@dataclass(frozen=True)
class Member:
    """One sampler of the exam.

    Args:
        own_noise: Whether it takes no explicit noise.
    """

    contract: str
    kind: str
    number: int
    effect: str
    condition: Condition
    size: float
    rate: float
    own_noise: bool

    @property
    def id(self) -> str:
        return f"{self.contract}/{self.kind.replace(' ', '-')}/{self.number}"

    @property
    def effect_words(self) -> str:
        return catalogue(self.contract)[1][self.effect].words.format(self.size)

    @property
    def words(self) -> str:
        """What is wrong, in words."""
        share = [f"in one row of {round(1 / self.rate)}"] if self.rate < 1 else []
        where = [f"where {self.condition.words}"] if self.condition.atoms else []
        own = "; it takes no explicit noise" if self.own_noise else ""
        return f"{', '.join(share + where)}: {self.effect_words}{own}"

    def make(self, *, always: bool = False) -> Any:
        """Return the faulty sampler; with `always` its fault strikes wherever the condition holds."""
        fault = Fault(self.effect, self.condition, self.size, 1.0 if always else self.rate)
        return correct(self.contract, fault, own_noise=self.own_noise)

    def patterns(self) -> tuple[str, str]:
        """Return what names the condition in a report, and what the effect."""
        named = "|".join(atom.feature.pattern for atom in self.condition.atoms)
        return named or r"rare|seldom|few|one in", catalogue(self.contract)[1][self.effect].pattern


def correct(contract: str, fault: Fault | None = None, *, own_noise: bool = False) -> Any:
    """Return the sampler of this contract: a correct one without a fault."""
    made = CONTRACTS[contract].make
    return made(fault, takes_noise=not own_noise) if contract in ("sampling", "rejection") else made(fault)


def classes(contract: str) -> list[str]:
    """Return the classes for which the contract has features."""
    kinds = {feature.kind for feature in catalogue(contract)[0]}
    return [kind for kind in CLASSES if kind in kinds or kind in ("together", "rare effect")]


def slots(contract: str | None = None) -> list[tuple[str, str, int]]:
    """Return contract, class and number of every member: a member of each class first, then another of each."""
    chosen = [contract] if contract else list(CONTRACTS)
    return [
        (name, kind, number) for name in chosen for number in range(CONTRACTS[name].per_class) for kind in classes(name)
    ]


def member_of(seed: int, contract: str, kind: str, number: int) -> Member:
    """Return a member; it depends on nothing but these."""
    rng = random.Random(f"{seed} {contract} {kind} {number}")
    for _ in range(2000):
        member = drawn(rng, contract, kind, number)
        if member and is_real(member, rng.getrandbits(40)):
            return member
    raise RuntimeError(f"member_of: {contract}/{kind}/{number}, but no such fault is real. Add features or effects.")


def drawn(rng: random.Random, contract: str, kind: str, number: int) -> Member | None:
    """Draw a member; `None` if its effect does not know what its condition is about."""
    features, all_effects = catalogue(contract)
    effects = {name: one for name, one in all_effects.items() if kind != "rare effect" or one.rare}
    name = rng.choice(list(effects))
    effect, condition = effects[name], condition_of(rng, kind, features)
    ids = next((one for one in features if one.name == "token"), None)
    if effect.ids == "vocabulary" and "token" not in condition.features:
        if ids is None or (kind not in ("id", "together") and rng.random() < 0.5):
            return None
        condition = Condition((*condition.atoms, atom_of(rng, ids)))
    if set(condition.features) & hidden(contract, name, effect):
        return None
    kinds = {atom.feature.kind for atom in condition.atoms}
    if name == "skipped numbers" and not kinds & {"size", "index", "history", "neighbour"}:
        return None  # a generator's request may skip numbers as it likes, but not because of others
    rate = 1 / log_uniform(rng, 40, 800) if kind == "rare effect" else 1.0
    own_noise = contract in ("sampling", "rejection") and rng.random() < 0.5
    return Member(contract, kind, number, name, condition, rng.uniform(*effect.sizes), rate, own_noise)


def hidden(contract: str, name: str, effect: Effect) -> set[str]:
    """Return the features that the place of an effect does not know."""
    found = set() if effect.ids in ("token", "vocabulary") else {"token"}
    if contract == "rejection":
        if effect.ids != "draft":
            found.add("draft")
            if name not in ("hot", "neighbour's row"):
                found |= {"place", "line", "last_place"}
        else:
            found.add("token")
    return found


# -- is it real? ----------------------------------------------------------------------------------------------------


def is_real(member: Member, seed: int) -> bool:
    """Whether the condition holds in ordinary serving, and the effect shows there."""
    play = CONTRACTS[member.contract].play
    if play is None:
        shares = [share(member, index) for index in range(CALLS)]
        if member.rate == 1 and sum(shares) > MOST * CALLS:
            return False
        return shows(member, [index for index in range(CALLS) if shares[index]])
    for number in range(3):
        faulty, sound = member.make(always=True), correct(member.contract)
        one, other = (play(sampler, random.Random(f"{seed} {number}")) for sampler in (faulty, sound))
        if member.rate == 1 and faulty.struck > MOST * faulty.seen:
            return False
        if faulty.struck and not traces.same(one, other):
            return True
    return False


def module(contract: str) -> Any:
    """Return the module whose engine makes calls."""
    return {"sampling": sampling, "rejection": rejection}[contract]


@cache
def observed(contract: str) -> list[tuple[Lazy, ...]]:
    """Return the features of each call of the engine: of its requests, and of its drafts."""
    sampler, found = correct(contract), []
    for index in range(CALLS):
        batch, noise = module(contract).call_of(f"call {index}", filled=False)
        values = module(contract).observe(sampler, batch, noise)
        groups = values if isinstance(values, tuple) else (values,)
        for one in groups:
            for name in one.makers:
                _ = one[name]
            one.makers = {}
        found.append(groups)
    return found


def share(member: Member, index: int) -> float:
    """Return the share of this call's rows in which the condition holds, and the effect has its place."""
    needs = catalogue(member.contract)[1][member.effect].needs
    names = {*member.condition.features, *needs}
    for values in observed(member.contract)[index]:
        if names <= values.keys():
            found = np.asarray(member.condition.holds(values))
            for name in needs:
                found = found & values[name]
            return float(found.mean()) if found.size else 0.0
    return 0.0


def shows(member: Member, indices: list[int], most: int = 2**21) -> bool:
    """Whether answers differ in some of these calls, the cheap ones first."""
    engine, faulty, sound = module(member.contract), member.make(always=True), correct(member.contract)
    sound.takes_noise = faulty.takes_noise
    costs = [engine.cost(groups[0]) for groups in observed(member.contract)]
    for index in sorted(indices, key=costs.__getitem__)[:8]:
        if costs[index] > 8 * most:
            return False
        answers, before = [], observed(member.contract)[max(index - 1, 0)][0]
        for sampler in (faulty, sound):
            if index and "stale" in member.effect and costs[index - 1] <= most:
                engine.play(sampler, *engine.call_of(f"call {index - 1}", filled=True))
            sampler.struck, history = 0, sampler.history
            history.calls, history.size, history.vocab = index, before["batch_size"], before["vocab_size"]
            answers.append(engine.play(sampler, *engine.call_of(f"call {index}", filled=True)))
        if faulty.struck and not traces.same(*answers):
            return True
    return False
