"""The suite under pytest: `pytest --pyargs fairdraw --sampler mypkg.kernels:make_sampler`.

Loading this plugin imports the standard library, pytest and two small modules of ours. The rest arrives with the first
option, fixture or check of ours, so the plugin costs other pytest runs nothing, and it prints nothing in them.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from fairdraw._core.pulse import DEFAULT_CALL_TIMEOUT
from fairdraw._core.seeds import DEFAULT_SEED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from fairdraw._core.checks import AnyCheck
    from fairdraw._mutants._mutant import Mutant
    from fairdraw._plugin.run import CheckUnderPytest, PytestRun
    from fairdraw.contracts import AnySampler

__all__ = ["SamplerTests", "parametrize_with_checks"]

PROFILE_WORDS, SUITE_WORDS = ("smoke", "ci", "nightly"), ("properties", "statistical")
"""Words of options. The modules that define them are not imported for it; a test compares."""

# A wheel lists its files, so pytest rewrites their asserts; an editable install lists none.
pytest.register_assert_rewrite("fairdraw.properties", "fairdraw.statistical")


_FILES = {
    "xfails": "require these failures (TOML: code = reason)",
    "baseline": "ignore the failures listed here (JSON); only new ones fail the run",
    "html": "write the run as a page",
    "json": "write the run as JSON lines; see: fairdraw schema",
}
"""Files of known failures, and files that a run writes."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("fairdraw", "fairdraw: test a token sampler")

    def add(name: str, about: str, **kind: Any) -> None:  # Any: as pytest takes them
        group.addoption(f"--fairdraw-{name}", help=about, **kind)

    spec = "a name of `fairdraw list --samplers` (rejection/triton ...) or pkg.module:factory"
    usual = "(default: ours, one for each contract)"
    group.addoption("--sampler", metavar="SPEC", help=f"test this sampler: {spec} {usual}")
    add("profile", "set how much to try (default: ci)", choices=PROFILE_WORDS, default="ci")
    seed = f"seed the cases (default: {DEFAULT_SEED}, fixed within a release)"
    add("seed", seed, type=_seed, default=DEFAULT_SEED, metavar="N|fresh")
    reference = "compare with this sampler (default: the contract's vLLM, if it can be imported)"
    add("reference", reference, metavar="SPEC|none")
    add("no-controls", "leave out mutation controls; the verdict says so", action="store_true")
    add("only", "run the checks of one suite", choices=SUITE_WORDS)
    add("time-budget", "stop then; what is undecided is inconclusive", type=_seconds, metavar="SECONDS")
    hanging = f"count a call of the sampler that takes longer as hanging (default: {DEFAULT_CALL_TIMEOUT:g})"
    add("call-timeout", hanging, type=_some_seconds, default=DEFAULT_CALL_TIMEOUT, metavar="SECONDS")
    for name, about in _FILES.items():
        add(name, about, type=Path, metavar="FILE")


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 <= seconds <= 1e9:  # nor NaN
        raise argparse.ArgumentTypeError(f"{text!r} is no time. Use a number of seconds, at most 1e9.")
    return seconds


def _some_seconds(text: str) -> float:
    if not _seconds(text):
        raise argparse.ArgumentTypeError(f"{text!r} leaves no time for a call. Use a number above 0.")
    return float(text)


def _seed(text: str) -> int:
    """A fresh seed is drawn here, on the command line, so that xdist's workers get the number."""
    from fairdraw._run.runner import parse_seed

    try:
        return parse_seed(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_Gate(config), "fairdraw-gate")
    option = config.option
    if option.sampler or option.fairdraw_json or option.fairdraw_html:
        _run_of(config)


def _run_of(config: pytest.Config) -> PytestRun:
    """The state of this pytest run. It is loaded when something of ours is used."""
    from fairdraw._plugin.run import RUN, PytestRun

    if RUN not in config.stash:
        config.stash[RUN] = PytestRun(config)
        config.pluginmanager.register(config.stash[RUN], "fairdraw-run")
    return config.stash[RUN]


_FIXTURES = {"fairdraw_run", "fairdraw_control", "fairdraw_property_mutant"}
_NAMES_A_CHECK = re.compile(r"\b[A-Z]{3,4}\d{3} ")


