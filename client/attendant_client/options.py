"""Options of the client's methods. All are optional; `types.py` and docs/api.md describe them."""

from collections.abc import Sequence
from typing import Literal, TypedDict

from attendant_client.types import (
    Aggregation,
    Dtype,
    Effect,
    HeadReduce,
    Kind,
    LabelEffect,
    LayerReduce,
    MapDtype,
    MapLayerReduce,
    Output,
    Pairs,
    Pooling,
    Role,
    Segments,
    SimilarityFunction,
    SimilarityUnit,
    SpecialTokens,
    Truncation,
    UnitKind,
)

Layers = Sequence[int] | Literal["all"]


class EncodeOptions(TypedDict, total=False):
    """Options of `encode`."""

    model: str
    outputs: Sequence[Output]
    layers: Layers
    layer_reduce: LayerReduce
    pooling: Pooling
    normalize: bool
    dimensions: int
    truncation: Truncation
    prompt_name: str
    prompt: str
    role: Role
    dtype: Dtype


class AttendOptions(TypedDict, total=False):
    """Options of `attend`."""

    model: str
    kind: Kind
    layers: Layers
    heads: Sequence[int] | Literal["all"]
    head_reduce: HeadReduce
    layer_reduce: MapLayerReduce
    unit: UnitKind
    special_tokens: SpecialTokens
    segments: Segments
    top_p: float
    top_k: int
    truncation: Truncation
    dtype: MapDtype


class CompareOptions(TypedDict, total=False):
    """Options of `compare`."""

    model: str
    layers: Layers
    top_contributors: int


class SimilarityOptions(TypedDict, total=False):
    """Options of `similarity`."""

    model: str
    pairs: Pairs
    similarity: SimilarityFunction
    dimensions: int
    truncation: Truncation
    query_prompt_name: str
    query_prompt: str
    document_prompt_name: str
    document_prompt: str
    explain: bool
    unit: SimilarityUnit
    top_k: int
    effect: Effect


class RerankOptions(TypedDict, total=False):
    """Options of `rerank`."""

    model: str
    top_n: int
    raw_scores: bool
    truncation: Truncation
    effect: LabelEffect
    unit: SimilarityUnit
    explain_top: int


class TokenClassifyOptions(TypedDict, total=False):
    """Options of `token_classify`."""

    model: str
    aggregation: Aggregation
    truncation: Truncation


class FillMaskOptions(TypedDict, total=False):
    """Options of `fill_mask`."""

    model: str
    position: int
    layers: Layers
    top_k: int
    targets: Sequence[str]
    truncation: Truncation


class ClassifyOptions(TypedDict, total=False):
    """Options of `classify`."""

    model: str
    top_k: int
    raw_scores: bool
    truncation: Truncation
    effect: LabelEffect
    unit: SimilarityUnit
