"""The whole sampling step in one call: from the model's own logits to tokens, with every parameter of a request.

    logits [num_rows, vocab_size]        one row per draft token and one more per request; or one row per request
      |  grammar mask, allowed ids, logit bias, minimum tokens, penalties, bad words, forced token       (edits)
      |  temperature
      |  min-p, top-k on what that left, top-p on what that left                                         (filters)
      v
    a distribution per row   ->   draft tokens accepted or rejected   ->   one more token per request

Nothing of the vocabulary's size is written: no float32 copy, no masked copy, no probabilities, and nothing is sorted.
Plain sampling is the same step without drafts.

A `StepPlan` is built once for a capacity. It compiles, allocates its workspace and checks what can be checked; a step
then passes tensors. Parameters are read on the device, **by slot**: as an engine keeps them, one entry per request that
it may hold, and `slots` says where the requests of this batch have theirs. So a step reads nothing on the host, waits
for nothing, allocates nothing, and can be captured in a CUDA graph and replayed with other contents.

Order of processors: that of vLLM's model runner V2 (0.33.0). Kept sets, exactly, of `scaled = logit / temperature` in
float32:

* min-p keeps what is at least `max(scaled) + log(min_p)`.
* top-k keeps everything at least as large as the k-th: all of those tied with it.
* top-p keeps the largest that together have `top_p` of the probability, and everything tied with the last of them.

The draw, by counters, is that of `rejection_counter`: position `n` of a request takes block `(n, "veri")` of Philox
4x32-10 under the key `seed`; its first uniform decides about the draft token behind that position, its second draws. A
row's token depends on its own inputs, seed and position alone (batch invariance), bit for bit.

* A draft token is accepted if its id is in the vocabulary and `target / draft >= uniform`, with `target` after all
  filters; a one-hot draft has `draft = 1`. Of draft logits, `draft = exp(logit / temperature - logsumexp)` in float32.
* The token behind a rejected one is drawn from `max(target - draft, 0)`; if that is empty, from `target`.
* Draft logits are divided by `draft_temperature`, at least 1e-5, if it is given. If `draft_logsumexp` is not, it is
  computed for each draft of a random request; a given one is not checked. A draft row whose logsumexp is not finite
  (NaN, +inf, nothing but -inf) is that of no draft: its token is rejected, and the target drawn from. So it is behind a
  placeholder (-1), as in vLLM's model runner V2. (Among probabilities that token comes from the residual.)
* Greedy requests (temperature 0) take the argmax of the edited logits, lowest id on ties, NaN highest. Filters do not
  apply to them.
* A row with NaN or +inf, or with nothing but -inf, accepts no draft token, and its own token is 0.

Reference:
    Leviathan, Kalman, Matias (2022), arXiv:2211.17192, algorithm 1. Holtzman et al. (2020), arXiv:1904.09751 (top-p).
    Salmon, Moraes, Dror, Shaw (2011), doi:10.1145/2063384.2063405 (Philox).
"""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, NoReturn

import torch

from ._shared.backend import BackendName, choose_backend
from ._shared.checks import INT32, check_tensor, check_written
from ._step.inputs import (
    BadWords,
    Capacity,
    Drafts,
    Parameters,
    Penalties,
    StepInputs,
    StepOutput,
    TokenEdits,
    check_capacity,
    check_inputs,
    check_values,
)
from ._step.known import Groups, Known
from ._step.replays import Replays

if TYPE_CHECKING:
    from torch import Tensor

    from ._shared.tensors import Bitmasks
    from ._step.launch import Launches
    from ._step.pytorch import PyTorchStep

__all__ = [
    "BadWords", "Capacity", "Drafts", "Parameters", "Penalties", "StepInputs", "StepOutput", "StepPlan", "TokenEdits",
]  # fmt: skip


