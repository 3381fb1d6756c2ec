"""Recipes print as code, are stored as JSON, build what they describe, and respect a sampler's capabilities."""

import hashlib
import json
import sys
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from helpers import drawn, python, whole
from hypothesis import Phase, given, settings
from hypothesis.strategies import SearchStrategy

from fairdraw import strategies as fst
from fairdraw._run.loading import all_checks
from fairdraw.contracts import Capabilities, Capability, ExplicitNoise, Noise, SeededNoise, SpecDecodeBatch
from fairdraw.contracts._rejection import check_batch, check_noise
from fairdraw.properties._traces import TraceCheck
from fairdraw.strategies import DraftRecipe, RejectionCase, RequestRecipe, rejection_cases

STEADY = settings(max_examples=100)
DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
NAMES = {**{name: getattr(fst, name) for name in fst.__all__}, "SeededNoise": SeededNoise}
EVERYTHING = rejection_cases(targets=(*fst.TARGET_KINDS, *fst.INVALID_KINDS), layouts=fst.LAYOUTS)

T = TypeVar("T")
_RANGE = "between max(num_draft_tokens)=2 and 128. Use slack=0."


def bits(tensor: torch.Tensor) -> bytes:
    return (
        bytes(tensor.reshape(-1).clone(memory_format=torch.contiguous_format).view(torch.uint8).tolist())
        if tensor.numel()
        else b""
    )


def digest(batch: SpecDecodeBatch, noise: Noise) -> str:
    """Of everything that a sampler is given."""
    seen = hashlib.blake2b(repr((batch.num_draft_tokens, batch.max_spec_len)).encode(), digest_size=8)
    for name, tensor in batch.tensors().items():
        seen.update(repr((name, tensor.dtype, tuple(tensor.shape), tensor.stride())).encode() + bits(tensor))
    if isinstance(noise, ExplicitNoise):
        seen.update(bits(noise.uniforms) + bits(noise.exponentials))
    else:
        seen.update(repr(noise).encode())
    return seen.hexdigest()


# -- recipes


@given(EVERYTHING)
@STEADY
def test_case_batch_and_noise_print_as_code_that_builds_them(case: RejectionCase) -> None:
    batch, noise = eval(repr(case.batch()), NAMES), eval(repr(case.noise()), NAMES)
    assert eval(repr(case), NAMES) == case
    assert digest(batch, noise) == digest(case.batch(), case.noise())


@given(EVERYTHING)
@STEADY
def test_case_survives_json(case: RejectionCase) -> None:
    assert RejectionCase.from_json(json.loads(json.dumps(case.to_json()))) == case


@given(EVERYTHING)
@STEADY
def test_case_builds_the_same_again_after_its_tensors_were_written(case: RejectionCase) -> None:
    batch, noise = case.batch(), case.noise()
    before = digest(batch, noise)
    scribbled = [*batch.tensors().values()]
    scribbled += [noise.uniforms, noise.exponentials] if isinstance(noise, ExplicitNoise) else []
    for tensor in scribbled:
        tensor.fill_(0)
    assert digest(case.batch(), case.noise()) == before


@pytest.mark.parametrize("device", DEVICES)
def test_every_device_has_its_own_batch_with_its_own_softmax(device: str) -> None:
    drafts = tuple(DraftRecipe("normal", kind, "drawn", "ratio") for kind in ("same", "dominating", "independent"))
    case = RejectionCase(1025, (RequestRecipe(drafts),), dense=True)
    batch, noise = case.batch(device), case.noise(device)
    check_batch(batch)
    check_noise(batch, noise)
    assert {tensor.device.type for tensor in batch.tensors().values()} == {device}
    assert torch.equal(batch.draft_probs[0], batch.target_probs()[0])
    assert (batch.draft_probs[1] > batch.target_probs()[1]).all()
    again = eval(repr(batch), NAMES), eval(repr(noise), NAMES)
    assert digest(again[0].to("cpu"), again[1]) == digest(batch.to("cpu"), noise)


def test_default_fields_are_not_printed() -> None:
    case = RejectionCase(3, (RequestRecipe((DraftRecipe(token="last"),)),))
    assert repr(case) == "RejectionCase(vocab_size=3, requests=(RequestRecipe(drafts=(DraftRecipe(token='last'),)),))"
    assert repr(case.batch()) == f"{case!r}.batch()"
    assert repr(case.noise()) == f"{case!r}.noise()"


@pytest.mark.parametrize(
    ("strategy", "name"), [(rejection_cases(), "case"), (fst.spec_decode_batches(), "batch")], ids=["recipe", "batch"]
)
def test_failing_example_prints_as_code(strategy: SearchStrategy[object], name: str) -> None:
    seen: list[object] = []

    def fails(**drawn: object) -> None:
        seen.append(drawn[name])
        raise AssertionError

    with pytest.raises(AssertionError) as caught:
        settings(STEADY, phases=[Phase.generate, Phase.shrink])(given(**{name: strategy})(fails))()
    printed = "\n".join(caught.value.__notes__)
    (value,) = eval(printed.partition(f"{name}=")[2].rpartition("\n)")[0], NAMES)
    assert repr(value) == repr(seen[-1])


