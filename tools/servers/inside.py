"""Runs in a process of its own: one of the servers, as its users start it, until it is ended.

    python tools/servers/inside.py llama.cpp-draft FOLDER PORT

Whatever else happens, it ends with the process that started it: see `engine.inside.end_with_the_caller`.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from engine.inside import end_with_the_caller

HOST = "127.0.0.1"


def llama(folder: Path, port: int, speculation: str) -> None:
    """llama.cpp's own HTTP server, which comes as a library."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(folder / "model.gguf")
    params.hostnames, params.port = [HOST], port
    params.n_ctx, params.n_parallel = 4 * 2048, 4
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.warmup = params.ui = False
    params.sampling.backend_sampling = speculation == "backend"
    if speculation == "draft":
        params.speculative.types = [xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
        params.speculative.draft.mparams.path = str(folder / "drafter.gguf")
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    threading.Event().wait()


def transformers(folder: Path, port: int, speculation: str) -> None:
    """`transformers serve`; it drafts from the text if the model's generation_config.json says so."""
    from transformers.cli.transformers import main

    sys.argv = ["transformers", "serve", str(folder / "model"), "--host", HOST, "--port", str(port), "--device", "cpu"]
    main()


def mlx(folder: Path, port: int, speculation: str) -> None:
    """`mlx_lm.server`."""
    from mlx_lm.server import main

    sys.argv = ["mlx_lm.server", "--model", str(folder / "model"), "--host", HOST, "--port", str(port)]
    if speculation == "draft":
        sys.argv += ["--draft-model", str(folder / "drafter")]
    main()


START = {"llama.cpp": llama, "transformers": transformers, "mlx": mlx}


def main() -> None:
    threading.Thread(target=end_with_the_caller, daemon=True).start()
    name, _, speculation = sys.argv[1].partition("-")
    START[name](Path(sys.argv[2]), int(sys.argv[3]), speculation)


if __name__ == "__main__":
    main()
