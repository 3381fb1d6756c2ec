"""Wrong scanners of the thinking-budget contract, one fault each.

Each function stands for one step of the correct scanner, with that step's arguments. First comes `right`, the correct
steps, or `answer`, that of the correct step.
"""

from collections.abc import Sequence

from fairdraw._mutants._following import following_mutants
from fairdraw._mutants._lifecycle_scanners import Copy, Scanner, against_its_policy, mutant_follower
from fairdraw._mutants._lifecycle_scanners import ThinkingFollower as Follower
from fairdraw._mutants._mutant import Mutant, mutants_in, patching
from fairdraw.contracts import LiveBatch, LiveRequest, ThinkingPolicy

Tokens = Sequence[int]
Count = int | None
Pairs = list[tuple[int, int]]

_VLLM, _FINISHED, _UNCOUNTED = ThinkingPolicy(), ThinkingPolicy("finished"), ThinkingPolicy("uncounted")
_FREE, _SHARED = ThinkingPolicy(later_sections="free"), ThinkingPolicy(later_sections="shared")
_FAULTS = {
    "FinishesABegunEnd": (_VLLM, _FINISHED),
    "RestartsABegunEndAgainstItsPolicy": (_FINISHED, _VLLM),
    "WaitsForABegunEnd": (_FINISHED, _UNCOUNTED),
    "RestartsAnEndThatSpendsNothing": (_UNCOUNTED, _VLLM),
    "CountsABegunEnd": (_UNCOUNTED, _FINISHED),
}
_SECTIONS = {
    "SharesTheBudget": (_VLLM, _SHARED),
    "BudgetsLaterSections": (_FREE, _VLLM),
    "SharesTheBudgetOfFreeSections": (_FREE, _SHARED),
    "RenewsASharedBudget": (_SHARED, _VLLM),
    "FreesSectionsOfASharedBudget": (_SHARED, _FREE),
}


_patched = patching(mutant_follower, Follower)


def right() -> Scanner:
    """The specification behind a copy of every history: every mutant without its fault."""
    return Scanner("oracle", Follower, "thinking_budget")


class _MissesMarkersAcrossEdges(Follower):
    """A marker that lies across more than `most_edges` edges of steps is not found; `begins` are edges, too."""

    begins: tuple[int, ...] = ()
    most_edges = 1

    def decide(self, copy: Copy, request: LiveRequest) -> Pairs:
        self.edges = {len(copy.entered.prompt_token_ids) + edge for edge in (*self.begins, *copy.edges)}
        return super().decide(copy, request)

    def marker_at_end(self, text: Tokens) -> tuple[int, ...] | None:
        marker = super().marker_at_end(text)
        inner = range(len(text) - len(marker or ()) + 1, len(text))
        return None if len(getattr(self, "edges", set()).intersection(inner)) > self.most_edges else marker


@mutant_follower("THK101", "THK102")
class MissesAMarkerAcrossTheWindowEdge(_MissesMarkersAcrossEdges):
    """Markers are searched among the new tokens alone; one that began in the last step is never found."""

    begins, most_edges = (0,), 0


@_patched("next_token", "THK101")
def budget_is_one_token_too_large(right: Follower, prompt: Tokens, output: Tokens, budget: int) -> Count:
    """The end is forced after the first token beyond the budget."""
    return right.next_token(prompt, output, budget + 1)


@_patched("next_token", "THK101")
def budget_zero_is_no_budget(right: Follower, prompt: Tokens, output: Tokens, budget: int) -> Count:
    """`if budget:` where `if budget is not None:` is meant."""
    return right.next_token(prompt, output, budget) if budget else None


@_patched("think_count", "THK111", "THK101", "THK102")
def ignores_a_second_section(answer: Count, prompt: Tokens, output: Tokens, *, own: Follower) -> Count:
    """After one section has closed no other one is watched."""
    text = (*prompt, *output)
    opened = False
    for length in range(1, len(text) + 1):
        marker = own.marker_at_end(text[:length])
        if marker == own.end and opened:
            return None
        opened = opened or marker == own.start
    return answer


@_patched("next_token", "THK101")
def cuts_a_long_end_marker(answer: Count, prompt: Tokens, output: Tokens, budget: int, *, own: Follower) -> Count:
    """Of an end marker of several tokens only the first is forced."""
    return answer if answer == own.end[0] else None


@_patched("next_token", "THK101")
def begins_the_end_marker_anew(answer: Count, prompt: Tokens, output: Tokens, budget: int, *, own: Follower) -> Count:
    """How much of the end marker was emitted is not remembered: its first token is forced for ever."""
    return None if answer is None else own.end[0]


@_patched("think_count", "THK101", "THK102")
def ignores_a_start_in_the_prompt(right: Follower, prompt: Tokens, output: Tokens) -> Count:
    """Chat templates open the section in the prompt; a scanner of outputs alone never sees it."""
    return right.think_count((), output)


@_patched("placeholders", "THK101")
def placeholders_take_no_room(right: Follower, copy: Copy) -> list[int]:
    """A token that is still on the device does not count against the budget."""
    return []


@mutant_follower("THK101")
class ForcesTheRowOfTheNeighbour(Follower):
    """Rows are numbered among those with a budget instead of in the batch."""

    def follow(self, batch: LiveBatch) -> None:
        super().follow(batch)
        tracked = [row for row in sorted(self.rows) if self.rows[row].entered.params.thinking_token_budget is not None]
        self.order = dict(enumerate(tracked))

    def decide(self, copy: Copy, request: LiveRequest) -> Pairs:
        row = next(row for row, found in self.rows.items() if found is copy)
        return super().decide(self.rows[self.order[row]], request) if row in self.order else []


