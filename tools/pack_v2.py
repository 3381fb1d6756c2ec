"""Pack vLLM and what it imports, for random steps of V2 on a machine with a GPU and without a network.

    python tools/pack_v2.py .cache/vllm/0.33.0 .cache/v2-gpu        # needs a package index, and what vLLM imports here

    vllm.tar.gz    Python files of the release, and its metadata
    wheels/        packages that the steps import and that the machine lacks, in the versions that are installed here

There, in the root of the repository (a wheel is a zip file, so pip is not needed):

    for wheel in .cache/v2-gpu/wheels/*.whl; do python3 -m zipfile -e $wheel /tmp/site; done
    tar xzf .cache/v2-gpu/vllm.tar.gz -C /tmp/site
    export PYTHONPATH=/tmp/site:src:engines/src
    python3 -m fairdraw_engines._vllm_validation.v2_steps --device cuda --steps 2000

What is imported is not guessed: a process imports the steps, and says which packages its modules came from.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tarfile
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).parents[1]
PYTHON = "3.12"
PLATFORMS = tuple(f"manylinux{tag}_x86_64" for tag in ("_2_34", "_2_31", "_2_28", "_2_27", "_2_17", "2014", "1"))
ON_THE_MACHINE = {
    *("aiohappyeyeballs", "aiohttp", "aiosignal", "attrs", "certifi", "charset-normalizer", "filelock", "frozenlist"),
    *("fsspec", "huggingface-hub", "hypothesis", "idna", "jinja2", "markupsafe", "mpmath", "multidict", "networkx"),
    *("numpy", "packaging", "pillow", "prometheus-client", "propcache", "psutil", "py-cpuinfo", "pytest", "pyyaml"),
    *("regex", "requests", "safetensors", "scipy", "setuptools", "sympy", "tokenizers", "torch", "tqdm"),
    *("transformers", "triton", "urllib3", "uvloop", "yarl"),
}
"""What a machine for models has: torch, transformers, aiohttp, and what these import."""
NOT_NEEDED = {
    *("fairdraw", "accelerate", "colorama", "backports-tarfile", "jaraco-classes", "jaraco-context"),
    *("jaraco-functools", "jaraco-text", "more-itertools", "protobuf", "py-cpuinfo2", "sentencepiece", "vllm"),
}
"""Imported if they are there: by transformers, setuptools and others. vLLM is packed as files."""
ALSO = ("blake3", "gguf", "jiter", "setproctitle")
"""What vLLM imports only on a GPU, or in a function."""
IMPORTED = """
import json, sys
from importlib.metadata import packages_distributions
from fairdraw_engines._vllm_validation import v2_steps
tops = {name.partition(".")[0] for name in sys.modules}
print(json.dumps(sorted({one for top, names in packages_distributions().items() if top in tops for one in names})))
"""


class PackError(Exception):
    """The folder could not be made; one sentence says why."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Pack vLLM and what it imports for a machine with a GPU.")
    parser.add_argument("release", type=Path, help="a folder made by tools/install_vllm.py --target")
    parser.add_argument("target", type=Path, help="a folder to be carried, ignored by git")
    options = parser.parse_args(arguments)
    try:
        num_files = pack_release(options.release, options.target / "vllm.tar.gz")
        wheels = download(lacking(imported(options.release)), options.target / "wheels")
    except PackError as error:
        print(error, file=sys.stderr)
        return 1
    size = sum(file.stat().st_size for file in options.target.rglob("*") if file.is_file())
    print(f"{num_files} files of vLLM and {len(wheels)} wheels, {size / 2**20:.0f} MiB, are in {options.target}")
    return 0


def imported(release: Path) -> list[str]:
    """Distributions that the steps' modules come from.

    Raises:
        PackError: If they cannot be imported.
    """
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, (release.resolve(), ROOT / "src", ROOT / "engines" / "src"))),
    }
    ran = subprocess.run([sys.executable, "-c", IMPORTED], env=env, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise PackError(
            f"imported: release={str(release)!r}, but importing the steps ended in {ran.stderr.splitlines()[-1]!r}. "
            "Run python tools/install_vllm.py first."
        )
    names: list[str] = json.loads(ran.stdout.splitlines()[-1])
    return names


def lacking(names: list[str]) -> list[str]:
    """Of these distributions those that the machine lacks, each with the version that is installed here."""
    wanted = {normal(name) for name in (*names, *ALSO)} - ON_THE_MACHINE - NOT_NEEDED
    return [f"{name}=={metadata.version(name)}" for name in sorted(wanted)]


def normal(name: str) -> str:
    """As package indexes compare names."""
    return name.lower().replace("_", "-").replace(".", "-")


def pack_release(release: Path, archive: Path) -> int:
    """Python files and metadata; the number of files.

    Raises:
        PackError: If there is no release.
    """
    files = sorted(file for file in release.rglob("*") if file.is_file() and is_needed(file.relative_to(release)))
    if not files:
        raise PackError(f"pack_release: release={str(release)!r}, but it must hold the folder vllm. Check the path.")
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive, "w:gz") as packed:
        for file in files:
            packed.add(file, file.relative_to(release))
    return len(files)


def is_needed(file: Path) -> bool:
    """Takes the path in the release."""
    return (file.parts[0] == "vllm" and file.suffix == ".py") or file.parts[0].endswith(".dist-info")


def download(pins: list[str], folder: Path) -> list[Path]:
    """The wheels, from pip's own index; what was in the folder is removed.

    Raises:
        PackError: If pip fails.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.whl"):
        old.unlink()
    kind = ["--no-deps", "--only-binary=:all:", "--implementation", "cp", "--python-version", PYTHON]
    platforms = [option for name in PLATFORMS for option in ("--platform", name)]
    command = [sys.executable, "-m", "pip", "download", "--quiet", *kind, *platforms, "--dest", str(folder), *pins]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise PackError(f"download: pip returned {ran.returncode}: {ran.stderr.splitlines()[-1]} See the list of pins.")
    return sorted(folder.glob("*.whl"))


if __name__ == "__main__":
    sys.exit(main())
