"""Our rejection sampler: both backends against each other, against the real vLLM 0.22.0, and each named deviation."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

from fairdraw.sampler_impl import _rejection_kernels as kernels
from fairdraw.sampler_impl import rejection
from fairdraw.sampler_impl._checks import VerifyStep

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BACKENDS: tuple[rejection.BackendName, ...] = ("torch", "triton")
VOCAB_SIZES = (1, 2, 31, 1025, 8193)
UPSTREAM_VERSION = "0.22.0"


@dataclass(frozen=True)
class Metadata:
    all_greedy: bool = False
    all_random: bool = False
    temperature: Tensor | None = None  # [batch_size] float32
    generators: dict[int, torch.Generator] = field(default_factory=dict)


@dataclass(frozen=True)
class Call:
    """Positional arguments of `rejection_sample`, and explicit noise for `verify_drafts`."""

    draft_token_ids: Tensor  # [num_tokens] int32
    num_draft_tokens: list[int]  # [batch_size]
    max_spec_len: int
    cu_num_draft_tokens: Tensor  # [batch_size] int32
    draft_probs: Tensor | None  # [num_tokens, vocab_size] float32
    target_logits: Tensor  # [num_tokens, vocab_size] float32
    bonus_token_ids: Tensor  # [batch_size, 1] int32
    metadata: Metadata
    synthetic_rates: Tensor | None  # [max_spec_len] float32
    uniforms: Tensor | None  # [num_tokens] float64
    exponentials: Tensor | None  # [batch_size, vocab_size] float32

    def arguments(self) -> tuple[Any, ...]:  # Any: handed to a function that is itself under test
        return (
            self.draft_token_ids,
            self.num_draft_tokens,
            self.max_spec_len,
            self.cu_num_draft_tokens,
            self.draft_probs,
            self.target_logits,
            self.bonus_token_ids,
            self.metadata,
            self.synthetic_rates is not None,
            self.synthetic_rates,
        )

    def verify(self, backend: rejection.BackendName, validate: bool = False) -> Tensor:
        return rejection.verify_drafts(
            *self.arguments(),
            uniforms=self.uniforms,
            exponentials=self.exponentials,
            backend=backend,
            validate=validate,
        ).cpu()

    def both(self) -> list[list[int]]:
        """Output rows, after checking that the backends agree on them."""
        outputs = [self.verify(backend) for backend in BACKENDS]
        torch.testing.assert_close(*outputs, rtol=0, atol=0)
        return outputs[0].tolist()


def make_call(
    num_draft_tokens: list[int],
    vocab_size: int,
    seed: int = 0,
    *,
    dense: bool = True,
    kind: str = "random",
    synthetic: bool = False,
) -> Call:
    """A plausible batch: drafts are drawn from the draft law, which is near the target law."""
    noise = torch.Generator().manual_seed(seed)
    batch_size, num_tokens = len(num_draft_tokens), sum(num_draft_tokens)
    max_spec_len = max(num_draft_tokens, default=0)
    logits = torch.randn(num_tokens, vocab_size, generator=noise)
    draft_probs = (logits + torch.randn(num_tokens, vocab_size, generator=noise)).softmax(-1)
    drafts = draft_probs.multinomial(1, generator=noise).squeeze(-1) if num_tokens else torch.zeros(0)
    random = {"random": torch.ones(batch_size), "greedy": torch.zeros(batch_size)}
    temperature = random.get(kind, torch.arange(batch_size).remainder(2).float())
    if kind != "random":
        drafts = torch.where(torch.rand(num_tokens, generator=noise) < 0.7, logits.argmax(-1), drafts)
    return Call(
        draft_token_ids=drafts.int().to(DEVICE),
        num_draft_tokens=num_draft_tokens,
        max_spec_len=max_spec_len,
        cu_num_draft_tokens=torch.tensor(list(accumulate(num_draft_tokens)), dtype=torch.int32, device=DEVICE),
        draft_probs=draft_probs.to(DEVICE) if dense else None,
        target_logits=logits.to(DEVICE),
        bonus_token_ids=torch.randint(vocab_size, (batch_size, 1), generator=noise, dtype=torch.int32).to(DEVICE),
        metadata=Metadata(kind == "greedy", kind == "random", temperature.to(DEVICE)),
        synthetic_rates=torch.linspace(0.9, 0.2, max_spec_len).to(DEVICE) if synthetic else None,
        uniforms=torch.rand(num_tokens, generator=noise, dtype=torch.float64).to(DEVICE),
        exponentials=torch.empty(batch_size, vocab_size).exponential_(generator=noise).to(DEVICE),
    )


def one_request(
    target: list[float], draft: list[float] | None, draft_token_id: int, uniform: float, **changes: Any
) -> Call:
    """One random request with one draft token, from probabilities; exponentials are all 1."""
    vocab_size = len(target)
    call = Call(
        draft_token_ids=torch.tensor([draft_token_id], dtype=torch.int32, device=DEVICE),
        num_draft_tokens=[1],
        max_spec_len=1,
        cu_num_draft_tokens=torch.tensor([1], dtype=torch.int32, device=DEVICE),
        draft_probs=None if draft is None else torch.tensor([draft], device=DEVICE),
        target_logits=torch.tensor([target], device=DEVICE).log(),
        bonus_token_ids=torch.tensor([[vocab_size - 1]], dtype=torch.int32, device=DEVICE),
        metadata=Metadata(all_random=True, temperature=torch.ones(1, device=DEVICE)),
        synthetic_rates=None,
        uniforms=torch.tensor([uniform], dtype=torch.float64, device=DEVICE),
        exponentials=torch.ones(1, vocab_size, device=DEVICE),
    )
    return replace(call, **changes)


@pytest.fixture(scope="session")
def upstream() -> ModuleType:
    """The real `vllm.v1.sample.rejection_sampler`."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import vllm
            from vllm.v1.sample import rejection_sampler
    except ImportError as error:
        pytest.skip(f"vLLM {UPSTREAM_VERSION} is not importable: {error}")
    if vllm.__version__ != UPSTREAM_VERSION:
        pytest.skip(f"vLLM {vllm.__version__} is not {UPSTREAM_VERSION}, which ours equals bit for bit")
    return rejection_sampler


