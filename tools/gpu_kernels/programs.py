"""Run the programs of findings about FlashInfer's kernels on this GPU: with the library of `python tools/gpu_kernels`
behind FlashInfer's own Python file, where the package would compile its kernels first.

    python tools/gpu_kernels/programs.py
"""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path

from fairdraw_engines import _flashinfer

FINDINGS = Path(__file__).resolve().parents[2] / "docs" / "findings"


def main() -> int:
    package = types.ModuleType("flashinfer")
    package.sampling = _flashinfer.load()  # type: ignore[attr-defined]  # a module made here
    sys.modules |= {"flashinfer": package, "flashinfer.sampling": package.sampling}
    for page in sorted(FINDINGS.glob("*.md")):
        text = page.read_text(encoding="utf-8")
        program, shown = ("".join(re.findall(rf"```{word}\n(.*?)```", text, re.DOTALL)) for word in ("python", "text"))
        if "import flashinfer" in program:
            print(f"== {page.stem}; the page shows:\n{shown}== it prints:", flush=True)
            exec(program, {"__name__": "__main__"})
    return 0


if __name__ == "__main__":
    sys.exit(main())
