"""The limits file: dimensionless numbers, each beside the value that was measured when it was set.

It is TOML and read strictly: an unknown key is an error, because a limit with a misspelt name would never be applied.
There are no absolute times in it, because those depend on the machine.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from fairdraw.perf_regression._decision import Gate
from fairdraw.perf_regression._named import release

LIMITS_FILE = Path(__file__).parent / "limits.toml"
SCHEMA = 1
AXES = {"B", "K", "L", "V"}


class LimitsError(ValueError):
    """The limits file cannot be used, so nothing has a verdict."""


@dataclass(frozen=True)
class CaseLimits:
    """Limits of one case; `None` where there is none.

    Args:
        reference: The release that `ratio_max` compares with: `vllm==0.22.0`.
        golden: What was measured when the limits were set, by whom and when. It only shows the slack.
        ratio_max: Most time, as a part of the reference's.
        own_ratio_max: Most time, as a part of another step of ours: it needs no reference.
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
        tokens_read_max: Most tokens that a scanner reads from its outputs in a step, a formula like `bytes_max`.
        time_exponent_max: Growth by axis: L is the length of outputs, and B, K, V are sizes.
        fixed_share_max: Most of the time that does not depend on the vocabulary, as a part of the time at its largest.
    """

    name: str
    reference: str | None = None
    ratio_max: float | None = None
    own_ratio_max: float | None = None
    roofline_min: float | None = None
    bytes_max: str | None = None
    tokens_read_max: str | None = None
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
    time_exponent_max: Mapping[str, float] = field(default_factory=dict)
    golden: Mapping[str, Any] = field(default_factory=dict)  # Any: numbers, tables and words

    @property
    def num_timed(self) -> int:
        """Count the limits that are decided by a clock."""
        once = (self.ratio_max, self.own_ratio_max, self.roofline_min, self.fixed_share_max)
        return sum(limit is not None for limit in once) + len(self.time_exponent_max)

    def reference_problem(self) -> str:
        """Say why this machine cannot compare with the reference; empty if it can, or if there is none."""
        package, _, version = (self.reference or "").partition("==")
        found = release(package) if package else ""
        return "" if found == version else f"limits were made for {self.reference}, but installed is {found or 'none'}"


@dataclass(frozen=True)
class Limits:
    """The file.

    Args:
        confirm_processes: Fresh processes that must all repeat a FAIL.
    """

    family_alpha: float
    looks: tuple[int, ...]
    drop_fraction_max: float
    confirm_processes: int
    floor_us: Mapping[str, float]
    cases: Mapping[str, CaseLimits]

    @property
    def alpha(self) -> float:
        """Return the one-sided alpha of one timing limit.

        Error rates:
            All timing limits of the file together, measured or not, fail a sampler that keeps them with probability at
            most `family_alpha`.
        """
        return self.family_alpha / max(1, sum(case.num_timed for case in self.cases.values()))

    def gate(self, case: CaseLimits, device: str) -> Gate:
        """Return the gate of a case's ratio."""
        if (limit := case.own_ratio_max if case.ratio_max is None else case.ratio_max) is None:
            raise LimitsError(f"gate: case={case.name!r} has no ratio_max, but a gate needs one. Add it to the limits.")
        return Gate(limit, self.floor_us[device] * 1e-6, self.alpha, self.looks, self.drop_fraction_max)


