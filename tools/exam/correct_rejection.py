"""A correct rejection sampler, vectorised, in steps that a fault overrides; with explicit noise and with its own.

Nothing here imports the suite's own samplers, oracles or mutants: `fairdraw.protocols` is all that a user has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch

from exam._bits import drawn_exponentials, stream
from fairdraw.protocols import Capabilities, ExplicitNoise, SeededNoise

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from fairdraw.protocols import Noise, SpecDecodeBatch

_NOT_OURS = {
    "upstream-stream": "it does not draw in vLLM's order",
    "synthetic-rates": "it has no such mode",
    "nan-logits": "NaN is caught before",
    "empty-rows": "no row is masked whole",
}


@dataclass
class Call:
    """One call: the batch, and where each of its tokens belongs."""

    batch: SpecDecodeBatch
    counts: Tensor  # [batch_size] int64
    starts: Tensor  # [batch_size] int64
    owner: Tensor  # [num_tokens] int64: the request of each token
    position: Tensor  # [num_tokens] int64: its place in the request

    @classmethod
    def of(cls, batch: SpecDecodeBatch) -> Call:
        counts = torch.tensor(batch.num_draft_tokens, dtype=torch.int64)
        starts = counts.cumsum(0) - counts
        owner = torch.repeat_interleave(torch.arange(len(counts)), counts)
        return cls(batch, counts, starts, owner, torch.arange(len(owner)) - starts[owner])

    @property
    def drafts(self) -> Tensor:  # [num_tokens] int64, placeholders included
        return self.batch.draft_token_ids.long()


class Rejection:
    """The correct sampler. It takes explicit noise, and with seeds draws from torch's generators."""

    name, device = "correct", "cpu"
    contract: Literal["rejection"] = "rejection"
    lacking: dict[str, str] = _NOT_OURS

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities.of(self.lacking)

    def verify(self, batch: SpecDecodeBatch, noise: Noise) -> Tensor:  # [batch_size, max_spec_len + 1] int32
        call = Call.of(batch)
        uniforms, exponentials = self.numbers(call, noise)
        target = self.target(call)
        accepted = self.accepted(call, target, uniforms)
        ends = self.ends(call, accepted)
        return self.written(call, ends, self.recovered(call, target, exponentials, ends))

    # -- noise

    def numbers(self, call: Call, noise: Noise) -> tuple[Tensor, Tensor]:  # [num_tokens], [batch_size, vocab_size]
        if isinstance(noise, ExplicitNoise):
            return noise.uniforms, noise.exponentials
        return self.drawn(call, noise)

    def drawn(self, call: Call, noise: SeededNoise) -> tuple[Tensor, Tensor]:
        uniforms = torch.rand(call.batch.num_tokens, dtype=torch.float64)
        exponentials = torch.empty(call.batch.batch_size, call.batch.vocab_size).exponential_()
        for request, generator in noise.generators("cpu").items():
            if call.counts[request] > 0:
                uniforms[call.owner == request] = torch.rand(
                    int(call.counts[request]), dtype=torch.float64, generator=generator
                )
                exponentials[request].exponential_(generator=generator)
        return uniforms, exponentials

    # -- the steps

    def target(self, call: Call) -> Tensor:  # [num_tokens, vocab_size] float32
        return call.batch.target_logits.float().softmax(-1)

    def best(self, call: Call) -> Tensor:  # [num_tokens] int64
        return call.batch.target_logits.float().argmax(-1)

    def greedy(self, call: Call) -> Tensor:  # [batch_size] bool
        return call.batch.temperature == 0

    def pairs(self, call: Call, target: Tensor) -> tuple[Tensor, Tensor]:  # each [num_tokens] float32
        """Target and draft probability of each draft."""
        ids = call.drafts.clamp(min=0)[:, None]
        dense = call.batch.draft_probs
        q = torch.ones(len(ids)) if dense is None else dense.gather(1, ids)[:, 0]
        return target.gather(1, ids)[:, 0], q

    def accepted(self, call: Call, target: Tensor, uniforms: Tensor) -> Tensor:  # [num_tokens] bool
        p, q = self.pairs(call, target)
        random = (p > 0) & (q > 0) & ((p / q).double() >= uniforms)
        greedy = self.greedy(call)[call.owner]
        return torch.where(greedy, call.drafts == self.best(call), random) & (call.drafts >= 0)

    def ends(self, call: Call, accepted: Tensor) -> Tensor:  # [batch_size] int64: drafts accepted
        first = torch.where(accepted, call.counts[call.owner], call.position)
        return call.counts.scatter_reduce(0, call.owner, first, "amin")

    def weights(self, call: Call, target: Tensor, rows: Tensor, requests: Tensor) -> Tensor:
        """The residual of these rows, [n, vocab_size]; the target where rounding left none."""
        wanted, dense = target[rows], call.batch.draft_probs
        if dense is None:
            ids = call.drafts[rows]
            residual = wanted.clone()
            real = ids >= 0
            residual[real.nonzero()[:, 0], ids[real]] = 0
        else:
            residual = (wanted - dense[rows]).clamp(min=0)
        return torch.where((residual > 0).any(1, keepdim=True), residual, wanted)

    def race(self, weights: Tensor, exponentials: Tensor) -> Tensor:  # [n] int64
        return torch.where(weights > 0, weights / exponentials, -1.0).argmax(-1)

    def recovered(self, call: Call, target: Tensor, exponentials: Tensor, ends: Tensor) -> Tensor:  # [batch_size]
        """The last token of each request: recovered, greedy, or the bonus."""
        last = call.batch.bonus_token_ids[:, 0].long().clone()
        requests = (ends < call.counts).nonzero()[:, 0]
        rows = call.starts[requests] + ends[requests]
        drawn = self.race(self.weights(call, target, rows, requests), exponentials[requests])
        last[requests] = torch.where(self.greedy(call)[requests], self.best(call)[rows], drawn)
        return last

    def written(self, call: Call, ends: Tensor, last: Tensor) -> Tensor:  # [batch_size, max_spec_len + 1] int32
        output = torch.full((call.batch.batch_size, call.batch.max_spec_len + 1), -1, dtype=torch.int32)
        kept = call.position < ends[call.owner]
        output[call.owner[kept], call.position[kept]] = call.drafts[kept].int()
        output[torch.arange(len(ends)), ends] = last.int()
        return output


