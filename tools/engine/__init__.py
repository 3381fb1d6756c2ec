"""A real engine, end to end: on a CPU the plugin on against off, and tokens (`main`); on a GPU times (`card`)."""
