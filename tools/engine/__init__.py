"""A real engine on a CPU, end to end: the plugin on against off, tokens, and times. See `engine.main`."""
