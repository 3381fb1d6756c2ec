"""The checks of the logits-plan contract: a table of contents. Each entry is a check: code, title, meaning."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairdraw.properties import _logits_equality as equality
from fairdraw.properties import _logits_relations as relations
from fairdraw.properties import _logits_structure as structure

if TYPE_CHECKING:
    from fairdraw._core.checks import Check

__all__ = ["CHECKS"]

CHECKS: tuple[Check, ...] = (
    # 10x: copies, and the inputs
    structure.without_parameters_the_same_tensor_comes_back_without_any_operation,
    structure.parameters_without_work_leave_the_same_tensor,
    structure.logits_are_copied_at_most_once_where_a_processor_has_work,
    structure.the_same_tensor_comes_back_exactly_where_nothing_has_work,
    structure.the_logits_given_are_never_modified,
    structure.raw_logprobs_can_be_computed_after_processing,
    structure.processed_logits_are_contiguous_float32,
    # 11x: the specification
    equality.every_processor_alone_equals_the_oracle,
    equality.every_pair_of_processors_equals_the_oracle,
    equality.any_mix_of_parameters_equals_the_oracle,
    equality.greedy_batches_equal_the_oracle,
    equality.rows_without_a_distribution_equal_the_oracle,
    equality.every_pair_of_values_equals_the_oracle,
    equality.large_vocabularies_equal_the_oracle,
    equality.small_vocabularies_equal_the_oracle,
    equality.values_just_inside_their_range_equal_the_oracle,
    # 12x: drafts
    equality.draft_rows_see_the_output_and_the_drafts_before_them,
    equality.the_bonus_row_sees_all_drafts,
    equality.drafts_change_nothing_that_decoding_step_by_step_would_give,
    # 13x: a live batch
    relations.the_plan_follows_changed_parameters,
    relations.parameters_move_with_their_request,
    relations.the_plan_follows_outputs_that_grow_and_shrink,
    relations.every_processor_survives_every_event,
    relations.sessions_do_not_affect_each_other,
    relations.an_answer_does_not_change_later,
    relations.a_call_leaves_parameters_and_texts_alone,
    relations.the_same_step_twice_gives_the_same,
    relations.long_services_equal_the_oracle,
    relations.requests_with_equal_parameters_keep_their_own_texts,
    # 14x: rows of other requests
    relations.rows_do_not_depend_on_other_requests,
    relations.ids_that_the_vocabulary_lacks_are_refused_or_ignored,
    relations.custom_processors_are_called_once_with_the_right_rows,
    relations.greedy_tokens_are_those_before_temperature_and_filters,
    # 16x: the real vLLM
    equality.plain_steps_equal_upstream,
    equality.live_batches_equal_upstream,
    equality.speculative_steps_equal_upstream,
)
