"""Start the engine on a job in a process of its own, and leave nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.environment import EngineError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from engine.environment import Environment
    from engine.jobs import Json

INSIDE = Path(__file__).with_name("inside.py")
SECONDS = 1200

SETTINGS = {
    # The scheduler in the calling process: all requests are known before the first step, so that a run can be repeated.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    # Functions of inside.py are called in the worker.
    "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    # Releases up to 0.31 compile their sampler for CPUs with a C++ compiler, for minutes; run it as it is written.
    "TORCH_COMPILE_DISABLE": "1",
}


@dataclass(frozen=True)
class Answer:
    """What came of a job.

    Args:
        about: Versions, seconds, and what each worker says of itself.
        plugin_lines: What the plugin logged, without time and process.
    """

    job: Json
    about: Json
    arrays: Mapping[str, np.ndarray]
    plugin_lines: tuple[str, ...]

    @property
    def served(self) -> dict[str, int]:
        """Calls that the plugin served, by piece, over all workers."""
        counts: dict[str, int] = {}
        for worker in self.about["worker"]:
            for piece, calls in worker.get("calls", {}).items():
                counts[piece] = counts.get(piece, 0) + calls.get("ours", 0)
        return counts

    @property
    def left(self) -> dict[str, int]:
        """Calls that the plugin left to vLLM, by piece and reason."""
        return {
            f"{piece}: {reason}": count
            for worker in self.about["worker"]
            for piece, calls in worker.get("calls", {}).items()
            for reason, count in calls.items()
            if reason != "ours"
        }


def run_job(environment: Environment, job: Json, *, plugin: bool, seconds: float = SECONDS) -> Answer:
    """The engine's answer.

    Raises:
        EngineError: If the engine does not start, fails, or takes longer than `seconds`.
    """
    with tempfile.TemporaryDirectory() as scratch:
        path, log = Path(scratch) / "job.json", Path(scratch) / "engine.log"
        path.write_text(json.dumps({**job, "model": f"{scratch}/model"}))
        switches = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VLLM_PLUGINS")}
        switches |= SETTINGS | {"FAIRDRAW_VLLM_PLUGIN": str(int(plugin))}
        code = run_alone([str(environment.python), str(INSIDE), str(path), "watched"], log, switches, seconds)
        text = log.read_text(errors="replace")
        answer = path.with_name("job.json.npz")
        if code or not answer.exists():
            kept = environment.folder / "engine.log"
            kept.write_text(text)
            raise EngineError(f"engine: vllm-cpu {environment.release} {reason(code, text, seconds)}. Its log: {kept}")
        with np.load(answer) as arrays:
            about = json.loads(str(arrays["about"]))
            return Answer(job, about, {n: arrays[n] for n in arrays.files if n != "about"}, plugin_lines(text))


def run_alone(command: list[str], log: Path, environment: Mapping[str, str], seconds: float) -> int | None:
    """Return the exit code, `None` after `seconds`."""
    with started(command, log, environment) as process:
        try:
            return process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            return None


@contextmanager
def started(command: list[str], log: Path, environment: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Start a command whose output goes to a file. Whatever it has started is ended with the block, however that ends.

    Its input is never written: `inside.end_with_the_caller` waits for its end.
    """
    with log.open("w") as file:
        streams: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": file, "stderr": subprocess.STDOUT}
        with subprocess.Popen(command, env=dict(environment), start_new_session=True, **streams) as process:
            try:
                yield process
            finally:
                end_group(process.pid)


def end_group(group: int) -> None:
    """End every process of a group that is still there: workers outlive an engine that failed."""
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def reason(code: int | None, text: str, seconds: float) -> str:
    """Why there is no answer, in words."""
    if code is None:
        return f"took longer than {seconds:g} s"
    lines = [line.split("] ")[-1].strip() for line in text.splitlines()]
    errors = [line for line in lines if line.split(":")[0].endswith(("Error", "Exception"))]
    # The first error is the cause; what follows are the processes that lost their worker.
    return f"ended with code {code}" + (f" ({errors[0][:300]})" if errors else "")


def plugin_lines(text: str) -> tuple[str, ...]:
    """The plugin's lines, each once, in the order of their first appearance."""
    found = (line[line.index("fairdraw: ") :].strip() for line in text.splitlines() if "fairdraw: " in line)
    return tuple(dict.fromkeys(found))
