"""Attention maps and comparisons."""
