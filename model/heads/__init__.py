"""Heads: what turns hidden states into labels, words, sparse vectors or token vectors, one file per head.

A head runs as a small graph over rows, (N, D) to (N, K). The server chooses the rows and combines the results.
"""

from model.heads.classifiers import (
    Classifier,
    ClassifierLayout,
    TokenClassifier,
    is_classifier,
    is_token_classifier,
    read_activation,
    read_classifier,
    read_token_classifier,
)
from model.heads.multi_vector import MultiVector, read_multi_vector, token_projection
from model.heads.row_head import HeadLayout, RowHead, empty_head
from model.heads.vocabulary import (
    MaskedLM,
    Sparse,
    VocabularyHead,
    VocabularyLayout,
    find_decoder,
    find_mask_token,
    is_masked_lm,
    read_linear_sparse,
    read_query_weights,
    read_splade,
    read_vocabulary_head,
)

__all__ = [
    "Classifier", "ClassifierLayout", "HeadLayout", "MaskedLM", "MultiVector", "RowHead", "Sparse", "TokenClassifier",
    "VocabularyHead", "VocabularyLayout", "empty_head", "find_decoder", "find_mask_token", "is_classifier",
    "is_masked_lm", "is_token_classifier", "read_activation", "read_classifier", "read_linear_sparse",
    "read_multi_vector", "read_query_weights", "read_splade", "read_token_classifier", "read_vocabulary_head",
    "token_projection",
]  # fmt: skip
