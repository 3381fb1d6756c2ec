"""Limits on what a sampler costs: exact counts first, then ratios against upstream, then the roofline."""
