"""What a workload of the benchmark is: sizes, a batch over time, and the step of a sampler on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairdraw._core.contracts import contract_name
from fairdraw._core.seeds import derive_seed
from fairdraw.contracts import AnySampler, Capability, RequestParams, RowChanges
from fairdraw.perf_regression._named import NoVerdictError, load
from fairdraw.perf_regression._rounds import Clock, Rounds, after_own_step, thread_clock
from fairdraw.strategies._serving_batch import ServingBatch

Step = Callable[[], Any]  # Any: an answer of the contract's kind

UPSTREAM_STEPS = "fairdraw.perf_regression._upstream_steps"
START_ID, END_ID, FIRST_ORDINARY_ID = 7, 8, 300
PROMPT = [1, 2, 3]
PARAMS = RequestParams(1.5, 0.2, 1.1, 10**9)
"""Penalties, and a thinking budget that is never spent."""


@dataclass(frozen=True)
class Sizes:
    """B requests, K draft tokens of each, V entries in the vocabulary, outputs of L tokens."""

    batch_size: int
    max_spec_len: int
    vocab_size: int
    length: int = 0

    def as_formula(self) -> dict[str, int]:
        return {"B": self.batch_size, "K": self.max_spec_len, "V": self.vocab_size}

    def __str__(self) -> str:
        length = {"L": self.length} if self.length else {}
        return " ".join(f"{axis}={size}" for axis, size in (self.as_formula() | length).items())


class BenchmarkWorld:
    """A workload, and the steps of samplers on it."""

    host = False
    """Whether only the host's work of our own scanners is measured, below their contract."""
    is_determined = True
    """Whether correct answers are the same numbers: tensors, which may hold -inf."""
    needs: tuple[Capability, ...] = ()
    """What a sampler must support to be given this batch."""
    warm_up = 2
    """Steps before the one that is counted."""
    num_read = 0
    """Tokens that were read from outputs so far, where lists count them."""

    def __init__(self, sizes: Sizes, device: str = "cpu", dtype: torch.dtype = torch.bfloat16) -> None:
        self.sizes, self.device = sizes, device
        self.tensors: Mapping[str, Tensor] = {}
        """Tensors whose traffic is counted separately."""
        if dtype is not torch.float32:
            self.needs = (Capability.HALF_LOGITS, *self.needs)

    def restore(self) -> None:
        """Undo what a step may write."""

    def advance(self) -> None:
        """Go on by one decode step."""

    def renew(self, subject: Any) -> None:  # Any: of the contract
        """Let a request leave and another one of the same sizes enter, or make another batch."""

    def step(self, subject: Any) -> Step:  # Any: of the contract
        """Return what `subject` does at each step.

        Raises:
            NoVerdictError: If its answer cannot be right: a wrong step is fast. Or if it does not support the batch.
        """
        if (why := subject.capabilities.why_unsupported(self.needs)) is not None:
            raise NoVerdictError(f"{subject.name} cannot be given this batch: {why}")
        return self._upstream_step(subject) or self.own_step(subject)

    def own_step(self, subject: Any) -> Step:  # Any: of the contract
        raise NotImplementedError

    def _upstream_step(self, subject: AnySampler) -> Step | None:
        """Return vLLM's own code without the suite's adapter; `None` if `subject` is not vLLM."""
        package, _, module = type(subject).__module__.rpartition(".")
        contract = contract_name(subject)
        if package != "fairdraw_engines" or not module.startswith("_vllm") or contract == "rejection":
            return None
        step: Step = load(f"{UPSTREAM_STEPS}:{contract}_{'host' if self.host else 'step'}")(subject, self)
        return step

    def clock(self) -> Clock:
        """Return the time of one thread, right after an untimed step of the same arm, as in a server."""
        return after_own_step(self.advance, thread_clock)

    def rounds(self, steps: Mapping[str, Step]) -> Rounds:
        """Return rounds of arms on this world."""
        return Rounds(steps, clock=self.clock(), drop_switched=False)


class Outputs(ServingBatch):
    """A batch whose output lists grow token by token, as on a server.

    Args:
        sizes: A step with drafts emits as many tokens (one more than was accepted).
        params: Used in turn.
        counted: Lists count what is read.
    """

    def __init__(self, sizes: Sizes, params: Sequence[Any], *, counted: bool) -> None:  # Any: those of the contract
        super().__init__(sizes.vocab_size, most_requests=sizes.batch_size, counted=counted)
        self.sizes, self._params, self._num_added = sizes, params, 0
        self._rng = np.random.default_rng(derive_seed("outputs", sizes.batch_size))
        self.lists: list[Any] = []  # Any: lists that are counted
        self.drafts: list[list[int]] = []
        for _ in range(sizes.batch_size):
            self._enter_one([])
        self._refresh()
        if sizes.length > 1:
            self.grow(sizes.length - 1)
        self.take_changes()

    def _enter_one(self, token_ids: list[int]) -> None:
        self.add(self._params[self._num_added % len(self._params)], PROMPT, [START_ID, *token_ids])
        self._num_added += 1

    def _refresh(self) -> None:
        """Give every request new drafts."""
        requests = self.requests
        self.lists = [request.output_token_ids for request in requests]
        self.drafts = self._drawn(len(requests), self.sizes.max_spec_len)
        for request, drafts in zip(requests, self.drafts, strict=True):
            request.draft_token_ids = drafts

    def _drawn(self, num_rows: int, num_columns: int) -> list[list[int]]:
        shape = num_rows, num_columns
        drawn: list[list[int]] = self._rng.integers(FIRST_ORDINARY_ID, self.vocab_size, shape).tolist()
        return drawn

    def grow(self, num_tokens: int) -> None:
        """Append to all lists in turn, so that the `int` objects lie in memory as a server leaves them."""
        for step_ids in self._drawn(num_tokens, len(self.lists)):
            for output, token_id in zip(self.lists, step_ids, strict=True):
                output.append(token_id)

    def advance(self) -> None:
        """Go on by one decode step."""
        self.grow(max(1, self.sizes.max_spec_len))
        self._refresh()

    def replace_first(self) -> RowChanges:
        """Let the first request leave and one of the same sizes enter. The others do not grow: that would be kept."""
        self.remove(0)
        self._enter_one(self._drawn(1, max(0, self.sizes.length - 1))[0])
        for request in self.requests:
            del request.output_token_ids[max(1, self.sizes.length) :]
        changes = self.take_changes()
        self._refresh()
        return changes
