"""The requests of vLLM's model runner V2: slots on the device, which its `Sampler` reads.

A request enters with all its tokens (`add_request`, staged writes), and from then on `post_update` appends what was
sampled; nothing is ever taken back. So here: a token list that only grew is appended to. A request whose tokens were
cut or became others is removed and added again, as its runner does after a preemption and for a streamed input.

Its device knows each token as soon as it is sampled; it has no placeholders. One at the end of a list is what V2's own
sampler would have drawn there: the token that it forces (`_vllm_v2_state.py`), or one that nobody knows.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairdraw.contracts import AddedRow, Markers, RowChanges
from fairdraw_engines._others import USUAL_SIZES, rows_after, sizes_for, vllm_module
from fairdraw_engines._vllm_plan import sampling_params
from fairdraw_engines._vllm_v2_runtime import call, make_states, post_update

MOST_DRAFTS = 128
"""Drafts of a request, in a runner's buffers."""


@dataclass
class Tenant:
    """A request, and the tokens of its output that its slot has; `None` before it entered."""

    name: str
    params: Any  # Any: RequestParams; LogitsParams under the logits-plan contract
    prompt: list[int]
    output: list[int] | None = None


@dataclass
class Slots:
    """A runner's `RequestState` and `Sampler`, and which request is in which row.

    Args:
        markers: Of thinking sections; without them no request has a budget.
        counts: Sampled tokens are counted for penalties.
    """

    vocab_size: int
    device: str
    markers: Markers | None = None
    counts: bool = True
    rows: dict[int, Tenant] = field(default_factory=dict)
    num_named: int = 0

    def __post_init__(self) -> None:
        self._make(*USUAL_SIZES)

    def _make(self, most_requests: int, longest: int) -> None:
        """Make empty slots."""
        self.longest = longest
        sizes = most_requests, self.vocab_size, self.device
        made = make_states(*sizes, longest=longest, num_drafts=MOST_DRAFTS, markers=self.markers)
        self.states, self.sampler = made

    def sync(self, changes: RowChanges) -> None:
        """Let requests leave and move; those that enter do so with the tokens of the next step."""
        if not self.rows and sizes_for(changes) != USUAL_SIZES:
            self._make(*sizes_for(changes))
        before = list(self.rows.values())
        rows = rows_after(self.rows, changes, [self._tenant(added) for added in changes.added])
        staying = {tenant.name for tenant in rows.values()}
        for tenant in before:
            if tenant.name not in staying:
                self.states.remove_request(tenant.name)
        self.rows = rows

    def _tenant(self, added: AddedRow) -> Tenant:
        self.num_named += 1
        return Tenant(f"r{self.num_named}", added.params, list(added.prompt_token_ids))

    def put(self, outputs: Sequence[Sequence[int]]) -> None:
        """Put each row's prompt into its slot, and these tokens."""
        sampled: list[tuple[Tenant, list[int]]] = []
        for row, output in enumerate(outputs):
            tenant, due = self.rows[row], list(output)
            if tenant.output is not None and due[: len(tenant.output)] == tenant.output:
                sampled.append((tenant, due[len(tenant.output) :]))
            else:
                self._enter(tenant, due)
            tenant.output = due
        self.states.apply_staged_writes()
        self.sampler.apply_staged_writes()
        self._append([pair for pair in sampled if pair[1]])

    def _enter(self, tenant: Tenant, output: list[int]) -> None:
        if tenant.output is not None:
            self.states.remove_request(tenant.name)
        tokens = [*tenant.prompt, *output]
        call(
            self.states.add_request,
            req_id=tenant.name,
            prompt_len=len(tenant.prompt),
            all_token_ids=tokens,
            num_computed_tokens=0,
            max_tokens=self.longest - len(tenant.prompt),
        )
        call(
            self.sampler.add_request,
            req_idx=self.slot(tenant),
            prompt_len=len(tenant.prompt),
            sampling_params=sampling_params(tenant.params),
        )

    def slot(self, tenant: Tenant) -> int:
        index: int = self.states.req_id_to_index[tenant.name]
        return index

    def _append(self, sampled: list[tuple[Tenant, list[int]]]) -> None:
        """Do as `postprocess_sampled` of the runner, with tokens that were sampled in one or several steps."""
        if not sampled:
            return
        width = max(len(tokens) for _, tokens in sampled)
        padded = [tokens + [0] * (width - len(tokens)) for _, tokens in sampled]
        zeros = torch.zeros(len(sampled) + 1, dtype=torch.int32, device=self.device)
        counts = self.sampler.penalties_state.output_bin_counts
        post_update(
            self.states,
            counts if self.counts else None,
            idx_mapping=self._tensor([self.slot(tenant) for tenant, _ in sampled]),
            sampled_tokens=self._tensor(padded, torch.int64),
            num_sampled=self._tensor([len(tokens) for _, tokens in sampled]),
            num_rejected=zeros[1:],
            query_start_loc=zeros,
        )

    def step(self, drafts: Sequence[Sequence[int]]) -> dict[str, Any]:  # Any: tensors and arrays by vLLM's names
        """Return the layout of a step: per request a row after its last token, and one after each draft."""
        tenants = [self.rows[row] for row in range(len(drafts))]
        slots = [self.slot(tenant) for tenant in tenants]
        lengths = [len(tenant.prompt) + len(tenant.output or ()) for tenant in tenants]
        lasts = [([*tenant.prompt, *(tenant.output or ())] or [0])[-1] for tenant in tenants]
        local = [range(len(own) + 1) for own in drafts]
        layout = {
            "expanded_idx_mapping": self._tensor([slots[row] for row, places in enumerate(local) for _ in places]),
            "idx_mapping": self._tensor(slots),
            "idx_mapping_np": np.array(slots, np.int32),
            "expanded_local_pos": self._tensor([place for places in local for place in places]),
            "input_ids": self._tensor([i for last, own in zip(lasts, drafts, strict=True) for i in (last, *own)]),
            "pos": self._tensor(
                [lengths[row] - 1 + place for row, places in enumerate(local) for place in places], torch.int64
            ),
            "seq_lens_upper_bound_np": np.array([n + len(own) for n, own in zip(lengths, drafts, strict=True)]),
        }
        context = getattr(vllm_module("worker.gpu.sample.sampler"), "LogitsContext", None)
        return {**layout, "ctx": call(context, **layout)} if context else layout

    def _tensor(self, numbers: Any, dtype: torch.dtype = torch.int32) -> Tensor:  # of the shape of its numbers
        return torch.tensor(numbers, dtype=dtype, device=self.device)
