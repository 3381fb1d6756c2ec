"""A real vLLM on a GPU: the plugin's step of model runner V2 off and on, in one engine, in rounds that take turns.

    python tools/engine/card.py rows.jsonl                           # the small model, all sets of parameters
    python tools/engine/card.py rows.jsonl --model 8B --length 100   # 36 layers, so that the share is honest
    python tools/engine/card.py rows.jsonl --drafts ngram --sets none card --judge min-p

Runs in whatever environment has vLLM and fairdraw, with the engine in a process of its own, as in production. Weights
are random; logits are normal with the deviation `--sigma`. A row of the file is a run: its seconds, or with `what` =
`span` the time of the sampler alone, on the GPU's stream and on the host; `judge` compares the counts of the first
tokens of one prompt, off against on, by a chi-square test of homogeneity.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections import Counter
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any

from inside import files_of, write_model

Json = dict[str, Any]  # Any: JSON

VOCAB_SIZE, DRAFTS, ROUNDS, SAME = 151_936, 3, 3, 2048
SHAPES = {"small": (1024, 4, 8, 4, 3072), "8B": (4096, 36, 32, 8, 12288), "draft": (512, 1, 4, 2, 1024)}
"""Sizes: hidden, layers, heads, heads of keys, intermediate."""
_NAMES = "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size"
_CARD = {"temperature": 0.6, "top_k": 20, "top_p": 0.95}
SETS: dict[str, Json] = {
    "none": {"temperature": 1.0},
    "card": _CARD,
    "top-p": {"temperature": 1.0, "top_p": 0.95},
    "min-p": {"temperature": 0.6, "min_p": 0.02},
    "presence": {**_CARD, "presence_penalty": 1.5},
    "grammar": _CARD,
}


def model_of(name: str) -> str:
    """Write the files of a model without weights."""
    files = files_of(VOCAB_SIZE)
    sizes = dict(zip(_NAMES, SHAPES[name], strict=True))
    kind = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "torch_dtype": "bfloat16"}
    files["config"] |= {**sizes, **kind, "head_dim": 128, "max_position_embeddings": 32768}
    folder = Path("/tmp/fairdraw-engine") / name
    write_model(folder, {}, files)
    return str(folder)


# -- called in the worker ---------------------------------------------------------------------------------------------


def weigh(worker: Any, sigma: float) -> None:  # Any: vLLM's worker
    """Give all models random weights."""
    import torch

    runner, random = worker.model_runner, torch.Generator(device="cuda").manual_seed(7)
    for model in filter(None, (runner.get_model(), runner.get_draft_model())):
        for name, weight in model.named_parameters():
            spread = 1.0 if "embed" in name else (sigma if "lm_head" in name else 1.0) / weight.shape[-1] ** 0.5
            for part in weight.data.split(8192):
                numbers = torch.randn(part.shape, device="cuda", generator=random) * spread
                part.copy_(torch.ones_like(part) if "norm" in name else numbers)


def prepare(worker: Any) -> Json:  # Any: vLLM's worker
    """Find both arms, the plugin's functions and vLLM's own, and time calls of the sampler."""
    import torch
    import vllm
    from vllm.v1.worker.gpu.sample.sampler import Sampler
    from vllm.v1.worker.gpu.spec_decode.rejection_sampler import RejectionSampler

    from fairdraw.sampler_impl import vllm_plugin

    places = (Sampler, "sample"), (RejectionSampler, "_verify")
    installed, on = vllm_plugin.installed(), [getattr(*place) for place in places]
    vllm_plugin.unpatch()
    worker.arms = {"on": on, "off": [getattr(*place) for place in places]}
    worker.places, worker.spans = places, None
    for owner in (Sampler, RejectionSampler):

        def timed(self: Any, *given: Any, _call: Any = owner.__call__, **options: Any) -> Any:  # Any: as vLLM's
            if worker.spans is None:
                return _call(self, *given, **options)
            events, began = [torch.cuda.Event(enable_timing=True) for _ in "ab"], time.perf_counter()
            events[0].record()
            output = _call(self, *given, **options)
            events[1].record()
            worker.spans.append((*events, time.perf_counter() - began))
            return output

        owner.__call__ = timed
    about = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "vllm": vllm.__version__}
    return {**about, "runner": type(worker.model_runner).__module__, "installed": list(installed)}


def choose(worker: Any, arm: str, timed: bool) -> None:  # Any: vLLM's worker
    """Put an arm in place."""
    worker.spans = [] if timed else None
    for place, function in zip(worker.places, worker.arms[arm], strict=True):
        setattr(*place, function)


def ended(worker: Any) -> Json:  # Any: vLLM's worker
    """Return medians of the sampler's times, memory, and the calls that the plugin served so far."""
    import torch

    from fairdraw.sampler_impl import vllm_plugin

    torch.cuda.synchronize()
    found: Json = {"memory": torch.cuda.memory_allocated(), "calls": vllm_plugin.calls().get("step", {})}
    if worker.spans:
        found |= {"steps": len(worker.spans), "host_us": 1e6 * statistics.median(host for *_, host in worker.spans)}
        found["span_us"] = 1e3 * statistics.median(first.elapsed_time(last) for first, last, _ in worker.spans)
    return found


# -- the engine -------------------------------------------------------------------------------------------------------


