"""What a user installs: one import name, every subpackage, and a suite that runs from any folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("sampler_impl", "strategies", "properties", "statistical", "perf_regression")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from a copy of the tree, so that no build folder is left behind."""
    source, built = tmp_path_factory.mktemp("source") / "fairdraw", tmp_path_factory.mktemp("wheel")
    leave = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT, source, symlinks=True, ignore=leave)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-q", "-w", str(built), "."]
    subprocess.run(command, cwd=source, check=True)
    return next(built.glob("*.whl"))


def test_wheel_brings_one_import_name(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as files:
        assert {name.split("/")[0].partition("-")[0] for name in files.namelist()} == {"fairdraw"}


def test_wheel_holds_every_file_of_the_package(wheel: Path) -> None:
    folders = [ROOT / "src" / "fairdraw", *(ROOT / folder for folder in FOLDERS)]
    tracked = [path for folder in folders for path in folder.iterdir()]
    wanted = {path.name for path in tracked if path.suffix in (".py", ".toml", ".txt") or path.name == "py.typed"}
    with zipfile.ZipFile(wheel) as files:
        assert wanted <= {Path(name).name for name in files.namelist()}


def test_every_subpackage_is_listed() -> None:
    """setuptools drops an unlisted subpackage without a word."""
    listed = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    own = {path.parent for path in (ROOT / "src" / "fairdraw").glob("*/__init__.py") if not path.parent.is_symlink()}
    nested = {path.parent for folder in FOLDERS for path in (ROOT / folder).rglob("__init__.py")}
    found = {f"fairdraw.{path.name}" for path in own}
    found |= {".".join(("fairdraw", *path.relative_to(ROOT).parts)) for path in nested}
    assert listed == {"fairdraw", *found}


def test_links_lead_to_the_five_folders() -> None:
    assert {folder: os.readlink(ROOT / "src" / "fairdraw" / folder) for folder in FOLDERS} == {
        folder: f"../../{folder}" for folder in FOLDERS
    }


def test_installed_suite_judges_a_strangers_sampler_from_another_folder(wheel: Path, tmp_path: Path) -> None:
    site, project = tmp_path / "site", tmp_path / "project"
    install = [sys.executable, "-m", "pip", "install", "--no-deps", "-q", "--target", str(site), str(wheel)]
    subprocess.run(install, check=True)
    shutil.copytree(ROOT / "examples", project / "examples")
    command = ["pytest", "--pyargs", "fairdraw", "--sampler", "examples.my_sampler:make", "-k", "REJ10"]
    result = subprocess.run(
        [sys.executable, "-m", *command, "--fairdraw-profile", "smoke", "-p", "no:cacheprovider"],
        cwd=project,
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "GREEN" in result.stdout
