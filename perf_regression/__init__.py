"""The performance harness: what a sampler costs, held to the limits in `limits.toml`.

1. **Counts need no clock**: bytes, launches, copies, allocations and waits of a call (`counts`), registers and
   specialisations of its kernels (`compiled`), instructions (`instructions`), and waits and graph nodes on a GPU
   (`device`).
2. **Times are ratios**: two samplers, two sizes, or a step and a copy of its bytes run in the same rounds (`rounds`,
   `device_time`), whose makers have names (`timed`, `worlds`, `cases`), so that a fresh process can repeat them
   (`named`).
3. **The exact sign test decides** (`decision`; `scaling` for growth): PASS, FAIL, INCONCLUSIVE or NO VERDICT, and a
   FAIL counts only if fresh processes repeat it (`confirmation`).
4. **A finding is a number beside its limit** (`findings`, `limits`), made by the same functions (`benching`) for
   `fairdraw bench` (`bench`, `pictures`) and for the tests of this folder (`conftest`), and kept over time (`records`,
   `history`).
5. **Every sampler is called through its contract**: only `_internals` imports `sampler_impl`, and only
   `_upstream_steps` and `_scanner_arms` call vLLM itself.
"""
