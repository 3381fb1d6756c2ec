"""Faults of speculation, of what changes logits, and of where an output ends."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from stub_server.fault import PROCESSED, SGLANG, fault, with_fields
from stub_server.model import VOCAB_SIZE, text_of

if TYPE_CHECKING:
    from stub_server.engine import Choice, Engine, Request, Row

# Speculation.


@fault("accepts", "DIST911", drafts=3)
def accepts_too_readily(right: Engine, choice: Choice, probs: Row, draft: int, draft_probs: Row) -> bool:
    """A tolerance of one half, to raise the acceptance rate."""
    return bool(choice.rng.random() * draft_probs[draft] * 0.5 < probs[draft])


@fault("verify", "DIST911", drafts=3)
def recovers_from_everything(right: Engine, choice: Choice, probs: Row, draft: int, draft_probs: Row) -> int:
    """Not from the residual: tokens that the drafter likes come too often."""
    return draft if right.accepts(choice, probs, draft, draft_probs) else right.pick(choice, probs)


@fault("draw", "DIST911", drafts=1)
def the_bonus_token_is_greedy(right: Engine, choice: Choice, probs: Row) -> int:
    """The token after the last draft takes the path of a greedy batch."""
    return int(probs.argmax())


@fault("parameters", "SRV151", drafts=3)
def no_bias_under_speculation(right: Engine, choice: Choice) -> Request:
    """Processors of logits run on the first row of a request only."""
    return with_fields(choice.request, logit_bias={})


# What changes the logits.


@fault("parameters", "SRV151")
def logit_bias_is_ignored(right: Engine, choice: Choice) -> Request:
    """The field is accepted, and lost."""
    return with_fields(choice.request, logit_bias={})


@fault("parameters", "SRV151")
def logit_bias_on_the_token_beside(right: Engine, choice: Choice) -> Request:
    """Another tokenizer: its ids are larger by one."""
    moved = {(token + 1) % VOCAB_SIZE: bias for token, bias in choice.request.logit_bias.items()}
    return with_fields(choice.request, logit_bias=moved)


@fault("parameters", "SRV151", "DIST911")
def a_bias_stays_in_the_slot(right: Engine, choice: Choice) -> Request:
    """The next request in this slot inherits the bias of the last."""
    kept: dict[int, float] = right.kept
    if choice.request.logit_bias:
        kept.update(choice.request.logit_bias)
        return choice.request
    return with_fields(choice.request, logit_bias=dict(kept))


@fault("stop_string", "SRV161")
def stop_is_ignored(right: Engine, choice: Choice) -> str:
    """The field is accepted, and lost."""
    return ""


@fault("stop_string", "SRV161")
def stops_one_token_late(right: Engine, choice: Choice) -> str:
    """The text is looked at before the token is appended."""
    text = text_of(choice.tokens[:-1])
    return next((one for one in choice.request.stop if one in text), "")


@fault("parameters", "SRV163")
def bad_words_are_ignored(right: Engine, choice: Choice) -> Request:
    """The field is accepted, and lost."""
    return with_fields(choice.request, bad_words=())


@fault("parameters", "SRV163")
def the_first_bad_word_alone(right: Engine, choice: Choice) -> Request:
    """A list is taken, and its first entry used."""
    return with_fields(choice.request, bad_words=choice.request.bad_words[:1])


@fault("penalised", "SRV154", settings=PROCESSED)
def penalties_are_ignored(right: Engine, choice: Choice, request: Request, logits: Row) -> Row:
    """The fields are accepted, and lost."""
    return logits


@fault("penalised", "SRV154", settings=PROCESSED)
def frequency_does_not_count(right: Engine, choice: Choice, request: Request, logits: Row) -> Row:
    """A frequency penalty is subtracted once, like presence."""
    total = request.presence + request.frequency
    return right.penalised(choice, with_fields(request, presence=total, frequency=0.0), logits)


@fault("penalised", "SRV154", settings=PROCESSED)
def penalties_reward(right: Engine, choice: Choice, request: Request, logits: Row) -> Row:
    """The sign."""
    return right.penalised(
        choice, with_fields(request, presence=-request.presence, frequency=-request.frequency), logits
    )


@fault("penalised", "SRV154", settings=PROCESSED)
def penalties_one_step_late(right: Engine, choice: Choice, request: Request, logits: Row) -> Row:
    """The last token is not counted yet: asynchronous scheduling."""
    earlier = dataclasses.replace(choice, emitted=choice.emitted[:-1])
    return right.penalised(earlier, request, logits)


@fault("penalised", "SRV155", settings=PROCESSED)
def repetition_is_ignored(right: Engine, choice: Choice, request: Request, logits: Row) -> Row:
    """The field is accepted, and lost."""
    return right.penalised(choice, with_fields(request, repetition=1.0), logits)


@fault("penalised", "SRV155", settings=PROCESSED)
def repetition_counts(right: Engine, choice: Choice, request: Request, logits: Row) -> Row:
    """A token that came twice is penalised twice."""
    bare = right.penalised(choice, with_fields(request, repetition=1.0), logits)
    factor = request.repetition ** right.counts(choice.context)
    return np.where(bare > 0, bare / factor, bare * factor)


@fault("penalised", "SRV155", settings=SGLANG)
def repetition_is_subtracted(right: Engine, choice: Choice, request: Request, logits: Row) -> Row:
    """As a presence penalty."""
    bare = with_fields(request, repetition=1.0, presence=request.presence + request.repetition - 1.0)
    return right.penalised(choice, bare, logits)
