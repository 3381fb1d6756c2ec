"""Our penalties without a server: backends, what is noticed, refused and kept. Runs on a GPU as well.

The checks of the suite compare them with a recount and with vLLM for any event trace (`test_lifecycle.py`).
"""

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from fairdraw._core.seeds import derive_seed
from fairdraw._oracles.penalties import DividingPenaltiesOracle, PenalisedRow, PenaltiesOracle, PenaltyFactors
from fairdraw.adapters._runtime import quiet_imports
from fairdraw.contracts import AddedRow, RequestParams
from fairdraw.sampler_impl._shared.backend import BackendName
from fairdraw.sampler_impl.penalties import PaddedOutputs, Penalties

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
on_each_device = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_gpu)])
quick = settings(max_examples=50)
BACKENDS = [
    ("cpu", "torch"),
    pytest.param("cpu", "triton", marks=pytest.mark.skipif(torch.cuda.is_available(), reason="Triton compiles")),
    pytest.param("cuda", "torch", marks=needs_gpu),
    pytest.param("cuda", "triton", marks=needs_gpu),
]

FACTORS = PenaltyFactors(presence=0.5, frequency=-0.25, repetition=1.3)


def add(ours: Penalties, output: list[int], prompt: list[int] | None = None, row: int = 0) -> None:
    names = {f"{name}_penalty": value for name, value in vars(FACTORS).items()}
    ours.sync_batch(SimpleNamespace(removed=[], added=[(row, SimpleNamespace(**names), prompt, output)], moved=[]))


def columns(ours: Penalties, batch_size: int) -> tuple[Tensor, Tensor, Tensor]:
    values = (FACTORS.presence, FACTORS.frequency, FACTORS.repetition)
    presence, frequency, repetition = (torch.full((batch_size,), value, device=ours.device) for value in values)
    return presence, frequency, repetition


def assert_penalised_as_recounted(ours: Penalties, outputs: list[list[int]], drafts: list[list[int]]) -> None:
    """Bonus and draft rows of a batch of penalised requests without prompts."""
    divides = ours.device.type == "cuda" or ours._backend == "triton"
    oracle = DividingPenaltiesOracle() if divides else PenaltiesOracle()
    rows = [PenalisedRow([], output, FACTORS) for output in outputs]
    bonus = [oracle.bonus_row(row, ids) for row, ids in zip(rows, drafts, strict=True)]
    drafted = [seen for row, ids in zip(rows, drafts, strict=True) for seen in oracle.draft_rows(row, ids)]
    for expected, apply in ((bonus, ours.apply), (drafted, ours.apply_to_drafts)):
        rng = np.random.default_rng(derive_seed(outputs, drafts))
        logits = rng.standard_normal((len(expected), ours.vocab_size)).astype(np.float32)
        found = apply(torch.tensor(logits, device=ours.device), *columns(ours, len(outputs)), drafts)
        for row_logits, row, penalised in zip(logits, expected, found.cpu().numpy(), strict=True):
            assert np.array_equal(oracle.penalise(row_logits, row), penalised)


def assert_counts_as_recounted(ours: Penalties, output: list[int]) -> None:
    assert_penalised_as_recounted(ours, [output], [[]])


@pytest.mark.parametrize(("device", "backend"), BACKENDS)
@settings(quick, max_examples=30)
@given(
    outputs=st.lists(st.lists(st.integers(-1, 30), max_size=9), min_size=1, max_size=4),
    new=st.lists(st.integers(-1, 30), max_size=4),
    drafts=st.lists(st.lists(st.integers(-1, 30), max_size=5), min_size=4, max_size=4),
)
def test_every_row_sees_output_and_the_drafts_before_it(
    device: str, backend: BackendName, outputs: list[list[int]], new: list[int], drafts: list[list[int]]
) -> None:
    ours = Penalties(31, device, backend=backend)
    for row, output in enumerate(outputs):
        add(ours, output, row=row)
    for _ in range(2):
        ours.update(outputs)
        assert_penalised_as_recounted(ours, outputs, drafts[: len(outputs)])
        outputs[0] += new


