"""The parts of `sampling`: `parameters` (arguments, noise, checks), and the backends `kernels` and `pytorch`."""
