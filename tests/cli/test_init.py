"""`fairdraw init` writes files that work at once, says what it could not know, and touches nothing that is there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result

import fairdraw
from fairdraw._cli.main import main
from fairdraw._run.loading import all_checks, load_sampler

if TYPE_CHECKING:
    from fairdraw.protocols import FunctionSampler

KERNEL = """
from fairdraw import ExplicitNoise, SpecDecodeBatch
from fairdraw._oracles.rejection import verify as oracle

def explicit(draft_token_ids, num_draft_tokens, max_spec_len, cu_num_draft_tokens, draft_probs, target_logits,
             bonus_token_ids, temperature, uniforms, exponentials, eps=0):
    batch = SpecDecodeBatch(draft_token_ids, num_draft_tokens, cu_num_draft_tokens, max_spec_len, draft_probs,
                            target_logits, bonus_token_ids, temperature)
    return oracle(batch, ExplicitNoise(uniforms, exponentials))

verify = make = explicit

def odd(draft_token_ids, workspace):
    return draft_token_ids

def chain(draft_ids, draft_lens, q, p, generator=None):
    return draft_ids

def seeded(draft_token_ids, target_probs, seed):
    return draft_token_ids

def bare(draft_token_ids, target_probs):
    return draft_token_ids

def inverse(draft_token_ids, draft_probs, target_probs, uniforms, synthetic_rates):
    return draft_token_ids

def careless(draft_token_ids, num_draft_tokens, max_spec_len, cu_num_draft_tokens, q, target_logits,
             bonus_token_ids, temperature, uniforms, exponentials):
    return explicit(draft_token_ids, num_draft_tokens, max_spec_len, cu_num_draft_tokens, None, target_logits,
                    bonus_token_ids, temperature, uniforms, exponentials)

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
    assert "workspace=...,  # fill in\n" in text
    compile(text, "fairdraw_odd.py", "exec")


def told(result: Result, what: str) -> str:
    """The line of what init printed that begins so."""
    (line,) = (line for line in result.output.splitlines() if line.startswith(what))
    return line


def adapted(function: str) -> FunctionSampler:
    """What the written adapter makes."""
    return load_sampler(f"fairdraw_{function}:make")  # type: ignore[return-value]  # the template wraps a function


def test_name_that_is_missing_closes_nothing_while_another_may_stand_for_it(here: Path) -> None:
    """The draft distribution is called `q` there, and a generator may hold the noise."""
    result = init("chain")
    assert set(adapted("chain").capabilities.unsupported) == {"upstream-stream", "synthetic-rates"}
    assert told(result, "fill in").endswith(": draft_ids, draft_lens, q, p")
    assert re.search(
        r": explicit-noise \(\d+ checks\), dense-drafts \(\d+ checks\)$", told(result, "left open, answer")
    )
    text = (here / "fairdraw_chain.py").read_text()
    assert "# Does any of draft_ids, draft_lens, q, p, generator take batch.draft_probs?" in text
    assert '# "dense-drafts": "our drafts are one-hot",' in text


def test_other_right_ways_are_comments_that_can_be_taken_away(here: Path) -> None:
    assert "other right ways to verify, to round and to break ties" in init("explicit").output
    path = here / "fairdraw_explicit.py"
    before = adapted("explicit").capabilities.unsupported
    choices = {"token-verification", "reference-race", "reference-rounding", "lowest-id-ties"}
    assert not choices & set(before)
    for word in choices:
        path.write_text(path.read_text().replace(f'# "{word}"', f'"{word}"'))
    assert max(map(len, path.read_text().splitlines())) <= 120
    found: dict[str, Any] = {}
    exec(compile(path.read_text(), "adapter", "exec"), found)
    assert set(found["make"]().capabilities.unsupported) == {*before, *choices}


def test_sampler_that_ignores_a_draft_distribution_of_another_name_is_caught(here: Path) -> None:
    assert init("careless").exit_code == 0
    path = here / "fairdraw_careless.py"
    path.write_text(path.read_text().replace("q=...,  # fill in", "q=batch.draft_probs,"))
    result = CliRunner().invoke(main, ["check", "fairdraw_careless:make", "--profile", "smoke", "-k", "REJ403"])
    assert result.exit_code == 1
    assert "RED: checks failed: 1" in result.output


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("function", "unsupported", "left"),
    [
        ("seeded", {"explicit-noise", "synthetic-rates"}, "dense-drafts"),
        ("bare", {"explicit-noise", "synthetic-rates"}, "dense-drafts"),
        ("inverse", {"seeded-noise", "request-seeds"}, ""),
    ],
)
def test_whatever_is_closed_is_told_with_its_cost(function: str, unsupported: set[str], left: str) -> None:
    result = init(function)
    assert set(adapted(function).capabilities.unsupported) == {"upstream-stream", *unsupported}
    named = re.findall(r"([\w-]+) \((\d+) checks\)", told(result, "declared unsupported for you, check it"))
    assert {word: int(number) for word, number in named} == {
        str(word): sum(word in check.needs for check in all_checks(contract="rejection"))
        for word in adapted(function).capabilities.unsupported
    }
    assert ("left open, answer" in result.output) == bool(left)
    assert left in result.output


def test_workflow_installs_torch_before_fairdraw_and_both_before_it_judges(here: Path) -> None:
    init("odd")
    text = (here / ".github" / "workflows" / "fairdraw.yml").read_text()
    steps = re.findall(r"^ +(?:- )?run: (.+)$", text, flags=re.MULTILINE)
    wheel = f"pip install ./fairdraw-{fairdraw.__version__}-py3-none-any.whl"
    assert steps[:3] == ["pip install torch", wheel, "pip install ."]
    assert all(step.startswith("fairdraw check fairdraw_odd:make --profile ci") for step in steps[3:])
    assert f"- run: {wheel} " in (Path(__file__).parents[2] / "docs" / "ci.md").read_text()
    assert text.count("# PLACEHOLDER: ") == 2
    assert max(map(len, text.splitlines())) <= 120


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
