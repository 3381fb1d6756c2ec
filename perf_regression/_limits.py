"""The limits file: dimensionless numbers, each with the value that was measured beside it.

TOML, read strictly: a key that nobody knows is an error, since a limit with a typing mistake in its name would never
be looked at. There are no absolute times in it: those belong to machines.
"""

from __future__ import annotations

import ast
import operator
import tomllib
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairdraw.perf_regression._decision import Gate
from fairdraw.perf_regression._named import release

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["LIMITS_FILE", "CaseLimits", "Limits", "LimitsError", "Reference", "evaluate", "read_limits"]

LIMITS_FILE = Path(__file__).parent / "limits.toml"
SCHEMA = 1
AXES = {"B", "K", "L", "V"}


class LimitsError(ValueError):
    """The limits file says something that cannot be used. Nothing has a verdict then."""


@dataclass(frozen=True)
class Reference:
    """What a ratio was made against: `vllm==0.22.0`."""

    package: str
    version: str

    def problem(self) -> str:
        """Why this machine cannot compare with it; empty if it can."""
        found = release(self.package)
        if found == self.version:
            return ""
        return f"limits were made for {self.package}=={self.version}, but installed is {found or 'none'}"


@dataclass(frozen=True)
class Golden:
    """What was measured when the limit was set. Never used as a limit; it shows the slack."""

    by: str
    date: str
    commit: str = ""
    values: Mapping[str, float | Mapping[str, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class CaseLimits:
    """Limits of one case; `None` where there is none.

    Args:
        reference: Whom `ratio_max` compares with.
        ratio_max: Most time, as a part of the reference's.
        workspace_ratio_max: Most time with a workspace, as a part of our own time without: it needs no reference.
        roofline_min: Least part of the copy bandwidth, on the bytes that must be moved.
        bytes_max: Most logical bytes, a formula in B, K, V, such as `3*B*V*4 + 64*B*K`.
        launches_max: Kernels per call.
        copies_max: ATen calls that copy whole tensors.
        allocations_max: New tensors per call.
        syncs_max: Waits of the host for the device.
        recompiles_max: After warm-up, over all sizes of a sweep.
        registers_max: Of any kernel, compiled for sm_90.
        spills_max: Bytes of spilled registers.
        operators_max: ATen operators per call.
        graph_nodes_max: Nodes of the CUDA graph that captures a call.
        instructions_exponent_max, time_exponent_max: Growth by axis: L is the length of outputs, and B, K, V are sizes.
        fixed_share_max: Most of the time that does not depend on the vocabulary, as a part of the time at its largest.
    """

    name: str
    reference: Reference | None = None
    ratio_max: float | None = None
    workspace_ratio_max: float | None = None
    roofline_min: float | None = None
    bytes_max: str | None = None
    launches_max: int | None = None
    copies_max: int | None = None
    allocations_max: int | None = None
    syncs_max: int | None = None
    recompiles_max: int | None = None
    registers_max: int | None = None
    spills_max: int | None = None
    operators_max: int | None = None
    graph_nodes_max: int | None = None
    fixed_share_max: float | None = None
    instructions_exponent_max: Mapping[str, float] = field(default_factory=dict)
    time_exponent_max: Mapping[str, float] = field(default_factory=dict)
    golden: Golden = Golden("", "")

    @property
    def num_timed(self) -> int:
        """How many limits are judged by a clock."""
        once = (self.ratio_max, self.workspace_ratio_max, self.roofline_min, self.fixed_share_max)
        return sum(limit is not None for limit in once) + len(self.time_exponent_max)


@dataclass(frozen=True)
class Limits:
    """The file.

    Args:
        confirm_processes: Fresh processes that must all repeat a FAIL before it is one.
    """

    family_alpha: float
    looks: tuple[int, ...]
    drop_fraction_max: float
    confirm_processes: int
    floor_us: Mapping[str, float]
    cases: Mapping[str, CaseLimits]

    @property
    def alpha(self) -> float:
        """One-sided, of one timing limit.

        Error rates:
            All timing limits of the file together, measured or not, fail a sampler that keeps them with probability at
            most `family_alpha`.
        """
        return self.family_alpha / max(1, sum(case.num_timed for case in self.cases.values()))

    def gate(self, case: CaseLimits, device: str, ratio: str = "ratio_max") -> Gate:
        """The gate of a case's ratio, `ratio_max` or `workspace_ratio_max`."""
        limit = getattr(case, ratio)
        if limit is None:
            raise LimitsError(f"gate: case={case.name!r} has no {ratio}, but a gate needs one. Add it to the limits.")
        return Gate(limit, self.floor_us[device] * 1e-6, self.alpha, self.looks, self.drop_fraction_max)


def read_limits(path: Path = LIMITS_FILE) -> Limits:
    """Read and check a limits file.

    Raises:
        LimitsError: If it is not TOML, of another schema, has a key that nobody knows, or a value of a wrong kind.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise LimitsError(f"{path.name}: {error}") from error
    _require_keys(path.name, document, {"schema", "policy", "floor_us", "case"}, {"schema", "policy", "floor_us"})
    if document["schema"] != SCHEMA:
        raise LimitsError(f"{path.name}: schema={document['schema']}, but it must be {SCHEMA}. Convert the file.")
    policy = document["policy"]
    known = {"family_alpha", "looks", "drop_fraction_max", "confirm_processes"}
    _require_keys(f"{path.name}, policy", policy, known, known)
    _require_keys(f"{path.name}, floor_us", document["floor_us"], {"cpu", "gpu"}, {"cpu", "gpu"})
    return Limits(
        family_alpha=_number(policy, "family_alpha"),
        looks=tuple(policy["looks"]),
        drop_fraction_max=_number(policy, "drop_fraction_max"),
        confirm_processes=int(_number(policy, "confirm_processes")),
        floor_us={device: _number(document["floor_us"], device) for device in ("cpu", "gpu")},
        cases={name: _case(name, values) for name, values in document.get("case", {}).items()},
    )


def _case(name: str, values: dict[str, Any]) -> CaseLimits:  # Any: TOML
    known = {one.name for one in fields(CaseLimits)} - {"name"}
    _require_keys(f"case {name!r}", values, known, {"golden"})
    limits = {key: value for key, value in values.items() if key not in ("golden", "reference")}
    if not limits:
        raise LimitsError(f"case {name!r} has no limit, but it must have one of {', '.join(sorted(known))}. Add one.")
    for key in limits:
        _check_limit(name, key, limits[key])
    reference = values.get("reference")
    if "ratio_max" in limits and reference is None:
        raise LimitsError(f"case {name!r}: ratio_max has no reference, but it must have one. Add 'vllm==VERSION'.")
    return CaseLimits(name, _reference(name, reference), **limits, golden=_golden(name, values["golden"]))


def _check_limit(case: str, key: str, value: object) -> None:
    where = f"case {case!r}, {key}"
    if key == "bytes_max":
        evaluate(str(value), B=1, K=1, V=1)
    elif key.endswith("_exponent_max"):
        if not isinstance(value, dict):
            raise LimitsError(f"{where}={value!r}, but it must be a table. Name the axis, as in {{ L = 0.1 }}.")
        _require_keys(where, value, AXES, set())
        for axis in value:
            _number(value, axis)
    elif isinstance(value, bool) or not isinstance(value, (int, float)):
        raise LimitsError(f"case {case!r}: {key}={value!r}, but it must be a number. Correct the limits.")


def _reference(case: str, text: str | None) -> Reference | None:
    if text is None:
        return None
    package, equals, version = text.partition("==")
    if not (package and equals and version):
        raise LimitsError(f"case {case!r}: reference={text!r}, but it must be package==version. Pin the version.")
    return Reference(package, version)


def _golden(case: str, values: dict[str, Any]) -> Golden:  # Any: TOML
    words = {"by", "date", "commit"}
    numbers = {key: value for key, value in values.items() if key not in words}
    if not {"by", "date"} <= values.keys():
        raise LimitsError(f"case {case!r}: golden={values}, but it must say by whom and when. Add by and date.")
    known = {one.name.removesuffix("_max").removesuffix("_min") for one in fields(CaseLimits)}
    _require_keys(f"case {case!r}, golden", numbers, known, set())
    return Golden(str(values["by"]), str(values["date"]), str(values.get("commit", "")), numbers)


def _require_keys(where: str, values: Mapping[str, object], known: set[str], needed: set[str]) -> None:
    unknown, missing = sorted(values.keys() - known), sorted(needed - values.keys())
    if unknown:
        raise LimitsError(f"{where}: unknown key {unknown[0]!r}, but keys must be of {sorted(known)}. Correct it.")
    if missing:
        raise LimitsError(f"{where}: {missing[0]!r} is missing, but it must be there. Add it.")


def _number(values: Mapping[str, Any], key: str) -> float:  # Any: TOML
    value = values[key]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0:
        raise LimitsError(f"{key}={value!r}, but it must be a number, not negative. Correct the limits.")
    return float(value)


_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}


def evaluate(formula: str, **sizes: int) -> int:
    """An integer formula in sizes, with `+ - * //` and brackets.

    Raises:
        LimitsError: If there is anything else in it.

    Example:
        >>> evaluate("2*B*V*4 + 64*B*K", B=2, K=3, V=100)
        1984
    """

    def value(node: ast.expr) -> int:
        match node:
            case ast.Constant(value=int(number)):
                return number
            case ast.Name(id=name) if name in sizes:
                return sizes[name]
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                return _OPERATORS[type(op)](value(left), value(right))
        raise LimitsError(
            f"formula {formula!r}: {ast.unparse(node)!r} is not + - * //, a number or {', '.join(sizes)}."
        )

    try:
        return value(ast.parse(formula, mode="eval").body)
    except SyntaxError as error:
        raise LimitsError(f"formula {formula!r}: {error.msg}") from error
