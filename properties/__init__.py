"""What a sampler promises on every input: structure, relations between inputs, equality with the oracle and with upstream."""
