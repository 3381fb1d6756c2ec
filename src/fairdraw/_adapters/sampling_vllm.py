"""vLLM's own `Sampler` (V1) behind the sampling contract, whatever release is importable; written for 0.22.0.

It is called as the model runner calls it: raw logits in, its own temperature, min-p processor, top-k, top-p and race.
It filters float32 logits where they lie, so it is given a copy. Explicit noise is injected.

From 8 requests on it filters with a Triton kernel that asks for the number of a GPU's processors. Without a GPU vLLM's
own switch for machines without Triton is set instead: it then filters every batch as it filters small ones.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal

from fairdraw._adapters._inject import inject_noise
from fairdraw._adapters._runtime import default_device, triton_is_interpreted
from fairdraw._adapters.vllm import _quiet_upstream
from fairdraw.protocols import Capabilities, Capability, ExplicitNoise, FilterPolicy, RaceNoise

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from fairdraw.protocols import SamplingBatch, SamplingNoise

__all__ = ["VllmTokenSampler", "make"]


@dataclass(frozen=True)
class VllmTokenSampler:
    """vLLM's module behind the suite's `sample`.

    Args:
        release: Without local parts, `0.22.0`.
        forward: From logits and metadata to what the module returns.
        make_metadata: Makes what it reads as `sampling_metadata`.
    """

    device: str
    release: str
    forward: Callable[[Tensor, object], Any]  # Any: vLLM's SamplerOutput
    make_metadata: Callable[[SamplingBatch, SamplingNoise], object]
    contract: Literal["sampling"] = "sampling"
    filters: FilterPolicy = FilterPolicy()  # noqa: RUF009  frozen

    @property
    def name(self) -> str:
        return f"vllm {self.release}"

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            {
                Capability.COUNTER_NOISE: "draws from torch generators, which advance",
                Capability.DRAFT_DISTRIBUTION: "it returns tokens alone",
            }
        )

    def sample(self, batch: SamplingBatch, noise: SamplingNoise) -> Tensor:  # [batch_size] int32
        with _noise_of_call(noise):
            output = self.forward(batch.logits.clone(), self.make_metadata(batch, noise))
        tokens: Tensor = output.sampled_token_ids.squeeze(-1)
        return tokens


def make(device: str | None = None) -> VllmTokenSampler:
    """The sampler of the importable vLLM; its name carries the release.

    Raises:
        ModuleNotFoundError: If vLLM, or a package that it imports, is missing.
        RuntimeError: If triton was imported for a GPU and there is none.
    """
    device = device or default_device()
    triton_is_interpreted(device)  # vLLM imports triton: the mode is chosen before
    with _quiet_upstream():
        import vllm
        from vllm.v1.sample.ops import topk_topp_sampler
        from vllm.v1.sample.sampler import Sampler

        if device == "cpu":
            setattr(topk_topp_sampler, "HAS_TRITON", False)  # noqa: B010  # no name that the module exports
        return VllmTokenSampler(device, str(vllm.__version__).partition("+")[0], Sampler(), _metadata_maker())


def _noise_of_call(noise: SamplingNoise) -> AbstractContextManager[object]:
    if not isinstance(noise, RaceNoise):
        return nullcontext()
    no_uniforms = noise.exponentials.new_empty(0)
    return inject_noise(ExplicitNoise(no_uniforms, noise.exponentials), required=False)


def _metadata_maker() -> Callable[[SamplingBatch, SamplingNoise], object]:
    from vllm import SamplingParams
    from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessors
    from vllm.v1.sample.logits_processor.builtin import MinPLogitsProcessor
    from vllm.v1.sample.metadata import SamplingMetadata

    def processors(batch: SamplingBatch) -> Any:  # Any: vLLM's LogitsProcessors
        """Min-p is a logits processor, told of requests as a batch of a server tells it."""
        if batch.min_p is None:
            return LogitsProcessors()
        # Any: what the processor reads of vLLM's configuration, and no more.
        config: Any = SimpleNamespace(scheduler_config=SimpleNamespace(max_num_seqs=batch.batch_size))
        min_p = MinPLogitsProcessor(config, batch.device, False)
        added: list[Any] = [(i, SamplingParams(min_p=value), None, []) for i, value in enumerate(batch.min_p.tolist())]
        min_p.update_state(BatchUpdate(batch_size=batch.batch_size, removed=[], moved=[], added=added))
        return LogitsProcessors([min_p])

    def make_metadata(batch: SamplingBatch, noise: SamplingNoise) -> object:
        greedy = batch.is_greedy
        unused = batch.temperature.new_empty(0)
        return SamplingMetadata(
            temperature=batch.temperature,
            all_greedy=bool(greedy.all()),
            all_random=not bool(greedy.any()),
            top_p=batch.top_p,
            top_k=batch.top_k,
            generators={} if isinstance(noise, RaceNoise) else noise.generators(batch.device),
            max_num_logprobs=None,
            no_penalties=True,
            prompt_token_ids=None,
            frequency_penalties=unused,
            presence_penalties=unused,
            repetition_penalties=unused,
            output_token_ids=[],
            allowed_token_ids_mask=None,
            bad_words_token_ids={},
            logitsprocs=processors(batch),
        )

    return make_metadata
