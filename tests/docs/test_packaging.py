"""What a user installs: one import name, every subpackage, and a suite that runs from any folder.

Both archives are built once, as for a release: the sdist from what git knows, the wheel from the sdist.
"""

import os
import re
import shutil
import stat
import subprocess
import tarfile
import tomllib
import zipfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import pytest
from helpers import printed_by
from manual import hook

import fairdraw

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("sampler_impl", "strategies", "properties", "statistical", "perf_regression")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())

# An sdist has neither git's list nor the links.
pytestmark = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a git checkout")


@dataclass(frozen=True)
class Built:
    """The two archives, and the files that they were made of."""

    sdist: Path
    wheel: Path
    sources: frozenset[str]

    def in_sdist(self) -> dict[str, tarfile.TarInfo]:
        """Members below the archive's one folder."""
        with tarfile.open(self.sdist) as files:
            members = [member for member in files.getmembers() if not member.isdir()]
        return {str(PurePosixPath(*PurePosixPath(member.name).parts[1:])): member for member in members}

    def in_wheel(self) -> list[zipfile.ZipInfo]:
        with zipfile.ZipFile(self.wheel) as files:
            return files.infolist()


def sources() -> list[str]:
    """What git knows or would add; links are listed as files."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [name for name in listed.split("\0") if name and os.path.lexists(ROOT / name)]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Built from a copy, so that no build folder is left behind; without isolation, which would install setuptools.

    Links are files with their target, as in a clone on Windows: the archives are the same.
    """
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    for name in sources():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_symlink():
            (source / name).write_text(os.readlink(ROOT / name))
        else:
            shutil.copy2(ROOT / name, source / name)
    for project in (source, source / "engines"):
        printed_by("-m", "build", "--no-isolation", "--outdir", str(out), str(project))
    (sdist,), (wheel,) = out.glob("fairdraw-*.tar.gz"), out.glob("fairdraw-*.whl")
    return Built(sdist, wheel, frozenset(name for name in sources() if not (ROOT / name).is_symlink()))