def read_limits(path: Path = LIMITS_FILE) -> Limits:
    """Read and check a limits file.

    Raises:
        LimitsError: If it is not TOML, of another schema, has an unknown key, or a value of a wrong kind.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise LimitsError(f"{path.name}: {error}") from error
    _require_keys(path.name, document, {"schema", "policy", "floor_us", "case"}, {"schema", "policy", "floor_us"})
    if document["schema"] != SCHEMA:
        raise LimitsError(f"{path.name}: schema={document['schema']}, but it must be {SCHEMA}. Convert the file.")
    policy, floor_us = document["policy"], document["floor_us"]
    numbers = {"family_alpha", "drop_fraction_max", "confirm_processes"}
    _require_keys(f"{path.name}, policy", policy, numbers | {"looks"}, numbers | {"looks"})
    _require_keys(f"{path.name}, floor_us", floor_us, {"cpu", "gpu"}, {"cpu", "gpu"})
    _require_numbers({**{name: policy[name] for name in numbers}, **floor_us})
    cases = {name: _case(name, values) for name, values in document.get("case", {}).items()}
    return Limits(**{**policy, "looks": tuple(policy["looks"])}, floor_us=floor_us, cases=cases)


def _case(name: str, values: dict[str, Any]) -> CaseLimits:  # Any: TOML
    known = {one.name for one in fields(CaseLimits)} - {"name"}
    _require_keys(f"case {name!r}", values, known, {"golden"})
    limits = {key: value for key, value in values.items() if key not in ("golden", "reference")}
    if not limits:
        raise LimitsError(f"case {name!r} has no limit, but it must have one of {', '.join(sorted(known))}. Add one.")
    for key, value in limits.items():
        _check_limit(f"case {name!r}, {key}", key, value)
    golden = values["golden"]
    if not {"by", "date"} <= golden.keys():
        raise LimitsError(f"case {name!r}: golden={golden}, but it must say by whom and when. Add by and date.")
    measured = {key.removesuffix("_max").removesuffix("_min") for key in known}
    _require_keys(f"case {name!r}, golden", golden, measured | {"by", "date", "commit"}, set())
    if "ratio_max" in limits and "reference" not in values:
        raise LimitsError(f"case {name!r}: ratio_max has no reference, but it must have one. Add 'vllm==VERSION'.")
    if not all(values.get("reference", "any==any").partition("==")):
        problem = f"reference={values['reference']!r}, but it must be package==version. Pin the version."
        raise LimitsError(f"case {name!r}: {problem}")
    return CaseLimits(name, **values)


def _check_limit(where: str, key: str, value: object) -> None:
    if key in ("bytes_max", "tokens_read_max"):
        evaluate(str(value), B=1, K=1, V=1)
    elif not key.endswith("_exponent_max"):
        _require_numbers({where: value})
    elif isinstance(value, dict):
        _require_keys(where, value, AXES, set())
        _require_numbers(value)
    else:
        raise LimitsError(f"{where}={value!r}, but it must be a table. Name the axis, as in {{ L = 0.1 }}.")


def _require_keys(where: str, values: Mapping[str, object], known: set[str], needed: set[str]) -> None:
    unknown, missing = sorted(values.keys() - known), sorted(needed - values.keys())
    if unknown:
        raise LimitsError(f"{where}: unknown key {unknown[0]!r}, but keys must be of {sorted(known)}. Correct it.")
    if missing:
        raise LimitsError(f"{where}: {missing[0]!r} is missing, but it must be there. Add it.")


def _require_numbers(values: Mapping[str, object]) -> None:
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0:
            raise LimitsError(f"{name}={value!r}, but it must be a number, not negative. Correct the limits.")


_ARITHMETIC = (ast.Expression, ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Load)


def evaluate(formula: str, **sizes: int) -> int:
    """Evaluate an integer formula in sizes, with `+ - * //` and brackets.

    Raises:
        LimitsError: If there is anything else in it.

    Example:
        >>> evaluate("2*B*V*4 + 64*B*K", B=2, K=3, V=100)
        1984
    """
    try:
        tree = ast.parse(formula, mode="eval")
    except SyntaxError as error:
        raise LimitsError(f"formula {formula!r}: {error.msg}") from error
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=int()):
                continue
            case ast.Name(id=name) if name in sizes:
                continue
        if not isinstance(node, _ARITHMETIC):
            known = ", ".join(sizes)
            raise LimitsError(f"formula {formula!r}: {ast.unparse(node)!r} is not + - * //, a number or {known}.")
    # Only names of sizes and integer arithmetic are left.
    return int(eval(compile(tree, "limits", "eval"), {"__builtins__": {}}, sizes))
