"""`fairdraw init` writes files that work at once, says what it could not know, and touches nothing that is there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result

from fairdraw.cli import main

if TYPE_CHECKING:
    from pathlib import Path

KERNEL = """
from fairdraw import ExplicitNoise, SpecDecodeBatch
from fairdraw.oracles.rejection import verify as oracle

def explicit(draft_token_ids, num_draft_tokens, max_spec_len, cu_num_draft_tokens, draft_probs, target_logits,
             bonus_token_ids, temperature, uniforms, exponentials, eps=0):
    batch = SpecDecodeBatch(draft_token_ids, num_draft_tokens, cu_num_draft_tokens, max_spec_len, draft_probs,
                            target_logits, bonus_token_ids, temperature)
    return oracle(batch, ExplicitNoise(uniforms, exponentials))

verify = make = explicit

def odd(draft_token_ids, workspace):
    return draft_token_ids

constant = 3
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with somebody's kernels, as the current one."""
    (tmp_path / "kernels_of_init.py").write_text(KERNEL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def init(function: str) -> Result:
    return CliRunner().invoke(main, ["init", f"kernels_of_init:{function}"])


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("function", ["explicit", "verify", "make"])
def test_written_adapter_is_judged_at_once(function: str) -> None:
    """Also if the function is called as one of the adapter is."""
    assert init(function).exit_code == 0
    words = ["check", f"fairdraw_{function}:make", "--profile", "smoke", "-k", "REJ101", "-k", "REJ401"]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.output
    assert "2 run: 2 passed" in result.output


def test_every_file_is_named(here: Path) -> None:
    result = init("explicit")
    for name in ("fairdraw_explicit.py", "test_fairdraw_explicit.py", ".github/workflows/fairdraw.yml"):
        assert f"written: {name}" in result.output
        assert (here / name).is_file()
    assert "then: fairdraw check fairdraw_explicit:make" in result.output


def test_parameter_without_a_known_value_is_left_to_a_person(here: Path) -> None:
    result = init("odd")
    assert "fill in, in fairdraw_odd.py: workspace" in result.output
    text = (here / "fairdraw_odd.py").read_text()
    assert "workspace=...,  # fill in" in text
    assert '"explicit-noise": "we draw our own noise"' in text
    compile(text, "fairdraw_odd.py", "exec")


def test_existing_file_is_not_overwritten(here: Path) -> None:
    (here / "fairdraw_odd.py").write_text("mine")
    result = init("odd")
    assert result.exit_code == 2
    assert "fairdraw_odd.py exists and is not overwritten" in result.output
    assert (here / "fairdraw_odd.py").read_text() == "mine"
    assert not (here / "test_fairdraw_odd.py").exists()


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        ("absent", "cannot be imported: AttributeError"),
        ("constant", "is a int, but it must be callable"),
        ("", "must be pkg.module:callable"),
    ],
)
@pytest.mark.usefixtures("here")
def test_what_is_no_callable_is_refused_in_one_sentence(function: str, sentence: str) -> None:
    result = init(function)
    assert result.exit_code == 2
    assert sentence in result.output
