"""The plugin in the real vLLM 0.22.0: loaded by vLLM's own plugin machinery, refused, applied and removed."""

import json
import shlex
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fairdraw.adapters._runtime import quiet_imports
from fairdraw.sampler_impl import vllm_plugin
from fairdraw.sampler_impl.vllm_plugin import _patch, _validated
from fairdraw.sampler_impl.vllm_plugin._pieces import PIECES

with quiet_imports():
    vllm = pytest.importorskip("vllm", reason="vLLM is not installed: make vllm")
    from vllm import plugins
    from vllm.v1.sample import rejection_sampler
    from vllm.v1.worker import gpu_input_batch

if vllm.__version__ != "0.22.0":
    pytest.skip("tools/record.py plugin validates other releases", allow_module_level=True)

FOR_V1 = [piece for piece in PIECES if piece.runner == "V1"]
TARGETS = sorted({target for piece in FOR_V1 for target in piece.patched})
ALL = [piece.name for piece in FOR_V1]
VARIABLES = ("FAIRDRAW_VLLM_PLUGIN", "FAIRDRAW_VLLM_VALIDATED", "VLLM_PLUGINS", "VLLM_USE_V2_MODEL_RUNNER")
REMEDY = f"Validate this source with `python -m fairdraw validate-vllm --folder {Path(vllm.__file__).parents[1]}`."
CHANGED = "vllm.v1.sample.rejection_sampler:generate_uniform_probs"


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in (*VARIABLES, *(piece.switch for piece in PIECES)):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("FAIRDRAW_VLLM_PLUGIN", "1")
    yield
    vllm_plugin.unpatch()


