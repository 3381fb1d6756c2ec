"""Is our vLLM plugin right for one vLLM's source? `validate.validate` says so, with processes of its own.

validate     hashes, the programs below, and the entry for a table          imports neither torch nor vLLM
soak         event traces with vLLM's objects and with the plugin           a program, for model runner V1
traces       the event traces
v2_steps     random steps with vLLM's objects and with the plugin           a program, for model runner V2
v2_server    the steps
v2_device    on a CPU or on a GPU
v2_rows      what a row of ours may be to one of vLLM's
"""
