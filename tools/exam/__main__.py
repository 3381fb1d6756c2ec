"""`python tools/exam`: see `exam.main`."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from exam.main import main

    sys.exit(main())
