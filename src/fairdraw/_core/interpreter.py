"""Whether Triton compiles or interprets. It decides at import, from the environment, and for good.

Much of torch imports triton on the way, above all `torch._dynamo`. So whoever is about to import either, an adapter for
example, makes the choice first.
"""

import os
import sys
from dataclasses import replace
from functools import cache, wraps
from typing import Any


def default_device() -> str:
    """`cuda` if torch finds a CUDA device, else `cpu`; so without torch, which servers do not need."""
    try:
        import torch
    except ModuleNotFoundError:
        return "cpu"
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
    """Let Triton's interpreter remember what it computes anew each time, and leave out what nobody reads.

    Kernels give the same numbers and the same errors in about a fifth of the time, and run with every release of
    `COMPARED`. Without effect before triton is imported, on compiled kernels, with other releases, and the second time.
    """
    interpreter: Any = sys.modules.get("triton.runtime.interpreter")  # Any: Triton has no types
    if interpreter is None or hasattr(interpreter, _DONE):
        return
    setattr(interpreter, _DONE, True)
    if sys.modules["triton"].__version__.startswith(COMPARED):
        for patch in (
            _mend,
            _patch_language_once,
            _skip_unread_overflows,
            _remember_dtypes,
            _remember_block_types,
            _share_shapes,
            _know_tensors,
            _remember_operands,
        ):
            patch(interpreter)


COMPARED = ("3.6.", "3.7.", "3.8.", "3.9.")
"""Releases of Triton whose interpreter was compared with ours, piece by piece (`tests/run/test_interpreter.py`)."""
_DONE = "_fairdraw_speed_up"
_MOST = 4_000
"""Constants that are remembered: kernels have few, numbers of a loop may be many."""
_MOST_ENTRIES = 4_096
"""Of a block of one constant that is remembered; larger ones are made each time."""


def _mend(interpreter: Any) -> None:  # Any: Triton's modules have no types, here and below
    """Mend two faults, each of which ends kernels of ours in an error.

    The handle of a comparison says the type of its left side: once it is spread over a block, Triton 3.9 refuses it as
    a mask. And a number that ends a loop is an array of one entry, which NumPy 2.4 refuses to convert for Triton 3.6.
    """
    builder, patch_tensor = interpreter.InterpreterBuilder, interpreter._patch_lang_tensor
    compute, truth = builder.binary_op, interpreter.tl.int1

    @wraps(compute)
    def computed(self: Any, lhs: Any, rhs: Any, operation: Any) -> Any:
        made = compute(self, lhs, rhs, operation)
        if made.data.dtype == bool:
            made.dtype = truth
        return made

    @wraps(patch_tensor)
    def patched(tensor: Any, scope: Any) -> None:
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    builder.binary_op, interpreter._patch_lang_tensor = computed, patched


def _patch_language_once(interpreter: Any) -> None:
    """Make the patches of `triton.language` once, put them there once per launch, and in no device function.

    Every launch makes hundreds of functions anew, and so does every call of a jitted helper, which finds the language
    patched by the launch.
    """
    patch, language = interpreter._patch_lang, interpreter.tl
    is_builtin, nothing = language.core.is_builtin, interpreter._LangPatchScope()  # to restore: the launch does that
    made: dict[Any, Any] = {}

    @cache
    def modules_of(function: Any) -> tuple[Any, ...]:
        names = function.__globals__.values()
        return tuple(value for value in names if value is language or value is language.core)

    @wraps(patch)
    def patched_once(function: Any) -> Any:
        modules = modules_of(function)
        are_plain = [is_builtin(module.load) for module in modules]
        if modules and not any(are_plain):
            return nothing
        if not modules or not all(are_plain):
            return patch(function)
        if modules not in made:
            scope = patch(function)
            made[modules] = [(owner, name, getattr(owner, name)) for owner, name, _ in scope._changes]
            return scope
        scope = interpreter._LangPatchScope()
        for change in made[modules]:
            scope.set_attr(*change)
        return scope

    interpreter._patch_lang = patched_once


def _skip_unread_overflows(interpreter: Any) -> None:
    """Do not compute in int64 whether an int32 overflows: without `debug` Triton drops the answer unread."""
    builder = interpreter.interpreter_builder
    if not builder.options.debug:
        builder.options = replace(builder.options, sanitize_overflow=False)


def _remember_dtypes(interpreter: Any) -> None:
    """Remember NumPy's dtype of a type by its name: Triton makes a table of all types for every look."""
    find, known = interpreter._get_np_dtype, {}

    @wraps(find)
    def remembered(kind: Any) -> Any:
        name = kind.scalar.name
        if name not in known:
            known[name] = find(kind)
        return known[name]

    interpreter._get_np_dtype = remembered


def _remember_block_types(interpreter: Any) -> None:
    """Remember shape, number of elements and name of a block's type. Shapes that are refused are not remembered."""
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
    """Let tensors of one shape share its constants, which nothing changes."""
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


def _know_tensors(interpreter: Any) -> None:
    """Let an assignment of a tensor be one: Triton asks of every value that a kernel assigns what it is."""
    semantic, tensor = interpreter.interpreter_semantic, interpreter.tl.core.tensor
    make = semantic.to_tensor

    @wraps(make)
    def to_tensor(value: Any, check_type: bool = True) -> Any:
        return value if type(value) is tensor else make(value, check_type)

    semantic.to_tensor = to_tensor


def _remember_operands(interpreter: Any) -> None:
    """Take both sides of an operation as they are if they have one type, and remember blocks of constants.

    Triton finds out each time which type both sides have in common, and makes a block of a number beside a block.
    """
    kind, tensor, handle = interpreter.TritonSemantic, interpreter.tl.core.tensor, interpreter.TensorHandle
    check = kind.binary_op_type_checking_impl
    known: dict[Any, Any] = {}

    @wraps(check)
    def checked(self: Any, lhs: Any, rhs: Any, *flags: Any, **named: Any) -> Any:
        if type(lhs) is not tensor or self is not interpreter.interpreter_semantic or lhs.dtype.is_ptr():
            return check(self, lhs, rhs, *flags, **named)
        if type(rhs) is tensor:
            if lhs.type.name == rhs.type.name and not named.get("div_or_mod") and len(flags) < 4:
                return lhs, rhs
            return check(self, lhs, rhs, *flags, **named)
        if type(rhs) not in (int, float, bool):
            return check(self, lhs, rhs, *flags, **named)
        number = rhs.hex() if type(rhs) is float else rhs  # 0.0 and -0.0 are two constants
        key = lhs.type.name, type(rhs), number, flags, *named.items()
        if key in known:
            constant = known[key]
            return lhs, tensor(handle(constant.handle.data.copy(), constant.handle.dtype), constant.type)
        left, right = check(self, lhs, rhs, *flags, **named)
        if left is lhs and right.handle.data.size <= _MOST_ENTRIES and len(known) < _MOST:
            known[key] = tensor(right.handle.clone(), right.type)
        return left, right

    kind.binary_op_type_checking_impl = checked
