"""Force the end of a thinking section when its budget is spent, by reading new tokens only.

A section opens after a start marker, in the prompt or in the output, and closes after an end marker. With a budget of
`b` tokens, the token after `b` thinking tokens is forced to be the first of the end marker, the next one the second,
and so on. What is forced is a function of prompt, output, drafts and budget alone, not of how the tokens arrived:

    budget 2, markers S and E1 E2      output            forced next        drafts      forced at
                                       . S               -                  x y z       position 2: E1
                                       . S x             -                  x y z       position 1: E1
                                       . S x y           E1                 E1 E2 z     0: E1,  1: E2
                                       . S x y E1        E2                 x y z       position 0: E2

vLLM's V1 runner searches the whole output for both markers at every step (at 128 requests of 12000 tokens 176 ms per
step, here 0.18 ms: `perf_regression/records/scanners_cpu.json`). Here a `History` reports what is new, and `turns`, the
positions where sections opened and closed, is cut back with it. A marker may span the edge between old and new tokens,
and the edge between prompt and output.

State, forced positions and forced tokens are those of vLLM 0.22.0, with these intentional deviations. "Both" means that
vLLM 0.33.0 was run as well and has the same defect.

* *no-draft step* (both): with speculation configured, in a step without any draft vLLM forces its token in row 0, which
  belongs to another request, and never in the correct row.
* *re-entry* (0.22.0; vLLM issue 45974): after one section has closed, vLLM never detects another one.
* *stray end* (both): after an end marker outside any section vLLM misses the end of the next one, and forces an end
  marker into the answer.
* *cut* (both): vLLM remembers markers that were cut off, and after a cut while it forces it forces too early and
  several times.
* *draft markers* (both): vLLM ignores markers among the drafts: it forces an end after a drafted end, and lets a
  section that opens within the drafts overspend.
* *draft of the end* (both): of a longer end marker vLLM forces one token per step. If a draft equals that token, the
  next one is not forced, and the marker may be broken: `E1 x E2`. The same happens if a forced token is overruled, or
  if the model itself emits `E1` before the forced position.
* *late ids* (both): a forced token that is still a placeholder is unknown to vLLM, which forces the first token of the
  end marker again. Here a placeholder at the end stands for the token that was forced there.
* *repeat* (both): after a step that yields no token vLLM forgets to force, in the drafts or at the bonus position.
* *resume* (both): for a request that is preempted within a forced end marker vLLM starts the marker again. Of several
  start markers that vLLM reads at once, after a resumption or from one step, the last one counts and renews the budget.
* *long start* (both): in a prompt, vLLM counts each token of the start marker after the first as a thinking token.
* *spanning* (both): a marker across the edge of prompt and output is missed.
* *nested markers* (both): of two markers that end at the same token, as `/think` and `think`, the longer one counts.
* *left behind* (both): an untracked request that condensing moves into the row of a finished one inherits its state.
* *swap* (0.22.0; vLLM pull request 49613): after a swap with an untracked request both rows have the same state.

In a prompt the last of several start markers counts, since earlier turns may have been cut off. In the output the first
one counts, or a model could renew its own budget. vLLM does the same if it reads the output token by token.

torch is imported only when a token is forced.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from ._scanners.history import PLACEHOLDER_TOKEN_ID, BatchUpdate, History, check_rows, follow_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from ._shared.tensors import WrittenRows

__all__ = ["ForcedToken", "ThinkingBudget"]

NO_BUDGET = -1
"""vLLM's value for a request without a budget, like `None`."""

FORCED_LOGIT = 1e9


class ThinkingParams(Protocol):
    """Parameters that are read from vLLM's `SamplingParams`."""

    @property
    def thinking_token_budget(self) -> int | None: ...


class ForcedToken(NamedTuple):
    """A token that the next step must emit."""

    position: int
    """Place among the positions of this step: 0 is the first draft's, the number of drafts is the bonus token's."""
    token_id: int


