"""What several contracts use: argument checks, the backend choice, filters, Philox and the inverse CDF, launches.

`draws` and `kernels` are the same mathematics twice, in PyTorch and as Triton functions. `kinds` and `compiled` are why
a call that comes again takes the host little.
"""
