"""The plugin under its entry point's name: a clone works uninstalled, and an installation does not load it twice."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairdraw._mutants._mutant import Mutant

pytest_plugins = ["fairdraw.pytest_plugin", "pytester"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that leaves mutants to another command."""
    text = "Leave out each mutant that `fairdraw check` tries on this sampler, on the same check."
    parser.addoption("--tried-on", metavar="SAMPLER", help=text)


def pytest_configure() -> None:
    """Refuse a clone in which git wrote files in the place of links, as it does on Windows by default."""
    if (Path(__file__).parent / "src" / "fairdraw" / "strategies").is_file():
        rule = "src/fairdraw/strategies is a file, but it must be a symbolic link"
        remedy = "Run `git config core.symlinks true` and `git checkout -- src/fairdraw`; CONTRIBUTING.md says more"
        raise pytest.UsageError(f"conftest: {rule}. {remedy}.")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect mutants that are tried elsewhere: one is red only if its check misses it with the proven numbers."""
    if config.getoption("--tried-on") is not None:
        is_tried = tried_on(config.getoption("--tried-on"))
        left_out = {one for one in items if any(map(is_tried, _mutants_of(one)))}
        config.hook.pytest_deselected(items=[*left_out])
        items[:] = [one for one in items if one not in left_out]


def _mutants_of(item: pytest.Item) -> list[Mutant]:
    """Return the mutant that a test tries as a run does; of other tests none."""
    if "fairdraw_control" not in getattr(item, "fixturenames", ()) or not hasattr(item, "callspec"):
        return []
    return [one for one in item.callspec.params.values() if hasattr(one, "caught_by")]


def tried_on(spec: str) -> Callable[[Mutant], bool]:
    """Return whether a run on the sampler tries a mutant on the check that names it first."""
    from fairdraw._core.contracts import contract_name
    from fairdraw._run.controls import as_asked, mutants_of, plan_control
    from fairdraw._run.loading import all_checks, load_sampler
    from fairdraw._run.runner import Session

    sampler = load_sampler(spec)
    checks = all_checks(contract=contract_name(sampler))
    known = {(one.name, one.caught_by[0]) for one in mutants_of(checks)}

    def is_tried(mutant: Mutant) -> bool:
        if (mutant.name, mutant.caught_by[0]) not in known:
            return False
        planned = plan_control(mutant, checks, sampler, Session())
        able = not planned.untried and planned.check.code == mutant.caught_by[0]
        return able and planned.check.why_not(as_asked(mutant.make(), sampler)) is None

    return is_tried
