"""vLLM's V1 samplers, of whatever release is importable (0.8.1 to 0.33.0; the token sampler: 0.11.2 to 0.33.0).

The rejection sampler is called one level below vLLM's `RejectionSampler` module, as that module calls it:
`rejection_sample` gets processed logits (before 0.16.0 their softmax) and the bonus tokens. Before 0.11.2 the file of
that function is all there is (`tools/install.py vllm`). The token sampler is called as the model runner calls it,
with raw logits; it may filter float32 logits in place, so it gets a copy. Both draw their own noise; explicit noise is
injected.

Only what the functions cannot take is unsupported. What they get wrong is left to the checks: `known_defects.toml`.
"""

import importlib
import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Literal

from torch import Tensor

from fairdraw import contracts
from fairdraw.adapters import SamplerRow, inject_noise, quiet_floats, release_number
from fairdraw.contracts import Capabilities, Capability, Noise, RaceNoise, SamplingBatch, SamplingNoise, SpecDecodeBatch
from fairdraw_engines._others import Upstream, import_vllm, vllm_module
from fairdraw_engines._torch import race_noise

ZERO_IS_GREEDY = (0, 11)
"""First release whose `InputBatch` writes temperature 0 for a greedy request; before it wrote -1."""


@dataclass(frozen=True)
class VllmSampler:
    """vLLM's `rejection_sample` behind the suite's `verify`.

    Args:
        interpreted: Its kernels run in Triton's interpreter.
        release: Without local parts, `0.22.0`.
        make_metadata: Makes what it reads as `sampling_metadata`.
    """

    device: str
    interpreted: bool
    release: str
    rejection_sample: Callable[..., Tensor]
    make_metadata: Callable[[SpecDecodeBatch, Noise], object]
    known_defects: Mapping[str, contracts.KnownDefect] = field(default_factory=dict)
    contract: Literal["rejection"] = "rejection"

    @property
    def name(self) -> str:
        return f"vllm {self.release}"

    @property
    def capabilities(self) -> Capabilities:
        unsupported: dict[Capability, str] = {}
        if not self.takes("synthetic_mode"):
            unsupported[Capability.SYNTHETIC_RATES] = f"vLLM {self.release} has no synthetic mode, 0.20.0 brought it"
        return Capabilities(unsupported, slow=self.interpreted)

    @property
    def number(self) -> tuple[int, ...]:
        return release_number(self.release)

    def takes(self, argument: str) -> bool:
        return argument in inspect.signature(self.rejection_sample).parameters

    def verify(self, batch: SpecDecodeBatch, noise: Noise) -> Tensor:  # [batch_size, max_spec_len + 1] int32
        arguments = self._arguments(batch, noise)
        with quiet_floats(), _noise_of_call(batch, noise):
            return self.rejection_sample(**arguments)

    def _arguments(self, batch: SpecDecodeBatch, noise: Noise) -> dict[str, object]:
        """Return the arguments by name, because later releases put arguments of their own between ours."""
        arguments: dict[str, object] = {
            "draft_token_ids": batch.draft_token_ids,
            "num_draft_tokens": batch.num_draft_tokens,
            "max_spec_len": batch.max_spec_len,
            "cu_num_draft_tokens": batch.cu_num_draft_tokens,
            "draft_probs": batch.draft_probs,
            "bonus_token_ids": batch.bonus_token_ids,
            "sampling_metadata": self.make_metadata(batch, noise),
        }
        if self.takes("target_logits"):
            arguments["target_logits"] = batch.target_logits
        elif self.number < (0, 11, 1) and bool(batch.is_greedy.all()):  # its caller gathered the logits of such a batch
            arguments["target_probs"] = batch.target_logits.contiguous()
        else:  # before 0.16.0 the caller applied the softmax
            arguments["target_probs"] = batch.target_probs()
        if batch.synthetic_rates is not None:
            arguments |= {"synthetic_mode": True, "synthetic_conditional_rates": batch.synthetic_rates}
        return arguments


def _noise_of_call(batch: SpecDecodeBatch, noise: Noise) -> AbstractContextManager[object]:
    if not isinstance(noise, contracts.ExplicitNoise):
        return nullcontext()
    needs_noise = batch.synthetic_rates is not None or not bool(batch.is_greedy.all())
    return inject_noise(noise, required=needs_noise)


