"""The statistical package: light to import, and its examples run."""

import doctest
import importlib
from pathlib import Path

import pytest
from helpers import python

MODULES = sorted(path.stem for path in (Path(__file__).parents[2] / "statistical").glob("[a-z]*.py"))


def test_import_brings_neither_torch_nor_hypothesis() -> None:
    code = "import sys, fairdraw.statistical; print(sorted({'torch', 'hypothesis', 'triton'} & set(sys.modules)))"
    assert python(code) == "[]\n"


@pytest.mark.parametrize("module", ["__init__", *(name for name in MODULES if not name.startswith("test_"))])
def test_examples_in_docstrings_are_true(module: str) -> None:
    name = "fairdraw.statistical" if module == "__init__" else f"fairdraw.statistical.{module}"

    assert doctest.testmod(importlib.import_module(name)).failed == 0
