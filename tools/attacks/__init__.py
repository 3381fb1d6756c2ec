"""Attacks on the product, by groups: what must never happen, whatever a sampler, a file, a server or a shell does."""
