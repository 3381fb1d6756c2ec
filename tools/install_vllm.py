"""Install a real vLLM release from PyPI without CUDA: 36 MB to download, no compiler, some 15 seconds.

    python tools/install_vllm.py                               # 0.22.0 into this environment
    python tools/install_vllm.py 0.33.0 --target .cache/vllm/0.33.0    # into a folder, for PYTHONPATH

vLLM's wheels carry compiled kernels (260 MB and more). Its source archive, built for the device `empty`, holds the same
Python and Triton files and nothing compiled. The packages that they import go into this environment, vLLM itself
without its declared dependencies: those would pull CUDA builds of torch. Of releases before 0.11.2, which cannot be
built so, a folder gets the rejection sampler alone (`single_file_vllm`).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import single_file_vllm

if TYPE_CHECKING:
    from collections.abc import Iterator

DEFAULT_RELEASE = "0.22.0"
OLDEST_RELEASE = (0, 11, 2)
"""Archives before 0.11 cannot be built for the device `empty`; this is the first that was tried and works."""

BUILD_PACKAGES = ("packaging", "setuptools", "setuptools-rust", "setuptools-scm", "wheel")
RUNTIME_PACKAGES = (
    "aiohttp",
    "blake3",
    "cachetools",
    "cbor2",
    "cloudpickle",
    "fastapi",
    "gguf",
    "huggingface_hub",
    "llguidance",
    "msgspec",
    "openai",
    "openai-harmony",
    "partial-json-parser",
    "pillow",
    "prometheus_client",
    "psutil",
    "py-cpuinfo",
    "pybase64",
    "pydantic",
    "pyzmq",
    "regex",
    "requests",
    "safetensors",
    "setproctitle",
    "transformers",
    "urllib3",
    "uvloop",
    "xgrammar",
)
"""What `vllm.v1.sample` imports, directly or not, in one of the releases 0.11.2 to 0.33.0."""

CONSTRAINTS = Path(__file__).parents[1] / "constraints.txt"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Install a real vLLM release without CUDA.")
    parser.add_argument("release", nargs="?", default=DEFAULT_RELEASE, help=f"default: {DEFAULT_RELEASE}")
    parser.add_argument("--target", type=Path, help="a folder for vLLM alone, to be put on PYTHONPATH")
    options = parser.parse_args(arguments)
    try:
        install(options.release, options.target)
    except InstallError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


class InstallError(Exception):
    """vLLM could not be installed; one sentence says why."""


def install(release: str, target: Path | None = None) -> None:
    """Make `release` importable: from this environment, or from `target` once that is on PYTHONPATH.

    Raises:
        InstallError: If the release is too old, torch is missing or pip fails.
    """
    _check_release(release, target)
    if single_file_vllm.is_single(release, OLDEST_RELEASE) and target:
        _install_single_file(release, target)
        return
    place = f"{target}" if target else "this environment"
    missing = [name for name in (*BUILD_PACKAGES, *RUNTIME_PACKAGES) if _version(name) is None]
    if missing:
        print(f"[vllm 1/2] packages that vLLM imports: {' '.join(missing)}", flush=True)
        _pip(*constraints(), *missing)
    if _version("vllm", target) == release:
        print(f"[vllm] {release} is in {place} already", flush=True)
        return
    print(f"[vllm 2/2] vLLM {release} without CUDA into {place}", flush=True)
    # Not from pip's cache, and not into it: a wheel built for `empty` must never be taken for the full one.
    options = ["--no-cache-dir", "--no-deps", "--no-build-isolation", "--no-binary", "vllm"]
    if target:
        options += ["--upgrade", "--target", str(target)]
    _pip(*options, f"vllm=={release}", VLLM_VERSION_OVERRIDE=release, VLLM_TARGET_DEVICE="empty")
    if _version("vllm", target) != release:
        raise InstallError(f"install: release={release!r}, but pip left {_version('vllm', target)} in {place}.")


def _install_single_file(release: str, target: Path) -> None:
    if (target / single_file_vllm.SAMPLER).exists():
        print(f"[vllm] the rejection sampler of {release} is in {target} already", flush=True)
        return
    print(f"[vllm] the rejection sampler of {release}, which cannot be installed, into {target}", flush=True)
    try:
        single_file_vllm.unpack(release, target, _download)
    except FileNotFoundError as error:
        raise InstallError(f"install: release={release!r}, but its source archive has no {error}.") from None


def _download(release: str, folder: Path) -> None:
    """The source archive. It is not built: pip asks it for its name alone, which must not end in `+empty`."""
    options = ["--no-cache-dir", "--no-deps", "--no-build-isolation", "--no-binary", "vllm", "--dest", str(folder)]
    _pip(*options, f"vllm=={release}", verb="download")


def _check_release(release: str, target: Path | None) -> None:
    numbers = tuple(int(part) for part in release.split(".") if part.isdigit())
    if numbers < OLDEST_RELEASE and not (target and single_file_vllm.is_single(release, OLDEST_RELEASE)):
        oldest, first = (".".join(map(str, some)) for some in (OLDEST_RELEASE, single_file_vllm.FIRST_RELEASE))
        raise InstallError(
            f"install: release={release!r}, but it must be at least {oldest}. Use {DEFAULT_RELEASE}; of {first} and "
            "later, --target FOLDER takes the rejection sampler alone."
        )
    if _version("torch") is None:
        raise InstallError("install: torch is missing, but vLLM's build imports it. Run pip install torch first.")


def constraints() -> Iterator[str]:
    """Pip's options that keep every package, torch above all, at its tested version."""
    if CONSTRAINTS.exists():
        yield from ("-c", str(CONSTRAINTS))


def _version(package: str, folder: Path | None = None) -> str | None:
    """The installed version without its local part; `None` if it is not installed."""
    path = sys.path if folder is None else [str(folder)]
    found = next(iter(metadata.distributions(name=package, path=path)), None)
    return None if found is None else found.version.partition("+")[0]


def _pip(*arguments: str, verb: str = "install", **environment: str) -> None:
    command = [sys.executable, "-m", "pip", verb, "--disable-pip-version-check", *arguments]
    finished = subprocess.run(command, env={**os.environ, **environment}, check=False)
    if finished.returncode:
        raise InstallError(
            f"install: pip returned {finished.returncode} for {arguments[-1]}. See its messages above; "
            "without a network, copy a folder made with --target."
        )


if __name__ == "__main__":
    sys.exit(main())
