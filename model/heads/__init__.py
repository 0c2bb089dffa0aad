"""Heads: what turns the hidden states of an encoder into labels, sparse vectors or token vectors, one file per head.

A head runs as a small graph over rows, (N, D) to (N, K). The server chooses the rows and combines the results.
"""

from model.heads.classifier import Classifier, ClassifierLayout, is_classifier, read_classifier
from model.heads.multi_vector import MultiVector, read_multi_vector
from model.heads.row_head import HeadLayout, RowHead
from model.heads.sparse import Sparse, VocabularyLayout, read_linear_sparse, read_splade
from model.heads.token_classifier import TokenClassifier, is_token_classifier, read_token_classifier

__all__ = [
    "Classifier", "ClassifierLayout", "HeadLayout", "MultiVector", "RowHead", "Sparse", "TokenClassifier",
    "VocabularyLayout", "is_classifier", "is_token_classifier", "read_classifier", "read_linear_sparse",
    "read_multi_vector", "read_splade", "read_token_classifier",
]  # fmt: skip
