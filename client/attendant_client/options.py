"""Keyword options of the client's methods, all optional. Generated from types.py by `make proto`."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

from attendant_client.types import (
    Aggregation,
    ChunkOptions,
    Dtype,
    Effect,
    HeadReduce,
    Kind,
    LabelEffect,
    LayerOutput,
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


class EncodeOptions(TypedDict, total=False):
    """Options of `encode`."""

    model: str | None
    """Name or alias of the served model. None selects the default model."""

    outputs: Sequence[Output]
    """Outputs to return, at least one. Default: ['pooled']."""

    layers: Sequence[int] | Literal["all"]
    """Layers 0 (embedding output) to L, -L-1 to -1 from the end, or `all`. Default: [-1]."""

    layer_reduce: LayerReduce
    """How to combine several layers. Default: 'concat'."""

    pooling: Pooling | None
    """How to pool token vectors; None selects the model's pooling."""

    normalize: bool | None
    """Whether to scale pooled vectors to length 1; None selects the model's setting."""

    dimensions: int | None
    """Number of leading components of embeddings to return or use (Matryoshka truncation)."""

    truncation: Truncation
    """What to do with inputs over the token limit: reject, drop the end, drop the beginning, or drop tokens
    where the model's tokenizer does. Default: 'error'.
    """

    prompt_name: str | None
    """Name of a prompt of the model. Mutually exclusive with `prompt`."""

    prompt: str | None
    """Prompt to prepend to each text. An empty prompt selects none."""

    role: Role | None
    """What the texts are for a model that reads queries and documents differently. It selects the prompt, and
    the marker and expansion of the output `multi_vector`.
    """

    dtype: Dtype
    """Element type. int8 and ubinary are for pooled vectors only. Default: 'float32'."""

    chunks: ChunkOptions | Mapping[str, Any] | None
    """Split each text into chunks and return one vector per chunk in place of pooled vectors."""


class AttendOptions(TypedDict, total=False):
    """Options of `attend`."""

    model: str | None
    """Name or alias of the served model. None selects the default model."""

    kind: Kind
    """Kind of attention map; docs/maps.md has the formulas. Default: 'probs'."""

    layers: Sequence[int] | Literal["all"]
    """Layers 1 to L, -L to -1 from the end, or `all`. Default: 'all'."""

    heads: Sequence[int] | Literal["all"]
    """Heads 0 to H-1, or `all`. Default: 'all'."""

    head_reduce: HeadReduce
    """How to combine several heads. Default: 'none'."""

    layer_reduce: MapLayerReduce
    """How to combine several layers. Default: 'none'."""

    unit: UnitKind
    """Units that rows and columns stand for. Default: 'token'."""

    special_tokens: SpecialTokens
    """What to do with special tokens. Default: 'keep'."""

    segments: Segments
    """Segments of a pair to use as rows and columns. Default: 'all'."""

    top_p: float | None
    """Keep the largest values of each row, as few as reach this fraction of its total magnitude."""

    top_k: int | None
    """Keep at most this many of the largest values of each row."""

    truncation: Truncation
    """What to do with inputs over the token limit: reject, drop the end, drop the beginning, or drop tokens
    where the model's tokenizer does. Default: 'error'.
    """

    dtype: MapDtype
    """Element type. sqrt_uint8 requires values from 0 to 1 and base64. Default: 'float32'."""

    outputs: Sequence[LayerOutput]
    """Steps inside the layers to return in place of maps; docs/maps.md defines them. Default: []."""

    rows: Sequence[int] | Literal["all"]
    """Tokens to return `outputs` for, from 0, or `all`. Default: 'all'."""


class CompareOptions(TypedDict, total=False):
    """Options of `compare`."""

    model: str | None
    """Name or alias of the served model. None selects the default model."""

    layers: Sequence[int] | Literal["all"]
    """Layers 0 (embedding output) to L, -L-1 to -1 from the end, or `all`. Default: 'all'."""

    top_contributors: int
    """Number of top contributing words to return per occurrence. Default: 5."""


