"""Samplers that are correct and unlike the specification: no check may accuse them."""
