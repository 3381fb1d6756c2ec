"""vLLM's own rejection sampler, whatever release is importable (0.11.2 to 0.33.0).

It is called one level below vLLM's `RejectionSampler` module, as that module calls it: `rejection_sample` gets
processed logits (before 0.16.0 their softmax) and the bonus tokens. It draws its own noise; explicit noise is injected.

Only what the function cannot take is unsupported. What it gets wrong stays open to the checks, which are expected to
find it: `vllm_defects.toml`.
"""

from __future__ import annotations

import inspect
import logging
import os
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from fairdraw._adapters._inject import inject_noise
from fairdraw._adapters._metadata import read_fields
from fairdraw._adapters._runtime import default_device, quiet_floats, quiet_imports, triton_is_interpreted
from fairdraw._adapters._vllm_defects import Known, known_defects
from fairdraw.protocols import Capabilities, Capability, ExplicitNoise, Noise, SpecDecodeBatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torch import Tensor

__all__ = ["VllmSampler", "make"]


def make(device: str | None = None) -> VllmSampler:
    """The rejection sampler of the importable vLLM; its name carries the release.

    Raises:
        ModuleNotFoundError: If vLLM, or a package that it imports, is missing.
        RuntimeError: If triton was imported for a GPU and there is none.
    """
    device = device or default_device()
    interpreted = triton_is_interpreted(device)
    return VllmSampler(device, interpreted, *_import_upstream())


@dataclass(frozen=True)
class VllmSampler:
    """vLLM's function behind the suite's `verify`.

    Args:
        interpreted: Its kernels run in Triton's interpreter.
        release: Without local parts, `0.22.0`.
        rejection_sample: vLLM's.
        make_metadata: Makes what it reads as `sampling_metadata`.
    """

    device: str
    interpreted: bool
    release: str
    rejection_sample: Callable[..., Tensor]
    make_metadata: Callable[[SpecDecodeBatch, Noise], object]
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
    def known_defects(self) -> Mapping[str, Known]:
        """Check code to the reason why this release fails it."""
        return known_defects(self.release)

    def takes(self, argument: str) -> bool:
        return argument in inspect.signature(self.rejection_sample).parameters

    def verify(self, batch: SpecDecodeBatch, noise: Noise) -> Tensor:  # [batch_size, max_spec_len + 1] int32
        arguments = self._arguments(batch, noise)
        with quiet_floats(), _noise_of_call(batch, noise):
            return self.rejection_sample(**arguments)

    def _arguments(self, batch: SpecDecodeBatch, noise: Noise) -> dict[str, object]:
        """By name, because later releases put arguments of their own between ours."""
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
        else:  # before 0.16.0 the caller applied the softmax
            arguments["target_probs"] = batch.target_probs()
        if batch.synthetic_rates is not None:
            arguments |= {"synthetic_mode": True, "synthetic_conditional_rates": batch.synthetic_rates}
        return arguments


def _noise_of_call(batch: SpecDecodeBatch, noise: Noise) -> AbstractContextManager[object]:
    if not isinstance(noise, ExplicitNoise):
        return nullcontext()
    needs_noise = batch.synthetic_rates is not None or not bool(batch.is_greedy.all())
    return inject_noise(noise, required=needs_noise)


def _import_upstream() -> tuple[str, Callable[..., Tensor], Callable[[SpecDecodeBatch, Noise], object]]:
    """Release, function, and how to make its metadata."""
    with _quiet_upstream():
        import vllm
        from vllm.v1.sample.logits_processor import LogitsProcessors
        from vllm.v1.sample.metadata import SamplingMetadata
        from vllm.v1.sample.rejection_sampler import rejection_sample

    def make_metadata(batch: SpecDecodeBatch, noise: Noise) -> object:
        unused = batch.temperature.new_empty(0)
        return SamplingMetadata(
            **read_fields(batch, noise),
            # Logits are processed already: everything below is off.
            top_p=None,
            top_k=None,
            max_num_logprobs=None,
            no_penalties=True,
            prompt_token_ids=None,
            frequency_penalties=unused,
            presence_penalties=unused,
            repetition_penalties=unused,
            output_token_ids=[],
            allowed_token_ids_mask=None,
            bad_words_token_ids={},
            logitsprocs=LogitsProcessors(),
        )

    return str(vllm.__version__).partition("+")[0], rejection_sample, make_metadata


@contextmanager
def _quiet_upstream() -> Iterator[None]:
    """Import without a word: vLLM installs a log handler, and tells of the missing CUDA extension."""
    os.environ.setdefault("VLLM_CONFIGURE_LOGGING", "0")
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with quiet_imports():
            yield
    finally:
        logging.disable(level)
