"""Is a sampler fair, how sure are we, and how much could it be off?

From the exact distribution to a verdict, in the order in which the modules build on each other:

* `tables`: what is counted, and the null distribution of the counts.
* `pooling`, `design`: which cells are counted together, and which distance a budget of draws can show.
* `evidence`, `decision`: an e-process decides, checkpoint after checkpoint; all else is computed once at the end.
* `distributions`, `outcomes`, `rejection`: the statistics S1 to S8 of the rejection contract, by enumeration.
* `pit`, `production`: S9, the same at production vocabularies, one token at a time.
* `workloads`, `_sampling_workloads`: what a check draws from, prepared for a budget.
* `distribution_check`, `stratified_check`: the two kinds of checks. `suite` and `sampling` list them.
* `ledger`, `keeping`, `pictures`, `sharding`: nightly runs, pictures, and runs of a billion draws.

Every verdict takes the same path: a workload counts tokens, `decision.decide` adds the counts up and decides.
"""
