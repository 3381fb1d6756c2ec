"""Is a sampler fair, how sure are we, and how much could it be off?

From an exact law to a verdict, in the order in which the modules are used:

* `laws`, `filters`: what the tokens *should* follow, by enumeration in float64 from the logits that the sampler got.
* `tables`, `pooling`: observations become counts; rare cells are pooled by expected probability, before sampling.
* `design`: how many samples make a given distance visible, or the plain statement that the budget cannot.
* `evidence`, `decision`: an e-process decides, a chi-square p-value is shown beside it.
* `ledger`: one false-fail rate for a run, evidence that adds up over nights.
* `pit`: pools rows that have nothing in common, such as every token of a production vocabulary.
* `rejection`: the statistics of the rejection contract, built from all of the above.

Importing this package costs nothing; NumPy and SciPy arrive with the first module.
"""
