"""Import is free: what a person has not asked for is not imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import fairdraw

HEAVY = {"torch", "triton", "numpy", "scipy", "hypothesis", "vllm"}
SOURCE = Path(fairdraw.__file__).parents[1]


def imported_by(statement: str) -> set[str]:
    """Top-level modules that a fresh interpreter has after `statement`."""
    program = f"{statement}\nimport sys\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    ran = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        check=True,
    )
    return set(ran.stdout.split())


@pytest.mark.parametrize(
    "statement",
    [
        "import fairdraw",
        "import fairdraw.protocols, fairdraw._core.seeds, fairdraw._core.failures, fairdraw._core.validation",
        "import fairdraw._core.checks",
        "import fairdraw; fairdraw.rejection_sampler(print, unsupported={'greedy': 'not ours'})",
        "import fairdraw.pytest_plugin",
    ],
    ids=["package", "words", "checks", "a sampler is wrapped", "pytest plugin"],
)
def test_import_brings_nothing_heavy(statement: str) -> None:
    assert not imported_by(statement) & HEAVY


def test_import_of_the_package_does_not_bring_pytest() -> None:
    assert "pytest" not in imported_by("import fairdraw")


def test_import_of_the_strategies_does_not_bring_triton() -> None:
    assert not imported_by("from fairdraw import strategies") & {"triton", "vllm", "scipy"}


def test_import_of_the_strategies_does_not_bring_our_samplers() -> None:
    program = "from fairdraw import strategies; import sys; print(*(n for n in sys.modules if 'sampler_impl' in n))"
    ran = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.split() == []