class OwnRejection(Rejection):
    """As a kernel that draws inside: hashed counters, no explicit noise, one seed for the whole batch."""

    lacking = {  # noqa: RUF012
        **_NOT_OURS,
        "explicit-noise": "noise is drawn inside the kernel",
        "request-seeds": "one generator serves the whole batch",
    }

    def numbers(self, call: Call, noise: Noise) -> tuple[Tensor, Tensor]:
        assert isinstance(noise, SeededNoise)
        uniforms, exponentials = self.own(call, noise.seed)
        return torch.from_numpy(uniforms), torch.from_numpy(exponentials)

    def own(self, call: Call, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """[num_tokens] float64 and [batch_size, vocab_size] float32."""
        generator = stream(seed)
        uniforms = generator.random(call.batch.num_tokens)
        return uniforms, drawn_exponentials(generator, call.batch.batch_size, call.batch.vocab_size)


class TorchRejection(Rejection):
    """It draws with torch, from one generator for the batch, and takes nothing from the caller."""

    lacking = OwnRejection.lacking

    def drawn(self, call: Call, noise: SeededNoise) -> tuple[Tensor, Tensor]:
        uniforms = torch.rand(call.batch.num_tokens, dtype=torch.float64)
        return uniforms, torch.empty(call.batch.batch_size, call.batch.vocab_size).exponential_()
