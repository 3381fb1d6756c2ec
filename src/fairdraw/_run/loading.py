"""From words to objects: the sampler under test, the reference, the checks."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

from fairdraw._core.capabilities import Capabilities, Capability
from fairdraw._core.contracts import CONTRACTS, contract_of, declared_policy, load_part, what_lacks
from fairdraw._core.foreign import one_line
from fairdraw._core.isolation import leave_state, read_state
from fairdraw._core.last_words import leave_fork
from fairdraw._core.release import install
from fairdraw._core.wrapping import Limited
from fairdraw.contracts import AnySampler, FunctionServer, NoAnswer, ServerSettings, switch_sides

if TYPE_CHECKING:
    from fairdraw._core.checks import AnyCheck

SUITES: dict[str, tuple[str, ...]] = {
    "properties": tuple(CONTRACTS),
    "statistical": tuple(name for name, one in CONTRACTS.items() if one.has_distributions),
}
"""Suite to the contracts that it has checks of: `CHECKS` of the suite's module of that name."""

NO_REFERENCE = "none"
"""The value of `--reference` that switches differential checks off."""

_LOADER = Path(__file__).parents[1] / "adapters" / "__init__.py"


class CannotStart(Exception):
    """The run cannot start: an unknown sampler, a factory that raises, not a sampler. One sentence says why."""


BESIDE_CHECKS = ("fairdraw.statistical._nightly:LEDGER",)
"""Checks that run beside `all_checks`, on request; reports print their codes, too."""


def all_questions() -> tuple[AnyCheck, ...]:
    """Everything that has a code, in the order of the codes: `all_checks`, and what runs beside them on request."""
    return tuple(sorted((*all_checks(), *map(load_part, BESIDE_CHECKS)), key=lambda check: check.code))


@cache
def all_checks(only: str | None = None, contract: str | None = None) -> tuple[AnyCheck, ...]:
    """The shipped checks, of one suite and one contract or of all, in the order of their codes.

    No other contract is imported: that of servers needs no torch. Without torch, all are those that need none.

    Raises:
        CannotStart: If `contract` needs torch, which is missing.
    """
    found: list[AnyCheck] = []
    for suite, name in ((suite, name) for suite, names in SUITES.items() for name in names):
        if only in (None, suite) and contract in (None, name):
            try:
                found += importlib.import_module(f"fairdraw.{suite}.{name}").CHECKS
            except ModuleNotFoundError as error:
                if error.name != "torch":
                    raise
                if contract is not None:
                    raise CannotStart(_needing_torch(contract)) from None
    return tuple(sorted(found, key=lambda check: check.code))


def left_out() -> str:
    """Say which contracts `all_checks` lacks here, and the remedy; empty if it lacks none."""
    found = {check.contract for check in all_checks("properties")}
    return _needing_torch(*(name for name in CONTRACTS if name not in found)) if len(found) < len(CONTRACTS) else ""


def _needing_torch(*contracts: str) -> str:
    return f"torch is not installed, but checks of {', '.join(contracts)} need it. Use {install('fairdraw[torch]')}."


def load_sampler(spec: str, settings: ServerSettings | None = None) -> AnySampler:
    """Return the sampler called `spec`: a name of a catalogue, `pkg.module:factory`, or the address of a server.

    Args:
        settings: How a server is asked, and what any sampler is declared not to support.

    Raises:
        CannotStart: If there is none, its factory raises, or it makes something else.
    """
    if is_address(spec):
        return _connected(spec, settings or ServerSettings())
    # By name, not by an import statement: no layer of the suite depends on the adapters.
    adapters = importlib.import_module("fairdraw.adapters")
    sampler, before = None, read_state()
    process, folder = os.getpid(), Path.cwd()
    try:
        sampler = adapters.load(spec)
        if settings and settings.unsupported:
            own = sampler.capabilities
            words = {Capability(word): why for word, why in settings.unsupported}
            sampler = Limited(sampler, Capabilities({**words, **own.unsupported}, own.slow))
    except adapters.SamplerNotFound as error:
        raise CannotStart(f"{error}{_where(error.__cause__)}") from error
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # `pytest.skip` raises one, too
        raise CannotStart(f"sampler {spec!r} could not be made: {last_line(error)}") from error
    finally:
        leave_fork(process)
        leave_state(sampler, before)
        os.chdir(folder)  # relative names of files that the user gave mean what they meant
    return as_sampler(sampler)


def another(spec: str, settings: ServerSettings | None = None) -> AnySampler | None:
    """Return another sampler of this name; `None` if its factory makes one only."""
    try:
        return load_sampler(spec, settings)
    except CannotStart:
        return None


