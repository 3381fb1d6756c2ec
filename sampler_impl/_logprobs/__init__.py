"""The parts of `sampler_impl.logprobs`: kernels, and their twin in PyTorch."""
