"""Samplers of tpu-inference, vLLM's backend for TPUs (PyPI `tpu-inference`, tried: 0.32.0), on JAX's CPU backend.

`RejectionSampler` and `sample` are called as `tpu_runner.py` calls them: greedy requests have temperature -1, a batch
that is all greedy takes another path, drafts are one-hot, and requests and drafts are padded to fixed sizes. Its sizes
are powers of two; here only every third, because each is compiled for seconds. A draft of padding reads the first row
of logits, and requests of padding have no drafts.

The package imports flax, torchax and a vLLM for TPUs. The files of its samplers need JAX alone, and are imported by
themselves, without the options of its TPU compiler. The mesh has one device;
with eight virtual ones tokens are the same (`tests/engines`).
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairdraw import contracts
from fairdraw.adapters import SamplerRow, derive_seed, quiet_imports
from fairdraw.contracts import ExplicitNoise, FunctionSampler, FunctionTokenSampler, Noise, SamplingBatch, SamplingNoise
from fairdraw_engines._bare import import_bare, release_of
from fairdraw_engines._step_of_one import sample_by_verifying

_FOLDER = "tpu_inference.layers.jax.sample."
_STUBS: dict[str, dict[str, Any]] = {  # Any: see `_bare.Stubs`
    "tpu_inference.runner.input_batch": {},
    "tpu_inference.utils": {},
    "tpu_inference.logger": {"init_logger": logging.getLogger},
    "tpu_inference.models.common.compiler_options": {"get_sampling_compiler_options": dict},
    "vllm.config.model": {"PROCESSED_LOGPROBS_MODES": ()},
    "vllm.v1.outputs": {"LogprobsTensors": tuple},
}

_GREEDY = -1.0
"""The temperature that its `InputBatch` writes for greedy requests."""
_POLICY = contracts.FilterPolicy(("top_k", "top_p", "min_p"), top_p_ties="all")


@dataclass(frozen=True)
class _Released:
    """Parts of the release that are called."""

    metadata: Any  # Any: here and below, of another project
    sample: Any
    rejection_sampler: Any
    mesh: Any


def rejection(row: SamplerRow, device: str) -> FunctionSampler:
    """Return tpu-inference's `RejectionSampler`; the name carries the release. It always runs on the CPU."""
    return FunctionSampler(function=partial(_verify, _load()), **row.facts(release_of("tpu-inference"), "cpu"))


def sampling(row: SamplerRow, device: str, *, verified: bool = False) -> FunctionTokenSampler:
    """Return tpu-inference's `sample`; the name carries the release. It always runs on the CPU.

    Args:
        verified: Draw the first token of a speculative step with one draft; it must be drawn as `sample` draws.
    """
    function = partial(_sample_by_verifying if verified else _sample, _load())
    return FunctionTokenSampler(function=function, filters=_POLICY, **row.facts(release_of("tpu-inference"), "cpu"))


@cache
def _load(num_devices: int = 1) -> _Released:
    """Return the released modules on a mesh of so many devices, over which the vocabulary is spread."""
    with quiet_imports():
        import jax

    jax.config.update("jax_platforms", "cpu")
    names = ("sampling_metadata", "sampling", "rejection_sampler")
    metadata, sampling, rejection_sampler = import_bare(*(_FOLDER + name for name in names), stubs=_STUBS)
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:num_devices]).reshape(1, -1), ("data", "model"))
    sampler = rejection_sampler.RejectionSampler(mesh)
    return _Released(metadata.TPUSupportedSamplingMetadata, sampling.sample, sampler, mesh)


def _verify(
    released: _Released, batch: contracts.SpecDecodeBatch, noise: Noise
) -> Tensor:  # [batch_size, max_spec_len + 1] int32
    assert not isinstance(noise, ExplicitNoise)  # unsupported
    assert batch.draft_probs is None  # unsupported
    temperatures = torch.where(batch.is_greedy, _GREEDY, 1.0)  # others are applied already
    off = torch.zeros_like(temperatures)
    rows = _step(
        released,
        batch.draft_token_ids,
        batch.num_draft_tokens,
        batch.target_logits,
        batch.bonus_token_ids[:, 0],
        _parameters(temperatures, off, 1 - off),
        noise.seed,
    )
    return batch.padded(rows)


def _sample_by_verifying(
    released: _Released, batch: SamplingBatch, noise: SamplingNoise
) -> Tensor:  # [batch_size] int64
    def verify(drafts: Tensor, seed: int) -> list[list[int]]:  # [batch_size] int64
        ones = [1] * batch.batch_size
        return _step(released, drafts, ones, batch.logits, torch.zeros_like(drafts), _of_requests(batch), seed)

    return sample_by_verifying(verify, batch, noise)


