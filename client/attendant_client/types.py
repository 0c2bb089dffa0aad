"""The contract: the single definition of every request and response.

Frozen dataclasses describe the fields. The server derives JSON validation, OpenAPI and its gRPC conversion from them,
and the client decodes responses into them (`wire.py`). In `Annotated`, a string describes the field, and the
markers defined below set limits and the encoding of arrays. JSON responses omit a None field if its default is None;
otherwise, it is null.

Shapes: T tokens, W words, S spans, C chunks, D hidden size, E width of the embedding table, R rows and C columns of a
map, Q queries, N documents or occurrences, U and V units of a query (or an input) and of a document.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")


class AtMost(NamedTuple):
    """A list has at most as many items as the server's limit of this name."""

    limit: str


class Range(NamedTuple):
    """A number is at least `minimum` and at most `maximum`."""

    minimum: int | None = None
    maximum: int | None = None


class Above(NamedTuple):
    """A number is above `minimum` and at most `maximum`."""

    minimum: int
    maximum: int


class Items(NamedTuple):
    """A list has `minimum` to `maximum` items."""

    minimum: int
    maximum: int


class Alternative(NamedTuple):
    """In JSON, fields with the same `name` share one field of that name; at most one of them is set."""

    name: str


class Encoding(NamedTuple):
    """An array with this many axes.

    `uint8` is the dtype name of uint8 arrays. Arrays with this name follow the request's `encoding_format`; other
    arrays are always numbers in JSON.
    """

    axes: tuple[int, ...]
    uint8: str = ""


class Nullable(NamedTuple):
    """In JSON, a response contains null for None, although that is the default; a request may send null for it."""


class PresentWith(NamedTuple):
    """An empty list counts as present in a gRPC response if this other field is: proto3 lists have no presence."""

    field: str


Array = NDArray[Any]
Floats = NDArray[np.float32]
"""float32, one axis."""
Vector = Annotated[Array, Encoding((1, 2), "ubinary")]
"""(D), or (N, D) for N stacked layers."""
Matrix = Annotated[Array, Encoding((2, 3), "ubinary")]
"""(T, D), or (N, T, D) for N stacked layers."""
MapValues = Annotated[Array, Encoding((2,), "sqrt_uint8")]
Table = Annotated[Floats, Encoding((2,))]
Scores = Annotated[Floats, Encoding((1, 2))]
Offsets = tuple[int, int]
"""Character range [start, end)."""

Aggregation = Literal["none", "simple", "first", "average", "max"]
Attention = Literal["bidirectional", "causal"]
BlockKind = Literal["post", "double_post", "pre", "sandwich"]
Dtype = Literal["float32", "float16", "int8", "ubinary"]
Effect = Literal["none", "leave_one_out", "occlusion"]
EncodingFormat = Literal["float", "base64"]
HeadReduce = Literal["none", "mean", "max", "sum"]
Kind = Literal["probs", "scores", "norm", "block_norm", "projection"]
LabelEffect = Literal["none", "occlusion"]
LayerOutput = Literal[
    "input", "normalized", "queries", "keys", "values", "scores", "weights", "heads", "projected", "residual",
    "feed_forward", "output", "position", "bias", "content_to_position", "position_to_content",
]  # fmt: skip
LayerReduce = Literal["concat", "mean", "stack"]
MapDtype = Literal["float32", "float16", "sqrt_uint8"]
MapLayerReduce = Literal["none", "mean", "rollout"]
NormKind = Literal["layer_norm", "rms_norm"]
Operation = Literal[
    "encode", "attend", "compare", "similarity", "rerank", "classify", "token_classify", "fill_mask", "tokenize"
]  # fmt: skip
ChunkMode = Literal["separate", "late"]
ChunkUnit = Literal["sentence", "paragraph", "token", "span"]
Output = Literal["pooled", "tokens", "words", "spans", "static", "sparse", "multi_vector"]
Pairs = Literal["all", "zip"]
Pooling = Literal["mean", "cls", "max", "last", "mean_sqrt_len", "weighted_mean"]
PositionKind = Literal["table", "rotary", "relative"]
Precision = Literal["float32", "bfloat16", "float16", "int8"]
Provider = Literal["openvino", "cpu", "cuda"]
Role = Literal["query", "document"]
"""What a text is in retrieval. Some models read queries and documents differently."""
ScoredBy = Literal["cross_encoder", "late_interaction", "sparse", "embeddings"]
Segments = Literal["all", "a_to_a", "a_to_b", "b_to_a", "b_to_b"]
SimilarityFunction = Literal["cosine", "dot", "maxsim", "sparse", "euclidean", "manhattan"]
SimilarityUnit = Literal["token", "word"]
SpecialTokens = Literal["keep", "drop", "renormalize"]
TruncationSide = Literal["right", "left"]
Truncation = Literal["error", "right", "left", "auto"]
VectorSimilarity = Literal["cosine", "dot", "euclidean", "manhattan"]
"""A similarity function of pooled vectors."""
UnavailableReason = Literal["max_pooling", "nonlinear_dense_layers", "distance"]
UnitKind = Literal["token", "word", "span"]