@pytest.fixture(scope="module")
def site(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with nothing but the installed wheel."""
    folder = tmp_path_factory.mktemp("site")
    printed_by("-m", "pip", "install", "--no-deps", "-q", "--target", str(folder), str(built.wheel))
    return folder


def test_archives_pass_the_index_checks(built: Built) -> None:
    archives = map(str, built.wheel.parent.iterdir())
    assert printed_by("-m", "twine", "check", "--strict", *archives).count("PASSED") == 4


def test_version_is_the_same_everywhere(built: Built) -> None:
    assert PROJECT["project"]["version"] == fairdraw.__version__
    assert f"-{fairdraw.__version__}" in built.wheel.name
    assert built.sdist.name == f"fairdraw-{fairdraw.__version__}.tar.gz"
    assert re.fullmatch(r"\d+\.\d+\.\d+", fairdraw.__version__)


def test_wheel_holds_the_package_and_nothing_else(built: Built) -> None:
    """The root folders as `fairdraw.*`; no records, no links, nothing compiled."""
    data = (".toml", ".txt", ".j2", ".json", ".typed")
    wanted = {name.removeprefix("src/") for name in built.sources if name.startswith("src/")}
    for folder in FOLDERS:
        inside = {name for name in built.sources if name.startswith(f"{folder}/") and "/records/" not in name}
        wanted |= {f"fairdraw/{name}" for name in inside if name.endswith((".py", *data))}
    found = {file.filename for file in built.in_wheel() if ".dist-info/" not in file.filename}
    assert found == wanted
    assert not [file.filename for file in built.in_wheel() if stat.S_ISLNK(file.external_attr >> 16)]
    assert built.wheel.name.endswith("-py3-none-any.whl")


def test_wheel_of_the_engines_holds_the_adapters_and_their_tables(built: Built) -> None:
    names = [name for name in sources() if name.startswith("engines/")]
    with zipfile.ZipFile(next(built.wheel.parent.glob("fairdraw_engines-*.whl"))) as wheel:
        found = {name: wheel.read(name).decode() for name in wheel.namelist()}
    assert {name for name in found if ".dist-info/" not in name} == {
        name.removeprefix("engines/src/") for name in names if name.startswith("engines/src/")
    }
    assert (ROOT / "LICENSE").read_text() in found.values()
    metadata = next(text for name, text in found.items() if name.endswith(".dist-info/METADATA"))
    assert f"Requires-Dist: fairdraw[torch]=={fairdraw.__version__}\n" in metadata
    assert f"\nVersion: {fairdraw.__version__}\n" in metadata


def test_sdist_holds_all_that_git_knows_and_little_more(built: Built) -> None:
    made = {name for name in built.in_sdist() if name in ("PKG-INFO", "setup.cfg") or ".egg-info/" in name}
    assert set(built.in_sdist()) - made == built.sources
    assert [name for name, member in built.in_sdist().items() if not member.isfile()] == []


def test_every_subpackage_is_listed() -> None:
    """setuptools silently drops a subpackage that is not listed."""
    listed = set(PROJECT["tool"]["setuptools"]["packages"])
    source = ROOT / "src" / "fairdraw"
    own = {path.parent.relative_to(source).parts for path in source.rglob("__init__.py")}
    nested = {path.parent for folder in FOLDERS for path in (ROOT / folder).rglob("__init__.py")}
    found = {".".join(("fairdraw", *parts)) for parts in own if parts and parts[0] not in FOLDERS}
    found |= {".".join(("fairdraw", *path.relative_to(ROOT).parts)) for path in nested}
    assert listed == {"fairdraw", *found}


def test_links_lead_to_the_five_folders() -> None:
    assert {folder: os.readlink(ROOT / "src" / "fairdraw" / folder) for folder in FOLDERS} == {
        folder: f"../../{folder}" for folder in FOLDERS
    }


def test_extras_are_explained() -> None:
    page = (ROOT / "docs" / "index.md").read_text()
    assert [extra for extra in PROJECT["project"]["optional-dependencies"] if f"| `{extra}` |" not in page] == []


@pytest.mark.parametrize("on_index", [False, True])
def test_no_text_says_to_install_a_name_that_is_on_no_index(on_index: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hook, "ON_INDEX", on_index)
    name = re.compile(r"pip install (?:-\S+ )*['\"]?fairdraw(?!-\*)")
    pages = [ROOT / one for one in sources() if one.endswith((".md", ".py", ".toml", ".txt")) and "tests/" not in one]
    saying = {page.name for page in pages if page.is_file() and name.search(hook.named(page.read_text()))}
    assert saying == ({"server.md", "ci.md", "index.md", "first-verdict.md", "languages.md"} if on_index else set())


def test_public_names_are_in_the_built_package(site: Path) -> None:
    program = (
        "import importlib, sys\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "for name in sys.argv[2:]:\n"
        "    module = importlib.import_module(name)\n"
        "    assert module.__file__.startswith(sys.argv[1]), module.__file__\n"
        "    for word in getattr(module, '__all__', ()): getattr(module, word)\n"
    )
    modules = re.findall(r"^::: (\S+)", (ROOT / "docs" / "api.md").read_text(), flags=re.MULTILINE)
    assert "fairdraw.strategies" in modules
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    printed_by("-P", "-c", program, str(site), "fairdraw", *modules, env=environment, cwd=site)


def test_installed_suite_tests_a_third_party_sampler_from_another_folder(site: Path, tmp_path: Path) -> None:
    project = tmp_path / "project"
    shutil.copytree(ROOT / "examples", project / "examples")
    command = "-m pytest --pyargs fairdraw --sampler examples.my_sampler:make -k REJ10 --fairdraw-profile smoke"
    words = [*command.split(), "-p", "no:cacheprovider"]
    assert "GREEN" in printed_by(*words, cwd=project, env={**os.environ, "PYTHONPATH": str(site)})