def upstream_with_noise(request: pytest.FixtureRequest, call: Call) -> list[list[int]]:
    """Upstream's output for explicit noise, which it has no arguments for; skips if there is no upstream."""
    upstream = request.getfixturevalue("upstream")
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the interpreter's NumPy, on 0 * inf
        patch.setattr(upstream, "generate_uniform_probs", lambda *_: call.uniforms)
        patch.setattr(Tensor, "exponential_", lambda out, **_: out.copy_(call.exponentials))
        output: Tensor = upstream.rejection_sample(*call.arguments())
    return output.tolist()


@pytest.mark.parametrize("vocab_size", VOCAB_SIZES)
@pytest.mark.parametrize("kind", ["random", "mixed", "greedy"])
@pytest.mark.parametrize("dense", [True, False], ids=["dense", "one-hot"])
def test_triton_equals_torch(vocab_size: int, kind: str, dense: bool) -> None:
    call = make_call([3, 0, 5, 1], vocab_size, 17, dense=dense, kind=kind)
    call.both()
    withdrawn = call.draft_token_ids.clone()
    withdrawn[[2, 4]] = -1
    withdrawn[8] = vocab_size
    replace(call, draft_token_ids=withdrawn).both()


@pytest.mark.parametrize("kind", ["random", "mixed", "greedy"])
@pytest.mark.parametrize("dense", [True, False], ids=["dense", "one-hot"])
def test_triton_equals_torch_in_synthetic_mode(kind: str, dense: bool) -> None:
    call = make_call([3, 0, 5, 1], 31, 3, dense=dense, kind=kind, synthetic=True)
    call.both()
    replace(call, draft_token_ids=torch.full_like(call.draft_token_ids, -1)).both()