@_patched("decide", "THK110", "THK101")
def forces_only_the_first_position(right: Follower, copy: Copy, request: LiveRequest) -> Pairs:
    """Drafts are not counted: a budget that is spent within them is overspent."""
    return [pair for pair in right.decide(copy, request) if pair[0] == 0]


@_patched("decide", "THK101")
def forces_after_a_rejected_draft(answer: Pairs, copy: Copy, request: LiveRequest, *, own: Follower) -> Pairs:
    """A draft that must be rejected is followed as if it had been accepted."""
    is_rejected = answer and answer[-1][0] < len(request.draft_token_ids)
    return [*answer, (answer[-1][0] + 1, own.end[-1])] if is_rejected else answer


@_patched("think_count", "THK101", "THK102")
def any_start_renews_the_budget(right: Follower, prompt: Tokens, output: Tokens) -> Count:
    """A model that emits the start marker again inside a section gets its budget anew."""
    return right.think_count((*prompt, *output), ())


@_patched("shown", "THK102")
def shows_one_thought_too_many(answer: Count, copy: Copy) -> Count:
    """What is shown counts the marker; what is forced is right."""
    return None if answer is None else answer + 1


@mutant_follower("THK111")
class LosesAMarkerOfThreeSteps(_MissesMarkersAcrossEdges):
    """A marker may span two steps, but not three: of the text before the last step one edge is remembered."""


@_patched("next_token", "THK110")
def counts_thoughts_in8_bits(right: Follower, prompt: Tokens, output: Tokens, budget: int) -> Count:
    """The number of thinking tokens stays at 255; larger budgets are never spent."""
    return right.next_token(prompt, output, budget) if budget < 256 else None


@_patched("next_token", "THK110")
def counts_thoughts_in12_bits(right: Follower, prompt: Tokens, output: Tokens, budget: int) -> Count:
    """The same with 4095."""
    return right.next_token(prompt, output, budget) if budget < 4096 else None


@_patched("think_count", "THK110")
def reads_the_end_of_the_prompt(right: Follower, prompt: Tokens, output: Tokens) -> Count:
    """Of a prompt the last 1024 tokens are searched; a section that opened before them is not seen."""
    return right.think_count(prompt[-1024:], output)


@_patched("think_count", "THK110")
def reads_the_beginning_of_the_prompt(right: Follower, prompt: Tokens, output: Tokens) -> Count:
    """The same with the first 1024."""
    return right.think_count(prompt[:1024], output)


@mutant_follower("THK110")
class MarkersHave16Bits(Follower):
    """Ids are compared in their lower 16 bits."""

    def marker_at_end(self, text: Tokens) -> tuple[int, ...] | None:
        lower = tuple(i & 0xFFFF if i >= 0 else i for i in text[-8:])
        same = [m for m in (self.start, self.end) if lower[-len(m) :] == tuple(i & 0xFFFF for i in m)]
        return max(same, key=len, default=None)

    def think_count(self, prompt: Tokens, output: Tokens) -> Count:
        text, count = (*prompt, *output), None
        for length in range(1, len(text) + 1):
            marker = self.marker_at_end(text[max(0, length - 8) : length])
            opens = marker == self.start and (count is None or length <= len(prompt))
            count = None if marker == self.end else 0 if opens else None if count is None else count + 1
        return count


@_patched("decide", "THK110")
def sees_eight_drafts(right: Follower, copy: Copy, request: LiveRequest) -> Pairs:
    """Nothing is forced after the eighth draft."""
    return [pair for pair in right.decide(copy, request) if pair[0] <= 8]


@_patched("decide", "THK110")
def sees_fifty_drafts(right: Follower, copy: Copy, request: LiveRequest) -> Pairs:
    """Nothing is forced after the fiftieth draft."""
    return [pair for pair in right.decide(copy, request) if pair[0] <= 50]


@mutant_follower("THK110")
class ForcesSixteenTokensOfAnEnd(Follower):
    """Of an end marker that has begun sixteen tokens are known; one that is longer begins again and again."""

    def next_token(self, prompt: Tokens, output: Tokens, budget: int) -> Count:
        token_id, whole = super().next_token(prompt, output, budget), self.end
        if token_id is None or len(whole) <= 17:
            return token_id
        self.end = whole[:17]
        first = super().next_token(prompt, output, budget)
        self.end = whole
        return first


@_patched("think_count", "THK110")
def watches_some_sections(answer: Count, prompt: Tokens, output: Tokens, *, own: Follower) -> Count:
    """After 255 sections no other one is watched."""
    ends = sum(1 for i in (*prompt, *output) if i == own.end[-1]) if answer is not None else 0
    return None if ends > 255 else answer


@mutant_follower("THK101", "THK111")
class MatchesMarkersWithoutOverlap(Follower):
    """After a marker that was only begun the search starts anew behind it: 3 3 3 4 is not seen to end with 3 3 4."""

    reach = 1 << 30

    def marker_at_end(self, text: Tokens) -> tuple[int, ...] | None:
        found, place = None, 0
        while place < len(text):
            same = [n for m in (self.start, self.end) for n in [self.length_of_match(text, place, m)] if n]
            length = max(same, default=1)
            found = next((m for m in (self.start, self.end) if tuple(text[place : place + len(m)]) == m), None)
            place += length
        return found if found is not None and place == len(text) else None

    @staticmethod
    def length_of_match(text: Tokens, place: int, marker: tuple[int, ...]) -> int:
        """How many tokens of the marker stand there."""
        pairs = zip(text[place:], marker, strict=False)
        return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(marker), len(text) - place))


MUTANTS: tuple[Mutant, ...] = (
    *following_mutants(Follower, "THK"),
    *against_its_policy(Follower, "THK101", _FAULTS),
    *against_its_policy(Follower, "THK110", _SECTIONS),
    *mutants_in(vars()),
)