DTYPES: dict[str, np.dtype[Any]] = {
    "float32": np.dtype("<f4"),
    "float16": np.dtype("<f2"),
    "int8": np.dtype("i1"),
    "ubinary": np.dtype("u1"),
    "sqrt_uint8": np.dtype("u1"),
}
MAX_DECIMALS = 9
MAX_CHUNKED_CHARACTERS = 2**19
"""Maximum length of a text to split into chunks, in characters: with one token per character, this takes 2.6 s and 110
MB.
"""
MIN_OCCURRENCES, MAX_OCCURRENCES = 2, 64
DEFAULT_PREDICTIONS, MAX_PREDICTIONS = 5, 100

Model = Annotated[str | None, "Name or alias of the served model. null selects the default model."]
Layers = Annotated[Sequence[int] | Literal["all"], AtMost("layers")]
InputTruncation = Annotated[
    Truncation,
    "What to do with inputs over the token limit: reject, drop the end, drop the beginning, or drop tokens where the "
    "model's tokenizer does.",
]
ArrayFormat = Annotated[EncodingFormat, "How to encode arrays: numbers, or little-endian bytes in base64."]
Dimensions = Annotated[
    int | None, Range(1), "Number of leading components of embeddings to return or use (Matryoshka truncation)."
]
RawScores = Annotated[bool, "Whether to return logits instead of scores."]
UnitEffect = Annotated[
    LabelEffect, "Whether to measure what each unit contributes to a score, by encoding the text without the unit."
]
EffectUnit = Annotated[SimilarityUnit | None, "Units of effects. null is `word`. Requires `effect`."]


@dataclass(frozen=True, slots=True)
class Input:
    """A text, a pair of texts, or token ids without special tokens."""

    text: Annotated[str | None, "A text. Mutually exclusive with `token_ids`."] = None
    pair: Annotated[str | None, "A second text, encoded with the first."] = None
    spans: Annotated[
        Sequence[Offsets], AtMost("spans"), Nullable(), "Character ranges `[start, end)` of the text."
    ] = ()
    token_ids: Annotated[Sequence[int] | None, AtMost("token_ids"), "Token ids, without special tokens."] = None


class TextInputs(Sequence[Input]):
    """Inputs that are texts, the usual case, stored as a list of texts. `Input` objects are created on access."""

    __slots__ = ("texts",)

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = texts

    def __len__(self) -> int:
        return len(self.texts)

    def __iter__(self) -> Iterator[Input]:
        return map(Input, self.texts)

    @overload
    def __getitem__(self, place: int) -> Input: ...
    @overload
    def __getitem__(self, place: slice) -> "TextInputs": ...
    def __getitem__(self, place: int | slice) -> "Input | TextInputs":
        return TextInputs(self.texts[place]) if isinstance(place, slice) else Input(self.texts[place])


