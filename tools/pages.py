"""Write a page of the manual: `python tools/pages.py NAME [OPTIONS]`; without a name, list them."""

import sys

from records import run_named

if __name__ == "__main__":
    sys.exit(run_named("manual"))