@pytest.mark.parametrize("vocab_size", VOCAB_SIZES)
@pytest.mark.parametrize("kind", ["random", "mixed", "greedy"])
@pytest.mark.parametrize("dense", [True, False], ids=["dense", "one-hot"])
@pytest.mark.parametrize("synthetic", [False, True], ids=["ratio", "synthetic"])
def test_tokens_and_generator_states_equal_upstream(
    upstream: ModuleType, vocab_size: int, kind: str, dense: bool, synthetic: bool
) -> None:
    call = make_call([3, 0, 2, 4], vocab_size, 5, dense=dense, kind=kind, synthetic=synthetic)

    def run(function: Any, **options: Any) -> list[Any]:
        generators = {req_idx: torch.Generator(DEVICE).manual_seed(req_idx) for req_idx in (3, 1, 2)}
        arguments = replace(call, metadata=replace(call.metadata, generators=generators)).arguments()
        torch.manual_seed(11)
        output = function(*arguments, **options).tolist()
        return [output, torch.rand(1, device=DEVICE).item(), [g.get_state().tolist() for g in generators.values()]]

    expected = run(upstream.rejection_sample)
    for backend in BACKENDS:
        assert run(rejection.rejection_sample, backend=backend) == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_explicit_noise_equals_upstream(request: pytest.FixtureRequest, dtype: torch.dtype) -> None:
    call = make_call([2, 3, 1], 1025, 8, kind="mixed")
    call = replace(call, target_logits=call.target_logits.to(dtype))
    assert call.both() == upstream_with_noise(request, call)


def test_all_greedy_draws_nothing() -> None:
    call = make_call([2, 1], 7, kind="greedy")
    before = torch.get_rng_state()
    output = rejection.rejection_sample(*call.arguments(), backend="torch")
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(output.cpu(), replace(call, uniforms=None, exponentials=None).verify("torch"))


# Named deviations: the table at the top of rejection.py, in its order.


@pytest.mark.parametrize("draft", [[0.9, 0.05, 0.05], None], ids=["dense", "one-hot"])
def test_placeholder_draft_is_never_accepted(request: pytest.FixtureRequest, draft: list[float] | None) -> None:
    # Two tokens, so that the entry before row 1, which upstream reads, is inside the tensor.
    first = one_request([0.2, 0.2, 0.6], draft, 2, 0.0)
    call = replace(
        first,
        draft_token_ids=torch.tensor([2, -1], dtype=torch.int32, device=DEVICE),
        num_draft_tokens=[2],
        max_spec_len=2,
        cu_num_draft_tokens=torch.tensor([2], dtype=torch.int32, device=DEVICE),
        draft_probs=None if first.draft_probs is None else first.draft_probs.repeat(2, 1),
        target_logits=first.target_logits.repeat(2, 1),
        uniforms=torch.zeros(2, dtype=torch.float64, device=DEVICE),
    )
    assert call.both() == [[2, 2, -1]]
    assert upstream_with_noise(request, call) == [[2, -1, 2]]


def test_unknown_draft_is_never_accepted(request: pytest.FixtureRequest) -> None:
    call = make_call([2], 3)
    call = replace(
        call,
        draft_token_ids=torch.tensor([3, 0], dtype=torch.int32, device=DEVICE),
        draft_probs=None,
        uniforms=torch.zeros(2, dtype=torch.float64, device=DEVICE),
    )
    assert 0 <= call.both()[0][0] < 3
    assert upstream_with_noise(request, call)[0][0] == 3


@pytest.mark.parametrize("kind", ["random", "greedy"])
def test_placeholder_draft_is_never_accepted_in_synthetic_mode(request: pytest.FixtureRequest, kind: str) -> None:
    call = make_call([1], 5, kind=kind, synthetic=True)
    call = replace(
        call,
        draft_token_ids=torch.tensor([-1], dtype=torch.int32, device=DEVICE),
        synthetic_rates=torch.ones(1, device=DEVICE),
    )
    assert 0 <= call.both()[0][0] < 5
    assert upstream_with_noise(request, call)[0][0] == -1


def test_zero_uniform_accepts_no_impossible_token(request: pytest.FixtureRequest) -> None:
    call = one_request([0.0, 0.5, 0.5], [0.5, 0.25, 0.25], 0, 0.0)
    assert call.both() == [[1, -1]]
    assert upstream_with_noise(request, call) == [[0, 2]]