Inputs = Annotated[Sequence[Input], AtMost("inputs"), "A text, or a list of texts and input objects."]
Texts = Annotated[Sequence[str], AtMost("inputs"), "A text or a list of texts."]


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of a request."""

    tokens: Annotated[int, "Tokens that the model read, special tokens and prompt included."]
    truncated_inputs: Annotated[int, "Number of truncated inputs."] = 0


def required(value: T | None) -> T:
    """Return a field of a response that must be present, as in `required(result.words)`.

    Raises:
        LookupError: The field is None.
    """
    if value is None:
        raise LookupError(
            "A required field of the response is None: it was not requested, or the model does not have it. "
            "Check the options of the call."
        )
    return value


def shortest(value: float) -> float:
    """Return the shortest decimal that equals `value` in float32, so that it prints as in an array."""
    return float(str(np.float32(value)))


class WithArrays:
    """A result with arrays, for which the `__eq__` of a dataclass would raise an error."""

    __slots__: tuple[str, ...] = ()
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        """Return whether all fields are equal."""
        if type(self) is not type(other):
            return NotImplemented
        pairs = ((getattr(self, name), getattr(other, name)) for name in self.__slots__)
        return all(np.array_equal(*pair) if isinstance(pair[0], np.ndarray) else pair[0] == pair[1] for pair in pairs)


class Counted:
    """Shortcuts to the `usage` of a response."""

    __slots__ = ()
    usage: Usage

    @property
    def token_count(self) -> int:
        """Tokens that the model read."""
        return self.usage.tokens

    @property
    def truncated_inputs(self) -> int:
        """Number of truncated inputs."""
        return self.usage.truncated_inputs


ModelName = Annotated[str, "Name of the served model."]
UsedPrecision = Annotated[Precision, "Precision of inference."]
TokenCount = Annotated[int, "Tokens that the model read, special tokens and prompt included."]
Truncated = Annotated[bool, "Whether the input was truncated."]


@dataclass(frozen=True, slots=True)
class Token:
    """A token. `start` and `end` are character offsets; `word_index` is None outside of words."""

    id: int
    text: str
    start: int
    end: int
    word_index: int | None
    segment: int
    special: bool


@dataclass(frozen=True, slots=True)
class Word:
    """A word. `start` and `end` are character offsets."""

    text: str
    start: int
    end: int
    segment: int


@dataclass(frozen=True, slots=True)
class Unit:
    """A token, word or span that a row or column of a map stands for.

    `word_index` is the word's index in the results of encode and tokenize, or None for other units.
    """

    text: str
    start: int
    end: int
    segment: int
    special: bool
    word_index: Annotated[int | None, Nullable()] = None


# Encode


@dataclass(frozen=True, slots=True)
class ChunkOptions:
    """Options for splitting texts into chunks."""

    by: Annotated[
        ChunkUnit,
        "What chunks are made of: sentences, paragraphs, words up to a number of tokens, or one chunk per `spans` item "
        "of the input. A longer sentence or paragraph is split.",
    ] = "sentence"
    max_tokens: Annotated[
        int | None,
        Range(1),
        "Maximum tokens of a chunk, at most what the model's limit leaves beside prompt and special tokens. null is "
        "that number or, if `mode` is `late`, a quarter of it, but at most 256.",
    ] = None
    overlap_tokens: Annotated[
        int,
        Range(0),
        "A chunk begins with the last sentences, paragraphs or words of the previous one, as many as have at most this "
        "number of tokens.",
    ] = 0
    merge: Annotated[bool, "Whether a chunk has as many sentences or paragraphs as fit, or one."] = True
    mode: Annotated[
        ChunkMode,
        "`separate` encodes each chunk alone. `late` encodes as much of the text at once as the model accepts; then a "
        "chunk's vector is the mean of its tokens.",
    ] = "separate"
    language: Annotated[
        str,
        "ISO 639 code of the language, whose abbreviations end no sentence. Codes unknown to sentencex, which finds "
        "sentences, stand for English.",
    ] = "en"


@dataclass(frozen=True, slots=True)
class EncodeRequest:
    """A request for embeddings."""

    inputs: Inputs
    model: Model = None
    outputs: Annotated[Sequence[Output], AtMost("outputs"), "Outputs to return, at least one."] = ("pooled",)
    layers: Annotated[Layers, "Layers 0 (embedding output) to L, -L-1 to -1 from the end, or `all`."] = (-1,)
    layer_reduce: Annotated[LayerReduce, "How to combine several layers."] = "concat"
    pooling: Annotated[Pooling | None, "How to pool token vectors; null selects the model's pooling."] = None
    normalize: Annotated[
        bool | None, "Whether to scale pooled vectors to length 1; null selects the model's setting."
    ] = None
    dimensions: Dimensions = None
    truncation: InputTruncation = "error"
    prompt_name: Annotated[str | None, "Name of a prompt of the model. Mutually exclusive with `prompt`."] = None
    prompt: Annotated[str | None, "Prompt to prepend to each text. An empty prompt selects none."] = None
    role: Annotated[
        Role | None,
        "What the texts are for a model that reads queries and documents differently. It selects the prompt, and the "
        "marker and expansion of the output `multi_vector`.",
    ] = None
    encoding_format: ArrayFormat = "float"
    dtype: Annotated[Dtype, "Element type. int8 and ubinary are for pooled vectors only."] = "float32"
    chunks: Annotated[
        ChunkOptions | None, "Split each text into chunks and return one vector per chunk in place of pooled vectors."
    ] = None


@dataclass(frozen=True, slots=True)
class Chunk:
    """A chunk of a text. `start` and `end` are character offsets; tokens are counted without special tokens."""

    text: str
    start: int
    end: int
    token_count: int


@dataclass(frozen=True, slots=True, eq=False)
class SparseVector(WithArrays):
    """The N vocabulary entries with a positive weight, in ascending order of their ids."""

    token_ids: Annotated[NDArray[np.int32], "Ids of the entries, ascending, (N)."]
    tokens: Annotated[list[str], "Texts of the entries in the vocabulary, (N)."]
    weights: Annotated[Array, Encoding((1,), "ubinary"), "Weights, (N)."]


@dataclass(frozen=True, slots=True, eq=False)
class EncodeResult(WithArrays):
    """The result of one input; only requested outputs are present."""

    token_count: TokenCount
    truncated: Truncated
    tokens: Annotated[list[Token] | None, "Tokens, with the outputs `tokens` or `static`."] = None
    words: Annotated[list[Word] | None, PresentWith("word_vectors"), "Words, with the output `words`."] = None
    pooled: Annotated[Vector | None, "Pooled vector, (D) or (N, D) for N stacked layers."] = None
    token_vectors: Annotated[Matrix | None, "One vector per token, (T, D)."] = None
    word_vectors: Annotated[Matrix | None, "One vector per word, (W, D): the mean of its tokens."] = None
    span_vectors: Annotated[Matrix | None, "One vector per span, (S, D): the mean of its tokens."] = None
    static_vectors: Annotated[Matrix | None, "One row of the embedding table per token, (T, E)."] = None
    sparse: Annotated[SparseVector | None, "Sparse vector over the vocabulary."] = None
    multi_vector: Annotated[
        Array | None, Encoding((2,), "ubinary"), "Vectors of length 1 for late interaction, (K, D)."
    ] = None
    multi_vector_tokens: Annotated[
        list[Token] | None, PresentWith("multi_vector"), "The K tokens of `multi_vector`."
    ] = None
    chunks: Annotated[list[Chunk] | None, PresentWith("chunk_vectors"), "The C chunks of the text."] = None
    chunk_vectors: Annotated[Matrix | None, "One pooled vector per chunk, (C, D)."] = None


@dataclass(frozen=True, slots=True)
class EncodeResponse(Counted):
    """One result per input, in input order."""

    model: ModelName
    precision: UsedPrecision
    results: Annotated[list[EncodeResult], "One result per input, in the order of the inputs."]
    usage: Usage
    prompt_name: Annotated[str | None, "Name of the applied prompt."]
    prompt: Annotated[str | None, "Applied prompt; null if none was applied."]


# Tokenize


@dataclass(frozen=True, slots=True)
class TokenizeRequest:
    """A request for the tokens and words of texts, untruncated."""

    inputs: Inputs
    model: Model = None


@dataclass(frozen=True, slots=True)
class TokenizeResult:
    """The tokens and words of one input, untruncated."""

    token_count: Annotated[int, "Number of tokens, special tokens included."]
    tokens: list[Token]
    words: list[Word]


@dataclass(frozen=True, slots=True)
class TokenizeResponse(Counted):
    """One result per input, in input order."""

    model: ModelName
    results: Annotated[list[TokenizeResult], "One result per input, in the order of the inputs."]
    usage: Usage


# Attend


@dataclass(frozen=True, slots=True)
class AttendRequest:
    """A request for attention maps."""

    inputs: Inputs
    model: Model = None
    kind: Annotated[Kind, "Kind of attention map; docs/maps.md has the formulas."] = "probs"
    layers: Annotated[Layers, "Layers 1 to L, -L to -1 from the end, or `all`."] = "all"
    heads: Annotated[Sequence[int] | Literal["all"], AtMost("heads"), "Heads 0 to H-1, or `all`."] = "all"
    head_reduce: Annotated[HeadReduce, "How to combine several heads."] = "none"
    layer_reduce: Annotated[MapLayerReduce, "How to combine several layers."] = "none"
    unit: Annotated[UnitKind, "Units that rows and columns stand for."] = "token"
    special_tokens: Annotated[SpecialTokens, "What to do with special tokens."] = "keep"
    segments: Annotated[Segments, "Segments of a pair to use as rows and columns."] = "all"
    top_p: Annotated[
        float | None,
        Above(0, 1),
        "Keep the largest values of each row, as few as reach this fraction of its total magnitude.",
    ] = None
    top_k: Annotated[int | None, Range(1), "Keep at most this many of the largest values of each row."] = None
    decimals: Annotated[
        int | None, Range(1, MAX_DECIMALS), "Decimal places of values, with `encoding_format` float."
    ] = None
    truncation: InputTruncation = "error"
    encoding_format: ArrayFormat = "float"
    dtype: Annotated[MapDtype, "Element type. sqrt_uint8 requires values from 0 to 1 and base64."] = "float32"
    outputs: Annotated[
        Sequence[LayerOutput],
        AtMost("layer_outputs"),
        "Steps inside the layers to return in place of maps; docs/maps.md defines them.",
    ] = ()
    rows: Annotated[
        Sequence[int] | Literal["all"], AtMost("rows"), "Tokens to return `outputs` for, from 0, or `all`."
    ] = "all"


@dataclass(frozen=True, slots=True, eq=False)
class SparseMatrix(WithArrays):
    """The largest values of each row in CSR format, in descending order; `indices` refer to the result's units."""

    indptr: NDArray[np.int32]
    indices: NDArray[np.int32]
    values: Annotated[Array, Encoding((1,), "sqrt_uint8")]
    dropped_mass: Annotated[Floats, "Sum of the dropped values of each row, (R)."]


