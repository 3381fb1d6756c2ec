"""Samplers that nobody here wrote: their adapters, their known defects, and the pages about what was found.

A package that is missing skips its tests, with the command that installs it.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from manual.first_minute import head
from records import samplers as samplers_table

from fairdraw._core.checks import PROFILES
from fairdraw._core.failures import CheckFailure
from fairdraw._run.loading import all_checks
from fairdraw._run.runner import Session, run_check
from fairdraw.adapters import SamplerNotFound, known_names, load, release_number
from fairdraw.adapters._catalogue import read_defects
from fairdraw.contracts import ExplicitNoise
from fairdraw_engines._transformers import _race, multinomial_noise

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from fairdraw._core.checks import Check
    from fairdraw._run.runner import CheckRecord
    from fairdraw.contracts import AnySampler

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs" / "findings").glob("*.md"))
VLLMS = ROOT / ".cache" / "vllm"
RECORD = ROOT / "docs" / "records" / "samplers.json"

_CARD = "pip install flashinfer-python, on a machine with a GPU"


def package_for(name: str) -> tuple[str, str]:
    """Return the package that the adapter `name` wraps, and how to get it."""
    project = samplers_table.project_of(name.partition("/")[2])
    return samplers_table.CATALOGUE["projects"][project]["module"], samplers_table.install_of(project)


def named(contract: str, origins: str = "") -> tuple[str, ...]:
    """Return names of a contract: of these origins, or all of the table but those that need a later vLLM."""
    table = (name for name in samplers_table.SAMPLERS if name.startswith(f"{contract}/") and "vllm-v2" not in name)
    return tuple(f"{contract}/{origin}" for origin in origins.split()) or tuple(table)


SHARES = {"properties": 0.25, "statistical": 1.0}


def require(package: str, command: str) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed: {command}")


def asked_at_smoke(name: str, checks: tuple[Check, ...]) -> list[CheckRecord]:
    """Distributions with the draws of `smoke`, properties with few cases: `tools/record.py samplers` has all."""
    require(*package_for(name))
    smoke, sampler = PROFILES["smoke"], loaded(name)
    sessions = {suite: Session(profile=smoke.scaled(share), crash_folder=None) for suite, share in SHARES.items()}
    return [run_check(check, sampler, sessions[check.suite]) for check in checks]


@cache
def distributions() -> Mapping[str, list[str]]:
    """Return the distributions of each package: it takes a second to read what all of them hold."""
    return importlib.metadata.packages_distributions()


def loaded(name: str) -> AnySampler:
    """The adapter. A release that is not the pinned one may have other names; the pinned one must load."""
    package = package_for(name)[0]
    distribution = next(iter(distributions().get(package, [package])))
    try:
        return load(name, "cpu")
    except SamplerNotFound as error:
        pins = (ROOT / "constraints.txt").read_text().splitlines()
        pins += [one.get("files", "") for one in samplers_table.CATALOGUE["projects"].values()]
        if f"{distribution}=={importlib.metadata.version(distribution)}" in pins:
            raise
        pytest.skip(f"{distribution} {importlib.metadata.version(distribution)} is not the pinned release: {error}")


def broken(records: list[CheckRecord]) -> list[str]:
    return [
        f"{record.status} {record.id}: {record.failure_report.effect if record.failure_report else record.reason}"
        for record in records
        if record.is_broken
    ]


DRAWS_DRAFTS = "sampling/litgpt-step"
"""A sampler that cannot be given noise, so that one check fewer can be run on it than on the others."""


def is_narrow(check: Check) -> bool:
    return check.weight > 0.1 if check.suite == "properties" else check.code == "DIST701"


KERNELS = "vllm vllm-v2 sglang sglang-block tpu-inference lmdeploy flashspec"
GRAMMAR = ("GRM101", "GRM116", "GRM121", "GRM132", "DIST971")
ASKED: tuple[tuple[tuple[str, ...], Callable[[Check], bool], int], ...] = (
    # Checks of few but wide cases take most of the time.
    (named("rejection", "transformers mlx"), lambda check: check.suite == "properties" and check.weight > 0.1, 18),
    # Interpreted by Triton or compiled for each shape by JAX: structure and greedy requests, which need few draws.
    (named("rejection", KERNELS), lambda check: check.code[:4] in ("REJ1", "REJ2"), 10),
    (tuple(name for name in named("sampling") if name != DRAWS_DRAFTS), is_narrow, 6),
    ((DRAWS_DRAFTS,), is_narrow, 5),
    # Those of strides, which some fail as known, take long to be made smaller.
    (named("grammar", "xgrammar xgrammar-torch llguidance sglang"), lambda one: one.code in (*GRAMMAR, "GRM201"), 2),
    # Its traces may end the process: xgrammar's kernel writes behind the copy that vLLM makes of half-precision rows.
    (named("grammar", "vllm"), lambda one: one.code in GRAMMAR, 2),
    (
        named("matchers", "llguidance vllm xgrammar"),
        lambda check: check.code in ("MAT103", "MAT104", "MAT106", "MAT109"),
        2,
    ),
    (named("masks", "sglang"), lambda check: check.code in ("MSK101", "MSK105", "MSK106"), 3),
    # Structure alone, of which transformers has little.
    (named("logprobs", "transformers vllm"), lambda check: check.code[:5] == "LPR10", 1),
    (
        named("filters"),
        lambda check: check.code in ("FIL101", "FIL102", "FIL110", "FIL116", "FIL163", "FIL201"),
        2,
    ),
)
"""Samplers, the checks that they are asked, and how many pass at least; `tools/record.py samplers` runs all."""


@pytest.mark.parametrize(
    ("name", "is_asked", "least"), [pytest.param(name, *how, id=name) for names, *how in ASKED for name in names]
)
def test_sampler_meets_its_contract(name: str, is_asked: Callable[[Check], bool], least: int) -> None:
    records = asked_at_smoke(name, tuple(filter(is_asked, all_checks(contract=name.partition("/")[0]))))

    assert not broken(records)
    assert sum(record.status == "passed" for record in records) >= least


PENALTIES = ("penalties/sglang", "penalties/sglang-library")


@pytest.mark.parametrize("name", PENALTIES)
def test_penalties_meet_their_contract(name: str) -> None:
    """Given each token once, the library is right; given what its scheduler counts, only its reads are."""
    records = asked_at_smoke(name, tuple(all_checks(contract="penalties")))

    assert not broken(records)
    statuses = {record.code: record.status for record in records}
    known = set() if name == "penalties/sglang-library" else {"PEN101", "PEN110", "PEN111", "PEN112"}
    assert {code for code, status in statuses.items() if status == "xfailed"} == known
    assert {code for code, status in statuses.items() if status == "skipped"} == {"PEN104", "PEN113", "PEN401"}


def test_at_least_20_samplers_of_10_projects_are_in_the_table_and_15_of_them_in_ci() -> None:
    answered = {row["name"] for row in samplers_table.read(RECORD).values() if not row["problem"]}
    projects = {samplers_table.SAMPLERS[name].page for name in answered}

    assert len(answered) >= 20
    assert len(projects) >= 10
    assert len(samplers_table.IN_CI & answered) >= 15


def test_samplers_that_the_table_says_are_in_ci_are_asked_here() -> None:
    in_ci = {name for names, *_ in ASKED for name in names} | {*PENALTIES}
    assert {name for name in in_ci if "--all" not in package_for(name)[1]} == samplers_table.IN_CI


def test_defects_name_adapters_and_checks_that_exist() -> None:
    codes = {check.code for check in all_checks()}
    for defect in read_defects("fairdraw_engines"):
        assert defect["sampler"] in known_names()
        assert set(defect["checks"]) <= codes
        assert not defect.get("link", "").startswith("docs/") or (ROOT / defect["link"]).is_file()


def test_recovery_of_tpu_inference_reaches_exponentials_of_zero() -> None:
    """`docs/findings/tpu-inference-zero-exponential.md`."""
    check = next(check for check in all_checks() if check.code == "DIST341")
    require(*package_for("rejection/tpu-inference"))
    with pytest.raises(CheckFailure, match="tokens that hardly ever come do: exponentials that are 0"):
        check.run(loaded("rejection/tpu-inference"), profile=PROFILES["ci"], seed=0)


SHARDED = """
import jax, numpy as np
from fairdraw_engines._tpu_inference import _key, _load

