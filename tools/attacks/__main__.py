"""Start the attacks: see runner.py."""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from attacks.runner import main

    sys.exit(main())