@dataclass(frozen=True, slots=True, eq=False)
class AttentionMap(WithArrays):
    """One map with R rows (queries) and C columns (keys): either `matrix` (R, C), or `sparse`."""

    layer: Annotated[int | None, "Layer, 1 to L; null if layers were combined."]
    head: Annotated[int | None, "Head, 0 to H-1; null if heads were combined."]
    matrix: Annotated[MapValues | None, Alternative("matrix"), "Values, (R, C)."]
    sparse: Annotated[SparseMatrix | None, Alternative("matrix")]
    excluded_mass: Annotated[Floats | None, "Sum of each row over units that are not columns, (R); null for scores."]
    bias_share: Annotated[
        Floats | None, "Contribution of the biases to each row, (R); for the kind projection without rollout."
    ]
    empty_rows: Annotated[list[int], "Rows of zeros: all their mass was on units that are not columns."]


LayerRows = Annotated[Array, Encoding((2,), "sqrt_uint8")]
HeadRows = Annotated[Array, Encoding((3,), "sqrt_uint8")]


@dataclass(frozen=True, slots=True, eq=False)
class LayerOutputs(WithArrays):
    """The requested steps inside one layer, for R tokens and H heads of size d, in a text of T tokens."""

    layer: Annotated[int, "Layer, 1 to L."]
    heads_of: Annotated[list[int], "The head of each item of the arrays with H items."]
    input: Annotated[LayerRows | None, "Hidden states that the layer reads, (R, D)."] = None
    normalized: Annotated[LayerRows | None, "What queries, keys and values are computed from, (R, D)."] = None
    queries: Annotated[HeadRows | None, "Queries, (H, R, d)."] = None
    keys: Annotated[HeadRows | None, "Keys of all tokens, (H, T, d)."] = None
    values: Annotated[HeadRows | None, "Values of all tokens, (H, T, d)."] = None
    scores: Annotated[HeadRows | None, "Scaled dot products with position bias, before the mask, (H, R, T)."] = None
    weights: Annotated[HeadRows | None, "Attention weights, (H, R, T). Rows sum to 1."] = None
    heads: Annotated[HeadRows | None, "Weighted sums of the values, (H, R, d)."] = None
    projected: Annotated[LayerRows | None, "What attention adds to the residual stream, (R, D)."] = None
    residual: Annotated[LayerRows | None, "Residual stream after attention, (R, D)."] = None
    feed_forward: Annotated[LayerRows | None, "What the feed-forward network adds to it, (R, D)."] = None
    output: Annotated[LayerRows | None, "Hidden states that the layer returns, (R, D)."] = None
    position: Annotated[
        LayerRows | None, "What the position adds to the embedding, (R, E), or the angles of its rotation, (R, d/2)."
    ] = None
    bias: Annotated[HeadRows | None, "What the distance of two tokens adds to their score, (H, R, T)."] = None
    content_to_position: Annotated[
        HeadRows | None, "Part of `bias` in DeBERTa: query and key of the distance, (H, R, T)."
    ] = None
    position_to_content: Annotated[
        HeadRows | None, "Part of `bias` in DeBERTa: key and query of the distance, (H, R, T)."
    ] = None