class Markers:
    """The start and end markers, and which of them ends at a given token."""

    def __init__(self, start: Sequence[int], end: Sequence[int]) -> None:
        for name, marker in (("start_token_ids", start), ("end_token_ids", end)):
            if not marker or min(marker) < 0:
                raise ValueError(
                    f"ThinkingBudget: {name}={list(marker)}, but it must be at least one token id, none negative. Use "
                    f"tokenizer.encode(marker, add_special_tokens=False)."
                )
        if list(start) == list(end):
            raise ValueError(
                f"ThinkingBudget: start_token_ids={list(start)} equals end_token_ids, but a section's two ends must "
                f"differ. Use two markers."
            )
        self.start, self.end = list(start), list(end)
        self.longest_first = sorted((self.start, self.end), key=len, reverse=True)
        self.reach = len(self.longest_first[0]) - 1
        """Number of earlier tokens that decide whether a marker ends at a token."""

    def at_end_of(self, text: list[int]) -> list[int] | None:
        """Return the marker that `text` ends with."""
        for marker in self.longest_first:
            if text[-len(marker) :] == marker:
                return marker
        return None

    def begun(self, text: list[int], most: int) -> int:
        """Return how many tokens of the end marker `text` ends with, at most `most`; never all of them."""
        for length in range(min(len(self.end) - 1, most), 0, -1):
            if text[-length:] == self.end[:length]:
                return length
        return 0


class _Request:
    """One request with a budget.

    `turns` are the lengths of output at which sections opened (even places) and closed (odd places). A section that the
    prompt left open has opened at a length of 0 or less.
    """

    __slots__ = ("budget", "history", "markers", "prompt_tail", "turns")

    def __init__(self, markers: Markers, budget: int, prompt_token_ids: list[int], live: list[int]) -> None:
        self.markers = markers
        self.budget = budget
        self.history = History(live)
        self.prompt_tail = prompt_token_ids[max(0, len(prompt_token_ids) - markers.reach) :]
        self.turns = _turns_of_prompt(markers, prompt_token_ids)

    def advance(self) -> None:
        """Read what is new."""
        history, turns = self.history, self.turns
        first = history.advance()
        while turns and turns[-1] > first:
            turns.pop()
        ids, markers = history.ids, self.markers
        for length in range(first + 1, len(ids) + 1):
            token_id = ids[length - 1]
            if token_id == markers.end[-1] or token_id == markers.start[-1]:
                marker = markers.at_end_of(self.text(ids, length))
                if marker is (markers.end if len(turns) & 1 else markers.start):
                    turns.append(length)

    def text(self, ids: list[int], length: int) -> list[int]:
        """Return the end of prompt and `ids[:length]`, as long as a marker."""
        reach = self.markers.reach + 1
        if length >= reach:
            return ids[length - reach : length]
        return self.prompt_tail[max(0, len(self.prompt_tail) + length - reach) :] + ids[:length]

    def forced(self, drafts: Sequence[int]) -> list[ForcedToken]:
        """Return the forced tokens of this step, up to the first position that rejects its draft."""
        turns = self.turns
        most = len(self.history.live) - turns[-1] if len(turns) & 1 else -1
        if most + len(drafts) < self.budget:
            return []
        text, count = self.now()
        forced: list[ForcedToken] = []
        for position in range(len(drafts) + 1):
            token_id = self._due(text, count)
            if token_id is not None:
                forced.append(ForcedToken(position, token_id))
                if position < len(drafts) and drafts[position] != token_id:
                    break
            if position < len(drafts):
                text.append(drafts[position])
                count = self._after(text, count)
        return forced

    def now(self) -> tuple[list[int], int | None]:
        """Return the end of the text, and the thinking tokens in its open section, if any.

        A placeholder at the end counts as the token that was forced there, or as a thinking token.
        """
        ids, turns = self.history.ids, self.turns
        text = self.text(ids, len(ids))
        count = len(ids) - turns[-1] if len(turns) & 1 else None
        for _ in range(len(ids), len(self.history.live)):
            token_id = self._due(text, count)
            text.append(PLACEHOLDER_TOKEN_ID if token_id is None else token_id)
            count = self._after(text, count)
        return text, count

    def _due(self, text: list[int], count: int | None) -> int | None:
        """Return the forced next token; `None` if none is forced."""
        if count is None or count < self.budget:
            return None
        return self.markers.end[self.markers.begun(text, count - self.budget)]

    def _after(self, text: list[int], count: int | None) -> int | None:
        """Return thinking tokens after the last token of `text` was added to a section of `count`."""
        marker = self.markers.at_end_of(text)
        if count is None:
            return 0 if marker is self.markers.start else None
        return None if marker is self.markers.end else count + 1


