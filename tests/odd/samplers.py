"""Every odd but correct sampler, by contract: what the tests and `tools/record.py odd` run."""

from importlib import import_module

from fairdraw._core.contracts import CONTRACTS

ODD = {
    name: (import_module(f"fairdraw._mutants.{name}").right(), *import_module(f"odd.{name}").ODD)
    for name in CONTRACTS
    if name != "server"
}
"""The specification itself comes first."""
