"""The measurements of an export: the contents of report.json and golden.json.

Last digits differ between machines, so the digest of an artifact does not cover these files.
"""

from typing import Annotated, get_args

from pydantic import Field

from model.manifest import Precision
from model.records import Record


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


class GoldenVectors(Record):
    """Reference vectors in float32: the mean of the last hidden states for each of N texts.

    `vectors` is (N, D) little-endian float32 in base64. `min_cosine` is the smallest cosine allowed between a vector
    and the same vector computed in each precision.
    """

    texts: tuple[str, ...]
    vectors: str
    min_cosine: Annotated[dict[Precision, float], Field(min_length=len(get_args(Precision)))]
