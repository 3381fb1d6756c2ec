"""Start a server on a free port of loopback, wait until it answers, and leave nothing behind."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import tempfile
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from engine.process import reason, started

from fairdraw.perf_regression._records import version
from servers.model import write_folder, write_gguf

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

INSIDE = Path(__file__).with_name("inside.py")
START_SECONDS = 120

SETTINGS = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONUNBUFFERED": "1"}


class ServerError(Exception):
    """A server does not run; one sentence says why, and what to do."""


@dataclass(frozen=True)
class Server:
    """One way to start a server.

    Args:
        name: Engine, and after a hyphen how it speculates.
        packages: Distributions that it needs; the first is the engine, whose version is reported.
        gguf: Whether its model is one file for llama.cpp.
        sampling: Whether the model's generation_config.json turns sampling on.
        lookup: Tokens that are drafted from the text by the model's generation_config.json.
        about: How it was started, for the table.
    """

    name: str
    packages: tuple[str, ...]
    about: str
    gguf: bool = False
    sampling: bool = False
    lookup: int = 0

    @property
    def engine(self) -> str:
        return self.name.partition("-")[0]

    @property
    def reference(self) -> str:
        """The server to compare with, which does the same without a draft model; empty if there is none."""
        return self.engine if self.name.endswith("-draft") else ""

    @property
    def version(self) -> str | None:
        return version(self.packages[0])

    def missing(self) -> str:
        """One sentence if a package is missing, otherwise nothing."""
        absent = [name for name in self.packages if version(name) is None]
        if not absent:
            return ""
        return f"{self.name}: {', '.join(absent)} not installed. Run: python tools/install.py others"

    def write(self, folder: Path) -> None:
        """The model, and a drafter if it takes one."""
        drafts = self.name.endswith("-draft")
        if self.gguf:
            write_gguf(folder / "model.gguf")
            if drafts:
                write_gguf(folder / "drafter.gguf", layers=1)
            return
        write_folder(folder / "model", sampling=self.sampling, lookup=self.lookup)
        if drafts:
            write_folder(folder / "drafter", layers=1)


_LLAMA = ("xllamacpp", "gguf")
_TRANSFORMERS = ("transformers", "accelerate", "fastapi", "uvicorn", "openai", "pydantic", "safetensors")
_MLX = ("mlx-lm", "mlx", "safetensors")

SERVERS = {
    server.name: server
    for server in (
        Server("llama.cpp", _LLAMA, "llama.cpp's server in the wheel xllamacpp, 4 slots", gguf=True),
        Server("llama.cpp-draft", _LLAMA, "the same with a draft model", gguf=True),
        Server("llama.cpp-backend", _LLAMA, "the same without drafts, with backend sampling", gguf=True),
        Server("transformers", _TRANSFORMERS, "transformers serve; the model's configuration samples", sampling=True),
        Server("transformers-lookup", _TRANSFORMERS, "the same with prompt lookup", sampling=True, lookup=3),
        Server("transformers-default", _TRANSFORMERS, "transformers serve; a model without generation_config.json"),
        Server("mlx", _MLX, "mlx_lm.server on MLX's CPU backend"),
        Server("mlx-draft", _MLX, "the same with a draft model"),
    )
}


@dataclass(frozen=True)
class Running:
    """A server that answers.

    Args:
        model: What a request must call the model.
        start_seconds: Until it answered.
    """

    server: Server
    address: str
    model: str
    start_seconds: float


@contextlib.contextmanager
def running(server: Server, seconds: float = START_SECONDS) -> Iterator[Running]:
    """Start it, wait until it answers; at the end every process of it is gone, however the block ends.

    Raises:
        ServerError: If a package is missing, or it does not answer within `seconds`.
    """
    if sentence := server.missing():
        raise ServerError(sentence)
    with tempfile.TemporaryDirectory() as scratch:
        folder, log, port = Path(scratch), Path(scratch) / "server.log", free_port()
        server.write(folder)
        # mlx_lm.server breaks off `GET /v1/models` where there is no such folder.
        (folder / "huggingface" / "hub").mkdir(parents=True)
        environment = os.environ | SETTINGS | {"HF_HOME": str(folder / "huggingface")}
        command = [sys.executable, str(INSIDE), server.name, str(folder), str(port)]
        with started(command, log, environment) as process:
            took = wait(process, f"http://127.0.0.1:{port}/health", server, log, seconds)
            model = str(folder / ("model.gguf" if server.gguf else "model"))
            yield Running(server, f"http://127.0.0.1:{port}/v1", model, took)


def wait(process: subprocess.Popen[bytes], health: str, server: Server, log: Path, seconds: float) -> float:
    """Seconds until the first answer."""
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        if answers(health):
            return round(time.monotonic() - began, 1)
        if process.poll() is not None:
            why = reason(process.returncode, log.read_text(errors="replace"), seconds)
            raise ServerError(f"{server.name}: the server {why}.")
        time.sleep(0.1)
    raise ServerError(f"{server.name}: no answer within {seconds:g} s. Run it alone, on a free core.")


def answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
