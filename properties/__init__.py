"""What must hold on every input: structure, relations, equality with the oracle and with upstream."""
