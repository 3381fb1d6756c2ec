"""Servers over HTTP: `connect("http://127.0.0.1:8000/v1")`. Reached by name, as adapters are; no layer imports it.

A spec is the address, and behind a `#` the model: `http://127.0.0.1:8000/v1#NAME`.
"""
