"""The plugin's machinery without vLLM, or with a fake package of that name."""

import doctest
import importlib.util
import json
import os
import sys
from pathlib import Path

import pytest
from helpers import SOURCE, printed_by, python

from fairdraw.sampler_impl.vllm_plugin import _calls, _model_runner, _source, _switches, _validated, register, unpatch
from fairdraw.sampler_impl.vllm_plugin._hook import ImportHook
from fairdraw.sampler_impl.vllm_plugin._pieces import PIECES

ROOT = Path(__file__).parents[2]
MANUAL = ROOT / "docs" / "vllm-plugin.md"
RELEASES = ("0.22.0", "0.22.1", "0.23.0", "0.24.0", "0.25.0", "0.25.1", "0.26.0", "0.27.0", "0.27.1", "0.28.0")
"""All of PyPI from 0.22.0 to 0.28.0."""
V2_RELEASE = "0.33.0"
FOR_V1 = [piece for piece in PIECES if piece.runner == "V1"]
FUNCTION = """
class Thing:
    def act(self, amount):
        return amount + 1
"""


@pytest.mark.parametrize("switch", ["0", "1"], ids=["off", "on"])
def test_registering_imports_neither_torch_nor_vllm(switch: str) -> None:
    program = """
from fairdraw.sampler_impl.vllm_plugin import register
register()
import sys
print(sorted({"torch", "numpy", "triton", "vllm"} & set(sys.modules)))
"""
    assert python(program, FAIRDRAW_VLLM_PLUGIN=switch).strip() == "[]"


