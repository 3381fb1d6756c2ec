"""Samplers that are wrong on purpose, one fault each: the proof that every check can fail."""
