"""Validation of what passes between the suite and a sampler: what contracts check batches, noise and answers with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fairdraw._core.failures import AdapterError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from fairdraw._core.noise import SeededNoise


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

    def request_seeds(self, noise: SeededNoise, batch_size: int) -> None:
        unknown = next((request for request in noise.request_seeds if request not in range(batch_size)), None)
        rule = f"requests must lie in [0, {batch_size})"
        remedy = "Number requests by their rows."
        self.require(unknown is None, f"request_seeds has request {unknown}", rule, remedy)


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
