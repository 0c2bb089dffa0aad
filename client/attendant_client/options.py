"""Request options. All are optional; docs/api.md describes them."""

from collections.abc import Sequence
from typing import Literal, TypedDict

Output = Literal["pooled", "tokens", "words", "spans", "static", "sparse", "multi_vector"]
Layers = Sequence[int] | Literal["all"]


class EncodeOptions(TypedDict, total=False):
    """Options of `encode`."""

    model: str
    outputs: Sequence[Output]
    layers: Layers
    layer_reduce: Literal["concat", "mean", "stack"]
    pooling: Literal["mean", "cls", "max", "last"]
    normalize: bool
    dimensions: int
    truncation: Literal["error", "right", "left", "auto"]
    prompt_name: str
    prompt: str
    role: Literal["query", "document"]
    dtype: Literal["float32", "float16", "int8", "ubinary"]


class AttendOptions(TypedDict, total=False):
    """Options of `attend`."""

    model: str
    kind: Literal["probs", "scores", "norm", "block_norm", "projection"]
    layers: Layers
    heads: Sequence[int] | Literal["all"]
    head_reduce: Literal["none", "mean", "max", "sum"]
    layer_reduce: Literal["none", "mean", "rollout"]
    unit: Literal["token", "word", "span"]
    special_tokens: Literal["keep", "drop", "renormalize"]
    segments: Literal["all", "a_to_a", "a_to_b", "b_to_a", "b_to_b"]
    top_p: float
    top_k: int
    truncation: Literal["error", "right", "left", "auto"]
    dtype: Literal["float32", "float16", "sqrt_uint8"]


class CompareOptions(TypedDict, total=False):
    """Options of `compare`."""

    model: str
    layers: Layers
    top_contributors: int


class SimilarityOptions(TypedDict, total=False):
    """Options of `similarity`."""

    model: str
    pairs: Literal["all", "zip"]
    similarity: Literal["cosine", "dot", "maxsim", "sparse", "euclidean", "manhattan"]
    dimensions: int
    truncation: Literal["error", "right", "left", "auto"]
    query_prompt_name: str
    query_prompt: str
    document_prompt_name: str
    document_prompt: str
    explain: bool
    unit: Literal["token", "word"]
    top_k: int
    effect: Literal["none", "leave_one_out", "occlusion"]


class RerankOptions(TypedDict, total=False):
    """Options of `rerank`."""

    model: str
    top_n: int
    raw_scores: bool
    truncation: Literal["error", "right", "left", "auto"]
    effect: Literal["none", "occlusion"]
    unit: Literal["token", "word"]
    explain_top: int


class TokenClassifyOptions(TypedDict, total=False):
    """Options of `token_classify`."""

    model: str
    aggregation: Literal["none", "simple", "first", "average", "max"]
    truncation: Literal["error", "right", "left", "auto"]


class FillMaskOptions(TypedDict, total=False):
    """Options of `fill_mask`."""

    model: str
    position: int
    layers: Layers
    top_k: int
    targets: Sequence[str]
    truncation: Literal["error", "right", "left", "auto"]


class ClassifyOptions(TypedDict, total=False):
    """Options of `classify`."""

    model: str
    top_k: int
    raw_scores: bool
    truncation: Literal["error", "right", "left", "auto"]
    effect: Literal["none", "occlusion"]
    unit: Literal["token", "word"]