def start(options: argparse.Namespace) -> Any:  # Any: vllm.LLM
    from vllm import LLM

    drafters: Json = {"ngram": {"method": "ngram", "prompt_lookup_max": 3, "prompt_lookup_min": 1}}
    drafters["model"] = {"method": "draft_model", "model": model_of("draft")}
    drafter = drafters.get(options.drafts)
    given: Json = {"speculative_config": drafter and {**drafter, "num_speculative_tokens": DRAFTS}}
    graphs = {"mode": 0, "cudagraph_mode": "NONE" if options.eager else "FULL_DECODE_ONLY"}
    given |= {"enforce_eager": options.eager, "compilation_config": graphs}
    limits = {"max_model_len": 16384, "max_num_seqs": 256, "gpu_memory_utilization": 0.6, "seed": 18}
    quiet = {"enable_prefix_caching": False, "disable_log_stats": True}
    return LLM(model=model_of(options.model), dtype="bfloat16", load_format="dummy", **limits, **quiet, **given)


def parameters(name: str, length: int) -> Any:  # Any: vllm.SamplingParams
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

    rules = {"structured_outputs": StructuredOutputsParams(regex="(t[0-9]{1,6})+")} if name == "grammar" else {}
    common = {"max_tokens": length, "ignore_eos": True, "detokenize": False}
    return SamplingParams(**common, **SETS[name], **rules, output_kind=RequestOutputKind.FINAL_ONLY)


def prompts(number: int, seed: int) -> list[Json]:
    """Return prompts that repeat themselves, so that n-grams are found."""
    random = Random(seed)
    return [{"prompt_token_ids": [random.randrange(10, VOCAB_SIZE) for _ in range(8)] * 6} for _ in range(number)]


def run(llm: Any, arm: str, name: str, asked: list[Json], length: int, *, timed: bool = False) -> tuple[Json, Any]:
    """Return a row, and the answers."""
    llm.collective_rpc(choose, args=(arm, timed))
    began = time.perf_counter()
    answers = llm.generate(asked, [parameters(name, length)] * len(asked), use_tqdm=False)
    row: Json = {"seconds": round(time.perf_counter() - began, 4)}
    row["tokens"] = sum(len(answer.outputs[0].token_ids) for answer in answers)
    row |= {"set": name, "arm": arm, "batch": len(asked), "length": length, **llm.collective_rpc(ended)[0]}
    return row, answers


def timed_rows(llm: Any, name: str, batch: int, options: argparse.Namespace) -> Any:  # Any: rows
    """Warm both arms, time them in turns, then their samplers."""
    for arm in ("off", "on"):
        run(llm, arm, name, prompts(batch, 0), min(40, options.length))
    for number in range(ROUNDS):
        for arm in ("off", "on") if number % 2 == 0 else ("on", "off"):
            yield {**run(llm, arm, name, prompts(batch, number), options.length)[0], "round": number}
    for arm in ("off", "on"):
        yield {**run(llm, arm, name, prompts(batch, 1), min(200, options.length), timed=True)[0], "what": "span"}


def judged_rows(llm: Any, name: str, calls: int) -> Any:  # Any: rows
    """Compare how often one prompt is continued by each first token, by the first two, and by the first three."""
    from scipy.stats import chi2_contingency

    tokens_of = {
        arm: [a.outputs[0].token_ids for _ in range(calls) for a in run(llm, arm, name, prompts(1, 5) * SAME, 3)[1]]
        for arm in ("off", "on")
    }
    for depth in (1, 2, 3):
        heads = [[tuple(tokens[:depth]) for tokens in each] for each in tokens_of.values()]
        both = Counter(chain(*heads))
        tables = [Counter(head if both[head] >= 20 else None for head in each) for each in heads]
        cells = [[table[head] for head in tables[0] | tables[1]] for table in tables]
        p = round(float(chi2_contingency(cells, correction=False).pvalue), 4)
        yield {"what": "judge", "set": name, "depth": depth, "cells": len(cells[0]), "p": p, "tokens": both.total()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("record", type=Path, help="rows are appended to it")
    parser.add_argument("--model", choices=("small", "8B"), default="small")
    parser.add_argument("--drafts", choices=("none", "ngram", "model"), default="none")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=["none", "card", "top-p", "presence", "grammar"])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 16, 64, 256])
    parser.add_argument("--judge", nargs="*", choices=SETS, default=[])
    parser.add_argument("--length", type=int, default=200)
    parser.add_argument("--sigma", type=float, default=5.5, help="deviation of the logits (default: 5.5)")
    parser.add_argument("--eager", action="store_true", help="without vLLM's CUDA graphs")
    options = parser.parse_args()
    llm = start(options)
    llm.collective_rpc(weigh, args=(options.sigma,))
    kind = {"model": options.model, "drafts": options.drafts, "eager": options.eager, "sigma": options.sigma}
    about = {"what": "about", **llm.collective_rpc(prepare)[0], "date": time.strftime("%Y-%m-%d")}
    with options.record.open("a") as file:
        for rows in (
            [about],
            *(timed_rows(llm, name, batch, options) for batch in options.batches for name in options.sets),
            *(judged_rows(llm, name, 6) for name in options.judge),
        ):
            for row in rows:
                print(json.dumps(row), flush=True)
                file.write(json.dumps({**kind, **row}) + "\n")


if __name__ == "__main__":
    os.environ |= {"VLLM_ALLOW_INSECURE_SERIALIZATION": "1", "HF_HUB_OFFLINE": "1", "FAIRDRAW_VLLM_PLUGIN": "1"}
    main()
