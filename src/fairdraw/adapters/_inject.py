"""Explicit noise for a sampler that draws its own: what torch would have drawn is handed in instead.

Every random operation of ATen passes through a dispatch mode and carries the tag `nondeterministic_seeded`.
Uniforms and exponentials of the expected size get our values; anything else random is refused by name. No
generator is touched. Random numbers drawn outside ATen (inside a kernel, by NumPy) are out of reach.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from fairdraw._core.dispatch import RandomMode
from fairdraw.contracts import ExplicitNoise

_FLOATS = (torch.float32, torch.float64)
_Kind = Literal["uniforms", "exponentials"]


class NoiseNotInjected(RuntimeError):
    """The sampler drew something else than the noise that was to be handed in, or nothing."""


@dataclass
class InjectedNoise:
    """Counts of how often each kind of noise was handed in so far."""

    uniforms: int = 0
    exponentials: int = 0


@contextmanager
def inject_noise(noise: ExplicitNoise, *, required: bool = True) -> Iterator[InjectedNoise]:
    """Let the torch sampler's own draws return `noise` within this context.

    The sampler may draw its uniforms with `torch.rand`, `torch.rand_like` or `Tensor.uniform_`, and its exponentials
    with `Tensor.exponential_`, each at most once and for the whole batch: `num_tokens` uniforms,
    `batch_size * vocab_size` exponentials, in any shape, as float32 or float64.

    Args:
        noise: What the draws return.
        required: Raise if nothing was drawn. Use `False` for a batch that needs no noise (all requests greedy).

    Returns:
        How often each kind was handed in.

    Raises:
        NoiseNotInjected: If the sampler draws another number of values, another distribution or the same kind twice;
            or, when the context ends, if it drew nothing although it was `required` to.

    Randomness:
        None. The default generators and generators passed to the draws stay in their state.

    Limits:
        As float32, uniforms above `1 - 2**-24` become `1 - 2**-24`: a float32 uniform is below 1, too.

    Example:
        >>> from fairdraw.contracts import ExplicitNoise
        >>> noise = ExplicitNoise(torch.tensor([0.25, 0.5], dtype=torch.float64), torch.ones(1, 3))
        >>> with inject_noise(noise) as injected:
        ...     torch.rand(2)
        tensor([0.2500, 0.5000])
        >>> injected
        InjectedNoise(uniforms=1, exponentials=0)
    """
    mode = _InjectionMode(noise)
    with mode:
        yield mode.injected
    if required and noise.uniforms.numel() and mode.injected == InjectedNoise():
        raise NoiseNotInjected(
            "inject_noise: the sampler drew nothing through torch, but it must draw the noise handed in. "
            "Hand uniforms and exponentials to the sampler itself, or close its capability explicit-noise."
        )


class _InjectionMode(RandomMode):
    """Replaces the results of random operations."""

    def __init__(self, noise: ExplicitNoise) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.noise = noise
        self.injected = InjectedNoise()

    def draw(self, func: torch._ops.OpOverload, args: tuple[Any, ...], options: dict[str, Any]) -> object:
        aten, packet = torch.ops.aten, func.overloadpacket
        if packet is aten.rand:
            return self._fill("uniforms", func, _empty(args[0], options))
        if packet is aten.rand_like:
            return self._fill("uniforms", func, torch.empty_like(args[0], dtype=options.get("dtype")))
        if packet is aten.uniform_ and args[1:] in ((), (0.0,), (0.0, 1.0)):
            return self._fill("uniforms", func, args[0])
        if packet is aten.exponential_ and args[1:] in ((), (1.0,)):
            return self._fill("exponentials", func, args[0])
        shown = [list(arg.shape) if isinstance(arg, torch.Tensor) else arg for arg in args]  # tensors by their shape
        raise NoiseNotInjected(
            f"inject_noise: the sampler drew {func}{shown}, but only standard uniforms and exponentials "
            "can be handed in. Draw with torch.rand and Tensor.exponential_, or close its capability explicit-noise."
        )

    def _fill(self, kind: _Kind, func: object, tensor: Tensor) -> Tensor:  # [...], as many as of this kind, both
        values, times_before = getattr(self.noise, kind), getattr(self.injected, kind)
        drew = f"inject_noise: the sampler drew {tensor.dtype} {list(tensor.shape)} with {func}"
        once = "Draw them once, for the whole batch."
        if tensor.numel() != values.numel():
            raise NoiseNotInjected(f"{drew}, but the {kind} handed in are {list(values.shape)}. {once}")
        if tensor.dtype not in _FLOATS:
            raise NoiseNotInjected(f"{drew}, but {kind} must be float32 or float64. Draw wider, then convert.")
        if times_before:
            raise NoiseNotInjected(f"{drew}, but the {kind} were handed in already. {once}")
        setattr(self.injected, kind, times_before + 1)
        if kind == "uniforms":
            values = values.to(tensor.dtype).clamp(max=1 - torch.finfo(tensor.dtype).eps / 2)
        return tensor.copy_(values.reshape(tensor.shape))


def _empty(size: Sequence[int], options: Mapping[str, Any]) -> Tensor:  # [*size] any  # Any: as above
    """Return the tensor that `torch.rand(size, **options)` would fill."""
    if "out" in options:
        out: Tensor = options["out"]
        return out.resize_(size)
    return torch.empty(size, dtype=options.get("dtype"), device=options.get("device"))
