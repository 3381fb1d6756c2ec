"""The scripts in `tools/` that install and test releases, without a network."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import install_vllm
import matrix
import pytest

ROOT = Path(__file__).parents[2]


def record(code: str, status: str, effect: str = "") -> dict[str, Any]:  # Any: JSON
    failure_report = {"effect": effect} if effect else None
    return {
        "code": code,
        "title": f"title of {code}",
        "status": status,
        "reason": "because",
        "failure_report": failure_report,
    }


JUDGED = {
    "0.11.2": [record("REJ101", "failed", "emitted\n-1"), record("REJ102", "passed"), record("REJ103", "skipped")],
    "0.22.0": [record("REJ101", "xfailed", "emitted -1"), record("REJ102", "passed"), record("REJ103", "passed")],
    "0.33.0": [record("REJ101", "xpassed"), record("REJ102", "passed"), record("REJ103", "error")],
}


def stubbed(release: str) -> Any:  # Any: a column of the module loaded above
    if release == "0.28.0":
        raise OSError("no space left")
    return matrix.Column(release, records=JUDGED[release])


@pytest.fixture
def table(tmp_path: Path) -> str:
    columns = matrix.run_all(["0.11.2", "0.22.0", "0.28.0", "0.33.0"], stubbed)
    matrix.write(columns, "ci", tmp_path / "matrix.md", tmp_path / "records" / "matrix.json")
    return (tmp_path / "matrix.md").read_text()


def test_matrix_shows_what_fails_where_and_how(table: str) -> None:
    for line in (
        "| check | 0.11.2 | 0.22.0 | 0.28.0 | 0.33.0 |",
        "| REJ101 token ids lie in the vocabulary | **fails** | **fails** | ? | ok |",
        "| REJ103 every request emits a token | - | ok | ? | **raises** |",
        "| passed | 1 | 2 |  | 2 |",
        "| failed | 1 | 1 |  | 1 |",
        "| skipped | 1 | 0 |  | 0 |",
        "* 0.28.0: OSError: no space left",
        "* REJ101, 0.11.2: emitted -1",
    ):
        assert line in table.splitlines()
    assert "REJ102" not in table


def test_matrix_record_holds_every_result_and_its_origin(table: str, tmp_path: Path) -> None:
    found = json.loads((tmp_path / "records" / "matrix.json").read_text())

    assert {"date", "commit", "machine", "python", "torch", "triton", "profile"} <= found["origin"].keys()
    assert [release["release"] for release in found["releases"]] == ["0.11.2", "0.22.0", "0.28.0", "0.33.0"]
    assert found["releases"][1]["records"] == JUDGED["0.22.0"]
    assert str(ROOT) not in json.dumps(found)


def test_release_that_cannot_be_installed_has_no_verdict(tmp_path: Path) -> None:
    column = matrix.run_release("0.9.2", tmp_path, "smoke")

    assert column.problem.startswith("not installed: install: release='0.9.2', but it must be at least 0.11.2.")
    assert not column.records


def test_release_that_is_not_the_one_imported_has_no_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finished = matrix.subprocess.CompletedProcess([], 0, stdout="vllm 0.22.0\n", stderr="")
    monkeypatch.setattr(matrix, "_run", lambda *arguments, **options: finished)

    with pytest.raises(matrix.NoVerdictError, match=r"not importable: vllm 0\.22\.0"):
        matrix.check("0.33.0", tmp_path, "smoke")


def test_installed_release_is_not_installed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: str, **environment: str) -> None:
        raise AssertionError(f"pip was called with {arguments}")

    info = tmp_path / "vllm-0.33.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.33.0+empty\n")
    monkeypatch.setattr(install_vllm, "RUNTIME_PACKAGES", ())
    monkeypatch.setattr(install_vllm, "BUILD_PACKAGES", ())
    monkeypatch.setattr(install_vllm, "_pip", fail)

    install_vllm.install("0.33.0", tmp_path)


def test_vllm_is_built_without_cuda_and_without_its_dependencies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[tuple[str, ...], dict[str, str]]] = []
    monkeypatch.setattr(install_vllm, "RUNTIME_PACKAGES", ("surely-not-installed",))
    monkeypatch.setattr(install_vllm, "_pip", lambda *arguments, **environment: calls.append((arguments, environment)))

    with pytest.raises(install_vllm.InstallError, match="pip left None"):
        install_vllm.install("0.33.0", tmp_path)
    (packages, _), (vllm, environment) = calls
    assert packages[-1] == "surely-not-installed"
    assert str(ROOT / "constraints.txt") in packages
    assert {"--no-deps", "--no-build-isolation", "vllm==0.33.0", str(tmp_path)} <= set(vllm)
    assert environment == {"VLLM_VERSION_OVERRIDE": "0.33.0", "VLLM_TARGET_DEVICE": "empty"}


def test_failing_pip_ends_the_script_with_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = install_vllm.subprocess.CompletedProcess([], 1)
    monkeypatch.setattr(install_vllm.subprocess, "run", lambda *arguments, **options: failed)

    assert install_vllm.main(["0.33.0", "--target", str(tmp_path)]) == 1
    assert "install: pip returned 1 for vllm==0.33.0. See its messages above" in capsys.readouterr().err
