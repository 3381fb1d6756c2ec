"""Faults of what is returned: log-probabilities, their lists, and streams."""

from __future__ import annotations

import dataclasses

import numpy as np

from stub_server.engine import Choice, Emitted, Engine, Row, log_of, softmax
from stub_server.fault import SGLANG, fault, with_request
from stub_server.model import draft_logits_after, logits_after, text_of

# Log-probabilities.


@fault("claimed", "SRV107")
def log_probabilities_of_the_square_root_of_the_temperature(
    right: Engine, choice: Choice, raw: Row, edited: Row, probs: Row
) -> Row:
    """Of no stage: logits that were scaled in place, half of the way."""
    return log_of(softmax(raw / (choice.request.temperature or 1.0) ** 0.5))


@fault("claimed", "SRV132")
def raw_where_processed_is_documented(right: Engine, choice: Choice, raw: Row, edited: Row, probs: Row) -> Row:
    """Processed at temperature 1, raw at any other: a fast path for the default."""
    return log_of(probs) if choice.request.temperature == 1.0 else log_of(softmax(raw))


@fault("listed", "SRV106")
def the_log_probability_of_another_token(right: Engine, choice: Choice, token: int, row: Row) -> Emitted:
    """That of the most probable one."""
    return dataclasses.replace(right.listed(choice, token, row), logprob=float(row.max()))


@fault("listed", "SRV121")
def log_probabilities_of_the_token_beside(right: Engine, choice: Choice, token: int, row: Row) -> Emitted:
    """A gather with an index that is too large by one."""
    return right.listed(choice, token, np.roll(row, -1))


@fault("reported", "SRV121")
def log_probabilities_of_the_previous_step(
    right: Engine, choice: Choice, token: int, raw: Row, edited: Row, probs: Row, drafted: bool
) -> Emitted:
    """Copied to the host one step late."""
    earlier = logits_after(choice.context[:-1][-3:]) if choice.emitted else raw
    return right.reported(choice, token, earlier, edited, probs, drafted)


@fault("reported", "SRV107")
def log_probabilities_of_the_next_step(
    right: Engine, choice: Choice, token: int, raw: Row, edited: Row, probs: Row, drafted: bool
) -> Emitted:
    """Computed after the token was appended."""
    return right.reported(choice, token, logits_after([*choice.context, token][-3:]), edited, probs, drafted)


@fault("reported", "SRV107")
def log_probabilities_after_the_tokens_own_penalty(
    right: Engine, choice: Choice, token: int, raw: Row, edited: Row, probs: Row, drafted: bool
) -> Emitted:
    """The sampled token is counted before its log-probability is read."""
    counted = raw.copy()
    counted[token] -= 0.5
    return right.reported(choice, token, counted, edited, probs, drafted)


@fault("listed", "DIST911")
def the_list_misses_a_token(right: Engine, choice: Choice, token: int, row: Row) -> Emitted:
    """The largest of one shard are lost: the second most probable token is not in the list."""
    emitted = right.listed(choice, token, row)
    return dataclasses.replace(emitted, top=emitted.top[:1] + emitted.top[2:])


@fault("listed", "SRV105", settings=SGLANG)
def the_list_repeats_a_token(right: Engine, choice: Choice, token: int, row: Row) -> Emitted:
    """Two shards send the same one."""
    emitted = right.listed(choice, token, row)
    return dataclasses.replace(emitted, top=emitted.top[:1] * 2 + emitted.top[1:-1])


@fault("listed", "SRV133")
def logarithms_to_base_two(right: Engine, choice: Choice, token: int, row: Row) -> Emitted:
    """The kernel works with `exp2`, and the factor is forgotten."""
    return right.listed(choice, token, row / np.log(2.0))


@fault("claimed", "DIST911")
def log_probabilities_at_twice_the_temperature(right: Engine, choice: Choice, raw: Row, edited: Row, probs: Row) -> Row:
    """Flatter than what is drawn from."""
    return log_of(softmax(0.5 * right.claimed(choice, raw, edited, probs)))


@fault("reported", "SRV104", drafts=3)
def accepted_drafts_have_no_log_probabilities(
    right: Engine, choice: Choice, token: int, raw: Row, edited: Row, probs: Row, drafted: bool
) -> Emitted:
    """As in llama.cpp (#27972)."""
    emitted = right.reported(choice, token, raw, edited, probs, drafted)
    return Emitted(token, None, ()) if drafted else emitted


@fault("reported", "SRV108", drafts=3)
def accepted_drafts_have_the_drafters_log_probabilities(
    right: Engine, choice: Choice, token: int, raw: Row, edited: Row, probs: Row, drafted: bool
) -> Emitted:
    """The drafter's rows are still in the buffer."""
    mine = draft_logits_after(choice.context[-3:]) if drafted else raw
    return right.reported(choice, token, mine, mine, softmax(mine), drafted)


# Streams.


@fault("streamed", "SRV171")
def a_stream_drops_a_token(right: Engine, choice: Choice, new: list[Emitted]) -> tuple[list[Emitted], str]:
    """The fourth event is overwritten before it is sent."""
    events, text = right.streamed(choice, new)
    return ([], "") if len(choice.emitted) == 4 and not choice.ended else (events, text)


@fault("streamed", "SRV171")
def a_stream_repeats_a_token(right: Engine, choice: Choice, new: list[Emitted]) -> tuple[list[Emitted], str]:
    """At the end of a chunk of four, the last token is sent again."""
    events, text = right.streamed(choice, new)
    return (events + new[-1:], text + text_of([new[-1].token])) if len(choice.emitted) % 4 == 0 else (events, text)


@fault("streamed", "SRV171")
def a_stream_loses_its_last_token(right: Engine, choice: Choice, new: list[Emitted]) -> tuple[list[Emitted], str]:
    """The event with the finish reason has no content."""
    events, text = right.streamed(choice, new)
    return ([], "") if choice.ended else (events, text)


@fault("streamed", "SRV171")
def a_stream_breaks_letters(right: Engine, choice: Choice, new: list[Emitted]) -> tuple[list[Emitted], str]:
    """Each token is decoded alone: halves of a letter become replacement characters."""
    events, _ = right.streamed(choice, new)
    return events, text_of([one.token for one in new[:1]]) + text_of(one.token for one in new[1:])


@fault("streamed", "SRV173")
def a_stream_holds_its_stop_string(right: Engine, choice: Choice, new: list[Emitted]) -> tuple[list[Emitted], str]:
    """Nothing is kept back, so that the beginning of a stop string is sent before it is known to be one."""
    return right.streamed(with_request(choice, stop=()), new) if not choice.ended else right.streamed(choice, new)


@fault("streamed", "SRV171")
def a_stream_mixes_its_choices(right: Engine, choice: Choice, new: list[Emitted]) -> tuple[list[Emitted], str]:
    """The text of the choice before it: an index that belongs to another batch."""
    events, text = right.streamed(choice, new)
    first = next(one for one in right.running if one.number == choice.number)
    return events, text_of([first.tokens[-1]]) if choice is not first else text


@fault("streamed", "SRV173")
def a_stream_loses_what_it_held_back(right: Engine, choice: Choice, new: list[Emitted]) -> tuple[list[Emitted], str]:
    """A text that ends by its length, in the middle of what might be a stop string: as llama.cpp streams it."""
    events, text = right.streamed(choice, new)
    rest = max(
        (size for one in choice.request.stop for size in range(1, len(one)) if text.endswith(one[:size])), default=0
    )
    return events, text[: len(text) - rest] if choice.ended == "length" else text
