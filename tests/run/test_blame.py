"""Whose fault an exception is follows from whose object was called, never from the names of files and functions."""

import dataclasses
import importlib
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import CHECKS, report_of

from fairdraw._core.checks import PROFILES
from fairdraw._core.contracts import CONTRACTS
from fairdraw._core.failures import calling, raised_by
from fairdraw._run.loading import load_sampler
from fairdraw._run.runner import CheckRecord, Session, run_check

THEIRS = '''
import sys
import fairdraw
from fairdraw._core.contracts import CONTRACTS, load_part
from fairdraw._core.failures import CapabilityUnsupported, CheckFailure, Inconclusive
from hypothesis.errors import UnsatisfiedAssumption  # the suite drops a case for its own

class Aborted(Exception):
    """Says no to attributes, and has a `case` of its own."""
    case = property(lambda self: "mine")
    def __setattr__(self, name, value):
        if not name.startswith("__"):  # those are Python's own
            raise TypeError("no attributes here")

ERRORS = {
    "ValueError": ValueError, "Aborted": Aborted, "SystemExit": SystemExit,
    "CapabilityUnsupported": CapabilityUnsupported, "Inconclusive": Inconclusive, "CheckFailure": CheckFailure,
    "UnsatisfiedAssumption": UnsatisfiedAssumption,
    "Group": lambda text: ExceptionGroup(text, [OSError()]),
}

def emit(kind):  # a name of fairdraw's own
    raise ERRORS[kind]("lane 7 of mine")

class Wrapped:
    """The specification, but for one attribute or method."""
    def __init__(self, contract, broken, kind):
        self.right, self.broken, self.kind = load_part(CONTRACTS[contract].right)(), broken, kind
        self.contract = contract

    def __getattr__(self, name):
        if name in ("__setstate__", "right"):
            raise AttributeError(name)
        if name != self.broken:
            return getattr(self.right, name)
        if name in ("name", "device", "capabilities"):
            emit(self.kind)
        return lambda *args, **fields: emit(self.kind)

class Opens(Wrapped):
    """Opens sessions of which one method raises."""
    def _open(self, method, argument):
        session = Session.__new__(Session)
        session.right, session.broken, session.kind = getattr(self.right, method)(argument), self.broken, self.kind
        return session
    def open_plan(self, setup): return self._open("open_plan", setup)
    def open_penalties(self, vocab_size): return self._open("open_penalties", vocab_size)
    def open_thinking(self, markers): return self._open("open_thinking", markers)
    def compile_grammar(self, grammar): return self._open("compile_grammar", grammar)

class Session(Wrapped):
    pass
'''
"""A module of the user's, with the words of ours in it."""

