"""Pages of the manual that programs make: `python tools/pages.py NAME`, and the hook of mkdocs."""