rng = np.random.default_rng(0)
logits = 3 * rng.normal(size=(8, 512)).astype(np.float32)
drafts = np.where(np.arange(8) < 4, logits.argmax(1), rng.integers(0, 512, 8)).astype(np.int32)
columns = {
    "temperature": np.array([-1, 1, 0.7, 1, 2, 1, 1, 1], np.float32),
    "top_k": np.array([0, 5, 0, 50, 0, 0, 9, 0], np.int32),
    "top_p": np.array([1, 1, 0.5, 0.9, 1, 1, 1, 0.3], np.float32),
}

def tokens(num_devices):
    released = _load(num_devices)
    spread = jax.sharding.NamedSharding(released.mesh, jax.sharding.PartitionSpec(None, "model"))
    placed = jax.device_put(logits, spread)
    assert len(placed.sharding.device_set) == num_devices
    metadata = released.metadata(**columns, do_sampling=True)
    plain, _ = released.sample(_key(3), released.mesh, placed, metadata)
    ones = np.ones(8, np.int32)
    verified = released.rejection_sampler(drafts, ones, None, placed, drafts, metadata, _key(3))
    return [*np.asarray(plain).tolist(), *np.asarray(verified).tolist()]

assert tokens(1) == tokens(8), (tokens(1), tokens(8))
"""


def test_tokens_of_tpu_inference_do_not_depend_on_the_number_of_devices() -> None:
    """Rows that are spread over eight virtual devices, in a process of its own: JAX counts its devices once."""
    require(*package_for("rejection/tpu-inference"))
    devices = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
    environment = {**os.environ, **devices, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", "-c", SHARDED]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)

    assert done.returncode == 0, done.stderr


# multinomial, the race that it is


def test_multinomial_of_torch_is_the_race_on_the_same_generator() -> None:
    for seed in range(300):
        torch.manual_seed(seed)
        probs = torch.rand(1, 1 + seed % 97).softmax(-1)
        torch.manual_seed(seed)
        drawn = torch.multinomial(probs, 1)
        torch.manual_seed(seed)
        assert drawn.equal(_race(probs, 1))


def test_multinomial_draws_by_explicit_exponentials() -> None:
    noise = ExplicitNoise(torch.empty(0, dtype=torch.float64), torch.tensor([[1.0, 0.001, 1.0]]))

    with multinomial_noise(noise):
        assert torch.multinomial(torch.tensor([[0.4, 0.2, 0.4]]), 1).item() == 1


def test_multinomial_without_a_distribution_raises_as_torch_does() -> None:
    noise = ExplicitNoise(torch.empty(0, dtype=torch.float64), torch.ones(1, 2))

    with multinomial_noise(noise), pytest.raises(RuntimeError, match="contains either"):
        torch.multinomial(torch.tensor([[torch.nan, torch.nan]]), 1)


@pytest.mark.parametrize(
    ("name", "package", "command"),
    [
        ("rejection/triton", "triton", "pip install triton"),
        ("rejection/transformers", "transformers", "pip install transformers"),
        ("rejection/mlx", "mlx", r"pip install 'mlx-lm\[cpu\]'"),
        ("rejection/sglang", "sglang", "pip install --no-deps sglang"),
        ("rejection/vllm", "vllm", "pip install vllm, or, without a GPU, python tools/install.py vllm in a clone"),
        ("rejection/vllm-v2", "vllm", "pip install vllm, or, without a GPU, python tools/install.py vllm in a clone"),
    ],
)
def test_missing_package_is_said_in_one_sentence(
    name: str, package: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for loaded in [module for module in sys.modules if module.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, package, None)

    with pytest.raises(SamplerNotFound, match=f"sampler='{name}', but it needs the package {package}.*Run {command}"):
        load(name, "cpu")


# Findings


def package_of(page: Path) -> tuple[str, str]:
    """Of the project that the page's name begins with, and how to get it."""
    project = page.stem.partition("-")[0]
    if needs_gpu(page):
        return "flashinfer", _CARD
    project = "mlx" if project == "servers" else project  # what a page about several has beside transformers
    return package_for(next(name for name in samplers_table.SAMPLERS if name.partition("/")[2].startswith(project)))


