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

from exam import calls, engine, live, matchers
from exam.conditions import CLASSES, Condition, atom_of, condition_of, log_uniform
from exam.examined import Fault, Lazy, catalogue
from exam.masks import Masks
from exam.server import Server

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

    Of a contract with `call`, calls are observed first, without their logits.
    """

    make: Callable[..., Any]
    play: Callable[[Any, random.Random], list[Any]] | None
    per_class: int
    call: Callable[..., Any] | None = None


CONTRACTS = {
    "sampling": Contract(calls.Sampling, None, 12, engine.sampling_call),
    "rejection": Contract(calls.Rejection, None, 12, engine.rejection_call),
    "grammar": Contract(calls.Masker, engine.play_grammar, 3),
    "logprobs": Contract(calls.Logprobs, engine.play_logprobs, 3),
    "filters": Contract(calls.Filters, engine.play_filters, 4),
    "penalties": Contract(live.Penalties, engine.play_penalties, 3),
    "thinking_budget": Contract(live.Budgets, engine.play_thinking, 3),
    "logits_plan": Contract(live.Planner, engine.play_plan, 3),
    "masks": Contract(Masks, engine.play_masks, 3),
    "matchers": Contract(matchers.Matchers, matchers.play, 3),
    "server": Contract(Server, engine.play_server, 2),
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
    ids = {feature.name for feature in catalogue(contract)[0] if feature.kind == "id"} - {"draft"}
    found = set() if effect.ids in ("token", "vocabulary") else ids
    if contract == "masks" and (effect.asks or name in ("next id", "input written")):
        found |= {"kept", "room", "overflows"}
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
        if faulty.struck and not engine.same(one, other):
            return True
    return False


@cache
def observed(contract: str) -> list[tuple[Lazy, ...]]:
    """Return the features of each call of the engine: of its requests, and of its drafts."""
    sampler, found = correct(contract), []
    for index in range(CALLS):
        groups = sampler.observed(*call_of(contract, index, filled=False))
        for one in groups:
            for name in one.makers:
                _ = one[name]
            one.makers = {}
        found.append(groups)
    return found


def call_of(contract: str, index: int, *, filled: bool) -> Any:  # Any: batch and noise
    """Return a call of the engine."""
    make = CONTRACTS[contract].call
    assert make is not None
    return make(f"call {index}", filled=filled)


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


def cost(values: Lazy) -> int:
    """Return the entries of a call."""
    return int((values["batch_size"] + values.get("num_tokens", 0)) * values["vocab_size"])


def shows(member: Member, indices: list[int], most: int = 2**21) -> bool:
    """Whether answers differ in some of these calls, the cheap ones first."""
    faulty, sound = member.make(always=True), correct(member.contract, own_noise=member.own_noise)
    costs = [cost(groups[0]) for groups in observed(member.contract)]
    for index in sorted(indices, key=costs.__getitem__)[:8]:
        if costs[index] > 8 * most:
            return False
        answers, before = [], observed(member.contract)[max(index - 1, 0)][0]
        for sampler in (faulty, sound):
            if index and "stale" in member.effect and costs[index - 1] <= most:
                engine.play_call(sampler, *call_of(member.contract, index - 1, filled=True))
            sampler.struck, sampler.calls = 0, index
            sampler.rows_before, sampler.vocab_before = before["batch_size"], before["vocab_size"]
            answers.append(engine.play_call(sampler, *call_of(member.contract, index, filled=True)))
        if faulty.struck and not engine.same(*answers):
            return True
    return False
