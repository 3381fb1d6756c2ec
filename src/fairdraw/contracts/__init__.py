"""The contracts: batches, noise, capabilities, protocols, and how a sampler is called and checked; one module each.

Importing this package is free: torch is needed only once a batch exists.
"""

from fairdraw._core.arrays import *
from fairdraw._core.capabilities import *
from fairdraw._core.noise import *
from fairdraw._core.policies import policy_of
from fairdraw._core.rounding import *
from fairdraw._core.rows import *
from fairdraw._core.switches import *
from fairdraw.contracts._filters import *
from fairdraw.contracts._grammar import *
from fairdraw.contracts._live import *
from fairdraw.contracts._logits_plan import *
from fairdraw.contracts._logprobs import *
from fairdraw.contracts._masks import *
from fairdraw.contracts._matchers import *
from fairdraw.contracts._penalties import *
from fairdraw.contracts._rejection import *
from fairdraw.contracts._sampling import *
from fairdraw.contracts._server import *
from fairdraw.contracts._thinking_budget import *
from fairdraw.contracts._watermarks import *

__all__ = [
    "ALL_LOGPROBS", "BITS_PER_WORD", "GREEDY_BELOW", "GREEDY_TEMPERATURE", "LOGIT_FILTERS", "MAX_SPEC_LEN",
    "NOT_EMITTED", "PLACEHOLDER_TOKEN_ID", "STAGES", "AddedRow", "Answer", "AnySampler", "ArrayNamespace",
    "BitmaskBatch", "Capabilities", "Capability", "Choice", "Claims", "Context", "CustomLogitsProcessor", "DraftStep",
    "Drafted", "DraftingSampler", "DrawingLogprobsSampler", "ExplicitNoise", "FilterBatch", "FilterChain",
    "FilterParams", "FilterPolicy", "FilterResult", "FunctionGrammarMasker", "FunctionLogitsFilterer",
    "FunctionLogprobsSampler", "FunctionMaskedSampler", "FunctionSampler", "FunctionServer", "FunctionTokenSampler",
    "FunctionWatermarker", "GenerationRequest", "GrammarBatch", "GrammarMasker", "GrammarRequest", "KnownDefect",
    "LiveBatch", "LiveRequest", "LogitFilter", "LogitsBatch", "LogitsFilterer", "LogitsParams", "LogitsPlanner",
    "LogitsPolicy", "LogitsRequest", "LogitsSession", "LogprobsBatch", "LogprobsResult", "LogprobsSampler", "Markers",
    "MaskPolicy", "MaskRows", "MaskedSampler", "MaskedTokens", "MatcherGrammar", "MatcherMaker", "MatcherPolicy",
    "Move", "MovedRow", "NoAnswer", "Noise", "PaddedBatch", "PenaltiesScanner", "PenaltiesSession", "PenaltyPolicy",
    "PlanSetup", "Position", "ProposeFunction", "ProposedDrafts", "RaceNoise", "RankTies", "RejectionSampler",
    "RequestParams", "Rounding", "RowChanges", "RowKeeper", "RowOfRequest", "SamplingBatch", "SamplingNoise",
    "SeedParams", "SeededNoise", "Server", "ServerSettings", "SessionSampler", "SizeSwitches", "SpecDecodeBatch",
    "SyncFunction", "ThinkingPolicy", "ThinkingScanner", "ThinkingSession", "TokenDrafter", "TokenGrammar",
    "TokenSampler", "TrimFunction", "VerifyFunction", "WatermarkBatch", "WatermarkPolicy", "WatermarkSetup",
    "WatermarkedRequest", "Watermarker", "all_added", "capability_of", "columns_beyond", "filter_policy",
    "follows_rows", "grammar_masker", "logits_filterer", "logits_planner", "logprobs_sampler", "masked_sampler",
    "num_words", "padded", "policy_of", "rank_ties_of", "rejection_sampler", "rounding_of", "switch_sides",
    "token_sampler", "watermarker", "with_arrays", "words_of",
]  # fmt: skip

NAMES = (
    "rejection", "sampling", "logits_plan", "penalties", "thinking_budget", "logprobs", "grammar", "matchers",
    "masks", "watermarks", "filters", "server",
)  # fmt: skip
"""The contracts, in the order of reports: each is the module of this name, behind an underscore."""
