"""Running checks on a sampler: loading, known failures, mutation controls, cost estimates."""
