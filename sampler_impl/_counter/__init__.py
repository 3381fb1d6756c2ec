"""The parts of `rejection_counter`.

step         checked arguments             pytorch   the backend without Triton
launch       which kernels run, on what    arithmetic, slots   what the kernels share
measure, accept, draw                      the three kernels, in this order
"""