@dataclass(frozen=True, slots=True)
class AttendResult:
    """The maps of one input, or the steps inside its layers."""

    truncated: Truncated
    units: Annotated[list[Unit], "Tokens, words or spans."]
    rows: Annotated[list[int], "Index in `units` of each row."]
    columns: Annotated[list[int], "Index in `units` of each column."]
    maps: list[AttentionMap]
    layer_outputs: Annotated[list[LayerOutputs] | None, "One per layer, if `outputs` is set."] = None


@dataclass(frozen=True, slots=True)
class AttendResponse(Counted):
    """One result per input, in input order."""

    model: ModelName
    precision: UsedPrecision
    results: Annotated[list[AttendResult], "One result per input, in the order of the inputs."]
    usage: Usage


# Compare


@dataclass(frozen=True, slots=True)
class Occurrence:
    """A text, and either a range of its characters or the index of one of its words."""

    text: Annotated[str, "The text."]
    span: Annotated[Offsets | None, "Character range `[start, end)`. Mutually exclusive with `word_index`."] = None
    word_index: Annotated[int | None, Range(0), "Index of a word in the list that /v1/tokenize returns."] = None


@dataclass(frozen=True, slots=True)
class CompareRequest:
    """A request for the similarity of a word's occurrences in several texts, per layer."""

    occurrences: Annotated[
        Sequence[Occurrence],
        AtMost("occurrences"),
        Items(MIN_OCCURRENCES, MAX_OCCURRENCES),
        "Occurrences of a word.",
    ]
    model: Model = None
    layers: Annotated[Layers, "Layers 0 (embedding output) to L, -L-1 to -1 from the end, or `all`."] = "all"
    top_contributors: Annotated[int, Range(0), "Number of top contributing words to return per occurrence."] = 5


@dataclass(frozen=True, slots=True)
class Contributor:
    """A word that contributes to an occurrence, with its share of the contributions of all other words."""

    text: str
    start: int
    end: int
    share: float


@dataclass(frozen=True, slots=True)
class OccurrenceResult:
    """An occurrence and the words that contribute most to it, in descending order."""

    text: str
    start: int
    end: int
    contributors: list[Contributor]


@dataclass(frozen=True, slots=True, eq=False)
class LayerSimilarity(WithArrays):
    """Similarity of the N occurrences in one layer."""

    layer: Annotated[int, "Layer, 0 to L."]
    cosine: Annotated[Table, "Cosines, (N, N)."]
    centered: Annotated[Table, "Cosines after subtracting the mean of all tokens, (N, N)."]


@dataclass(frozen=True, slots=True, eq=False)
class CompareResponse(Counted, WithArrays):
    """Occurrences in request order, their static similarity, and their similarity per layer."""

    model: ModelName
    precision: UsedPrecision
    occurrences: Annotated[list[OccurrenceResult], "One result per occurrence, in the order of the request."]
    static: Annotated[Table, "Cosines of the static embeddings, (N, N)."]
    layers: Annotated[list[LayerSimilarity], "One element per requested layer."]
    usage: Usage


# Similarity


@dataclass(frozen=True, slots=True)
class SimilarityRequest:
    """A request for the similarity of queries and documents."""

    queries: Texts
    documents: Texts
    model: Model = None
    pairs: Annotated[Pairs, "Pairs to compare: each query with each document, or by position."] = "all"
    similarity: Annotated[
        SimilarityFunction | None,
        "Similarity function. null selects the one that the model was trained for. Distances (euclidean, manhattan) "
        "count negatively, so that larger is always more similar. maxsim and sparse require a model with such a head.",
    ] = None
    dimensions: Dimensions = None
    truncation: InputTruncation = "error"
    query_prompt_name: Annotated[str | None, "Name of the prompt of queries."] = None
    query_prompt: Annotated[str | None, "Prompt to prepend to each query. An empty prompt selects none."] = None
    document_prompt_name: Annotated[str | None, "Name of the prompt of documents."] = None
    document_prompt: Annotated[str | None, "Prompt to prepend to each document. An empty prompt selects none."] = None
    explain: Annotated[bool, "Whether to explain each pair."] = False
    unit: Annotated[SimilarityUnit, "Units of explanations. Requires `explain`."] = "token"
    top_k: Annotated[
        int | None,
        Range(1),
        "Number of contributions to return per pair, largest magnitude first. Requires `explain`.",
    ] = None
    effect: Annotated[Effect, "How to measure the effect of each unit on the score. Requires `explain`."] = "none"

    @property
    def pair_count(self) -> int:
        """Number of pairs."""
        return len(self.queries) if self.pairs == "zip" else len(self.queries) * len(self.documents)

    def index_pairs(self) -> list[tuple[int, int]]:
        """Return the indices (query, document) of each pair, queries outermost."""
        if self.pairs == "zip":
            return [(index, index) for index in range(len(self.queries))]
        return [(query, document) for query in range(len(self.queries)) for document in range(len(self.documents))]


