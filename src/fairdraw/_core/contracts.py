"""The contracts by name, and where the parts of each are: names only, so that importing this module is cheap."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Contract:
    """One contract. Parts are written `module:attribute` and loaded when they are needed.

    Args:
        method: What an object under this contract has beside a name, a device and capabilities.
        case: The class of its cases, with `from_json`, `to_json` and `build`.
        mutants: Where the mutants are.
        right: A factory of the specification as a sampler: what mutants are compared with.
        default: The sampler under test if none is named.
        reference: The sampler that differential checks compare with if none is named.
        raised: Code of a report of an exception.
        answer: What a call returns, as a sentence of reports.
        has_distributions: Whether outputs are random, so that there are distributions to test.
        draws_with: The capability without which a sampler draws nothing, and has no distribution to test.
        is_remote: Whether calls go to a server: each costs time, and no argument is a tensor that coverage can look at.
        takes_noise: Whether noise can be an argument of a call.
        one_of: Words of capabilities of which a sampler must support one.
    """

    name: str
    method: str
    case: str
    mutants: tuple[str, ...]
    right: str
    default: str
    reference: str
    raised: str
    answer: str
    has_distributions: bool = False
    draws_with: str = ""
    is_remote: bool = False
    takes_noise: bool = False
    one_of: tuple[str, ...] = ()


def _contract(name: str, **fields: Any) -> Contract:  # Any: of `Contract`
    """Return a contract; the parts that are not given have the usual names."""
    mutants = f"fairdraw._mutants.{name}"
    parts: dict[str, Any] = {"mutants": (f"{mutants}:MUTANTS",), "right": f"{mutants}:right"}
    parts |= {"default": name, "reference": f"{name}/vllm"} | fields
    return Contract(name, **parts)


CONTRACTS = {
    contract.name: contract
    for contract in (
        _contract(
            "rejection",
            method="verify",
            case="fairdraw.strategies:RejectionCase",
            mutants=(
                "fairdraw._mutants.rejection:MUTANTS",
                "fairdraw._mutants.distributions:DISTRIBUTION_MUTANTS",
                "fairdraw._mutants._dependence:REJECTION_MUTANTS",
                "fairdraw._mutants._pairs:PAIR_MUTANTS",
                "fairdraw._mutants._trimming:TRIM_MUTANTS",
            ),
            default="rejection/torch",
            raised="REJ100",
            answer="an int32 tensor [batch_size, max_spec_len + 1] on the batch's device",
            has_distributions=True,
            takes_noise=True,
            one_of=("dense-drafts", "one-hot-drafts"),
        ),
        _contract(
            "sampling",
            method="sample",
            case="fairdraw.strategies.sampling:SamplingCase",
            mutants=(
                "fairdraw._mutants.sampling:MUTANTS",
                "fairdraw._mutants.sampling_distributions:DISTRIBUTION_MUTANTS",
                "fairdraw._mutants._dependence:SAMPLING_MUTANTS",
            ),
            raised="SAM100",
            answer="an int64 or int32 tensor [batch_size] on the batch's device; of `draft`, a Drafted",
            has_distributions=True,
            takes_noise=True,
        ),
        _contract(
            "logits_plan",
            method="open_plan",
            case="fairdraw.strategies.logits_plan:LogitsCase",
            raised="PLAN100",
            answer="a tensor of logits with the shape of those given",
        ),
        _contract(
            "penalties",
            method="open_penalties",
            case="fairdraw.strategies.lifecycle:PenaltiesTrace",
            raised="PEN100",
            answer="a float32 tensor with the shape of the logits given",
        ),
        _contract(
            "thinking_budget",
            method="open_thinking",
            case="fairdraw.strategies.lifecycle:ThinkingTrace",
            raised="THK100",
            answer="a dict: row to pairs of (position, token id)",
        ),
        _contract(
            "logprobs",
            method="logprobs",
            case="fairdraw.strategies.logprobs:LogprobsCase",
            raised="LPR100",
            answer="a LogprobsResult: ids and float32 values [num_rows, 1 + N], ranks [num_rows]",
            has_distributions=True,
            draws_with="drawn-tokens",
        ),
        _contract(
            "grammar",
            method="apply_bitmask",
            case="fairdraw.strategies.grammar:GrammarCase",
            reference="grammar/xgrammar",
            raised="GRM100",
            answer="a tensor of logits with the shape and dtype of those given",
            has_distributions=True,
        ),
        _contract(
            "filters",
            method="filter_logits",
            case="fairdraw.strategies.filters:FilterCase",
            default="filters/oracle",
            reference="",
            raised="FIL100",
            answer="a FilterResult: float32 logits [num_rows, vocab_size], and token ids [num_rows]",
            has_distributions=True,
            draws_with="xtc",
        ),
        _contract(
            "server",
            method="generate",
            case="fairdraw._core.checks:DistributionCase",
            default="fairdraw._mutants.server:right",
            reference="",
            raised="SRV100",
            answer="a list of Answers, one for each request",
            has_distributions=True,
            is_remote=True,
        ),
    )
}
"""Every contract that has checks."""

DEFAULT = next(iter(CONTRACTS))
"""The contract of checks and samplers that name none."""


def contract_of(subject: object) -> Contract | None:
    """The contract that `subject` declares, or whose method it has; `None` if there is none."""
    declared = CONTRACTS.get(str(getattr(subject, "contract", "")))
    having = (contract for contract in CONTRACTS.values() if hasattr(subject, contract.method))
    return declared or next(having, None)


def contract_name(subject: object) -> str | None:
    """The name of the contract of `subject`; `None` if it has none."""
    contract = contract_of(subject)
    return None if contract is None else contract.name


def missing_parts(subject: object) -> str:
    """What `subject` lacks to be under any contract, as words."""
    missing = [name for name in ("name", "device", "capabilities") if not hasattr(subject, name)]
    if not any(hasattr(subject, contract.method) for contract in CONTRACTS.values()):
        missing.append(" or ".join(contract.method for contract in CONTRACTS.values()))
    return ", ".join(missing)


def load_part(path: str) -> Any:  # Any: a class, a function or a tuple, as the field's docstring says
    """What `module:attribute` names."""
    module, _, attribute = path.partition(":")
    return getattr(importlib.import_module(module), attribute)
