"""The project speaks the field's language: the words of tests/retired_words.txt stand nowhere in the tree."""

import re
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from house import first_words

ROOT = next(folder for folder in Path(__file__).resolve().parents if (folder / "pyproject.toml").exists())
TABLE = ROOT / "tests" / "retired_words.txt"
"""Beside this file, so that no tool that renames words in Python renames these."""

SUFFIXES = {".py", ".md", ".toml", ".j2", ".yml", ".in", ""}
READ = {"run-line.schema.json", "failing_examples.json"}
"""Files of data that users read."""

ALLOWED: dict[tuple[str, str], str] = {
    (r"^(engines/)?LICENSE$|^tests/docs/test_language\.py$", "law"): "a licence speaks of the law; and this line",
    (
        r"^properties/_lifecycle_check\.py$|^tests/docs/test_language\.py$",
        r"\blives\b|(?<=[a-z])Lives\b|_lives\b",
    ): "hashed into the seed of the cases, which would change; and these lines",
}
"""(Regular expression of paths, the word as in the table) to the reason why it may stand there."""


@dataclass(frozen=True)
class Retired:
    """A word that is no longer used.

    Args:
        word: A word, also found as a part of an identifier; or a regular expression if it is no plain word.
        use: What to write instead.
        where: A regular expression of the paths in which it is retired.
    """

    word: str
    use: str
    where: str = ""

    @property
    def pattern(self) -> re.Pattern[str]:
        if not self.word.isalpha():
            return re.compile(self.word)
        # In any of three cases, and never inside of another word.
        one, many = self.word, self.word.removesuffix("y") + ("ies" if self.word.endswith("y") else "s")
        low, capital, upper = (f"(?:{form(many)}|{form(one)})" for form in (str.lower, str.capitalize, str.upper))
        return re.compile(rf"(?<![A-Za-z]){low}(?![a-z])|(?<![A-Z]){capital}(?![a-z])|(?<![A-Za-z]){upper}(?![A-Z])")


@cache
def retired_words() -> tuple[Retired, ...]:
    """The table."""
    words, where = [], ""
    for line in TABLE.read_text(encoding="utf-8").split("\n\n", 1)[1].splitlines():
        if line.startswith("[") and line.endswith("]"):
            where = line[1:-1]
        elif line:
            words.append(Retired(*line.split(" -> "), where))
    return tuple(words)


@cache
def sources() -> dict[str, list[str]]:
    """Path to the path and the lines, of every text file that git knows or would add."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    texts = (name for name in listed if name and (Path(name).name in READ or Path(name).suffix in SUFFIXES))
    files = (name for name in texts if (ROOT / name).is_file())
    return {name: [name, *(ROOT / name).read_text(encoding="utf-8").splitlines()] for name in files}


def places(retired: Retired) -> list[str]:
    """Where it stands, but for the allowed places, and what to write instead. Line 0 is the path itself."""
    pattern, where = retired.pattern, re.compile(retired.where)
    return [
        f"{path}:{number}: write {retired.use!r} for {match[0]!r}"
        for path, lines in sources().items()
        if where.match(path) and not any(re.search(here, path) and retired.word == word for here, word in ALLOWED)
        for number, line in enumerate(lines)
        for match in pattern.finditer(line)
    ]


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a git checkout")
@pytest.mark.parametrize("retired", retired_words(), ids=lambda retired: retired.word)
def test_retired_word_stands_nowhere(retired: Retired) -> None:
    found = places(retired)
    assert not found, "\n".join([f"{len(found)} places", *found[:20]])


# Folders whose docstrings begin with a verb or a noun. The list grows; `vllm_plugin` waits for its turn.
WITH_VERBS = ["sampler_impl"]
# First words of functions; words that nothing begins with, as they leave the subject open; verbs that are nouns, too.
VERBS, NEVER, ALSO_NOUNS = (set(line.split()) for line in (ROOT / "tests" / "first_words.txt").read_text().splitlines())


@pytest.mark.parametrize("folder", WITH_VERBS)
def test_docstrings_begin_with_a_verb_or_a_noun(folder: str) -> None:
    found = [one for one in first_words(folder) if "/vllm_plugin/" not in one[0]]
    assert [one for one in found if (one[2] not in VERBS if one[1] else one[2] in (VERBS | NEVER) - {"Whether"})] == []


def test_help_of_every_option_begins_with_a_verb() -> None:
    texts = [path.read_text() for path in (ROOT / "src" / "fairdraw" / "_cli").glob("*.py")]
    found = re.findall(r'help=f?"(\w+)', "".join(texts))
    assert (len(found) > 40, [word for word in found if word not in VERBS | ALSO_NOUNS]) == (True, [])


@pytest.mark.parametrize("text", ["a lamp", "Lamps", "DRAFT_LAMP", "LAMP203", "LampCheck", "isLamp", "draft_lamps"])
def test_word_is_found_in_identifiers(text: str) -> None:
    assert Retired("lamp", "light").pattern.search(text)


@pytest.mark.parametrize("text", ["clamp", "CLAMP", "lampoon", "Lampoon"])
def test_word_is_not_found_in_other_words(text: str) -> None:
    assert not Retired("lamp", "light").pattern.search(text)
