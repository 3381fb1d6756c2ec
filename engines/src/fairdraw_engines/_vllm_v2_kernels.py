"""The kernels of vLLM's model runner V2 in Triton's interpreter, and clear refusals of releases that cannot be called.

Tried: 0.22.0 to 0.33.0. On a CPU the kernels of 0.24.0 and later call a `log1p` that the interpreter lacks; every later
difference is in the adapters.
"""

import inspect
from collections.abc import Callable
from typing import Any

from fairdraw.adapters import UnusableRelease, quiet_floats
from fairdraw_engines._others import Upstream, import_vllm, vllm_module

_TRIED = "Install one that was tried: python tools/install.py vllm 0.33.0, or 0.22.0, 0.25.1, 0.28.0, 0.31.0"


def import_kernels(device: str, *modules: str) -> tuple[str, bool]:
    """Import vLLM and its `modules` of model runner V2; its release, and whether Triton interprets its kernels.

    Raises:
        ModuleNotFoundError: If vLLM, or a package that it imports, is missing.
        UnusableRelease: If this release has no such module, or one that cannot be imported.
    """
    release, interpreted = import_vllm(device)
    for name in modules:
        try:
            import_vllm(device, name)
        except ImportError as error:
            if not (error.name or "vllm").startswith("vllm"):
                raise  # a package that vLLM needs; the caller names it
            raise UnusableRelease(f"vLLM {release} has no vllm.v1.{name} as it is called here", _TRIED) from error
        if interpreted and hasattr(vllm_module(name), "tldevice"):
            setattr(vllm_module(name), "tldevice", _Log1p)  # noqa: B010  # not declared by vLLM
    return release, interpreted


class _Log1p:
    """Triton's `libdevice` for the interpreter, which has none."""

    @staticmethod
    def log1p(x: Upstream) -> Upstream:
        """Compute log(1 + x) by Kahan's correction: log(1 + x) alone is 0 for the small x in which the noise has its
        longest tail."""
        import triton.language as tl

        sum_ = x + 1.0
        return tl.where(sum_ == 1.0, x, tl.log(sum_) * (x / (sum_ - 1.0)))


def require_arguments(release: str, function: Callable[..., object], given: set[str]) -> None:
    """Refuse a release whose `function` does not take all arguments of `given`, or needs others.

    Raises:
        UnusableRelease: If so.
    """
    parameters = inspect.signature(function).parameters.values()
    lost = given - {one.name for one in parameters}
    new = {one.name for one in parameters if one.default is one.empty} - given
    if lost or new:
        changes = [f"takes no {name}" for name in sorted(lost)] + [f"needs {name}" for name in sorted(new)]
        raise UnusableRelease(f"{function.__name__} of vLLM {release} {' and '.join(changes)}", _TRIED)


def try_once(release: str, interpreted: bool, call: Callable[[], Any]) -> None:  # Any: not read
    """Make one small call in the interpreter, so that a kernel that it cannot run is refused before the first check.

    Raises:
        UnusableRelease: If the call raises.
    """
    if not interpreted:
        return
    try:
        with quiet_floats():
            call()
    except Exception as error:
        cause = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        if isinstance(error, TypeError):  # its signatures are others, on a GPU as well
            raise UnusableRelease(f"vLLM {release} cannot be called as it is called here ({cause})", _TRIED) from error
        rule = f"vLLM {release} cannot be called in Triton's interpreter ({cause})"
        raise UnusableRelease(rule, f"Run on a GPU. {_TRIED}") from error