def _turns_of_prompt(markers: Markers, prompt_token_ids: list[int]) -> list[int]:
    """Return where the section opened that the prompt leaves open: at minus its thinking tokens; empty if there is
    none."""
    turns: list[int] = []
    reach = markers.reach + 1
    for length, token_id in enumerate(prompt_token_ids, start=1):
        if token_id == markers.end[-1] or token_id == markers.start[-1]:
            marker = markers.at_end_of(prompt_token_ids[max(0, length - reach) : length])
            if marker is not None:
                turns = [length - len(prompt_token_ids)] if marker is markers.start else []
    return turns


class ThinkingBudget:
    """Thinking sections of one batch; replaces vLLM's `ThinkingBudgetStateHolder`.

    Call `sync_batch` whenever rows change, `update_state` once per step, then `apply_to_logits` once for a plain step,
    twice (bonus rows, draft rows) for a speculative one.

    Args:
        start_token_ids: Opens a section.
        end_token_ids: Closes it; these tokens are forced.

    Raises:
        ValueError: If a marker is empty or has a negative id, or if both are equal.

    Example:
        >>> from types import SimpleNamespace
        >>> output, params = [], SimpleNamespace(thinking_token_budget=2)
        >>> thinking = ThinkingBudget(start_token_ids=[7], end_token_ids=[8, 9])
        >>> thinking.sync_batch(SimpleNamespace(removed=[], added=[(0, params, [5, 7], output)], moved=[]))
        >>> output.append(5)
        >>> thinking.update_state([output], [[3, 4]])
        >>> thinking.forced
        {0: [ForcedToken(position=1, token_id=8)]}
    """

    def __init__(self, start_token_ids: Sequence[int], end_token_ids: Sequence[int]) -> None:
        self._markers = Markers(start_token_ids, end_token_ids)
        self._requests: dict[int, _Request] = {}
        self._rows: list[int] = []
        self.forced: dict[int, list[ForcedToken]] = {}
        """Row to its forced tokens in this step; rows without any are absent."""

    def has_tracked_requests(self) -> bool:
        """Whether any request of the batch has a budget; if not, `update_state` and `apply_to_logits` do nothing."""
        return bool(self._requests)

    def think_counts(self) -> dict[int, int | None]:
        """Return thinking tokens in the open section of each request with a budget; `None` outside sections."""
        return {row: request.now()[1] for row, request in self._requests.items()}

    def sync_batch(self, batch_update: BatchUpdate | None) -> None:
        """Follow requests that were added, removed, moved or swapped; a request that is added again starts anew.

        Args:
            batch_update: vLLM's `BatchUpdate`, or any object like it. `None`: no row changed.

        Raises:
            ValueError: If a budget is below -1 (vLLM treats it as 0). Nothing has been changed then.
        """
        if batch_update is None:
            return
        self._requests = follow_rows(self._requests, batch_update, self._make_request)
        self._rows = sorted(self._requests)
        self.forced = {}

    def _make_request(
        self, params: ThinkingParams, prompt_token_ids: list[int] | None, output_token_ids: list[int]
    ) -> _Request | None:
        budget = params.thinking_token_budget
        if budget is None or budget == NO_BUDGET:
            return None
        if budget < 0:
            raise ValueError(
                f"ThinkingBudget.sync_batch: thinking_token_budget={budget}, but it must be at least 0. Use None for a "
                f"request without a budget."
            )
        return _Request(self._markers, budget, prompt_token_ids or [], output_token_ids)

    def update_state(
        self, output_token_ids: Sequence[list[int]], spec_token_ids: Sequence[Sequence[int]] | None = None
    ) -> None:
        """Read what is new and decide the forced tokens of this step. Calling it again changes nothing.

        Args:
            output_token_ids: The batch's live lists, one per row, without drafts: the very objects that the requests
                were added with. (vLLM before 0.26.0 passes copies with the drafts at the end; pass the originals.)
            spec_token_ids: Draft tokens per row, -1 for one that is not known yet; rows beyond its end have none.

        Raises:
            ValueError: If a row is missing or holds another list.
        """
        requests = self._requests
        check_rows(
            "ThinkingBudget.update_state", self._rows, (requests[i].history for i in self._rows), output_token_ids
        )
        drafts = spec_token_ids or ()
        self.forced = {}
        for row in self._rows:
            request = requests[row]
            request.advance()
            if forced := request.forced(drafts[row] if row < len(drafts) else ()):
                self.forced[row] = forced

    def apply_to_logits(
        self,
        logits: Tensor,  # [num_rows, vocab_size] float32
        predict_bonus_token: bool,
        spec_token_ids: Sequence[Sequence[int]] | None = None,
    ) -> Tensor:  # [num_rows, vocab_size] float32
        """Set the logits of forced tokens to 1e9, in place.

        Args:
            logits: One row per request, or one per draft token if there are drafts and `predict_bonus_token` is false.
            spec_token_ids: As given to `update_state`.

        Raises:
            ValueError: If a forced row or token is outside of `logits`, or these cannot be written.
        """
        if not self.forced:
            return logits
        lengths = [len(drafts) for drafts in spec_token_ids or ()]
        forced = self._bonus_logits(lengths) if predict_bonus_token or not any(lengths) else self._draft_logits(lengths)
        if forced:
            _force(logits, forced)
        return logits

    def _bonus_logits(self, lengths: list[int]) -> list[tuple[int, int]]:
        """Return row of a request and forced token, where the bonus (or only) token is forced."""
        last = [(row, forced[-1], lengths[row] if row < len(lengths) else 0) for row, forced in self.forced.items()]
        return [(row, token.token_id) for row, token, bonus_position in last if token.position == bonus_position]

    def _draft_logits(self, lengths: list[int]) -> list[tuple[int, int]]:
        """Return row of a draft and forced token."""
        return [
            (sum(lengths[:row]) + token.position, token.token_id)
            for row, forced in self.forced.items()
            for token in forced
            if row < len(lengths) and token.position < lengths[row]
        ]


def _force(logits: WrittenRows, forced: list[tuple[int, int]]) -> None:
    import torch

    from ._shared.checks import FLOATS, check_dimensions, check_tensor, check_written

    function = "ThinkingBudget.apply_to_logits"
    check_dimensions(function, "logits", logits, 2)
    check_tensor(function, "logits", logits, logits.shape, FLOATS, logits.device)
    check_written(function, "logits", logits)
    row, token_id = max(row for row, _ in forced), max(token_id for _, token_id in forced)
    if row >= logits.shape[0] or token_id >= logits.shape[1]:
        raise ValueError(
            f"ThinkingBudget.apply_to_logits: logits are {list(logits.shape)}, but row {row} and token {token_id} must "
            f"be in it. Pass the spec_token_ids of update_state, and markers of this vocabulary."
        )
    index = torch.tensor(forced).to(logits.device, non_blocking=True)
    logits.index_put_((index[:, 0], index[:, 1]), logits.new_full((len(forced),), FORCED_LOGIT))