class StepPlan:
    """A compiled step for batches up to a capacity.

    Args:
        capacity: The largest batch, and what its requests may use: see `Capacity`.
        device: Of all tensors. A step runs on it, in its current stream, whatever device is current.
        backend: `None` takes Triton on a GPU and PyTorch elsewhere.
        replays: Most CUDA graphs that the plan keeps, on a GPU: a step whose tensors lie where they lay 16 times is
            replayed, which takes the host a third of the time. 0: every step is launched.

    Raises:
        ValueError: If the capacity contradicts itself, or there is no such backend.

    One at a time:
        A plan's steps share its memory and its output. One in another stream waits for the last one, unless it is
        captured; two threads in one plan are refused, and so is a copy, whose kernels would know this one's addresses.
        Whatever tensors hold, nothing beside them is touched; but after a step whose `cu_num_rows` gave a row to two
        requests, edits of that row may stay in the plan: build another, or find such a step by `validate=True`.

    Limits:
        Target probabilities are sums in float32 within tiles of 1024 entries, and integers across them: relative error
        some 2**-20. A token at most 2**-40 times as probable as its row's best is not drawn. `vocab_size` is at most
        2**19.
    """

    def __init__(
        self,
        capacity: Capacity,
        device: torch.device | str = "cuda",
        *,
        backend: BackendName | None = None,
        replays: int = 32,
    ) -> None:
        self.capacity, self.device = capacity, torch.device(device)
        check_capacity("StepPlan", capacity)
        self._known = Known(Groups(), Groups(), Groups())
        self._busy = Lock()
        self._index: int | None = None  # of the device that kernels are launched on
        self._stream: int | None = None  # of the last step
        self._run: Launches | PyTorchStep
        if choose_backend("StepPlan", backend, self.device, place="device") == "triton":
            from ._shared.compiled import stream_of
            from ._step.launch import Launches

            self._stream_of = stream_of
            if self.device.type == "cuda":
                self._index = torch.cuda.current_device() if self.device.index is None else self.device.index
                self.device = torch.device("cuda", self._index)
            self._run = Launches(capacity, self.device)
        else:
            from ._step.pytorch import PyTorchStep

            self._run, replays = PyTorchStep(capacity), 0
        self._replays = Replays(self._known, self.device, replays if self.device.type == "cuda" else 0)

    def __call__(self, inputs: StepInputs, *, validate: bool = False) -> StepOutput:
        """Draw the tokens of one step.

        Args:
            validate: Also check values inside tensors. Waits for the device.

        Returns:
            Tokens per request: accepted draft tokens, one more, then -1. The tensors belong to the plan, and its next
            step writes them again.

        Raises:
            TypeError: If an argument is of the wrong kind.
            ValueError: If arguments disagree with each other or with the capacity, or with `validate=True` a value is
                out of its range.

        Randomness:
            As described at the head of this module.
        """
        if self._is_elsewhere():
            with torch.cuda.device(self._index):
                return self(inputs, validate=validate)
        self._begin()
        try:
            key = None if validate else self._replays.key_of(inputs)
            if key is not None and (replayed := self._replays.replayed(key)) is not None:
                return replayed
            checked = check_inputs("StepPlan", self.capacity, inputs, self.device, self._known)
            if validate:
                check_values("StepPlan", self.capacity, inputs)
            output = self._run(inputs, checked)
            if key is not None and checked.batch_size > 0:
                self._replays.note(key, lambda: self._run(inputs, checked))
            return output
        finally:
            self._busy.release()

    def processed_logits(self, inputs: StepInputs) -> Tensor:  # [num_rows, vocab_size] float32
        """Return edited logits over temperature, -inf outside of the kept set; a greedy row's are edited alone.

        For tests and for log-probabilities of whole rows. It writes what a step never writes.
        """
        _, processed = self._whole(inputs, emits=False)
        return processed

    def drafted(self, inputs: StepInputs) -> tuple[StepOutput, Tensor]:  # [num_rows, vocab_size] float32
        """Return a step of a plan without drafts, and the processed logits that it drew from: for a drafter, whose
        distributions are needed afterwards. It takes the launches of a step and one more.

        Raises:
            ValueError: If the plan is one with drafts: rows behind a rejected one are not processed.
        """
        if self.capacity.max_spec_len:
            raise ValueError(
                f"StepPlan.drafted: max_spec_len={self.capacity.max_spec_len}, but a drafter's plan has no drafts. "
                "Use a plan with max_spec_len=0."
            )
        return self._whole(inputs, emits=True)

    def masked(
        self,
        inputs: StepInputs,
        kept_words: Tensor,  # [num_rows, num_words] int32
    ) -> StepOutput:
        """Draw the tokens of a step, and set bit `i % 32` of word `i // 32` if a row drew from token `i`, among others.

        A greedy row has every token that is possible; rows behind a rejected draft mean nothing. It takes the launches
        of a step and one more. Rows of `kept_words` may be apart, and what stands in them is overwritten.
        """
        output, _ = self._whole(inputs, kept_words)
        return output

    def _whole(
        self, inputs: StepInputs, kept_words: Bitmasks | None = None, *, emits: bool = True
    ) -> tuple[StepOutput, Tensor]:  # [num_rows, vocab_size] float32, or [0] float32
        """Check inputs and run a step, on the plan's device and alone, and write masks, or else processed logits; such
        steps are not replayed."""
        if self._is_elsewhere():
            with torch.cuda.device(self._index):
                return self._whole(inputs, kept_words, emits=emits)
        self._begin()
        try:
            checked = check_inputs("StepPlan", self.capacity, inputs, self.device, self._known)
            if kept_words is not None:
                shape = checked.num_rows, -(-self.capacity.vocab_size // 32)
                check_tensor("StepPlan.masked", "kept_words", kept_words, shape, INT32, inputs.logits.device)
                check_written("StepPlan.masked", "kept_words", kept_words)
            size = inputs.logits.shape if kept_words is None else (0,)
            processed = torch.empty(size, dtype=torch.float32, device=inputs.logits.device)
            return self._run.whole(
                inputs, checked, processed if kept_words is None else None, kept_words, emits=emits
            ), processed
        finally:
            self._busy.release()

    def __reduce__(self) -> NoReturn:
        """Refuse `copy`, `deepcopy` and `pickle`."""
        raise TypeError(
            "StepPlan: it cannot be copied, because its kernels know its memory by address. "
            "Build one of the same capacity."
        )

    def _begin(self) -> None:
        """Take the plan's memory: no other thread may have it, and another stream must be done with it."""
        if not self._busy.acquire(blocking=False):
            raise RuntimeError("StepPlan: another step of this plan has not returned. Build a plan for each thread.")
        if self._index is not None:
            stream = self._stream_of(self._index)
            if stream != self._stream and (self._stream is None or not torch.cuda.is_current_stream_capturing()):
                if self._stream is not None:
                    before = torch.cuda.ExternalStream(self._stream, device=self.device)  # type: ignore[no-untyped-call]
                    torch.cuda.current_stream(self._index).wait_stream(before)
                self._stream = stream

    def _is_elsewhere(self) -> bool:
        """Whether another device is current. The plan's is for as long as a call takes, as in operations of torch."""
        return self._index is not None and torch.cuda.current_device() != self._index
