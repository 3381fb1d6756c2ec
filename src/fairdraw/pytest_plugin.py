"""The suite under pytest: `pytest --pyargs fairdraw --sampler mypkg.kernels:make_sampler`.

Loading this plugin imports the standard library, pytest and a few small modules of ours; torch, numpy, hypothesis and
triton arrive with the first test that needs them. It says nothing unless one of our options or checks is used.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import pytest

from fairdraw._core.checks import PROFILES, AnyCheck
from fairdraw._core.contracts import contract_name
from fairdraw._core.pulse import DEFAULT_CALL_TIMEOUT
from fairdraw._plugin.run import RUN, CheckUnderPytest, PytestRun
from fairdraw._run.controls import property_mutants
from fairdraw._run.loading import SUITES, CannotStart, all_checks, as_sampler
from fairdraw._run.runner import DEFAULT_SEED, parse_seed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from fairdraw._mutants.rejection import Mutant
    from fairdraw.protocols import AnySampler

__all__ = ["SamplerTests", "parametrize_with_checks"]

# A wheel lists its files, so pytest rewrites their asserts; an editable install lists none.
pytest.register_assert_rewrite("fairdraw.properties", "fairdraw.statistical")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("fairdraw", "fairdraw: judge a token sampler")
    group.addoption(
        "--sampler",
        metavar="SPEC",
        help="sampler under test: a built-in name (triton, sampling ...), a registered one or pkg.module:factory "
        "(default: ours, one for each contract)",
    )
    group.addoption("--fairdraw-profile", choices=list(PROFILES), default="ci", help="how much is tried (default: ci)")
    group.addoption(
        "--fairdraw-seed",
        type=_seed,
        default=DEFAULT_SEED,
        metavar="N|fresh",
        help=f"seed of the cases (default: {DEFAULT_SEED}, fixed within a release)",
    )
    group.addoption(
        "--fairdraw-reference",
        metavar="SPEC|none",
        help="sampler that differential checks compare with (default: vllm, if it can be imported)",
    )
    group.addoption("--fairdraw-only", choices=list(SUITES), help="run the checks of one suite")
    group.addoption(
        "--fairdraw-time-budget", type=float, metavar="SECONDS", help="what is not decided by then is inconclusive"
    )
    group.addoption(
        "--fairdraw-call-timeout",
        type=float,
        default=DEFAULT_CALL_TIMEOUT,
        metavar="SECONDS",
        help=f"a call of the sampler that takes longer hangs (default: {DEFAULT_CALL_TIMEOUT:g})",
    )
    _add_files(group)


def _add_files(group: pytest.OptionGroup) -> None:
    """Files of failures that the user knows about, and files that a run leaves."""
    group.addoption("--fairdraw-xfails", type=Path, metavar="FILE", help="TOML: code = reason; known failures, strict")
    group.addoption(
        "--fairdraw-baseline", type=Path, metavar="FILE", help="JSON: only failures that are not in it are red"
    )
    group.addoption("--fairdraw-html", type=Path, metavar="FILE", help="write the run as a page")
    group.addoption(
        "--fairdraw-json", type=Path, metavar="FILE", help="write the run as JSON lines; see: fairdraw schema"
    )


def _seed(text: str) -> int:
    """A fresh seed is drawn here, on the command line, so that xdist's workers are told the number."""
    try:
        return parse_seed(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def pytest_configure(config: pytest.Config) -> None:
    config.stash[RUN] = PytestRun(config)
    config.pluginmanager.register(config.stash[RUN], "fairdraw-run")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that takes `fairdraw_property_mutant` runs once for each; suites know nothing of the layers above them."""
    if "fairdraw_property_mutant" in metafunc.fixturenames:
        mutants = property_mutants()
        ids = [f"{mutant.caught_by[0]} {mutant}" for mutant in mutants]
        metafunc.parametrize("fairdraw_property_mutant", mutants, ids=ids)


@pytest.fixture(scope="session")
def sampler(request: pytest.FixtureRequest) -> AnySampler:
    """The sampler under test, as `--sampler` names it."""
    try:
        return request.config.stash[RUN].named
    except CannotStart as error:
        pytest.fail(str(error), pytrace=False)


@pytest.fixture
def fairdraw_run(request: pytest.FixtureRequest) -> Callable[[AnyCheck], None]:
    """Run one check on the sampler under test: it passes, skips, xfails, or fails with the failure_report of the
    failure.
    """

    def run(check: AnyCheck) -> None:
        __tracebackhide__ = True
        here = request.config.stash[RUN]
        try:
            sampler = here.sampler_for(check.contract)
        except CannotStart as error:
            pytest.fail(str(error), pytrace=False)
        here.conduct(check, sampler, request.node)

    return run


@pytest.fixture
def fairdraw_control(request: pytest.FixtureRequest) -> Callable[[Mutant], None]:
    """Try one mutant as the run tries its sampler; fails if the check that has to catch it is blind here."""

    def plant(mutant: Mutant) -> None:
        __tracebackhide__ = True
        request.config.stash[RUN].plant(mutant, request.node)

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
    checks = [CheckUnderPytest(check) for check in all_checks(only)]
    known = [as_sampler(sampler) for sampler in samplers]
    pairs = [(s, check) for s in known for check in checks if check.check.contract == contract_name(s)]
    cases = [pytest.param(sampler, check, id=f"{sampler.name}-{check.check.id}") for sampler, check in pairs]
    return pytest.mark.parametrize(("sampler", "check"), cases)


class SamplerTests:
    """The checks as a class, for those who like classes; one test per check, with the ids of `parametrize_with_checks`.

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

        def test_promise(self: SamplerTests, sampler: AnySampler, check: CheckUnderPytest) -> None:
            check(sampler)

        cls.test_promise = parametrize_with_checks([cls.sampler], only=cls.only)(test_promise)  # type: ignore[attr-defined]