def test_empty_residual_races_the_target_row(request: pytest.FixtureRequest) -> None:
    # The draft's sum is off, and its probability exceeds the target's everywhere.
    call = one_request([0.0, 0.3, 0.7], [0.1, 0.4, 0.9], 1, 0.9)
    assert call.both() == [[2, -1]]
    assert upstream_with_noise(request, call) == [[0, -1]]


def test_score_that_underflows_beats_entries_without_weight(request: pytest.FixtureRequest) -> None:
    exponentials = torch.tensor([[1.0, 1.0, torch.inf]], device=DEVICE)
    call = one_request([0.1, 0.1, 0.8], [0.2, 0.6, 0.2], 1, 0.9, exponentials=exponentials)
    assert call.both() == [[2, -1]]
    assert upstream_with_noise(request, call) == [[0, -1]]


def test_infinite_reciprocal_gives_no_weight(request: pytest.FixtureRequest) -> None:
    exponentials = torch.tensor([[1e-40, 1.0, 1.0]], device=DEVICE)
    call = one_request([0.1, 0.1, 0.8], [0.2, 0.6, 0.2], 1, 0.9, exponentials=exponentials)
    assert call.both() == [[2, -1]]
    if DEVICE.type == "cpu":  # compiled, it depends on the order of the reduction
        assert upstream_with_noise(request, call) == [[0, -1]]


@pytest.mark.parametrize(
    "row", [[torch.nan] * 3, [-torch.inf] * 3, [0.0, torch.nan, 1.0]], ids=["nan", "empty", "some"]
)
@pytest.mark.parametrize("dense", [True, False], ids=["dense", "one-hot"])
def test_row_without_probabilities_gives_token_0(row: list[float], dense: bool) -> None:
    logits = torch.tensor([row], device=DEVICE)
    call = one_request([0.2, 0.3, 0.5], [0.2, 0.3, 0.5] if dense else None, 1, 0.0, target_logits=logits)
    assert call.both() == [[0, -1]]


@pytest.mark.skipif(DEVICE.type != "cpu", reason="the sparse file is on the host")
def test_row_offsets_pass_2_to_the_31(tmp_path: Path) -> None:
    vocab_size, row = 8192, 2**18  # row * vocab_size == 2**31
    # A sparse file: 16 GiB of addresses, a few pages of memory. A wrapped offset lands in its first half, on zeros.
    file = torch.from_file(str(tmp_path / "probs"), shared=True, size=2**31 + (row + 1) * vocab_size)
    target_probs = file[2**31 :].view(row + 1, vocab_size)
    target_probs[row, [77, 99]] = torch.tensor([0.75, 0.25])
    step = VerifyStep(
        draft_token_ids=torch.full((row + 1,), 77, dtype=torch.int32),
        num_draft_tokens=[row, 1],
        max_spec_len=1,
        cu_num_draft_tokens=torch.tensor([row, row + 1], dtype=torch.int32),
        draft_probs=None,
        target_logits=torch.empty(0, vocab_size),
        bonus_token_ids=torch.zeros(2, 1, dtype=torch.int32),
        has_greedy=True,
        has_random=True,
        is_greedy=torch.tensor([True, False]),
        synthetic_rates=None,
    )
    for uniform, expected in ((0.7, [77, 0]), (0.8, [99, -1])):
        output = torch.full((2, 2), -1, dtype=torch.int32)
        uniforms = torch.full((row + 1,), uniform, dtype=torch.float64)
        recover_rows = kernels.accept(step, target_probs, uniforms, output)
        kernels.recover(step, target_probs, torch.ones(2, vocab_size), recover_rows, output)
        assert output.tolist() == [[-1, -1], expected]


# Exactness.


