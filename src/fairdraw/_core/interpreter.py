"""Whether Triton compiles or interprets. It decides at import, from the environment, and for good.

Much of torch imports triton on the way, above all `torch._dynamo`. So whoever is about to import either, an adapter for
example, makes the choice first.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from dataclasses import replace
from functools import cache, wraps
from typing import Any


def default_device() -> str:
    """`cuda` if there is a CUDA device, else `cpu`."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def prepare_triton(device: str | None = None) -> None:
    """Choose Triton's interpreter if kernels are to run on the CPU. Without effect once triton is imported.

    Args:
        device: Where the kernels will run; `default_device()` if `None`.
    """
    if "triton" in sys.modules:
        return
    if default_device() == "cpu":
        # vLLM switches Triton off where no driver is active, unless this variable is set and empty.
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    if (device or default_device()) == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"


def speed_up_interpreter() -> None:
    """Let Triton's interpreter leave out work whose result nobody reads, and remember what it computes anew each time.

    Kernels give the same numbers and the same errors in about a tenth of the time. Without effect before triton is
    imported, on compiled kernels, and the second time. Another release than those of `COMPARED` gets the first piece
    alone, if it has these names: what the others remember might be more there.
    """
    interpreter: Any = sys.modules.get("triton.runtime.interpreter")  # Any: Triton has no types
    if interpreter is None or hasattr(interpreter, _DONE):
        return
    setattr(interpreter, _DONE, True)
    with suppress(AttributeError):
        _patch_language_once(interpreter)
    if sys.modules["triton"].__version__.startswith(COMPARED):
        for patch in (
            _skip_unread_overflows,
            _remember_dtypes,
            _remember_block_types,
            _share_shapes,
            _record_operations,
            _know_tensors,
        ):
            patch(interpreter)


COMPARED = ("3.6.", "3.7.")
"""Releases of Triton whose interpreter was compared with ours, piece by piece (`tests/run/test_interpreter.py`)."""
_DONE = "_fairdraw_speed_up"


def _patch_language_once(interpreter: Any) -> None:  # Any: Triton's modules have no types, here and below
    """Patch `triton.language` once per launch, and not again in every device function.

    Every call of a jitted helper inside of a kernel goes through all names of the language, and finds them patched by
    the launch. That is a third of the time of a kernel with helpers.
    """
    patch, language = interpreter._patch_lang, interpreter.tl
    if not hasattr(interpreter, "_LangPatchScope"):
        return

    is_builtin, nothing = language.core.is_builtin, interpreter._LangPatchScope()  # to restore: the launch does that

    @cache
    def modules_of(function: Any) -> list[Any]:
        names = function.__globals__.values()
        return [value for value in names if value is language or value is language.core]

    @wraps(patch)
    def patched_once(function: Any) -> Any:
        modules = modules_of(function)
        for module in modules:
            if is_builtin(module.load):
                return patch(function)
        return nothing if modules else patch(function)

    interpreter._patch_lang = patched_once


def _skip_unread_overflows(interpreter: Any) -> None:
    """Do not compute in int64 whether an int32 overflows: without `debug` Triton drops the answer unread."""
    builder = interpreter.interpreter_builder
    if not builder.options.debug:
        builder.options = replace(builder.options, sanitize_overflow=False)


def _remember_dtypes(interpreter: Any) -> None:
    """NumPy's dtype of a Triton type, of which the name decides: Triton makes a table of all for every look."""
    find, known = interpreter._get_np_dtype, {}

    @wraps(find)
    def remembered(kind: Any) -> Any:
        name = kind.scalar.name
        if name not in known:
            known[name] = find(kind)
        return known[name]

    interpreter._get_np_dtype = remembered


def _remember_block_types(interpreter: Any) -> None:
    """Shape, number of elements and name of a block's type. Shapes that are refused are not remembered."""
    block_type = interpreter.tl.core.block_type
    make, known = block_type.__init__, {}

    @wraps(make)
    def remembered(self: Any, element_ty: Any, shape: Any) -> None:
        key = (type(shape), element_ty.name, *(getattr(size, "value", size) for size in shape))
        if key not in known:
            make(self, element_ty, shape)
            known[key] = {**vars(self)}
        vars(self).update(known[key], element_ty=element_ty)

    block_type.__init__ = remembered


def _share_shapes(interpreter: Any) -> None:
    """Tensors of one shape share its constants, which nothing changes."""
    core, known = interpreter.tl.core, {}
    make = core.tensor.__init__

    @wraps(make)
    def shared(self: Any, handle: Any, type: Any) -> None:
        key = tuple(type.shape) if type.is_block() else ()
        if key not in known:
            make(self, handle, type)
            known[key] = (self.shape, self.numel)
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.shape, self.numel = known[key]

    core.tensor.__init__ = shared


def _record_operations(interpreter: Any) -> None:
    """Operations of the language with tapes. Triton makes them anew at each launch; here they are made once."""
    from .interpreter_functions import record_functions  # these import numpy
    from .interpreter_grids import run_side_by_side
    from .interpreter_tapes import TAPED, Tapes

    patch, tapes, made = interpreter._patch_attr, Tapes(interpreter), {}
    run_side_by_side(interpreter, tapes)
    interpreter._fairdraw_tapes = tapes

    @wraps(patch)
    def patched(owner: Any, name: str, member: Any, builder: Any, scope: Any) -> None:
        if (name, member) not in made:
            patch(owner, name, member, builder, scope)
            plain = getattr(owner, name)
            made[name, member] = tapes.taped(plain) if name in TAPED else tapes.grid.untaped(plain, name)
        scope.set_attr(owner, name, made[name, member])

    interpreter._patch_attr = patched
    patch_tensor = interpreter._patch_lang_tensor

    @wraps(patch_tensor)
    def patched_tensor(tensor: Any, scope: Any) -> None:
        patch_tensor(tensor, scope)
        for name in ("__bool__", "__index__"):
            scope.set_attr(tensor, name, tapes.noted(getattr(tensor, name)))

    interpreter._patch_lang_tensor = patched_tensor
    record_functions(interpreter, tapes)


def _know_tensors(interpreter: Any) -> None:
    """Every assignment of a kernel makes a tensor of its value, which nearly always is one."""
    semantic, tensor = interpreter.interpreter_semantic, interpreter.tl.core.tensor
    make = semantic.to_tensor

    @wraps(make)
    def to_tensor(value: Any, check_type: bool = True) -> Any:
        return value if type(value) is tensor else make(value, check_type)

    semantic.to_tensor = to_tensor
