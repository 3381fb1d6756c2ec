"""The public API is a list: what is on the page exists, what exists is on the page, and all of it is explained."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import griffe
import pytest

import fairdraw

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "api.md").read_text()
ENTRY = re.compile(r"^::: (\S+)\n    options:\n      members: \[([^\]]*)\]", flags=re.MULTILINE)
LISTED = {module: re.split(r",\s*", members.strip()) for module, members in ENTRY.findall(PAGE)}
HOMES = ("fairdraw._run.runner", "fairdraw._run.loading", "fairdraw.pytest_plugin")
"""Where names of `fairdraw` are at home that are imported when they are asked for; their other names are not public."""


@pytest.fixture(scope="module")
def sources() -> griffe.ModulesCollection:
    """The package as the site's generator reads it: docstrings of constants are seen, too."""
    loader = griffe.GriffeLoader(search_paths=[ROOT / "src"])
    loader.load("fairdraw")
    loader.resolve_aliases()
    return loader.modules_collection


def test_page_names_every_public_module() -> None:
    pages = {name for name in LISTED if name not in HOMES}
    production = {f"fairdraw.sampler_impl.{path.stem}" for path in (ROOT / "sampler_impl").glob("[a-z]*.py")}
    strategies = {f"fairdraw.strategies{suffix}" for suffix in ("", ".lifecycle", ".logits_plan")}
    assert pages == {"fairdraw.protocols", "fairdraw.sampler_impl.vllm_plugin", *strategies, *production}


@pytest.mark.parametrize("module", [name for name in LISTED if name not in HOMES])
def test_page_lists_every_name_of_the_module(module: str) -> None:
    assert sorted(LISTED[module]) == sorted(importlib.import_module(module).__all__)


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
    assert [name for name in LISTED[module] if not found[name].has_docstring] == []


def test_every_name_can_be_imported() -> None:
    assert [name for name in fairdraw.__all__ if getattr(fairdraw, name, None) is None] == []
