"""Recipes of docs/languages.md are followed by what the page says alone: green as they stand, red with a fault."""

import importlib.util
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import fairdraw
from manual import newcomer

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "languages.md").read_text()
ARRAYS = "In NumPy, JAX, MLX or CuPy"
RECIPES = (
    ("A C library", "cc", "judge_c", "j < vocab_size;", "j < vocab_size - 1;", "DIST701"),
    (ARRAYS, "numpy", "judge_numpy", "np.where(greedy, l", "np.where(False, l", "SAM121"),
    (ARRAYS, "jax", "judge_jax", "jnp.where(greedy, l", "jnp.where(False, l", "SAM121"),
)
"""Section, what it needs, its sampler, a place of it and what stands there if it is wrong, a check that sees it."""


def steps(title: str, command: str) -> str:
    """Files and commands of a section up to its `fairdraw check`."""
    section = re.split(r"^#{1,2} ", PAGE.partition(f"\n## {title}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    blocks = (found[0] for found in newcomer.FENCE.finditer(section))
    return "\n".join(one for one in blocks if command in one or f'"{command}.py"' in one or "```c " in one)


def verdict(folder: Path, text: str, code: str, monkeypatch: pytest.MonkeyPatch) -> str:
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
        printed.append(fairdraw(*words, "-k", "SAM101", "-k", code).output)
        return printed[-1]

    newcomer.Newcomer(folder, run).follow(text)
    (output,) = printed
    return output


@pytest.mark.parametrize(
    ("title", "needs", "command", "right", "wrong", "code"), RECIPES, ids=[one[1] for one in RECIPES]
)
def test_recipe_judges_a_right_sampler_and_a_wrong_one(
    title: str,
    needs: str,
    command: str,
    right: str,
    wrong: str,
    code: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not (shutil.which(needs) or importlib.util.find_spec(needs)):
        pytest.skip(f"{needs} is not installed")
    text = steps(title, command)
    assert text.count(right) == 1

    assert "GREEN" in (said := verdict(tmp_path / "right", text, code, monkeypatch)), said
    said = verdict(tmp_path / "wrong", text.replace(right, wrong), code, monkeypatch)
    assert "RED" in said, said
    assert code in said