@pytest.mark.parametrize(("device", "backend"), BACKENDS)
def test_wide_vocabulary_with_odd_logits_is_penalised_as_recounted(device: str, backend: BackendName) -> None:
    output, ours = [0, 5000, 5000, 9999, 9999, 9999], Penalties(10000, device, backend=backend)
    add(ours, output)
    ours.update([output])
    assert_penalised_as_recounted(ours, [output], [[9998, -1, 9998, 10000]])
    row, odd = PenalisedRow([], output, FACTORS), [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, -1e-40]
    for value in odd:
        found = ours.apply(torch.full((1, 10000), value, device=device), *columns(ours, 1)).cpu().numpy()
        expected = DividingPenaltiesOracle().penalise(np.full(10000, value, np.float32), row)
        assert np.array_equal(found[0], expected, equal_nan=True)


@quick
@given(
    ids=st.lists(st.integers(257, 300), min_size=1),
    cut=st.integers(1, 5),
    regrown=st.lists(st.integers(257, 300), min_size=5),
)
def test_cut_that_is_hidden_by_appends_is_noticed(ids: list[int], cut: int, regrown: list[int]) -> None:
    output, ours = np.array(ids).tolist(), Penalties(301)
    add(ours, output)
    ours.update([output])
    del output[-cut:]
    output += np.array(regrown).tolist()  # objects of their own, as those that an engine reads from a tensor
    ours.update([output])
    assert_counts_as_recounted(ours, output)


def test_audit_notices_any_id_that_was_changed_behind_our_back() -> None:
    output, ours = [1, 2, 3, 4], Penalties(5)
    add(ours, output)
    ours.update([output])
    assert ours.audit() == 0
    output[0] = 4
    assert ours.audit() == 1
    ours.update([output])
    assert_counts_as_recounted(ours, output)


@pytest.mark.parametrize("token_id", [-2, 6])
def test_id_outside_of_the_vocabulary_is_refused_and_everything_recounted(token_id: int) -> None:
    output, ours = [1, 1], Penalties(5)
    add(ours, output)
    ours.update([output])
    output.append(token_id)
    with pytest.raises(ValueError, match=f"output_token_ids has {token_id}"):
        ours.update([output])
    output[-1] = 5  # vocab_size is vLLM's pad id: it counts nothing
    ours.update([output])
    assert_counts_as_recounted(ours, output)


@pytest.mark.parametrize("token_id", [-1, 5])
def test_prompt_outside_of_the_vocabulary_is_refused_and_changes_nothing(token_id: int) -> None:
    ours = Penalties(5)
    add(ours, [1])
    with pytest.raises(ValueError, match=f"prompt_token_ids has {token_id}"):
        add(ours, [], [token_id], row=1)
    assert ours.nbytes == 4 * 5


