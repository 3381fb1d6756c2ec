"""The house stays small: limits on lines of folders, lengths of functions, layers, cycles, comments in kernels."""

import ast
import statistics
from pathlib import Path

import house
import pytest

import fairdraw
from fairdraw._core import capabilities
from fairdraw._core.contracts import CONTRACTS


@pytest.mark.parametrize("folder", house.limits())
def test_folder_stays_within_its_lines_and_its_limit_falls_with_them(folder: str) -> None:
    lines, limit = house.lines_by_folder()[folder], house.limits()[folder]
    assert lines <= limit, f"{folder} has {lines} lines of code, but at most {limit} are allowed. Delete some."
    assert lines > limit - 2 * house.SLACK, f"{folder} has {lines} lines of {limit}. Run python tools/house.py --lower."


def test_functions_are_short() -> None:
    """A kernel is long where its phases share what is in registers; it is held by what follows instead."""
    found, of_kernels = house.functions(), {(kernel.name, path) for kernel, path in house.kernels()}
    lengths = sorted(length for length, _, _ in found)
    assert [one for one in found if one[0] > 80 and one[1:] not in of_kernels] == []
    assert statistics.median(lengths) <= 7
    assert lengths[int(0.9 * len(lengths))] <= 20


def test_imports_have_no_cycle_and_few_layers() -> None:
    assert not house.import_cycle(), " imports ".join(house.import_cycle())  # all of it, unlike a comparison
    assert house.num_layers() <= 12


# Kernels that take more parameters than they should: 24, 26, 22 (the counter family), 15, 14, 13, 18. None may join.
LONG_KERNELS = {"measure_kernel", "accept_kernel", "draw_kernel"}
LONG_KERNELS |= {"_accept_kernel", "_sample_kernel", "_scan_kernel", "_merge_kernel"}


def test_kernels_are_flat_and_take_few_parameters_and_members_have_names() -> None:
    assert [kernel.name for kernel, _ in house.kernels() if house.nesting(kernel) > 3] == []
    assert {kernel.name for kernel, _ in house.kernels() if len(kernel.args.args) > 12} <= LONG_KERNELS
    assert len(found := house.numeric_accesses()) <= 20, found


def test_kernels_are_explained() -> None:
    comments, lines = house.kernel_comments()
    assert comments >= 0.03 * lines


@pytest.mark.parametrize(
    ("text", "count"),
    [("x = 1\n\n# why\ny = 2\n", 2), ('"""Head.\n\nMore.\n"""\nx = """a\nb"""\n', 2), ("def f():\n    'doc'\n", 1)],
)
def test_only_code_is_counted(text: str, count: int) -> None:
    assert len(house.code_lines(text)) == count


@pytest.mark.parametrize("folder", ["_core", "_run", "_report", "_cli", "_plugin"])
def test_what_serves_every_contract_names_none(folder: str) -> None:
    """Capabilities are left out: a word of servers, `penalties`, is the name of a contract, too."""
    files = set((Path(fairdraw.__file__).parent / folder).glob("*.py")) - {Path(capabilities.__file__)}
    nodes = ((path.name, node) for path in files for node in ast.walk(ast.parse(path.read_text())))
    assert [(name, n.lineno) for name, n in nodes if isinstance(n, ast.Constant) and n.value in CONTRACTS] == []