_MORE = {
    "sampling": ("draft",),
    "logits_plan": ("process",),
    "penalties": ("sync", "penalise", "penalise_drafts"),
    "thinking_budget": ("sync", "forced", "think_counts"),
    "logprobs": ("draw",),
    "grammar": ("mask_drafts",),
    "matchers": ("open",),
}
METHODS = {name: (contract.method, *_MORE.get(name, ())) for name, contract in CONTRACTS.items()}
"""Every method of the user's that the suite calls."""
CODES = {
    "rejection": "REJ101", "sampling": "SAM101", "logits_plan": "PLAN101", "penalties": "PEN101",
    "thinking_budget": "THK101", "logprobs": "LPR101", "grammar": "GRM101",
    "matchers": "MAT101", "masks": "MSK101", "watermarks": "WMK101", "filters": "FIL101", "server": "SRV101",
    "mask_drafts": "GRM121", "draft": "SAM201", "draw": "LPR161", "think_counts": "THK102",
}  # fmt: skip
NAME = "harness"


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a module in the user's folder that has a name of ours."""
    (tmp_path / f"{NAME}.py").write_text(THEIRS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop(NAME, None)
    yield NAME
    sys.modules.pop(NAME, None)


def raising_in(module: str, contract: str, broken: str, kind: str = "ValueError") -> object:
    made = importlib.import_module(module)
    has_session = contract in ("logits_plan", "penalties", "thinking_budget", "matchers")
    in_session = has_session and broken not in METHODS[contract][:1]
    return (made.Opens if in_session and broken not in ATTRIBUTES else made.Wrapped)(contract, broken, kind)


ATTRIBUTES = ("name", "device", "capabilities")


def record_of(code: str, sampler: object) -> CheckRecord:
    return run_check(CHECKS[code], sampler, Session("theirs:make", PROFILES["smoke"]))  # type: ignore[arg-type]


def require_theirs(record: CheckRecord, module: str, kind: str = "ValueError") -> None:
    assert record.status == "error", record
    assert report_of(record).code == CONTRACTS[record.contract].raised
    assert report_of(record).title == f"sampler raised an exception during {record.code}"
    assert report_of(record).effect.split(":")[0].split(".")[-1] == kind
    assert "lane 7 of mine" in report_of(record).effect
    assert f"({module}.py:" in report_of(record).effect
    assert "in emit)" in report_of(record).effect


@pytest.mark.parametrize(("contract", "method"), [(c, m) for c, methods in METHODS.items() for m in methods])
def test_exception_in_a_file_named_like_ours_is_the_sampler_s(theirs: str, contract: str, method: str) -> None:
    record = record_of(CODES.get(method, CODES[contract]), raising_in(theirs, contract, method))
    require_theirs(record, theirs)
    # The checks of a server share their answers: there is no case of one to keep.
    assert report_of(record).crash_file or contract == "server"


@pytest.mark.parametrize("attribute", ATTRIBUTES)
@pytest.mark.parametrize("contract", CONTRACTS)
def test_exception_of_a_property_is_the_sampler_s(theirs: str, contract: str, attribute: str) -> None:
    require_theirs(record_of(CODES[contract], raising_in(theirs, contract, attribute)), theirs)


@pytest.mark.parametrize(
    "kind", ["Aborted", "SystemExit", "CapabilityUnsupported", "Inconclusive", "CheckFailure", "UnsatisfiedAssumption"]
)
@pytest.mark.parametrize("contract", CONTRACTS)
def test_no_kind_of_exception_is_mistaken_for_a_word_of_the_suite(theirs: str, contract: str, kind: str) -> None:
    record = record_of(CODES[contract], raising_in(theirs, contract, METHODS[contract][0], kind))
    require_theirs(record, theirs, kind)


def test_group_of_the_sampler_s_own_is_no_unsteady_answer(theirs: str) -> None:
    record = record_of("REJ101", raising_in(theirs, "rejection", "verify", "Group"))
    assert report_of(record).effect.startswith("ExceptionGroup: lane 7 of mine (1 sub-exception)")
    assert not any("keeps state" in note for note in report_of(record).notes)


def test_statistical_check_blames_as_the_others_do(theirs: str) -> None:
    require_theirs(record_of("DIST101", raising_in(theirs, "rejection", "verify")), theirs)


def test_keyboard_interrupt_is_never_kept(theirs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signal, "getsignal", lambda _: signal.default_int_handler)  # as in the foreground
    sampler = raising_in(theirs, "rejection", "verify")
    sys.modules[theirs].ERRORS["ValueError"] = KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt):
        record_of("REJ101", sampler)


def test_reference_that_raises_is_not_the_sampler_s_fault(theirs: str) -> None:
    check = next(check for check in CHECKS.values() if check.differential and check.contract == "rejection")
    reference = raising_in(theirs, "rejection", "verify")
    vars(reference)["name"] = "theirs"
    session = Session("rejection/torch", PROFILES["smoke"], reference=reference)  # type: ignore[arg-type]
    record = run_check(check, load_sampler("rejection/torch"), session)
    assert report_of(record).title == f"reference raised an exception during {check.code}"


def test_exception_in_the_specification_is_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ValueError("ours")

    monkeypatch.setattr(
        "fairdraw.properties._rejection_asserts.ORACLE", type("O", (), {"name": "o", "verify": broken})()
    )
    code = next(c.code for c in CHECKS.values() if c.title == "tokens equal the oracle on the same noise")
    record = record_of(code, load_sampler("rejection/torch"))
    assert report_of(record).title.startswith("check raised an exception")


def test_outermost_call_answers_for_what_it_calls() -> None:
    with pytest.raises(ValueError, match="x") as caught, calling("outer"), calling("inner"):
        raise ValueError("x")
    assert raised_by(caught.value) == "outer"
    assert raised_by(ValueError()) is None


def test_error_of_a_device_is_not_called_a_fault_of_fairdraw() -> None:
    import torch

    def body(sampler: object, case: object) -> None:
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")

    record = run_check(dataclasses.replace(CHECKS["REJ101"], body=body), load_sampler("rejection/torch"), Session())  # type: ignore[type-var]
    assert report_of(record).title == "device reported an error during REJ101"
    assert "fairdraw" not in report_of(record).meaning
