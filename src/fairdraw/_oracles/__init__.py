"""Executable specifications, one per contract: slow, obvious, and sharing no code with any sampler."""
