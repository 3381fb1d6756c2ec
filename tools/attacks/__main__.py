"""Start the attacks: see runner.py."""

import sys
from pathlib import Path

if __name__ == "__main__":
    tools = Path(__file__).resolve().parents[1]
    sys.path.insert(0, str(tools))
    sys.path.append(str(tools.parent / "tests"))  # for the stub server
    from attacks.runner import main

    sys.exit(main())
