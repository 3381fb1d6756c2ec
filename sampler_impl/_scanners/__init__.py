"""Parts of the incremental scanners."""
