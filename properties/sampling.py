"""The promises of the sampling contract: a table of contents. Each entry is a check: code, title, meaning."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairdraw.properties import _sampling_drafts as drafts
from fairdraw.properties import _sampling_equality as equality
from fairdraw.properties import _sampling_relations as relations
from fairdraw.properties import _sampling_seeds as seeds
from fairdraw.properties import _sampling_structure as structure

if TYPE_CHECKING:
    from fairdraw._core.checks import Check

__all__ = ["CHECKS"]

CHECKS: tuple[Check, ...] = (
    # 101 and following: what every draw is
    structure.token_ids_lie_in_the_vocabulary,
    structure.tokens_lie_in_the_support_of_all_filters,
    structure.tokens_lie_in_the_support_of_top_k,
    structure.tokens_lie_in_the_support_of_top_p,
    structure.tokens_lie_in_the_support_of_min_p,
    structure.tokens_without_probability_are_never_drawn,
    structure.inputs_are_not_modified,
    structure.rows_with_nan_give_the_documented_token,
    structure.rows_without_any_token_give_the_documented_token,
    structure.rows_with_nan_do_not_disturb_other_requests,
    structure.every_token_of_the_support_can_be_drawn,
    # 121 and following: greedy requests, and temperature
    relations.greedy_requests_take_the_largest_logit,
    relations.greedy_requests_ignore_the_noise,
    relations.greedy_requests_ignore_the_filters,
    relations.top_k_of_one_is_greedy,
    relations.temperatures_near_zero_tend_to_greedy,
    relations.the_temperature_divides_the_logits,
    relations.greedy_requests_see_small_differences,
    # 131 and following: relations between runs
    relations.tokens_do_not_depend_on_other_requests,
    relations.permuted_requests_get_permuted_tokens,
    relations.tokens_do_not_depend_on_the_parameters_of_other_requests,
    relations.filters_that_keep_all_change_nothing,
    relations.a_vocabulary_padded_with_masked_tokens_gives_the_same_tokens,
    relations.a_relabelled_vocabulary_gives_relabelled_tokens,
    relations.a_constant_added_to_the_logits_changes_nothing,
    relations.repeated_requests_with_the_same_noise_get_the_same_token,
    relations.strides_change_nothing,
    # 141 and following: bit for bit
    equality.tokens_equal_the_oracle_on_the_same_noise,
    equality.race_ties_go_to_the_lowest_id,
    equality.tokens_equal_the_oracle_on_the_same_seeds,
    equality.generators_end_in_the_documented_state,
    equality.greedy_batches_consume_no_randomness,
    equality.races_won_by_a_thousandth_equal_the_oracle,
    equality.tokens_equal_upstream_without_filters,
    equality.tokens_equal_upstream_with_filters,
    equality.generators_end_where_upstream_leaves_them,
    equality.tokens_equal_upstream_on_large_vocabularies,
    # 161 and following: seeds, generators, counters
    seeds.the_same_seeds_give_the_same_tokens,
    seeds.requests_do_not_share_their_noise,
    seeds.calls_with_other_seeds_do_not_share_noise,
    seeds.neighbouring_request_seeds_do_not_share_noise,
    seeds.requests_with_per_request_seeds_do_not_depend_on_other_requests,
    seeds.counters_leave_every_generator_alone,
    seeds.positions_of_a_request_do_not_share_their_noise,
    seeds.a_seed_and_a_position_give_one_token_wherever_they_stand,
    seeds.permuted_requests_with_per_request_seeds_get_permuted_tokens,
    # 171 and following: the drafter
    drafts.draft_distributions_sum_to_one,
    drafts.draft_distributions_equal_the_filtered_softmax,
    drafts.drafted_tokens_have_positive_probability_in_their_distribution,
    drafts.draft_distributions_have_the_support_of_the_filters,
    drafts.greedy_drafts_are_certain_of_their_token,
    drafts.drafting_and_sampling_draw_the_same_token,
)
