"""A pytest plugin for `upstream_tests.py`: vLLM's own tests on a CPU, with vLLM's samplers or with ours.

In both runs vLLM is made to run on a CPU (no pinned memory, Triton interpreted, the device is called `cpu`), and
`tests.utils` and `tests.conftest`, which start servers and load models, are stand-ins. In the run `ours` all pieces of
the vLLM plugin are installed, whatever `validated.json` says of this release, and `apply_all_penalties`, which the
plugin leaves to vLLM for rows that belong to no batch, is ours as well.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from fairdraw.adapters._runtime import prepare_triton, quiet_imports

prepare_triton("cpu")
OUTCOMES: dict[str, str] = {}
MISSING: list[str] = []
PENALTIES = "vllm.v1.sample.ops.penalties:apply_all_penalties"


def pytest_configure(config: pytest.Config) -> None:
    with quiet_imports():
        import torch
        from vllm.platforms import current_platform

    del config
    torch.set_num_threads(1)
    current_platform.device_type = "cpu"
    platform: Any = type(current_platform)
    platform.is_pin_memory_available = classmethod(lambda cls: False)
    platform.num_compute_units = classmethod(lambda cls, device_id=0: 1)
    platform.device_count = classmethod(lambda cls: 1)
    stand_in("tests.utils")
    stand_in("tests.conftest")
    with quiet_imports():
        from fairdraw_engines._vllm_validation.traces import without_pinned_memory

    without_pinned_memory()
    if os.environ["UPSTREAM_ARM"] == "ours":
        install_ours()


def stand_in(name: str) -> None:
    """A module in which every name is something that may decorate a test or stand in a type hint."""
    module = ModuleType(name)
    module.__dict__["__getattr__"] = _anything
    sys.modules[name] = module


def _anything(attribute: str) -> Any:  # Any: whatever a test file imports
    if attribute.startswith("__"):
        raise AttributeError(attribute)
    if attribute == "create_new_process_for_each_test":  # in this process, where calls are counted
        return lambda *_: lambda test: test
    if attribute == "large_gpu_mark":
        return lambda **_: pytest.mark.skip(reason="needs a GPU")
    return type(attribute, (), {})


def install_ours() -> None:
    """All pieces for model runner V1 whose functions this release has, and the penalties of rows without a batch."""
    import vllm

    from fairdraw.sampler_impl import vllm_plugin
    from fairdraw.sampler_impl.vllm_plugin import _validated
    from fairdraw.sampler_impl.vllm_plugin._patch import make_patch
    from fairdraw.sampler_impl.vllm_plugin._pieces import PIECES
    from fairdraw.sampler_impl.vllm_plugin._source import source_hash
    from fairdraw_engines._vllm_validation.validate import hashed

    release, package = str(vllm.__version__).partition("+")[0], Path(str(vllm.__file__)).parent
    found, missing = hashed(package)
    found = [piece for piece in found if piece.runner == "V1"]  # others wait for a V2 runner, which no test makes
    MISSING.extend(missing)
    functions = {target: source_hash(package, target) for piece in found for target in piece.functions}
    with tempfile.NamedTemporaryFile("w", suffix=".json", delete=False) as table:
        json.dump({release: {"pieces": {piece.name: {} for piece in found}, "functions": functions}}, table)
    _validated.TABLE = Path(table.name)
    for piece in PIECES:
        os.environ[piece.switch] = "1"
    os.environ["FAIRDRAW_VLLM_PLUGIN"] = "1"
    vllm_plugin.register()
    assert set(vllm_plugin.installed()) == {piece.name for piece in found}, vllm_plugin.installed()
    make_patch(PENALTIES, apply_all_penalties).apply()


def apply_all_penalties(
    upstream: object,
    logits: Any,  # Any: Tensor [num_rows, vocab_size] float32
    prompt_token_ids: Any,  # Any: Tensor [num_rows, length] int64
    presence: Any,  # Any: Tensor [num_rows] float32
    frequency: Any,  # Any: as presence
    repetition: Any,  # Any: as presence
    output_token_ids: list[list[int]],
) -> Any:  # Any: as logits
    """By `Penalties`, as if all rows had been added just now."""
    from fairdraw.sampler_impl.penalties import Penalties
    from fairdraw.sampler_impl.vllm_plugin import _calls

    del upstream
    vocab_size = logits.shape[-1]
    added = [
        (
            row,
            SimpleNamespace(presence_penalty=one, frequency_penalty=two, repetition_penalty=three),
            [token for token in prompt if token != vocab_size],
            output_token_ids[row],
        )
        for row, (prompt, one, two, three) in enumerate(
            zip(prompt_token_ids.tolist(), presence.tolist(), frequency.tolist(), repetition.tolist(), strict=True)
        )
    ]
    ours = Penalties(vocab_size, logits.device)
    ours.sync_batch(SimpleNamespace(removed=[], added=added, moved=[]))
    ours.update(output_token_ids)
    _calls.ours("apply_all_penalties")
    return ours.apply(logits, presence, frequency, repetition)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Modules that the tests have imported since must not pin memory either."""
    from fairdraw_engines._vllm_validation.traces import without_pinned_memory

    without_pinned_memory()
    for module in {item.module for item in session.items if isinstance(item, pytest.Function)}:
        for name in ("PIN_MEMORY_AVAILABLE", "PIN_MEMORY"):
            if hasattr(module, name):
                setattr(module, name, False)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Any:  # Any: pytest's generator
    """Both runs draw the same numbers, and a default device does not stay behind."""
    import torch

    del item
    torch.manual_seed(0)
    yield
    torch.set_default_device(None)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """The first phase that is not a pass decides."""
    if report.outcome != "passed" or (report.when == "call" and report.nodeid not in OUTCOMES):
        OUTCOMES.setdefault(report.nodeid, report.outcome)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        OUTCOMES[report.nodeid] = "failed"


def pytest_sessionfinish() -> None:
    from fairdraw.sampler_impl import vllm_plugin

    result = {"outcomes": OUTCOMES, "calls": vllm_plugin.calls(), "missing": MISSING}
    Path(os.environ["UPSTREAM_RESULT"]).write_text(json.dumps(result))
