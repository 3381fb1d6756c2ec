"""Samplers that take and return arrays of another library are judged like those of torch."""

import importlib
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import fairdraw
from fairdraw._core.arrays import as_tensors
from fairdraw._oracles.rejection import verify
from fairdraw.contracts._rejection import emit
from fairdraw.strategies import DraftRecipe, RejectionCase, RequestRecipe

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.bool)


class Exported:
    """An array of an unknown library: it can be exported, and nothing else."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def __dlpack__(self, **named: Any) -> object:  # Any: a stream
        return self.tensor.__dlpack__(**named)

    def __dlpack_device__(self) -> Any:  # Any: a pair of numbers
        return self.tensor.__dlpack_device__()


STUB: Any = SimpleNamespace(from_dlpack=Exported)  # Any: not a whole library


def same(batch: fairdraw.SamplingBatch, noise: fairdraw.SamplingNoise) -> fairdraw.SamplingBatch:
    return batch


@pytest.fixture
def batch() -> fairdraw.SamplingBatch:
    rows = torch.tensor([[0.0, 2.0, 1.0], [5.0, 3.0, 4.0]])
    temperature, positions = torch.tensor([0.0, 0.0]), torch.zeros(2, dtype=torch.int64)
    return fairdraw.SamplingBatch(rows.bfloat16(), temperature, None, None, None, positions)


@pytest.mark.parametrize("library", ["numpy", "mlx.core", "jax.numpy"])
def test_arrays_of_a_library_are_handed_over_and_taken(library: str, batch: fairdraw.SamplingBatch) -> None:
    pytest.importorskip(library.partition(".")[0])
    xp: Any = importlib.import_module(library)  # Any: of no fixed type

    @fairdraw.with_arrays(xp)
    def greedy(batch: Any, noise: Any) -> Any:  # Any: of arrays
        assert not isinstance(batch.logits, torch.Tensor)
        assert (batch.batch_size, batch.top_k) == (2, None)
        assert repr(batch.is_greedy.dtype).endswith(("bool", "bool_", "bool')"))
        return xp.argmax(batch.logits, axis=1)

    assert greedy(batch, fairdraw.SeededNoise(0)).tolist() == [1, 0]


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_array_that_can_only_be_exported_will_do(dtype: torch.dtype) -> None:
    array = Exported(torch.tensor([[1, 0]]).to(dtype))
    assert as_tensors(array).tolist() == [[1, 0]]


def test_batch_of_an_unknown_library_is_of_its_arrays(batch: fairdraw.SamplingBatch) -> None:
    handed = fairdraw.with_arrays(STUB)(same)(batch, fairdraw.SeededNoise(0))
    assert isinstance(handed.logits, Exported)


def test_read_only_arrays_and_fields_of_a_result_become_tensors() -> None:
    array = np.arange(3)
    array.flags.writeable = False
    drafted: Any = fairdraw.Drafted(array, None)  # type: ignore[arg-type]  # as a drafter in NumPy returns it
    assert as_tensors(drafted).token_ids.tolist() == [0, 1, 2]
    assert as_tensors("tokens") == "tokens"


def test_explicit_noise_and_methods_of_a_batch_give_arrays() -> None:
    case = RejectionCase(9, (RequestRecipe((DraftRecipe(), DraftRecipe())),))
    handed: list[Any] = []  # Any: arrays

    @fairdraw.with_arrays(np)
    def rejecting(batch: Any, noise: Any) -> Any:  # Any: as above
        handed.extend((batch.target_probs(), noise.uniforms, batch.token_slice(0)))
        return verify(case.batch(), case.noise()).numpy()

    sampler = fairdraw.rejection_sampler(rejecting)
    tokens = emit(sampler, case.batch(), case.noise()).tokens
    assert tokens.tolist() == verify(case.batch(), case.noise()).tolist()
    assert [type(one) for one in handed[:2]] == [np.ndarray, np.ndarray]
    assert handed[2] == slice(0, 2)


def test_what_is_written_to_an_array_is_written_to_the_tensor() -> None:
    memory = torch.zeros(2, 4)
    fairdraw.with_arrays(np)(lambda dense, apart: (dense.fill(1), apart.fill(2)))(memory[0], memory[:, 1:3])
    assert memory.tolist() == [[1, 2, 2, 1], [0, 2, 2, 0]]


def test_uniforms_of_a_library_with_32_bits_stay_below_one() -> None:
    jnp = pytest.importorskip("mlx.core")
    noise = fairdraw.ExplicitNoise(torch.tensor([1 - 2.0**-53], dtype=torch.float64), torch.ones(1, 1))

    @fairdraw.with_arrays(jnp)
    def largest(_: Any, noise: Any) -> Any:  # Any: as above
        return noise.uniforms

    assert largest(None, noise).tolist() == [1 - 2.0**-24]
