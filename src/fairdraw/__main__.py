"""`python -m fairdraw`."""

from fairdraw._cli.main import main

if __name__ == "__main__":
    main(prog_name="fairdraw")
