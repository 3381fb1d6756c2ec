"""Install the samplers and servers of other people that a CPU can run, 92 MB to download, some 20 seconds.

    python tools/install_others.py      # into this environment, which has torch and transformers already

MLX-LM brings MLX's CPU backend and no torch. xllamacpp is llama.cpp's server as a library; `transformers serve` needs
accelerate and uvicorn beside what vLLM has brought already. SGLang comes without its declared dependencies, which would
pull a CUDA build of another torch: its adapters load one file, which needs triton alone.
"""

from __future__ import annotations

import subprocess
import sys

from install_vllm import constraints

PACKAGES = (
    ("mlx-lm[cpu]",),
    # Thousands of files of which one is used: compiling them would take longer than installing them.
    ("--no-deps", "--no-compile", "sglang"),
    ("--no-deps", "accelerate", "gguf", "uvicorn", "xllamacpp"),
)
"""The arguments of pip for each; constraints.txt says which version."""


def main() -> int:
    for number, package in enumerate(PACKAGES, start=1):
        print(f"[others {number}/{len(PACKAGES)}] {package[-1]}", flush=True)
        command = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", *constraints(), *package]
        finished = subprocess.run(command, check=False)
        if finished.returncode:
            print(f"install_others: pip returned {finished.returncode} for {package[-1]}. See its messages above.")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