def _key(seed: int) -> Any:  # Any: of JAX
    """Return a key of 32 bits, as JAX takes from a seed; the runner splits one for each step."""
    import jax

    return jax.random.key(np.uint32(derive_seed("tpu-inference", seed) % 2**32))


def _step(
    released: _Released,
    draft_token_ids: Tensor,  # [num_tokens] int32 | int64
    num_draft_tokens: Sequence[int],
    logits: Tensor,  # [num_tokens, vocab_size] float32 | bfloat16 | float16
    bonus_token_ids: Tensor,  # [batch_size] int32 | int64
    parameters: dict[str, np.ndarray],
    seed: int,
) -> list[list[int]]:
    """Call it once, and return its output as `parse_output` reads it."""
    size, num_tokens = len(num_draft_tokens), len(draft_token_ids)
    num_reqs, num_logits = _padded(size, 8), _padded(size + num_tokens, 8)
    out = released.rejection_sampler(
        _filled(draft_token_ids.numpy(), num_logits, fill=int(draft_token_ids[0]) if num_tokens else 0),
        _filled(np.array(num_draft_tokens), num_reqs),
        None,
        _filled_logits(logits, num_logits),
        _filled(bonus_token_ids.numpy(), num_reqs),
        _metadata(released, parameters, num_reqs),
        _key(seed),
    )
    return list(
        released.rejection_sampler.parse_output(
            np.asarray(out), logits.shape[1], np.array(num_draft_tokens), size, num_logits, 1, {0: range(size)}
        )
    )


def _sample(released: _Released, batch: SamplingBatch, noise: SamplingNoise) -> Tensor:  # [batch_size] int64
    assert not isinstance(noise, contracts.RaceNoise)  # unsupported
    num_reqs = _padded(batch.batch_size, 8)
    metadata = _metadata(released, _of_requests(batch), num_reqs)
    logits = _filled_logits(batch.logits, num_reqs)
    tokens, _ = released.sample(_key(noise.seed), released.mesh, logits, metadata)
    return torch.from_numpy(np.array(tokens)[: batch.batch_size]).long()


def _of_requests(batch: SamplingBatch) -> dict[str, np.ndarray]:
    """Return the columns of its `InputBatch`."""
    temperatures = torch.where(batch.is_greedy, _GREEDY, batch.temperature)
    off = torch.zeros_like(temperatures)
    top_k = off - 1 if batch.top_k is None else torch.where(batch.top_k < batch.vocab_size, batch.top_k, -1)
    return _parameters(temperatures, top_k, 1 - off if batch.top_p is None else batch.top_p)


def _parameters(temperature: Tensor, top_k: Tensor, top_p: Tensor) -> dict[str, np.ndarray]:  # [batch_size] each
    columns = {"temperature": temperature.float(), "top_k": top_k.int(), "top_p": top_p.float()}
    return {name: column.numpy() for name, column in columns.items()}


def _metadata(released: _Released, columns: dict[str, np.ndarray], num_reqs: int) -> Any:  # Any: of another project
    """Make metadata as `from_input_batch` does; its defaults are those of requests of padding."""
    if not (columns["temperature"] > 0).any():
        return released.metadata(do_sampling=False)
    defaults = {"temperature": _GREEDY, "top_k": 0, "top_p": 1.0}
    filled = {name: _filled(column, num_reqs, fill=defaults[name]) for name, column in columns.items()}
    return released.metadata(**filled, do_sampling=True)


def _filled_logits(logits: Tensor, num_rows: int) -> np.ndarray:  # [.., vocab_size] float32 | bfloat16 | float16
    """Return padded logits; rows of padding are the first row."""
    rows: np.ndarray = logits.float().numpy()
    first = rows[:1] if len(rows) else np.zeros((1, rows.shape[1]), np.float32)
    return np.concatenate([rows, np.repeat(first, num_rows - len(rows), 0)])


def _filled(values: np.ndarray, length: int, *, fill: float = 0) -> np.ndarray:
    values = values.astype(np.int32) if values.dtype.kind == "i" else values
    return np.concatenate([values, np.full(length - len(values), fill, values.dtype)])


def _padded(count: int, smallest: int) -> int:
    """Return the size that `count` is padded to: a power of 8 times the smallest."""
    size = smallest
    while size < count:
        size *= 8
    return size
