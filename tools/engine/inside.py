"""Runs in the engine's own environment: makes a tiny random Llama, starts the real engine, generates, writes what came.

    .cache/engine/0.22.0/bin/python tools/engine/inside.py job.json

Imports nothing of fairdraw but its plugin, which vLLM loads by itself. The job is plain data (see `jobs.py`); the
answer is an `.npz` beside it. The worker is a process of its own, as in production; only the scheduler runs in this
one, so that all requests are known before the first step and a run can be repeated.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

Json = dict[str, Any]  # Any: JSON

HIDDEN, LAYERS, HEADS, HEAD_SIZE = 64, 2, 2, 32
LOGIT_SPREAD = 2.0
"""Standard deviation of the logits: neither flat nor greedy."""


def write_model(folder: Path, tensors: dict[str, np.ndarray], files: Json) -> None:
    """Write weights, and JSON files by their names without an end."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))


def files_of(vocab_size: int) -> Json:
    """Return the files of a Llama of two layers, float32, and of a tokenizer whose token `i` is the word `ti`."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": 2 * HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "head_dim": HEAD_SIZE,
        "vocab_size": vocab_size,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    words = {f"t{token}": token for token in range(vocab_size)}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "t0"},
    }
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "t0", "eos_token": "t1"}
    return {"config": config, "tokenizer": tokenizer, "tokenizer_config": about}


def weights(vocab_size: int) -> dict[str, np.ndarray]:
    """Random, but equal in every run."""
    random, size = np.random.default_rng(18), HEADS * HEAD_SIZE

    def matrix(rows: int, columns: int, spread: float = 1.0) -> np.ndarray:  # [rows, columns] float32
        return (random.standard_normal((rows, columns)) * spread / np.sqrt(columns)).astype(np.float32)

    tensors = {
        "model.embed_tokens.weight": matrix(vocab_size, HIDDEN, np.sqrt(HIDDEN)),
        "model.norm.weight": np.ones(HIDDEN, np.float32),
        "lm_head.weight": matrix(vocab_size, HIDDEN, LOGIT_SPREAD),
    }
    for layer in range(LAYERS):
        name = f"model.layers.{layer}"
        tensors |= {
            f"{name}.{part}_layernorm.weight": np.ones(HIDDEN, np.float32) for part in ("input", "post_attention")
        }
        tensors |= {f"{name}.self_attn.{part}_proj.weight": matrix(size, HIDDEN) for part in "qkv"}
        tensors[f"{name}.self_attn.o_proj.weight"] = matrix(HIDDEN, size)
        tensors |= {f"{name}.mlp.{part}_proj.weight": matrix(2 * HIDDEN, HIDDEN) for part in ("gate", "up")}
        tensors[f"{name}.mlp.down_proj.weight"] = matrix(HIDDEN, 2 * HIDDEN)
    return tensors


# -- called in the worker ---------------------------------------------------------------------------------------------


def restart(worker: Any, seed: int) -> None:  # Any: vLLM's worker
    """Every repetition draws the same numbers."""
    import torch

    torch.manual_seed(seed)


def repair(worker: Any) -> list[str]:  # Any: vLLM's worker
    """Mend what keeps a release from running these requests on a CPU at all; the names of what was wrong."""
    import torch
    from vllm.v1.sample import rejection_sampler

    def expand(x: Any, cu_num_tokens: Any, num_tokens: int, replace_from: int = 0, replace_to: int = 0) -> Any:
        counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
        return x.masked_fill(x == replace_from, replace_to).repeat_interleave(counts)

    values = (torch.tensor([0.5, 2.0]), torch.tensor([1, 3], dtype=torch.int32), 3)
    if rejection_sampler.expand_batch_to_tokens(*values).tolist() == [0.5, 2.0, 2.0]:
        return []
    rejection_sampler.expand_batch_to_tokens = expand  # https://github.com/vllm-project/vllm/issues/55005
    return ["expand_batch_to_tokens returns uninitialised memory"]


def describe(worker: Any) -> Json:  # Any: vLLM's worker
    """Which runner this is, and what the plugin served in it so far."""
    from fairdraw.sampler_impl import vllm_plugin

    runner = f"{type(worker.model_runner).__module__}.{type(worker.model_runner).__qualname__}"
    return {"runner": runner, "installed": vllm_plugin.installed(), "calls": vllm_plugin.calls()}


def heat(worker: Any, factor: float) -> None:  # Any: vLLM's worker
    """Plant a fault in the engine: tokens are drawn at another temperature than the returned log-probabilities have."""
    sampler = worker.model_runner.sampler.topk_topp_sampler
    forward = sampler.forward

    def heated(logits: Any, *arguments: Any) -> Any:  # Any: vLLM's tensors
        tokens, _ = forward(logits.clone() * factor, *arguments)
        return tokens, forward(logits, *arguments)[1]

    sampler.forward = heated


# -- the engine -------------------------------------------------------------------------------------------------------


def start(job: Json) -> Any:  # Any: vllm.LLM
    from vllm import LLM

    folder = Path(job["model"])
    write_model(folder, weights(job["vocab_size"]), files_of(job["vocab_size"]))
    options = dict(job["engine"])
    if "reasoning" in options:
        from vllm.config import ReasoningConfig

        options["reasoning_config"] = ReasoningConfig(**options.pop("reasoning"))
    return LLM(
        model=str(folder),
        dtype="float32",
        enforce_eager=True,
        enable_prefix_caching=False,
        disable_log_stats=True,
        kv_cache_memory_bytes=job["kv_bytes"],
        **options,
    )


def generate(llm: Any, job: Json) -> dict[str, np.ndarray]:  # Any: vllm.LLM
    """Every repetition's tokens `[num_tokens]`, their requests, and log-probabilities `[num_tokens, width]`."""
    parts: dict[str, list[np.ndarray]] = {name: [] for name in ("repeat", "request", "token", "ids", "logprobs")}
    prompts = [{"prompt_token_ids": request["prompt"]} for request in job["requests"]]
    for repeat in range(job["repeats"]):
        llm.collective_rpc(restart, args=(job["seed"],))
        if repeat == job.get("heat_repeat", -1):
            llm.collective_rpc(heat, args=(job["heat"],))
        answers = llm.generate(prompts, [parameters(request) for request in job["requests"]], use_tqdm=False)
        for number, answer in enumerate(answers):
            tokens = np.array(answer.outputs[0].token_ids, np.int32)
            ids, logprobs = table(answer.outputs[0].logprobs or [], len(tokens), job["width"])
            row = (np.full(len(tokens), repeat), np.full(len(tokens), number), tokens, ids, logprobs)
            for name, array in zip(parts, row, strict=True):
                parts[name].append(array)
    return {name: np.concatenate(arrays) for name, arrays in parts.items()}


