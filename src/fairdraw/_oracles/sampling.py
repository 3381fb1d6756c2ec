"""The sampling contract, executable: temperature, min-p, top-k, top-p, softmax, and one race per request.

Read it as the definition of a *support*: the tokens that are left for the draw. Which floating-point operation decides
is stated where it matters, because a support may depend on the last bit of a sum; `supports` says which tokens do.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairdraw.contracts import Drafted, RaceNoise, SamplingBatch, SamplingNoise, SeededNoise


@dataclass(slots=True)
class Request:
    """One request of a batch: its row of logits and its parameters; a filter that is off is `None`."""

    logits: NDArray[np.float32]  # [vocab_size] float32
    temperature: np.float32
    is_greedy: bool
    top_k: int | None
    top_p: float | None
    min_p: float | None


def requests_of(batch: SamplingBatch) -> list[Request]:
    """Return the requests of a batch. Its tensors are read once: element by element they take as long as the draws."""

    def values(tensor: Tensor | None, is_on: Callable[[float], bool]) -> list[Any]:  # [batch_size] any
        given = [None] * batch.batch_size if tensor is None else tensor.tolist()
        return [value if value is not None and is_on(value) else None for value in given]

    filters = (
        values(batch.top_k, lambda k: k < batch.vocab_size),
        values(batch.top_p, lambda p: p < 1),
        values(batch.min_p, lambda p: p > 0),
    )
    temperatures, are_greedy = batch.temperature.cpu().numpy(), batch.is_greedy.tolist()
    return list(map(Request, batch.logits.float().cpu().numpy(), temperatures, are_greedy, *filters))


class SamplingOracle:
    """The specification as small overridable steps; a mutant overrides exactly one of them."""

    name = "oracle"

    def sample(self, batch: SamplingBatch, noise: SamplingNoise) -> Tensor:  # [batch_size] int64
        """One token per request."""
        exponentials = self.exponentials(batch, noise).cpu().numpy()
        rows = zip(requests_of(batch), exponentials, strict=True)
        tokens = [self.token(request, row) for request, row in rows]
        return torch.tensor(tokens, dtype=torch.int64, device=batch.device)

    def draft(self, batch: SamplingBatch, noise: SamplingNoise) -> Drafted:
        """The tokens of `sample`, and the distribution of each: a greedy request's is certain of its token."""
        tokens = self.sample(batch, noise)
        distributions = list(map(self.said_distribution, requests_of(batch), tokens.tolist()))
        return Drafted(tokens, torch.from_numpy(np.stack(distributions)).to(batch.device))

    def exponentials(self, batch: SamplingBatch, noise: SamplingNoise) -> Tensor:  # [batch_size, vocab_size] float32
        return noise.exponentials if isinstance(noise, RaceNoise) else self.draw(batch, noise)

    def draw(self, batch: SamplingBatch, noise: SeededNoise) -> Tensor:  # [batch_size, vocab_size] float32
        return draw_exponentials(batch, noise)

    def token(self, request: Request, exponentials: NDArray[np.float32]) -> int:
        if request.is_greedy:
            return self.greedy_token(request.logits)
        return self.race(self.distribution(request), exponentials)

    def greedy_token(self, logits: NDArray[np.float32]) -> int:
        """The id of the largest logit, lowest id on ties; NaN counts as largest (as torch.argmax has it)."""
        return int(np.argmax(logits))

    def distribution(self, request: Request) -> NDArray[np.float32]:  # [vocab_size] float32
        """The distribution of a random request; all NaN if its logits have none."""
        return softmax(self.filtered(request))

    def said_distribution(self, request: Request, token: int) -> NDArray[np.float32]:  # [vocab_size] float32
        """The distribution that a drafter returns."""
        distribution = self.distribution(request)
        if request.is_greedy or np.isnan(distribution).any():
            certain = np.zeros_like(distribution)
            certain[token] = 1
            return certain
        return distribution

    def filtered(self, request: Request) -> NDArray[np.float32]:  # [vocab_size] float32
        """Logits over temperature; -inf outside of the support. Each filter sees what the one before it left."""
        logits = self.scaled(request)
        if request.min_p is not None:
            logits = masked(logits, self.min_p_support(logits, request.min_p))
        if request.top_k is not None:
            logits = masked(logits, self.top_k_support(logits, request.top_k))
        if request.top_p is not None:
            logits = masked(logits, self.top_p_support(logits, request.top_p))
        return logits

    def scaled(self, request: Request) -> NDArray[np.float32]:  # [vocab_size] float32
        """Logits over temperature, in float32."""
        with np.errstate(over="ignore", invalid="ignore"):
            return np.asarray(request.logits / (np.float32(1) if request.is_greedy else request.temperature))

    def min_p_support(self, logits: NDArray[np.float32], min_p: float) -> NDArray[np.bool_]:
        """Tokens with at least `min_p` times the largest probability; a product and a comparison in float32."""
        probs = softmax(logits)
        return np.asarray(~(probs < probs.max() * np.float32(min_p)))

    def top_k_support(self, logits: NDArray[np.float32], top_k: int) -> NDArray[np.bool_]:
        """Tokens at least as large as the k-th: all of those tied with it."""
        return np.asarray(~(logits < np.sort(logits)[-top_k]))

    def top_p_support(self, logits: NDArray[np.float32], top_p: float) -> NDArray[np.bool_]:
        """All but the least probable tokens, whose mass, added up from the smallest, is at most `1 - top_p`.

        Among tied tokens the highest ids stay. The most probable token always stays. float32 probabilities; their sum
        in float64, rounded to float32 (as torch adds on a CPU); float32 `1 - top_p`.
        """
        ascending = np.argsort(logits, kind="stable")
        mass = np.cumsum(softmax(logits[ascending]), dtype=np.float64).astype(np.float32)
        removed = mass <= np.float32(1) - np.float32(top_p)
        removed[-1] = False
        support = np.ones(logits.size, dtype=bool)
        support[ascending[removed]] = False
        return support

    def race(self, probs: NDArray[np.float32], exponentials: NDArray[np.float32]) -> int:
        """Exponential race: argmax of the float32 quotient `prob / exponential`, lowest id on ties.

        Only tokens of positive probability take part; if none does, the token is 0.
        """
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            scores = probs / exponentials
        return int(np.argmax(np.where(probs > 0, scores, np.float32(-1))))


