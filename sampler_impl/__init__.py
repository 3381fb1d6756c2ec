"""Production samplers: what an inference engine runs, and what the suite was first built for.

Nothing here imports the suite. Each contract has one public module: `rejection`, `penalties`, `thinking_budget`.
"""
