"""Wrong servers: one step of the toy server replaced, each caught by a check of the server contract."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from fairdraw._core.seeds import derive_seed
from fairdraw._mutants._lanes import LANE_FAULTS, LaneFault, lane_mutants
from fairdraw._mutants._mutant import Mutant, mutant_as, mutants_in, name_of
from fairdraw._mutants._toy_server import VOCAB, ProcessedServer, Stream, ToyServer, log_softmax

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairdraw._mutants._toy_server import Floats
    from fairdraw.protocols import Answer, Choice, GenerationRequest, Position


def right() -> ToyServer:
    """The toy server with nothing wrong."""
    return ToyServer()


def _fresh(faulty: type[ToyServer]) -> ToyServer:
    """Return a server under the name of its class."""
    return faulty(name=name_of(faulty))


wrong = partial(mutant_as, _fresh)


# -- single answers ---------------------------------------------------------------------------------------------------


@wrong("SRV101")
class OneTokenTooMany(ToyServer):
    """A speculative step emits a token behind `max_tokens`."""

    def most_tokens(self, request: GenerationRequest) -> int:
        return request.max_tokens + 1


@wrong("SRV101")
class EndCountsAsLength(ToyServer):
    """Every finish reason is `length`."""

    def finished(self, stream: Stream, positions: tuple[Position, ...], reason: str) -> Choice:
        return super().finished(stream, positions, "length")


@wrong("SRV102")
class LogitsAsLogProbabilities(ToyServer):
    """It returns logits."""

    def position(self, token: int, logprobs: Floats, request: GenerationRequest) -> Position:
        return super().position(token, logprobs + 4.0, request)


@wrong("SRV103")
class LogProbabilityOfAnotherToken(ToyServer):
    """The sampled token has the log-probability of the most probable one."""

    def position(self, token: int, logprobs: Floats, request: GenerationRequest) -> Position:
        return replace(super().position(token, logprobs, request), logprob=float(logprobs.max()))


@wrong("SRV103")
class SampledTokenMissing(ToyServer):
    """A token outside of the list has no log-probability."""

    def position(self, token: int, logprobs: Floats, request: GenerationRequest) -> Position:
        found = super().position(token, logprobs, request)
        is_rare = token not in np.argsort(-logprobs)[:5]
        return replace(found, logprob=None, top=found.top[:5]) if is_rare else found


@wrong("SRV104")
class OneListPerStep(ToyServer):
    """Tokens that were drafted have no list."""

    def finished(self, stream: Stream, positions: tuple[Position, ...], reason: str) -> Choice:
        return replace(super().finished(stream, positions, reason), positions=positions[::2])


@wrong("SRV105")
class UnsortedLists(ToyServer):
    """Lists are in the order of ids."""

    def listed(self, token: int, logprobs: Floats, request: GenerationRequest) -> list[int]:
        return sorted(super().listed(token, logprobs, request))


@wrong("SRV105")
class SampledTokenTwice(ToyServer):
    """The sampled token is put before the list, although it is listed."""

    def listed(self, token: int, logprobs: Floats, request: GenerationRequest) -> list[int]:
        return [token, *super().listed(token, logprobs, request)]


@wrong("SRV106")
class RoundedLogProbabilities(ToyServer):
    """Log-probabilities have one decimal."""

    def position(self, token: int, logprobs: Floats, request: GenerationRequest) -> Position:
        return super().position(token, np.round(logprobs, 1), request)


@wrong("SRV107")
class TemperatureTwice(ProcessedServer):
    """Logits are divided by the temperature twice, and say so."""

    def temperature(self, request: GenerationRequest) -> float:
        return request.temperature**2


@wrong("SRV108")
class NormalisedOverTheList(ToyServer):
    """Log-probabilities are normalised over what is returned."""

    def position(self, token: int, logprobs: Floats, request: GenerationRequest) -> Position:
        order = np.argsort(-logprobs)[: request.logprobs]
        return super().position(token, logprobs - np.log(np.exp(logprobs[order]).sum()), request)


# -- tokens -----------------------------------------------------------------------------------------------------------


@wrong("SRV121", "SRV122")
class GreedyIsOnlyCold(ToyServer):
    """Greedy requests draw at a temperature of 0.2."""

    def drawn(self, logits: Floats, request: GenerationRequest, stream: Stream) -> int:
        if request.is_greedy:
            return super().drawn(logits / 0.2, request.replace(temperature=1.0), stream)
        return super().drawn(logits, request, stream)


@wrong("SRV122")
class LogitsOfAnEarlierRequest(ToyServer):
    """A cache that is not cleared changes the logits of every second request."""

    def answer(self, request: GenerationRequest, beside: Sequence[GenerationRequest]) -> Answer:
        self.is_stale = next(self.calls) % 3 == 0
        return super().answer(request, beside)

    def logits(self, request: GenerationRequest, output: Sequence[int]) -> Floats:
        row = super().logits(request, output)
        return np.roll(row, 1) if self.is_stale and len(output) == 2 else row


@wrong("SRV123", "DIST911")
class SilentGreedy(ToyServer):
    """Every request is greedy."""

    def drawn(self, logits: Floats, request: GenerationRequest, stream: Stream) -> int:
        return int(logits.argmax())


@wrong("SRV131", "DIST925")
class TopKPlusOne(ToyServer):
    """`top_k` leaves one token too many."""

    def filtered(self, logits: Floats, request: GenerationRequest) -> Floats:
        return super().filtered(logits, request.replace(top_k=request.top_k + 1 if request.top_k else None))


@wrong("SRV131")
class TopKIgnoredInSteps(ProcessedServer):
    """Every second token is drawn without `top_k`, and its list says so."""

    def step(self, request: GenerationRequest, stream: Stream) -> tuple[int, Position]:
        is_drafted = len(stream.output) % 2 == 1
        return super().step(request.replace(top_k=None) if is_drafted else request, stream)


@wrong("SRV132", "DIST925")
class TopPIgnored(ToyServer):
    """`top_p` is not applied."""

    def nucleus(self, row: Floats, top_p: float) -> Floats:
        return row


@wrong("DIST925")
class TopPWithoutItsEdge(ToyServer):
    """The token that reaches `top_p` is dropped."""

    def nucleus(self, row: Floats, top_p: float) -> Floats:
        kept = super().nucleus(row, top_p)
        kept[np.where(np.isfinite(kept), kept, np.inf).argmin()] = -np.inf
        return kept if np.isfinite(kept).any() else row


@wrong("SRV133", "DIST925")
class MinPIsAbsolute(ToyServer):
    """`min_p` is compared with the probabilities themselves."""

    def filtered(self, logits: Floats, request: GenerationRequest) -> Floats:
        if not request.min_p:
            return super().filtered(logits, request)
        row = np.where(log_softmax(logits) >= np.log(request.min_p / 20), logits, -np.inf)
        return row if np.isfinite(row).any() else logits


@wrong("SRV141")
class SeedIgnored(ToyServer):
    """Seeds are not read."""

    def seed_of(self, request: GenerationRequest, beside: Sequence[GenerationRequest]) -> int:
        return super().seed_of(request.replace(seed=None), beside)


@wrong("SRV142")
class SeedOfEightBits(ToyServer):
    """Seeds are cut to their lowest 8 bits."""

    def seed_of(self, request: GenerationRequest, beside: Sequence[GenerationRequest]) -> int:
        return super().seed_of(request, beside) % 256


@wrong("SRV143", "DIST921")
class SeedZeroForAll(ToyServer):
    """A request without a seed has seed 0."""

    def seed_of(self, request: GenerationRequest, beside: Sequence[GenerationRequest]) -> int:
        return request.seed or 0


@wrong("SRV143")
class EqualRequestsShareAnAnswer(ToyServer):
    """Requests that look alike and are on their way together are answered once."""

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Answer]:
        known: dict[GenerationRequest, Answer] = {}
        return [known.setdefault(one, self.answer(one, requests)) for one in requests]


@wrong("SRV144", "DIST921")
class EqualChoices(ToyServer):
    """The state of the generator is copied for every choice."""

    def stream(self, request: GenerationRequest, seed: int, number: int) -> Stream:
        return super().stream(request, seed, 0)


@wrong("SRV145")
class SeedIgnoredBesideUnseeded(ToyServer):
    """One request without a seed, and the whole batch is drawn with the generator of the batch."""

    def seed_of(self, request: GenerationRequest, beside: Sequence[GenerationRequest]) -> int:
        is_mixed = any(one.seed is None for one in beside)
        return super().seed_of(request.replace(seed=None) if is_mixed else request, beside)


@wrong("DIST925", "SRV145")
class TemperatureOfTheNeighbour(ToyServer):
    """In a batch, each request has the temperature of the first one."""

    def answer(self, request: GenerationRequest, beside: Sequence[GenerationRequest]) -> Answer:
        self.first = beside[-1].temperature
        return super().answer(request, beside)

    def temperature(self, request: GenerationRequest) -> float:
        return self.first or request.temperature


@wrong("SRV145")
class StopStringOfTheNeighbour(ToyServer):
    """The stop strings of a batch are looked for in every text."""

    def answer(self, request: GenerationRequest, beside: Sequence[GenerationRequest]) -> Answer:
        self.stops = tuple(sorted({stop for one in beside for stop in one.stop}))
        return super().answer(request, beside)

    def is_stopped(self, stream: Stream) -> bool:
        return any(one in self.text(stream.output) for one in self.stops)


@wrong("SRV146")
class AnotherPathWithLists(ToyServer):
    """Requests with log-probabilities have a generator of their own."""

    def stream(self, request: GenerationRequest, seed: int, number: int) -> Stream:
        return super().stream(request, seed + (request.logprobs is None), number)


# -- edits and ends ---------------------------------------------------------------------------------------------------


@wrong("SRV151")
class BiasAtTheFirstToken(ToyServer):
    """Logit bias is applied to the first token alone."""

    def edited(self, logits: Floats, request: GenerationRequest, output: Sequence[int]) -> Floats:
        return super().edited(logits, request.replace(logit_bias=()) if output else request, output)


@wrong("SRV152")
class BiasUnappliedToDrafts(ToyServer):
    """Tokens of a speculative step do not see a negative bias."""

    def edited(self, logits: Floats, request: GenerationRequest, output: Sequence[int]) -> Floats:
        drafted = tuple(pair for pair in request.logit_bias if pair[1] > 0)
        return super().edited(logits, request.replace(logit_bias=drafted) if len(output) % 2 else request, output)


@wrong("SRV153")
class BiasTwice(ProcessedServer):
    """Logit bias is added twice."""

    def edited(self, logits: Floats, request: GenerationRequest, output: Sequence[int]) -> Floats:
        return super().edited(logits, request.replace(logit_bias=request.logit_bias * 2), output)


@wrong("SRV154")
class PromptIsPenalised(ProcessedServer):
    """Penalties count the tokens of the prompt, too."""

    def penalised(self, row: Floats, request: GenerationRequest, output: Sequence[int]) -> Floats:
        prompt = [] if isinstance(request.prompt, str) else request.prompt
        return super().penalised(row, request, [*prompt, *output])


@wrong("SRV155")
class RepetitionDividesEverything(ProcessedServer):
    """A repetition penalty divides negative logits, too, which rewards them."""

    def repeated(self, row: Floats, factor: float) -> Floats:
        return row / factor


@wrong("SRV155")
class RepetitionRewards(ToyServer):
    """A repetition penalty is applied as its inverse; log-probabilities are raw."""

    def repeated(self, row: Floats, factor: float) -> Floats:
        return super().repeated(row, 1 / factor)


@wrong("SRV164")
class StopStringBeforeMinTokens(ToyServer):
    """A stop string ends the text before `min_tokens`."""

    def is_stopped(self, stream: Stream) -> bool:
        stream = replace(stream, request=stream.request.replace(min_tokens=0))
        return super().is_stopped(stream)


@wrong("SRV161")
class StopStringKept(ToyServer):
    """The stop string stays at the end of the text."""

    def cut(self, text: str, stop: Sequence[str]) -> str:
        return text


@wrong("SRV161")
class StopStringWithinATokenOnly(ToyServer):
    """A stop string is looked for in each token alone."""

    def is_stopped(self, stream: Stream) -> bool:
        return any(one in self.text(stream.output[-1:]) for one in stream.request.stop)


@wrong("SRV165")
class FirstStopStringAlone(ToyServer):
    """Of several stop strings only the first ends a text."""

    def is_stopped(self, stream: Stream) -> bool:
        stream = replace(stream, request=stream.request.replace(stop=stream.request.stop[:1]))
        return super().is_stopped(stream)


@wrong("SRV162")
class MinTokensIgnored(ToyServer):
    """A text may end before `min_tokens`."""

    def edited(self, logits: Floats, request: GenerationRequest, output: Sequence[int]) -> Floats:
        return super().edited(logits, request.replace(min_tokens=0), output)


@wrong("SRV163")
class BadWordsAtTheFirstToken(ToyServer):
    """Bad words are masked at the first token alone."""

    def edited(self, logits: Floats, request: GenerationRequest, output: Sequence[int]) -> Floats:
        return super().edited(logits, request.replace(bad_words=()) if output else request, output)


# -- streams and pairs ------------------------------------------------------------------------------------------------


@wrong("SRV171")
class StreamDropsAToken(ToyServer):
    """The last part of a stream is not sent."""

    def streamed(self, made: Choice) -> Choice:
        return replace(made, positions=made.positions[:-1], text=self.text(_ids(made)[:-1]))


@wrong("SRV173")
class StreamLosesWhatItHeldBack(ToyServer):
    """The last letter is not streamed if a stop string begins with it."""

    def finished(self, stream: Stream, positions: tuple[Position, ...], reason: str) -> Choice:
        made, stop = super().finished(stream, positions, reason), stream.request.stop
        is_held = stream.request.stream and reason == "length" and made.text.endswith(tuple(one[0] for one in stop))
        return replace(made, text=made.text[:-1]) if is_held else made


@wrong("SRV172")
class StreamedListsLag(ToyServer):
    """In a stream each token has the list of the one before."""

    def streamed(self, made: Choice) -> Choice:
        before = [made.positions[0], *made.positions[:-1]]
        positions = [replace(one, top=two.top) for one, two in zip(made.positions, before, strict=True)]
        return replace(made, positions=tuple(positions))


def _ids(made: Choice) -> list[int]:
    return [int(position.token) for position in made.positions]


@wrong("SRV181", "SRV121")
class AnyDraftIsGreedy(ToyServer):
    """A greedy request accepts a draft that is among the two most probable tokens."""

    def drawn(self, logits: Floats, request: GenerationRequest, stream: Stream) -> int:
        if request.is_greedy and len(stream.output) % 3 == 1:
            return int(np.argsort(-logits)[1])
        return super().drawn(logits, request, stream)


@wrong("SRV182")
class ListsOfTheDrafter(ToyServer):
    """Every third token has the log-probabilities of the draft model, which prefers the same token."""

    def position(self, token: int, logprobs: Floats, request: GenerationRequest) -> Position:
        return super().position(token, log_softmax(1.3 * logprobs) if token % 3 == 0 else logprobs, request)


# -- distributions ----------------------------------------------------------------------------------------------------


@wrong("DIST911")
class ListsOfThePositionBefore(ToyServer):
    """Log-probabilities lag behind their tokens by one position."""

    def finished(self, stream: Stream, positions: tuple[Position, ...], reason: str) -> Choice:
        before = [positions[0], *positions[:-1]]
        moved = (self._with_list(one, two) for one, two in zip(positions, before, strict=True))
        return super().finished(stream, tuple(moved), reason)

    def _with_list(self, one: Position, two: Position) -> Position:
        return replace(one, top=two.top, logprob=dict(two.top).get(one.token))


@wrong("DIST911")
class ColdAtTemperatureOne(ToyServer):
    """Tokens are drawn at 0.8 times the temperature."""

    def temperature(self, request: GenerationRequest) -> float:
        return 0.8 * request.temperature


@wrong("DIST911")
class TailIsLost(ToyServer):
    """Tokens of less than 2 % are never drawn: a race in half precision."""

    def drawn(self, logits: Floats, request: GenerationRequest, stream: Stream) -> int:
        rare = log_softmax(logits) < np.log(0.02)
        return super().drawn(np.where(rare, -np.inf, logits), request, stream)


@wrong("DIST925")
class TemperatureIgnored(ToyServer):
    """Every request that is not greedy has temperature 1."""

    def temperature(self, request: GenerationRequest) -> float:
        return 1.0


@wrong("DIST925")
class TemperatureTwiceInTokens(ToyServer):
    """Logits are divided by the temperature twice; log-probabilities are raw."""

    def temperature(self, request: GenerationRequest) -> float:
        return request.temperature**2


@wrong("DIST925")
class RemovedTokensBecomeTheBest(ToyServer):
    """A token that top-k removed is replaced by the most probable one, without normalising again."""

    def drawn(self, logits: Floats, request: GenerationRequest, stream: Stream) -> int:
        if not request.top_k:
            return super().drawn(logits, request, stream)
        token = super().drawn(self.logits(request, stream.output), request, stream)
        return token if np.isfinite(logits[token]) else int(logits.argmax())


@wrong("DIST925")
class MinPDrawsEvenly(ToyServer):
    """With `min_p`, what is left is drawn evenly."""

    def drawn(self, logits: Floats, request: GenerationRequest, stream: Stream) -> int:
        even = np.where(np.isfinite(logits), 0.0, -np.inf)
        return super().drawn(even if request.min_p else logits, request, stream)


@wrong("DIST925")
class TemperatureInvertedWithFilters(ToyServer):
    """The kernel that filters multiplies by the temperature."""

    def temperature(self, request: GenerationRequest) -> float:
        return 1 / request.temperature if request.top_k or request.top_p else request.temperature


@wrong("DIST925")
class TopPBeforeTemperature(ToyServer):
    """`top_p` sees the distribution before the temperature, against what is documented."""

    def filtered(self, logits: Floats, request: GenerationRequest) -> Floats:
        if request.top_p is None or request.is_greedy:
            return super().filtered(logits, request)
        kept = self.nucleus(logits * request.temperature, request.top_p)
        return np.where(np.isfinite(kept), logits, -np.inf)


@wrong("DIST921")
class PoorFirstNumbers(ToyServer):
    """The numbers of a request with a seed never reach 0.8."""

    def drawn(self, logits: Floats, request: GenerationRequest, stream: Stream) -> int:
        if request.seed is not None and not stream.output and request.temperature == 1:
            stream.rng = _Halved(stream.rng)  # type: ignore[assignment]
        return super().drawn(logits, request, stream)


class _Halved:
    """A generator whose numbers lie below 0.8."""

    def __init__(self, inner: np.random.Generator) -> None:
        self._inner = inner

    def random(self) -> float:
        return 0.8 * self._inner.random()


@wrong("DIST925")
class PenaltiesIgnored(ToyServer):
    """Penalties are not applied."""

    def penalised(self, row: Floats, request: GenerationRequest, output: Sequence[int]) -> Floats:
        return row


@wrong("DIST921")
class GeneratorAdvancesEverySecondToken(ToyServer):
    """Two tokens of a speculative step are drawn with one number."""

    def drawn(self, logits: Floats, request: GenerationRequest, stream: Stream) -> int:
        if len(stream.output) % 2 == 0:
            stream.kept = stream.rng.random()
        sums = np.cumsum(np.exp(log_softmax(np.sort(logits)[::-1])))
        rank = int(min(np.searchsorted(sums, stream.kept * sums[-1]), VOCAB - 1))
        return int(logits.argmax() if request.is_greedy else np.argsort(-logits, kind="stable")[rank])


@wrong("DIST921")
class NeighboursShareNoise(ToyServer):
    """Two requests without seeds that follow each other have the same noise."""

    def seed_of(self, request: GenerationRequest, beside: Sequence[GenerationRequest]) -> int:
        fresh = next(self.calls) // 2 + 10**6
        return fresh if request.seed is None else request.seed

    def drawn(self, logits: Floats, request: GenerationRequest, stream: Stream) -> int:
        return _by_rank(logits, request, stream)


def _by_rank(logits: Floats, request: GenerationRequest, stream: Stream) -> int:
    """A token by an inverse CDF in the order of rank: equal numbers then show in the rank of every distribution."""
    order = np.argsort(-logits, kind="stable")
    sums = np.cumsum(np.exp(log_softmax(logits))[order])
    rank = int(min(np.searchsorted(sums, stream.rng.random() * sums[-1]), VOCAB - 1))
    return int(logits.argmax() if request.is_greedy else order[rank])


@wrong("DIST921")
class ChoicesShareNoiseInPairs(ToyServer):
    """The second of two choices mirrors the noise of the first, so that no two are equal."""

    def stream(self, request: GenerationRequest, seed: int, number: int) -> Stream:
        made = super().stream(request, seed, number // 2)
        if number % 2:
            made.rng = _Mirrored(made.rng)  # type: ignore[assignment]
        return made

    def drawn(self, logits: Floats, request: GenerationRequest, stream: Stream) -> int:
        return _by_rank(logits, request, stream)


class _Mirrored:
    """A generator whose numbers are one minus those of another."""

    def __init__(self, inner: np.random.Generator) -> None:
        self._inner = inner

    def random(self) -> float:
        return 1.0 - self._inner.random()


@wrong("DIST921")
class SeedWithoutItsLowestBit(ToyServer):
    """Seeds 2s and 2s + 1 are the same."""

    def seed_of(self, request: GenerationRequest, beside: Sequence[GenerationRequest]) -> int:
        return super().seed_of(request, beside) // 2 * 2


# -- texts ------------------------------------------------------------------------------------------------------------


@wrong("SRV147")
class SamplingIsASwitchOfItsOwn(ToyServer):
    """Every answer is greedy, and no log-probabilities tell."""

    def drawn(self, logits: Floats, request: GenerationRequest, stream: Stream) -> int:
        return int(logits.argmax())


@wrong("SRV148")
class ASeedIsSetForTheProcess(ToyServer):
    """A request without a seed goes on with the random numbers of the last request that had one."""

    since: tuple[int, int] = (0, 0)

    def seed_of(self, request: GenerationRequest, beside: Sequence[GenerationRequest]) -> int:
        last, count = self.since
        self.since = (last, count + 1) if request.seed is None else (request.seed, 0)
        if request.seed is not None:
            return request.seed
        return derive_seed("after", last, count) if last else super().seed_of(request, beside)


@wrong("SRV149")
class TokensAreTheFirstOfTheirLists(ToyServer):
    """Log-probabilities are those of the most probable token, its text, too."""

    def position(self, token: int, logprobs: Floats, request: GenerationRequest) -> Position:
        return super().position(int(logprobs.argmax()), logprobs, request)


@wrong("SRV145", "DIST925")
class FilterOfTheNeighbour(ToyServer):
    """In a batch, `top_p` of one request is applied to all that have no filter."""

    def answer(self, request: GenerationRequest, beside: Sequence[GenerationRequest]) -> Answer:
        self.top_p = next((one.top_p for one in beside if one.top_p), None)
        return super().answer(request, beside)

    def filtered(self, logits: Floats, request: GenerationRequest) -> Floats:
        is_bare = not (request.top_k or request.top_p or request.min_p)
        return super().filtered(logits, request.replace(top_p=self.top_p) if is_bare else request)


@wrong("DIST931", "SRV182")
class SpeculationSharpens(ToyServer):
    """Verification prefers probable drafts, and log-probabilities are those of what it does."""

    def logits(self, request: GenerationRequest, output: Sequence[int]) -> Floats:
        return 2.0 * super().logits(request, output)


@wrong("SRV124")
class OneReplicaIsGreedy(ToyServer):
    """Every fiftieth request goes to a replica that ignores the temperature."""

    number = 0

    def answer(self, request: GenerationRequest, beside: Sequence[GenerationRequest]) -> Answer:
        self.number += 1
        return super().answer(request, beside)

    def drawn(self, logits: Floats, request: GenerationRequest, stream: Stream) -> int:
        return int(logits.argmax()) if self.number % 50 == 0 else super().drawn(logits, request, stream)


@wrong("SRV150")
class ChoicesWithoutReplacement(ToyServer):
    """The first tokens of a request's choices are the best of one race: no two are equal."""

    taken: tuple[int, ...] = ()

    def choice(self, request: GenerationRequest, number: int, stream: Stream) -> Choice:
        made = super().choice(request, number, stream)
        self.taken = (*self.taken, stream.output[0]) if number else (stream.output[0],)
        return made

    def drawn(self, logits: Floats, request: GenerationRequest, stream: Stream) -> int:
        left = logits.copy()
        if stream.number and not stream.output:
            left[list(self.taken)] = -np.inf
        return super().drawn(left, request, stream)


def _with_lanes(fault: LaneFault) -> ToyServer:
    class Faulty(ToyServer):
        def drawn(self, logits: Floats, request: GenerationRequest, stream: Stream) -> int:
            if request.is_greedy:
                return super().drawn(logits, request, stream)
            exponentials = stream.rng.standard_exponential(VOCAB)[fault.source(VOCAB)]
            token = np.argmax(np.exp(log_softmax(logits)) * fault.weights(VOCAB) / exponentials)
            return int(fault.emitted(np.array([token]), VOCAB)[0])

    return Faulty(name=fault.name)


MUTANTS: tuple[Mutant, ...] = (
    *mutants_in(sys.modules[__name__]),
    *lane_mutants(_with_lanes, "DIST911", "DIST911", faults=LANE_FAULTS),
)
