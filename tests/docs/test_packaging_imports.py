"""Import is free: what is not used is not imported."""

import re

import pytest
from helpers import printed_by, python

HEAVY = {"torch", "triton", "numpy", "scipy", "hypothesis", "vllm"}


def imported_by(statement: str, before: str = "pass") -> set[str]:
    """Modules that `statement` adds to those of `before`, in a fresh interpreter."""
    program = f"{before}\nimport sys\nbefore = set(sys.modules)\n{statement}\nprint(*(set(sys.modules) - before))"
    return set(python(program).split())


UNTIL_IT_IS_HEAVY = f"""
import posix, sys
class Ending:
    def find_spec(name, *_):
        if name in {HEAVY}:
            sys.stdout.flush()
            posix._exit(0)  # os._exit would say a verdict
sys.meta_path.insert(0, Ending)
sys.stderr = sys.stdout
from fairdraw._cli.main import main
main(sys.argv[1:])
"""


@pytest.mark.parametrize(
    "words", ["list", "explain REJ107", "check rejection/torch -n 0", "bench rejection/torch", "replay REJ107"]
)
def test_first_line_is_printed_before_anything_heavy_is_imported(words: str) -> None:
    assert re.fullmatch(r"fairdraw \S+: loading .* \.\.\.\n", printed_by("-c", UNTIL_IT_IS_HEAVY, *words.split()))


def packages(modules: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in modules}


CORE = {f"fairdraw._core.{name}" for name in ("interrupts", "last_words", "pulse", "seeds")}
PLUGIN = {"fairdraw", "fairdraw._core", "fairdraw.pytest_plugin", *CORE}


def test_plugin_adds_small_modules_to_pytest() -> None:
    """What other people's pytest runs pay for it. Counted, because times depend on the machine."""
    assert imported_by("import fairdraw.pytest_plugin", "import pytest") == PLUGIN


def test_hypothesis_adds_the_contracts_only() -> None:
    without_plugins = "import os; os.environ['HYPOTHESIS_NO_PLUGINS'] = '1'; import hypothesis.strategies"
    added = imported_by("from fairdraw.hypothesis_plugin import register; register()", without_plugins)
    ours = {name for name in added if name.startswith("fairdraw")}
    assert {".".join(name.split(".")[:2]) for name in ours} == {
        "fairdraw", "fairdraw.hypothesis_plugin", "fairdraw.contracts", "fairdraw._core",
    }  # fmt: skip
    assert not packages(added) & (HEAVY - {"hypothesis"})
    assert len(added) < 40  # small modules, nine of them contracts: every user of Hypothesis loads them


def test_import_of_the_package_adds_itself_only() -> None:
    assert imported_by("import fairdraw", "import typing, importlib") == {"fairdraw"}


@pytest.mark.parametrize(
    ("statement", "brings"),
    [
        ("import fairdraw.contracts, fairdraw._core.seeds, fairdraw._core.failures, fairdraw._core.validation", set()),
        ("import fairdraw._core.checks", set()),
        ("import fairdraw; fairdraw.rejection_sampler(print, unsupported={'greedy': 'not ours'})", set()),
        ("import fairdraw.adapters", set()),
        ("import fairdraw.sampler_impl.thinking_budget", set()),
        ("import fairdraw.statistical", {"numpy", "scipy"}),
        ("from fairdraw import all_checks; all_checks(contract='server')", {"numpy", "scipy", "hypothesis"}),
    ],
    ids=["words", "checks", "a sampler is wrapped", "adapters", "thinking budget", "statistical", "servers"],
)
def test_import_brings_nothing_heavy(statement: str, brings: set[str]) -> None:
    assert packages(imported_by(statement)) & (HEAVY | {"pytest"}) <= brings


def test_import_of_the_strategies_brings_neither_triton_nor_our_samplers() -> None:
    added = imported_by("from fairdraw import strategies")
    assert not packages(added) & {"triton", "vllm", "scipy"}
    assert not {name for name in added if "sampler_impl" in name}
