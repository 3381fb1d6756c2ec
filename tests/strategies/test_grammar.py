"""Cases of the grammar contract: what is drawn, and that a stored case is the same again."""

import json

import pytest
import torch
from hypothesis import given, settings

from fairdraw.strategies.grammar import (
    DONE,
    INDEX_KINDS,
    MASK_LAYOUTS,
    TAIL_KINDS,
    AutomatonCase,
    BitmaskCase,
    GrammarCase,
    MaskedRow,
    TokenAutomaton,
    TokenMatcher,
    automaton_cases,
    bitmask_cases,
    token_automata,
)


@given(bitmask_cases(indices=INDEX_KINDS, mask_layouts=MASK_LAYOUTS, tails=TAIL_KINDS, extra_words=(0, 3, -1)))
@settings(max_examples=30)
def test_bits_are_those_that_the_case_says(case: BitmaskCase) -> None:
    batch, allowed = case.batch(), case.allowed()
    for row in range(len(allowed)):
        for token_id in {0, min(31, case.vocab_size - 1), case.vocab_size - 1}:
            word = int(batch.bitmask[row, token_id // 32]) if token_id // 32 < case.width else 0
            assert bool(word >> token_id % 32 & 1) == allowed[row, token_id]
    stored = GrammarCase.from_json(json.loads(json.dumps(case.to_json())))
    assert stored == case
    assert torch.equal(stored.batch().bitmask, batch.bitmask)


@given(automaton_cases(num_steps=(1, 3), drafts=("legal", "illegal", "last"), ends=True, dead_ends=True))
@settings(max_examples=30)
def test_texts_follow_their_automata(case: AutomatonCase) -> None:
    for texts, batch in case.steps():
        for text, request in zip(texts, batch.requests, strict=True):
            assert (request.grammar is None) == (text.automaton is None)
            assert text.matcher is None or text.matcher.state == text.state
            assert len(text.states(request.draft_token_ids)) <= len(request.draft_token_ids) + 1
    assert GrammarCase.from_json(json.loads(json.dumps(case.to_json()))) == case


@given(token_automata(vocab_size=70, min_states=2, dead_ends=True))
@settings(max_examples=30)
def test_matchers_go_back_to_where_they_were(automaton: TokenAutomaton) -> None:
    matcher = TokenMatcher(automaton)
    accepted = 0
    while matcher.state != DONE and automaton.allowed(matcher.state) and accepted < 5:
        assert not matcher.accept(69 if 69 not in automaton.allowed(matcher.state) else 70)
        assert matcher.accept(automaton.allowed(matcher.state)[0])
        accepted += 1
    matcher.rollback(accepted)
    assert matcher.state == 0
    with pytest.raises(ValueError, match="rollback: num_tokens=1, but 0 tokens were accepted"):
        matcher.rollback(1)


def test_wrong_words_are_refused() -> None:
    with pytest.raises(ValueError, match="MaskedRow: mask='some', but it must be one of: all"):
        MaskedRow(mask="some")
    with pytest.raises(ValueError, match="BitmaskCase: extra_words=-1, but a bitmask must have a word"):
        BitmaskCase(5, (MaskedRow(),), extra_words=-1)
    with pytest.raises(ValueError, match="a state must have one edge for a token"):
        TokenAutomaton(((0, 1, 0), (0, 1, -1)))