class _Gate:
    """Loads the rest of the plugin when a run turns out to use it. Pytest calls a new plugin from the next hook on."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    @property
    def _is_open(self) -> bool:
        return self._config.pluginmanager.has_plugin("fairdraw-run")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Our checks are in the run if a test takes a fixture of ours, or imported our checks."""
        is_imported = "fairdraw._core.checks" in sys.modules
        if self._is_open or any(is_imported or _FIXTURES & set(getattr(item, "fixturenames", ())) for item in items):
            _run_of(self._config).leave_out(items)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Under xdist only workers collect. Their reports say whether they ran checks; one that died says nothing."""
        ours = hasattr(report, "fairdraw") or hasattr(report, "fairdraw_start")
        if not self._is_open and (ours or (report.failed and _NAMES_A_CHECK.search(report.nodeid))):
            _run_of(self._config).pytest_runtest_logreport(report)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:  # Any: a class of xdist, which may be absent
        if not self._is_open and "fairdraw" in getattr(node, "workeroutput", {}):
            _run_of(self._config).pytest_testnodedown(node)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that takes `fairdraw_property_mutant` runs once for each. Suites do not know the layers above them."""
    if "fairdraw_property_mutant" in metafunc.fixturenames:
        from fairdraw._run.controls import property_mutants

        mutants = property_mutants()
        ids = [f"{mutant.caught_by[0]} {mutant}" for mutant in mutants]
        metafunc.parametrize("fairdraw_property_mutant", mutants, ids=ids)


@pytest.fixture(scope="session")
def sampler(request: pytest.FixtureRequest) -> AnySampler:
    """The sampler under test, as `--sampler` names it."""
    return _run_of(request.config).sampler_or_fail()


@pytest.fixture
def fairdraw_run(request: pytest.FixtureRequest) -> Callable[[AnyCheck], None]:
    """Run one check on the sampler under test: it passes, skips, xfails, or fails with the failure report."""

    def run(check: AnyCheck) -> None:
        __tracebackhide__ = True
        here = _run_of(request.config)
        here.conduct(check, here.sampler_or_fail(check.contract), request.node)

    return run


@pytest.fixture
def fairdraw_control(request: pytest.FixtureRequest) -> Callable[[Mutant], None]:
    """Run the check of one mutant on it, as the run does on its sampler; fails if the check misses it."""

    def plant(mutant: Mutant) -> None:
        __tracebackhide__ = True
        _run_of(request.config).plant(mutant, request.node)

    return plant


def parametrize_with_checks(
    samplers: Iterable[AnySampler], *, only: str | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorate `test(sampler, check)` so that it runs once per sampler and check; its body is `check(sampler)`.

    Args:
        only: One suite.

    Raises:
        CannotStart: If one of `samplers` is not a sampler.

    Example:
        >>> import fairdraw
        >>> from fairdraw._oracles.rejection import verify
        >>> @fairdraw.parametrize_with_checks([fairdraw.rejection_sampler(verify)])
        ... def test_sampler(sampler, check):
        ...     check(sampler)
    """
    from fairdraw._core.contracts import contract_name
    from fairdraw._plugin.run import CheckUnderPytest
    from fairdraw._run.loading import all_checks, as_sampler

    checks = [CheckUnderPytest(check) for check in all_checks(only)]
    known = [as_sampler(sampler) for sampler in samplers]
    pairs = [(s, check) for s in known for check in checks if check.check.contract == contract_name(s)]
    cases = [pytest.param(sampler, check, id=f"{sampler.name}-{check.check.id}") for sampler, check in pairs]
    return pytest.mark.parametrize(("sampler", "check"), cases)


class SamplerTests:
    """The checks as a test class: one test per check, with the ids of `parametrize_with_checks`.

    Attributes:
        sampler: The sampler under test.
        only: One suite.

    Raises:
        CannotStart: When the class is made, if `sampler` is not a sampler.

    Example:
        >>> import fairdraw
        >>> from fairdraw._oracles.rejection import verify
        >>> class TestMine(fairdraw.SamplerTests):
        ...     sampler = fairdraw.rejection_sampler(verify)
    """

    sampler: ClassVar[AnySampler]
    only: ClassVar[str | None] = None

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()

        def test_check(self: SamplerTests, sampler: AnySampler, check: CheckUnderPytest) -> None:
            check(sampler)

        cls.test_check = parametrize_with_checks([cls.sampler], only=cls.only)(test_check)  # type: ignore[attr-defined]