@pytest.mark.parametrize("dense", [True, False], ids=["dense", "one-hot"])
def test_tie_goes_to_the_lowest_id_across_tiles(dense: bool) -> None:
    vocab_size = 2 * kernels.MAX_TILE + 5
    call = make_call([1], vocab_size, dense=dense)
    target = torch.full((1, vocab_size), -torch.inf, device=DEVICE)
    target[0, [3, kernels.MAX_TILE - 1, kernels.MAX_TILE, vocab_size - 1]] = 0.0
    call = replace(
        call,
        draft_token_ids=torch.tensor([3], dtype=torch.int32, device=DEVICE),
        draft_probs=torch.zeros_like(target).scatter_(1, torch.tensor([[3]], device=DEVICE), 1.0) if dense else None,
        target_logits=target,
        uniforms=torch.tensor([0.5], dtype=torch.float64, device=DEVICE),
        exponentials=torch.ones(1, vocab_size, device=DEVICE),
    )
    assert call.both() == [[kernels.MAX_TILE - 1, -1]]


@pytest.mark.parametrize(("ulps", "accepted"), [(-1, True), (0, True), (1, False)])
def test_draft_is_accepted_up_to_the_rounded_ratio(ulps: int, accepted: bool) -> None:
    call = one_request([0.1, 0.9], [0.3, 0.7], 0, 0.0)
    ratio = (call.target_logits.softmax(-1)[0, 0] / torch.tensor(0.3, device=DEVICE)).double()
    direction = torch.full_like(ratio, float(ulps))
    uniform = ratio if ulps == 0 else ratio.nextafter(ratio + direction)
    assert replace(call, uniforms=uniform.reshape(1)).both() == [[0, 1] if accepted else [1, -1]]


def test_greedy_takes_the_lowest_id_on_ties_of_logits() -> None:
    call = make_call([3], 3, kind="greedy")
    # In the first row a softmax would round both to 0.5.
    logits = torch.tensor([[-torch.inf, 0.0, 1e-9], [0.0, 1.0, 1.0], [2.0, 2.0, 0.0]], device=DEVICE)
    ids = torch.tensor([2, 1, 1], dtype=torch.int32, device=DEVICE)
    call = replace(call, target_logits=logits, draft_token_ids=ids, uniforms=None, exponentials=None)
    assert call.both() == [[2, 1, 0, -1]]


def test_longest_drafts_are_verified_to_the_end() -> None:
    call = make_call([128, 127], 3)
    uniforms = torch.full((255,), 1 - 2**-53, dtype=torch.float64, device=DEVICE)
    call = replace(call, draft_probs=call.target_logits.softmax(-1), uniforms=uniforms)
    drafts, bonus = call.draft_token_ids.tolist(), call.bonus_token_ids[:, 0].tolist()
    assert call.both() == [[*drafts[:128], bonus[0]], [*drafts[128:], bonus[1], -1]]


@pytest.mark.parametrize("kind", ["random", "mixed", "greedy"])
@pytest.mark.parametrize("num_draft_tokens", [[0, 0], []], ids=["no drafts", "no requests"])
def test_batch_without_drafts_yields_bonus_tokens(kind: str, num_draft_tokens: list[int]) -> None:
    call = replace(make_call(num_draft_tokens, 5, kind=kind), max_spec_len=2)
    outputs = [call.verify(backend) for backend in BACKENDS]
    assert [output.shape for output in outputs] == [(len(num_draft_tokens), 3)] * 2
    expected = [[token_id, -1, -1] for token_id in call.bonus_token_ids[:, 0].tolist()]
    assert [output.tolist() for output in outputs] == [expected] * 2


@pytest.mark.parametrize("backend", BACKENDS)
def test_strides_change_nothing_and_inputs_are_left_alone(backend: rejection.BackendName) -> None:
    call = make_call([2, 3, 4, 1, 3, 3], 33, kind="mixed")
    tensors = {name: value for name, value in vars(call).items() if isinstance(value, Tensor)}
    strided: dict[str, Any] = {name: value.repeat_interleave(2, dim=-1)[..., ::2] for name, value in tensors.items()}
    strided["bonus_token_ids"] = strided["bonus_token_ids"].squeeze(-1)
    copies = {name: value.clone() for name, value in strided.items()}
    assert torch.equal(replace(call, **strided).verify(backend, validate=True), call.verify(backend))
    assert all(torch.equal(strided[name], copies[name]) for name in copies)
