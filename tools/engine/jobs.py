"""What the engine is asked to do: plain data, written to a file for `inside.py`."""

from __future__ import annotations

from typing import Any

import numpy as np

from fairdraw._core.seeds import derive_seed

Json = dict[str, Any]  # Any: JSON

VOCAB_SIZE = 128
THINK, END_OF_THINKING = 2, 3
"""Tokens that open and close a section of thinking."""

NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 2, "prompt_lookup_min": 1}

_PENALTIES: tuple[Json, ...] = (
    {},
    {"presence_penalty": 0.8, "frequency_penalty": 0.4},
    {"repetition_penalty": 1.3},
    {"presence_penalty": -0.5, "frequency_penalty": 0.2, "repetition_penalty": 1.1},
)
_DRAWS: tuple[Json, ...] = (
    {"temperature": 1.0},
    {"temperature": 0.0},
    {"temperature": 0.7, "top_p": 0.9},
    {"temperature": 1.3, "top_k": 20},
    {"temperature": 1.0, "min_p": 0.02},
)

SETTINGS: dict[str, Json] = {
    "temperature 1": {"temperature": 1.0},
    "temperature 0.5": {"temperature": 0.5},
    "temperature 1.5": {"temperature": 1.5},
    "top-k 20": {"temperature": 1.0, "top_k": 20},
    "top-p 0.8": {"temperature": 1.0, "top_p": 0.8},
    "min-p 0.05": {"temperature": 1.2, "min_p": 0.05},
    "penalties, seeded": {"temperature": 0.9, "presence_penalty": 0.6, "frequency_penalty": 0.3, "seed": 0},
    "top-k, top-p, seeded": {"temperature": 0.8, "top_k": 40, "top_p": 0.9, "seed": 0},
}
"""What is judged, each with requests of its own, all in the same batches."""


def _prompts(name: str, number: int, low: int = 4) -> list[list[int]]:
    random = np.random.default_rng(derive_seed("engine prompts", name))
    return [random.integers(low, VOCAB_SIZE, random.integers(4, 24)).tolist() for _ in range(number)]


def _job(model: str, requests: list[Json], engine: Json, **fields: object) -> Json:
    common = {"model": model, "vocab_size": VOCAB_SIZE, "kv_bytes": 2**28, "seed": 18}
    return {**common, "requests": requests, "engine": engine, **fields}


def _supported(parameters: Json, drafts: bool) -> Json:
    """vLLM refuses min-p where drafts are verified."""
    return {name: value for name, value in parameters.items() if not (drafts and name == "min_p")}


def plugin_job(model: str, *, drafts: bool, num_requests: int = 32, num_tokens: int = 120) -> Json:
    """Requests of every kind that the plugin's pieces serve; more than fit at once, so that rows move.

    Even requests have a seed. A third has a thinking budget and thinks from its prompt on. The model itself may not
    emit the markers: vLLM is wrong about a second section and about a stray end, and ours differs there on purpose
    (see `sampler_impl/thinking_budget.py`).
    """
    requests = []
    for number, prompt in enumerate(_prompts("plugin", num_requests)):
        parameters = {**_PENALTIES[number % 4], **_DRAWS[number % 5], "logprobs": 5}
        parameters["allowed_token_ids"] = list(range(END_OF_THINKING + 1, VOCAB_SIZE))
        parameters["max_tokens"] = num_tokens - 7 * (number % 9)
        if number % 2 == 0:
            parameters["seed"] = number
        if number % 3 == 0:
            parameters["thinking_token_budget"] = 4 + number
            prompt = [*prompt, THINK]
        requests.append({"prompt": prompt, "parameters": _supported(parameters, drafts)})
    engine = {"max_model_len": 256, "max_num_seqs": 20, "seed": 18, "reasoning": reasoning()}
    if drafts:
        engine["speculative_config"] = NGRAM
    return _job(model, requests, engine, repeats=2, width=6)


def reasoning() -> Json:
    return {"reasoning_start_str": f"t{THINK}", "reasoning_end_str": f"t{END_OF_THINKING}"}


def tokens_job(model: str, *, drafts: bool, num_requests: int = 8, num_tokens: int = 200, heat: float = 1.25) -> Json:
    """`num_requests` of each setting, whole distributions returned; the second repetition has a fault in the engine."""
    requests = []
    for name, setting in SETTINGS.items():
        for number, prompt in enumerate(_prompts(name, num_requests)):
            # Equal seeds would draw equal noise: tokens of two requests were not independent.
            seed = {"seed": derive_seed("engine seed", name, number) % 2**31} if "seed" in setting else {}
            parameters = {**setting, **seed, "max_tokens": num_tokens, "logprobs": -1}
            requests.append({"prompt": prompt, "parameters": _supported(parameters, drafts)})
    engine = {"max_model_len": 256, "max_num_seqs": 64, "seed": 18, "logprobs_mode": "processed_logprobs"}
    engine |= {"max_logprobs": -1, **({"speculative_config": NGRAM} if drafts else {})}
    return _job(model, requests, engine, repeats=2, width=VOCAB_SIZE, heat_repeat=1, heat=heat)
