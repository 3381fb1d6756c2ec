"""The parts of `step`: `inputs` (arguments and checks), the PyTorch backend, and the Triton kernels in their order.

edits -> scan -> settle -> emit        (`launch` says what each does; `rows` loads logits for all of them)
"""
