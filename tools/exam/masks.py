"""The masks contract: the sampler of `calls` and what its filters keep, with a fault in a form of it or in all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from exam.calls import Sampling
from fairdraw._oracles.masks import MasksOracle
from fairdraw.contracts import MaskedTokens, MaskPolicy

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from exam.examined import Lazy
    from fairdraw.contracts import MaskRows, SamplingBatch, SamplingNoise


class Masks(Sampling):
    """A sampler that returns the masks of vLLM's filters. The draw has parameters of its own, and so has the mask."""

    contract = "masks"
    sees_needs = True
    policy = MaskPolicy()

    def values(self, batch: SamplingBatch, noise: Any, nan: Callable[[], Tensor] | None = None) -> Lazy:
        now = super().values(batch, noise, nan)
        filters = now["has_top_k"] | now["has_top_p"] | now["has_min_p"]
        return now.with_(filtered=filters & now["random"], plain=~filters & now["random"])

    def otherwise(self, batch: SamplingBatch) -> SamplingBatch:
        return super().otherwise(batch) if self.effect.startswith("drawn") else batch

    def sample_masked(self, batch: SamplingBatch, noise: SamplingNoise, into: MaskRows) -> MaskedTokens:
        given = batch.replace(logits=batch.logits.clone())
        tokens, random = self.sample(batch, noise), ~batch.is_greedy
        filtered = self.right.filtered(given if self.effect.startswith("drawn") else super().otherwise(given))
        right = torch.where(random[:, None], filtered, given.logits).isfinite()
        counts, room = right.sum(1).numpy(), into.token_ids.shape[1]
        values = self.now.with_(kept=counts, room=room, overflows=counts > room, several=counts > 1)
        self.write(values, self.mask(values, right, filtered, tokens), into)
        return MaskedTokens(tokens, self.logprobs(values.with_(token=tokens.numpy()), given, filtered, tokens))

    def mask(self, values: Lazy, right: Tensor, filtered: Tensor, tokens: Tensor) -> Tensor:  # [n, vocab_size] bool
        """Return the masks, as all forms have them."""
        token = torch.zeros_like(right).scatter(1, tokens[:, None], value=True)

        def without_ties() -> Tensor:  # [n, vocab_size] bool
            ranks = filtered.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
            return right & (ranks < torch.as_tensor(values["top_k"])[:, None])

        changes = {
            "neighbour's mask": lambda: right.roll(1, 0),
            "stale mask": lambda: self.stale("mask", right),
            "ties cut": without_ties,
            "token alone": lambda: token,
            "token lost": lambda: right & ~token,
            "empty": lambda: torch.zeros_like(right),
        }
        found = self.changed(changes, values.with_(token=tokens.numpy()), right)
        found = self.ids_changed("left out", values, found, torch.zeros_like)
        return self.ids_changed("let in", values, found, torch.ones_like)

    def write(self, values: Lazy, kept: Tensor, into: MaskRows) -> None:  # [n, vocab_size] bool
        """Write the three forms."""
        bits = self.ids_changed("bit lost", values, kept, torch.zeros_like)
        bits = self.ids_changed("bit set", values, bits, torch.ones_like)
        words, counts = torch.from_numpy(MasksOracle().words(bits.contiguous().numpy())), kept.sum(1).int()
        room, ids = into.token_ids.shape[1], torch.zeros_like(into.token_ids)
        listed = kept.int().argsort(dim=1, descending=True, stable=True)[:, :room]
        ids[:, : listed.shape[1]] = listed
        of_words = {
            "bits of before": lambda: words | into.words,
            "last word": lambda: torch.cat([words[:, :-1], into.words[:, -1:]], 1),
        }
        of_ids = {
            "ids of before": into.token_ids.clone,
            "swapped": lambda: ids[:, [1, 0, *range(2, room)]] if room > 1 else ids,
            "short ids": lambda: ids & 0x7FFF,
        }
        of_counts = {
            "cut": lambda: counts.clamp(max=room),
            "one more": lambda: counts + 1,
            "added": lambda: counts + into.counts,
        }
        into.words.copy_(self.changed(of_words, values, words))
        into.token_ids.copy_(self.changed(of_ids, values, ids))
        into.counts.copy_(self.changed(of_counts, values, counts))
        for effect, memory in (("word behind", into.words), ("id behind", into.token_ids)):
            if self.effect == effect:
                wider = memory.as_strided((len(memory), memory.shape[1] + 1), memory.stride())
                wider[torch.from_numpy(self.hit(effect, values, len(memory))), -1] = 7

    def logprobs(self, values: Lazy, batch: SamplingBatch, filtered: Tensor, tokens: Tensor) -> Tensor:  # [n] float32
        """Return the log-probability of each token."""

        def of(logits: Tensor) -> Tensor:  # [n, vocab_size] -> [n] float32
            found = logits.log_softmax(-1).gather(1, tokens[:, None])[:, 0]
            return found.masked_fill(batch.is_greedy, 0.0)

        right = of(filtered)
        changes = {
            "whole row": lambda: of(self.right.scaled(batch)),
            "untempered": lambda: of(batch.logits.float().masked_fill(filtered.isneginf(), -torch.inf)),
            "neighbour's value": lambda: right.roll(1, 0),
            "off": lambda: right * self.size,
        }
        return self.changed(changes, values, right)  # type: ignore[no-any-return]
