"""The contracts: batches, noise, capabilities, protocols, and how a sampler is called and checked; one module each.

Importing this package is free: torch is needed only once a batch exists.
"""

from __future__ import annotations

from fairdraw._core.arrays import ArrayNamespace as ArrayNamespace
from fairdraw._core.arrays import with_arrays as with_arrays
from fairdraw._core.capabilities import AnySampler as AnySampler
from fairdraw._core.capabilities import Capabilities as Capabilities
from fairdraw._core.capabilities import Capability as Capability
from fairdraw._core.capabilities import KnownDefect as KnownDefect
from fairdraw._core.noise import Drafted as Drafted
from fairdraw._core.noise import SeededNoise as SeededNoise
from fairdraw._core.policies import policy_of as policy_of
from fairdraw._core.rounding import Rounding as Rounding
from fairdraw._core.rounding import rounding_of as rounding_of
from fairdraw._core.rows import AddedRow as AddedRow
from fairdraw._core.rows import Move as Move
from fairdraw._core.rows import MovedRow as MovedRow
from fairdraw._core.rows import RowChanges as RowChanges
from fairdraw._core.rows import SeedParams as SeedParams
from fairdraw._core.rows import SyncFunction as SyncFunction
from fairdraw._core.rows import all_added as all_added
from fairdraw._core.rows import follows_rows as follows_rows
from fairdraw._core.switches import MAX_SPEC_LEN as MAX_SPEC_LEN
from fairdraw._core.switches import SizeSwitches as SizeSwitches
from fairdraw._core.switches import switch_sides as switch_sides
from fairdraw.contracts._filters import LOGIT_FILTERS as LOGIT_FILTERS
from fairdraw.contracts._filters import FilterBatch as FilterBatch
from fairdraw.contracts._filters import FilterChain as FilterChain
from fairdraw.contracts._filters import FilterParams as FilterParams
from fairdraw.contracts._filters import FilterResult as FilterResult
from fairdraw.contracts._filters import FunctionLogitsFilterer as FunctionLogitsFilterer
from fairdraw.contracts._filters import LogitFilter as LogitFilter
from fairdraw.contracts._filters import LogitsFilterer as LogitsFilterer
from fairdraw.contracts._filters import capability_of as capability_of
from fairdraw.contracts._filters import logits_filterer as logits_filterer
from fairdraw.contracts._grammar import BITS_PER_WORD as BITS_PER_WORD
from fairdraw.contracts._grammar import BitmaskBatch as BitmaskBatch
from fairdraw.contracts._grammar import FunctionGrammarMasker as FunctionGrammarMasker
from fairdraw.contracts._grammar import GrammarBatch as GrammarBatch
from fairdraw.contracts._grammar import GrammarMasker as GrammarMasker
from fairdraw.contracts._grammar import GrammarRequest as GrammarRequest
from fairdraw.contracts._grammar import TokenGrammar as TokenGrammar
from fairdraw.contracts._grammar import columns_beyond as columns_beyond
from fairdraw.contracts._grammar import grammar_masker as grammar_masker
from fairdraw.contracts._grammar import num_words as num_words
from fairdraw.contracts._grammar import words_of as words_of
from fairdraw.contracts._live import LiveBatch as LiveBatch
from fairdraw.contracts._live import LiveRequest as LiveRequest
from fairdraw.contracts._live import RequestParams as RequestParams
from fairdraw.contracts._live import SessionSampler as SessionSampler
from fairdraw.contracts._logits_plan import CustomLogitsProcessor as CustomLogitsProcessor
from fairdraw.contracts._logits_plan import LogitsBatch as LogitsBatch
from fairdraw.contracts._logits_plan import LogitsParams as LogitsParams
from fairdraw.contracts._logits_plan import LogitsPlanner as LogitsPlanner
from fairdraw.contracts._logits_plan import LogitsPolicy as LogitsPolicy
from fairdraw.contracts._logits_plan import LogitsRequest as LogitsRequest
from fairdraw.contracts._logits_plan import LogitsSession as LogitsSession
from fairdraw.contracts._logits_plan import PlanSetup as PlanSetup
from fairdraw.contracts._logits_plan import RowOfRequest as RowOfRequest
from fairdraw.contracts._logits_plan import logits_planner as logits_planner
from fairdraw.contracts._logprobs import ALL_LOGPROBS as ALL_LOGPROBS
from fairdraw.contracts._logprobs import NOT_EMITTED as NOT_EMITTED
from fairdraw.contracts._logprobs import STAGES as STAGES
from fairdraw.contracts._logprobs import DrawingLogprobsSampler as DrawingLogprobsSampler
from fairdraw.contracts._logprobs import FunctionLogprobsSampler as FunctionLogprobsSampler
from fairdraw.contracts._logprobs import LogprobsBatch as LogprobsBatch
from fairdraw.contracts._logprobs import LogprobsResult as LogprobsResult
from fairdraw.contracts._logprobs import LogprobsSampler as LogprobsSampler
from fairdraw.contracts._logprobs import RankTies as RankTies
from fairdraw.contracts._logprobs import logprobs_sampler as logprobs_sampler
from fairdraw.contracts._logprobs import rank_ties_of as rank_ties_of
from fairdraw.contracts._penalties import PenaltiesScanner as PenaltiesScanner
from fairdraw.contracts._penalties import PenaltiesSession as PenaltiesSession
from fairdraw.contracts._penalties import PenaltyPolicy as PenaltyPolicy
from fairdraw.contracts._rejection import GREEDY_TEMPERATURE as GREEDY_TEMPERATURE
from fairdraw.contracts._rejection import PLACEHOLDER_TOKEN_ID as PLACEHOLDER_TOKEN_ID
from fairdraw.contracts._rejection import DraftingSampler as DraftingSampler
from fairdraw.contracts._rejection import DraftStep as DraftStep
from fairdraw.contracts._rejection import ExplicitNoise as ExplicitNoise
from fairdraw.contracts._rejection import FunctionSampler as FunctionSampler
from fairdraw.contracts._rejection import Noise as Noise
from fairdraw.contracts._rejection import ProposedDrafts as ProposedDrafts
from fairdraw.contracts._rejection import ProposeFunction as ProposeFunction
from fairdraw.contracts._rejection import RejectionSampler as RejectionSampler
from fairdraw.contracts._rejection import SpecDecodeBatch as SpecDecodeBatch
from fairdraw.contracts._rejection import TrimFunction as TrimFunction
from fairdraw.contracts._rejection import VerifyFunction as VerifyFunction
from fairdraw.contracts._rejection import rejection_sampler as rejection_sampler
from fairdraw.contracts._sampling import GREEDY_BELOW as GREEDY_BELOW
from fairdraw.contracts._sampling import FilterPolicy as FilterPolicy
from fairdraw.contracts._sampling import FunctionTokenSampler as FunctionTokenSampler
from fairdraw.contracts._sampling import RaceNoise as RaceNoise
from fairdraw.contracts._sampling import SamplingBatch as SamplingBatch
from fairdraw.contracts._sampling import SamplingNoise as SamplingNoise
from fairdraw.contracts._sampling import TokenDrafter as TokenDrafter
from fairdraw.contracts._sampling import TokenSampler as TokenSampler
from fairdraw.contracts._sampling import filter_policy as filter_policy
from fairdraw.contracts._sampling import token_sampler as token_sampler
from fairdraw.contracts._server import Answer as Answer
from fairdraw.contracts._server import Choice as Choice
from fairdraw.contracts._server import Claims as Claims
from fairdraw.contracts._server import FunctionServer as FunctionServer
from fairdraw.contracts._server import GenerationRequest as GenerationRequest
from fairdraw.contracts._server import NoAnswer as NoAnswer
from fairdraw.contracts._server import Position as Position
from fairdraw.contracts._server import Server as Server
from fairdraw.contracts._server import ServerSettings as ServerSettings
from fairdraw.contracts._thinking_budget import Markers as Markers
from fairdraw.contracts._thinking_budget import ThinkingPolicy as ThinkingPolicy
from fairdraw.contracts._thinking_budget import ThinkingScanner as ThinkingScanner
from fairdraw.contracts._thinking_budget import ThinkingSession as ThinkingSession

NAMES = (
    "rejection", "sampling", "logits_plan", "penalties", "thinking_budget", "logprobs", "grammar", "filters", "server",
)  # fmt: skip
"""The contracts, in the order of reports: each is the module of this name, behind an underscore."""

# The imports above say what is public.
__all__ = [one for one in dir() if one[0].isalpha() and one not in ("annotations", "NAMES")]  # pyright: ignore