@pytest.mark.parametrize(
    ("value", "on"),
    [(None, False), ("1", True), ("on", True), ("TRUE", True), ("0", False), ("", False), ("off", False)],
    ids=["unset", "1", "on", "TRUE", "0", "empty", "off"],
)
def test_switch_is_read(value: str | None, on: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(_switches.PLUGIN, raising=False)
    if value is not None:
        monkeypatch.setenv(_switches.PLUGIN, value)
    assert _switches.is_on(_switches.PLUGIN, default=False) is on


def test_unknown_switch_is_logged_and_off(monkeypatch: pytest.MonkeyPatch, logged: pytest.LogCaptureFixture) -> None:
    before = list(sys.meta_path)
    monkeypatch.setenv(_switches.PLUGIN, "maybe")
    register()
    assert sys.meta_path == before
    assert logged.messages == [
        "fairdraw: FAIRDRAW_VLLM_PLUGIN=maybe, but it must be 1 or 0; what it switches stays off."
    ]


def test_register_never_raises(monkeypatch: pytest.MonkeyPatch, logged: pytest.LogCaptureFixture) -> None:
    def broken(self: ImportHook) -> None:
        raise OSError("no import system today")

    monkeypatch.setenv(_switches.PLUGIN, "1")
    monkeypatch.setattr(ImportHook, "install", broken)
    register()
    assert logged.messages[0] == "fairdraw: the plugin stays off, as it could not be registered."
    assert not any(isinstance(finder, ImportHook) for finder in sys.meta_path)


def hash_of(text: str, folder: Path) -> str:
    folder.mkdir()
    (folder / "thing.py").write_text(text)
    return _source.source_hash(folder, "vllm.thing:Thing.act")


def test_hash_ignores_comments_docstrings_and_layout(tmp_path: Path) -> None:
    documented = FUNCTION.replace("        return", '        """Act."""\n        # why\n        return').replace(
        "amount + 1", "(amount\n            + 1)"
    )
    assert hash_of(FUNCTION, tmp_path / "a") == hash_of(documented, tmp_path / "b")


@pytest.mark.parametrize(
    ("old", "new"),
    [("+ 1", "+ 2"), ("+ 1", "- 1"), ("amount)", "amount=0)"), ("    def", "    @staticmethod\n    def")],
    ids=["constant", "operator", "default", "decorator"],
)
def test_hash_sees_a_change_of_code(old: str, new: str, tmp_path: Path) -> None:
    assert hash_of(FUNCTION, tmp_path / "a") != hash_of(FUNCTION.replace(old, new), tmp_path / "b")


def test_missing_function_has_no_hash(tmp_path: Path) -> None:
    (tmp_path / "thing.py").write_text(FUNCTION)
    with pytest.raises(_source.UnknownSourceError, match=r"Thing\.rest is not defined"):
        _source.source_hash(tmp_path, "vllm.thing:Thing.rest")


def test_table_has_evidence_and_a_hash_for_every_function() -> None:
    table = json.loads(_validated.TABLE.read_text())
    assert set(RELEASES) <= set(table)
    for entry in table.values():
        pieces = [piece for piece in PIECES if piece.name in entry["pieces"]]
        assert {target for piece in pieces for target in piece.functions} == set(entry["functions"])
        assert all(entry["pieces"][piece.name]["calls"]["ours"] > 0 for piece in pieces)
        of_its_runner = {"random steps"} if "step" in entry["pieces"] else {"steps", "comparisons"}
        assert {"date", "torch", "python", *of_its_runner} <= set(entry["evidence"])


@pytest.mark.parametrize("release", json.loads(_validated.TABLE.read_text()))
def test_table_agrees_with_the_release(release: str) -> None:
    package = ROOT / ".cache" / "vllm" / release / "vllm"
    if not package.exists():
        pytest.skip(f"python tools/install.py vllm {release} --target .cache/vllm/{release} was not run")
    functions = json.loads(_validated.TABLE.read_text())[release]["functions"]
    assert {target: _source.source_hash(package, target) for target in functions} == functions


def test_hook_tells_after_the_module_has_run_and_keeps_its_loader(tmp_path: Path) -> None:
    (tmp_path / "watched.py").write_text("ready = True")
    program = """
import sys
from fairdraw.sampler_impl.vllm_plugin._hook import ImportHook
hook = ImportHook(["watched"], lambda name: print(name, sys.modules[name].ready))
hook.install()
import watched, inspect
print(type(watched.__loader__).__name__, inspect.getsource(watched))
hook.remove()
print(hook in sys.meta_path)
"""
    lines = python(program, tmp_path).split()
    assert lines == ["watched", "True", "SourceFileLoader", "ready", "=", "True", "False"]


def test_failing_callback_does_not_fail_the_import(tmp_path: Path) -> None:
    (tmp_path / "watched.py").write_text("ready = True")
    program = """
from fairdraw.sampler_impl.vllm_plugin._hook import ImportHook
ImportHook(["watched"], lambda name: 1 / 0).install()
import watched
print(watched.ready)
"""
    assert python(program, tmp_path).strip() == "True"


RUNNER = """
class GPUModelRunner:
    def __init__(self, vllm_config, device):
        self.made_of = vllm_config, device
"""


@pytest.fixture
def pretended(tmp_path: Path) -> Path:
    """A fake package `vllm` with a model runner V2 and nothing else."""
    folder = tmp_path / "vllm" / "v1" / "worker" / "gpu"
    folder.mkdir(parents=True)
    for package in (folder, *folder.parents[:3]):
        (package / "__init__.py").write_text("__version__ = '0.28.0'\n")
    (folder / "model_runner.py").write_text(RUNNER)
    return tmp_path


IDLE = "fairdraw: model runner V2 is in use"
REFUSED = "fairdraw: step stays off, vLLM's own code runs: vLLM"
START = """
import logging, sys
logging.basicConfig(stream=sys.stdout, level="INFO", format="%(message)s")
from fairdraw.sampler_impl.vllm_plugin import register
register()
"""
MAKE = "from vllm.v1.worker.gpu.model_runner import GPUModelRunner; print('worker'); "


@pytest.mark.parametrize("switch", ["", "0", "1"])
def test_idle_pieces_are_logged_once_a_model_runner_v2_is_made(pretended: Path, switch: str) -> None:
    program = START + MAKE + "print(GPUModelRunner('config', device='cuda').made_of); GPUModelRunner(1, device=2)"
    logged = python(program, pretended, FAIRDRAW_VLLM_PLUGIN="1", VLLM_USE_V2_MODEL_RUNNER=switch).splitlines()
    assert logged.pop(1).startswith(f"{REFUSED} 0.28.0 is not validated for it.")
    advice = "is set, but this configuration overrides it." if switch == "0" else "chooses V1."
    assert logged == [
        "worker",
        f"{IDLE}, and rejection, penalties tensor, penalties, thinking budget are for V1 only: idle. "
        f"VLLM_USE_V2_MODEL_RUNNER=0 {advice}",
        "('config', 'cuda')",
    ]


def test_runner_v2_is_logged_also_where_every_piece_was_refused(
    logged: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VLLM_USE_V2_MODEL_RUNNER", raising=False)
    _model_runner.tell_idle([])
    assert logged.messages == [f"{IDLE}, and no piece of the plugin serves it. VLLM_USE_V2_MODEL_RUNNER=0 chooses V1."]


def test_piece_for_v2_that_is_on_makes_the_others_idle_without_advice(logged: pytest.LogCaptureFixture) -> None:
    _model_runner.tell_idle(["penalties"], serving=True)
    _model_runner.tell_idle([], serving=True)
    assert logged.messages == [f"{IDLE}, and penalties is for V1 only: idle."]


@pytest.mark.parametrize("switch", ["", "0", "1"])
def test_nothing_is_logged_where_model_runner_v2_is_imported_only(pretended: Path, switch: str) -> None:
    """As every V1 worker does; a worker for CPUs runs V1 whatever the environment says."""
    logged = python(START + MAKE, pretended, FAIRDRAW_VLLM_PLUGIN="1", VLLM_USE_V2_MODEL_RUNNER=switch)
    assert logged == "worker\n"


def test_unpatch_takes_the_watch_off(pretended: Path) -> None:
    program = START + MAKE + "from fairdraw.sampler_impl.vllm_plugin import unpatch; unpatch(); GPUModelRunner(1, 2)"
    assert IDLE not in python(program, pretended, FAIRDRAW_VLLM_PLUGIN="1")


def test_model_runner_of_another_shape_is_no_error(pretended: Path) -> None:
    (pretended / "vllm" / "v1" / "worker" / "gpu" / "model_runner.py").write_text("def GPUModelRunner(): pass\n")
    assert python(START + MAKE, pretended, FAIRDRAW_VLLM_PLUGIN="1") == "worker\n"


REAL = """
import importlib.util, logging, sys, types
if importlib.util.find_spec("einops") is None:  # attention of multimodal models needs it; nothing here does
    absent = types.ModuleType("einops")
    absent.rearrange = absent.repeat = absent.reduce = None
    absent.__spec__ = importlib.util.spec_from_loader("einops", None)
    sys.modules["einops"] = absent
import vllm
from fairdraw.sampler_impl.vllm_plugin import installed, register, unpatch
from fairdraw.sampler_impl.vllm_plugin._log import logger
handler = logging.StreamHandler(sys.stdout)
handler.setFormatter(logging.Formatter("LOG %(message)s"))
logger.handlers, logger.propagate = [handler], False
logger.setLevel("WARNING")
register()
import vllm.v1.worker.gpu_worker
import vllm.v1.worker.gpu_model_runner
from vllm.v1.worker.gpu.model_runner import GPUModelRunner
print("LOG worker with", *installed(), sep=" | ")
for _ in range(2):
    try:
        GPUModelRunner(None, None)
    except AttributeError as error:
        print("LOG", error)
unpatch()
print("LOG", GPUModelRunner.__init__.__module__, hasattr(GPUModelRunner.__init__, "__wrapped__"))
"""
"""The real V1 worker, and runners V2 that vLLM's own constructor refuses, as they get no configuration."""


@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed: make vllm")
def test_real_worker_is_not_reported_as_v2_before_a_runner_v2_is_made() -> None:
    printed = python(REAL, FAIRDRAW_VLLM_PLUGIN="1", VLLM_USE_V2_MODEL_RUNNER="0")
    logged = [line.removeprefix("LOG ") for line in printed.splitlines() if line.startswith("LOG ")]
    refused = "'NoneType' object has no attribute 'model_config'"
    pieces = [piece.name for piece in FOR_V1]
    assert logged.pop(1).startswith(f"{REFUSED} 0.22.0 is not validated for it.")
    assert logged == [
        " | ".join(["worker with", *pieces]),
        f"{IDLE}, and {', '.join(pieces)} are for V1 only: idle. VLLM_USE_V2_MODEL_RUNNER=0 is set, but this "
        f"configuration overrides it.",
        refused,
        refused,
        "vllm.v1.worker.gpu.model_runner False",
    ]


OF_V2 = Path(__file__).with_name("test_vllm_plugin_v2.py")
FAST = "not mutant and not interpreted and not skewed"


def test_piece_for_v2_in_its_release() -> None:
    """A process has one vLLM, and this one's is older. Mutants: `make plugin-v2`."""
    folder = ROOT / ".cache" / "vllm" / V2_RELEASE
    if not folder.exists():
        pytest.skip(f"python tools/install.py vllm {V2_RELEASE} --target .cache/vllm/{V2_RELEASE} was not run")
    path = os.pathsep.join(map(str, (folder, SOURCE)))
    words = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", FAST, str(OF_V2))
    printed_by(*words, env={**os.environ, "PYTHONPATH": path}, cwd=ROOT)


def test_call_left_to_upstream_is_logged_once(logged: pytest.LogCaptureFixture) -> None:
    unpatch()
    _calls.reset()
    for row in (1, 2):
        _calls.upstream("penalties", "rows that ours does not take", f"Penalties.update: row {row}")
    assert _calls.calls() == {"penalties": {"rows that ours does not take": 2}}
    assert logged.messages == [
        "fairdraw: penalties: a call is left to vLLM's own code: rows that ours does not take. Further ones are "
        "counted, not logged. Penalties.update: row 1"
    ]
    _calls.reset()


def test_manual_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (_switches.PLUGIN, *(piece.switch for piece in PIECES)):
        monkeypatch.delenv(name, raising=False)
    _calls.reset()
    ran = doctest.testfile(str(MANUAL), module_relative=False)
    assert ran.attempted == 5
    assert ran.failed == 0


def test_manual_names_every_switch() -> None:
    text = MANUAL.read_text()
    assert [name for name in (_switches.PLUGIN, *(piece.switch for piece in PIECES)) if name not in text] == []