def before(page: Path, word: str, release: str) -> bool:
    """Whether `release` (else the installed one) comes before the one that `word` names in the page's head."""
    named = head(page).get(word)
    found = release or importlib.metadata.version(package_of(page)[0]) if named else ""
    return named is not None and release_number(found) < release_number(named)


END = "<end of the program>"
EXECUTE = f"""
import sys
for program in sys.argv[1:]:
    exec(program, names := {{"__name__": "__main__"}})
    for name in [name for name in names if name.startswith("test_")]:
        try:
            names[name]()
            print(name, "passes")
        except AssertionError:
            print(name, "fails")
    print({END!r})
"""


def program_of(page: Path) -> str:
    """The page's program, and behind it the test for the project's own tests, if the page has one."""
    return "".join(re.findall(r'```python(?: title="[^"]+")?\n(.*?)```', page.read_text(), re.DOTALL))


def needs_gpu(page: Path) -> bool:
    """Whether its program calls CUDA kernels. FAIRDRAW_GPU_PAGES=1 runs it, where there is a GPU."""
    return 'device="cuda"' in program_of(page)


def left_out(page: Path, release: str) -> str:
    """Why its program does not run here; empty if it does."""
    if starts_servers(page):
        return "the program starts servers: FAIRDRAW_SERVER_PAGES=1 runs it"
    if needs_gpu(page) and "FAIRDRAW_GPU_PAGES" not in os.environ:
        return "the program needs a GPU: FAIRDRAW_GPU_PAGES=1 runs it"
    if before(page, "first", release):
        return f"the program needs {head(page)['first']} or later"
    return ""