@dataclass(frozen=True, slots=True)
class SimilarityText:
    """A query or a document."""

    token_count: TokenCount
    truncated: Truncated
    units: Annotated[list[Unit] | None, "Tokens or words, with `explain`."] = None


@dataclass(frozen=True, slots=True, eq=False)
class TopContributions(WithArrays):
    """The K contributions of the largest magnitude, in descending order of magnitude."""

    query_units: Annotated[list[int], "Query unit of each contribution."]
    document_units: Annotated[list[int], "Document unit of each contribution."]
    values: Annotated[Floats, "Contributions, (K)."]


@dataclass(frozen=True, slots=True)
class ContributionRest:
    """Terms of a score that are not listed as contributions."""

    special_tokens: float
    prompt: float
    bias: float
    dropped: float


@dataclass(frozen=True, slots=True)
class TokenMatch:
    """A query token and the document token with the largest dot product, by their indices in `units`.

    `value` is the dot product; with a model whose score is a mean, divided by the number of query tokens.
    """

    query_unit: int
    document_unit: int
    value: float


@dataclass(frozen=True, slots=True)
class SharedEntry:
    """A vocabulary entry with a weight in the query and in the document; `value` is the product of the weights."""

    token_id: int
    token: str
    value: float


@dataclass(frozen=True, slots=True, eq=False)
class SimilarityPair(WithArrays):
    """The explanation of one pair of U query units and V document units.

    The contributions, `matrix` (U, V) or `top`, and `rest` sum to the score. With the similarity "maxsim" or "sparse",
    `matches` or `products` are the terms of the score instead, and sum to it with `rest.dropped`.
    """

    query: Annotated[int, "Index of the query."]
    document: Annotated[int, "Index of the document."]
    score: Annotated[float, "The score. If contributions are available, they and `rest` sum to it."]
    matrix: Annotated[
        Table | None,
        Alternative("contributions"),
        "Contributions of pairs of units, (U, V), or the largest ones by magnitude; null if unavailable.",
    ]
    top: Annotated[TopContributions | None, Alternative("contributions")]
    rest: Annotated[
        ContributionRest | None, "Terms of the score that are not listed as contributions; null if unavailable."
    ]
    query_effects: Annotated[Floats | None, "Score less the score without each query unit, (U); null without `effect`."]
    document_effects: Annotated[
        Floats | None, "Score less the score without each document unit, (V); null without `effect`."
    ]
    matches: Annotated[list[TokenMatch] | None, "Terms of the score, with `maxsim`."] = None
    products: Annotated[list[SharedEntry] | None, "Terms of the score, with `sparse`, unless it is a distance."] = None


@dataclass(frozen=True, slots=True, eq=False)
class SimilarityResponse(Counted, WithArrays):
    """Scores, and the explanation of each pair."""

    model: ModelName
    precision: UsedPrecision
    similarity: Annotated[SimilarityFunction, "The similarity function."]
    scores: Annotated[Scores, "Scores of Q queries and N documents, (Q, N), or (Q) for zipped pairs."]
    queries: Annotated[list[SimilarityText], "The queries, in the order of the request."]
    documents: Annotated[list[SimilarityText], "The documents, in the order of the request."]
    pairs: Annotated[list[SimilarityPair] | None, "One element per pair, with `explain`."] = field(
        default=None, kw_only=True
    )
    contributions_unavailable: Annotated[
        UnavailableReason | None,
        "Reason why no pair has contributions; null if they are available or `explain` is false.",
    ]
    usage: Usage
    query_prompt_name: Annotated[str | None, "Name of the prompt of queries."]
    query_prompt: Annotated[str | None, "Prompt of queries; null if none was applied."]
    document_prompt_name: Annotated[str | None, "Name of the prompt of documents."]
    document_prompt: Annotated[str | None, "Prompt of documents; null if none was applied."]


# Rerank


@dataclass(frozen=True, slots=True)
class RerankRequest:
    """A request for the order of documents by their relevance to a query."""

    query: Annotated[str, "The query."]
    documents: Annotated[Sequence[str], AtMost("documents"), "The documents."]
    model: Model = None
    top_n: Annotated[int | None, Range(1), "Number of documents to return, best first."] = None
    raw_scores: RawScores = False
    truncation: InputTruncation = "error"
    effect: UnitEffect = "none"
    unit: EffectUnit = None
    explain_top: Annotated[
        int | None, Range(1), "Number of documents to return effects for, best first. null is 3. Requires `effect`."
    ] = None


