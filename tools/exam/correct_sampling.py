"""A correct token sampler, vectorised, in steps that a fault overrides; with explicit noise and with its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np
import torch

from exam._bits import drawn_exponentials, exponentials_of, hashed, key_of, stream, uniforms_of
from fairdraw.protocols import Capabilities, Drafted, RaceNoise, SeededNoise

if TYPE_CHECKING:
    from torch import Tensor

    from fairdraw.protocols import SamplingBatch, SamplingNoise

_NOT_OURS = {
    "upstream-stream": "it does not draw in vLLM's order",
    "counter-noise": "its generators advance from draw to draw",
    "nan-logits": "NaN is caught before",
    "empty-rows": "no row is masked whole",
}
_KERNEL = {
    "explicit-noise": "noise is drawn inside the kernel",
    "request-seeds": "one generator serves the whole batch",
    "draft-distribution": "it returns tokens alone",
}


class Sampling:
    """The correct sampler. It takes explicit noise, and with seeds draws from torch's generators."""

    name, device = "correct", "cpu"
    contract: Literal["sampling"] = "sampling"
    lacking: dict[str, str] = _NOT_OURS

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities.of(self.lacking)

    def sample(self, batch: SamplingBatch, noise: SamplingNoise) -> Tensor:  # [batch_size] int64
        return self.tokens(batch, self.probs(batch), self.exponentials(batch, noise))

    def draft(self, batch: SamplingBatch, noise: SamplingNoise) -> Drafted:
        probs = self.probs(batch)
        tokens = self.tokens(batch, probs, self.exponentials(batch, noise))
        certain = torch.nn.functional.one_hot(tokens, batch.vocab_size).float()
        return Drafted(tokens, torch.where(self.greedy(batch)[:, None], certain, probs))

    # -- noise

    def exponentials(self, batch: SamplingBatch, noise: SamplingNoise) -> Tensor:  # [batch_size, vocab_size] float32
        return noise.exponentials if isinstance(noise, RaceNoise) else self.drawn(batch, noise)

    def drawn(self, batch: SamplingBatch, noise: SeededNoise) -> Tensor:
        drawn = torch.empty(batch.batch_size, batch.vocab_size).exponential_()
        for request, generator in noise.generators("cpu").items():
            drawn[request].exponential_(generator=generator)
        return drawn

    # -- the distribution

    def greedy(self, batch: SamplingBatch) -> Tensor:  # [batch_size] bool
        return batch.temperature < 1e-5

    def scaled(self, batch: SamplingBatch) -> Tensor:  # [batch_size, vocab_size] float32
        return batch.logits.float() / batch.temperature.masked_fill(self.greedy(batch), 1)[:, None]

    def probs(self, batch: SamplingBatch) -> Tensor:  # [batch_size, vocab_size] float32
        return self.filtered(batch, self.scaled(batch)).softmax(-1)

    def filtered(self, batch: SamplingBatch, logits: Tensor) -> Tensor:  # [batch_size, vocab_size] float32
        if batch.min_p is not None:
            logits = self.min_p(logits, self.limits(batch, "min_p"))
        if batch.top_k is not None:
            logits = self.top_k(logits, self.limits(batch, "top_k"))
        if batch.top_p is not None:
            logits = self.top_p(logits, self.limits(batch, "top_p"))
        return logits

    def limits(self, batch: SamplingBatch, name: str) -> Tensor:  # [batch_size]
        """A parameter of each request."""
        limits: Tensor = getattr(batch, name)
        return limits

    def min_p(self, logits: Tensor, limits: Tensor) -> Tensor:
        probs = logits.softmax(-1)
        cut = (probs < probs.amax(-1, keepdim=True) * limits[:, None]) & (limits > 0)[:, None]
        return logits.masked_fill(cut, -torch.inf)

    def top_k(self, logits: Tensor, limits: Tensor) -> Tensor:
        size = logits.shape[1]
        kept = torch.where((limits <= 0) | (limits > size), size, limits.long())
        most = int(kept.masked_fill(kept == size, 1).max())
        ranked = logits.topk(most, -1).values
        smallest = ranked.gather(1, kept.clamp(max=most)[:, None] - 1)
        return logits.masked_fill((logits < smallest) & (kept < size)[:, None], -torch.inf)

    def top_p(self, logits: Tensor, limits: Tensor) -> Tensor:
        on = (limits < 1).nonzero()[:, 0]
        if len(on) == 0:
            return logits
        ascending, ids = logits[on].sort(dim=-1, stable=True)
        mass = ascending.softmax(-1).double().cumsum(-1).float()
        removed = mass <= (1 - limits[on])[:, None]
        removed[:, -1] = False
        logits = logits.clone()
        logits[on] = logits[on].masked_fill(torch.zeros_like(removed).scatter(1, ids, removed), -torch.inf)
        return logits

    # -- the draw

    def tokens(self, batch: SamplingBatch, probs: Tensor, exponentials: Tensor) -> Tensor:  # [batch_size] int64
        drawn = self.race(probs, exponentials)
        return torch.where(self.greedy(batch), self.best(batch), drawn)

    def best(self, batch: SamplingBatch) -> Tensor:  # [batch_size] int64
        return batch.logits.float().argmax(-1)

    def race(self, probs: Tensor, exponentials: Tensor) -> Tensor:  # [batch_size] int64
        return torch.where(probs > 0, probs / exponentials, -1.0).argmax(-1)


class OwnSampling(Sampling):
    """As a kernel that draws inside: hashed counters, no explicit noise, one seed for the whole batch."""

    lacking = {**_NOT_OURS, **_KERNEL}  # noqa: RUF012

    def exponentials(self, batch: SamplingBatch, noise: SamplingNoise) -> Tensor:
        assert isinstance(noise, SeededNoise)
        return torch.from_numpy(self.own(batch, noise.seed))

    def own(self, batch: SamplingBatch, seed: int) -> np.ndarray:  # [batch_size, vocab_size] float32
        return drawn_exponentials(stream(seed), batch.batch_size, batch.vocab_size)


class TorchSampling(Sampling):
    """It draws with torch, from one generator for the batch, and takes nothing from the caller."""

    lacking = {**_NOT_OURS, **_KERNEL}  # noqa: RUF012

    def drawn(self, batch: SamplingBatch, noise: SeededNoise) -> Tensor:
        return torch.empty(batch.batch_size, batch.vocab_size).exponential_()


class CounterSampling(Sampling):
    """A request with a seed draws by (seed, position) alone; explicit noise is taken, too."""

    lacking = {k: v for k, v in _NOT_OURS.items() if k != "counter-noise"}  # noqa: RUF012

    def drawn(self, batch: SamplingBatch, noise: SeededNoise) -> Tensor:
        keys = hashed(np.array([key_of(noise.seed, 7)], np.uint64), batch.batch_size)[0]
        for request, seed in noise.request_seeds.items():
            keys[request] = self.key(seed, int(batch.positions[request]))
        return torch.from_numpy(exponentials_of(uniforms_of(hashed(keys, batch.vocab_size))))

    def key(self, seed: int, position: int) -> np.uint64:
        return key_of(seed, position)