def starts_servers(page: Path) -> bool:
    """Whether its program starts servers of other people, on fixed ports: too slow for every CI run, where checks find
    the same defects (`tests/docs/test_servers.py`). FAIRDRAW_SERVER_PAGES=1 runs it."""
    return "subprocess.Popen" in program_of(page) and "FAIRDRAW_SERVER_PAGES" not in os.environ


@cache
def what_programs_print(project: str, release: str) -> tuple[dict[str, str], str]:
    """What the programs of all pages about `project` print, by page, and errors: one process imports it once."""
    pages = [page for page in PAGES if page.stem.partition("-")[0] == project and not left_out(page, release)]
    command = [sys.executable, "-W", "ignore", "-c", EXECUTE, *map(program_of, pages)]
    # As in an activated environment: a page about a server starts it by its command.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    search = os.pathsep.join([str(VLLMS / release), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PATH": path, "PYTHONPATH": search}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    printed = done.stdout.split(f"{END}\n")
    return {page.stem: text for page, text in zip(pages, printed, strict=False)}, done.stderr


RUNS = [*((page, "") for page in PAGES), *((page, "0.33.0") for page in PAGES if page.stem.startswith("vllm-"))]


@pytest.mark.parametrize(("page", "release"), RUNS, ids=lambda one: getattr(one, "stem", one))
def test_page_of_a_finding_shows_what_its_program_prints(page: Path, release: str) -> None:
    """And its test fails where the finding is open, and passes in a release that mends it."""
    project = page.stem.partition("-")[0]
    require(*package_of(page))
    if left_out(page, release):
        pytest.skip(left_out(page, release))
    if release and not (VLLMS / release).exists():
        pytest.skip(f"python tools/install.py vllm {release} --target .cache/vllm/{release} was not run")

    printed, errors = what_programs_print(project, release)
    is_open = "fixed" not in head(page) or before(page, "fixed", release)
    (shown,) = re.findall(r"```text\n(.*?)```", page.read_text(), re.DOTALL)
    tests = re.findall(r"^def (test_\w+)", page.read_text(), re.MULTILINE)
    outcomes = "".join(f"{test} {'fails' if is_open else 'passes'}\n" for test in tests)
    assert tests or project not in ("vllm", "sglang", "llama")
    expected = shown + outcomes if is_open else outcomes
    assert printed.get(page.stem, "")[0 if is_open else -len(outcomes) :] == expected, errors


# The table


def row(name: str, **changes: Any) -> dict[str, Any]:  # Any: JSON
    failure = {"code": "REJ113", "title": "a title", "status": "xfailed", "reason": "why (docs/findings/page-of.md)"}
    plain: dict[str, Any] = {
        "name": name,
        "sampler": f"{name} 1.0",
        "contract": "rejection",
        "selected": ["REJ", "DIST102"],
    }
    plain |= {"counts": {"passed": 2, "xfailed": 1, "skipped": 3}, "failures": [{**failure, "effect": ""}]}
    return {
        **plain,
        "unsupported": ["greedy is unsupported"],
        "problem": "",
        "seconds": 1,
        "origin": {"date": "today"},
        **changes,
    }


def test_table_counts_and_links_what_is_known() -> None:
    mlx, vllm = "rejection/mlx", "rejection/vllm"
    rows = {mlx: row(mlx), vllm: row(vllm, problem="not installed", counts={}, failures=[], unsupported=[])}
    text = samplers_table.as_markdown(list(rows.values()))
    assert (
        "| `rejection/mlx` | [rejection/mlx 1.0](https://github.com/ml-explore/mlx-lm) "
        "| rejection | yes | 3 | 2 | 1 | 3 |" in text
    )
    assert "recovers a possible token: why ([page](findings/page-of.md))." in text
    assert "Of the distribution checks only DIST102 ran." in text
    assert "1 samplers of 1 projects were tested." in text
    assert text.index(f"`{mlx}`") < text.index(f"`{vllm}` | no result")


def test_table_refuses_unknown_samplers(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        samplers_table.main(["nobody"])

    assert "no such sampler: nobody; known: rejection/flashspec," in capsys.readouterr().err