def about(logged: pytest.LogCaptureFixture, piece: str) -> str:
    return next(message for message in logged.messages if message.startswith(f"fairdraw: {piece} "))


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """vLLM's own loading of plugins, with fairdraw's entry point installed."""
    info = tmp_path / "fairdraw_here-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fairdraw_here\nVersion: 0\n")
    (info / "entry_points.txt").write_text(
        "[vllm.general_plugins]\nfairdraw = fairdraw.sampler_impl.vllm_plugin:register\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(plugins, "plugins_loaded", False)
    return plugins.load_general_plugins


def standing() -> dict[str, Any]:
    """The value at every patch point, `staticmethod` included."""
    found = {}
    for target in TARGETS:
        module, _, name = target.partition(":")
        owner: Any = import_module(module)
        *outer, attribute = name.split(".")
        for part in outer:
            owner = getattr(owner, part)
        found[target] = vars(owner)[attribute]
    return found


UPSTREAM = standing()


def test_installed_plugin_is_off(load: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FAIRDRAW_VLLM_PLUGIN")
    load()
    assert standing() == UPSTREAM
    assert vllm_plugin.installed() == []


@pytest.mark.parametrize(
    ("names", "loaded"), [("fairdraw", True), ("other,fairdraw", True), ("other", False), ("", False)]
)
def test_plugin_obeys_vllms_own_filter(
    names: str, loaded: bool, load: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_PLUGINS", names)
    load()
    assert vllm_plugin.installed() == (ALL if loaded else [])


@pytest.mark.parametrize("piece", FOR_V1, ids=lambda piece: piece.name)
def test_each_piece_has_a_switch(piece: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for other in PIECES:
        monkeypatch.setenv(other.switch, str(int(other is piece)))
    vllm_plugin.register()
    assert vllm_plugin.installed() == [piece.name]
    assert {target for target in TARGETS if standing()[target] is not UPSTREAM[target]} == set(piece.patched)


def test_patch_is_logged_with_release_and_source(logged: pytest.LogCaptureFixture) -> None:
    vllm_plugin.register()
    assert about(logged, "rejection") == (
        "fairdraw: rejection is on: vLLM 0.22.0, source of 7 functions as validated, patched rejection_sample."
    )
    assert sorted(line.partition(" is on")[0] for line in logged.messages) == sorted(f"fairdraw: {n}" for n in ALL)
    assert {record.levelname for record in logged.records} == {"INFO"}


def test_second_registration_changes_nothing() -> None:
    vllm_plugin.register()
    once = standing()
    vllm_plugin.register()
    assert standing() == once
    vllm_plugin.unpatch()
    assert standing() == UPSTREAM


def test_removal_restores_every_object_also_where_it_was_imported_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    early, late = ModuleType("imports_early"), ModuleType("imports_late")
    early.sample = rejection_sampler.rejection_sample
    monkeypatch.setitem(sys.modules, "imports_early", early)
    monkeypatch.setitem(sys.modules, "imports_late", late)
    vllm_plugin.register()
    late.renamed = rejection_sampler.rejection_sample
    assert early.sample is late.renamed is not UPSTREAM["vllm.v1.sample.rejection_sampler:rejection_sample"]
    vllm_plugin.unpatch()
    assert all(standing()[target] is UPSTREAM[target] for target in TARGETS)
    assert early.sample is late.renamed is rejection_sampler.rejection_sample


@pytest.fixture
def other_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Our table as if one function of vLLM had been patched since; its real hash."""
    table = json.loads(_validated.TABLE.read_text())
    found, table["0.22.0"]["functions"][CHANGED] = table["0.22.0"]["functions"][CHANGED], "0" * 16
    (tmp_path / "table.json").write_text(json.dumps(table))
    monkeypatch.setattr(_validated, "TABLE", tmp_path / "table.json")
    return str(found)


def test_changed_source_is_refused(other_source: str, logged: pytest.LogCaptureFixture) -> None:
    vllm_plugin.register()
    assert vllm_plugin.installed() == [name for name in ALL if name != "rejection"]
    assert standing()["vllm.v1.sample.rejection_sampler:rejection_sample"] is rejection_sampler.rejection_sample
    assert about(logged, "rejection") == (
        f"fairdraw: rejection stays off, vLLM's own code runs: the source of {CHANGED} has hash {other_source}, but "
        f"the one validated for vLLM 0.22.0 has 0000000000000000. {REMEDY}"
    )


@pytest.mark.usefixtures("other_source")
def test_source_that_the_user_has_validated_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "own.json"
    own.write_text(Path(_validated.__file__).with_name("validated.json").read_text())
    monkeypatch.setenv("FAIRDRAW_VLLM_VALIDATED", str(own))
    vllm_plugin.register()
    assert vllm_plugin.installed() == ALL


def test_users_table_that_cannot_be_read_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logged: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("FAIRDRAW_VLLM_VALIDATED", str(tmp_path / "none.json"))
    vllm_plugin.register()
    assert vllm_plugin.installed() == ALL
    start = f"fairdraw: FAIRDRAW_VLLM_VALIDATED={tmp_path / 'none.json'}, but it cannot be read ("
    assert any(message.startswith(start) for message in logged.messages)


def test_unknown_release_is_refused(monkeypatch: pytest.MonkeyPatch, logged: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(vllm, "__version__", "0.33.0+cu129")
    vllm_plugin.register()
    assert vllm_plugin.installed() == []
    assert standing() == UPSTREAM
    assert about(logged, "rejection") == (
        f"fairdraw: rejection stays off, vLLM's own code runs: vLLM 0.33.0+cu129 is not validated for it. {REMEDY}"
    )


def test_local_build_of_a_validated_release_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm, "__version__", "0.22.0+cu129")
    vllm_plugin.register()
    assert vllm_plugin.installed() == ALL


def test_function_that_another_plugin_replaced_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, logged: pytest.LogCaptureFixture
) -> None:
    def theirs(*args: object) -> None: ...

    monkeypatch.setattr(gpu_input_batch.InputBatch, "refresh_metadata", theirs)
    vllm_plugin.register()
    assert vllm_plugin.installed() == ["rejection", "thinking budget"]
    assert vars(gpu_input_batch.InputBatch)["refresh_metadata"] is theirs
    assert sum("InputBatch.refresh_metadata was replaced by somebody else before" in m for m in logged.messages) == 2


def test_function_that_somebody_replaced_after_us_is_left_to_them(
    monkeypatch: pytest.MonkeyPatch, logged: pytest.LogCaptureFixture
) -> None:
    def theirs(*args: object) -> None: ...

    vllm_plugin.register()
    with monkeypatch.context() as patch:
        patch.setattr(rejection_sampler, "rejection_sample", theirs)
        vllm_plugin.unpatch()
        assert rejection_sampler.rejection_sample is theirs
    assert any("rejection_sample was replaced by somebody else since and is left so" in m for m in logged.messages)
    # monkeypatch has restored our replacement: remove it by hand.
    rejection_sampler.rejection_sample = UPSTREAM["vllm.v1.sample.rejection_sampler:rejection_sample"]


def test_half_a_piece_is_never_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the last patch cannot be made, the first is not applied."""
    make, made = _patch.make_patch, []

    def fails_at_last(target: str, function: Callable[..., Any]) -> Any:
        made.append(target)
        if target.endswith("refresh_metadata"):
            raise _patch.ForeignFunctionError("as it happens")
        return make(target, function)

    monkeypatch.setattr("fairdraw.sampler_impl.vllm_plugin._plugin.make_patch", fails_at_last)
    monkeypatch.setenv("FAIRDRAW_VLLM_THINKING_BUDGET", "0")
    vllm_plugin.register()
    assert vllm_plugin.installed() == ["rejection"]
    assert len(made) > 4
    assert {t for t in TARGETS if standing()[t] is not UPSTREAM[t]} == {PIECES[0].functions[0]}


def test_no_logits_processor_is_registered() -> None:
    """An entry point in that group would make vLLM leave model runner V2."""
    from importlib.metadata import entry_points

    assert not [entry for entry in entry_points(group="vllm.logits_processors") if "fairdraw" in entry.value]


def test_what_is_replaced_is_at_hand_with_the_arguments_of_the_call() -> None:
    replaced = _patch.make_patch("shlex:join", lambda upstream, *args, **options: upstream()).replacement
    assert replaced(["a b"]) == replaced(split_command=["a b"]) == shlex.join(["a b"])
