"""The rejection sampler of a vLLM release that is too old to be installed without CUDA: one file of its source archive.

    python tools/install_vllm.py 0.11.0 --target .cache/vllm/0.11.0    # calls this

`vllm/v1/sample/rejection_sampler.py` needs torch, Triton and a handful of names of vLLM. The file is taken out of the
archive unchanged; the modules that it imports are stand-ins, written below. `rejection/vllm` runs on the folder, and
nothing else does.
"""

from __future__ import annotations

import tarfile
import tempfile
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

FIRST_RELEASE = (0, 8, 1)
"""The first whose rejection sampler is written in Triton."""

SAMPLER = PurePosixPath("vllm/v1/sample/rejection_sampler.py")

_ANY_FIELDS = '''from types import SimpleNamespace


class {name}(SimpleNamespace):
    """Stand-in of fairdraw: fields as they are given."""
'''

_STAND_INS = {
    "vllm/logger.py": "from logging import getLogger as init_logger\n",
    "vllm/triton_utils/__init__.py": "import triton\nimport triton.language as tl\n",
    "vllm/v1/__init__.py": "",
    "vllm/v1/sample/__init__.py": "",
    "vllm/v1/sample/metadata.py": _ANY_FIELDS.format(name="SamplingMetadata"),
    "vllm/v1/sample/logits_processor.py": _ANY_FIELDS.format(name="LogitsProcessors"),
    "vllm/v1/sample/ops/__init__.py": "",
    # Its callers filter before it, so nobody calls this.
    "vllm/v1/sample/ops/topk_topp_sampler.py": "def apply_top_k_top_p(*_):\n    raise NotImplementedError\n",
    "vllm/v1/spec_decode/__init__.py": "",
    "vllm/v1/spec_decode/metadata.py": _ANY_FIELDS.format(name="SpecDecodeMetadata"),
}
"""What `rejection_sampler.py` imports of vLLM in the releases 0.8.1 to 0.11.0."""


def is_single(release: str, oldest: tuple[int, ...]) -> bool:
    """Whether only the file can be had of `release`; `oldest` is the first that can be installed."""
    return FIRST_RELEASE <= tuple(int(part) for part in release.split(".") if part.isdigit()) < oldest


def unpack(release: str, target: Path, download: Callable[[str, Path], None]) -> None:
    """Put the file and its stand-ins into `target`.

    Args:
        download: Puts the source archive of a release into a folder.

    Raises:
        FileNotFoundError: If the archive does not have the file.
    """
    with tempfile.TemporaryDirectory() as scratch:
        download(release, Path(scratch))
        source = _read(next(Path(scratch).glob("vllm-*.tar.gz")), f"vllm-{release}/{SAMPLER}")
    # The version says what is here; adapters cut what follows the plus sign.
    files = {**_STAND_INS, "vllm/__init__.py": f'__version__ = "{release}+single.file"\n', str(SAMPLER): source}
    for name, text in files.items():
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def _read(archive: Path, name: str) -> str:
    with tarfile.open(archive) as opened:
        try:
            file = opened.extractfile(name)
        except KeyError:
            file = None
        if file is None:
            raise FileNotFoundError(name)
        return file.read().decode()
