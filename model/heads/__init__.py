"""Heads: what turns the hidden states of an encoder into labels, sparse vectors or token vectors, one file per head.

A head runs as a small graph over rows, (N, D) to (N, K). The server chooses the rows and combines the results.
"""

from model.heads.classifier import Classifier, ClassifierLayout, is_classifier, read_classifier
from model.heads.multi_vector import MultiVector, read_multi_vector
from model.heads.row_head import HeadLayout, RowHead
from model.heads.sparse import Sparse, VocabularyLayout, read_linear_sparse, read_splade

__all__ = [
    "Classifier", "ClassifierLayout", "HeadLayout", "MultiVector", "RowHead", "Sparse", "VocabularyLayout",
    "is_classifier", "read_classifier", "read_linear_sparse", "read_multi_vector", "read_splade",
]  # fmt: skip
