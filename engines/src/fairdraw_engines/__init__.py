"""Samplers of other projects' engines for fairdraw, found by their names once this package is installed."""
