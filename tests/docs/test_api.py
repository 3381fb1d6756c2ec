"""The public API is a list: what is on the page exists, what exists is on the page, and all of it is explained."""

import importlib
import re
from pathlib import Path

import griffe
import pytest

import fairdraw

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "api.md").read_text()
ENTRY = re.compile(r"^::: (\S+)\n    options:\n      members: \[([^\]]*)\]", flags=re.MULTILINE)
LISTED = {module: re.findall(r"\w+", members) for module, members in ENTRY.findall(PAGE)}


@pytest.fixture(scope="module")
def sources() -> griffe.ModulesCollection:
    """The package as the site's generator reads it: docstrings of constants are seen, too."""
    loader = griffe.GriffeLoader(search_paths=[ROOT / "src"])
    loader.load("fairdraw")
    loader.resolve_aliases()
    return loader.modules_collection


@pytest.mark.parametrize("module", [name for name in LISTED if name != "fairdraw"])  # that has a table of its own
def test_page_lists_every_name_of_the_module(module: str) -> None:
    assert sorted(LISTED[module]) == sorted(getattr(importlib.import_module(module), "__all__", ()))


def test_page_lists_every_name_of_the_package() -> None:
    table = PAGE[PAGE.index("## From `fairdraw`") : PAGE.index("## Samplers")]
    words = [word for row in re.findall(r"^\| (`.*?`) \|", table, flags=re.MULTILINE) for word in row.split(", ")]
    assert sorted(word.strip("`") for word in words) == sorted(fairdraw.__all__)


def test_every_name_of_the_package_is_explained_below() -> None:
    below = {name for names in LISTED.values() for name in names}
    assert set(fairdraw.__all__) - below == {"__version__"}


@pytest.mark.parametrize("module", LISTED)
def test_every_public_name_is_documented(module: str, sources: griffe.ModulesCollection) -> None:
    found = sources[module]
    shared = "CHECKS"  # of every contract; the page says once what it is
    assert [name for name in LISTED[module] if name != shared and not found[name].has_docstring] == []


def test_every_name_can_be_imported() -> None:
    assert [name for name in fairdraw.__all__ if getattr(fairdraw, name, None) is None] == []