def test_numbers_of_another_integer_type_make_the_same_case() -> None:
    case = RejectionCase(np.int64(3), (RequestRecipe(),), seed=np.int64(5))  # type: ignore[arg-type]
    assert json.dumps(case.to_json()) == json.dumps(RejectionCase(3, (RequestRecipe(),), seed=5).to_json())


def test_longest_drafts_leave_no_room_for_slack() -> None:
    cases = drawn(rejection_cases(min_drafts=127, max_drafts=128, max_requests=1, max_vocab_size=2), 20)
    assert {case.max_spec_len for case in cases} == {127, 128}


@pytest.mark.parametrize(
    ("recipe", "field", "kinds"),
    [
        (DraftRecipe, "target", (*fst.TARGET_KINDS, *fst.INVALID_KINDS)),
        (DraftRecipe, "draft", fst.DRAFT_KINDS),
        (DraftRecipe, "token", fst.TOKEN_KINDS),
        (DraftRecipe, "uniform", fst.UNIFORM_KINDS),
        (RequestRecipe, "exponentials", fst.EXPONENTIAL_KINDS),
        (partial(RejectionCase, 3, (RequestRecipe(),)), "dtype", fst.DTYPES),
        (partial(RejectionCase, 3, (RequestRecipe(),)), "layout", fst.LAYOUTS),
    ],
)
def test_recipe_refuses_an_unknown_word(recipe: Any, field: str, kinds: tuple[str, ...]) -> None:  # Any: a type
    name = getattr(recipe, "func", recipe).__name__
    message = f"{name}: {field}='odd', but it must be one of: {', '.join(kinds)}. Correct the word."
    with pytest.raises(ValueError, match=whole(message)):
        recipe(**{field: "odd"})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocab_size": 0}, "RejectionCase: vocab_size=0, but it must be at least 1. Use 1."),
        ({"requests": ()}, "RejectionCase: requests=(), but there must be one. Use (RequestRecipe(),)."),
        *(
            ({"slack": slack}, f"RejectionCase: slack={slack}, but max_spec_len={2 + slack} must lie {_RANGE}")
            for slack in (-1, 127)
        ),
    ],
    ids=["no vocabulary", "no requests", "negative slack", "too much slack"],
)
def test_case_refuses_what_no_batch_could_be(changes: dict[str, Any], message: str) -> None:  # Any: fields
    case = RejectionCase(3, (RequestRecipe((DraftRecipe(), DraftRecipe())),))
    with pytest.raises(ValueError, match=whole(message)):
        case.replace(**changes)


@pytest.mark.parametrize("data", [{}, {"vocab_size": 3, "requests": [], "colour": 1}, {"vocab_size": "3"}])
def test_stored_case_with_wrong_fields_is_refused(data: dict[str, Any]) -> None:  # Any: JSON
    with pytest.raises(TypeError):
        RejectionCase.from_json(data)


@pytest.mark.parametrize("contract", ["sampling", "logits_plan", "logprobs", "grammar", "filters"])
def test_cases_of_other_contracts_print_as_code_and_survive_json(contract: str) -> None:
    for check in all_checks("properties", contract):
        # The cases of traces follow from the profile: test_traces.
        for case in [] if isinstance(check, TraceCheck) else drawn(check.cases(Capabilities()), 3):
            assert eval(repr(case), dict(vars(sys.modules[type(case).__module__]))) == case
            assert type(case).from_json(json.loads(json.dumps(case.to_json()))) == case


_DIGESTS = """
import sys
sys.path[:0] = {path!r}
from helpers import drawn
from test_strategies_cases import EVERYTHING, digest
print([digest(case.batch(), case.noise()) for case in drawn(EVERYTHING, 25)])
"""


def test_cases_do_not_depend_on_the_process_or_its_hash_seed() -> None:
    program = _DIGESTS.format(path=[*map(str, Path(__file__).parents[:2])])
    printed = python(program, PYTHONHASHSEED="12345")
    assert printed.strip() == repr([digest(case.batch(), case.noise()) for case in drawn(EVERYTHING, 25)])


def closing(*capabilities: Capability) -> Capabilities:
    return Capabilities(dict.fromkeys(capabilities, "not ours"))


def drafts_of(case: RejectionCase) -> list[DraftRecipe]:
    return [draft for request in case.requests for draft in request.drafts]


