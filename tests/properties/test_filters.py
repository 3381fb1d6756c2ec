"""The filters contract: cases, validation, and formulas by hand."""

import dataclasses
import doctest
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fairdraw._core.checks import PROFILES
from fairdraw._core.failures import AdapterError, CaseRaised
from fairdraw._mutants.filters import as_filterer, right
from fairdraw._oracles import filters
from fairdraw._oracles.filters import FiltersOracle, RowContext
from fairdraw._run.loading import all_checks
from fairdraw._run.runner import Session, run_check
from fairdraw.contracts import FilterChain, FilterParams, FilterResult, SeededNoise, logits_filterer
from fairdraw.contracts._filters import call_filters, check_filter_batch
from fairdraw.strategies.filters import FilterCase, FilterRow, FilterTrace

CHECKS = {check.code: check for check in all_checks(contract="filters")}
ONE = FilterCase(3, (FilterRow(),))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"logits": torch.full((1, 3), -torch.inf)}, "a row is all -inf, but a token must be possible"),
        ({"logits": torch.zeros(2, 3)}, r"logits.shape=\[2, 3\], but it must be \[1, vocab_size\]"),
        ({"logits": torch.zeros(1, 3).double()}, "logits.dtype=float64"),
        ({"output_token_ids": [[3]]}, "output_token_ids has other ids"),
        ({"params": [FilterParams(top_p=1.5)]}, r"top_p=1.5, but it must lie in \[0.0, 1.0\]"),
        ({"params": [FilterParams(p_less=0.5)]}, r"p_less=0.5, but it must be a whole number in \[0, 1\]"),  # type: ignore[arg-type]
        ({"params": [FilterParams(mirostat_v2_tau=3.0, top_k=2)]}, "a row with mirostat has no other filter"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_batch_that_breaks_the_contract_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_filter_batch(ONE.batch().replace(**fields))


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ([0], "must return a tensor"),
        (torch.zeros(1, 2), r"logits of shape \[1, 2\]"),
        (torch.zeros(1, 3).half(), "returned torch.float16"),
        (FilterResult(torch.zeros(1, 3), torch.zeros(2).long()), r"token_ids of shape \[2\]"),
    ],
    ids=["list", "width", "half", "tokens"],
)
def test_answer_of_another_type_is_caught(answer: Any, message: str) -> None:  # Any: whatever may be returned
    with pytest.raises(AdapterError, match=message):
        call_filters(logits_filterer(lambda batch, noise: answer, name="broken"), ONE.batch(), SeededNoise(0))


def test_chain_names_known_filters_once() -> None:
    with pytest.raises(ValueError, match="order names 'top_q'"):
        FilterChain(("top_k", "top_q"))
    with pytest.raises(ValueError, match="order names 'top_k'"):
        FilterChain(("top_k", "top_k"))


def kept(**params: Any) -> list[int]:  # Any: of FilterParams
    context = RowContext(FilterParams(**params), mu=2 * params.get("mirostat_v2_tau", 0))
    row = FiltersOracle().row(np.log([0.5, 0.284, 0.16, 0.056]).astype(np.float32), context)
    assert not row.maybe.any()
    return np.flatnonzero(row.kept).tolist()


def test_examples_of_the_specification() -> None:
    assert doctest.testmod(filters, extraglobs={"kept": kept}).failed == 0


def test_repetitions_by_hand() -> None:
    context = RowContext(FilterParams(dry_multiplier=1.0), tokens=(0, 1, 2, 3, 4, 1, 2, 5, 0, 1, 2))
    assert FiltersOracle().repetitions(context) == {3: 3, 5: 2}
    row = FiltersOracle().row(np.zeros(6, np.float32), context)
    assert row.values.tolist() == [0, 0, 0, -1.75, 0, -1]


def test_mu_by_hand() -> None:
    oracle, params = FiltersOracle(), FilterParams(mirostat_v2_tau=1.0, mirostat_eta=0.5)
    row = oracle.row(np.log([0.5, 0.25, 0.25]).astype(np.float32), RowContext(FilterParams()))
    assert oracle.next_mu(2.0, params, row, row, 1) == pytest.approx(1.5)  # 2 bits were seen, 1 is aimed at


class Spoiled(FiltersOracle):
    """Is wrong in its first call, or raises in calls of more than three rows."""

    raises = is_used = False

    def filter_logits(self, batch: Any, noise: Any) -> Any:
        found, was_used, self.is_used = super().filter_logits(batch, noise), self.is_used, True
        if self.raises and batch.batch_size > 3:
            raise ZeroDivisionError
        return found if was_used or self.raises else FilterResult(torch.zeros_like(found.logits))


def test_first_calls_of_a_trace_are_those_of_a_new_filterer(tmp_path: Path) -> None:
    session = Session(profile=PROFILES["smoke"].scaled(0.1), crash_folder=tmp_path)
    used = as_filterer(Spoiled(), "used")
    call_filters(used, ONE.batch(), SeededNoise(1))
    assert run_check(CHECKS["FIL201"], used, session).status == "passed"
    again = dataclasses.replace(session, renew=lambda: as_filterer(Spoiled(), "new"))
    assert "one that was called before does not" in str(run_check(CHECKS["FIL201"], used, again).failure_report)


def test_exception_in_a_trace_is_blamed_and_shrunk() -> None:
    spoiled = type("Raising", (Spoiled,), {"raises": True})()
    with pytest.raises(CaseRaised) as caught:
        CHECKS["FIL201"].run(as_filterer(spoiled, "raises"), profile=PROFILES["smoke"].scaled(0.1))
    assert len(caught.value.case.calls) == 1


def test_tokens_beside_the_edge_of_xtc_are_counted() -> None:
    """Rounding in a far tail leaves open which of three tokens stay; two do, whichever."""
    trace = FilterTrace(300202, 2047, 9, "few", calls=(0,), rows=(6,))
    CHECKS["FIL201"].on_case(right(), trace)
