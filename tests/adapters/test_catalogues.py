"""Samplers of other packages are found by their catalogues; what is wrong with one is said, and the rest works."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from helpers import fairdraw

from fairdraw._core import release
from fairdraw._run.loading import is_catalogued, sampler_lines
from fairdraw.adapters import SamplerNotFound, known_names, load
from fairdraw.adapters._catalogue import API, OWN_ROWS, find_catalogues, read_rows

if TYPE_CHECKING:
    Install = Callable[..., Path]

ROOT = Path(__file__).parents[2]
MANUAL = (ROOT / "docs" / "publish.md").read_text(encoding="utf-8")
ADAPTER = """
import fairdraw

def make(row, device, **options):
    return fairdraw.rejection_sampler(lambda batch, noise: None, name=f"{row.name} on {device} {options}")
"""


def sampler(name: str, more: str = "") -> str:
    return f'[samplers."{name}"]\nfactory = "adapter:make"\nnote = "a note"\n{more}\n'


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Install a distribution with a package of the same name, as pip does: a folder of metadata beside it.

    Nothing else is installed: an empty entry stands before fairdraw-engines.
    """

    def install(name: str, catalogue: str, init: str = "", entry: str | None = None) -> Path:
        package = tmp_path / name.replace("-", "_")
        package.mkdir()
        (package / "__init__.py").write_text(init)
        (package / "adapter.py").write_text(ADAPTER)
        if catalogue:
            (package / "samplers.toml").write_text(catalogue)
        add_metadata(tmp_path, name, f"[fairdraw.samplers]\n{name} = {entry or package.name}\n")
        return package

    add_metadata(tmp_path, "fairdraw-engines", "")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT / "src"), *sys.path]))
    monkeypatch.syspath_prepend(str(tmp_path))
    return install


def run_fairdraw(*arguments: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fairdraw", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)


def add_metadata(folder: Path, name: str, entry_points: str) -> None:
    info = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entry_points)


def test_samplers_of_a_package_are_listed_and_loaded_by_name(install: Install) -> None:
    more = 'slow = true\noptions = { width = 3 }\nunsupported = { "it draws" = ["explicit-noise"] }'
    install("found-engine", f"api = {API}\n" + sampler("rejection/found", more))

    assert known_names() == [*OWN_ROWS, "rejection/found"]
    assert any(re.fullmatch(r"rejection/found +a note", line) for line in sampler_lines())
    assert is_catalogued("rejection/found")
    made = load("rejection/found", "cpu")
    assert made.name == "rejection/found on cpu {'width': 3}"
    assert find_catalogues().rows["rejection/found"].capabilities().slow


