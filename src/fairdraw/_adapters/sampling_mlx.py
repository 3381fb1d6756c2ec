"""The sampler of MLX-LM (PyPI `mlx-lm` with `mlx[cpu]`, tried: 0.32.2 with 0.32.4), on MLX's CPU backend.

`mlx_lm.sample_utils.make_sampler` takes one value of each parameter for all rows, so one is made per request; it gets
log-probabilities, as `generate_step` gives them. MLX-LM filters by top-p, min-p and top-k, and divides by the
temperature what they leave.

Unsupported: explicit noise and generators per request, since MLX draws from a generator of its own, which seeded noise
seeds; rows without a distribution, about which it says nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from fairdraw._adapters._others import KnownTokenSampler, defects_of, unsupported
from fairdraw._adapters._runtime import quiet_imports
from fairdraw.protocols import Capability, FilterPolicy, RaceNoise

if TYPE_CHECKING:
    from torch import Tensor

    from fairdraw.protocols import SamplingBatch, SamplingNoise

__all__ = ["make"]

_CAPABILITIES = unsupported(
    ("MLX draws from a generator of its own", (Capability.EXPLICIT_NOISE, Capability.REFERENCE_RACE)),
    ("MLX draws from a generator of its own", (Capability.REQUEST_SEEDS, Capability.UPSTREAM_STREAM)),
    ("MLX draws from a generator of its own", (Capability.COUNTER_NOISE,)),
    ("it documents no result", (Capability.NAN_LOGITS, Capability.EMPTY_ROWS)),
    ("it returns tokens alone", (Capability.DRAFT_DISTRIBUTION,)),
    slow=True,  # a call costs milliseconds: one request at a time
)


def make(device: str | None = None) -> KnownTokenSampler:
    """The sampler of the installed MLX-LM; its name carries the release. It runs on the CPU.

    Raises:
        ModuleNotFoundError: If mlx or mlx-lm is missing.
    """
    with quiet_imports():
        import mlx.core
        import mlx_lm

    mlx.core.set_default_device(mlx.core.Device(mlx.core.DeviceType.cpu, 0))
    return KnownTokenSampler(
        f"mlx-lm sampler {mlx_lm.__version__}",
        _sample,
        None,
        "cpu",
        _CAPABILITIES,
        FilterPolicy(("top_p", "min_p", "top_k"), temperature="last", top_k_ties="some", top_p_ties="all"),
        known_defects=defects_of("sampling_mlx"),
    )


def _sample(batch: SamplingBatch, noise: SamplingNoise) -> Tensor:  # [batch_size] int64
    import mlx.core as mx

    assert not isinstance(noise, RaceNoise)  # unsupported
    mx.random.seed(noise.seed)
    return torch.tensor([_token(batch.select([i])) for i in range(batch.batch_size)])


def _token(request: SamplingBatch) -> int:
    import mlx.core as mx
    from mlx_lm.sample_utils import make_sampler

    logits = mx.array(request.logits.float().numpy())
    top_k = 0 if request.top_k is None else int(request.top_k)
    sampler = make_sampler(
        temp=0.0 if bool(request.is_greedy) else float(request.temperature),
        top_p=0.0 if request.top_p is None else float(request.top_p),
        min_p=0.0 if request.min_p is None else float(request.min_p),
        top_k=top_k if top_k < request.vocab_size else 0,  # it takes no others
    )
    return int(sampler(logits - mx.logsumexp(logits, axis=-1, keepdims=True))[0])
