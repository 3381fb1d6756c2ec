"""Validation of what passes between the suite and a sampler: what contracts check batches, noise and answers with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from fairdraw._core.failures import AdapterError, calling
from fairdraw._core.noise import SeededNoise

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray
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


@dataclass(frozen=True)
class Answer:
    """What a method of a sampler returned. It is an error of the adapter if it is not what the contract asks.

    Args:
        name: Of the sampler.
        device: Of the batch.
    """

    sampler: object
    method: str
    device: torch.device
    value: Any  # Any: to be checked
    name: str

    @classmethod
    def of(cls, sampler: Any, method: str, device: torch.device, *arguments: object) -> Answer:  # Any: of any contract
        """Call the method. What it raises is marked as the sampler's own."""
        with calling(sampler):
            return cls(sampler, method, device, getattr(sampler, method)(*arguments), sampler.name)

    @property
    def returned(self) -> str:
        """The first words of what is said against it."""
        return f"{self.method}: sampler={self.name} returned"

    def as_kind(self, kind: type[T], example: str) -> T:
        """Return the answer, if it is of this kind.

        Raises:
            AdapterError: If it is not.
        """
        if not isinstance(self.value, kind):
            given, name = type(self.value).__name__, kind.__name__
            raise AdapterError(f"{self.returned} {given}, but it must return a {name}. Return {name}({example}).")
        return self.value

    def tensor(self, name: str, output: object, shape: list[int], dtypes: tuple[str, ...], hint: str) -> Tensor:
        """Return `output`, the part `name` of the answer, if it is a tensor of this shape, dtype and device.

        Raises:
            AdapterError: If it is not.
        """
        import torch

        returned, wanted = self.returned, " or ".join(f"torch.{one}" for one in dtypes)
        if not isinstance(output, torch.Tensor):
            given, remedy = type(output).__name__, f"Return {name} as {dtypes[0]} {shape}."
            raise AdapterError(f"{returned} {given}, but it must return a tensor. {remedy}")
        if list(output.shape) != shape:
            raise AdapterError(f"{returned} {name} of shape {list(output.shape)}, but it must be {shape} {hint}")
        if str(output.dtype).removeprefix("torch.") not in dtypes:
            remedy = f"Return {name}.to(torch.{dtypes[0]})."
            raise AdapterError(f"{returned} {output.dtype}, but it must be {wanted}. {remedy}")
        if output.device != self.device:
            remedy = "Declare the sampler's device, or move the result."
            raise AdapterError(f"{returned} a tensor on {output.device}, but the batch is on {self.device}. {remedy}")
        return output

    def numbers(self, name: str, output: object, shape: list[int], dtypes: tuple[str, ...], hint: str) -> NDArray[Any]:
        """Return a copy of such a tensor, `[...]` as it is. Any: of its dtype."""
        import numpy as np

        tensor = self.tensor(name, output, shape, dtypes, hint)
        with calling(self.sampler):  # the error of an asynchronous kernel surfaces where its result is waited for
            copied = tensor.detach().cpu().numpy().copy()
        return copied.astype(np.int64) if dtypes[0].startswith("int") else copied


INTEGERS = ("int64", "int32")
"""Types of token ids and of other numbers that come back."""
