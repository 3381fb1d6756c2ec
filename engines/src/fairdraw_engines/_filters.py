"""Filters of Hugging Face transformers and MLX-LM.

transformers' warpers are made and ordered by its own `_get_logits_processor`, from a `GenerationConfig`. MLX-LM's
functions are called in the order of its `make_sampler`, which draws a token at the end and returns no logits; they get
log-probabilities, as there. Both know one set of parameters per call, so each row is a call.
"""

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairdraw.adapters import SamplerRow, derive_seed, quiet_imports
from fairdraw.contracts import FilterBatch, FilterChain, FilterParams, FunctionLogitsFilterer, SeededNoise

_TRANSFORMERS = FilterChain(("temperature", "top_k", "top_p", "min_p", "typical_p", "epsilon", "eta"))
_MLX = FilterChain(("top_p", "min_p", "xtc", "top_k"))
_NONE = "it has none, or not in this form"


def transformers(row: SamplerRow, device: str) -> FunctionLogitsFilterer:
    """Return the warpers of the installed transformers; the name carries its release."""
    with quiet_imports():
        import transformers
        from transformers import GenerationConfig
        from transformers.generation import utils

    mixin: Any = utils.GenerationMixin  # Any: its stubs want a whole model

    def filtered(batch: FilterBatch, noise: SeededNoise) -> Tensor:  # [num_rows, vocab_size] float32
        rows = []
        for number, params in enumerate(batch.params):
            tokens = [*batch.prompt_token_ids[number], *batch.output_token_ids[number]] or [0]
            made = mixin()._get_logits_processor(_config(GenerationConfig, params), len(tokens), device=device)
            rows.append(made(torch.tensor([tokens], device=device), batch.logits[number : number + 1]))
        return torch.cat(rows)

    return _filterer(row, transformers.__version__, filtered, _TRANSFORMERS, device)


def _config(kind: Any, params: FilterParams) -> Any:  # Any: GenerationConfig
    return kind(
        do_sample=True,
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p or None,
        typical_p=params.typical_p,
        epsilon_cutoff=params.epsilon,
        eta_cutoff=params.eta,
    )


def mlx(row: SamplerRow, device: str) -> FunctionLogitsFilterer:
    """Return the functions of the installed MLX-LM; the name carries its release. They run on the CPU."""
    from fairdraw_engines._mlx import _release

    return _filterer(row, _release(), _mlx_rows, _MLX, "cpu")


def _mlx_rows(batch: FilterBatch, noise: SeededNoise) -> Tensor:  # [num_rows, vocab_size] float32
    import mlx.core as mx

    step = noise.kept["mlx"] = int(str(noise.kept.get("mlx", 0))) + 1
    mx.random.seed(derive_seed("mlx filters", noise.seed, step))
    return torch.stack([_mlx_row(batch.logits[number], one) for number, one in enumerate(batch.params)])


def _mlx_row(logits: Tensor, params: FilterParams) -> Tensor:  # [vocab_size] float32, both
    import mlx.core as mx
    from mlx_lm import sample_utils

    methods: list[tuple[bool, Any, tuple[Any, ...]]] = [  # Any: MLX-LM's functions and what they take
        (0 < params.top_p < 1, sample_utils.apply_top_p, (params.top_p,)),
        (params.min_p != 0, sample_utils.apply_min_p, (params.min_p, 1)),
        (params.xtc_probability > 0, sample_utils.apply_xtc, (params.xtc_probability, params.xtc_threshold, [])),
        (0 < params.top_k < len(logits), sample_utils.apply_top_k, (params.top_k,)),
    ]
    if not any(used for used, _, _ in methods):
        return logits
    row = mx.array(logits.numpy())[None]
    row = row - mx.logsumexp(row, axis=-1, keepdims=True)
    for used, method, arguments in methods:
        row = method(row, *arguments) if used else row
    return torch.from_numpy(np.array(row[0]))


def _filterer(row: SamplerRow, release: str, function: Any, chain: FilterChain, device: str) -> FunctionLogitsFilterer:
    """Return the sampler of a function under the contract, which is Any."""
    facts = row.facts(release, device, {_NONE: tuple(chain.unsupported())})
    return FunctionLogitsFilterer(function=partial(function), chain=chain, **facts)
