"""Is a sampler fair, how sure are we, and how much could it be off?

From the exact distribution to a verdict, in the order in which the modules build on each other:

* `_count_tables`: what is counted, and the null distribution of the counts.
* `_pooling`, `_design`: which cells are counted together, and which distance a budget of draws can show.
* `_evidence`, `_decision`: an e-process decides, checkpoint after checkpoint; all else is computed once at the end.
* `_distributions`, `_outcomes`, `_rejection_statistics`: S1 to S4 of the rejection contract, by enumeration.
* `_pit`, `_projections`: tokens of any distribution as uniform numbers, by rank, by id and by projections of it.
* `_dependence`, `_noise_quality`, `_pair_statistics`: what draws share, how fine noise is, a drafter and its verifier.
* `_slices`, `_trace_draws`: draws of serving traces as bets, in every slice of their features.
* `_workloads`, `_sampling_workloads` and others: what a check draws from, prepared for a budget.
* `_distribution_check`, `_slice_check`, `_stratified_check`: the kinds of checks, which a module per contract lists.
* `_ledger`, `_nightly`, `_pictures`, `_sharding`: nightly runs, pictures, and runs of a billion draws.
"""
