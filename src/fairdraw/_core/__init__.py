"""What every check is made of: failures, budgets, seeds, how a sampler is called."""
