"""Validation of request content against the limits, the model and other fields."""
