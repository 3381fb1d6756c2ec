"""Faults of logits planners, as engines have them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from exam.areas import EXAMPLE
from exam.correct_plan import Compiled, Plan, Planner
from exam.correct_scanners import PenaltyRows
from exam.registry import fault
from fairdraw.protocols import Move

if TYPE_CHECKING:
    import random

    from torch import Tensor

    from exam.registry import Wrong
    from fairdraw.protocols import AddedRow, LogitsBatch, LogitsParams, LogitsRequest, RowChanges, RowOfRequest


def planner(plan: type[Plan]) -> Any:
    """A planner with this session."""
    return type("Faulty", (Planner,), {"plan": plan})()


# -- sizes ----------------------------------------------------------------------------------------------------------


@fault("sizes", EXAMPLE)
def plan_rows_beyond_a_block(rng: random.Random) -> Wrong:
    most = rng.choice([16, 24, 32, 48, 64])

    class Faulty(Plan):
        def filter(self, logits: Any, own: Compiled) -> None:
            self.at += 1
            if self.at <= most:
                super().filter(logits, own)

        def process(self, batch: LogitsBatch) -> Tensor:
            self.at = 0
            return super().process(batch)

    return f"of more than {most} random rows those behind are not filtered", lambda: planner(Faulty)


@fault("sizes", EXAMPLE)
def plan_long_bad_words(rng: random.Random) -> Wrong:
    most = rng.choice([3, 4, 5])

    class Faulty(Plan):
        def bad_words(self, logits: Any, own: Compiled, text: list[int]) -> None:
            for word in own.words:
                head = word[-most:-1]
                if len(word) - 1 <= len(text) and (not head or text[-len(head) :] == head):
                    logits[word[-1]] = -np.inf

    return f"of a bad word only the last {most} tokens are compared", lambda: planner(Faulty)


@fault("sizes", EXAMPLE)
def plan_many_stops(rng: random.Random) -> Wrong:
    most = rng.choice([2, 3, 4, 8])

    class Faulty(Plan):
        def fresh(self, added: AddedRow) -> Compiled:
            own = super().fresh(added)
            own.stops = own.stops[:most]
            return own

    return f"minimum tokens exclude at most {most} stop tokens", lambda: planner(Faulty)


@fault("sizes", EXAMPLE)
def plan_top_k_of_a_block(rng: random.Random) -> Wrong:
    most = rng.choice([16, 32, 64, 128])

    class Faulty(Plan):
        def top_k(self, logits: Any, top_k: int) -> None:
            super().top_k(logits, min(top_k, most))

    return f"top-k keeps at most {most} tokens", lambda: planner(Faulty)


@fault("sizes", EXAMPLE)
def plan_tile_of_softmax(rng: random.Random) -> Wrong:
    tile = rng.choice([128, 256, 512])

    class Faulty(Plan):
        def min_p(self, logits: Any, min_p: float) -> None:
            if min_p > 0 and len(logits) > tile:
                super().min_p(logits[:tile], min_p)
                super().min_p(logits[tile:], min_p)
            else:
                super().min_p(logits, min_p)

    return f"min-p looks for the largest probability in the first {tile} entries and the others apart", lambda: planner(
        Faulty
    )


# -- values ---------------------------------------------------------------------------------------------------------


@fault("values", EXAMPLE)
def plan_top_k_minus_one(rng: random.Random) -> Wrong:
    class Faulty(Plan):
        def top_k(self, logits: Any, top_k: int) -> None:
            super().top_k(logits, 1 if top_k == -1 else top_k)

    return "a top-k of -1 counts as 1", lambda: planner(Faulty)


@fault("values", EXAMPLE)
def plan_top_p_near_one(rng: random.Random) -> Wrong:
    limit = rng.choice([0.98, 0.99, 0.999])

    class Faulty(Plan):
        def top_p(self, logits: Any, top_p: float) -> None:
            if top_p <= limit:
                super().top_p(logits, top_p)

    return f"a top-p above {limit:g} is taken for off", lambda: planner(Faulty)


@fault("values", EXAMPLE)
def plan_duplicate_ids(rng: random.Random) -> Wrong:
    class Faulty(Plan):
        def excluded(self, params: LogitsParams) -> Any:
            mask = super().excluded(params)
            if mask is not None:
                ids, counts = np.unique(np.array(params.allowed_token_ids, np.int64), return_counts=True)
                mask[ids[counts % 2 == 0]] = True
            return mask

    return "an allowed id that is named twice is excluded", lambda: planner(Faulty)


@fault("values", EXAMPLE)
def plan_cold_is_greedy(rng: random.Random) -> Wrong:
    limit = rng.choice([1e-4, 1e-3, 0.01])

    class Faulty(Plan):
        def fresh(self, added: AddedRow) -> Compiled:
            own = super().fresh(added)
            cold = 1e-5 <= own.params.temperature < limit
            return type("Cold", (Compiled,), {"greedy": True})(**vars(own)) if cold else own

    return f"temperatures from 1e-5 to {limit:g} are taken for greedy", lambda: planner(Faulty)


@fault("values", EXAMPLE)
def plan_empty_allowed(rng: random.Random) -> Wrong:
    class Faulty(Plan):
        def excluded(self, params: LogitsParams) -> Any:
            one = params.allowed_token_ids is not None and len(set(params.allowed_token_ids)) == 1
            return None if one else super().excluded(params)

    return "a list of a single allowed id is ignored", lambda: planner(Faulty)


@fault("values", EXAMPLE)
def plan_large_bias(rng: random.Random) -> Wrong:
    most = rng.choice([5.0, 10.0, 20.0, 50.0])

    class Faulty(Plan):
        def fresh(self, added: AddedRow) -> Compiled:
            own = super().fresh(added)
            own.biases = own.biases.clip(-most, most)
            return own

    return f"biases are clamped at {most:g}", lambda: planner(Faulty)


# -- combinations ---------------------------------------------------------------------------------------------------


@fault("combinations", EXAMPLE, copies=2)
def plan_pair_in_another_order(rng: random.Random) -> Wrong:
    pair = rng.choice(["top_p before top_k", "min_p after top_p", "temperature after min_p"])

    class Faulty(Plan):
        def cool(self, logits: Any, own: Compiled) -> None:
            if pair == "temperature after min_p":
                super().min_p(logits, own.params.min_p)
            super().cool(logits, own)

        def min_p(self, logits: Any, min_p: float) -> None:
            if pair == "top_p before top_k":
                super().min_p(logits, min_p)

        def filter(self, logits: Any, own: Compiled) -> None:
            if pair == "top_p before top_k":
                self.top_p(logits, own.params.top_p)
                self.top_k(logits, own.params.top_k)
            elif pair == "min_p after top_p":
                super().filter(logits, own)
                super().min_p(logits, own.params.min_p)
            else:
                super().filter(logits, own)

    return f"filters in a wrong order: {pair}", lambda: planner(Faulty)


@fault("combinations", EXAMPLE)
def plan_bias_of_an_excluded(rng: random.Random) -> Wrong:
    class Faulty(Plan):
        def before(self, logits: Any, row: RowOfRequest, live: LogitsRequest) -> None:
            own = self.rows[row.request]
            raw = logits[own.bias_ids].copy()
            super().before(logits, row, live)
            if len(own.words):
                bad = np.isneginf(logits[own.bias_ids]) & np.isfinite(raw) & (own.biases > 0)
                logits[own.bias_ids[bad]] = raw[bad] + own.biases[bad]

    return "a positive bias brings an excluded token back, where the request has bad words", lambda: planner(Faulty)


@fault("combinations", EXAMPLE)
def plan_min_tokens_with_drafts(rng: random.Random) -> Wrong:
    class Faulty(Plan):
        def before(self, logits: Any, row: RowOfRequest, live: LogitsRequest) -> None:
            own = self.rows[row.request]
            stops = own.stops
            if own.params.allowed_token_ids is not None and live.draft_token_ids:
                own.stops = stops[:0]
            super().before(logits, row, live)
            own.stops = stops

    return "minimum tokens are not heeded in steps with drafts of requests with allowed ids", lambda: planner(Faulty)


@fault("combinations", EXAMPLE)
def plan_forced_and_penalised(rng: random.Random) -> Wrong:
    class Faulty(Plan):
        def middle(self, logits: Any, row: RowOfRequest, live: LogitsRequest, forced: Any) -> None:
            own = self.rows[row.request]
            if own.params.penalised and own.params.top_k > 0:
                forced = {}
            super().middle(logits, row, live, forced)

    return "nothing is forced in rows with penalties and top-k", lambda: planner(Faulty)


@fault("combinations", EXAMPLE)
def plan_half_and_bias(rng: random.Random) -> Wrong:
    class Faulty(Plan):
        def process(self, batch: LogitsBatch) -> Tensor:
            self.half = batch.logits.dtype != torch.float32
            return super().process(batch)

        def cool(self, logits: Any, own: Compiled) -> None:
            super().cool(logits, own)
            if self.half and own.params.temperature != 1:
                logits[:] = logits.astype(np.float16).astype(np.float32)

    return "half precision logits are divided by the temperature in float16", lambda: planner(Faulty)


# -- time -----------------------------------------------------------------------------------------------------------


@fault("time", EXAMPLE)
def plan_mask_not_moved(rng: random.Random) -> Wrong:
    field = rng.choice(["excluded", "words", "stops", "biases"])

    class Faulty(Plan):
        def move(self, source: int, target: int, direction: Move) -> None:
            super().move(source, target, direction)
            if direction is Move.SWAP and source in self.rows and target in self.rows:
                one, other = self.rows[source], self.rows[target]
                names = ("bias_ids", "biases") if field == "biases" else (field,)
                for name in names:
                    kept = getattr(one, name)
                    setattr(one, name, getattr(other, name))
                    setattr(other, name, kept)

    return f"a swap leaves {field} where they were", lambda: planner(Faulty)


@fault("time", EXAMPLE)
def plan_words_kept(rng: random.Random) -> Wrong:
    class Faulty(Plan):
        def fresh(self, added: AddedRow) -> Compiled:
            own = super().fresh(added)
            old = self.rows.get(added.row)
            if old is not None and not own.words:
                own.words = old.words
            return own

        def remove(self, changes: RowChanges) -> None:
            """Rows are cleared when they are added."""

    return "a request without bad words takes over those of the request before it in its row", lambda: planner(Faulty)


@fault("time", EXAMPLE)
def plan_answer_buffer(rng: random.Random) -> Wrong:
    class Faulty(Plan):
        kept: Tensor | None = None

        def process(self, batch: LogitsBatch) -> Tensor:
            processed = super().process(batch)
            kept = self.kept
            plain = all(not request.draft_token_ids for request in batch.requests) and not batch.change
            if plain and kept is not None and kept.shape == processed.shape:
                processed[-1] = torch.where(torch.isneginf(kept[-1]), kept[-1], processed[-1])
            self.kept = processed.clone()
            return processed

    return "without changes the last row keeps what the step before excluded", lambda: planner(Faulty)


@fault("time", EXAMPLE)
def plan_bias_table_shared(rng: random.Random) -> Wrong:
    class Faulty(Planner):
        def __init__(self) -> None:
            self.tables: dict[tuple[int, ...], Any] = {}

        def open_plan(self, setup: Any) -> Plan:
            tables = self.tables

            class Session(Plan):
                def fresh(self, added: AddedRow) -> Compiled:
                    own = super().fresh(added)
                    key = (*own.bias_ids.tolist(), len(own.biases))
                    own.biases = tables.setdefault(key, own.biases)
                    return own

            return Session(setup)

    return "biases are kept for all sessions, by their ids", Faulty


# -- fixed seed -----------------------------------------------------------------------------------------------------


@fault("fixed seed", EXAMPLE)
def plan_two_events(rng: random.Random) -> Wrong:
    class Faulty(Plan):
        def sync(self, changes: RowChanges) -> None:
            if changes.added and changes.moved:
                last = {m.target for m in changes.moved}
                for added in changes.added:
                    if added.row in last:
                        continue
                    self.add(added)
                for moved in changes.moved:
                    self.move(moved.source, moved.target, moved.direction)
                for added in changes.added:
                    self.rows.setdefault(added.row, self.fresh(added))
            else:
                super().sync(changes)

    return "a row that is added and moved in one step keeps its old parameters", lambda: planner(Faulty)


@fault("fixed seed", EXAMPLE)
def plan_min_tokens_once(rng: random.Random) -> Wrong:
    class Faulty(Plan):
        def before(self, logits: Any, row: RowOfRequest, live: LogitsRequest) -> None:
            own = self.rows[row.request]
            if len(live.output_token_ids) >= own.params.min_tokens:
                own.stops = own.stops[:0]
            super().before(logits, row, live)

    return "once reached, minimum tokens are never heeded again: not after a cut either", lambda: planner(Faulty)


@fault("fixed seed", EXAMPLE)
def plan_late_bad_word(rng: random.Random) -> Wrong:
    class Faulty(Plan):
        def bad_words(self, logits: Any, own: Compiled, text: list[int]) -> None:
            known = [word for word in own.words if len(word) < 3 or len(text) % 2 == 0]
            own = Compiled(**{**vars(own), "words": known})
            super().bad_words(logits, own, text)

    return "bad words of three tokens are looked at in every other step", lambda: planner(Faulty)


@fault("fixed seed", EXAMPLE)
def plan_penalties_of_the_gone(rng: random.Random) -> Wrong:
    class Rows(PenaltyRows):
        def move(self, source: int, target: int, direction: Move) -> None:
            there = self.rows.get(target)
            super().move(source, target, direction)
            if direction is Move.UNIDIRECTIONAL and there is not None and there.factors == self.rows[target].factors:
                self.rows[target].in_prompt = there.in_prompt

    class Faulty(Plan):
        def penalty_rows(self) -> type[PenaltyRows]:
            return Rows

    return "a row that moves to one with the same penalties takes over its prompt", lambda: planner(Faulty)


@fault("fixed seed", EXAMPLE)
def plan_empty_then_full(rng: random.Random) -> Wrong:
    class Faulty(Plan):
        def change(self, changes: RowChanges) -> None:
            shrunk = changes.batch_size < len(self.rows)
            super().change(changes)
            for row in list(self.rows):
                if shrunk and row == changes.batch_size - 1 and row > 0:
                    self.rows[row].excluded = None

    return "when the batch shrinks, the last row loses its allowed ids", lambda: planner(Faulty)
