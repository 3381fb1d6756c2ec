"""Every tensor parameter of `sampler_impl` carries `# [dims] dtype`, in the glossary's words, the same everywhere.

Functions that are not public may have a type that says both (`sampler_impl/_shared/tensors.py`).

The whole step is a family of its own: its parameters lie by slot.

A Triton pointer cannot carry a tensor type, so the comment is the one form that stands in launcher and kernel alike.
Comments drift; this lint reads them.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "sampler_impl"
SOURCES = sorted(FOLDER.rglob("*.py"))

DIMENSIONS = {
    "batch_size": "requests",
    "num_tokens": "draft tokens of all requests",
    "max_spec_len": "most draft tokens of a request",
    "vocab_size": "width of a distribution",
    "num_rows": "rows of logits: requests, or the draft tokens of all requests",
    "length": "tokens of a padded row",
    "num_slots": "penalised requests that have counts",
    "num_rejected": "requests that recover a token",
    "num_tiles": "tiles of the vocabulary",
    "num_strips": "runs of tiles that one program measures; the last ones may be padding",
    "num_words": "slots through which kernels pass on what they found",
    "max_rows": "rows of the largest batch of a plan",
    "all_tiles": "tiles of the vocabulary and of edits",
    "num_runs": "runs of all tiles",
    "num_candidates": "most entries of a row that filters consider",
    "max_edits": "most edited ids of a row",
    "num_block_words": "words of a mask with a bit per block of tiles",
    "num_logprobs": "most log-probabilities that a request of the batch asks for",
    "...": "any shape",
}
DTYPES = {"int16", "int32", "int64", "float32", "float64", "bool", "any"}

SHAPE = re.compile(r"\[(?P<dims>[^\]]*)\](?: (?P<dtype>\w+))?")
TYPES = dict(re.findall(r"^(\w+) = Tensor  (# .*)$", (FOLDER / "_shared" / "tensors.py").read_text(), re.MULTILINE))
"""Shapes that have a name, which stands in place of a comment."""
TENSOR = re.compile(rf"\b(Tensor|{'|'.join(TYPES)})\b")


@dataclass(frozen=True)
class Shape:
    """One annotated line: the shape of `name`."""

    where: str
    name: str
    dims: str
    dtype: str | None


def read_shape(where: str, name: str, comment: str | None) -> Shape | None:
    """The first `[dims] dtype` of a comment."""
    found = SHAPE.match(comment.lstrip("# ")) if comment else None
    return Shape(where, name, found["dims"], found["dtype"]) if found else None


def comments_by_line(source: str) -> dict[int, str]:
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return {token.start[0]: token.string for token in tokens if token.type == tokenize.COMMENT}


def tensor_lines(tree: ast.AST) -> Iterator[tuple[str, int, str | None]]:
    """Name, line and type of every parameter, field and return value that is a tensor or a pointer to one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for field in (one for one in node.body if isinstance(one, ast.AnnAssign)):
                if ast.unparse(field.target).endswith("_ptr"):
                    yield f"{node.name}.{ast.unparse(field.target)}", field.lineno, None
        if isinstance(node, ast.FunctionDef):
            for arg in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
                if (kind := tensor_type(arg.annotation)) or arg.arg.endswith("_ptr"):
                    yield arg.arg, arg.end_lineno or arg.lineno, kind
            if node.returns is not None and (kind := tensor_type(node.returns)):
                yield f"return of {node.name}", node.returns.end_lineno or node.returns.lineno, kind
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and tensor_type(node.annotation):
            yield node.target.id, node.end_lineno or node.lineno, tensor_type(node.annotation)


def tensor_type(annotation: ast.expr | None) -> str | None:
    """`Tensor`, or the name of a shape, if the annotation has one."""
    found = TENSOR.search(ast.unparse(annotation)) if annotation is not None else None
    return found[0] if found else None


def shapes_and_gaps(source: str, filename: str) -> tuple[list[Shape], list[str]]:
    """The shapes of tensors, and the tensors without one."""
    comments = comments_by_line(source)
    shapes, gaps = [], []
    for name, line, kind in tensor_lines(ast.parse(source)):
        shape = read_shape(f"{filename}:{line}", name, TYPES.get(kind or "", comments.get(line)))
        if shape is None or shape.dtype is None:
            gaps.append(f"{filename}:{line}: {name} has no `# [dims] dtype`")
        else:
            shapes.append(shape)
    return shapes, gaps