def connect(address: str, settings: ServerSettings | None = None) -> AnySampler:
    """The server at an address, to be given to `check_sampler` or `parametrize_with_checks`.

    One that does not answer is an object, too: each of its checks is then incomplete, and says why.

    Args:
        address: `http://127.0.0.1:8000/v1`; behind a `#` the model, if there are several.
        settings: How it is asked, and how much.

    Raises:
        CannotStart: If the address is none, or the HTTP client is not installed.

    Example:
        >>> server = connect("http://127.0.0.1:9/v1")
        >>> server.device
        'HTTP'
    """
    if not is_address(address):
        raise CannotStart(f"connect: address={address!r}, but it must begin with http:// or https://.")
    return load_sampler(address, settings)


def is_address(spec: str) -> bool:
    """Whether a spec is the address of a server, not the name of a sampler.

    Example:
        >>> is_address("http://127.0.0.1:8000/v1"), is_address("rejection/torch")
        (True, False)
    """
    return spec.startswith(("http://", "https://"))


def _connected(spec: str, settings: ServerSettings) -> AnySampler:
    """The server at an address. One that does not answer is an object, too: each of its checks is incomplete."""
    try:
        found: AnySampler = load_part("fairdraw._server._http:HttpServer").found(spec, settings)
    except ImportError as error:
        remedy = f"Use {install('fairdraw[server]')}"
        raise CannotStart(f"{spec}: {error.name} cannot be imported, but servers need it. {remedy}.") from None
    except (ValueError, OSError) as error:
        raise CannotStart(f"{error}.") from None
    except NoAnswer as error:
        return FunctionServer(lambda _: [], spec, settings=settings, device="HTTP", silent=one_line(str(error)))
    return found


def where_made(spec: str) -> str:
    """Return `file:line` of the factory at the path `spec`, from the root of its repository; empty for other names."""
    name, _, path = spec.partition(":")
    if is_address(spec) or (module := sys.modules.get(name)) is None or not module.__file__:
        return ""
    file, line = Path(module.__file__), 1
    with suppress(AttributeError, TypeError, OSError):  # an object, or what C has made: then its module is named
        factory = inspect.unwrap(attrgetter(path)(module))
        file, line = Path(inspect.getsourcefile(factory) or file), inspect.getsourcelines(factory)[1]
    here = Path.cwd()
    root = next((folder for folder in (here, *here.parents) if (folder / ".git").exists()), here)
    return f"{file.relative_to(root) if file.is_relative_to(root) else file}:{line}"


def is_catalogued(spec: str) -> bool:
    """Whether `spec` names a sampler of fairdraw or of another installed package; a path may name any code."""
    adapters = importlib.import_module("fairdraw.adapters")
    return spec in adapters.ALIASES or spec in adapters.known_names()


def sampler_lines() -> list[str]:
    """Return every sampler with its note, then the aliases, and what is wrong with packages that are left out."""
    adapters = importlib.import_module("fairdraw.adapters")  # as above
    found = adapters.find_catalogues()
    width = max(map(len, found.rows))
    more = [] if adapters.ENGINES in found.packages else [f"Samplers of other projects: {install('fairdraw-engines')}"]
    return [
        *(f"{name:{width}}  {one_line(row.note)}" for name, row in found.rows.items()),
        *(f"{alias:{width}}  the same as {name}" for alias, name in adapters.ALIASES.items()),
        *more,
        *(f"Left out: {fault}" for fault in found.faults),
    ]


def load_reference(
    name: str | None, checks: Iterable[AnyCheck], settings: ServerSettings | None = None
) -> tuple[AnySampler | None, str]:
    """The sampler that differential checks compare with, and a note about it for the header.

    Args:
        name: A sampler; `none` for no reference; `None` for the real vLLM if it can be loaded.
        settings: Of a server; its model is the reference's own.
        checks: Of one contract. Nothing is loaded unless one is a differential: importing vLLM takes seconds.

    Raises:
        CannotStart: If a sampler was named and cannot be loaded, or none of the checks can compare with it.
    """
    if name == NO_REFERENCE:
        return None, "none, as asked"
    differentials = [check for check in checks if check.differential]
    if not differentials:
        return None, "not needed by these checks"
    contract = CONTRACTS[differentials[0].contract]
    if not (name or contract.reference):
        return None, "none (name one with --reference)"
    try:
        reference = load_sampler(name or contract.reference, settings and dataclasses.replace(settings, model=""))
    except CannotStart as error:
        if name is not None:
            raise
        return None, f"none ({error})"
    _require_contract(reference, contract.name)
    if silent := getattr(reference, "silent", ""):
        raise CannotStart(f"reference {reference.name}: {silent}.")
    if name is not None:
        _require_comparable(name, reference, differentials)
    return reference, reference.name