class MultiplyingOracle(SamplingOracle):
    """The same specification with the other float32 race: `prob * (1 / exponential)`, rounded twice.

    Both are right. They differ where two scores are equal up to rounding, and for exponentials so small that their
    reciprocal overflows. A sampler that supports `upstream-stream` is held to the quotient, any other to one of the
    two.
    """

    def race(self, probs: NDArray[np.float32], exponentials: NDArray[np.float32]) -> int:
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            scores = probs * (np.float32(1) / exponentials)
        return int(np.argmax(np.where(probs > 0, scores, np.float32(-1))))


def softmax(logits: NDArray[np.float32]) -> NDArray[np.float32]:  # [vocab_size] float32
    """One float32 softmax, torch's, so that "bitwise" has a meaning."""
    return np.asarray(torch.from_numpy(np.ascontiguousarray(logits)).softmax(-1).numpy())


def masked(logits: NDArray[np.float32], support: NDArray[np.bool_]) -> NDArray[np.float32]:  # [vocab_size] float32
    """-inf outside of the support."""
    return np.where(support, logits, np.float32(-np.inf))


def draw_exponentials(batch: SamplingBatch, noise: SeededNoise) -> Tensor:  # [batch_size, vocab_size] float32
    """Draw what vLLM draws, in vLLM's order, on the batch's device.

    Randomness:
        Nothing if every request is greedy. Otherwise `[batch_size, vocab_size]` float32 exponentials from the default
        generator, unless every request has its own; then each seeded request's row from its generator, greedy requests
        included.
    """
    size, generators = (batch.batch_size, batch.vocab_size), noise.generators(batch.device)
    if bool(batch.is_greedy.all()):
        return torch.ones(size, dtype=torch.float32, device=batch.device)
    exponentials = torch.empty(size, dtype=torch.float32, device=batch.device)
    if len(generators) != batch.batch_size:
        exponentials.exponential_()
    for request, generator in generators.items():
        exponentials[request].exponential_(generator=generator)
    return exponentials


def sample(batch: SamplingBatch, noise: SamplingNoise) -> Tensor:  # [batch_size] int64
    """The specification's tokens."""
    return SamplingOracle().sample(batch, noise)


def draft(batch: SamplingBatch, noise: SamplingNoise) -> Drafted:
    """The specification's tokens and distributions."""
    return SamplingOracle().draft(batch, noise)