@dataclass(frozen=True, slots=True, eq=False)
class RankExplanation(WithArrays):
    """The effect of each unit of a query and a document: the score less the score without the unit."""

    query_units: Annotated[list[Unit], "Tokens or words of the query."]
    document_units: Annotated[list[Unit], "Tokens or words of the document."]
    query_effects: Annotated[Floats, "Score less the score without each query unit, (U)."]
    document_effects: Annotated[Floats, "Score less the score without each document unit, (V)."]


@dataclass(frozen=True, slots=True)
class RankedDocument:
    """A document and its score."""

    index: Annotated[int, "Index of the document in the request."]
    relevance_score: Annotated[float, "The score. Scores of different models are not comparable."]
    explanation: Annotated[RankExplanation | None, "With `effect`, for the best documents."] = None


@dataclass(frozen=True, slots=True)
class RerankResponse(Counted):
    """The documents, best first. Documents with equal scores are in request order."""

    model: ModelName
    precision: UsedPrecision
    scored_by: Annotated[ScoredBy, "What computed the scores."]
    results: Annotated[list[RankedDocument], "The documents, best first."]
    usage: Usage


# Classify


@dataclass(frozen=True, slots=True)
class ClassifyRequest:
    """A request for the labels of texts."""

    inputs: Inputs
    model: Model = None
    top_k: Annotated[int | None, Range(1), "Number of labels to return per input, best first."] = None
    raw_scores: RawScores = False
    truncation: InputTruncation = "error"
    effect: UnitEffect = "none"
    unit: EffectUnit = None
    labels: Annotated[
        Sequence[str] | None,
        AtMost("labels"),
        "Labels to choose from, with a model of entailment; null selects the labels of the model.",
    ] = None
    template: Annotated[
        str | None,
        "Hypothesis about a text, with {} in place of a label, and {{ and }} for braces; null selects 'This example is "
        "{}.'",
    ] = None
    multi_label: Annotated[
        bool, "Whether to score each of `labels` independently: several of them, or none, can then score high."
    ] = False


@dataclass(frozen=True, slots=True, eq=False)
class Label(WithArrays):
    """A label and its score."""

    label: Annotated[str, "Name of the label."]
    score: Annotated[float, "The score."]
    effects: Annotated[Floats | None, "Score less the score without each unit, (U), with `effect`."] = None


@dataclass(frozen=True, slots=True)
class ClassifyResult:
    """The labels of one input."""

    token_count: TokenCount
    truncated: Truncated
    labels: Annotated[list[Label], "The labels, best first."]
    units: Annotated[list[Unit] | None, "Tokens or words, with `effect`."] = None


@dataclass(frozen=True, slots=True)
class ClassifyResponse(Counted):
    """One result per input, in input order."""

    model: ModelName
    precision: UsedPrecision
    results: Annotated[list[ClassifyResult], "One result per input, in the order of the inputs."]
    usage: Usage


# Token-classify


@dataclass(frozen=True, slots=True)
class TokenClassifyRequest:
    """A request for labeled spans of texts (named entities)."""

    inputs: Inputs
    model: Model = None
    aggregation: Annotated[
        Aggregation,
        "How to join labels to entities: not at all, of neighboring tokens, or of words, whose label is that of the "
        "first token, of the average of the scores, or of the highest score.",
    ] = "simple"
    truncation: InputTruncation = "error"


@dataclass(frozen=True, slots=True)
class Entity:
    """A labeled span (named entity): characters [start, end) of a segment, 0 for the text or 1 for its pair."""

    label: str
    score: float
    text: str
    start: int
    end: int
    segment: int


@dataclass(frozen=True, slots=True)
class TokenClassifyResult:
    """The entities of one input."""

    token_count: TokenCount
    truncated: Truncated
    entities: Annotated[list[Entity], "The entities, in the order of the text."]


@dataclass(frozen=True, slots=True)
class TokenClassifyResponse(Counted):
    """One result per input, in input order."""

    model: ModelName
    precision: UsedPrecision
    results: Annotated[list[TokenClassifyResult], "One result per input, in the order of the inputs."]
    usage: Usage


# Fill-mask


@dataclass(frozen=True, slots=True)
class FillMaskRequest:
    """A request for the words that a masked language model predicts."""

    inputs: Inputs
    model: Model = None
    position: Annotated[
        int | None, "Index of the token to predict, the same in each input; null selects the mask tokens."
    ] = None
    layers: Annotated[Layers, "Layers 0 (embedding output) to L, -L-1 to -1 from the end, or `all`."] = (-1,)
    top_k: Annotated[
        int | None,
        f"Predictions per position and layer, 1 to {MAX_PREDICTIONS}; null selects {DEFAULT_PREDICTIONS}, or all "
        "targets.",
    ] = None
    targets: Annotated[
        Sequence[str] | None,
        AtMost("targets"),
        "The only entries of the vocabulary to return: entries, or texts of one token.",
    ] = None
    truncation: InputTruncation = "error"


@dataclass(frozen=True, slots=True)
class Prediction:
    """An entry of the vocabulary and its probability among all entries."""

    token: str
    id: int
    probability: float


@dataclass(frozen=True, slots=True)
class LayerPredictions:
    """The predictions of one layer, 0 to L, most probable first."""

    layer: int
    predictions: list[Prediction]


@dataclass(frozen=True, slots=True)
class FilledPosition:
    """A token of an input: its index, and characters [start, end) of a segment, 0 for the text or 1 for its pair."""

    position: int
    start: int
    end: int
    segment: int
    layers: list[LayerPredictions]