REFUSED: dict[str, Callable[[Penalties, list[int]], object]] = {
    r"Penalties.update: output_token_ids\[0\] is not the list": lambda ours, output: ours.update([list(output)]),
    r"Penalties.update: len\(output_token_ids\)=0": lambda ours, _: ours.update([]),
    r"Penalties.apply: logits are \[2, 5\] on cpu": lambda ours, _: ours.apply(torch.zeros(2, 5), *columns(ours, 1)),
    r"Penalties.apply_to_drafts: len\(draft_token_ids\)=0": lambda ours, _: ours.apply_to_drafts(
        torch.zeros(1, 5), *columns(ours, 1), []
    ),
    "draft_token_ids has -7": lambda ours, _: ours.apply(torch.zeros(1, 5), *columns(ours, 1), [[-7]]),
    "vocab_size=0": lambda *_: Penalties(0),
    "backend='cuda', but it must be 'triton' or 'torch'": lambda *_: Penalties(5, backend="cuda"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("message", REFUSED)
def test_wrong_argument_is_refused(message: str) -> None:
    output, ours = [1], Penalties(5)
    add(ours, output)
    ours.update([output])
    with pytest.raises(ValueError, match=message):
        REFUSED[message](ours, output)


def test_memory_is_four_bytes_per_token_id_of_penalised_requests() -> None:
    ours, outputs = Penalties(1000), [[1] for _ in range(3)]
    assert ours.nbytes == 0
    for row, output in enumerate(outputs):
        add(ours, output, row=row)
        assert ours.nbytes == 4 * 1000 * (row + 1)
    ours.sync_batch(SimpleNamespace(removed=[0, 1, 2], added=[], moved=[]))
    assert ours.nbytes == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
def test_half_precision_is_rounded_after_each_penalty_as_upstream(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    with quiet_imports():
        upstream = pytest.importorskip("vllm.v1.sample.ops.penalties")
    monkeypatch.setattr(upstream, "is_pin_memory_available", lambda: False)
    output, ours = [0, 3, 3], Penalties(64)
    add(ours, output, [5, 6])
    ours.update([output])
    logits = torch.linspace(-9, 9, 64, dtype=dtype).view(1, 64)
    theirs = upstream.apply_all_penalties(logits.clone(), torch.tensor([[5, 6]]), *columns(ours, 1), [output])
    assert torch.equal(ours.apply(logits, *columns(ours, 1)), theirs)


def test_embedded_prompt_has_no_ids_where_upstream_penalises_an_earlier_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with quiet_imports():
        upstream = pytest.importorskip("vllm.v1.sample.ops.penalties")
        from vllm.v1.sample.sampler import Sampler

        from fairdraw_engines import _vllm_penalties
    monkeypatch.setattr(upstream, "is_pin_memory_available", lambda: False)
    batch = _vllm_penalties.input_batch(12, "cpu", _vllm_penalties.USUAL_SIZES)
    ours, logits = Penalties(12), torch.ones(1, 12)
    earlier, embedded = (
        _vllm_penalties._request_state(name, AddedRow(0, RequestParams(repetition_penalty=1.5), [3, 4], []))
        for name in ("earlier", "embedded")
    )
    batch.add_request(earlier)
    batch.remove_request("earlier")
    embedded.prompt_token_ids, embedded.prompt_embeds = None, torch.zeros(2, 1)
    batch.add_request(embedded)
    batch.refresh_metadata()
    metadata = batch.sampling_metadata
    assert metadata.prompt_token_ids.tolist() == [[3, 4]]
    assert not torch.equal(Sampler.apply_penalties(logits.clone(), metadata, metadata.output_token_ids), logits)
    add(ours, metadata.output_token_ids[0])
    ours.update(metadata.output_token_ids)
    assert torch.equal(ours.apply(logits.clone(), *columns(ours, 1)), logits)


def bounds(num_prompt_tokens: int, num_tokens: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    return np.array([num_prompt_tokens], np.int32), np.array([num_tokens], np.int32)


@on_each_device
def test_padded_outputs_refuse_rows_that_are_not_the_batch_s_own(device: str) -> None:
    output, buffer = [1, 2], np.array([[9, 1, 2, 0]], np.int32)
    build = PaddedOutputs(device).build
    own = build([output], [output], buffer, *bounds(1, 3), 10)
    assert own.tolist() == [[1, 2]]
    assert build([list(output)], [output], buffer, *bounds(1, 3), 10) is None
    assert build([output], [], buffer, *bounds(1, 3), 10) is None
    assert build([output], [output], buffer, *bounds(1, 2), 10) is None
    output[-1] = 3
    assert build([output], [output], buffer, *bounds(1, 3), 10) is None


@on_each_device
def test_padded_outputs_stay_valid_until_the_next_call_but_one(device: str) -> None:
    output, buffer, padded = [1], np.array([[1]], np.int32), PaddedOutputs(device)
    built = []
    for token_id in (1, 2):
        output[0] = buffer[0, 0] = token_id
        built.append(padded.build([output], [output], buffer, *bounds(0, 1), 10))
    assert [tensor.tolist() for tensor in built if tensor is not None] == [[[1]], [[2]]]


def test_padded_outputs_repair_the_buffer() -> None:
    output, buffer = [1, 7, -1], np.array([[1, -1, -1]], np.int32)
    built = PaddedOutputs().build([output], [output], buffer, *bounds(0, 3), 10)
    assert built.tolist() == [[1, 7, 10]]
    assert buffer.tolist() == [[1, 7, -1]]