def unknown_words(shape: Shape) -> Iterator[str]:
    """Dimensions are glossary words, numbers, or sums of them."""
    for dim in re.split(r"[,+]", shape.dims):
        word = dim.strip()
        if not (word in DIMENSIONS or word.isdigit()):
            yield f"{shape.where}: {shape.name} has dimension {word!r}, which is not in the glossary"
    if shape.dtype not in DTYPES:
        yield f"{shape.where}: {shape.name} has dtype {shape.dtype!r}, which is none of {sorted(DTYPES)}"


def disagreements(shapes: list[Shape]) -> Iterator[str]:
    """`foo` and `foo_ptr` are the same tensor wherever they occur in a family."""
    first: dict[tuple[bool, str], Shape] = {}
    for shape in shapes:
        of_step = shape.where.startswith(("_step/", "step.py", "vllm_plugin/_step"))
        known = first.setdefault((of_step, shape.name.removesuffix("_ptr")), shape)
        if (known.dims, known.dtype) != (shape.dims, shape.dtype):
            yield (
                f"{shape.where}: {shape.name} is [{shape.dims}] {shape.dtype}, "
                f"but at {known.where} it is [{known.dims}] {known.dtype}"
            )


def complaints(sources: dict[str, str]) -> list[str]:
    """All mistakes in the shape comments of these files."""
    read = [shapes_and_gaps(source, filename) for filename, source in sources.items()]
    shapes = [shape for found, _ in read for shape in found]
    gaps = [gap for _, missing in read for gap in missing]
    words = [word for shape in shapes for word in unknown_words(shape)]
    return [*gaps, *words, *disagreements([shape for shape in shapes if not shape.name.startswith("return of")])]


def test_shape_comments_are_complete_and_agree() -> None:
    assert complaints({str(path.relative_to(FOLDER)): path.read_text() for path in SOURCES}) == []


def test_lint_reads_launchers_and_kernels() -> None:
    names = {shape.name for path in SOURCES for shape in shapes_and_gaps(path.read_text(), path.name)[0]}
    assert {"draft_probs", "draft_probs_ptr", "output_token_ids_ptr", "return of rejection_sample"} <= names


LAUNCHER = "def launch(\n    probs: Tensor,  # [num_tokens, vocab_size] float32\n) -> None: ...\n"


@pytest.mark.parametrize(
    ("kernel", "complaint"),
    [
        ("def kernel(probs_ptr): ...\n", "no `# [dims] dtype`"),
        ("def kernel(\n    probs_ptr,  # [num_tokens, vocab_size]\n): ...\n", "no `# [dims] dtype`"),
        ("def kernel(\n    probs_ptr,  # [num_tokens, V] float32\n): ...\n", "but at launcher.py"),
        ("def kernel(\n    probs_ptr,  # [num_tokens, vocab_size] float64\n): ...\n", "but at launcher.py"),
        ("def kernel(\n    other_ptr,  # [B, V] float32\n): ...\n", "not in the glossary"),
        ("def kernel(\n    other_ptr,  # [num_tokens] fp32\n): ...\n", "none of"),
        ("def launch() -> Tensor: ...\n", "return of launch"),
        ("def launch(probs: RequestRows): ...\n", "but at launcher.py"),
    ],
    ids=["no comment", "no dtype", "other dims", "other dtype", "unknown dim", "unknown dtype", "return", "type"],
)
def test_wrong_shape_comment_is_caught(kernel: str, complaint: str) -> None:
    assert complaints({"launcher.py": LAUNCHER}) == []
    found = complaints({"launcher.py": LAUNCHER, "kernels.py": kernel})
    assert any(complaint in line for line in found), found


LAUNCH_OPTIONS = {"debug", "device", "device_type", "grid", "num_ctas", "num_stages", "num_warps", "stream", "warmup"}
"""Keywords that Triton takes from a launch for itself. Its interpreter does not; compiled, such a launch fails."""


def test_no_kernel_parameter_has_the_name_of_a_launch_option() -> None:
    functions = (node for path in SOURCES for node in ast.walk(ast.parse(path.read_text())))
    kernels = [f for f in functions if isinstance(f, ast.FunctionDef) and "triton.jit" in map(ast.unparse, callees(f))]
    assert len(kernels) >= 8
    assert {
        (kernel.name, arg.arg) for kernel in kernels for arg in kernel.args.args if arg.arg in LAUNCH_OPTIONS
    } == set()


def callees(function: ast.FunctionDef) -> Iterator[ast.expr]:
    """What decorates `function`, with or without arguments. Helpers (plain `@triton.jit`) are called, not launched."""
    for decorator in function.decorator_list:
        if isinstance(decorator, ast.Call):
            yield decorator.func