@dataclass(frozen=True, slots=True)
class FillMaskResult:
    """The predictions for one input."""

    token_count: TokenCount
    truncated: Truncated
    positions: Annotated[list[FilledPosition], "The predicted tokens, in the order of the text."]


@dataclass(frozen=True, slots=True)
class FillMaskResponse(Counted):
    """One result per input, in input order."""

    model: ModelName
    precision: UsedPrecision
    results: Annotated[list[FillMaskResult], "One result per input, in the order of the inputs."]
    usage: Usage


# The served model


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of the server and of requests to a model."""

    max_inputs: int
    max_documents: int
    max_spans_per_input: int
    max_spans_per_request: int
    max_input_characters: int
    max_request_bytes: int
    max_grpc_message_bytes: int
    max_pending_request_bytes: int
    max_connections: int
    max_grpc_streams: int
    max_response_bytes: int
    max_explain_bytes: int
    max_queue_ms: int
    max_explain_queue_ms: int
    max_queue_tokens: int
    max_explain_queue_tokens: int
    max_timeout_ms: int
    header_timeout_ms: int
    body_timeout_ms: int


@dataclass(frozen=True, slots=True)
class DataFileRecord:
    """A training data file, with its size in bytes."""

    name: str
    size: int


@dataclass(frozen=True, slots=True)
class TrainingRecord:
    """Training record of a model. `initial_model` and `teacher` are None if unused."""

    objective: str
    initial_model: str | None
    teacher: str | None
    data: list[DataFileRecord]
    steps: int
    tokens: int
    seed: int
    precision: str
    validation_loss: float


@dataclass(frozen=True, slots=True)
class EvaluationRecord:
    """One measure of an evaluation, with its 95% confidence interval if there is one."""

    task: str
    file: str
    measure: str
    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class MultiVectorSide:
    """How a model with token vectors reads queries, or documents.

    `max_input_tokens` includes special tokens and the prompt, but not the marker, which is a token inserted before the
    text, and not the query expansion.
    """

    max_input_tokens: int
    marker: str | None


@dataclass(frozen=True, slots=True)
class QueryExpansion:
    """The tokens that fill up a query to `length` tokens. Other tokens attend to them only if `attended`."""

    token: str
    length: int
    attended: bool


@dataclass(frozen=True, slots=True)
class MultiVectorInfo:
    """The token vectors of a model such as ColBERT. `query_expansion` is None if the model does not expand queries."""

    dimensions: int
    query: MultiVectorSide
    document: MultiVectorSide
    query_expansion: QueryExpansion | None


@dataclass(frozen=True, slots=True)
class LayerStructure:
    """The structure of a model's layers.

    `block`: the norms follow the sums (post), or precede attention and feed-forward network (pre), or both (sandwich).
    double_post: as post, but after attention, the input of the layer is added and the sum normalized a second time.
    `positions`: a table whose rows are added to the embeddings, rotated queries and keys, or a bias of the scores that
    depends on the distance. `segments`: token type embeddings are added. `embedding_norm`: the sum of the embeddings is
    normalized. `attention_scale` is the factor of the dot products.
    """

    block: BlockKind
    norm: NormKind
    positions: list[PositionKind]
    segments: bool
    embedding_norm: bool
    head_size: int
    num_key_value_heads: int
    attention_scale: float
    intermediate_size: int
    gated: bool


@dataclass(frozen=True, slots=True)
class SparseInfo:
    """The sparse vectors of a model such as SPLADE.

    `similarity` is the function that compares them. `max_active` is the number of entries that a text keeps at most, or
    None for all.
    """

    similarity: VectorSimilarity
    max_active: int | None


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """The served model; proto/attendant/v1 documents the fields.

    `max_input_tokens` includes special tokens. `role_max_tokens` replaces it for queries or documents. `dimensions` is
    the size of pooled vectors, which concatenate the vectors of all `poolings`; `pooling` is the only one, or None if
    there are several. `training` is None unless the model was trained with Attendant. `operations` are the
    operations that the model supports, and `outputs` the outputs of encode.
    """

    name: str
    aliases: list[str]
    digest: str
    source: str
    revision: str | None
    license: str | None
    model_type: str
    num_hidden_layers: int
    num_attention_heads: int
    hidden_size: int
    dimensions: int
    vocab_size: int
    max_input_tokens: int
    role_max_tokens: dict[str, int]
    truncation_side: TruncationSide
    pooling: Pooling | None
    poolings: list[Pooling]
    normalize: bool
    prompts: dict[str, str]
    default_prompt_name: str | None
    precision: Precision
    provider: Provider
    threads: int
    backend_reason: str
    gpu_memory_bytes: int
    length_buckets: list[int]
    layers: list[int]
    operations: list[Operation]
    outputs: list[Output]
    labels: list[str]
    token_labels: list[str]
    mask_token: str | None
    unknown_token_id: int | None
    multi_vector: MultiVectorInfo | None
    sparse: SparseInfo | None
    attention: Attention
    attention_kinds: list[Kind]
    layer_outputs: list[LayerOutput]
    layer_structure: LayerStructure | None
    limits: Limits
    similarity: VectorSimilarity
    training: TrainingRecord | None
    evaluations: list[EvaluationRecord]
    version: str
