"""What a sampler promises on every input: structure, relations, equality with the oracle and with upstream."""