WITHIN: dict[Capability, Any] = {  # Any: a predicate of a case
    Capability.EXPLICIT_NOISE: lambda case: not case.explicit,
    Capability.SEEDED_NOISE: lambda case: case.explicit,
    Capability.REQUEST_SEEDS: lambda case: not any(r.request_seed for r in case.requests),
    Capability.DENSE_DRAFTS: lambda case: not case.dense,
    Capability.ONE_HOT_DRAFTS: lambda case: case.dense,
    Capability.GREEDY: lambda case: not any(r.greedy for r in case.requests),
    Capability.RAGGED: lambda case: len(set(case.num_draft_tokens)) == 1 and case.slack == 0 < case.max_spec_len,
    Capability.PLACEHOLDER_DRAFTS: lambda case: all(d.token != "placeholder" for d in drafts_of(case)),
    Capability.HALF_LOGITS: lambda case: case.dtype == "float32",
    Capability.STRIDED_INPUTS: lambda case: case.layout == "contiguous",
    Capability.NAN_LOGITS: lambda case: all(d.target != "nan" for d in drafts_of(case)),
    Capability.EMPTY_ROWS: lambda case: all(d.target != "empty" for d in drafts_of(case)),
    Capability.LARGE_VOCAB: lambda case: case.vocab_size <= 1025,
    Capability.LONG_DRAFTS: lambda case: case.max_spec_len <= 9,
}
ASK = "Ask for something that is open, or skip this sampler."
WIDEST: dict[str, Any] = {  # Any: arguments of rejection_cases
    "targets": (*fst.TARGET_KINDS, *fst.INVALID_KINDS),
    "layouts": fst.LAYOUTS,
    "max_vocab_size": 151936,
    "max_drafts": 12,
    "max_requests": 2,
}


@cache
def widest_cases() -> list[RejectionCase]:
    return drawn(rejection_cases(**WIDEST), 300)


# -- capabilities


@pytest.mark.parametrize("capability", WITHIN)
def test_closed_capability_is_never_drawn_and_an_open_one_is(capability: Capability) -> None:
    is_within = WITHIN[capability]
    assert all(map(is_within, drawn(rejection_cases(closing(capability), **WIDEST), 40)))
    assert not all(map(is_within, widest_cases()))


def test_sampler_that_takes_no_noise_is_given_seeds() -> None:
    can = closing(Capability.EXPLICIT_NOISE, Capability.SEEDED_NOISE)
    assert not any(case.explicit for case in drawn(rejection_cases(can), 20))


def test_request_seeds_imply_seeded_noise() -> None:
    cases = drawn(rejection_cases(request_seed=True), 20)
    assert all(not case.explicit and all(r.request_seed for r in case.requests) for case in cases)


@pytest.mark.parametrize(
    ("unsupported", "options", "remedy"),
    [
        ("dense-drafts", {"dense": True}, ASK),
        ("one-hot-drafts", {"dense": False}, ASK),
        ("greedy", {"greedy": True}, ASK),
        ("explicit-noise", {"explicit": True}, ASK),
        ("seeded-noise", {"explicit": False}, ASK),
        ("request-seeds", {"request_seed": True}, ASK),
        ("synthetic-rates", {"synthetic": True}, ASK),
        ("placeholder-drafts", {"tokens": ("placeholder",)}, "Name a kind that is open."),
        ("nan-logits", {"targets": ("nan",)}, "Name a kind that is open."),
        ("half-logits", {"dtypes": ("float16",)}, "Name a kind that is open."),
        ("strided-inputs", {"layouts": ("sliced",)}, "Name a kind that is open."),
        ("large-vocab", {"min_vocab_size": 2000, "max_vocab_size": 2001}, "Use at most 1025."),
        ("long-drafts", {"min_drafts": 9, "max_drafts": 9}, "Use at most 8."),
        ("ragged", {"max_drafts": 0}, "Use at least 1."),
    ],
)
def test_unsupported_option_is_refused_with_the_reason(unsupported: str, options: dict[str, Any], remedy: str) -> None:
    name, value = next(iter(options.items()))
    expected = f"rejection_cases: {name}={value!r}, but {unsupported} is unsupported: not ours. {remedy}"
    with pytest.raises(ValueError, match=whole(expected)):
        drawn(rejection_cases(closing(Capability(unsupported)), **options), 1)


def test_explicit_noise_with_request_seeds_is_refused() -> None:
    message = (
        "rejection_cases: explicit=True, request_seed=True, but only seeded noise has seeds. "
        "Use explicit=False or request_seed=None."
    )
    with pytest.raises(ValueError, match=whole(message)):
        drawn(rejection_cases(explicit=True, request_seed=True), 1)


def test_sampler_that_takes_no_drafts_at_all_is_refused() -> None:
    can = closing(Capability.DENSE_DRAFTS, Capability.ONE_HOT_DRAFTS)
    with pytest.raises(ValueError, match="dense=None, but one-hot-drafts is unsupported: not ours"):
        drawn(rejection_cases(can), 1)
