"""Validation of what passes between the suite and a sampler: what contracts check batches, noise and answers with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from fairdraw._core.failures import AdapterError
from fairdraw._core.noise import SeededNoise

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from typing_extensions import TypeIs

T = TypeVar("T")


@dataclass(frozen=True)
class Validator:
    """Refusals of one function: `function: name=value, but rule. Remedy.`"""

    function: str

    def require(
        self, holds: bool, given: str, rule: str, remedy: str, kind: type[ValueError | TypeError] = ValueError
    ) -> None:
        """Raise `kind` unless `holds`."""
        if not holds:
            raise kind(f"{self.function}: {given}, but {rule}. {remedy}")

    def kind(self, name: str, value: object, kind: type, remedy: str) -> None:
        given, rule = f"{name}={type(value).__name__}", f"it must be a {kind.__name__}"
        self.require(isinstance(value, kind), given, rule, remedy, TypeError)

    def tensor(self, name: str, value: object, or_none: str = "") -> None:
        import torch

        given, remedy = f"{name}={type(value).__name__}", f"Use torch.as_tensor({name})."
        self.require(isinstance(value, torch.Tensor), given, f"it must be a tensor{or_none}", remedy, TypeError)

    def shape(self, name: str, tensor: Tensor, wanted: list[int], why: str, remedy: str) -> None:
        given = list(tensor.shape)
        self.require(given == wanted, f"{name}.shape={given}", f"it must be {wanted}{why}", remedy)

    def dtype(self, name: str, tensor: Tensor, wanted: tuple[str, ...]) -> None:
        given, rule = str(tensor.dtype).removeprefix("torch."), f"it must be {' or '.join(wanted)}"
        self.require(given in wanted, f"{name}.dtype={given}", rule, f"Use {name}.to(torch.{wanted[0]}).")

    def device(self, name: str, tensor: Tensor, device: torch.device, beside: str) -> None:
        rule, remedy = f"it must be where {beside} is, {device}", f"Use {name}.to({str(device)!r})."
        self.require(tensor.device == device, f"{name}.device={tensor.device}", rule, remedy)

    def values(self, name: str, tensor: Tensor, is_right: Tensor, rule: str, remedy: str) -> None:
        """Refuse the first element of `tensor` for which `is_right` is false."""
        if not bool(is_right.all()):
            place = (~is_right).nonzero()[0].tolist()
            self.require(False, f"{name}{place}={tensor[tuple(place)].item()!r}", rule, remedy)

    def is_seeded(self, noise: object, explicit: type, batch_size: int) -> TypeIs[SeededNoise]:
        """Whether noise is seeded, for requests that the batch has; refuse what is neither that nor `explicit`."""
        if not isinstance(noise, SeededNoise):
            given, rule = f"noise={type(noise).__name__}", f"it must be {explicit.__name__} or SeededNoise"
            self.require(isinstance(noise, explicit), given, rule, "Use SeededNoise(seed).", TypeError)
            return False
        unknown = next((request for request in noise.request_seeds if request not in range(batch_size)), None)
        rule, remedy = f"requests must lie in [0, {batch_size})", "Number requests by their rows."
        self.require(unknown is None, f"request_seeds has request {unknown}", rule, remedy)
        return True


def check_kind(method: str, sampler: str, answer: object, kind: type[T], example: str) -> T:
    """What `method` of a sampler returned, if it is of this kind.

    Raises:
        AdapterError: If it is not.
    """
    if not isinstance(answer, kind):
        given, name = type(answer).__name__, kind.__name__
        raise AdapterError(
            f"{method}: sampler={sampler} returned {given}, but it must return a {name}. Return {name}({example})."
        )
    return answer


def check_answer(
    method: str,
    sampler: str,
    name: str,
    output: object,
    shape: list[int],
    dtypes: tuple[str, ...],
    device: torch.device,
    shape_hint: str,
) -> Tensor:
    """`output`, which `method` of a sampler returned as `name`, if it is a tensor of this shape, dtype and device.

    Raises:
        AdapterError: If it is not.
    """
    import torch

    returned, wanted = f"{method}: sampler={sampler} returned", " or ".join(f"torch.{one}" for one in dtypes)
    if not isinstance(output, torch.Tensor):
        raise AdapterError(
            f"{returned} {type(output).__name__}, but it must return a tensor. Return {name} as {dtypes[0]} {shape}."
        )
    if list(output.shape) != shape:
        raise AdapterError(f"{returned} {name} of shape {list(output.shape)}, but it must be {shape} {shape_hint}")
    if str(output.dtype).removeprefix("torch.") not in dtypes:
        raise AdapterError(f"{returned} {output.dtype}, but it must be {wanted}. Return {name}.to(torch.{dtypes[0]}).")
    if output.device != device:
        raise AdapterError(
            f"{returned} a tensor on {output.device}, but the batch is on {device}. "
            "Declare the sampler's device, or move the result."
        )
    return output
