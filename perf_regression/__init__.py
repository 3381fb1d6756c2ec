"""The performance harness: what a sampler costs, held to the limits in `limits.toml`.

1. **A world is a workload of a contract** and the step of a sampler on it (`world`, `worlds`, `rejection`). Counts,
   times, growth and `fairdraw bench` all work on worlds.
2. **Counts need no clock**: bytes, launches, copies, allocations, waits and tokens read of a step (`counts`), how they
   grow and what is never freed (`costs`), registers and specialisations of kernels (`compiled`), and waits and graph
   nodes on a GPU (`device`).
3. **Times are ratios**: two samplers, two sizes, or a step and a copy of its bytes run in the same rounds (`rounds`,
   `device_time`), whose makers have names (`timed`), so that a fresh process can repeat them (`named`).
4. **The exact sign test decides** (`decision`; `scaling` for growth): PASS, FAIL, INCONCLUSIVE or NO VERDICT, and a
   FAIL counts only if fresh processes repeat it (`confirmation`).
5. **A finding is a number beside its limit** (`findings`, `limits`), made by the same functions (`benching`) for
   `fairdraw bench` (`bench`, `pictures`) and for the tests of this folder (`conftest`); `records` writes files.
6. **Every sampler is called through its contract**: only `_internals` imports `sampler_impl`, and only
   `_upstream_steps` calls vLLM itself.
"""
