"""Heads: what turns the hidden states of an encoder into labels, one file per head.

A head runs as a small graph over rows, (N, D) to (N, K). The server chooses the rows and combines the results.
"""

from model.heads.classifier import Classifier, ClassifierLayout, is_classifier, read_classifier
from model.heads.row_head import HeadLayout, RowHead

__all__ = ["Classifier", "ClassifierLayout", "HeadLayout", "RowHead", "is_classifier", "read_classifier"]
