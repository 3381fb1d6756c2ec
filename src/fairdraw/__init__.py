"""fairdraw tests token samplers of LLM inference engines: correctness, distributions and performance.

Every name is imported when it is first used, so that `import fairdraw` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fairdraw._run.loading import CannotStart, all_checks, connect
    from fairdraw._run.runner import CheckRecord, check_sampler
    from fairdraw.contracts import *
    from fairdraw.pytest_plugin import SamplerTests, parametrize_with_checks

__all__ = [
    "PLACEHOLDER_TOKEN_ID", "BitmaskBatch", "CannotStart", "Capabilities", "Capability", "CheckRecord", "DraftStep",
    "Drafted", "ExplicitNoise", "FilterBatch", "FilterChain", "FilterParams", "FilterPolicy", "FilterResult",
    "GrammarBatch", "GrammarMasker", "LogitsFilterer", "LogitsPlanner", "LogitsPolicy", "LogprobsBatch",
    "LogprobsResult", "LogprobsSampler", "MaskRows", "MaskedSampler", "Noise", "PenaltiesScanner", "PenaltyPolicy",
    "RaceNoise", "RankTies", "RejectionSampler", "Rounding", "RowKeeper", "SamplerTests", "SamplingBatch",
    "SamplingNoise", "SeededNoise", "Server", "ServerSettings", "SpecDecodeBatch", "ThinkingPolicy", "ThinkingScanner",
    "TokenSampler", "__version__", "all_checks", "check_sampler", "connect", "grammar_masker", "logits_filterer",
    "logits_planner", "logprobs_sampler", "masked_sampler", "padded", "parametrize_with_checks", "rejection_sampler",
    "token_sampler", "with_arrays",
]  # fmt: skip

__version__ = "0.1.0"
"""Version of the suite, by semantic versioning; every report and crash file carries it."""

__dir__ = __all__.copy
_HOMES = {
    **dict.fromkeys(("CannotStart", "all_checks", "connect"), "fairdraw._run.loading"),
    **dict.fromkeys(("CheckRecord", "check_sampler"), "fairdraw._run.runner"),
    **dict.fromkeys(("SamplerTests", "parametrize_with_checks"), "fairdraw.pytest_plugin"),
}
"""Names that are not of `fairdraw.contracts`."""


def __getattr__(name: str) -> object:
    """Import a public name when it is first used. Pytest, torch and numpy may be absent until then."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(_HOMES.get(name, "fairdraw.contracts")), name)
    globals()[name] = found
    return found
