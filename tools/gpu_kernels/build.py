"""Build the sampling kernels of FlashInfer and SGLang, as PyPI has them, into one library that ctypes loads.

    python tools/gpu_kernels                       # into .cache/gpu_kernels, for Hopper (H100, H200)
    python tools/gpu_kernels --arch 100a           # for Blackwell
    PYTHONPATH=.cache/gpu_kernels fairdraw check sampling/flashinfer

Needed: nvcc of CUDA 13 with a C++ compiler, and no GPU. Downloaded: 62 MB (FlashInfer), 39 MB (SGLang) and 60 MB
(cuRAND, for its headers, where the toolkit has none); kept: the headers, and `flashinfer/sampling.py`. Compiling takes
a minute or two. Nothing of these projects is changed or committed: `flashinfer_kernels.cu` and `sglang_kernels.cu`
include their headers and are compiled with the flags that the projects compile with themselves.

`flashinfer/` beside the library is the released Python file around the kernels. `fairdraw_engines._flashinfer`
imports it with the library in the place of the module that FlashInfer would compile at its first call.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from install import InstallError, unpack

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".cache" / "gpu_kernels"
LIBRARY = "libfairdraw_gpu_kernels.so"
HERE = Path(__file__).parent


class BuildError(InstallError):
    """One sentence says what is missing, one what to do."""


@dataclass(frozen=True)
class Package:
    """A wheel of PyPI, and what of it is kept.

    Args:
        parts: Beginnings of the paths that are kept.
        landmark: A file by which an unpacked copy is recognised.
    """

    name: str
    version: str
    parts: tuple[str, ...]
    landmark: str


FLASHINFER = Package(
    "flashinfer-python",
    "0.7.2",
    (
        "flashinfer/data/include/flashinfer/",
        "flashinfer/data/cccl/cub/",
        "flashinfer/data/cccl/libcudacxx/",
        "flashinfer/data/cccl/thrust/",
        "flashinfer/sampling.py",
    ),
    "flashinfer/data/include/flashinfer/sampling.cuh",
)
SGLANG = Package(
    "sglang",
    "0.5.23",
    ("sglang/kernels/jit/include/", "sglang/kernels/jit/csrc/speculative/"),
    "sglang/kernels/jit/include/sgl_kernel/speculative/sampling.cuh",
)
CURAND = Package("nvidia-curand", "10.4.0.35", ("nvidia/cu13/include/",), "nvidia/cu13/include/curand.h")
"""Of CUDA 13.0."""

_DATA = "flashinfer/data"
_INCLUDES = (f"{_DATA}/cccl/cub", f"{_DATA}/cccl/libcudacxx/include", f"{_DATA}/cccl/thrust", f"{_DATA}/include")
_COMMON = ("-Xfatbin=-compress-all", "-DNDEBUG", "-O3", "-Xcompiler", "-fPIC", "-w")
_DTYPES = tuple(f"-DFLASHINFER_ENABLE_{name}" for name in ("F16", "BF16", "FP8_E4M3", "FP8_E5M2"))
FLAGS = {
    "flashinfer_kernels.cu": ("-std=c++17", "-use_fast_math", "--compress-mode=size", *_DTYPES, *_COMMON),
    "sglang_kernels.cu": ("-std=c++20", "--expt-relaxed-constexpr", *_COMMON),
}
"""As `flashinfer/jit/core.py` and `sglang/kernels/jit/utils/arch.py` have them."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Build the library of FlashInfer's and SGLang's sampling kernels.")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="of the library and of what is downloaded")
    parser.add_argument("--arch", default="90a", help="of the GPU: 90a is Hopper, 100a Blackwell")
    parser.add_argument("--nvcc", default=None, help="nvcc of CUDA 13; found on PATH if omitted")
    parser.add_argument("--only-fetch", action="store_true", help="download and unpack, and compile elsewhere")
    options = parser.parse_args(arguments)
    try:
        fetch(options.folder / "sources")
        if not options.only_fetch:
            build(options.folder, options.arch, find_nvcc(options.nvcc))
    except InstallError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def fetch(sources: Path, packages: Sequence[Package] = (FLASHINFER, SGLANG, CURAND)) -> None:
    """Unpack the parts of each package that is not there yet.

    Raises:
        InstallError: If a package cannot be downloaded, or lacks what is expected of it.
    """
    for package in packages:
        if (sources / package.landmark).exists():
            continue
        unpack(pinned := f"{package.name}=={package.version}", package.parts, sources)
        if not (sources / package.landmark).exists():
            raise BuildError(f"build: {pinned} has no {package.landmark}. Adapt tools/gpu_kernels/build.py.")


def find_nvcc(given: str | None, which: Callable[[str], str | None] = shutil.which) -> str:
    """The compiler.

    Raises:
        BuildError: If there is none, or its CUDA is not 13.
    """
    path = given or which("nvcc") or which("/usr/local/cuda/bin/nvcc")
    if path is None:
        raise BuildError("build: there is no nvcc. Install CUDA 13.0's compiler, or name it: --nvcc PATH.")
    release = nvcc_release(path)
    if not release.startswith("13."):
        raise BuildError(
            f"build: {path} is of CUDA {release}, but FlashInfer's wheel is for 13. Name another: --nvcc PATH."
        )
    return path


def nvcc_release(path: str) -> str:
    said = subprocess.run([path, "--version"], check=False, capture_output=True, text=True).stdout
    found = re.search(r"release [\d.]+, V([\d.]+)", said)
    return found[1] if found else "unknown"


def commands(folder: Path, arch: str, nvcc: str) -> dict[str, list[str]]:
    """Object file to the command that makes it; last the library."""
    includes = [f"-I{folder / 'sources' / one}" for one in (*_INCLUDES, "sglang/kernels/jit/include")]
    target = f"-gencode=arch=compute_{arch},code=sm_{arch}"
    curand = ["-isystem", str(folder / "sources" / "nvidia/cu13/include")]
    made: dict[str, list[str]] = {}
    for source, flags in FLAGS.items():
        output = str(folder / source.replace(".cu", f"_{arch}.o"))
        made[output] = [nvcc, *flags, target, *includes, *curand, "-c", str(HERE / source), "-o", output]
    library = str(folder / LIBRARY)
    return made | {library: [nvcc, "-shared", "-cudart", "static", target, *made, "-o", library]}


def build(folder: Path, arch: str, nvcc: str) -> None:
    """Compile what is older than its source, link, and put FlashInfer's Python file beside the library.

    Raises:
        BuildError: If the compiler fails.
    """
    running = []
    *compilers, link = commands(folder, arch, nvcc).items()
    for source, (output, command) in zip(FLAGS, compilers, strict=True):
        if not Path(output).exists() or Path(output).stat().st_mtime < (HERE / source).stat().st_mtime:
            running.append((command, subprocess.Popen(command)))
    failed = [command for command, process in running if process.wait()]
    if failed or subprocess.run(link[1], check=False).returncode:
        raise BuildError(f"build: {nvcc} failed. See its messages above.")
    package = folder / "flashinfer"
    package.mkdir(exist_ok=True)
    (package / "__init__.py").touch()
    shutil.copyfile(folder / "sources" / "flashinfer" / "sampling.py", package / "sampling.py")
    versions = {one.name: one.version for one in (FLASHINFER, SGLANG)}
    versions |= {"nvcc": nvcc_release(nvcc), "arch": f"sm_{arch}"}
    (folder / "versions.json").write_text(json.dumps(versions) + "\n")
    print(f"built: {link[0]}")
