"""What a person and a program are shown of a run."""
