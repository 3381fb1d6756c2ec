"""What the tests of several folders share."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import hypothesis
import pytest
import torch
from click.testing import CliRunner, Result
from hypothesis import Phase, given, settings
from hypothesis.strategies import SearchStrategy

from fairdraw._cli.main import main
from fairdraw._core.failures import FailureReport
from fairdraw._run.loading import all_checks
from fairdraw._run.runner import CheckRecord
from fairdraw.contracts import SpecDecodeBatch
from fairdraw.strategies._covering import covering_rows

T = TypeVar("T")
Chosen = dict[str, Any]  # Any: a value of each feature
CHECKS = {check.code: check for check in all_checks()}
SOURCE = Path(__file__).parents[1] / "src"


class Clock:
    """A clock that moves only when it is moved; it counts calls of a sampler that moves it."""

    def __init__(self, now: float = 0.0) -> None:
        self.now, self.calls = now, 0

    def __call__(self) -> float:
        return self.now


def drawn(strategy: SearchStrategy[T], count: int = 200) -> list[T]:
    """Return about `count` values, the same at every run."""
    values: list[T] = []

    def collect(value: T) -> None:
        values.append(value)

    limits = settings(max_examples=count, phases=[Phase.generate])
    limits(hypothesis.seed(0)(given(strategy)(collect)))()
    return values


def covering(features: Mapping[str, Sequence[Any]], strength: int = 2) -> list[Chosen]:  # Any: as above
    """Return choices in which every combination of values of any two features, or `strength`, occurs."""
    rows = covering_rows(tuple(map(len, features.values())), strength, seed=1)
    return [{name: features[name][value] for name, value in zip(features, row, strict=True)} for row in rows]


def plain_batch(counts: list[int], vocab_size: int, **fields: Any) -> SpecDecodeBatch:  # Any: a field each
    """Return a batch with so many drafts of each request: token 0, a flat target, temperature 1; but for `fields`."""
    num_tokens, batch_size = sum(counts), len(counts)
    plain = {
        "draft_token_ids": torch.zeros(num_tokens, dtype=torch.int32),
        "num_draft_tokens": counts,
        "cu_num_draft_tokens": torch.tensor(counts).cumsum(0, dtype=torch.int32),
        "max_spec_len": max(counts),
        "draft_probs": None,
        "target_logits": torch.zeros(num_tokens, vocab_size),
        "bonus_token_ids": torch.zeros(batch_size, 1, dtype=torch.int32),
        "temperature": torch.ones(batch_size),
    }
    return SpecDecodeBatch(**plain | fields)


def whole(message: str) -> str:
    """Return the pattern of the message and nothing but; Hypothesis adds notes on lines of their own."""
    return rf"^{re.escape(message)}(\n|$)"


def printed_by(*words: str, **options: Any) -> str:  # Any: as of `subprocess.run`
    """Return what Python prints, given these words; it must end well."""
    ran = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False, **options)
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-4000:]
    return ran.stdout


def python(program: str, *path: Path, **environment: str) -> str:
    """Return what a fresh interpreter prints; this fairdraw and what is in `path` can be imported there."""
    found = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (*path, SOURCE))), **environment}
    return printed_by("-c", program, env=found)


PLUGIN = ("-p", "fairdraw.pytest_plugin", "-p", "no:benchmark", "-p", "no:cacheprovider")
ASK = """
import pytest
from fairdraw.properties.rejection import CHECKS

@pytest.mark.parametrize("check", [check for check in CHECKS if check.code in {codes}], ids=str)
def test_rejection(check, fairdraw_run):
    fairdraw_run(check)
"""


def ask(pytester: pytest.Pytester, *options: str, codes: tuple[str, ...] = ("REJ101",)) -> pytest.RunResult:
    """Run the shipped kind of test for some checks under pytest, in this process if it has no workers."""
    pytester.makepyfile(test_ask=ASK.format(codes=codes))
    run = pytester.runpytest_subprocess if "-n" in options else pytester.runpytest_inprocess
    return run(*PLUGIN, *options)


def report_of(record: CheckRecord) -> FailureReport:
    """Return what a check that did not pass says."""
    assert record.failure_report is not None, record
    return record.failure_report


def fairdraw(*arguments: str) -> Result:
    """Run the command; a traceback fails the test."""
    result = CliRunner().invoke(main, arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result
