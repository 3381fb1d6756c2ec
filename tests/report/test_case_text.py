"""A replayed failure shows the numbers of its batch, short enough to be checked by hand."""

from fairdraw._report.case_text import batch_lines
from fairdraw.strategies import DraftRecipe, RejectionCase, RequestRecipe, SampledRequest, SamplingCase
from fairdraw.strategies.lifecycle import PenaltiesTrace

ONE = RejectionCase(vocab_size=2, requests=(RequestRecipe(drafts=(DraftRecipe(token="unlikely", uniform="half"),)),))


def test_small_tensors_are_written_out() -> None:
    lines = batch_lines(ONE)
    for line in ("  draft_token_ids: [0]", "  draft_probs: None", "  target_probs: [[0.5, 0.5]]", "  uniforms: [0.5]"):
        assert line in lines


def test_large_tensors_are_described() -> None:
    assert "  target_logits: <float32 [1, 1000]>" in batch_lines(ONE.replace(vocab_size=1000))


def test_seeds_stand_for_noise_that_is_drawn() -> None:
    lines = batch_lines(ONE.replace(explicit=False))
    assert any(line.startswith("  seed: ") for line in lines)
    assert not any(line.startswith("  uniforms: ") for line in lines)


def test_batches_of_token_samplers_are_shown_too() -> None:
    lines = batch_lines(SamplingCase(vocab_size=2, requests=(SampledRequest(),)))
    assert any(line.startswith("  logits: [[") for line in lines)


def test_event_trace_has_no_batch_of_its_own() -> None:
    assert batch_lines(PenaltiesTrace(vocab_size=8)) == []
