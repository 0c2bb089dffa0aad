"""Heads: convert hidden states to labels, words, sparse vectors or token vectors.

A head runs as a small graph over rows, (N, D) to (N, K). The server chooses the rows and combines the results.
"""
