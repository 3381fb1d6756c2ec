"""The plain sampler: counters that agree on both backends, the distribution of drafts, and error messages."""

import numpy as np
import pytest
import torch
from torch import Tensor

from fairdraw.sampler_impl import sampling
from fairdraw.sampler_impl._shared.draws import DRAFT_STREAM, SAMPLE_STREAM, philox, philox_uniforms
from fairdraw.sampler_impl.sampling import CounterNoise, RaceNoise, SamplingParameters, UpstreamNoise

compiles = pytest.mark.skipif(torch.cuda.is_available(), reason="Triton compiles, for tensors of the card")
on_each_backend = pytest.mark.parametrize("backend", ["torch", pytest.param("triton", marks=compiles)])


def rows(num_rows: int, vocab_size: int, seed: int = 0, scale: float = 3.0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(0, scale, (num_rows, vocab_size))).float()


def counters(num_rows: int, seed: int = 0) -> CounterNoise:
    rng = np.random.default_rng(seed)
    seeds = torch.from_numpy(rng.integers(-(2**63), 2**63 - 1, num_rows))
    return CounterNoise(seeds, torch.from_numpy(rng.integers(0, 2**40, num_rows)))


def ones(num_rows: int) -> Tensor:
    return torch.ones(num_rows)


# Counters.


def test_philox_equals_the_known_answer() -> None:
    """The known-answer vector of the Random123 library: counter and key all 0."""
    zero = torch.zeros(1, dtype=torch.int64)
    assert [int(word) for word in philox(zero, zero, 0)] == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


def test_streams_and_positions_are_apart() -> None:
    seeds = torch.arange(1000).repeat(2)
    positions = torch.arange(1000).repeat_interleave(2)
    drawn = torch.cat([philox_uniforms(seeds, positions, stream)[0] for stream in (SAMPLE_STREAM, DRAFT_STREAM)])
    pairs = {(int(s), int(p)) for s, p in zip(seeds, positions, strict=True)}
    assert len(set(drawn.tolist())) == 2 * len(pairs)
    assert drawn.min() >= 0
    assert drawn.max() < 1


@on_each_backend
def test_counter_draw_inverts_the_cdf(backend: sampling.BackendName) -> None:
    """Beside float64 NumPy on the same uniforms."""
    logits, noise = rows(40, 50, seed=3), counters(40, seed=5)
    probs = logits.double().softmax(-1).numpy()
    uniforms = philox_uniforms(noise.seeds, noise.positions, SAMPLE_STREAM)[0].numpy()
    expected = [int(np.searchsorted(np.cumsum(p), u, side="right")) for p, u in zip(probs, uniforms, strict=True)]
    assert sampling.sample(logits, SamplingParameters(ones(40)), noise, backend=backend).tolist() == expected


@on_each_backend
def test_masked_and_extreme_logits_stay_in_the_support(backend: sampling.BackendName) -> None:
    logits = torch.full((64, 8193), -torch.inf)
    logits[:, 8192] = -3e38
    logits[::2, 4096] = -3e38
    tokens = sampling.sample(logits, SamplingParameters(ones(64)), counters(64), backend=backend)
    assert set(tokens[1::2].tolist()) == {8192}
    assert set(tokens[::2].tolist()) == {4096, 8192}


@on_each_backend
def test_logsumexp_gives_the_distribution(backend: sampling.BackendName) -> None:
    logits, temperature = rows(6, 5000, seed=2), torch.tensor([1.0, 0.5, 2.0, 0.0, 0.01, 1.0])
    logits[5, 3] = torch.nan
    tokens, logsumexp = sampling.draft_with_logsumexp(logits, temperature, counters(6), backend=backend)
    expected = (logits.double() / temperature[:, None].double()).logsumexp(-1)
    assert torch.allclose(logsumexp[[0, 1, 2, 4]].double(), expected[[0, 1, 2, 4]], rtol=1e-6, atol=1e-5)
    assert logsumexp[3] == 0
    assert logsumexp[5].isnan()
    assert tokens[3] == logits[3].argmax()


