"""Times of our steps beside those of others, on a GPU: `python tools/bench.py NAME`."""
