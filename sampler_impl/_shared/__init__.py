"""What several contracts use: argument checks, the backend choice, filters, Philox and the inverse CDF.

`draws` and `kernels` are the same mathematics twice, in PyTorch and as Triton functions.
"""
