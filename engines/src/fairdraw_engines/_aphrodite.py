"""Aphrodite's filters (PyPI `aphrodite-engine`, tried: 0.24.1): `v1/sample/ops`, run by its `Sampler` in its order.

Its package needs a GPU and some 400 MB of kernels, so the sampler's files are imported without it. A parameter is a
tensor if one request of the batch uses it and `None` otherwise, as `InputBatch` makes them; values of the others are
the defaults of its `SamplingParams`. Top-k, top-p and min-p come after these filters and are vLLM's; DRY is a compiled
operator.
"""

import enum
import logging
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from fairdraw.adapters import SamplerRow
from fairdraw.contracts import FilterBatch, FilterChain, FilterResult, FunctionLogitsFilterer, SeededNoise
from fairdraw_engines._bare import Stubs, import_bare, release_of

_CHAIN = FilterChain(
    (
        *("temperature", "dynatemp", "top_n_sigma", "top_a", "tail_free", "eta", "epsilon", "typical_p", "smoothing"),
        *("xtc", "mirostat_v2"),
    ),
    sigma_ddof=1,
    mirostat_one_hot=True,
)
_FIELDS = {
    "dynatemp": {"dynatemp_min": "dynatemp_low", "dynatemp_max": "dynatemp_high", "dynatemp_exp": "dynatemp_exponent"},
    "top_n_sigma": {"top_nsigma": "top_n_sigma"},
    "top_a": {"top_a": "top_a"},
    "tail_free": {"tfs": "tail_free"},
    "eta": {"eta_cutoff": "eta"},
    "epsilon": {"epsilon_cutoff": "epsilon"},
    "typical_p": {"typical_p": "typical_p"},
    "smoothing": {
        "quadratic_smoothing_factor": "smoothing_factor",
        "quadratic_smoothing_curve": "smoothing_curve",
    },
    "xtc": {"xtc_threshold": "xtc_threshold", "xtc_probability": "xtc_probability"},
}
"""Fields of `SamplingMetadata` by filter, each with ours; the defaults are equal."""
_NAMES = (
    "DRY PENALTIES NO_REPEAT_NGRAM TEMPERATURE TOP_NSIGMA TOP_P_TOP_K TOP_A MIN_P TFS ETA_CUTOFF EPSILON_CUTOFF "
    "TYPICAL_P QUADRATIC XTC"
)


def make(row: SamplerRow, device: str) -> FunctionLogitsFilterer:
    """Return the filters of the installed Aphrodite; the name carries its release.

    Raises:
        ModuleNotFoundError: If Aphrodite is missing.
        UnusableRelease: If its sampler does not import.
    """
    facts = row.facts(release_of("aphrodite-engine"), device, {"not among them": tuple(_CHAIN.unsupported())})
    (module,) = import_bare("aphrodite.v1.sample.sampler", stubs=_stubs())
    sampler = module.Sampler.__new__(module.Sampler)
    torch.nn.Module.__init__(sampler)
    sampler.sampling_ops = module.SamplingOps()
    return FunctionLogitsFilterer(function=partial(_filter, sampler), chain=_CHAIN, **facts)


def _stubs() -> Stubs:
    def never() -> bool:
        return False

    platform = SimpleNamespace(simple_compile_backend="eager", is_cuda=never, is_cpu=never)
    return {
        "aphrodite": {"envs": SimpleNamespace()},
        "aphrodite._aiter_ops": {},
        "aphrodite.config.model": {"LogprobsMode": str},
        "aphrodite.logger": {"init_logger": logging.getLogger},
        "aphrodite.model_executor.layers.utils": {},
        "aphrodite.platforms": {"CpuArchEnum": None, "current_platform": platform},
        "aphrodite.sampling_params": {"SamplerID": enum.IntEnum("SamplerID", _NAMES)},
        "aphrodite.triton_utils": {"HAS_TRITON": False},
        "aphrodite.utils.gpu_sync_debug": {},
        "aphrodite.utils.platform_utils": {"is_pin_memory_available": never},
        "aphrodite.utils.torch_utils": {"PIN_MEMORY": False, "make_tensor_with_pad": None},
        "aphrodite.v1.outputs": {},
        "aphrodite.v1.sample.metadata": {},
    }


def _filter(sampler: Any, batch: FilterBatch, noise: SeededNoise) -> FilterResult:  # Any: Aphrodite's Sampler
    logits = sampler._execute_samplers_in_order(batch.logits, _metadata(batch, noise))
    return FilterResult(logits, logits.argmax(dim=1))


def _metadata(batch: FilterBatch, noise: SeededNoise) -> Any:  # Any: the fields of SamplingMetadata that are read
    def column(name: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.tensor([getattr(one, name) for one in batch.params], dtype=dtype, device=batch.device)

    used = {name for params in batch.params for name in params.enabled}
    fields: dict[str, Any] = {  # Any: a tensor or None
        theirs: column(ours) if name in used else None
        for name, names in _FIELDS.items()
        for theirs, ours in names.items()
    }
    speaks = "mirostat_v2" in used
    mode = [2 if one.mirostat_v2_tau else 0 for one in batch.params]
    fields |= {
        "mirostat_mode": torch.tensor(mode, dtype=torch.int32, device=batch.device) if speaks else None,
        "mirostat_tau": column("mirostat_v2_tau") if speaks else None,
        "mirostat_eta": column("mirostat_eta") if speaks else None,
    }
    nothing = ("dry_multiplier", "no_repeat_ngram_size", "temperature_last", "skew", "prompt_token_ids")
    return SimpleNamespace(
        **fields,
        **dict.fromkeys(nothing),
        temperature=column("temperature"),
        no_penalties=True,
        output_token_ids=batch.output_token_ids,
        persistent_data=noise.kept.setdefault("persistent_data", {}),
    )
