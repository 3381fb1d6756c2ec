"""`python tools/gpu_kernels`: see `gpu_kernels.build`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

if __name__ == "__main__":
    from gpu_kernels.build import main

    sys.exit(main())