def test_listing_imports_no_sampler_and_no_torch(install: Install) -> None:
    package = install("light-engine", f"api = {API}\n" + sampler("rejection/light"))
    (package / "__init__.py").write_text("1 / 0")
    code = (
        "import sys, fairdraw.adapters as adapters\n"
        "print('rejection/light' in adapters.known_names(), 'torch' in sys.modules, 'numpy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.stdout.split() == ["True", "False", "False"], done.stderr


def test_defects_come_with_the_catalogue(install: Install) -> None:
    package = install("known-engine", f"api = {API}\n" + sampler("rejection/known"))
    entry = '[[defect]]\nsampler = "rejection/known"\nchecks = ["REJ101"]\nreason = "one beyond"\nfixed = "1.2"\n'
    (package / "known_defects.toml").write_text(entry)
    row = find_catalogues().rows["rejection/known"]

    assert row.known_defects("1.1") == {"REJ101": "one beyond"}
    assert row.known_defects("1.2") == {}


GOOD = f"api = {API}\n" + sampler("rejection/bad")
BAD: dict[str, tuple[dict[str, str], str]] = {
    "no package": (
        {"entry": "no_package"},
        r"^samplers of bad-engine: reading no_package/samplers\.toml raised ModuleNotFoundError: No package named "
        r"'no_package', but an entry of fairdraw\.samplers must name a package with that file\. Run pip install "
        r"--force-reinstall bad-engine, or uninstall it\.$",
    ),
    "package above that ends the process": ({"entry": "bad_engine.inner", "init": "exit(3)"}, r"raised SystemExit: 3"),
    "a factory": ({"entry": "bad_engine.adapter:make"}, r"must name a package with that file\."),
    "no file": ({"catalogue": ""}, r"reading bad_engine/samplers\.toml raised FileNotFoundError"),
    "no TOML": ({"catalogue": "api = "}, r"raised TOMLDecodeError"),
    "older": (
        {"catalogue": f"api = {API - 1}"},
        rf"has api={API - 1}, but this fairdraw reads {API}: it was made for an older one\. "
        r"Install a newer bad-engine\.$",
    ),
    "newer": ({"catalogue": f"api = {API + 1}"}, r"for a newer one\. Install a newer fairdraw\.$"),
    "no number": ({"catalogue": sampler("rejection/bad")}, r"has api=None, .*Install a newer bad-engine\.$"),
    "no samplers": ({"catalogue": f"api = {API}"}, r"samplers must be a table"),
    "no contract": ({"catalogue": f"api = {API}\n" + sampler("me")}, r"sampler='me', but a name is CONTRACT/ORIGIN"),
    "no note": ({"catalogue": GOOD.partition("note")[0]}, r"must have both\. Correct it, or run pip uninstall bad"),
    "unknown field": ({"catalogue": GOOD + "fast = true"}, r"has fast=True, but its fields are factory, note,"),
    "unknown word": ({"catalogue": GOOD + 'unsupported = { "no" = ["to fly"] }'}, r"'to fly', but that is no capab"),
}


@pytest.mark.parametrize(("given", "words"), BAD.values(), ids=BAD.keys())
def test_bad_catalogue_is_named_with_a_remedy_and_the_rest_works(
    install: Install, given: dict[str, str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "bad_engine", raising=False)
    install("bad-engine", **{"catalogue": GOOD, **given})
    install("good-engine", f"api = {API}\n" + sampler("rejection/good"))

    (fault,) = find_catalogues().faults
    assert fault.startswith("samplers of bad-engine: ")
    assert re.search(words, fault), fault
    assert sampler_lines()[-1] == f"Left out: {fault}"
    with pytest.raises(SamplerNotFound, match=r"^load: sampler='rejection/bad', but it must be .*Left out: samplers"):
        load("rejection/bad")
    assert load("rejection/good", "cpu").name == "rejection/good on cpu {}"
    assert load("rejection/torch", "cpu").name == "rejection/torch"


def test_name_of_two_packages_is_nobodys_and_a_name_of_fairdraws_own_stays(install: Install) -> None:
    both = f"api = {API}\n" + sampler("rejection/both")
    install("first-engine", both + sampler("rejection/torch"))
    install("second-engine", both + sampler("rejection/second"))
    found = find_catalogues()

    assert set(found.rows) - set(OWN_ROWS) == {"rejection/second"}
    assert found.rows["rejection/torch"].package == "fairdraw.adapters"
    assert found.faults == (
        "sampler rejection/torch: fairdraw and first-engine have it, but a name stands for one sampler. "
        "Run pip uninstall first-engine, or rename the sampler.",
        "sampler rejection/both: first-engine and second-engine have it, but a name stands for one sampler. "
        "Run pip uninstall second-engine, or rename the sampler.",
    )
    with pytest.raises(SamplerNotFound, match="first-engine and second-engine have it"):
        load("rejection/both")


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ('sampler = "rejection/it"\nchecks = []\nreason = ""', r"names rejection/it, which samplers\.toml has not"),
        ('sampler = "rejection/bad"\nchecks = []', r"has sampler, checks, but it must have sampler, checks and reason"),
        ("sampler = ", r"known_defects\.toml: TOMLDecodeError"),
    ],
)
def test_bad_entry_of_a_defect_leaves_the_catalogue_out(install: Install, entry: str, words: str) -> None:
    package = install(f"bad{len(entry)}-engine", GOOD)
    (package / "known_defects.toml").write_text(f"[[defect]]\n{entry}")

    (fault,) = find_catalogues().faults
    assert re.search(words, fault), fault


