"""The kernel that CI interprets is the kernel that ships: what Triton's mode is decides nothing about kernels.

All that reaches a kernel is written down in a process whose Triton interprets and in one whose Triton compiles: which
functions there are, the constants that they read, and constants, options and grids of launches, which do nothing here.
"""

import json
import os
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import CodeType
from typing import Any

import numpy as np
import pytest
import torch

HERE = Path(__file__).parent
KERNELS = HERE.parents[1] / "sampler_impl"
DEVICES = torch.device("cpu"), torch.device("cuda", 0)
SIZES = ((2, 3, 40), (300, 1, 5000), (5, 0, 70_000))
"""Requests, most drafts and vocabulary of plans."""


def names_in(code: CodeType) -> Iterator[str]:
    """Yield every name that a function reads, in functions inside it as well."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from names_in(constant)


def constants_of_kernels() -> dict[str, dict[str, str]]:
    """Return what each jitted function reads from its module: numbers, words and compile-time constants."""
    found: dict[str, dict[str, str]] = {}
    for path in sorted(KERNELS.rglob("*.py")):
        if "@triton.jit" not in path.read_text():
            continue
        name = ".".join(("fairdraw.sampler_impl", *path.relative_to(KERNELS).with_suffix("").parts))
        for kernel in vars(import_module(name)).values():
            function = getattr(kernel, "fn", None)
            if getattr(function, "__module__", None) == name:
                read = {word: function.__globals__.get(word) for word in names_in(function.__code__)}
                values = {word: getattr(value, "value", value) for word, value in read.items()}
                plain = {word: repr(one) for word, one in values.items() if isinstance(one, (int, float, str, tuple))}
                found[f"{name}.{function.__name__}:{function.__code__.co_firstlineno}"] = plain
    return found


def fact_of(argument: Any) -> Any:  # Any: of kernels
    """Return what a kernel may be compiled for of an argument."""
    if isinstance(argument, torch.Tensor):
        return str(argument.dtype), argument.dim()
    return [fact_of(one) for one in argument] if isinstance(argument, tuple) else repr(argument)


def launches() -> list[Any]:  # Any: words and numbers
    """Return every launch of a few calls of each sampler, and all kernels of plans on a CPU and on a card."""
    from triton.runtime.jit import KernelInterface

    from fairdraw.sampler_impl._shared import backend, compiled

    found: list[Any] = []

    def noted(self: Any, grid: Any) -> Any:  # Any: Triton's
        def run(*arguments: Any, **named: Any) -> None:
            given = {name: fact_of(value) for name, value in named.items()}
            found.append([self.fn.__name__, list(grid), fact_of(arguments), given])

        return run

    KernelInterface.__getitem__ = noted
    backend.choose_backend = lambda *_, **__: "triton"  # which refuses tensors on a CPU, unless they are interpreted
    compiled.current_place, compiled.stream_of = lambda: (None, None), lambda _: None
    from fairdraw.sampler_impl import logprobs
    from fairdraw.sampler_impl._scanners import penalties_kernel
    from fairdraw.sampler_impl._scanners.penalty_rows import PenaltyRows
    from fairdraw.sampler_impl._step import launch

    launch.launches_overlap, launch.num_multiprocessors = lambda device: device.type == "cuda", lambda _: 132
    from test_launch_plans import SAMPLERS, variants

    for name, (call, _, _) in SAMPLERS.items():
        for arguments in variants(name):
            call(arguments)
    logprobs.top_logprobs(torch.zeros(3, 9000), torch.zeros(3, dtype=torch.int64), 5)
    rows = PenaltyRows(*(np.zeros(2, np.int64) for _ in range(5)))
    penalties_kernel.penalise(torch.zeros(2, 5000), torch.zeros(2, 5000).int(), rows, (torch.zeros(2),) * 3)
    found.extend(kernels_of_plans(launch))
    return found


def kernels_of_plans(launch: Any) -> Iterator[Any]:  # Any: a module, words and numbers
    from step_cases import make_case

    from fairdraw.sampler_impl.step import Capacity, Drafts, StepPlan

    for device in DEVICES:
        choose = launch.Launches._choose_kernels
        launch.Launches._choose_kernels = lambda self, _, device=device, choose=choose: choose(self, device)
        for batch_size, most, vocab_size in SIZES:
            for filters, edits in ((False, 0), (True, 64)):
                drafts = Drafts.ONE_HOT if most else Drafts.NONE
                capacity = Capacity(
                    batch_size, most, vocab_size, torch.float32, drafts, filters, penalties=edits > 0, edits=edits
                )
                run = launch.Launches(capacity, torch.device("cpu"))
                kernels = (
                    run.edit_kernel,
                    run.emit_kernel,
                    run.flat_kernel,
                    *run.scan_kernels.values(),
                    *run.settle_kernels.values(),
                )
                yield [[one.kernel.fn.__name__, one.options, one.constants] for one in kernels]
                yield [run._shape_of(blocks) for blocks in (1, 700, 4000, 1 << 15)], run.num_blocks, run.tiles
        for seed, edits in enumerate((False, True)):
            case = make_case(seed, [2, 0, 1], 5000, edits=edits)
            plan = StepPlan(case.capacity, "cpu")
            plan(case.inputs)
            plan.processed_logits(case.inputs)
        launch.Launches._choose_kernels = choose


def test_kernels_do_not_depend_on_triton_s_mode() -> None:
    from helpers import printed_by  # which loads every check: not in the processes that run this file

    found = []
    for mode in ("0", "1"):
        paths = os.pathsep.join(map(str, (HERE, HERE.parents[1] / "tools", HERE.parents[1] / "src")))
        environment = os.environ | {"TRITON_INTERPRET": mode, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": paths}
        found.append(json.loads(printed_by("-W", "ignore", __file__, env=environment)))
    (constants, compiled_launches), (interpreted, launched) = found
    assert len(constants) > 100
    assert interpreted == constants
    assert {"scan_kernel", "settle_kernel", "_penalise_kernel", "_merge_kernel", "_race_kernel", "draw_kernel"} <= {
        one[0] for one in launched if isinstance(one[0], str)
    }
    assert launched == compiled_launches


def test_cards_are_refused_where_triton_interprets() -> None:
    """Kernels for a card have instructions that nobody interprets."""
    from fairdraw.sampler_impl._shared import backend, kernels

    if not kernels.INTERPRETED:
        pytest.skip("kernels are compiled here")
    for name in (None, "triton"):
        with pytest.raises(ValueError, match=r"^f: logits.device=cuda:0, but .*Unset TRITON_INTERPRET.*[.]$"):
            backend.choose_backend("f", name, torch.device("cuda", 0))


if __name__ == "__main__":
    print(json.dumps([constants_of_kernels(), launches()]))
