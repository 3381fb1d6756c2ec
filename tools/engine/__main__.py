"""`python tools/engine`: see `engine.main`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

if __name__ == "__main__":
    from engine.main import main

    sys.exit(main())
