"""The measurements of an export: the contents of report.json and golden.json.

Last digits differ between machines, so the digest of an artifact does not cover these files.
"""

import base64
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import model_validator

from model.records import Count, Record

GoldenOutput = Literal[
    "embedding", "classification", "token_classification", "masked_lm", "sparse", "multi_vector", "multi_vector_query"
]
"""The type of a head. "multi_vector_query" has the vectors of texts as queries, of a model that distinguishes sides."""
SPARSE_ENTRIES = 1024
"""The greatest number of entries of a sparse vector in golden.json, those with the largest weights."""


class ParityRecord(Record):
    """The largest absolute difference between onnxruntime and torch over a grid of packed batches."""

    batches: int
    max_abs_difference: float
    tolerance: float


class AccuracyRecord(Record):
    """The smallest cosine similarity between float16 and float32 embeddings, over a number of texts.

    `float32_parts` are the parts of the encoder that stay in float32 to reach it.
    """

    texts: int
    min_cosine: float
    float32_parts: tuple[str, ...]


class GraphReport(Record):
    """Measurements of one graph; `accuracy` is set for float16."""

    parity: ParityRecord
    accuracy: AccuracyRecord | None = None


class Report(Record):
    """The measurements of an export, by graph. The server does not read them."""

    graphs: dict[str, GraphReport]


class GoldenHead(Record):
    """The results of a head in float32 for some of the texts.

    `texts` are the places of these texts, and `sizes` the number of values of each. `values` are the values of all in
    turn, and `ids` the entries of the vocabulary that they belong to, if any: little-endian float32 and int32 in
    base64.
    """

    texts: tuple[Count, ...]
    sizes: tuple[Count, ...]
    values: str
    ids: str | None = None

    @model_validator(mode="after")
    def check_sizes(self) -> "GoldenHead":
        """Raise ValueError if the numbers of values differ from the sizes, or a value is NaN or infinite."""
        values = _decode(self.values, "<f4")
        counts = {len(values)} | ({len(_decode(self.ids, "<i4"))} if self.ids is not None else set())
        if len(self.texts) != len(self.sizes) or counts != {sum(self.sizes)} or not np.isfinite(values).all():
            raise ValueError("values do not match the sizes, or are not finite")
        return self

    def has_ids_below(self, limit: int) -> bool:
        """Return whether all ids are entries of a vocabulary of this size."""
        ids = _decode(self.ids or "", "<i4")
        return not ids.size or bool(ids.min() >= 0 and ids.max() < limit)

    def split_values(self) -> list[NDArray[np.float32]]:
        """Return the values of each text."""
        return np.split(_decode(self.values, "<f4"), np.cumsum(self.sizes)[:-1])

    def split_ids(self) -> list[NDArray[np.int32]]:
        """Return the entries of the vocabulary that the values of each text belong to."""
        return np.split(_decode(self.ids or "", "<i4"), np.cumsum(self.sizes)[:-1])


class GoldenVectors(Record):
    """Reference results in float32 of every head for a few texts, as the server returns them without a prompt.

    - "embedding": the embedding.
    - "classification": the logits. A head with one label or a template reads a text and the next one as a pair.
    - "token_classification": the logits of each token.
    - "masked_lm": the probabilities of the likeliest entries at the token in the middle, `len(tokens) // 2`.
    - "sparse": the weights, at most `SPARSE_ENTRIES`, of a text as a document.
    - "multi_vector": the vectors of the tokens, of a text as a document.
    """

    texts: tuple[str, ...]
    heads: dict[GoldenOutput, GoldenHead]

    @model_validator(mode="after")
    def check_texts(self) -> "GoldenVectors":
        """Raise ValueError if a head has no text, or one that is missing."""
        if not all(head.texts and {*head.texts} <= {*range(len(self.texts))} for head in self.heads.values()):
            raise ValueError("a head without texts, or with a missing text")
        return self


def _decode(values: str, dtype: str) -> NDArray[Any]:
    return np.frombuffer(base64.b64decode(values, validate=True), dtype)
