"""A small call of every public function of `sampler_impl` that takes tensors; as a program, with values that lie.

On a CPU every tensor, given or made by the call, then stands at the edge of a page that may not be touched: a read or
write beside it ends the process. On a card `compute-sanitizer` looks, with `memcheck`, `racecheck`, `initcheck` or
`synccheck`; there each tensor needs memory of its own, without PyTorch's cache:

    python3 tools/tensor_calls.py triton cpu 8
    PYTORCH_NO_CUDA_MEMORY_CACHING=1 PYTHONPATH=src compute-sanitizer --tool memcheck --error-exitcode 9 \\
        python3 tools/tensor_calls.py triton cuda 8
"""

from __future__ import annotations

import ctypes
import mmap
import random
import sys
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from step_cases import Path, make_case, mapped, moved
from torch import Tensor

from fairdraw._core.interpreter import prepare_triton, speed_up_interpreter

if __name__ == "__main__":
    prepare_triton(sys.argv[2])

from fairdraw._oracles.matchers import MatcherOracle
from fairdraw.contracts import MatcherGrammar
from fairdraw.sampler_impl import grammar, logprobs, rejection, rejection_counter, sampling
from fairdraw.sampler_impl._counter import accept, draw, slots
from fairdraw.sampler_impl.logits_plan import LogitsPlan
from fairdraw.sampler_impl.penalties import Penalties
from fairdraw.sampler_impl.step import Drafts, StepPlan
from fairdraw.sampler_impl.thinking_budget import ThinkingBudget

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

VOCAB_SIZE = 40
COUNTS = [2, 0, 3]


@dataclass(frozen=True)
class Call:
    """One call, and the argument that it writes in place."""

    function: Callable[..., Any]  # Any: tensors, or tuples and dataclasses of them
    arguments: dict[str, Any]  # Any: tensors, and dataclasses of them
    written: str = ""

    def tensors(self) -> dict[Path, Tensor]:  # [...] any, each
        # Copies: views of them may be written in place, and other calls share the tensors.
        return {path: tensor.clone() for path, tensor in _tensors_of(self.arguments).items()}

    def run(self, changes: dict[Path, Tensor]) -> list[Tensor]:  # [...] any, each
        """Call with some tensors in the place of others; copies of whatever is returned and written."""
        arguments = dict(self.arguments)
        if self.written:
            arguments[self.written] = arguments[self.written].clone()
        for path, tensor in changes.items():
            arguments = replaced(arguments, path, tensor)
        answer = self.function(**arguments)
        found = _tensors_of(answer).values()
        return [tensor.detach().clone() for tensor in (*found, *([arguments[self.written]] if self.written else ()))]


def _tensors_of(value: Any) -> dict[Path, Tensor]:  # Any: as above
    found: dict[Path, Tensor] = {}

    def look(path: Path, one: Any) -> Any:  # Any: a member of the structure
        if isinstance(one, Tensor):
            found[path] = one
        return one

    mapped(value, look)
    return found


def replaced(value: Any, path: Path, new: Any) -> Any:  # Any: as above, and what stands at the path
    """Return a copy of the structure in which something else stands at a path."""
    return mapped(value, lambda at, one: new if at == path else one)


def calls(backend: Any, device: str = "cpu") -> dict[str, Call]:  # Any: a word
    """Return the calls, by the name of the function and what is special about each."""
    torch.manual_seed(7)
    found = {
        **_rejection(backend),
        **_counter(backend),
        **_sampling(backend),
        **_steps(backend, device),
        **_others(backend, device),
    }
    if device == "cpu":
        return found
    return {name: replace(call, arguments=moved(call.arguments, torch.device(device))) for name, call in found.items()}


def _probs(rows: int) -> Tensor:  # [rows, vocab_size] float32
    return torch.randn(rows, VOCAB_SIZE).softmax(-1)


