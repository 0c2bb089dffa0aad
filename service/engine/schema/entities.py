"""Requests and responses of token-classify."""

from dataclasses import dataclass
from typing import Literal

from service.engine.schema.encode import Input, Timing, Truncation, Wire

Aggregation = Literal["none", "simple", "first", "average", "max"]


@dataclass(frozen=True, slots=True)
class TokenClassifyRequest:
    """A token-classify request, as docs/api.md describes it.

    `aggregation` says how labels of tokens become entities. Other fields are as in `EncodeRequest`.
    """

    inputs: tuple[Input, ...]
    aggregation: Aggregation = "simple"
    truncation: Truncation = "error"
    wire: Wire = "json"
    deadline: float | None = None


@dataclass(frozen=True, slots=True)
class Entity:
    """Neighboring tokens with one label: the mean of their scores, and their characters [start, end) of a segment."""

    label: str
    score: float
    text: str
    start: int
    end: int
    segment: int


@dataclass(frozen=True, slots=True)
class TokenClassifyResult:
    token_count: int
    truncated: bool
    entities: list[Entity]


@dataclass(frozen=True, slots=True)
class TokenClassifyResponse:
    model: str
    precision: str
    results: list[TokenClassifyResult]
    token_count: int
    truncated_inputs: int
    timing: Timing
