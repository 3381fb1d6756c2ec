"""A small HTTP server with a toy language model, right or with one fault. It depends on nothing of the suite."""
