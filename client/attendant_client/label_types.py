"""Responses of `rerank`, `classify` and `token_classify`.

Shapes: U units of a query or an input, V units of a document.
"""

from dataclasses import dataclass

from attendant_client.types import Floats, Unit


@dataclass(frozen=True, slots=True)
class RankExplanation:
    """The effect of each unit of a query and a document: the score less the score without the unit."""

    query_units: list[Unit]
    document_units: list[Unit]
    query_effects: Floats
    """float32, (U)"""
    document_effects: Floats
    """float32, (V)"""


@dataclass(frozen=True, slots=True)
class RankedDocument:
    """A document, by its index in the request. `explanation` is None without `effect` and beyond `explain_top`."""

    index: int
    relevance_score: float
    explanation: RankExplanation | None


@dataclass(frozen=True, slots=True)
class RerankResponse:
    """The documents, best first. Documents with equal scores are in request order.

    `scored_by` is what computed the scores: "cross_encoder", "late_interaction", "sparse" or "embeddings".
    """

    model: str
    precision: str
    results: list[RankedDocument]
    token_count: int
    truncated_inputs: int
    scored_by: str


@dataclass(frozen=True, slots=True)
class Label:
    """A label and its score. `effects` is the score less the score without each unit of the input."""

    label: str
    score: float
    effects: Floats | None
    """float32, (U)"""


@dataclass(frozen=True, slots=True)
class ClassifyResult:
    """The labels of one input, best first.

    `units` are its tokens or words. They and the labels' effects are None without `effect`, or if the input has no
    units.
    """

    token_count: int
    truncated: bool
    labels: list[Label]
    units: list[Unit] | None


@dataclass(frozen=True, slots=True)
class ClassifyResponse:
    """One result per input, in input order."""

    model: str
    precision: str
    results: list[ClassifyResult]
    token_count: int
    truncated_inputs: int


@dataclass(frozen=True, slots=True)
class Entity:
    """A part of an input with a label: characters [start, end) of a segment, 0 for the text or 1 for its pair."""

    label: str
    score: float
    text: str
    start: int
    end: int
    segment: int


@dataclass(frozen=True, slots=True)
class TokenClassifyResult:
    """The entities of one input, in the order of the text."""

    token_count: int
    truncated: bool
    entities: list[Entity]


@dataclass(frozen=True, slots=True)
class TokenClassifyResponse:
    """One result per input, in input order."""

    model: str
    precision: str
    results: list[TokenClassifyResult]
    token_count: int
    truncated_inputs: int
