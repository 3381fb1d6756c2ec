"""Wrong servers: one step of the toy server replaced, each caught by a check of the server contract.

Each function stands for one step of the toy server, with that step's arguments. First comes `right`, the correct
steps, or `answer`, that of the correct step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from fairdraw._core.array_types import Float64s
from fairdraw._core.seeds import derive_seed
from fairdraw._mutants._lanes import LANE_FAULTS, LaneFault, lane_mutants
from fairdraw._mutants._mutant import Memory, Mutant, mutant_as, mutants_in, name_of, patching
from fairdraw._mutants._toy_server import VOCAB, ProcessedServer, Stream, ToyServer, log_softmax
from fairdraw.contracts import Answer, Choice, NoAnswer, Position
from fairdraw.contracts import GenerationRequest as Request

Ids = Sequence[int]
Requests = Sequence[Request]
Positions = tuple[Position, ...]


def right() -> ToyServer:
    """The toy server with nothing wrong."""
    return ToyServer()


wrong = partial(mutant_as, lambda faulty: faulty(name=name_of(faulty)))
_patched, _processed = patching(wrong, ToyServer), patching(wrong, ProcessedServer)


# -- single answers ---------------------------------------------------------------------------------------------------


@_patched("most_tokens", "SRV101")
def one_token_too_many(right: ToyServer, request: Request) -> int:
    """A speculative step emits a token behind `max_tokens`."""
    return request.max_tokens + 1


@_patched("finished", "SRV101")
def end_counts_as_length(right: ToyServer, stream: Stream, positions: Positions, reason: str) -> Choice:
    """Every finish reason is `length`."""
    return right.finished(stream, positions, "length")


@_patched("position", "SRV102")
def logits_as_log_probabilities(right: ToyServer, token: int, logprobs: Float64s, request: Request) -> Position:
    """It returns logits."""
    return right.position(token, logprobs + 4.0, request)


@_patched("position", "SRV103")
def log_probability_of_another_token(right: ToyServer, token: int, logprobs: Float64s, request: Request) -> Position:
    """The sampled token has the log-probability of the most probable one."""
    return replace(right.position(token, logprobs, request), logprob=float(logprobs.max()))


@_patched("position", "SRV103")
def sampled_token_missing(answer: Position, token: int, logprobs: Float64s, request: Request) -> Position:
    """A token outside of the list has no log-probability."""
    is_rare = token not in np.argsort(-logprobs)[:5]
    return replace(answer, logprob=None, top=answer.top[:5]) if is_rare else answer


@_patched("finished", "SRV104")
def one_list_per_step(right: ToyServer, stream: Stream, positions: Positions, reason: str) -> Choice:
    """Tokens that were drafted have no list."""
    return replace(right.finished(stream, positions, reason), positions=positions[::2])


@_patched("listed", "SRV105")
def unsorted_lists(right: ToyServer, token: int, logprobs: Float64s, request: Request) -> list[int]:
    """Lists are in the order of ids."""
    return sorted(right.listed(token, logprobs, request))


@_patched("listed", "SRV105")
def sampled_token_twice(right: ToyServer, token: int, logprobs: Float64s, request: Request) -> list[int]:
    """The sampled token is put before the list, although it is listed."""
    return [token, *right.listed(token, logprobs, request)]


@_patched("position", "SRV106")
def rounded_log_probabilities(right: ToyServer, token: int, logprobs: Float64s, request: Request) -> Position:
    """Log-probabilities have one decimal."""
    return right.position(token, np.round(logprobs, 1), request)


@_processed("temperature", "SRV107")
def temperature_twice(right: ProcessedServer, request: Request) -> float:
    """Logits are divided by the temperature twice, and say so."""
    return request.temperature**2


@_patched("position", "SRV108")
def normalised_over_the_list(right: ToyServer, token: int, logprobs: Float64s, request: Request) -> Position:
    """Log-probabilities are normalised over what is returned."""
    order = np.argsort(-logprobs)[: request.logprobs]
    return right.position(token, logprobs - np.log(np.exp(logprobs[order]).sum()), request)


# -- tokens -----------------------------------------------------------------------------------------------------------


@_patched("drawn", "SRV121", "SRV122")
def greedy_is_only_cold(right: ToyServer, logits: Float64s, request: Request, stream: Stream) -> int:
    """Greedy requests draw at a temperature of 0.2."""
    if request.is_greedy:
        return right.drawn(logits / 0.2, request.replace(temperature=1.0), stream)
    return right.drawn(logits, request, stream)


@wrong("SRV122")
class LogitsOfAnEarlierRequest(ToyServer):
    """A cache that is not cleared changes the logits of every second request."""

    def answer(self, request: Request, beside: Requests) -> Answer:
        self.is_stale = next(self.calls) % 3 == 0
        return super().answer(request, beside)

    def logits(self, request: Request, output: Ids) -> Float64s:
        row = super().logits(request, output)
        return np.roll(row, 1) if self.is_stale and len(output) == 2 else row


@_patched("drawn", "SRV123", "DIST911")
def silent_greedy(right: ToyServer, logits: Float64s, request: Request, stream: Stream) -> int:
    """Every request is greedy."""
    return int(logits.argmax())


@_patched("filtered", "SRV131", "DIST925")
def top_k_plus_one(right: ToyServer, logits: Float64s, request: Request) -> Float64s:
    """`top_k` leaves one token too many."""
    return right.filtered(logits, request.replace(top_k=request.top_k + 1 if request.top_k else None))


@_processed("step", "SRV131")
def top_k_ignored_in_steps(right: ProcessedServer, request: Request, stream: Stream) -> tuple[int, Position]:
    """Every second token is drawn without `top_k`, and its list says so."""
    is_drafted = len(stream.output) % 2 == 1
    return right.step(request.replace(top_k=None) if is_drafted else request, stream)


@_patched("penalised", "DIST925")
def penalties_ignored_beside_top_k(right: ToyServer, row: Float64s, request: Request, output: Any) -> Float64s:
    """A path for top-k has no penalties."""
    return row if request.top_k else right.penalised(row, request, output)


@_patched("nucleus", "SRV132", "DIST925")
def top_p_ignored(right: ToyServer, row: Float64s, top_p: float) -> Float64s:
    """`top_p` is not applied."""
    return row


@_patched("nucleus", "DIST925")
def top_p_without_its_edge(answer: Float64s, row: Float64s, top_p: float) -> Float64s:
    """The token that reaches `top_p` is dropped."""
    answer[np.where(np.isfinite(answer), answer, np.inf).argmin()] = -np.inf
    return answer if np.isfinite(answer).any() else row


@_patched("filtered", "SRV133", "DIST925")
def min_p_is_absolute(right: ToyServer, logits: Float64s, request: Request) -> Float64s:
    """`min_p` is compared with the probabilities themselves."""
    if not request.min_p:
        return right.filtered(logits, request)
    row = np.where(log_softmax(logits) >= np.log(request.min_p / 20), logits, -np.inf)
    return row if np.isfinite(row).any() else logits


@_patched("seed_of", "SRV141")
def seed_ignored(right: ToyServer, request: Request, beside: Requests) -> int:
    """Seeds are not read."""
    return right.seed_of(request.replace(seed=None), beside)


@_patched("seed_of", "SRV142")
def seed_of_eight_bits(right: ToyServer, request: Request, beside: Requests) -> int:
    """Seeds are cut to their lowest 8 bits."""
    return right.seed_of(request, beside) % 256


@_patched("seed_of", "SRV143", "DIST921")
def seed_zero_for_all(right: ToyServer, request: Request, beside: Requests) -> int:
    """A request without a seed has seed 0."""
    return request.seed or 0


@_patched("generate", "SRV143")
def equal_requests_share_an_answer(right: ToyServer, requests: Requests) -> list[Answer]:
    """Requests that look alike and are on their way together are answered once."""
    known: dict[Request, Answer] = {}
    return [known.setdefault(one, right.answer(one, requests)) for one in requests]


@_patched("stream", "SRV144", "DIST921")
def equal_choices(right: ToyServer, request: Request, seed: int, number: int) -> Stream:
    """The state of the generator is copied for every choice."""
    return right.stream(request, seed, 0)


@_patched("seed_of", "SRV145")
def seed_ignored_beside_unseeded(right: ToyServer, request: Request, beside: Requests) -> int:
    """One request without a seed, and the whole batch is drawn with the generator of the batch."""
    is_mixed = any(one.seed is None for one in beside)
    return right.seed_of(request.replace(seed=None) if is_mixed else request, beside)


@_patched("temperature", "DIST925", "SRV145")
def temperature_of_the_neighbour(right: ToyServer, request: Request, *, own: ToyServer) -> float:
    """In a batch, each request has the temperature of the first one."""
    return own.beside[-1].temperature or request.temperature


@_patched("is_stopped", "SRV145")
def stop_string_of_the_neighbour(right: ToyServer, stream: Stream, *, own: ToyServer) -> bool:
    """The stop strings of a batch are looked for in every text."""
    return any(stop in right.text(stream.output) for one in own.beside for stop in one.stop)


@_patched("stream", "SRV171")
def another_path_with_lists(right: ToyServer, request: Request, seed: int, number: int) -> Stream:
    """Requests with log-probabilities have a generator of their own."""
    return right.stream(request, seed + (request.logprobs is None), number)


# -- edits and ends ---------------------------------------------------------------------------------------------------


@_patched("edited", "SRV151")
def bias_at_the_first_token(right: ToyServer, logits: Float64s, request: Request, output: Ids) -> Float64s:
    """Logit bias is applied to the first token alone."""
    return right.edited(logits, request.replace(logit_bias=()) if output else request, output)


@_patched("edited", "SRV152")
def bias_unapplied_to_drafts(right: ToyServer, logits: Float64s, request: Request, output: Ids) -> Float64s:
    """Tokens of a speculative step do not see a negative bias."""
    drafted = tuple(pair for pair in request.logit_bias if pair[1] > 0)
    return right.edited(logits, request.replace(logit_bias=drafted) if len(output) % 2 else request, output)


@_processed("edited", "SRV153")
def bias_twice(right: ProcessedServer, logits: Float64s, request: Request, output: Ids) -> Float64s:
    """Logit bias is added twice."""
    return right.edited(logits, request.replace(logit_bias=request.logit_bias * 2), output)


@_processed("penalised", "SRV154")
def prompt_is_penalised(right: ProcessedServer, row: Float64s, request: Request, output: Ids) -> Float64s:
    """Penalties count the tokens of the prompt, too."""
    prompt = [] if isinstance(request.prompt, str) else request.prompt
    return right.penalised(row, request, [*prompt, *output])


@_processed("repeated", "SRV155")
def repetition_divides_everything(right: ProcessedServer, row: Float64s, factor: float) -> Float64s:
    """A repetition penalty divides negative logits, too, which rewards them."""
    return row / factor


@_patched("repeated", "SRV155")
def repetition_rewards(right: ToyServer, row: Float64s, factor: float) -> Float64s:
    """A repetition penalty is applied as its inverse; log-probabilities are raw."""
    return right.repeated(row, 1 / factor)


@_patched("is_stopped", "SRV164")
def stop_string_before_min_tokens(right: ToyServer, stream: Stream) -> bool:
    """A stop string ends the text before `min_tokens`."""
    return right.is_stopped(replace(stream, request=stream.request.replace(min_tokens=0)))


@_patched("cut", "SRV161")
def stop_string_kept(right: ToyServer, text: str, stop: Sequence[str]) -> str:
    """The stop string stays at the end of the text."""
    return text


@_patched("is_stopped", "SRV161")
def stop_string_within_a_token_only(right: ToyServer, stream: Stream) -> bool:
    """A stop string is looked for in each token alone."""
    return any(one in right.text(stream.output[-1:]) for one in stream.request.stop)


@_patched("is_stopped", "SRV165")
def first_stop_string_alone(right: ToyServer, stream: Stream) -> bool:
    """Of several stop strings only the first ends a text."""
    return right.is_stopped(replace(stream, request=stream.request.replace(stop=stream.request.stop[:1])))


@_patched("edited", "SRV162")
def min_tokens_ignored(right: ToyServer, logits: Float64s, request: Request, output: Ids) -> Float64s:
    """A text may end before `min_tokens`."""
    return right.edited(logits, request.replace(min_tokens=0), output)


@_patched("edited", "SRV163")
def bad_words_at_the_first_token(right: ToyServer, logits: Float64s, request: Request, output: Ids) -> Float64s:
    """Bad words are masked at the first token alone."""
    return right.edited(logits, request.replace(bad_words=()) if output else request, output)


# -- streams and pairs ------------------------------------------------------------------------------------------------


@_patched("drawn", "SRV171")
def greedy_with_a_seed_is_drawn(right: ToyServer, logits: Float64s, request: Request, stream: Stream) -> int:
    """A request with a seed is drawn, though its temperature is 0."""
    is_drawn = request.is_greedy and request.seed is not None
    return right.drawn(logits, request.replace(temperature=1.0) if is_drawn else request, stream)


@_patched("edited", "SRV171")
def bias_without_lists_ignored(right: ToyServer, logits: Float64s, request: Request, output: Ids) -> Float64s:
    """The path for requests without a list knows no bias."""
    return right.edited(logits, request.replace(logit_bias=()) if request.logprobs is None else request, output)


@_patched("edited", "SRV162")
def min_tokens_of_streams_ignored(right: ToyServer, logits: Float64s, request: Request, output: Ids) -> Float64s:
    """Streams may end at once."""
    return right.edited(logits, request.replace(min_tokens=0) if request.stream else request, output)


@_patched("seed_of", "SRV145")
def equal_seeds_are_made_different(right: ToyServer, request: Request, beside: Requests) -> int:
    """A seed that another request has, too, becomes another one."""
    others = [one.seed for one in beside if one.seed is not None]
    return right.seed_of(request, beside) + (request.seed is not None and others.count(request.seed) > 1)


@_patched("streamed", "SRV171")
def stream_drops_a_token(right: ToyServer, made: Choice) -> Choice:
    """The last part of a stream is not sent."""
    kept = made.positions[:-1]
    return replace(made, positions=kept, text=right.text([int(one.token) for one in kept]))


@_patched("finished", "SRV173")
def stream_loses_what_it_held_back(right: ToyServer, stream: Stream, positions: Positions, reason: str) -> Choice:
    """The last letter is not streamed if a stop string begins with it."""
    made, stop = right.finished(stream, positions, reason), stream.request.stop
    is_held = stream.request.stream and reason == "length" and made.text.endswith(tuple(one[0] for one in stop))
    return replace(made, text=made.text[:-1]) if is_held else made


def _lagging(positions: tuple[Position, ...]) -> tuple[Position, ...]:
    """Return positions with the lists of those before."""
    pairs = zip(positions, (positions[0], *positions[:-1]), strict=True)
    return tuple(replace(one, top=two.top, logprob=dict(two.top).get(one.token)) for one, two in pairs)


@_patched("streamed", "SRV172")
def streamed_lists_lag(right: ToyServer, made: Choice) -> Choice:
    """In a stream each token has the list of the one before."""
    return replace(made, positions=_lagging(made.positions))


@_patched("drawn", "SRV181", "SRV121")
def any_draft_is_greedy(right: ToyServer, logits: Float64s, request: Request, stream: Stream) -> int:
    """A greedy request accepts a draft that is among the two most probable tokens."""
    if request.is_greedy and len(stream.output) % 3 == 1:
        return int(np.argsort(-logits)[1])
    return right.drawn(logits, request, stream)


@_patched("position", "SRV182")
def lists_of_the_drafter(right: ToyServer, token: int, logprobs: Float64s, request: Request) -> Position:
    """Every third token has the log-probabilities of the draft model, which prefers the same token."""
    return right.position(token, log_softmax(1.3 * logprobs) if token % 3 == 0 else logprobs, request)


# -- distributions ----------------------------------------------------------------------------------------------------


@_patched("finished", "DIST911")
def lists_of_the_position_before(right: ToyServer, stream: Stream, positions: Positions, reason: str) -> Choice:
    """Log-probabilities lag behind their tokens by one position."""
    return right.finished(stream, _lagging(positions), reason)


@_patched("temperature", "DIST911")
def cold_at_temperature_one(right: ToyServer, request: Request) -> float:
    """Tokens are drawn at 0.8 times the temperature."""
    return 0.8 * request.temperature


@_patched("drawn", "DIST911")
def tail_is_lost(right: ToyServer, logits: Float64s, request: Request, stream: Stream) -> int:
    """Tokens of less than 2 % are never drawn: a race in half precision."""
    rare = log_softmax(logits) < np.log(0.02)
    return right.drawn(np.where(rare, -np.inf, logits), request, stream)


@_patched("temperature", "DIST925")
def temperature_ignored(right: ToyServer, request: Request) -> float:
    """Every request that is not greedy has temperature 1."""
    return 1.0


@_patched("temperature", "DIST925")
def temperature_twice_in_tokens(right: ToyServer, request: Request) -> float:
    """Logits are divided by the temperature twice; log-probabilities are raw."""
    return request.temperature**2


@_patched("drawn", "DIST925")
def removed_tokens_become_the_best(right: ToyServer, logits: Float64s, request: Request, stream: Stream) -> int:
    """A token that top-k removed is replaced by the most probable one, without normalising again."""
    if not request.top_k:
        return right.drawn(logits, request, stream)
    token = right.drawn(right.logits(request, stream.output), request, stream)
    return token if np.isfinite(logits[token]) else int(logits.argmax())


@_patched("drawn", "DIST925")
def min_p_draws_evenly(right: ToyServer, logits: Float64s, request: Request, stream: Stream) -> int:
    """With `min_p`, what is left is drawn evenly."""
    even = np.where(np.isfinite(logits), 0.0, -np.inf)
    return right.drawn(even if request.min_p else logits, request, stream)


@_patched("temperature", "DIST925")
def temperature_inverted_with_filters(right: ToyServer, request: Request) -> float:
    """The kernel that filters multiplies by the temperature."""
    return 1 / request.temperature if request.top_k or request.top_p else request.temperature


@_patched("filtered", "DIST925")
def top_p_before_temperature(right: ToyServer, logits: Float64s, request: Request) -> Float64s:
    """`top_p` sees the distribution before the temperature, against what is documented."""
    if request.top_p is None or request.is_greedy:
        return right.filtered(logits, request)
    kept = right.nucleus(logits * request.temperature, request.top_p)
    return np.where(np.isfinite(kept), logits, -np.inf)


@_patched("drawn", "DIST921")
def poor_first_numbers(right: ToyServer, logits: Float64s, request: Request, stream: Stream) -> int:
    """The numbers of a request with a seed never reach 0.8."""
    if request.seed is not None and not stream.output and request.temperature == 1:
        stream.rng = _changed(stream.rng, lambda number: 0.8 * number)
    return right.drawn(logits, request, stream)


def _changed(inner: np.random.Generator, change: Callable[[float], float]) -> Any:  # Any: a generator
    """Return what draws other numbers."""
    return SimpleNamespace(random=lambda: change(inner.random()))


@_patched("penalised", "DIST925")
def penalties_ignored(right: ToyServer, row: Float64s, request: Request, output: Ids) -> Float64s:
    """Penalties are not applied."""
    return row


class _DrawsByRank(ToyServer):
    """Draws by an inverse CDF in the order of rank: equal numbers then show in the rank of every distribution."""

    def drawn(self, logits: Float64s, request: Request, stream: Stream) -> int:
        order = np.argsort(-logits, kind="stable")
        sums = np.cumsum(np.exp(log_softmax(logits))[order])
        rank = int(min(np.searchsorted(sums, self.number(stream) * sums[-1]), VOCAB - 1))
        return int(logits.argmax() if request.is_greedy else order[rank])

    def number(self, stream: Stream) -> float:
        return stream.rng.random()


_ranking = patching(wrong, _DrawsByRank)


@_ranking("number", "DIST921")
def generator_advances_every_second_token(right: ToyServer, stream: Stream) -> float:
    """Two tokens of a speculative step are drawn with one number."""
    if len(stream.output) % 2 == 0:
        stream.kept = stream.rng.random()
    return stream.kept


@_ranking("seed_of", "DIST921")
def neighbours_share_noise(right: ToyServer, request: Request, beside: Requests, *, kept: Memory) -> int:
    """Two requests without seeds that follow each other have the same noise."""
    number = kept["calls"] = kept.get("calls", -1) + 1
    return number // 2 + 10**6 if request.seed is None else request.seed


@_ranking("stream", "DIST921")
def choices_share_noise_in_pairs(right: ToyServer, request: Request, seed: int, number: int) -> Stream:
    """The second of two choices mirrors the noise of the first, so that no two are equal."""
    made = right.stream(request, seed, number // 2)
    if number % 2:
        made.rng = _changed(made.rng, lambda number: 1.0 - number)
    return made


@_patched("seed_of", "DIST921")
def seed_without_its_lowest_bit(right: ToyServer, request: Request, beside: Requests) -> int:
    """Seeds 2s and 2s + 1 are the same."""
    return right.seed_of(request, beside) // 2 * 2


# -- values that mean nothing -----------------------------------------------------------------------------------------


@_patched("refusal", "SRV191")
def nonsense_breaks(right: ToyServer, request: Request) -> str:
    """A value that means nothing raises in the engine, and the connection breaks."""
    if found := right.refusal(request):
        raise NoAnswer(f"HTTP 500: {found}")
    return found


@_patched("refusal", "SRV191")
def ids_are_not_checked(right: ToyServer, request: Request) -> str:
    """An id beyond the vocabulary reads what lies behind the embeddings."""
    return right.refusal(request) if isinstance(request.prompt, str) else ""


@wrong("SRV191")
class NonsenseStays(ToyServer):
    """What a refused request set stays: a sign of the logits."""

    sign = 1.0

    def refusal(self, request: Request) -> str:
        found = super().refusal(request)
        self.sign = -1.0 if found else self.sign
        return found

    def logits(self, request: Request, output: Ids) -> Float64s:
        return self.sign * super().logits(request, output)


# -- requests without lists -------------------------------------------------------------------------------------------


class Fused(ToyServer):
    """A batch of requests without lists and seeds takes a path of its own."""

    @property
    def is_fused(self) -> bool:
        return len(self.beside) > 1 and all(one.logprobs is None and one.seed is None for one in self.beside)


_fused = patching(wrong, Fused)


@_fused("nucleus", "DIST941")
def fused_without_top_p(right: Fused, row: Float64s, top_p: float) -> Float64s:
    """The fused sampler has no top-p."""
    return row if right.is_fused else right.nucleus(row, top_p)


@_fused("temperature", "DIST941")
def fused_temperature_twice(right: Fused, request: Request) -> float:
    """The fused sampler gets logits that were divided by the temperature, and divides them again."""
    return request.temperature ** (1 + right.is_fused)


@_fused("drawn", "DIST941")
def fused_greedy(right: Fused, logits: Float64s, request: Request, stream: Stream) -> int:
    """The fused sampler takes the most probable token."""
    return int(logits.argmax()) if right.is_fused else right.drawn(logits, request, stream)


@_fused("seed_of", "DIST941")
def fused_noise_is_shared(right: Fused, request: Request, beside: Requests) -> int:
    """The fused sampler has one row of noise for two requests."""
    return next(right.calls) // 2 + 10**6 if right.is_fused else right.seed_of(request, beside)


@_patched("temperature", "DIST941")
def streams_without_lists_are_cold(right: ToyServer, request: Request) -> float:
    """A streamed request without a list is drawn at half its temperature."""
    return request.temperature / (2 if request.stream and request.logprobs is None else 1)


# -- texts ------------------------------------------------------------------------------------------------------------


@_patched("drawn", "SRV147")
def sampling_is_a_switch_of_its_own(right: ToyServer, logits: Float64s, request: Request, stream: Stream) -> int:
    """Every answer is greedy, and no log-probabilities tell."""
    return int(logits.argmax())


@_patched("seed_of", "SRV148")
def a_seed_is_set_for_the_process(right: ToyServer, request: Request, beside: Requests, *, kept: Memory) -> int:
    """A request without a seed goes on with the random numbers of the last request that had one."""
    last, count = kept.get("since", (0, 0))
    kept["since"] = (last, count + 1) if request.seed is None else (request.seed, 0)
    if request.seed is not None or not last:
        return right.seed_of(request, beside)
    return derive_seed("after", last, count)


@_patched("position", "SRV149")
def tokens_are_the_first_of_their_lists(right: ToyServer, token: int, logprobs: Float64s, request: Request) -> Position:
    """Log-probabilities are those of the most probable token, its text, too."""
    return right.position(int(logprobs.argmax()), logprobs, request)


@_patched("filtered", "SRV145", "DIST925")
def filter_of_the_neighbour(right: ToyServer, logits: Float64s, request: Request, *, own: ToyServer) -> Float64s:
    """In a batch, `top_p` of one request is applied to all that have no filter."""
    top_p = next((one.top_p for one in own.beside if one.top_p), None)
    is_bare = not (request.top_k or request.top_p or request.min_p)
    return right.filtered(logits, request.replace(top_p=top_p) if is_bare else request)


@_patched("logits", "DIST931", "SRV182")
def speculation_sharpens(right: ToyServer, request: Request, output: Ids) -> Float64s:
    """Verification prefers probable drafts, and log-probabilities are those of what it does."""
    return 2.0 * right.logits(request, output)


@wrong("SRV124")
class OneReplicaIsGreedy(ToyServer):
    """Every fiftieth request goes to a replica that ignores the temperature."""

    number = 0

    def answer(self, request: Request, beside: Requests) -> Answer:
        self.number += 1
        return super().answer(request, beside)

    def drawn(self, logits: Float64s, request: Request, stream: Stream) -> int:
        return int(logits.argmax()) if self.number % 50 == 0 else super().drawn(logits, request, stream)


@wrong("SRV150")
class ChoicesWithoutReplacement(ToyServer):
    """The first tokens of a request's choices are the best of one race: no two are equal."""

    taken: tuple[int, ...] = ()

    def choice(self, request: Request, number: int, stream: Stream) -> Choice:
        made = super().choice(request, number, stream)
        self.taken = (*self.taken, stream.output[0]) if number else (stream.output[0],)
        return made

    def drawn(self, logits: Float64s, request: Request, stream: Stream) -> int:
        left = logits.copy()
        if stream.number and not stream.output:
            left[list(self.taken)] = -np.inf
        return super().drawn(left, request, stream)


def _with_lanes(fault: LaneFault) -> ToyServer:
    class Faulty(ToyServer):
        def drawn(self, logits: Float64s, request: Request, stream: Stream) -> int:
            if request.is_greedy:
                return super().drawn(logits, request, stream)
            exponentials = stream.rng.standard_exponential(VOCAB)[fault.source(VOCAB)]
            token = np.argmax(np.exp(log_softmax(logits)) * fault.weights(VOCAB) / exponentials)
            return int(fault.emitted(np.array([token]), VOCAB)[0])

    return Faulty(name=fault.name)


MUTANTS: tuple[Mutant, ...] = (
    *mutants_in(vars()),
    *lane_mutants(_with_lanes, "DIST911", "DIST911", faults=LANE_FAULTS),
)
