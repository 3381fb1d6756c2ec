"""The scripts in `tools/` that install and test releases, without a network."""

import io
import json
import tarfile
import time
from pathlib import Path
from typing import Any

import install
import matrix
import pytest
from records import results

ROOT = Path(__file__).parents[2]


def record(code: str, status: str, effect: str = "", reason: str = "because") -> dict[str, Any]:  # Any: JSON
    return {
        "code": code,
        "title": f"title of {code}",
        "status": status,
        "reason": reason,
        "cases": 25,
        "seconds": 0.5,
        "failure_report": {"effect": effect} if effect else None,
    }


RECORDS = {
    # REJ111 has an entry for every release, REJ110 until 0.25.0, REJ101 has none.
    "0.11.2": [record("REJ111", "failed", "emitted\n-1"), record("REJ102", "passed"), record("REJ103", "skipped")],
    "0.22.0": [record("REJ111", "xfailed", "emitted -1"), record("REJ110", "xpassed"), record("REJ102", "passed")],
    "0.33.0": [record("REJ111", "passed", reason="known failure not seen in 5 cases"), record("REJ101", "error", "-7")],
}


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, int]:
    """The folder with page and record of four releases, and the exit code."""

    def check(sampler: str, release: str, *_: object) -> Any:  # Any: JSON
        if release == "0.28.0":
            raise matrix.NoVerdictError("vLLM 0.28.0 has no module vllm.v1.sample")
        return {"versions": {"torch": "2"}}, RECORDS[release]

    monkeypatch.setattr(matrix, "install", lambda *_: None)
    monkeypatch.setattr(matrix, "check", check)
    files = ["--record", str(tmp_path / "records" / "matrix.json")]
    matrix.main([*files, "--sampler", "rejection/vllm", "0.11.2"])  # one run completes the other
    others = "--sampler rejection/vllm --missing 0.11.2 0.22.0 0.28.0 0.33.0 --profile smoke"
    return tmp_path, matrix.main([*files, *others.split()])


def test_matrix_shows_what_fails_where_and_why(written: tuple[Path, int]) -> None:
    lines = matrix.as_markdown(list(matrix.read(written[0] / "records" / "matrix.json").values())).splitlines()

    at = next(line for line in lines if line.startswith("| `rejection/vllm` |"))
    assert [cell.strip() for cell in at.split("|") if "red" in cell or "not there" in cell] == [
        "**1 red** of 2",
        "**2 red** of 3, smoke",
        "not there",
        "**1 red** of 2 !, smoke",
    ]
    assert "| `sampling/vllm-v2` | - | - | - | - | - | - | - | - | - |" in lines
    title = "REJ111 drafts without target probability are rejected at uniform zero"
    assert f"| {title} | **fails** | **fails** | not seen |" in lines
    assert any(line.startswith("* REJ111, seen in 0.11.2, 0.22.0: at uniform 0") for line in lines)
    assert "* **no entry**, REJ101, 0.33.0: -7" in lines
    assert "* `rejection/vllm` 0.28.0: vLLM 0.28.0 has no module vllm.v1.sample" in lines


def test_failure_without_an_entry_and_entry_without_failure_are_said_loudly(
    written: tuple[Path, int], capsys: pytest.CaptureFixture[str]
) -> None:
    cells = matrix.read(written[0] / "records" / "matrix.json")

    assert written[1] == 1
    assert [line for cell in cells.values() for line in matrix.surprises(cell)] == [
        "GONE: rejection/vllm of vLLM 0.22.0 passes REJ110, but known_defects.toml lists them. Add `fixed`.",
        "NO ENTRY: rejection/vllm of vLLM 0.33.0 fails REJ101, but known_defects.toml lists no reason.",
    ]


def test_every_cell_of_the_record_names_its_origin(written: tuple[Path, int]) -> None:
    text = (written[0] / "records" / "matrix.json").read_text()

    for cell in json.loads(text)["cells"]:
        assert {"commit", "date", "machine", "profile", "only", "seconds", "versions"} <= cell.keys()
    assert str(ROOT) not in text


def test_no_release_is_red_without_an_entry() -> None:
    cells = matrix.read(ROOT / "docs" / "records" / "matrix.json")

    assert [line for cell in cells.values() for line in matrix.surprises(cell)] == []


