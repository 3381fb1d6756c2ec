"""Recipes of docs/languages.md are followed by what the page says alone: green as they stand, red with a fault."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import fairdraw
from manual import newcomer


def verdict(folder: Path, text: str, codes: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> str:
    """What the last command prints. The page runs every check; here a few are enough."""
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    monkeypatch.setattr("fairdraw._cli.job.mutants_of", lambda *_: [])
    printed = []

    def run(command: str) -> str:
        program, *words = shlex.split(command)
        if program != "fairdraw":
            subprocess.run([program, *words], check=True, cwd=folder)
            return ""
        sys.modules.pop(words[1].partition(":")[0], None)
        short = [word for code in ("SAM101", *codes) for word in ("-k", code)]
        printed.append(fairdraw(*words, *short).output)
        return printed[-1]

    newcomer.Newcomer(folder, run).follow(text)
    (output,) = printed
    return output


@pytest.mark.parametrize("name", newcomer.RECIPES)
def test_recipe_judges_a_right_sampler_and_a_wrong_one(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = newcomer.RECIPES[name]
    if recipe.missing():
        pytest.skip(recipe.missing())

    right = verdict(tmp_path / "right", recipe.steps, recipe.codes, monkeypatch)
    wrong = verdict(tmp_path / "wrong", recipe.faulty_steps, recipe.codes, monkeypatch)

    assert "GREEN" in right, right
    assert "RED" in wrong, wrong
    assert any(code in wrong for code in recipe.codes)
