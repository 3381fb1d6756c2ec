"""The report of an exception names the capability to declare, by what the smallest example holds."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers import CHECKS, report_of

import fairdraw
from fairdraw._core.checks import PROFILES
from fairdraw._oracles.rejection import verify
from fairdraw._oracles.sampling import sample
from fairdraw._run.asked import asked_for
from fairdraw._run.loading import all_checks
from fairdraw._run.runner import CheckRecord, Session, run_check
from fairdraw.contracts import Capability, SamplingBatch, SpecDecodeBatch
from fairdraw.strategies import DraftRecipe, RejectionCase, RequestRecipe

SHOWN_BY = {"empty-rows": "REJ118", "synthetic-rates": "REJ701", "long-drafts": "REJ642"}
"""Where no check needs the capability: the first whose cases have it. Dozens before it pass."""

NOTE = "if the sampler does not support this input, declare it in the adapter: "

# Not strided-inputs: to refuse them is an answer.
REJECTION: dict[str, Callable[[SpecDecodeBatch], bool]] = {
    "nan-logits": lambda batch: bool(batch.target_logits.isnan().any()),
    "half-logits": lambda batch: batch.target_logits.dtype != torch.float32,
    "ragged": lambda batch: len(set(batch.num_draft_tokens)) > 1,
    "placeholder-drafts": lambda batch: bool((batch.draft_token_ids < 0).any()),
    "greedy": lambda batch: bool((batch.temperature == 0).any()),
    "empty-rows": lambda batch: bool((batch.target_logits == -torch.inf).all(-1).any()),
    "synthetic-rates": lambda batch: batch.synthetic_rates is not None,
    "long-drafts": lambda batch: batch.max_spec_len > 8,
    "large-vocab": lambda batch: batch.vocab_size > 1025,
}
SAMPLING: dict[str, Callable[[SamplingBatch], bool]] = {
    "nan-logits": lambda batch: bool(batch.logits.isnan().any()),
    "half-logits": lambda batch: batch.logits.dtype != torch.float32,
    "strided-inputs": lambda batch: not batch.logits.is_contiguous(),
    "greedy": lambda batch: bool((batch.temperature == 0).any()),
    "top-k": lambda batch: batch.top_k is not None,
    "top-p": lambda batch: batch.top_p is not None,
    "min-p": lambda batch: batch.min_p is not None,
}


def raising_on(contract: str, refuses: Callable[[Any], bool]) -> Any:  # Any: a batch; a sampler
    """The specification, but for batches that it was not meant for."""
    answer: Any = verify if contract == "rejection" else sample

    def run(batch: Any, noise: Any) -> Any:  # Any: of the contract
        if refuses(batch):
            raise NotImplementedError("not meant for this")
        return answer(batch, noise)

    return (fairdraw.rejection_sampler if contract == "rejection" else fairdraw.token_sampler)(run)


def first_error(contract: str, sampler: object, word: str = "") -> CheckRecord | None:
    """The first check that ends in the exception; those that need or show the capability `word` are run first."""
    session = Session(profile=PROFILES["smoke"], crash_folder=None)
    checks = all_checks("properties", contract)
    for check in sorted(checks, key=lambda check: word not in check.needs and check.code != SHOWN_BY.get(word)):
        record = run_check(check, sampler, session)  # type: ignore[arg-type]
        if record.status == "error":
            return record
    return None


def advised(record: CheckRecord) -> list[str]:
    notes = [note for note in report_of(record).notes if note.startswith(NOTE)]
    return [word for note in notes for word in re.findall(r'unsupported=\{"([a-z-]+)": "why"\}', note)]


@pytest.mark.parametrize(
    ("contract", "word"), [("rejection", word) for word in REJECTION] + [("sampling", word) for word in SAMPLING]
)
def test_capability_is_named_by_the_example(contract: str, word: str) -> None:
    refuses: Any = (REJECTION if contract == "rejection" else SAMPLING)[word]
    record = first_error(contract, raising_on(contract, refuses), word)
    assert word in advised(record)
    assert len(advised(record)) <= 4  # a call of a trace has several features at once


@pytest.mark.parametrize("contract", ["rejection", "sampling"])
def test_nothing_is_advised_where_nothing_can_be_named(contract: str) -> None:
    record = first_error(contract, raising_on(contract, lambda batch: True))
    assert advised(record) == []
    assert "unsupported=" not in "\n".join(report_of(record).lines())


def test_advice_follows_the_need_of_the_check_if_the_example_says_nothing() -> None:
    case = RejectionCase(vocab_size=3, requests=(RequestRecipe(drafts=(DraftRecipe(),)),))
    assert asked_for(case, (), "rejection") == ()
    noise = Capability.EXPLICIT_NOISE
    assert asked_for(case, (Capability.REFERENCE_RACE, noise), "rejection") == (noise,)
    assert asked_for(None, (Capability.TOP_K,), "sampling") == (Capability.TOP_K,)


def test_advice_on_a_live_batch() -> None:
    from fairdraw.strategies.logits_plan import LogitsCase, LogitsRequestRecipe

    drafting = LogitsRequestRecipe(kinds=("bias",), num_drafts=2, has_placeholders=True)
    case = LogitsCase(33, (LogitsRequestRecipe(kinds=("custom",)), drafting), dtype="bfloat16", layout="sliced")
    found = {"half-logits", "strided-inputs", "placeholder-drafts", "custom-processors", "draft-processors"}
    assert {str(word) for word in asked_for(case, (), "logits_plan")} == found
    assert asked_for(LogitsCase(33, (LogitsRequestRecipe(),)), (), "logits_plan") == ()


def test_exception_of_a_check_advises_nothing() -> None:
    import dataclasses

    def body(sampler: object, case: object) -> None:
        raise KeyError("ours")

    check: Any = dataclasses.replace(CHECKS["REJ201"], body=body)  # type: ignore[type-var]  # Any: a Check
    record = run_check(check, raising_on("rejection", lambda _: False), Session(crash_folder=None))
    assert record.status == "error"
    assert advised(record) == []
