"""CI's look at the kernels: cases that cover every pair of features, interpreted, beside the PyTorch twin.

Whole suites of the checks run on compiled kernels, where there is a card (`fairdraw check rejection/step-triton`). Here
a covering array (`strategies/_covering.py`) chooses what a batch has; its numbers follow from fixed seeds. Tokens, ids
and rows are equal bit for bit; log-probabilities are sums that the kernels add up in another order. Kernels with
counters are compared in `test_rejection_counter.py`, drafts at the edge of rejection in `test_step_scan.py`.
"""

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers import Chosen, covering
from step_cases import make_case, shaped

from fairdraw.sampler_impl import logprobs, rejection, sampling
from fairdraw.sampler_impl._step import launch
from fairdraw.sampler_impl.step import Drafts, StepPlan

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
OFF = {"penalties": {"penalties": None}, "edits": {"edits": None}, "grammar": {"grammar_mask": None}}
FLOATS = (torch.float32, torch.bfloat16, torch.float16)


STEP: dict[str, Sequence[Any]] = {  # Any: as above
    "drafts": tuple(Drafts),
    "vocab_size": (8, 32, 700, 1100, 4500),  # a part of a run, a row of one word, a tile, two, two blocks of the scan
    "counts": ([2, 0, 1], [1, 1, 1, 1, 1], [3, 3]),
    "shape": launch.SHAPES,
    "groups": ((), ("penalties",), ("edits",), ("grammar",), tuple(OFF)),
    "young": (False, True),  # as many tokens as a bad word has before its last one, or none
    "filters": (False, True),
    "most": (16, launch.MOST),  # candidates of a row: where they do not fit, it is a flat one
    "dtype": FLOATS,
    "draft_dtype": FLOATS[:2],
    "logsumexp": (False, True),
    "draft_temperature": (False, True),
    "kinds": (("normal", "half"), ("normal", "ties", "one"), ("normal", "mostly-excluded"), ("normal", "nan", "inf")),
}
SMALL = (
    STEP
    | {  # cheap ones, in which any three features meet: a rejected draft that a filter keeps needs three
        "vocab_size": (8, 32),
        "counts": ([3, 1, 2, 3, 0, 2],),
        "most": (launch.MOST,),
        "dtype": FLOATS[:1],
        "draft_dtype": FLOATS[:1],
        "logsumexp": (False,),
        "draft_temperature": (False,),
        "young": (False,),
        "kinds": (("normal", "half"), ("normal", "ties", "flat", "excluded")),
    }
)