def require_extra(option: str, module: str) -> None:
    """Refuse an option before the run if what it needs cannot be imported; it comes with the extra `report`.

    Raises:
        CannotStart: If so; it says how to install it.
    """
    try:
        importlib.import_module(module)
    except ImportError as error:
        remedy = f"Use {install('fairdraw[report]')}"
        raise CannotStart(f"{option}: {module} cannot be imported ({error}), but it is needed. {remedy}.") from None


def _require_contract(reference: AnySampler, required: str) -> None:
    found = contract_of(reference)
    if found is None or found.name != required:
        given, rule = f"contract={getattr(found, 'name', None)!r}", f"these checks are of {required!r}"
        raise CannotStart(f"reference {reference.name}: {given}, but {rule}. Name another reference, or none.")


def _require_comparable(name: str, reference: AnySampler, differentials: Sequence[AnyCheck]) -> None:
    """Refuse a reference that was named and that every differential check would skip: nothing would be compared."""
    reasons = [check.missing(reference.capabilities) for check in differentials]
    if all(reasons):
        why = " and ".join(dict.fromkeys(filter(None, reasons)))
        codes = ", ".join(check.code for check in differentials)
        usual = CONTRACTS[differentials[0].contract].reference
        raise CannotStart(f"reference {name}: {why}, so nothing can be compared in {codes}. Use {usual}, or none.")


def as_sampler(value: object) -> AnySampler:
    """`value`, if it has what a sampler has.

    Raises:
        CannotStart: If an attribute is missing, or `policy` or `size_switches` is none, or a known defect belongs to no
            check or has no reason.
    """
    contract, lacks = contract_of(value), what_lacks(value)
    if lacks or contract is None or not isinstance(value, AnySampler):
        raise CannotStart(f"sampler={lacks}, but a sampler must have it. Use fairdraw.rejection_sampler(function).")
    if contract.one_of and set(contract.one_of) <= set(value.capabilities.unsupported):
        given, rule = f"{' and '.join(contract.one_of)} are unsupported", "it must support one of them"
        raise CannotStart(f"sampler {value.name}: {given}, but {rule}. Declare one of them at most.")
    try:
        declared_policy(value, contract.name)
        switch_sides(value)
    except ValueError as error:
        raise CannotStart(f"sampler {value.name}: {error}") from None
    unknown = sorted(set(known_defects(value)) - {check.code for check in all_checks(contract=contract.name)})
    if unknown:
        rule, remedy = "keys must be codes of checks of its contract", f"See: fairdraw list --contract {contract.name}"
        raise CannotStart(f"sampler {value.name}: known_defects={unknown}, but {rule}. {remedy}")
    return value


@dataclass(frozen=True)
class KnownFailure:
    """A check that a sampler is known to fail.

    Args:
        reason: Why, for reports.
        cases: How many cases (statistical checks: draws) it takes to see the failure; a run with fewer that does not
            see it does not report it as fixed. 0: as many as profile `ci` gives a sampler of that speed.
    """

    reason: str
    cases: int = 0


def known_failure(value: object) -> KnownFailure:
    """An entry as an object: a reason, or a table of `reason` and `cases`.

    Raises:
        ValueError: If it is neither. The message ends a sentence that names the entry.

    Example:
        >>> known_failure({"reason": "rare", "cases": 60})
        KnownFailure(reason='rare', cases=60)
    """
    table = value if isinstance(value, Mapping) else {"reason": value}
    reason, cases = table.get("reason"), table.get("cases", 0)
    if not isinstance(reason, str) or not reason.strip():
        raise ValueError("gives no reason")
    if type(cases) is not int or cases < 0 or set(table) - {"reason", "cases"}:
        raise ValueError(f"says {dict(table)!r}, but beside a reason it may say only cases, a whole number")
    return KnownFailure(reason, cases)


def known_defects(sampler: object) -> dict[str, KnownFailure]:
    """Check code to what is known about its failure; empty if the sampler declares none.

    Raises:
        CannotStart: If an entry is no reason.
    """
    declared: Mapping[str, object] = getattr(sampler, "known_defects", {})
    found = {}
    for code, value in declared.items():
        try:
            found[code] = known_failure(value)
        except ValueError as error:
            raise CannotStart(f"sampler {getattr(sampler, 'name', '')}: known_defects[{code!r}] {error}.") from None
    return found


def last_line(error: BaseException) -> str:
    """The exception as Python prints it, and where it was raised."""
    return "".join(traceback.format_exception_only(error)).strip().splitlines()[0] + _where(error)


def _where(error: BaseException | None) -> str:
    """` (file:line in function)` of the frame that raised, if it is in somebody's file and not in what loads them."""
    frames = traceback.extract_tb(error.__traceback__) if error is not None else []
    if not frames or not Path(frames[-1].filename).is_file() or Path(frames[-1].filename) == _LOADER:
        return ""
    path = Path(frames[-1].filename)
    shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return f" ({shown}:{frames[-1].lineno} in {frames[-1].name})"
