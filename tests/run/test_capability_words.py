"""Capability words: each is explained where it is defined, and the manual and the command line say the same."""

import inspect
import re
from pathlib import Path

import pytest
from helpers import fairdraw
from manual import made

from fairdraw import Capability, contracts
from fairdraw._core.contracts import CONTRACTS
from fairdraw._run.capability_words import glossary
from fairdraw._run.loading import all_checks

ROOT = Path(__file__).resolve().parents[2]
PAGE = "\n".join((ROOT / "docs" / f"{name}.md").read_text() for name in ("own-sampler", "rejection", "sampling"))
# Field and shape, of every table of fields.
# A bar would end a cell of a table, so that the page writes types in words.
WORDED = PAGE.replace("]`, float32, bfloat16 or float16 |", "] float32 | bfloat16 | float16` |")
ROWS = re.findall(r"^\| `([\w.]+)` \| `(.+?)` \|", WORDED, flags=re.MULTILINE)


def test_every_capability_says_when_to_decline_it() -> None:
    assert list(glossary()) == [str(word) for word in Capability]
    assert [word for word, one in glossary().items() if not one.unsupported_if.startswith(("if ", "unless "))] == []


def test_table_of_the_manual_is_made_of_the_definitions() -> None:
    assert [word.row() for word in glossary().values() if word.row() not in made.BLOCKS["capabilities"]()] == []


def test_every_way_of_a_policy_is_in_the_manual_and_is_explained() -> None:
    for contract, kind, name, choice in [
        (p, k, n, c) for p, one in CONTRACTS.items() if (k := one.policy) for n, c in k.choices().items()
    ]:
        said = fairdraw("explain", name).output
        for way, line in choice.ways.items():
            assert f"| `{kind.__name__}({name}={way})` | {line} |" in made.BLOCKS[f"policies of {contract}"]()
            assert f"{way}: {line}" in said


@pytest.mark.parametrize("word", ["greedy", "GREEDY"])
def test_explain_says_what_a_word_costs(word: str) -> None:
    result = fairdraw("explain", word)
    codes = [check.code for check in all_checks(contract="rejection") if Capability.GREEDY in check.needs]
    assert result.exit_code == 0
    assert "Takes greedy requests" in result.output
    assert 'unsupported={"greedy": "your reason"}' in result.output
    assert re.search(rf"{len(codes)} of \d+ checks are skipped then: {', '.join(codes)}$", result.output, re.MULTILINE)


def test_explain_of_a_word_that_no_check_needs_says_so() -> None:
    result = fairdraw("explain", "draft-processors")
    assert result.output.endswith("no check is skipped then; fewer cases are drawn\n")


def fields_of(kind: type) -> dict[str, str]:
    """Public fields and the shapes beside them; the type where there is none."""
    source = inspect.getsource(kind)
    lines = re.findall(r"^    ([a-z]\w*): ([^=#\n]+?)(?: = [^#\n]*)?(?:  # (.+))?$", source, flags=re.MULTILINE)
    return {name: shape or annotation for name, annotation, shape in lines if name != "origin"}


@pytest.mark.parametrize("kind", [contracts.SpecDecodeBatch, contracts.SamplingBatch])
def test_manual_gives_every_field_of_a_batch_its_shape(kind: type) -> None:
    assert len(fields_of(kind)) > 5
    assert set(fields_of(kind).items()) <= set(ROWS)


@pytest.mark.parametrize("kind", [contracts.ExplicitNoise, contracts.SeededNoise, contracts.RaceNoise])
def test_manual_gives_every_field_of_the_noise_its_shape(kind: type) -> None:
    wanted = {(f"{kind.__name__}.{name}", shape) for name, shape in fields_of(kind).items()}
    assert wanted
    assert wanted <= set(ROWS)