def test_newer_checks_are_added_to_a_cell_and_recorded_ones_stay(
    written: tuple[Path, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = matrix.read(written[0] / "records" / "matrix.json")["rejection/vllm", "0.11.2"]
    selected: list[list[str]] = []

    def check(*arguments: Any) -> Any:  # Any: JSON
        selected.append(arguments[-1])
        again = record("REJ102", "failed", "not what the record says")
        return {}, [again, record("REJ110", "xfailed", "emitted -1"), record("DIST203", "skipped")]

    monkeypatch.setattr(matrix, "check", check)
    fuller = matrix.run_newer(cell, "both")

    assert "REJ110" in selected[0]
    assert "REJ102" not in selected[0]
    assert [row["code"] for row in fuller["failures"]] == ["REJ110", "REJ111"]
    assert (fuller["passed"], fuller["skipped"]) == (["REJ102"], {"because": ["DIST203", "REJ103"]})
    assert fuller["later"][0]["codes"] == ["DIST203", "REJ110"]
    assert (cell["only"], fuller["only"], fuller["later"][0]["only"]) == ("properties", "properties", "both")


def test_no_task_is_begun_after_the_seconds_and_the_record_is_written() -> None:
    """The rest was cancelled and waited for without end, until the lent machine was gone with all that it had found."""
    assert list(results(time.sleep, [0.01] * 100, jobs=2, seconds=0.0)) == [None, None]
    assert len(list(results(time.sleep, [0.01] * 10, jobs=2))) == 10


def test_sampler_without_an_adapter_is_not_runnable() -> None:
    cell = matrix.run_cell("penalties/nobody", "0.33.0", "smoke", "properties")

    assert cell["state"] == "not runnable"
    assert cell["problem"] == "fairdraw has no adapter penalties/nobody yet."


def test_release_that_is_not_the_one_imported_has_no_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], *_: object, **__: object) -> Any:  # Any: a finished process
        Path(command[-1]).write_text('{"kind": "header", "sampler": "rejection/vllm (vllm 0.22.0)"}')
        return matrix.subprocess.CompletedProcess([], 0, stdout="", stderr="")

    monkeypatch.setattr(matrix.subprocess, "run", run)
    with pytest.raises(matrix.NoVerdictError, match=r"vllm 0\.22\.0\) was tested, but .* must hold vLLM 0\.33\.0"):
        matrix.check("rejection/vllm", "0.33.0", tmp_path, "smoke", "properties")


def test_release_too_old_to_be_installed_gives_its_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(*_: str, **__: str) -> None:
        file = b"from vllm.triton_utils import tl, triton\n"
        with tarfile.open(Path(_[-2]) / "vllm-0.11.0.tar.gz", "w:gz") as archive:
            member = tarfile.TarInfo("vllm-0.11.0/vllm/v1/sample/rejection_sampler.py")
            member.size = len(file)
            archive.addfile(member, io.BytesIO(file))

    monkeypatch.setattr(install, "_pip", download)
    install.install("0.11.0", tmp_path)

    assert (tmp_path / "vllm" / "__init__.py").read_text() == '__version__ = "0.11.0+single.file"\n'
    assert "triton_utils" in (tmp_path / "vllm/v1/sample/rejection_sampler.py").read_text()
    with pytest.raises(install.InstallError, match=r"'0\.11\.0', but it must be at least .* --target FOLDER takes"):
        install.install("0.11.0")


def test_vllm_is_built_without_cuda_and_its_dependencies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[tuple[str, ...], dict[str, str]]] = []
    monkeypatch.setattr(install, "RUNTIME_PACKAGES", "surely-not-installed")
    monkeypatch.setattr(install, "_pip", lambda *arguments, **environment: calls.append((arguments, environment)))

    with pytest.raises(install.InstallError, match="pip left None"):
        install.install("0.33.0", tmp_path)
    (packages, _), (vllm, environment) = calls
    assert packages[-1] == "surely-not-installed"
    assert str(ROOT / "constraints.txt") in packages
    assert {"--no-deps", "--no-build-isolation", "vllm==0.33.0", str(tmp_path)} <= set(vllm)
    assert environment == {"VLLM_VERSION_OVERRIDE": "0.33.0", "VLLM_TARGET_DEVICE": "empty"}


def test_failing_pip_ends_the_script_with_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = install.subprocess.CompletedProcess([], 1)
    monkeypatch.setattr(install.subprocess, "run", lambda *arguments, **options: failed)

    assert install.main(["vllm", "0.33.0", "--target", str(tmp_path)]) == 1
    assert "install: pip returned 1 for vllm==0.33.0. See its messages above" in capsys.readouterr().err