def parameters(request: Json) -> Any:  # Any: vllm.SamplingParams
    from vllm import SamplingParams

    return SamplingParams(detokenize=False, ignore_eos=True, **request["parameters"])


def table(positions: Iterable[Any], length: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """The returned log-probabilities as arrays `[length, width]`: ids in the order given, -1 and -inf beyond it."""
    ids, logprobs = np.full((length, width), -1, np.int32), np.full((length, width), -np.inf, np.float32)
    for row, position in enumerate(positions):
        listed = list((position or {}).items())[:width]
        ids[row, : len(listed)] = [token for token, _ in listed]
        logprobs[row, : len(listed)] = [entry.logprob for _, entry in listed]
    return ids, logprobs


def end_with_the_caller() -> None:
    """The caller holds the other end of standard input: once it is gone, however it ended, nothing stays behind."""
    os.read(0, 1)  # not sys.stdin, whose lock would end the interpreter badly
    os.killpg(0, signal.SIGKILL)


def main() -> None:
    if sys.argv[2:] == ["watched"]:
        threading.Thread(target=end_with_the_caller, daemon=True).start()
    job = json.loads(Path(sys.argv[1]).read_text())
    began = time.perf_counter()
    llm = start(job)
    up = time.perf_counter() - began
    repaired = llm.collective_rpc(repair)[0]
    arrays = generate(llm, job)
    import torch
    import vllm

    about = {
        "start_seconds": round(up, 1),
        "run_seconds": round(time.perf_counter() - began - up, 1),
        "vllm": vllm.__version__,
        "torch": torch.__version__,
        "repaired": repaired,
        "worker": llm.collective_rpc(describe),
    }
    np.savez(sys.argv[1] + ".npz", about=json.dumps(about), **arrays)
    llm.llm_engine.engine_core.shutdown()


if __name__ == "__main__":
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    main()
