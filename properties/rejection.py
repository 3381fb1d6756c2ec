"""The promises of the rejection contract: a table of contents. Each entry is a check: code, title, meaning."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairdraw.properties import _rejection_equality as equality
from fairdraw.properties import _rejection_greedy as greedy
from fairdraw.properties import _rejection_low_logits as low_logits
from fairdraw.properties import _rejection_noise as noise
from fairdraw.properties import _rejection_relations as relations
from fairdraw.properties import _rejection_seeds as seeds
from fairdraw.properties import _rejection_sizes as sizes
from fairdraw.properties import _rejection_structure as structure

if TYPE_CHECKING:
    from fairdraw._core.checks import Check

__all__ = ["CHECKS"]

CHECKS: tuple[Check, ...] = (
    # 1xx: what every output looks like
    structure.token_ids_lie_in_the_vocabulary,
    structure.placeholders_stand_only_after_the_last_token,
    structure.every_request_emits_a_token,
    structure.no_request_emits_more_than_its_drafts_and_one_token,
    structure.all_but_the_last_token_are_the_first_drafts,
    structure.fully_accepted_requests_end_with_their_bonus_token,
    structure.a_rejected_draft_is_not_recovered,
    structure.tokens_without_target_probability_are_never_emitted,
    structure.recovered_tokens_have_residual_mass,
    structure.padded_drafts_are_never_accepted,
    structure.drafts_without_target_probability_are_rejected_at_uniform_zero,
    structure.drafts_that_their_drafter_cannot_draw_are_rejected,
    structure.a_rejection_without_residual_still_recovers_a_possible_token,
    structure.inputs_are_not_modified,
    structure.requests_without_drafts_emit_exactly_their_bonus_token,
    structure.rows_with_nan_give_the_documented_token,
    structure.rows_without_any_token_give_the_documented_token,
    structure.rows_without_a_distribution_never_leave_the_vocabulary,
    # 2xx: greedy requests
    greedy.greedy_requests_equal_argmax_decoding,
    greedy.greedy_ties_go_to_the_lowest_id,
    greedy.greedy_requests_ignore_the_noise,
    greedy.greedy_requests_ignore_the_draft_distribution,
    greedy.greedy_requests_see_the_last_bit_of_a_logit,
    greedy.greedy_requests_see_the_last_bit_of_a_half_precision_logit,
    greedy.mixed_batches_equal_greedy_and_random_batches_apart,
    greedy.greedy_requests_accept_every_argmax_draft,
    low_logits.greedy_requests_take_the_argmax_however_low_it_is,
    low_logits.greedy_requests_take_the_argmax_of_a_large_vocabulary_however_low_it_is,
    # 3xx: relations between runs
    relations.tokens_do_not_depend_on_other_requests,
    relations.permuted_requests_give_permuted_tokens,
    relations.tokens_do_not_depend_on_the_parameters_of_other_requests,
    relations.repeated_requests_with_the_same_noise_give_the_same_tokens,
    relations.a_larger_max_spec_len_only_adds_placeholders,
    relations.one_hot_draft_probs_equal_no_draft_probs,
    relations.a_vocabulary_padded_with_masked_tokens_gives_the_same_tokens,
    relations.a_relabelled_vocabulary_gives_relabelled_tokens,
    relations.drafts_from_the_target_distribution_are_all_accepted,
    relations.drafts_that_are_certain_to_the_target_are_accepted,
    relations.drafts_from_disjoint_support_are_rejected_at_once,
    relations.the_temperature_of_a_random_request_is_not_applied_again,
    relations.a_constant_added_to_the_logits_changes_nothing,
    relations.drafts_cut_off_at_the_end_keep_the_tokens_before,
    relations.later_positions_do_not_influence_earlier_tokens,
    low_logits.the_only_possible_token_of_a_large_vocabulary_is_emitted_however_low_its_logit_is,
    # 32x: which number may influence which token
    noise.uniform_zero_accepts_every_possible_draft,
    noise.larger_uniforms_never_accept_more,
    noise.uniforms_influence_nothing_but_acceptance,
    noise.exponentials_influence_only_recovered_tokens,
    noise.exponentials_matter_only_by_their_ratios,
    noise.bonus_tokens_influence_only_fully_accepted_requests,
    noise.rows_with_nan_do_not_disturb_other_requests,
    noise.synthetic_rates_of_one_accept_and_of_zero_reject_every_draft,
    noise.synthetic_acceptance_depends_on_the_rate_of_the_position_alone,
    # 4xx: bit for bit
    equality.tokens_equal_the_oracle_on_the_same_noise,
    equality.acceptance_at_the_exact_ratio_equals_the_oracle,
    equality.recovery_without_residual_equals_the_oracle,
    equality.race_ties_go_to_the_lowest_id,
    equality.ties_across_kernel_tiles_go_to_the_lowest_id,
    equality.a_race_with_denormal_exponentials_equals_the_oracle,
    equality.recovery_from_placeholder_drafts_equals_the_oracle,
    equality.tokens_equal_the_oracle_in_the_adversarial_batches,
    equality.tokens_equal_the_oracle_on_the_same_seeds,
    equality.synthetic_acceptance_equals_the_oracle,
    equality.decisions_by_a_thousandth_equal_the_oracle,
    # 42x: bit for bit the real vLLM
    equality.tokens_equal_upstream_on_one_hot_drafts,
    equality.tokens_equal_upstream_on_dense_drafts,
    equality.tokens_equal_upstream_in_mixed_batches,
    equality.generators_end_where_upstream_leaves_them,
    equality.tokens_equal_upstream_with_synthetic_rates,
    equality.tokens_equal_upstream_on_large_vocabularies,
    # 5xx: seeds and generators
    seeds.the_same_seeds_give_the_same_tokens,
    seeds.requests_do_not_share_their_recovery_noise,
    seeds.requests_do_not_share_their_uniforms,
    seeds.positions_do_not_share_their_uniforms,
    seeds.calls_with_other_seeds_do_not_share_noise,
    seeds.neighbouring_request_seeds_do_not_share_noise,
    seeds.requests_with_per_request_seeds_do_not_depend_on_other_requests,
    seeds.requests_without_drafts_consume_no_randomness,
    seeds.greedy_batches_consume_no_randomness,
    seeds.generators_end_in_the_documented_state,
    # 6xx: sizes and layouts
    *sizes.VOCABULARY_CHECKS,
    sizes.the_last_id_of_the_vocabulary_can_be_emitted,
    sizes.up_to_128_drafts_are_verified,
    sizes.many_requests_are_verified,
    sizes.batches_without_any_draft_emit_their_bonus_tokens,
    sizes.strided_logits_work_or_are_refused_by_name,
    sizes.logits_with_a_huge_row_stride_work_or_are_refused_by_name,
    sizes.strided_draft_probs_work_or_are_refused_by_name,
    sizes.half_precision_logits_equal_the_same_numbers_in_float32,
)