class SimilarityOptions(TypedDict, total=False):
    """Options of `similarity`."""

    model: str | None
    """Name or alias of the served model. None selects the default model."""

    pairs: Pairs
    """Pairs to compare: each query with each document, or by position. Default: 'all'."""

    similarity: SimilarityFunction | None
    """Similarity function. None selects the one that the model was trained for. Distances (euclidean, manhattan)
    count negatively, so that larger is always more similar. maxsim and sparse require a model with such a head.
    """

    dimensions: int | None
    """Number of leading components of embeddings to return or use (Matryoshka truncation)."""

    truncation: Truncation
    """What to do with inputs over the token limit: reject, drop the end, drop the beginning, or drop tokens
    where the model's tokenizer does. Default: 'error'.
    """

    query_prompt_name: str | None
    """Name of the prompt of queries."""

    query_prompt: str | None
    """Prompt to prepend to each query. An empty prompt selects none."""

    document_prompt_name: str | None
    """Name of the prompt of documents."""

    document_prompt: str | None
    """Prompt to prepend to each document. An empty prompt selects none."""

    explain: bool
    """Whether to explain each pair. Default: False."""

    unit: SimilarityUnit
    """Units of explanations. Requires `explain`. Default: 'token'."""

    top_k: int | None
    """Number of contributions to return per pair, largest magnitude first. Requires `explain`."""

    effect: Effect
    """How to measure the effect of each unit on the score. Requires `explain`. Default: 'none'."""


class RerankOptions(TypedDict, total=False):
    """Options of `rerank`."""

    model: str | None
    """Name or alias of the served model. None selects the default model."""

    top_n: int | None
    """Number of documents to return, best first."""

    raw_scores: bool
    """Whether to return logits instead of scores. Default: False."""

    truncation: Truncation
    """What to do with inputs over the token limit: reject, drop the end, drop the beginning, or drop tokens
    where the model's tokenizer does. Default: 'error'.
    """

    effect: LabelEffect
    """Whether to measure what each unit contributes to a score, by encoding the text without the unit. Default:
    'none'.
    """

    unit: SimilarityUnit | None
    """Units of effects. None is `word`. Requires `effect`."""

    explain_top: int | None
    """Number of documents to return effects for, best first. None is 3. Requires `effect`."""


class ClassifyOptions(TypedDict, total=False):
    """Options of `classify`."""

    model: str | None
    """Name or alias of the served model. None selects the default model."""

    top_k: int | None
    """Number of labels to return per input, best first."""

    raw_scores: bool
    """Whether to return logits instead of scores. Default: False."""

    truncation: Truncation
    """What to do with inputs over the token limit: reject, drop the end, drop the beginning, or drop tokens
    where the model's tokenizer does. Default: 'error'.
    """

    effect: LabelEffect
    """Whether to measure what each unit contributes to a score, by encoding the text without the unit. Default:
    'none'.
    """

    unit: SimilarityUnit | None
    """Units of effects. None is `word`. Requires `effect`."""

    labels: Sequence[str] | None
    """Labels to choose from, with a model of entailment; None selects the labels of the model."""

    template: str | None
    """Hypothesis about a text, with {} in place of a label, and {{ and }} for braces; None selects 'This example
    is {}.'
    """

    multi_label: bool
    """Whether to score each of `labels` independently: several of them, or none, can then score high. Default:
    False.
    """


class TokenClassifyOptions(TypedDict, total=False):
    """Options of `token_classify`."""

    model: str | None
    """Name or alias of the served model. None selects the default model."""

    aggregation: Aggregation
    """How to join labels to entities: not at all, of neighboring tokens, or of words, whose label is that of the
    first token, of the average of the scores, or of the highest score. Default: 'simple'.
    """

    truncation: Truncation
    """What to do with inputs over the token limit: reject, drop the end, drop the beginning, or drop tokens
    where the model's tokenizer does. Default: 'error'.
    """


class FillMaskOptions(TypedDict, total=False):
    """Options of `fill_mask`."""

    model: str | None
    """Name or alias of the served model. None selects the default model."""

    position: int | None
    """Index of the token to predict, the same in each input; None selects the mask tokens."""

    layers: Sequence[int] | Literal["all"]
    """Layers 0 (embedding output) to L, -L-1 to -1 from the end, or `all`. Default: [-1]."""

    top_k: int | None
    """Predictions per position and layer, 1 to 100; None selects 5, or all targets."""

    targets: Sequence[str] | None
    """The only entries of the vocabulary to return: entries, or texts of one token."""

    truncation: Truncation
    """What to do with inputs over the token limit: reject, drop the end, drop the beginning, or drop tokens
    where the model's tokenizer does. Default: 'error'.
    """