def _rejection(backend: Any) -> dict[str, Call]:  # Any: a word
    num_tokens, batch_size = sum(COUNTS), len(COUNTS)
    metadata = SimpleNamespace(
        all_greedy=False, all_random=False, temperature=torch.tensor([1.0, 0.0, 0.7]), generators={}
    )
    given = {
        "draft_token_ids": torch.randint(0, VOCAB_SIZE, (num_tokens,)).int(),
        "num_draft_tokens": COUNTS,
        "max_spec_len": 3,
        "cu_num_draft_tokens": torch.tensor(COUNTS).cumsum(0).int(),
        "draft_probs": _probs(num_tokens),
        "target_logits": torch.randn(num_tokens, VOCAB_SIZE),
        "bonus_token_ids": torch.randint(0, VOCAB_SIZE, (batch_size, 1)).int(),
        "sampling_metadata": metadata,
        "backend": backend,
    }
    noise = {
        "uniforms": torch.rand(num_tokens, dtype=torch.float64),
        "exponentials": torch.rand(batch_size, VOCAB_SIZE) + 0.1,
    }

    def parsed(**arguments: Any) -> Tensor:  # Any: of parse_output  # [length] int64
        return torch.tensor([*chain.from_iterable(rejection.parse_output(**arguments))])

    rates = {"synthetic_mode": True, "synthetic_conditional_rates": torch.rand(3)}

    def seeded(**arguments: Any) -> Tensor:  # Any: of rejection_sample  # [batch_size, max_spec_len + 1] int32
        torch.manual_seed(1)
        return rejection.rejection_sample(**arguments)

    lists = {"output_token_ids": torch.randint(-1, VOCAB_SIZE, (3, 4)).int(), "vocab_size": VOCAB_SIZE}
    scaled = {"cu_num_draft_tokens": given["cu_num_draft_tokens"], "sampling_metadata": metadata, "backend": backend}
    expanded = {"x": torch.randn(3), "cu_num_tokens": given["cu_num_draft_tokens"], "num_tokens": num_tokens}
    return {
        "rejection_sample": Call(seeded, given),
        "verify_drafts": Call(rejection.verify_drafts, {**given, **noise}),
        "verify_drafts, synthetic": Call(rejection.verify_drafts, {**given, **noise, **rates}),
        "verify_drafts, one-hot": Call(rejection.verify_drafts, {**given, **noise, "draft_probs": None}),
        "expand_batch_to_tokens": Call(rejection.expand_batch_to_tokens, {**expanded, "backend": backend}),
        "apply_temperature_": Call(
            rejection.apply_temperature_, {"target_logits": given["target_logits"], **scaled}, "target_logits"
        ),
        "parse_output": Call(parsed, lists),
    }


def _counter(backend: Any) -> dict[str, Call]:  # Any: a word
    num_tokens, batch_size = sum(COUNTS), len(COUNTS)
    given = {
        "draft_token_ids": torch.randint(0, VOCAB_SIZE, (num_tokens,)).int(),
        "cu_num_draft_tokens": torch.tensor(COUNTS).cumsum(0).int(),
        "max_spec_len": 3,
        "logits": torch.randn(num_tokens + batch_size, VOCAB_SIZE),
        "temperature": torch.tensor([1.0, 0.0, 0.7]),
        "seeds": torch.randint(-(2**62), 2**62, (batch_size,)),
        "positions": torch.randint(0, 99, (batch_size,)),
        "backend": backend,
    }
    bonus = {
        "bonus_token_ids": torch.randint(0, VOCAB_SIZE, (batch_size, 1)).int(),
        "logits": given["logits"][:num_tokens],
    }
    logits = torch.randn(num_tokens, VOCAB_SIZE)
    owners = torch.tensor([1.0, 1.0, 0.7, 0.7, 0.7])
    logsumexp = (logits / owners[:, None]).logsumexp(-1)
    workspace = rejection_counter.make_workspace(batch_size, 3, VOCAB_SIZE, "cpu")
    drafts: dict[str, dict[str, Any]] = {  # Any: tensors
        "one-hot": {},
        "one-hot, bonus": bonus,
        "probs": {**bonus, "draft_probs": _probs(num_tokens)},
        "logits": {"draft_logits": logits},
        "logsumexp": {"draft_logits": logits, "draft_logsumexp": logsumexp, "workspace": workspace},
    }
    function = rejection_counter.rejection_sample
    return {f"rejection_counter, {kind}": Call(function, {**given, **more}) for kind, more in drafts.items()}


def _sampling(backend: Any) -> dict[str, Call]:  # Any: a word
    logits = torch.randn(3, VOCAB_SIZE)
    top = torch.tensor([5, 40, 3]).int(), torch.tensor([0.9, 1.0, 0.5])
    parameters = sampling.SamplingParameters(torch.tensor([1.0, 0.0, 0.7]), *top, torch.tensor([0.1, 0.0, 0.2]))
    min_p_alone = replace(parameters, top_k=None, top_p=None)
    counters = sampling.CounterNoise(torch.randint(-(2**62), 2**62, (3,)), torch.randint(0, 99, (3,)))
    races = sampling.RaceNoise(torch.rand(3, VOCAB_SIZE) + 0.1)
    given = {"logits": logits, "parameters": parameters, "noise": races}
    counted = {"logits": logits, "noise": counters, "backend": backend}
    return {
        "sample": Call(sampling.sample, given),
        "sample, counters": Call(sampling.sample, {**counted, "parameters": min_p_alone}),
        "draft": Call(sampling.draft, given),
        "draft_with_logsumexp": Call(sampling.draft_with_logsumexp, {**counted, "temperature": parameters.temperature}),
    }


