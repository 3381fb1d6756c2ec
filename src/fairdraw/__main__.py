"""`python -m fairdraw`."""

from fairdraw.cli import main

if __name__ == "__main__":
    main()
