"""The examples of the statistical package run."""

import doctest
import importlib
from pathlib import Path

import pytest

MODULES = sorted(path.stem for path in (Path(__file__).parents[2] / "statistical").glob("[a-z]*.py"))


@pytest.mark.parametrize("module", ["__init__", *(name for name in MODULES if not name.startswith("test_"))])
def test_examples_in_docstrings_are_true(module: str) -> None:
    name = "fairdraw.statistical" if module == "__init__" else f"fairdraw.statistical.{module}"

    assert doctest.testmod(importlib.import_module(name)).failed == 0
