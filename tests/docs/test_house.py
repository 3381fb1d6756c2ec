"""The house stays small: limits on lines, lengths of functions, layers, cycles of imports, comments in kernels."""

from __future__ import annotations

import statistics

import house
import pytest

# Issue 17 widened the suite: sizes, values, combinations and moments in every contract, each seen failing by a mutant.
# Issue 18 brought model runner V2 under every contract, drafters, and a command that validates a user's own vLLM.
# Issue 19 brought the whole sampling step, in Triton and in PyTorch.
# Issue 20 brought three contracts: server (with a client and a stub server), log-probabilities, grammar.
# Issue 21 brought samplers of seven projects, the contract filters, and CUDA kernels of two more. Then what is drawn
# next from torch's generator, an interpreter of half the time, and a step that knows its tensors: 400 lines. Then
# SGLang's penalties, with a policy and a capability of their own, and a check that rows forget seeds: 330 lines.
# Steps of V2 with compiled kernels on a GPU, and what rounding may do there: 260 lines, and 110 of tests.
# An interpreter of a tenth of the time, which records what operations do: 220 lines, and 110 of tests.
# Steps replayed as CUDA graphs, and the tests that such steps are the same ones: 120 lines, and 200 of tests.
# Every way to draw under every check that hands noise to torch's draws: 30 lines of tests.
# Rows of the properties made in less time, and odd samplers whose draws are vectorised: 30 lines, and 20 of tests.
# Samplers that are functions launch without Triton's dispatch: 150 lines, and 260 of tests.
# Tapes of whole device functions in the interpreter, and a drafter's step: 310 lines, and 60 of tests.
# Draft logits in the whole step, and drafters of V2 that keep them: 160 lines, and 260 of tests.
# A scan that stops at surely rejected drafts, with a test of each of its shapes; workers of sharded draws: 190 and 60.
# Sharded draws that are made and counted on the device: 80 lines, and 30 of tests.
# A step from raw logits under the rejection contract, launches on a plan's own device, and tests of drafts that are
# accepted by as little as their row allows: 250 lines, and 340 of tests.
# Programs of interpreted kernels side by side, as rows of arrays: 670 lines, and 125 of tests.
# Min-p of the raw step whose excluded tokens would be drawn, and shifted draft logits; tests of draft rows: 30 and 80.
# What an examiner's faults showed that nobody generated: wide log-probabilities, grammars, filters, scanners and plans,
# uniform batches, positions: 1,300 lines, of which 500 are mutants; and 60 of tests.
MAX_LIBRARY_LINES = 59_800
MAX_TEST_LINES = 19_350


def test_library_and_tests_stay_within_their_lines() -> None:
    assert house.library_lines() <= MAX_LIBRARY_LINES
    assert house.test_lines() <= MAX_TEST_LINES


def test_functions_are_short() -> None:
    """A kernel is long where its phases share what is in registers; it is held by what follows instead."""
    found, of_kernels = house.functions(), {(kernel.name, path) for kernel, path in house.kernels()}
    lengths = sorted(length for length, _, _ in found)
    assert [one for one in found if one[0] > 80 and one[1:] not in of_kernels] == []
    assert statistics.median(lengths) <= 7
    assert lengths[int(0.9 * len(lengths))] <= 20


def test_imports_have_no_cycle_and_few_layers() -> None:
    assert house.import_cycles() == []
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