def test_drafts_and_samples_use_different_streams() -> None:
    logits, noise = torch.zeros(64, 1000), counters(64)
    parameters = SamplingParameters(ones(64))
    drafted = sampling.draft(logits, parameters, noise).sampled_token_ids
    assert (drafted != sampling.sample(logits, parameters, noise)).sum() > 50
    assert torch.equal(drafted, sampling.draft_with_logsumexp(logits, ones(64), noise)[0])


# The race.


def test_race_never_draws_a_token_without_probability() -> None:
    """vLLM 0.22.0 emits token 0 if every score underflows."""
    logits = torch.tensor([[-torch.inf, 0.0, -100.0]])
    noise = RaceNoise(torch.tensor([[1e-30, 3e38, 3e38]]))
    assert sampling.sample(logits, SamplingParameters(ones(1)), noise).tolist() == [1]


# Error messages.


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"logits": torch.zeros(3)}, r"logits.shape=\[3\], but it must be \[batch_size, vocab_size\]"),
        ({"parameters": SamplingParameters(torch.ones(3))}, r"temperature.shape=\[3\], but it must be \[2\]"),
        (
            {"parameters": SamplingParameters(torch.ones(2), top_p=torch.ones(2).double())},
            "top_p.dtype=torch.float64, but it must be torch.float32",
        ),
        (
            {"parameters": SamplingParameters(torch.ones(2), all_greedy=True, all_random=True)},
            "at most one can hold for 2 requests",
        ),
        ({"noise": RaceNoise(torch.ones(2, 5))}, r"exponentials.shape=\[2, 5\], but it must be \[2, 4\]"),
        ({"noise": UpstreamNoise({2: torch.Generator()})}, r"generators has key 2, but keys must be requests"),
        ({"backend": "cuda"}, "backend='cuda', but it must be 'triton' or 'torch'"),
    ],
    ids=["one row", "length", "dtype", "flags", "noise", "generators", "backend"],
)
def test_wrong_argument_is_refused_by_name(arguments: dict[str, object], message: str) -> None:
    given: dict[str, object] = {
        "logits": torch.zeros(2, 4),
        "parameters": SamplingParameters(torch.ones(2)),
        "noise": counters(2),
    }
    with pytest.raises(ValueError, match=f"sample: .*{message}"):
        sampling.sample(**(given | arguments))  # type: ignore[arg-type]  # one of them is wrong


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (SamplingParameters(torch.tensor([1.0, -1.0])), r"temperature\[1\]=-1, but it must be finite and at least 0"),
        (
            SamplingParameters(torch.ones(2), top_k=torch.tensor([4, 5]).int()),
            r"top_k\[1\]=5, but it must be in \[1, 4",
        ),
        (SamplingParameters(torch.ones(2), top_p=torch.zeros(2)), r"top_p\[0\]=0, but it must be in \(0, 1\]"),
        (SamplingParameters(torch.ones(2), min_p=torch.full((2,), 2.0)), r"min_p\[0\]=2, but it must be in \[0, 1\]"),
    ],
    ids=["temperature", "top-k", "top-p", "min-p"],
)
def test_wrong_value_is_refused_by_validation(parameters: SamplingParameters, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sampling.sample(torch.zeros(2, 4), parameters, counters(2), validate=True)


def test_noise_of_another_kind_is_refused() -> None:
    with pytest.raises(TypeError, match="noise=int, but it must be UpstreamNoise, RaceNoise or CounterNoise"):
        sampling.sample(torch.zeros(2, 4), SamplingParameters(torch.ones(2)), 3)  # type: ignore[arg-type]  # refused


@compiles
def test_vocabulary_beyond_the_kernels_is_refused() -> None:
    logits = torch.zeros(1, 1).expand(1, 524289)
    with pytest.raises(ValueError, match="vocab_size=524289, but the kernels take at most 524288"):
        sampling.sample(logits, SamplingParameters(ones(1)), counters(1), backend="triton")
