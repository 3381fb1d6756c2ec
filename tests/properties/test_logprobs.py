"""The log-probabilities contract: cases, validation, and ours at small numbers.

`make check` has no sampler of this contract, so that ours runs here; its mutants do in `test_mutants.py`.
"""

from typing import Any

import pytest
import torch

from fairdraw._core.checks import PROFILES
from fairdraw._core.failures import AdapterError
from fairdraw._run.loading import all_checks, load_sampler
from fairdraw._run.runner import Session, run_check
from fairdraw.contracts import LogprobsResult, logprobs_sampler
from fairdraw.contracts._logprobs import call_logprobs, check_logprobs_batch
from fairdraw.strategies.logprobs import LogprobsCase, LogprobsRequest

CHECKS = {check.code: check for check in all_checks(contract="logprobs")}
FEW = PROFILES["smoke"].scaled(0.4)
ONE = LogprobsRequest(num_logprobs=2)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"token_ids": torch.tensor([3])}, r"token_ids\[0\]=3, but ids must lie in \[0, 3\) or be -1"),
        ({"num_logprobs": [4]}, r"num_logprobs=\[4\], but each must be None, -1 or in \[0, 3\]"),
        ({"num_logprobs": [None]}, r"num_logprobs=\[None\], but one request must ask"),
        ({"num_logprobs": [1, 1]}, "it must have one entry for each of 1 requests"),
        ({"num_rows": [2]}, r"logits.shape=\[1, 3\], but it must be \[2, vocab_size\]"),
        ({"stage": "raw"}, "stage='raw', but it must be one of: raw_logprobs, processed_logprobs"),
        ({"processed_logits": torch.zeros(1, 4)}, r"processed_logits.shape=\[1, 4\], but it must be \[1, 3\]"),
        ({"logits": torch.zeros(1, 3).double()}, "logits.dtype=float64, but it must be float32 or bfloat16"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_wrong_batch_is_refused_by_name(fields: dict[str, Any], message: str) -> None:  # Any: one type each
    with pytest.raises(ValueError, match=message):
        check_logprobs_batch(LogprobsCase(3, (ONE,)).batch().replace(**fields))


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ([0], "returned list, but it must return a LogprobsResult"),
        ((torch.zeros(1, 2).long(), torch.zeros(1, 3), torch.ones(1).long()), r"token_ids of shape \[1, 2\]"),
        ((torch.zeros(1, 3).long(), torch.zeros(1, 3).half(), torch.ones(1).long()), "returned torch.float16"),
        ((torch.zeros(1, 3).long(), torch.zeros(1, 3), None), "returned NoneType, but it must return a tensor"),
    ],
    ids=["list", "width", "half", "no ranks"],
)
def test_answer_of_another_type_is_caught(answer: Any, message: str) -> None:  # Any: whatever may be returned
    returned = LogprobsResult(*answer) if isinstance(answer, tuple) else answer
    broken = logprobs_sampler(lambda batch: returned, name="broken")
    with pytest.raises(AdapterError, match=message):
        call_logprobs(broken, LogprobsCase(3, (ONE,)).batch())


@pytest.mark.parametrize("code", CHECKS)
def test_ours_passes(code: str) -> None:
    """The kernels do what it does: `test_interpreted_cases.py`."""
    session = Session(profile=FEW if code.startswith("LPR") else PROFILES["smoke"], crash_folder=None)
    record = run_check(CHECKS[code], load_sampler("logprobs/torch"), session)
    assert record.status == "passed", record


def test_tolerance_is_what_it_says() -> None:
    """The tolerance is not wider than it says: a fifth beyond it is caught."""
    from fairdraw._oracles.logprobs import LogprobsOracle, exact_logits, tolerance
    from fairdraw.properties._logprobs_asserts import Rows, far_values, require

    batch = LogprobsCase(100, (LogprobsRequest("normal", -1),)).batch()
    right = LogprobsOracle().logprobs(batch)
    slack = torch.from_numpy(tolerance(exact_logits(batch))).gather(1, right.token_ids)
    for share, is_right in ((0.8, True), (1.2, False)):
        moved = LogprobsResult(right.token_ids, (right.logprobs + share * slack).float(), right.ranks)
        seen = call_logprobs(logprobs_sampler(lambda _, moved=moved: moved, name="moved"), batch)
        rows = Rows(batch, seen)
        if is_right:
            require(rows, far_values(rows))
        else:
            with pytest.raises(AssertionError, match="rounding explains"):
                require(rows, far_values(rows))
