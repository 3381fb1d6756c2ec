"""Parts of the logits plan."""