@pytest.mark.parametrize(
    ("init", "words"),
    [
        ("import no_module", r"it needs the package no_module, which is not installed\. Run pip install no_module\."),
        ("1 / 0", r"making it raised ZeroDivisionError: division by zero\."),
        ("", r"making it raised AttributeError: module .* has no attribute 'built'"),
    ],
)
def test_package_that_cannot_be_imported_or_has_no_factory_is_refused(install: Install, init: str, words: str) -> None:
    install(f"broken-{len(init)}", f"api = {API}\n" + sampler("rejection/broken").replace(":make", ":built"), init)

    assert "rejection/broken" in known_names()
    with pytest.raises(SamplerNotFound, match=words):
        load("rejection/broken")
    assert load("rejection/torch", "cpu").name == "rejection/torch"


# Without fairdraw-engines

ENGINES = sorted(read_rows("fairdraw_engines", "fairdraw-engines"))
ENGINES_COMMAND = release.install("fairdraw-engines")


@pytest.mark.usefixtures("install")
@pytest.mark.parametrize("name", ENGINES)
def test_refusal_of_an_engines_sampler_says_what_to_install(name: str) -> None:
    with pytest.raises(SamplerNotFound, match=re.escape(f". Run {ENGINES_COMMAND}, with samplers of other proj")):
        load(name)


@pytest.mark.usefixtures("install")
def test_suite_works_without_engines() -> None:
    arguments = "check rejection/torch --profile smoke -k REJ10 -n 1 --no-controls"
    done = run_fairdraw(*arguments.split())
    assert (done.returncode, "GREEN" in done.stdout) == (0, True), done.stdout + done.stderr

    refused = fairdraw("check", "rejection/vllm")
    assert (refused.exit_code, ENGINES_COMMAND in refused.output) == (2, True)
    assert f"Samplers of other projects: {ENGINES_COMMAND}" in sampler_lines()


class WithoutEngines:
    """A finder that says of the package that there is none."""

    def find_spec(self, name: str, *_: object) -> None:
        if name == "fairdraw_engines":
            raise ModuleNotFoundError(name=name)


def test_validation_without_engines_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("fairdraw_engines")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [WithoutEngines(), *sys.meta_path])
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").touch()
    add_metadata(tmp_path, "vllm", "")

    refused = fairdraw("validate-vllm", "--folder", str(tmp_path))
    assert refused.exit_code == 2
    assert "fairdraw-engines, which validates vLLM, is missing" in refused.output


# The template of the manual

ENGINE = """
__version__ = "1.0"

def verify(drafts, counts, draft_probs, target_probs, bonus):
    drafts.zero_()
    return bonus.tolist()
"""


def test_template_of_the_manual_is_a_catalogue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for title, body in re.findall(r'^```\w+ title="([\w./]+)"\n(.*?)^```', MANUAL, flags=re.DOTALL | re.MULTILINE):
        (tmp_path / title).parent.mkdir(exist_ok=True)
        (tmp_path / title).write_text(body)
    (tmp_path / "myengine.py").write_text(ENGINE)
    project = tomllib.loads((tmp_path / "pyproject.toml").read_text())["project"]
    ((name, package),) = project["entry-points"]["fairdraw.samplers"].items()
    add_metadata(tmp_path, project["name"], f"[fairdraw.samplers]\n{name} = {package}\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT / "src"), *sys.path]))

    def run(*arguments: str) -> str:
        done = run_fairdraw(*arguments, folder=tmp_path)
        return done.stdout + done.stderr

    assert re.search(r"\nrejection/myengine +myengine's verification of drafts\n", run("list", "--samplers"))
    checked = "check rejection/myengine --profile smoke -n 1 --no-controls -k REJ101 -k REJ103 -k REJ114"
    output = run(*checked.split())
    assert "GREEN" in output, output
    assert "xfailed REJ114 inputs are not modified: it clears the caller's drafts" in output
    (tmp_path / "myengine.py").unlink()
    assert "needs the package myengine, which is not installed. Run pip install --no-deps myengine." in run(
        "check", "rejection/myengine"
    )
