"""What decoded requests must follow: the target model's own distributions, recomputed from the finished requests.

Nothing of the decoding loop is trusted here but its tokens. Each statistic has distributions that are known before the
first token is drawn, and counts what a decoding brought; `decision` does the rest.

* `NextTokens`: each token given its whole prefix, pooled by randomised PIT. Sees an error of any step, whatever the
  vocabulary, temperatures and penalties; blind to requests that share noise.
* `FrequentContexts`: the next token after each frequent context. Sees the same and says after which text.
* `FirstTokens`: the first tokens as one sequence, all sequences enumerated, for small vocabularies. Sees joint errors:
  across positions and rounds, and through noise that all requests share.
* `Neighbours`: the first tokens of two neighbouring requests, jointly. Sees noise that two requests share.
* `AcceptedDrafts`: the number of accepted drafts given the drafts. Sees a silent slow-down, and a draft distribution
  that is not looked at; blind to what is emitted instead.

All but the last hold for every lossless verifier. `AcceptedDrafts` is the distribution of token verification alone;
leave it out for samplers that verify otherwise (blocks, exact match).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch

from fairdraw._core.seeds import derive_seed
from fairdraw.protocols import GREEDY_TEMPERATURE
from fairdraw.statistical._count_tables import count_codes, joint_codes
from fairdraw.statistical._pit import Order, PitCells, pit_of_tensors, randomised_pit
from fairdraw.statistical._validation import refuse

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fairdraw.statistical._decode import DecodeSetup, Decoding

__all__ = [
    "AcceptedDrafts",
    "DecodeDistribution",
    "DecodeStatistic",
    "FirstTokens",
    "FrequentContexts",
    "Neighbours",
    "NextTokens",
    "mean_num_accepted",
]

_MIN_EXPECTED = 40
"""Observations per cell and decoding: some more than `pooling.MIN_EXPECTED`, because numbers of observations vary."""

Counts = Mapping[str, "NDArray[np.int64]"]


@dataclass(frozen=True)
class DecodeDistribution:
    """The distribution of one count table, and how many observations of it to expect.

    Args:
        num_draws: Per decoding.
        event_prob: Probability, at least, that a draw is an observation of this table.
        label: The name of a cell.
        is_optional: The table tells where a fault is, and others see that there is one: without power it is left out.
    """

    probs: NDArray[np.float64]  # [num_cells] float64
    num_draws: int
    event_prob: float = 1.0
    label: Callable[[int], str] = str
    is_optional: bool = False


class DecodeStatistic(Protocol):
    """One or more count tables of a decoding, with their distributions."""

    @property
    def distributions(self) -> Mapping[str, DecodeDistribution]: ...

    def count(self, decoding: Decoding) -> Counts: ...


class NextTokens:
    """Every decoded token given all tokens before it, transformed to the unit interval by rank and by id.

    The places counted are fixed (all of them), and the distribution of each follows from its prefix; so the transforms
    are independent and uniform whatever temperatures, penalties and prompts are.
    """

    def __init__(self, setup: DecodeSetup) -> None:
        num_draws = setup.num_requests * setup.num_tokens
        self._setup, self._cells = setup, PitCells(_num_cells(num_draws, at_most=32))
        distribution = DecodeDistribution(self._cells.probs, num_draws, label=self._cells.label)
        self.distributions = {_next_token(order): distribution for order in Order}

    def count(self, decoding: Decoding) -> Counts:
        """Count tables, by table name.

        Randomness:
            One uniform per token, from the decoding's seed, used for both orders.
        """
        setup, rng = self._setup, np.random.default_rng(derive_seed("next tokens", decoding.seed))
        models = decoding.models
        tokens = torch.from_numpy(decoding.tokens).to(models.device)
        requests = torch.arange(setup.num_requests, device=models.device)
        counts = {
            name: np.zeros(distribution.probs.size + 1, dtype=np.int64)
            for name, distribution in self.distributions.items()
        }
        for end in range(setup.prompt_size, tokens.shape[1]):
            # After a malformed answer prefix and token are -1; any prefix does, the token is impossible after each.
            probs = models.target_probs(models.target_logits(tokens[:, :end].clamp(min=0), requests), requests)
            uniforms = torch.from_numpy(rng.random(setup.num_requests)).to(models.device)
            for order in Order:
                transform = pit_of_tensors(probs, tokens[:, end], uniforms, order)
                counts[_next_token(order)] += self._cells.count(transform.cpu().numpy())
        return counts


class FrequentContexts:
    """The next token after each of the contexts that plain decoding visits most, one table for each.

    Contexts are chosen by the exact distribution of visits, never by the sample.

    Args:
        num_contexts: Per temperature (greedy requests have no distribution and are left out).

    Raises:
        ValueError: If there are penalties: the context is then not the whole failure_report.
    """

    def __init__(self, setup: DecodeSetup, num_contexts: int = 6) -> None:
        if setup.has_penalties:
            raise refuse("FrequentContexts", "the setup has penalties", "it must not", "Use NextTokens.")
        self._setup = setup
        self.distributions: dict[str, DecodeDistribution] = {}
        self._contexts: dict[str, tuple[int, int]] = {}
        for group, temperature in _random_groups(setup):
            own = np.arange(group, setup.num_requests, len(setup.temperatures))
            prompts = setup.prompts[own % len(setup.prompts)]
            visits = own.size * setup.target.context_visits(prompts, setup.num_tokens, temperature)
            for context in np.argsort(-visits, kind="stable")[:num_contexts].tolist():
                text = _quoted(setup, setup.target.context_tokens(context))
                name = f"token after {text} at temperature {temperature:g}"
                self.distributions[name] = _context_distribution(
                    setup, group, context, own.size, float(visits[context])
                )
                self._contexts[name] = (group, context)

    def count(self, decoding: Decoding) -> Counts:
        """Count tables, by table name."""
        setup, tokens = self._setup, decoding.tokens
        places = range(setup.prompt_size, tokens.shape[1])
        contexts = np.stack([setup.target.contexts(np.maximum(tokens[:, :end], 0)) for end in places], axis=1)
        groups = np.arange(len(tokens))[:, None] % len(setup.temperatures)
        drawn = tokens[:, setup.prompt_size :]
        return {
            name: count_codes(drawn[(contexts == context) & (groups == group)], setup.vocab_size)
            for name, (group, context) in self._contexts.items()
        }


class FirstTokens:
    """The first tokens of each request as one sequence, against the exact distribution of all; one table per
    temperature.

    Args:
        num_tokens: `vocab_size ** num_tokens` sequences are enumerated. More than `max_spec_len` reach over the border
            of a round.

    Raises:
        ValueError: If requests have different prompts, or fewer tokens are decoded.
    """

    def __init__(self, setup: DecodeSetup, num_tokens: int = 4) -> None:
        _check_one_prompt("FirstTokens", setup)
        if not 1 <= num_tokens <= setup.num_tokens:
            rule = f"it must lie in [1, {setup.num_tokens}]"
            raise refuse("FirstTokens", f"num_tokens={num_tokens}", rule, "Decode more tokens.")
        self._setup, self._num_tokens = setup, num_tokens
        self._groups = {f"first tokens at temperature {temperature:g}": g for g, temperature in _random_groups(setup)}
        self.distributions = {name: self._distribution(group) for name, group in self._groups.items()}

    def count(self, decoding: Decoding) -> Counts:
        """Count tables, by table name."""
        setup, size = self._setup, self._num_tokens
        drawn = decoding.tokens[:, setup.prompt_size : setup.prompt_size + size]
        codes = joint_codes(*drawn.T, sizes=(setup.vocab_size,) * size)
        step = len(setup.temperatures)
        return {name: count_codes(codes[group::step], setup.vocab_size**size) for name, group in self._groups.items()}

    def _distribution(self, group: int) -> DecodeDistribution:
        setup = self._setup
        prefixes, probs = setup.prompts, np.ones((1, 1))
        for _ in range(self._num_tokens):
            probs = probs.reshape(-1, 1) * _next_probs(setup, prefixes, group)
            next_tokens = np.tile(np.arange(setup.vocab_size), len(prefixes))
            prefixes = np.column_stack([np.repeat(prefixes, setup.vocab_size, axis=0), next_tokens])
        texts = prefixes[:, setup.prompt_size :]
        num_draws = len(range(group, setup.num_requests, len(setup.temperatures)))
        return DecodeDistribution(probs.ravel(), num_draws, label=lambda cell: _quoted(setup, texts[cell]))


class Neighbours:
    """The first token of request `2j` and that of request `2j + 1`: independent, unless the two share noise.

    Raises:
        ValueError: If requests have different prompts.
    """

    def __init__(self, setup: DecodeSetup) -> None:
        _check_one_prompt("Neighbours", setup)
        self._setup = setup
        self._period = int(np.lcm(2, len(setup.temperatures)))
        self._firsts: dict[str, int] = {}
        self.distributions: dict[str, DecodeDistribution] = {}
        for first in range(0, self._period, 2):
            pair = setup.temperature(np.array([first, first + 1]))
            if (pair != GREEDY_TEMPERATURE).all():
                name = f"first tokens of neighbours at temperatures {pair[0]:g} and {pair[1]:g}"
                self._firsts[name], self.distributions[name] = first, self._distribution(first)

    def count(self, decoding: Decoding) -> Counts:
        """Count tables, by table name."""
        size, tokens = self._setup.vocab_size, decoding.tokens[:, self._setup.prompt_size]
        pairs = tokens[: tokens.size // 2 * 2].reshape(-1, 2)
        codes = joint_codes(*pairs.T, sizes=(size, size))
        return {
            name: count_codes(codes[first // 2 :: self._period // 2], size**2) for name, first in self._firsts.items()
        }

    def _distribution(self, first: int) -> DecodeDistribution:
        setup = self._setup
        left, right = (_next_probs(setup, setup.prompts, request)[0] for request in (first, first + 1))
        num_draws = len(range(first, setup.num_requests - 1, self._period))
        tokens = np.indices((setup.vocab_size,) * 2).reshape(2, -1).T
        return DecodeDistribution(
            np.outer(left, right).ravel(), num_draws, label=lambda cell: _quoted(setup, tokens[cell])
        )


class AcceptedDrafts:
    """How many drafts are accepted in each round, given the drafts, transformed to the unit interval and pooled.

    Given its drafts, a request accepts `a` of them with a probability that depends on `min(1, target / draft)` alone.
    Rounds without drafts say nothing and are not counted.
    """

    _NAME = "accepted drafts"

    def __init__(self, setup: DecodeSetup) -> None:
        # A round emits at most max_spec_len + 1 tokens, so each request has at least this many rounds.
        num_rounds = setup.num_requests * -(-setup.num_tokens // (setup.max_spec_len + 1))
        drafted = setup.max_spec_len / (setup.max_spec_len + 1) if setup.ragged else 1.0
        self._cells = PitCells(_num_cells(int(num_rounds * drafted), at_most=16), num_halvings=0)
        distribution = DecodeDistribution(self._cells.probs, num_rounds, drafted, self._cells.label)
        self.distributions = {self._NAME: distribution}

    def count(self, decoding: Decoding) -> Counts:
        """The count table, by table name.

        Randomness:
            One uniform per round and request, from the decoding's seed.
        """
        uniforms = np.random.default_rng(derive_seed(self._NAME, decoding.seed)).random(decoding.num_accepted.size)
        transform = randomised_pit(decoding.acceptance_distributions, decoding.num_accepted, uniforms, Order.ID)
        return {self._NAME: self._cells.count(transform)}


def mean_num_accepted(decoding: Decoding) -> tuple[float, float, float]:
    """Mean number of accepted drafts per round: observed, expected given the drafts, and its standard error.

    Raises:
        ValueError: If there were no drafts.
    """
    num_rounds = decoding.num_accepted.size
    if num_rounds == 0:
        raise refuse("mean_num_accepted", "no round had drafts", "there must be some", "Draft something.")
    lengths = np.arange(decoding.acceptance_distributions.shape[1])
    means = decoding.acceptance_distributions @ lengths
    variances = decoding.acceptance_distributions @ lengths**2 - means**2
    return float(decoding.num_accepted.mean()), float(means.mean()), float(np.sqrt(variances.sum()) / num_rounds)


def _num_cells(num_draws: int, at_most: int) -> int:
    """Cells of the unit interval that one decoding fills well enough to be counted."""
    return int(np.clip(num_draws // _MIN_EXPECTED, 2, at_most))


def _next_token(order: Order) -> str:
    return f"next token by {order}"


def _random_groups(setup: DecodeSetup) -> list[tuple[int, float]]:
    """Places in `temperatures` that are not greedy."""
    return [(group, t) for group, t in enumerate(setup.temperatures) if t != GREEDY_TEMPERATURE]


def _check_one_prompt(function: str, setup: DecodeSetup) -> None:
    if len(setup.prompts) != 1:
        raise refuse(function, f"{len(setup.prompts)} prompts", "there must be one", "Use num_prompts=1.")


def _next_probs(
    setup: DecodeSetup,
    prefixes: NDArray[np.int64],  # [num_prefixes, width] int64
    request: int,
) -> NDArray[np.float64]:  # [num_prefixes, vocab_size] float64
    """The distribution of the next token after each prefix, at the temperature of one request."""
    requests = np.full(len(prefixes), request)
    return setup.target_probs(setup.target_logits(prefixes, requests), requests)


def _quoted(
    setup: DecodeSetup,
    token_ids: NDArray[np.int64],  # [num_tokens] int64
) -> str:
    return f'"{setup.vocabulary.decode(token_ids)}"'


def _context_distribution(
    setup: DecodeSetup, group: int, context: int, num_requests: int, visits: float
) -> DecodeDistribution:
    requests = np.array([group])
    logits = setup.target.logits[[context]] / setup.temperature(requests)[:, None]
    num_draws = num_requests * setup.num_tokens
    return DecodeDistribution(
        setup.target_probs(logits, requests)[0],
        num_draws,
        # Visits of one request depend on each other, so their number varies somewhat more than a binomial one.
        event_prob=0.95 * visits / num_draws,
        label=lambda token: _quoted(setup, np.array([token])),
        is_optional=True,
    )