def rejection(row: SamplerRow, device: str) -> VllmSampler:
    """Return the V1 rejection sampler; its name carries the release."""
    release, interpreted = import_vllm(device, "sample.rejection_sampler", "sample.logits_processor", "sample.metadata")
    processors = vllm_module("sample.logits_processor").LogitsProcessors

    def make_metadata(batch: SpecDecodeBatch, noise: Noise) -> object:
        old = release_number(release) < ZERO_IS_GREEDY
        temperature = batch.temperature.masked_fill(batch.is_greedy, -1) if old else batch.temperature
        return _metadata(batch, noise, temperature=temperature, logitsprocs=processors())

    function = vllm_module("sample.rejection_sampler").rejection_sample
    return VllmSampler(device, interpreted, release, function, make_metadata, row.known_defects(release))


def sampling(row: SamplerRow, device: str) -> contracts.FunctionTokenSampler:
    """Return the V1 token sampler; its name carries the release.

    From 8 requests on it filters with a Triton kernel that needs the number of a GPU's processors. Without a GPU vLLM's
    own switch for machines without Triton is set instead, so that it filters every batch as it filters small ones.
    """
    release, _ = import_vllm(device, "sample.sampler", "sample.ops.topk_topp_sampler", "sample.metadata")
    if device == "cpu":
        setattr(vllm_module("sample.ops.topk_topp_sampler"), "HAS_TRITON", False)  # noqa: B010  # not exported
    forward = vllm_module("sample.sampler").Sampler()

    def sample(batch: SamplingBatch, noise: SamplingNoise) -> Tensor:  # [batch_size] int32
        with race_noise(noise):
            tokens: Tensor = forward(batch.logits.clone(), sampling_metadata(batch, noise)).sampled_token_ids
        return tokens.squeeze(-1)

    return contracts.FunctionTokenSampler(function=sample, **row.facts(release, device))


def sampling_metadata(batch: SamplingBatch, noise: SamplingNoise) -> Upstream:
    """Return the parameters of a batch as vLLM's `Sampler` reads them."""
    return _metadata(batch, noise, top_p=batch.top_p, top_k=batch.top_k, logitsprocs=_min_p_processor(batch))


def _min_p_processor(batch: SamplingBatch) -> Upstream:
    """Return min-p, a logits processor; it learns of requests as from a server's batch."""
    package = vllm_module("sample.logits_processor")
    if batch.min_p is None:
        return package.LogitsProcessors()
    params = importlib.import_module("vllm").SamplingParams
    # What the processor reads of vLLM's configuration.
    config = SimpleNamespace(scheduler_config=SimpleNamespace(max_num_seqs=batch.batch_size))
    min_p = package.MinPLogitsProcessor(config, batch.device, False)
    added: Upstream = [(i, params(min_p=value), None, []) for i, value in enumerate(batch.min_p.tolist())]
    min_p.update_state(package.BatchUpdate(batch_size=batch.batch_size, removed=[], moved=[], added=added))
    return package.LogitsProcessors([min_p])


def _metadata(
    batch: SpecDecodeBatch | SamplingBatch,
    noise: Noise | SamplingNoise,
    **fields: Any,  # Any: one type each
) -> Upstream:
    """Return vLLM's `SamplingMetadata`, in which everything that neither the batch nor `fields` says is switched
    off."""
    greedy, unused = batch.is_greedy, batch.temperature.new_empty(0)
    said: dict[str, Any] = {  # Any: as above
        "temperature": batch.temperature,
        "all_greedy": bool(greedy.all()),
        "all_random": not bool(greedy.any()),
        "generators": {} if isinstance(noise, contracts.ExplicitNoise | RaceNoise) else noise.generators(batch.device),
        "top_p": None,
        "top_k": None,
        "max_num_logprobs": None,
        "no_penalties": True,
        "prompt_token_ids": None,
        "frequency_penalties": unused,
        "presence_penalties": unused,
        "repetition_penalties": unused,
        "output_token_ids": [],
        "allowed_token_ids_mask": None,
        "bad_words_token_ids": {},
    }
    return vllm_module("sample.metadata").SamplingMetadata(**{**said, **fields})