def _steps(backend: Any, device: str) -> dict[str, Call]:  # Any: a word
    found = {}
    for kind, counts, changes in (
        ("one-hot", [2, 0, 1], {"edits": True}),
        ("probs", [2, 0, 1], {"edits": True, "drafts": Drafts.PROBS, "filters": False}),
        ("logits", [2, 0, 1], {"drafts": Drafts.LOGITS, "draft_temperature": True, "logsumexp": True}),
        ("plain", [0, 0, 0], {"edits": True}),
    ):
        case = make_case(3, counts, VOCAB_SIZE, kinds=("normal", "half"), **changes)  # type: ignore[arg-type]
        plan = StepPlan(case.capacity, device, backend=backend)
        found[f"StepPlan, {kind}"] = Call(plan, {"inputs": case.inputs})
    found["StepPlan.drafted"] = Call(plan.drafted, {"inputs": case.inputs})
    found["StepPlan.processed_logits"] = Call(plan.processed_logits, {"inputs": case.inputs})
    words = torch.zeros(len(case.inputs.logits), -(-VOCAB_SIZE // 32), dtype=torch.int32)
    found["StepPlan.masked"] = Call(plan.masked, {"inputs": case.inputs, "kept_words": words}, "kept_words")
    return found


def _others(backend: Any, device: str) -> dict[str, Call]:  # Any: a word
    params = SimpleNamespace(
        temperature=0.7, top_k=5, top_p=0.9, min_p=0.1, presence_penalty=0.5, frequency_penalty=0.2,
        repetition_penalty=1.5, allowed_token_ids=None, bad_words_token_ids=None, min_tokens=0,
        all_stop_token_ids=set(), logit_bias={3: 1.0}, thinking_token_budget=1,
    )  # fmt: skip
    logits, outputs, drafts = torch.randn(3, VOCAB_SIZE), [[3, 4], [3], []], [[1, 2], [5], []]
    factors = {
        "presence_penalties": torch.tensor([0.5, 1.0, 0.0]),
        "frequency_penalties": torch.tensor([0.2, 0.0, 1.0]),
        "repetition_penalties": torch.tensor([1.5, 2.0, 1.0]),
    }

    def follow(state: Any) -> Any:  # Any: with `sync_batch`
        added = [(row, params, [row, 7], output) for row, output in enumerate(outputs)]
        state.sync_batch(SimpleNamespace(removed=[], added=added, moved=[]))
        return state

    def penalise(method: str, **arguments: Any) -> None:  # Any: of the method
        penalties = follow(Penalties(VOCAB_SIZE, device, backend=backend))
        penalties.update(outputs)
        getattr(penalties, method)(draft_token_ids=drafts, **arguments)

    def think(**arguments: Any) -> None:  # Any: of the method
        thinking = follow(ThinkingBudget([7], [8, 9]))
        thinking.update_state(outputs)
        thinking.apply_to_logits(predict_bonus_token=True, **arguments)

    def plan(**arguments: Any) -> Tensor:  # Any: of the method  # [num_rows, vocab_size] float32
        made: LogitsPlan = follow(LogitsPlan(VOCAB_SIZE, device, thinking=ThinkingBudget([7], [8, 9])))
        return made.apply(output_token_ids=outputs, **arguments)

    def fork(**arguments: Any) -> None:  # Any: of the function
        even = MatcherOracle(MatcherGrammar("a*", (b"a", b"b") * (VOCAB_SIZE // 2), ()), {})
        grammar.fork_bitmasks([even, None], [[2], []], **arguments)

    words = torch.randint(-(2**31), 2**31, (3, 2)).int()
    masked = {"logits": logits, "bitmask": words}
    listed = {"logits": logits, "emitted_token_ids": torch.tensor([3, 0, 39]), "num_logprobs": 2, "backend": backend}
    return {
        "Penalties.apply": Call(partial(penalise, "apply"), {"logits": logits, **factors}, "logits"),
        "Penalties.apply_to_drafts": Call(
            partial(penalise, "apply_to_drafts"), {"logits": logits, **factors}, "logits"
        ),
        "ThinkingBudget.apply_to_logits": Call(think, {"logits": logits}, "logits"),
        "LogitsPlan.apply": Call(plan, {"logits": logits}),
        "top_logprobs": Call(logprobs.top_logprobs, listed),
        "top_logprobs, all": Call(logprobs.top_logprobs, {**listed, "num_logprobs": -1}),
        "apply_bitmask": Call(grammar.apply_bitmask, masked, "logits"),
        "apply_bitmask, rows": Call(grammar.apply_bitmask, {**masked, "indices": torch.tensor([2, 0])}, "logits"),
        "fork_bitmasks": Call(fork, {"bitmask": words}, "bitmask"),
    }


# Values that lie, in memory that ends.

PAGE = mmap.PAGESIZE
_LIBC = ctypes.CDLL(None, use_errno=True)
_MAPPED: list[mmap.mmap] = []
"""Mapped memory is never given back: a tensor may outlive its call."""


def at_an_edge(
    tensor: Tensor,  # [...] any
    *,
    before: bool,
) -> Tensor:  # [...] any
    """Return the same numbers in order, with a page that may not be touched right behind them, or right before."""
    size = tensor.numel() * tensor.element_size()
    inner = -(-max(size, 1) // PAGE) * PAGE
    memory = mmap.mmap(-1, inner + 2 * PAGE)
    _MAPPED.append(memory)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for edge in (address, address + PAGE + inner):
        if _LIBC.mprotect(ctypes.c_void_p(edge), ctypes.c_size_t(PAGE), 0):
            raise OSError(ctypes.get_errno(), "mprotect")
    offset = PAGE if before else PAGE + inner - size
    if size == 0:
        return tensor.clone()
    placed = torch.frombuffer(memory, dtype=tensor.dtype, count=tensor.numel(), offset=offset).view(tensor.shape)
    return placed.copy_(tensor.detach())


@contextmanager
def owned_memory(*, before: bool) -> Iterator[None]:
    """Whatever is allocated meanwhile stands at an edge as well."""
    names = ((torch, "empty"), (torch, "zeros"), (torch, "full"), (Tensor, "new_empty"), (Tensor, "new_zeros"))
    made = {(owner, name): getattr(owner, name) for owner, name in names}

    def placing(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return lambda *given, **named: at_an_edge(make(*given, **named), before=before)

    try:
        for (owner, name), make in made.items():
            setattr(owner, name, placing(make))
        yield
    finally:
        for (owner, name), make in made.items():
            setattr(owner, name, make)


INTEGERS = (-1, 2**31 - 1, -(2**31), 30, 9, 0, -(2**31) + 9)
LARGE = (2**63 - 1, -(2**63), 2**32, -(2**32) - 1)
FLOATS = (float("nan"), float("inf"), float("-inf"), -1.0, 1e30, 0.0)


def lying(
    tensor: Tensor,  # [...] any
    rng: random.Random,
) -> Tensor:  # [...] any
    """Return a copy of which some entries, or all, are what nobody should pass."""
    values: tuple[float, ...] = FLOATS
    if not tensor.is_floating_point():
        values = INTEGERS + (LARGE if tensor.dtype == torch.int64 else ())
    changed = tensor.clone()
    flat = changed.view(-1)
    for place in range(len(flat)) if rng.random() < 0.2 else rng.sample(range(len(flat)), min(len(flat), 2)):
        flat[place] = rng.choice(values)
    return changed


def main(backend: str, device: str, seeds: str) -> None:
    """Run every call with values that lie; print its name first, which is the last word if the process ends."""
    speed_up_interpreter()
    for module in (accept, draw, slots):
        module.MAX_SPINS = slots.MAX_SPINS.__class__(4)  # what is waited for may never come
    for before in (False, True) if device == "cpu" else (False,):
        with owned_memory(before=before) if device == "cpu" else nullcontext():
            found = calls(backend, device)
        for name, call in found.items():
            for seed in range(int(seeds)):
                print(name, seed, before, flush=True)
                rng = random.Random(f"{name} {seed}")
                tensors = {path: lying(one, rng) if rng.random() < 0.4 else one for path, one in call.tensors().items()}
                if device == "cuda":  # PyTorch's own assertion would end the process, and say nothing of ours
                    tensors |= {path: one for path, one in call.tensors().items() if path == ("indices",)}
                if device == "cpu":
                    tensors = {path: at_an_edge(one, before=before) for path, one in tensors.items()}
                with suppress(ValueError, IndexError, RuntimeError):
                    with owned_memory(before=before) if device == "cpu" else nullcontext():
                        call.run(tensors)
                    if device == "cuda":
                        torch.cuda.synchronize()


if __name__ == "__main__":
    main(*sys.argv[1:])
