"""Requests and responses of classify and rerank."""

from dataclasses import dataclass
from typing import Literal

from service.engine.schema.encode import Array, Input, Timing, Truncation, Wire
from service.engine.schema.explain import Unit
from service.engine.schema.similarity import SimilarityUnit

LabelEffect = Literal["none", "occlusion"]
ScoredBy = Literal["cross_encoder", "late_interaction", "sparse", "embeddings"]
"""What computes the scores of rerank: a model that reads pairs, or a similarity of vectors of each text."""
EXPLAIN_TOP = 3
"""Documents whose score rerank explains unless the request says otherwise."""
EFFECT_UNIT: SimilarityUnit = "word"
"""Units of effects unless the request says otherwise."""


@dataclass(frozen=True, slots=True)
class ClassifyRequest:
    """A classify request, as docs/api.md describes it.

    Attributes:
        top_k: Number of labels to return per input; None returns all.
        raw_scores: Whether scores are logits.
        effect: How to measure the effect of each unit on the scores.
        unit: Units of effects; None selects `EFFECT_UNIT`. Requires `effect`.
        max_inputs: See `EncodeRequest`, as for the other fields.
    """

    inputs: tuple[Input, ...]
    top_k: int | None = None
    raw_scores: bool = False
    truncation: Truncation = "error"
    effect: LabelEffect = "none"
    unit: SimilarityUnit | None = None
    wire: Wire = "json"
    deadline: float | None = None
    max_inputs: int | None = None


@dataclass(frozen=True, slots=True)
class LabelScore:
    """A label and its score; `effects` (U) is the score less the score without each unit, None if not requested."""

    label: str
    score: float
    effects: Array | None = None


@dataclass(frozen=True, slots=True)
class ClassifyResult:
    """The labels of one input by descending score; `units` is None without effects."""

    token_count: int
    truncated: bool
    labels: list[LabelScore]
    units: list[Unit] | None = None


@dataclass(frozen=True, slots=True)
class ClassifyResponse:
    model: str
    precision: str
    results: list[ClassifyResult]
    token_count: int
    truncated_inputs: int
    timing: Timing


@dataclass(frozen=True, slots=True)
class RerankRequest:
    """A rerank request, as docs/api.md describes it.

    Attributes:
        top_n: Number of documents to return; None returns all.
        raw_scores: Whether scores of a cross-encoder are logits.
        effect: How to measure the effect of each unit on the score of a document.
        explain_top: Number of documents with effects, best first; None selects `EXPLAIN_TOP`. Requires `effect`.
        returned_bytes: The size of the documents that the adapter adds to the response.

    Other fields are as in `ClassifyRequest`.
    """

    query: str
    documents: tuple[str, ...]
    top_n: int | None = None
    raw_scores: bool = False
    truncation: Truncation = "error"
    effect: LabelEffect = "none"
    unit: SimilarityUnit | None = None
    explain_top: int | None = None
    returned_bytes: int = 0
    wire: Wire = "json"
    deadline: float | None = None


@dataclass(frozen=True, slots=True)
class RankExplanation:
    """The effects of the units of the query (U) and of the document (V) on the score."""

    query_units: list[Unit]
    document_units: list[Unit]
    query_effects: Array
    document_effects: Array


@dataclass(frozen=True, slots=True)
class RankedDocument:
    """A document by its place in the request."""

    index: int
    score: float
    explanation: RankExplanation | None = None


@dataclass(frozen=True, slots=True)
class RerankResponse:
    """The documents by descending score; equal scores by index."""

    model: str
    precision: str
    results: list[RankedDocument]
    token_count: int
    truncated_inputs: int
    timing: Timing
    scored_by: ScoredBy
