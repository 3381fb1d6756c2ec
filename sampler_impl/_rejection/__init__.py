"""The parts of `rejection`.

step   checked arguments        noise     random numbers in vLLM's order
kernels   the Triton backend    pytorch   the backend without Triton
"""
