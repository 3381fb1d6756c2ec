"""Is our vLLM plugin right for one vLLM's source? `validate.validate` says so, with processes of its own.

validate     hashes, the two programs below, and the entry for a table      imports neither torch nor vLLM
soak         event traces with vLLM's objects and with the plugin           a program
traces       the event traces
"""
