"""What decoded requests must follow: the target model's own distributions, recomputed from the finished requests.

Nothing of the decoding loop is trusted here but its tokens. The null of each statistic is known before the first token
is drawn.

* `NextTokens`: each token given its whole prefix, pooled by randomised PIT. Sees an error of any step, whatever the
  vocabulary, temperatures and penalties; blind to requests that share noise.
* `FrequentContexts`: the next token after each frequent context. Sees the same, and reports after which text.
* `FirstTokens`: the first tokens as one sequence, all sequences enumerated, for small vocabularies. Sees joint errors:
  across positions and rounds, and through noise that all requests share.
* `Neighbours`: the first tokens of two neighbouring requests, jointly. Sees noise that two requests share.
* `AcceptedDrafts`: the number of accepted drafts given the drafts. Sees a silent slow-down, and ignored draft
  probabilities; blind to what is emitted instead.

All but the last hold for every lossless verifier. `AcceptedDrafts` holds for token verification alone, and the checks
that judge it are skipped for samplers that verify otherwise (blocks, exact match).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch

from fairdraw._core.seeds import derive_seed
from fairdraw.protocols import GREEDY_TEMPERATURE
from fairdraw.statistical._count_tables import Counts, Table, count_codes, joint_codes, sum_counts
from fairdraw.statistical._decode_models import models_on
from fairdraw.statistical._distributions import softmax_probs
from fairdraw.statistical._pit import Order, PitCells, randomised_pit
from fairdraw.statistical._projections import TokenTables, numbers_of_rows
from fairdraw.statistical._validation import refuse

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from fairdraw.statistical._decode import DecodeSetup, Decoding

_MIN_EXPECTED = 40
"""Observations per cell and decoding: some more than `pooling.MIN_EXPECTED`, because numbers of observations vary."""


class DecodeStatistic(Protocol):
    """One or more tables of a decoding, with the draws of one decoding."""

    @property
    def tables(self) -> Mapping[str, Table]:
        """The tables by name."""
        ...

    def count(self, decoding: Decoding) -> Counts:
        """Their counts in one decoding."""
        ...


class NextTokens:
    """Every decoded token given all tokens before it, by rank, by id and by each projection of the id.

    All places are counted, and the distribution of each follows from its prefix. So the transforms are independent and
    uniform whatever temperatures, penalties and prompts are.
    """

    def __init__(self, setup: DecodeSetup) -> None:
        num_draws = setup.num_requests * setup.num_tokens
        cells = PitCells(_num_cells(num_draws, at_most=32))
        self._setup, self._counted = setup, TokenTables("next token", (setup.vocab_size,), cells)
        self.tables = self._counted.tables(num_draws)

    def count(self, decoding: Decoding) -> Counts:
        """Count tables, by table name.

        Randomness:
            One uniform per token, from the decoding's seed, used for every way to count.
        """
        setup, rng = self._setup, np.random.default_rng(derive_seed("next tokens", decoding.seed))
        models = decoding.models
        tokens = torch.from_numpy(decoding.tokens).to(models.device)
        requests = torch.arange(setup.num_requests, device=models.device)
        parts = []
        for end in range(setup.prompt_size, tokens.shape[1]):
            # After a malformed output prefix and token are -1. Any prefix does: -1 is impossible after each.
            probs = models.target_probs(models.target_logits(tokens[:, :end].clamp(min=0), requests), requests)
            rows, own = probs.cpu().numpy(), tokens[:, end].cpu().numpy()
            parts.append(self._counted.count(numbers_of_rows(rows, own, rng.random(setup.num_requests))))
        return sum_counts(parts)


class FrequentContexts:
    """The next token after each of the contexts that plain decoding visits most, one table for each.

    Contexts are chosen by the exact distribution of visits, never by the sample. Greedy requests are left out.

    Args:
        num_contexts: Per temperature.

    Raises:
        ValueError: If there are penalties: the next token then depends on more than the context.
    """

    def __init__(self, setup: DecodeSetup, num_contexts: int = 6) -> None:
        if setup.has_penalties:
            raise refuse("FrequentContexts", "the setup has penalties", "it must not", "Use NextTokens.")
        self._setup = setup
        self.tables: dict[str, Table] = {}
        self._contexts: dict[str, tuple[int, int]] = {}
        for group, temperature in _random_groups(setup):
            own = np.arange(group, setup.num_requests, len(setup.temperatures))
            prompts = setup.prompts[own % len(setup.prompts)]
            visits = own.size * setup.target.context_visits(prompts, setup.num_tokens, temperature)
            for context in np.argsort(-visits, kind="stable")[:num_contexts].tolist():
                text = _quoted(setup, setup.target.context_tokens(context))
                name = f"token after {text} at temperature {temperature:g}"
                self.tables[name] = self._table(temperature, context, own.size, float(visits[context]))
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

    def _table(self, temperature: float, context: int, num_requests: int, visits: float) -> Table:
        """The table of one context, which is visited `visits` times per decoding on average."""
        setup, num_draws = self._setup, num_requests * self._setup.num_tokens
        # Visits of one request depend on each other, so their number varies somewhat more than a binomial one.
        visited = 0.95 * visits / num_draws
        return Table(
            softmax_probs(setup.target.logits[context] / np.float32(temperature)),
            label=lambda token: _quoted(setup, np.array([token])),
            num_draws=num_draws,
            observed_per_draw=visited,
            event_prob=visited,
            is_optional=True,
        )


class FirstTokens:
    """The first tokens of each request as one sequence, all sequences enumerated; one table per temperature.

    Args:
        num_tokens: `vocab_size ** num_tokens` sequences are enumerated. More than `max_spec_len` reach into the next
            round.

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
        self.tables = {name: self._table(group) for name, group in self._groups.items()}

    def count(self, decoding: Decoding) -> Counts:
        """Count tables, by table name."""
        setup, size = self._setup, self._num_tokens
        drawn = decoding.tokens[:, setup.prompt_size : setup.prompt_size + size]
        codes = joint_codes(*drawn.T, sizes=(setup.vocab_size,) * size)
        step = len(setup.temperatures)
        return {name: count_codes(codes[group::step], setup.vocab_size**size) for name, group in self._groups.items()}

    def _table(self, group: int) -> Table:
        """The table of all sequences at the temperature of one group."""
        setup = self._setup
        prefixes, probs = setup.prompts, np.ones((1, 1))
        for _ in range(self._num_tokens):
            probs = probs.reshape(-1, 1) * _next_probs(setup, prefixes, group)
            next_tokens = np.tile(np.arange(setup.vocab_size), len(prefixes))
            prefixes = np.column_stack([np.repeat(prefixes, setup.vocab_size, axis=0), next_tokens])
        texts = prefixes[:, setup.prompt_size :]
        num_draws = len(range(group, setup.num_requests, len(setup.temperatures)))
        return Table(probs.ravel(), label=lambda cell: _quoted(setup, texts[cell]), num_draws=num_draws)


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
        self.tables: dict[str, Table] = {}
        for first in range(0, self._period, 2):
            pair = [setup.temperatures[i % len(setup.temperatures)] for i in (first, first + 1)]
            if GREEDY_TEMPERATURE not in pair:
                name = f"first tokens of neighbours at temperatures {pair[0]:g} and {pair[1]:g}"
                self._firsts[name], self.tables[name] = first, self._table(first)

    def count(self, decoding: Decoding) -> Counts:
        """Count tables, by table name."""
        size, tokens = self._setup.vocab_size, decoding.tokens[:, self._setup.prompt_size]
        pairs = tokens[: tokens.size // 2 * 2].reshape(-1, 2)
        codes = joint_codes(*pairs.T, sizes=(size, size))
        return {
            name: count_codes(codes[first // 2 :: self._period // 2], size**2) for name, first in self._firsts.items()
        }

    def _table(self, first: int) -> Table:
        """The table of the pair that starts with request `first`."""
        setup = self._setup
        left, right = (_next_probs(setup, setup.prompts, request)[0] for request in (first, first + 1))
        num_draws = len(range(first, setup.num_requests - 1, self._period))
        tokens = np.indices((setup.vocab_size,) * 2).reshape(2, -1).T
        probs = np.outer(left, right).ravel()
        return Table(probs, label=lambda cell: _quoted(setup, tokens[cell]), num_draws=num_draws)


class AcceptedDrafts:
    """How many drafts are accepted in each round, given the drafts, transformed to the unit interval and pooled.

    Given its drafts, a request accepts `a` of them with a probability that depends on `min(1, target / draft)` alone.
    Rounds without drafts are not counted.
    """

    _NAME = "accepted drafts"

    def __init__(self, setup: DecodeSetup) -> None:
        # A round emits at most max_spec_len + 1 tokens, so each request has at least this many rounds.
        num_rounds = setup.num_requests * -(-setup.num_tokens // (setup.max_spec_len + 1))
        drafted = setup.max_spec_len / (setup.max_spec_len + 1) if setup.ragged else 1.0
        self._cells = PitCells(_num_cells(int(num_rounds * drafted), at_most=16), num_halvings=0)
        self.tables = {self._NAME: self._cells.table(num_rounds, drafted)}

    def count(self, decoding: Decoding) -> Counts:
        """The count table, by table name.

        Randomness:
            One uniform per round and request, from the decoding's seed.
        """
        uniforms = np.random.default_rng(derive_seed(self._NAME, decoding.seed)).random(decoding.num_accepted.size)
        transform = randomised_pit(decoding.acceptance_distributions, decoding.num_accepted, uniforms, Order.ID)
        return {self._NAME: self._cells.count(transform)}


def _num_cells(num_draws: int, at_most: int) -> int:
    """Cells of the unit interval that one decoding fills well enough to be counted."""
    return int(np.clip(num_draws // _MIN_EXPECTED, 2, at_most))


def _random_groups(setup: DecodeSetup) -> list[tuple[int, float]]:
    """Places in `temperatures` that are not greedy."""
    return [(group, t) for group, t in enumerate(setup.temperatures) if t != GREEDY_TEMPERATURE]


def _check_one_prompt(function: str, setup: DecodeSetup) -> None:
    """Raise `ValueError` unless all requests have the same prompt."""
    if len(setup.prompts) != 1:
        raise refuse(function, f"{len(setup.prompts)} prompts", "there must be one", "Use num_prompts=1.")


def _next_probs(
    setup: DecodeSetup,
    prefixes: NDArray[np.int64],  # [num_prefixes, width] int64
    request: int,
) -> NDArray[np.float64]:  # [num_prefixes, vocab_size] float64
    """The distribution of the next token after each prefix, for one request."""
    models, requests = models_on(setup, "cpu"), torch.full((len(prefixes),), request)
    logits = models.target_logits(torch.from_numpy(np.ascontiguousarray(prefixes)), requests)
    return models.target_probs(logits, requests).numpy()


def _quoted(
    setup: DecodeSetup,
    token_ids: NDArray[np.int64],  # [num_tokens] int64
) -> str:
    """Tokens as quoted text, for labels."""
    return f'"{setup.vocabulary.decode(token_ids)}"'