@pytest.mark.parametrize("chosen", covering(STEP) + covering(SMALL, 3), ids=lambda chosen: str(chosen["vocab_size"]))
def test_kernels_of_the_step_do_what_the_twin_does(chosen: Chosen, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens of two steps of one plan, their log-probabilities, and the processed rows."""
    options = {**chosen}
    counts, size, shape, groups = (options.pop(name) for name in ("counts", "vocab_size", "shape", "groups"))
    monkeypatch.setattr(launch, "MOST", options.pop("most"))
    monkeypatch.setattr(launch, "LISTED", min(launch.LISTED, launch.MOST))
    is_young = options.pop("young")
    counts = [0] * len(counts) if options["drafts"] is Drafts.NONE else counts
    case = make_case(size, counts, size, edits=len(groups) > 0, **options)
    for name in OFF if groups else ():
        if name not in groups:
            case = replace(
                case,
                inputs=replace(case.inputs, **OFF[name]),
                capacity=replace(case.capacity, **{name: 0 if name == "edits" else False}),
            )
    edits, slots = case.inputs.edits, case.inputs.slots
    if is_young and edits is not None and edits.bad_words is not None and slots is not None:
        words = replace(edits.bad_words, counts=torch.full_like(edits.bad_words.counts, 4))
        positions = words.starts[slots.long()] + torch.arange(len(counts)) % 3
        case = replace(case, inputs=replace(case.inputs, positions=positions, edits=replace(edits, bad_words=words)))
    inputs = case.on(DEVICE)
    twin, plan = (shaped(StepPlan(case.capacity, DEVICE, backend=backend), shape) for backend in ("torch", "triton"))
    expected = twin(inputs)
    for _ in range(2):
        found = plan(inputs)
        assert torch.equal(found.token_ids, expected.token_ids)
        assert torch.equal(found.num_tokens, expected.num_tokens)
        torch.testing.assert_close(found.logprobs, expected.logprobs, rtol=1e-4, atol=1e-5, equal_nan=True)
    rows, known = (one.processed_logits(inputs)[: len(case.rows())].nan_to_num(7.0) for one in (plan, twin))
    assert torch.equal(rows, known)


REJECTION: dict[str, Sequence[Any]] = {  # Any: as above
    "vocab_size": (1, 5, 300, 2048, 4100),  # one tile, a whole one, three
    "counts": ([1, 0, 3, 2], [4, 4], [0, 0, 1]),
    "dense": (False, True),
    "greedy": ("none", "some", "all"),
    "synthetic": (False, True),
    "padding": (0, 2),  # positions that no request has
    "ids": (torch.int32, torch.int64),
    "dtype": FLOATS,
    "row": ("normal", "ties", "masked", "zero draft", "heavy draft"),  # the last one leaves no residual
    "least": (0.0, 2.0),  # of exponentials: most of them are then equal
}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("chosen", covering(REJECTION), ids=lambda chosen: str(chosen["row"]))
def test_kernels_of_verification_do_what_the_twin_does(chosen: Chosen, seed: int) -> None:
    counts, size, noise = chosen["counts"], chosen["vocab_size"], torch.Generator().manual_seed(seed)
    num_tokens, most = sum(counts), max(counts) + chosen["padding"]

    def uniform(*shape: int) -> torch.Tensor:  # [...] float32
        return torch.rand(shape, generator=noise)

    logits = torch.randn(num_tokens, size, generator=noise) * 2
    logits = logits.round() if chosen["row"] == "ties" else logits
    if chosen["row"] == "masked" and size > 1:
        logits = logits.masked_fill(uniform(num_tokens, size) < 0.6, -torch.inf)
        logits[:, -1] = 0.0
    draft = (logits.clamp(min=-9) + torch.randn(num_tokens, size, generator=noise)).softmax(-1)
    ids = draft.multinomial(1, generator=noise)[:, 0]
    ids = ids.masked_fill(uniform(num_tokens) < 0.15, -1)
    if chosen["row"] == "zero draft":
        draft[uniform(num_tokens) < 0.5] = 0.0
    if chosen["row"] == "heavy draft":
        draft = logits.softmax(-1) * 2
    temperature = {"none": 1.0, "some": 1.0, "all": 0.0}[chosen["greedy"]] * torch.ones(len(counts))
    temperature[-1] *= chosen["greedy"] == "none"
    is_greedy = chosen["greedy"] == "all"
    metadata: Any = SimpleNamespace(  # Any: as vLLM's
        generators={},
        all_greedy=is_greedy,
        all_random=chosen["greedy"] == "none",
        temperature=None if is_greedy else temperature.to(DEVICE),
    )
    arguments = {
        "draft_token_ids": ids.to(chosen["ids"]),
        "cu_num_draft_tokens": torch.tensor(counts).cumsum(0).int(),
        "draft_probs": draft if chosen["dense"] else None,
        "target_logits": logits.to(chosen["dtype"]),
        "bonus_token_ids": torch.randint(size, (len(counts), 1), generator=noise).int(),
        "synthetic_conditional_rates": uniform(most) if chosen["synthetic"] else None,
        "uniforms": None if is_greedy and not chosen["synthetic"] else uniform(num_tokens).double(),
        "exponentials": None if is_greedy else -uniform(len(counts), size).log().clamp(max=-chosen["least"]),
    }
    given: Any = {name: value if value is None else value.to(DEVICE) for name, value in arguments.items()}  # Any: both
    given |= {"num_draft_tokens": counts, "max_spec_len": most, "synthetic_mode": chosen["synthetic"]}
    twin, found = (
        rejection.verify_drafts(**given, sampling_metadata=metadata, backend=backend) for backend in ("torch", "triton")
    )
    assert torch.equal(found, twin)


SAMPLING: dict[str, Sequence[Any]] = {  # Any: as above
    "vocab_size": (1, 2, 31, 4096, 4097, 9001),
    "filters": ((), ("min_p",), ("top_k", "top_p"), ("top_k", "top_p", "min_p")),
    "greedy": (0, 3, 12),
    "dtype": FLOATS,
    "row": ("normal", "ties", "masked", "invalid", "sloped"),  # the last one has tiles of different maxima
}


@pytest.mark.parametrize("chosen", covering(SAMPLING, 3), ids=lambda chosen: str(chosen["vocab_size"]))
def test_kernels_of_sampling_do_what_the_twin_does(chosen: Chosen) -> None:
    size, noise = chosen["vocab_size"], torch.Generator().manual_seed(chosen["vocab_size"])
    logits = torch.randn(12, size, generator=noise) * 3
    logits = logits.clamp(max=3).round() if chosen["row"] == "ties" else logits  # the largest in every tile
    if chosen["row"] == "masked":
        logits = logits.masked_fill(torch.rand(12, size, generator=noise) < 0.7, -torch.inf)
    if chosen["row"] == "invalid":
        logits[range(0, 12, 4), torch.arange(3) % size] = torch.tensor([torch.nan, torch.inf, -torch.inf])
        logits[3] = -torch.inf
    if chosen["row"] == "sloped":
        logits = logits / 10 - (torch.arange(size) >= 4096).float()
    temperature = torch.rand(12, generator=noise) * 2 + 0.3
    temperature[: chosen["greedy"]] = 0
    of_filters = {
        "min_p": torch.rand(12, generator=noise) * 0.3,
        "top_k": torch.randint(1, size + 1, (12,), generator=noise).int(),
        "top_p": torch.rand(12, generator=noise) * 0.9 + 0.1,
    }
    given = {name: of_filters[name].to(DEVICE) for name in chosen["filters"]}
    parameters = sampling.SamplingParameters(temperature.to(DEVICE), **given)
    counters = (torch.randint(-(2**62), 2**62, (12,), generator=noise).to(DEVICE) for _ in range(2))
    arguments = logits.to(DEVICE, chosen["dtype"]), parameters, sampling.CounterNoise(*counters)
    twin, found = (sampling.sample(*arguments, backend=backend) for backend in ("torch", "triton"))
    assert torch.equal(found, twin)


LOGPROBS: dict[str, Sequence[Any]] = {  # Any: as above
    "vocab_size": (1, 40, 4096, 17_000),  # one strip, a whole tile, two strips
    "number": (0, 1, 5, 64, -1),
    "normalise": (False, True),
    "dtype": FLOATS,
    "row": ("normal", "ties", "masked"),
}


@pytest.mark.parametrize("chosen", covering(LOGPROBS), ids=lambda chosen: str(chosen["vocab_size"]))
def test_kernels_of_logprobs_do_what_the_twin_does(chosen: Chosen) -> None:
    size, noise = chosen["vocab_size"], torch.Generator().manual_seed(3)
    logits = torch.randn(5, size, generator=noise) * 3
    logits = logits.round() if chosen["row"] == "ties" else logits
    if chosen["row"] == "masked":
        logits = logits.masked_fill(torch.rand(5, size, generator=noise) < 0.5, -torch.inf)
    tokens = torch.randint(size, (5,), generator=noise)
    tokens[4], number = -1, min(chosen["number"], size)
    given = logits.to(DEVICE, chosen["dtype"]), tokens.to(DEVICE), number
    twin, found = (
        logprobs.top_logprobs(*given, normalise=chosen["normalise"], backend=backend) for backend in ("torch", "triton")
    )
    assert torch.equal(found.logprob_token_ids, twin.logprob_token_ids)
    assert torch.equal(found.ranks, twin.ranks)
    torch.testing.assert_close(found.logprobs, twin.logprobs, rtol=1e-5, atol=1e-5, equal_nan=True)
