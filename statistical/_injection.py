"""Explicit noise for a sampler that does not take it: what torch would draw inside is handed in.

Every random operation of torch passes through a dispatch mode. Uniforms, Bernoulli draws, exponentials and
multinomial draws get the numbers of `ExplicitNoise`, in whatever shape the sampler asks for them: for the whole batch,
request by request, or position by position. Whether that is what the sampler makes of them is not known. So `probe`
tries it first: with noise that tells every place of every row apart, tokens must be those that the noise demands, and
nothing else may be random. It asks for probabilities only whether they are positive, so a wrong sampler passes as well
as a right one.

Limits:
    Numbers that NumPy or a kernel draws are out of reach, and so are uniforms over the vocabulary, whose direction (a
    large one wins, or a small one) is unknown.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fairdraw._core.dispatch import RandomMode
from fairdraw._core.failures import CapabilityUnsupported
from fairdraw.contracts import Capabilities, Capability, ExplicitNoise, SeededNoise

if TYPE_CHECKING:
    from torch import Tensor

    from fairdraw.contracts import Noise, RejectionSampler, SpecDecodeBatch
    from fairdraw.statistical._stratified import StratifiedDraws


class NotInjected(Exception):
    """The sampler drew something that cannot be handed in."""


@dataclass(frozen=True)
class Injected:
    """A sampler whose own draws are replaced when it is given explicit noise."""

    inner: RejectionSampler

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def device(self) -> str:
        return self.inner.device

    @property
    def capabilities(self) -> Capabilities:
        own = self.inner.capabilities
        return Capabilities.of(
            {str(word): why for word, why in own.unsupported.items() if word != Capability.EXPLICIT_NOISE}, own.slow
        )

    def verify(self, batch: SpecDecodeBatch, noise: Noise) -> Tensor:  # [batch_size, max_spec_len + 1] int32
        if not isinstance(noise, ExplicitNoise):
            return self.inner.verify(batch, noise)
        with _Handing(batch, noise):
            return self.inner.verify(batch, SeededNoise(0))


class _Handing(RandomMode):
    """Replaces the results of random operations. Requests of a batch have equally many drafts."""

    def __init__(self, batch: SpecDecodeBatch, noise: ExplicitNoise) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._uniforms = noise.uniforms.reshape(batch.batch_size, -1)  # [batch_size, max_spec_len] float64
        self._exponentials = noise.exponentials  # [batch_size, vocab_size] float32
        self._taken = self._columns = self._rows = 0

    def draw(self, func: torch._ops.OpOverload, args: tuple[Any, ...], options: dict[str, Any]) -> object:
        aten, packet = torch.ops.aten, func.overloadpacket
        if packet is aten.rand and "out" not in options:
            return self._fill(torch.empty(args[0], dtype=options.get("dtype"), device=options.get("device")))
        if packet is aten.rand_like:
            return self._fill(torch.empty_like(args[0], dtype=options.get("dtype")))
        if packet is aten.uniform_ and args[1:] in ((), (0.0,), (0.0, 1.0)):
            return self._fill(args[0])
        if packet is aten.bernoulli and len(args) == 1:
            return (self._fill(torch.empty_like(args[0], dtype=torch.float64)) < args[0]).to(args[0].dtype)
        if packet is aten.exponential_ and args[1:] in ((), (1.0,)):
            return args[0].copy_(self._races(func, args[0]).reshape(args[0].shape))
        if packet is aten.multinomial and args[1] == 1:
            raced = args[0] / self._races(func, args[0]).reshape(args[0].shape)
            return raced.argmax(dim=-1, keepdim=True)
        raise NotInjected(f"it draws with {func}")

    def _fill(self, tensor: Tensor) -> Tensor:  # any floating shape, written
        """Uniforms of all positions, of the next position of all requests, or the next ones in the order of drafts."""
        num_requests, size = self._uniforms.shape[0], tensor.numel()
        values = self._uniforms
        if size == num_requests and self._columns < values.shape[1]:
            values, self._columns = values[:, self._columns], self._columns + 1
        elif tensor.dim() == 2 and tensor.shape[0] == num_requests and tensor.shape[1] > values.shape[1]:
            wider = tensor.new_zeros(tensor.shape, dtype=values.dtype)
            wider[:, : values.shape[1]] = values
            values = wider
        elif size < values.numel():
            values, self._taken = values.flatten()[self._taken : self._taken + size], self._taken + size
        if values.numel() != size:
            raise NotInjected(f"it draws uniforms of shape {list(tensor.shape)}")
        largest = 1 - torch.finfo(tensor.dtype).eps / 2
        return tensor.copy_(values.to(tensor.dtype).clamp(max=largest).reshape(tensor.shape))

    def _races(self, func: object, tensor: Tensor) -> Tensor:  # any floating shape -> as many rows of [vocab_size]
        """Exponentials of all requests, of all positions (those of a request alike), or of the next requests."""
        given, (rows, rest) = self._exponentials, divmod(tensor.numel(), self._exponentials.shape[1])
        num_requests, num_draft = self._uniforms.shape
        if rest or rows > num_requests * (num_draft + 1):
            raise NotInjected(f"it draws {list(tensor.shape)} with {func}")
        if rows < num_requests:
            places = torch.arange(self._rows, self._rows + rows, device=given.device) % num_requests
            given, self._rows = given[places], self._rows + rows
        elif rows % num_requests == 0:
            given = given.repeat_interleave(rows // num_requests, dim=0)
        else:
            raise NotInjected(f"it draws {list(tensor.shape)} with {func}")
        return given.to(tensor.dtype)


def probe(draws: StratifiedDraws, num_rows: int, *, races: bool) -> None:
    """Try whether noise that is handed in decides what the sampler emits.

    Args:
        num_rows: The number of requests per call. It must be larger than that of their drafts.
        races: Recovered tokens are tried, too.

    Raises:
        CapabilityUnsupported: If not, with the reason.
    """
    try:
        why = _why_uniforms_fail(draws, num_rows) or (_why_races_fail(draws, num_rows) if races else "")
    except NotInjected as error:
        why = str(error)
    except Exception as error:
        why = f"it raised {type(error).__name__} then"
    if why:
        raise CapabilityUnsupported(f"explicit noise could not be injected into torch's draws: {why}")


_LARGEST = float(np.nextafter(1.0, 0.0))


def _why_uniforms_fail(draws: StratifiedDraws, num_rows: int) -> str:
    """Rows whose uniforms are 0 up to some position and nearly 1 there: each must stop there and nowhere else."""
    request = draws.request
    stops = np.arange(num_rows) * 5 % (request.num_draft + 1)
    uniforms = np.where(np.arange(request.num_draft) < stops[:, None], 0.0, _LARGEST)
    drafts = np.array([_rejectable(draws, position) for position in range(request.num_draft)])
    if (drafts < 0).any():
        return "no draft of its request may be rejected"
    ones = np.ones((num_rows, request.vocab_size))
    first, again = (draws.emitted(drafts, uniforms, ones) for _ in range(2))
    if not np.array_equal(first, again):
        return "tokens differ from call to call although noise does not"
    if not np.array_equal(draws.num_emitted(first), stops + 1):
        return "its uniforms do not decide which drafts are accepted"
    return ""


def _rejectable(draws: StratifiedDraws, position: int) -> int:
    """A draft token that may be accepted and rejected, as clearly as can be; -1 if there is none."""
    acceptance = draws.request.acceptance(position) * (draws.request.exact_draft_probs()[position] > 0)
    clear = np.where((acceptance > 0.05) & (acceptance < 0.95), np.abs(acceptance - 0.5), 1.0)
    return int(clear.argmin()) if clear.min() < 1 else -1


def _why_races_fail(draws: StratifiedDraws, num_rows: int) -> str:
    """At every position, rows in which one token of the residual has the only exponential that can win."""
    request = draws.request
    for position in range(request.num_draft):
        drafts = np.array([_rejectable(draws, place) for place in range(request.num_draft)])
        likely = np.flatnonzero(request.residual(position, int(drafts[position])) > 0.01)
        winners = likely[np.arange(num_rows) * 5 % likely.size]
        uniforms = np.tile(np.where(np.arange(request.num_draft) < position, 0.0, _LARGEST), (num_rows, 1))
        exponentials = np.full((num_rows, request.vocab_size), 1e6)
        exponentials[np.arange(num_rows), winners] = 1e-6
        if not np.array_equal(draws.emitted(drafts, uniforms, exponentials)[:, position], winners):
            return "its exponentials do not decide which token is recovered"
    return ""
