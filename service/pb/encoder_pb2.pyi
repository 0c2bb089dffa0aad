from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Output(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OUTPUT_UNSPECIFIED: _ClassVar[Output]
    OUTPUT_POOLED: _ClassVar[Output]
    OUTPUT_TOKENS: _ClassVar[Output]
    OUTPUT_WORDS: _ClassVar[Output]
    OUTPUT_SPANS: _ClassVar[Output]
    OUTPUT_STATIC: _ClassVar[Output]

class LayerReduce(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LAYER_REDUCE_UNSPECIFIED: _ClassVar[LayerReduce]
    LAYER_REDUCE_CONCAT: _ClassVar[LayerReduce]
    LAYER_REDUCE_MEAN: _ClassVar[LayerReduce]
    LAYER_REDUCE_STACK: _ClassVar[LayerReduce]

class Pooling(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    POOLING_UNSPECIFIED: _ClassVar[Pooling]
    POOLING_MEAN: _ClassVar[Pooling]
    POOLING_CLS: _ClassVar[Pooling]
    POOLING_MAX: _ClassVar[Pooling]

class Truncation(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TRUNCATION_UNSPECIFIED: _ClassVar[Truncation]
    TRUNCATION_ERROR: _ClassVar[Truncation]
    TRUNCATION_RIGHT: _ClassVar[Truncation]
    TRUNCATION_LEFT: _ClassVar[Truncation]

class DType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DTYPE_UNSPECIFIED: _ClassVar[DType]
    DTYPE_FLOAT32: _ClassVar[DType]
    DTYPE_FLOAT16: _ClassVar[DType]
    DTYPE_INT8: _ClassVar[DType]
    DTYPE_UBINARY: _ClassVar[DType]
    DTYPE_SQRT_UINT8: _ClassVar[DType]

class AttentionKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ATTENTION_KIND_UNSPECIFIED: _ClassVar[AttentionKind]
    ATTENTION_KIND_PROBS: _ClassVar[AttentionKind]
    ATTENTION_KIND_SCORES: _ClassVar[AttentionKind]
    ATTENTION_KIND_NORM: _ClassVar[AttentionKind]
    ATTENTION_KIND_BLOCK_NORM: _ClassVar[AttentionKind]
    ATTENTION_KIND_PROJECTION: _ClassVar[AttentionKind]

class HeadReduce(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    HEAD_REDUCE_UNSPECIFIED: _ClassVar[HeadReduce]
    HEAD_REDUCE_NONE: _ClassVar[HeadReduce]
    HEAD_REDUCE_MEAN: _ClassVar[HeadReduce]
    HEAD_REDUCE_MAX: _ClassVar[HeadReduce]
    HEAD_REDUCE_SUM: _ClassVar[HeadReduce]

class MapLayerReduce(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MAP_LAYER_REDUCE_UNSPECIFIED: _ClassVar[MapLayerReduce]
    MAP_LAYER_REDUCE_NONE: _ClassVar[MapLayerReduce]
    MAP_LAYER_REDUCE_MEAN: _ClassVar[MapLayerReduce]
    MAP_LAYER_REDUCE_ROLLOUT: _ClassVar[MapLayerReduce]

class UnitKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    UNIT_KIND_UNSPECIFIED: _ClassVar[UnitKind]
    UNIT_KIND_TOKEN: _ClassVar[UnitKind]
    UNIT_KIND_WORD: _ClassVar[UnitKind]
    UNIT_KIND_SPANS: _ClassVar[UnitKind]

class SpecialTokens(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SPECIAL_TOKENS_UNSPECIFIED: _ClassVar[SpecialTokens]
    SPECIAL_TOKENS_KEEP: _ClassVar[SpecialTokens]
    SPECIAL_TOKENS_DROP: _ClassVar[SpecialTokens]
    SPECIAL_TOKENS_RENORMALIZE: _ClassVar[SpecialTokens]

class Segments(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SEGMENTS_UNSPECIFIED: _ClassVar[Segments]
    SEGMENTS_ALL: _ClassVar[Segments]
    SEGMENTS_A_TO_A: _ClassVar[Segments]
    SEGMENTS_A_TO_B: _ClassVar[Segments]
    SEGMENTS_B_TO_A: _ClassVar[Segments]
    SEGMENTS_B_TO_B: _ClassVar[Segments]
OUTPUT_UNSPECIFIED: Output
OUTPUT_POOLED: Output
OUTPUT_TOKENS: Output
OUTPUT_WORDS: Output
OUTPUT_SPANS: Output
OUTPUT_STATIC: Output
LAYER_REDUCE_UNSPECIFIED: LayerReduce
LAYER_REDUCE_CONCAT: LayerReduce
LAYER_REDUCE_MEAN: LayerReduce
LAYER_REDUCE_STACK: LayerReduce
POOLING_UNSPECIFIED: Pooling
POOLING_MEAN: Pooling
POOLING_CLS: Pooling
POOLING_MAX: Pooling
TRUNCATION_UNSPECIFIED: Truncation
TRUNCATION_ERROR: Truncation
TRUNCATION_RIGHT: Truncation
TRUNCATION_LEFT: Truncation
DTYPE_UNSPECIFIED: DType
DTYPE_FLOAT32: DType
DTYPE_FLOAT16: DType
DTYPE_INT8: DType
DTYPE_UBINARY: DType
DTYPE_SQRT_UINT8: DType
ATTENTION_KIND_UNSPECIFIED: AttentionKind
ATTENTION_KIND_PROBS: AttentionKind
ATTENTION_KIND_SCORES: AttentionKind
ATTENTION_KIND_NORM: AttentionKind
ATTENTION_KIND_BLOCK_NORM: AttentionKind
ATTENTION_KIND_PROJECTION: AttentionKind
HEAD_REDUCE_UNSPECIFIED: HeadReduce
HEAD_REDUCE_NONE: HeadReduce
HEAD_REDUCE_MEAN: HeadReduce
HEAD_REDUCE_MAX: HeadReduce
HEAD_REDUCE_SUM: HeadReduce
MAP_LAYER_REDUCE_UNSPECIFIED: MapLayerReduce
MAP_LAYER_REDUCE_NONE: MapLayerReduce
MAP_LAYER_REDUCE_MEAN: MapLayerReduce
MAP_LAYER_REDUCE_ROLLOUT: MapLayerReduce
UNIT_KIND_UNSPECIFIED: UnitKind
UNIT_KIND_TOKEN: UnitKind
UNIT_KIND_WORD: UnitKind
UNIT_KIND_SPANS: UnitKind
SPECIAL_TOKENS_UNSPECIFIED: SpecialTokens
SPECIAL_TOKENS_KEEP: SpecialTokens
SPECIAL_TOKENS_DROP: SpecialTokens
SPECIAL_TOKENS_RENORMALIZE: SpecialTokens
SEGMENTS_UNSPECIFIED: Segments
SEGMENTS_ALL: Segments
SEGMENTS_A_TO_A: Segments
SEGMENTS_A_TO_B: Segments
SEGMENTS_B_TO_A: Segments
SEGMENTS_B_TO_B: Segments

class EncodeRequest(_message.Message):
    __slots__ = ("model", "inputs", "outputs", "layers", "layer_reduce", "pooling", "normalize", "dimensions", "truncation", "dtype")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    LAYER_REDUCE_FIELD_NUMBER: _ClassVar[int]
    POOLING_FIELD_NUMBER: _ClassVar[int]
    NORMALIZE_FIELD_NUMBER: _ClassVar[int]
    DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
    TRUNCATION_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    model: str
    inputs: _containers.RepeatedCompositeFieldContainer[Input]
    outputs: _containers.RepeatedScalarFieldContainer[Output]
    layers: _containers.RepeatedScalarFieldContainer[int]
    layer_reduce: LayerReduce
    pooling: Pooling
    normalize: bool
    dimensions: int
    truncation: Truncation
    dtype: DType
    def __init__(self, model: _Optional[str] = ..., inputs: _Optional[_Iterable[_Union[Input, _Mapping]]] = ..., outputs: _Optional[_Iterable[_Union[Output, str]]] = ..., layers: _Optional[_Iterable[int]] = ..., layer_reduce: _Optional[_Union[LayerReduce, str]] = ..., pooling: _Optional[_Union[Pooling, str]] = ..., normalize: _Optional[bool] = ..., dimensions: _Optional[int] = ..., truncation: _Optional[_Union[Truncation, str]] = ..., dtype: _Optional[_Union[DType, str]] = ...) -> None: ...

class Input(_message.Message):
    __slots__ = ("text", "pair", "spans", "token_ids")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    PAIR_FIELD_NUMBER: _ClassVar[int]
    SPANS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    text: str
    pair: str
    spans: _containers.RepeatedCompositeFieldContainer[Span]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, text: _Optional[str] = ..., pair: _Optional[str] = ..., spans: _Optional[_Iterable[_Union[Span, _Mapping]]] = ..., token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class Span(_message.Message):
    __slots__ = ("start", "end")
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    start: int
    end: int
    def __init__(self, start: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class EncodeResponse(_message.Message):
    __slots__ = ("model", "precision", "results", "usage")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    model: str
    precision: str
    results: _containers.RepeatedCompositeFieldContainer[EncodeResult]
    usage: Usage
    def __init__(self, model: _Optional[str] = ..., precision: _Optional[str] = ..., results: _Optional[_Iterable[_Union[EncodeResult, _Mapping]]] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ...) -> None: ...

class EncodeResult(_message.Message):
    __slots__ = ("token_count", "truncated", "tokens", "words", "pooled", "token_vectors", "word_vectors", "span_vectors", "static_vectors")
    TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    WORDS_FIELD_NUMBER: _ClassVar[int]
    POOLED_FIELD_NUMBER: _ClassVar[int]
    TOKEN_VECTORS_FIELD_NUMBER: _ClassVar[int]
    WORD_VECTORS_FIELD_NUMBER: _ClassVar[int]
    SPAN_VECTORS_FIELD_NUMBER: _ClassVar[int]
    STATIC_VECTORS_FIELD_NUMBER: _ClassVar[int]
    token_count: int
    truncated: bool
    tokens: _containers.RepeatedCompositeFieldContainer[Token]
    words: _containers.RepeatedCompositeFieldContainer[Word]
    pooled: Tensor
    token_vectors: Tensor
    word_vectors: Tensor
    span_vectors: Tensor
    static_vectors: Tensor
    def __init__(self, token_count: _Optional[int] = ..., truncated: _Optional[bool] = ..., tokens: _Optional[_Iterable[_Union[Token, _Mapping]]] = ..., words: _Optional[_Iterable[_Union[Word, _Mapping]]] = ..., pooled: _Optional[_Union[Tensor, _Mapping]] = ..., token_vectors: _Optional[_Union[Tensor, _Mapping]] = ..., word_vectors: _Optional[_Union[Tensor, _Mapping]] = ..., span_vectors: _Optional[_Union[Tensor, _Mapping]] = ..., static_vectors: _Optional[_Union[Tensor, _Mapping]] = ...) -> None: ...

class EncodeStreamResponse(_message.Message):
    __slots__ = ("response", "error")
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    response: EncodeResponse
    error: Error
    def __init__(self, response: _Optional[_Union[EncodeResponse, _Mapping]] = ..., error: _Optional[_Union[Error, _Mapping]] = ...) -> None: ...

class Error(_message.Message):
    __slots__ = ("code", "reason", "message", "retry_after_ms", "request_id")
    CODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    code: int
    reason: str
    message: str
    retry_after_ms: int
    request_id: str
    def __init__(self, code: _Optional[int] = ..., reason: _Optional[str] = ..., message: _Optional[str] = ..., retry_after_ms: _Optional[int] = ..., request_id: _Optional[str] = ...) -> None: ...

class AttendRequest(_message.Message):
    __slots__ = ("model", "inputs", "truncation", "kind", "layers", "all_layers", "heads", "all_heads", "head_reduce", "layer_reduce", "unit", "special", "segments", "top_p", "top_k", "dtype")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    TRUNCATION_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    ALL_LAYERS_FIELD_NUMBER: _ClassVar[int]
    HEADS_FIELD_NUMBER: _ClassVar[int]
    ALL_HEADS_FIELD_NUMBER: _ClassVar[int]
    HEAD_REDUCE_FIELD_NUMBER: _ClassVar[int]
    LAYER_REDUCE_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    SPECIAL_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    model: str
    inputs: _containers.RepeatedCompositeFieldContainer[Input]
    truncation: Truncation
    kind: AttentionKind
    layers: _containers.RepeatedScalarFieldContainer[int]
    all_layers: bool
    heads: _containers.RepeatedScalarFieldContainer[int]
    all_heads: bool
    head_reduce: HeadReduce
    layer_reduce: MapLayerReduce
    unit: UnitKind
    special: SpecialTokens
    segments: Segments
    top_p: float
    top_k: int
    dtype: DType
    def __init__(self, model: _Optional[str] = ..., inputs: _Optional[_Iterable[_Union[Input, _Mapping]]] = ..., truncation: _Optional[_Union[Truncation, str]] = ..., kind: _Optional[_Union[AttentionKind, str]] = ..., layers: _Optional[_Iterable[int]] = ..., all_layers: _Optional[bool] = ..., heads: _Optional[_Iterable[int]] = ..., all_heads: _Optional[bool] = ..., head_reduce: _Optional[_Union[HeadReduce, str]] = ..., layer_reduce: _Optional[_Union[MapLayerReduce, str]] = ..., unit: _Optional[_Union[UnitKind, str]] = ..., special: _Optional[_Union[SpecialTokens, str]] = ..., segments: _Optional[_Union[Segments, str]] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ..., dtype: _Optional[_Union[DType, str]] = ...) -> None: ...

class AttendResponse(_message.Message):
    __slots__ = ("header", "map")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    MAP_FIELD_NUMBER: _ClassVar[int]
    header: AttendHeader
    map: AttentionMap
    def __init__(self, header: _Optional[_Union[AttendHeader, _Mapping]] = ..., map: _Optional[_Union[AttentionMap, _Mapping]] = ...) -> None: ...

class AttendHeader(_message.Message):
    __slots__ = ("model", "precision", "inputs")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    model: str
    precision: str
    inputs: _containers.RepeatedCompositeFieldContainer[AttendedInput]
    def __init__(self, model: _Optional[str] = ..., precision: _Optional[str] = ..., inputs: _Optional[_Iterable[_Union[AttendedInput, _Mapping]]] = ...) -> None: ...

class AttendedInput(_message.Message):
    __slots__ = ("truncated", "units", "rows", "columns", "map_count")
    TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    UNITS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    MAP_COUNT_FIELD_NUMBER: _ClassVar[int]
    truncated: bool
    units: _containers.RepeatedCompositeFieldContainer[Unit]
    rows: _containers.RepeatedScalarFieldContainer[int]
    columns: _containers.RepeatedScalarFieldContainer[int]
    map_count: int
    def __init__(self, truncated: _Optional[bool] = ..., units: _Optional[_Iterable[_Union[Unit, _Mapping]]] = ..., rows: _Optional[_Iterable[int]] = ..., columns: _Optional[_Iterable[int]] = ..., map_count: _Optional[int] = ...) -> None: ...

class Unit(_message.Message):
    __slots__ = ("text", "start", "end", "segment", "special")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    SPECIAL_FIELD_NUMBER: _ClassVar[int]
    text: str
    start: int
    end: int
    segment: int
    special: bool
    def __init__(self, text: _Optional[str] = ..., start: _Optional[int] = ..., end: _Optional[int] = ..., segment: _Optional[int] = ..., special: _Optional[bool] = ...) -> None: ...

class AttentionMap(_message.Message):
    __slots__ = ("input_index", "layer", "head", "matrix", "sparse", "excluded_mass", "bias_share", "no_mass_rows")
    INPUT_INDEX_FIELD_NUMBER: _ClassVar[int]
    LAYER_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    MATRIX_FIELD_NUMBER: _ClassVar[int]
    SPARSE_FIELD_NUMBER: _ClassVar[int]
    EXCLUDED_MASS_FIELD_NUMBER: _ClassVar[int]
    BIAS_SHARE_FIELD_NUMBER: _ClassVar[int]
    NO_MASS_ROWS_FIELD_NUMBER: _ClassVar[int]
    input_index: int
    layer: int
    head: int
    matrix: Tensor
    sparse: SparseMatrix
    excluded_mass: _containers.RepeatedScalarFieldContainer[float]
    bias_share: _containers.RepeatedScalarFieldContainer[float]
    no_mass_rows: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, input_index: _Optional[int] = ..., layer: _Optional[int] = ..., head: _Optional[int] = ..., matrix: _Optional[_Union[Tensor, _Mapping]] = ..., sparse: _Optional[_Union[SparseMatrix, _Mapping]] = ..., excluded_mass: _Optional[_Iterable[float]] = ..., bias_share: _Optional[_Iterable[float]] = ..., no_mass_rows: _Optional[_Iterable[int]] = ...) -> None: ...

class SparseMatrix(_message.Message):
    __slots__ = ("row_starts", "indices", "values", "rest_mass")
    ROW_STARTS_FIELD_NUMBER: _ClassVar[int]
    INDICES_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    REST_MASS_FIELD_NUMBER: _ClassVar[int]
    row_starts: _containers.RepeatedScalarFieldContainer[int]
    indices: _containers.RepeatedScalarFieldContainer[int]
    values: Tensor
    rest_mass: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, row_starts: _Optional[_Iterable[int]] = ..., indices: _Optional[_Iterable[int]] = ..., values: _Optional[_Union[Tensor, _Mapping]] = ..., rest_mass: _Optional[_Iterable[float]] = ...) -> None: ...

class CompareRequest(_message.Message):
    __slots__ = ("model", "occurrences", "layers", "all_layers", "draws_on")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    OCCURRENCES_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    ALL_LAYERS_FIELD_NUMBER: _ClassVar[int]
    DRAWS_ON_FIELD_NUMBER: _ClassVar[int]
    model: str
    occurrences: _containers.RepeatedCompositeFieldContainer[Occurrence]
    layers: _containers.RepeatedScalarFieldContainer[int]
    all_layers: bool
    draws_on: int
    def __init__(self, model: _Optional[str] = ..., occurrences: _Optional[_Iterable[_Union[Occurrence, _Mapping]]] = ..., layers: _Optional[_Iterable[int]] = ..., all_layers: _Optional[bool] = ..., draws_on: _Optional[int] = ...) -> None: ...

class Occurrence(_message.Message):
    __slots__ = ("text", "span", "word")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    SPAN_FIELD_NUMBER: _ClassVar[int]
    WORD_FIELD_NUMBER: _ClassVar[int]
    text: str
    span: Span
    word: int
    def __init__(self, text: _Optional[str] = ..., span: _Optional[_Union[Span, _Mapping]] = ..., word: _Optional[int] = ...) -> None: ...

class CompareResponse(_message.Message):
    __slots__ = ("model", "precision", "occurrences", "static", "layers")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    OCCURRENCES_FIELD_NUMBER: _ClassVar[int]
    STATIC_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    model: str
    precision: str
    occurrences: _containers.RepeatedCompositeFieldContainer[ComparedOccurrence]
    static: Tensor
    layers: _containers.RepeatedCompositeFieldContainer[LayerSimilarity]
    def __init__(self, model: _Optional[str] = ..., precision: _Optional[str] = ..., occurrences: _Optional[_Iterable[_Union[ComparedOccurrence, _Mapping]]] = ..., static: _Optional[_Union[Tensor, _Mapping]] = ..., layers: _Optional[_Iterable[_Union[LayerSimilarity, _Mapping]]] = ...) -> None: ...

class ComparedOccurrence(_message.Message):
    __slots__ = ("text", "start", "end", "draws_on")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    DRAWS_ON_FIELD_NUMBER: _ClassVar[int]
    text: str
    start: int
    end: int
    draws_on: _containers.RepeatedCompositeFieldContainer[DrawnWord]
    def __init__(self, text: _Optional[str] = ..., start: _Optional[int] = ..., end: _Optional[int] = ..., draws_on: _Optional[_Iterable[_Union[DrawnWord, _Mapping]]] = ...) -> None: ...

class DrawnWord(_message.Message):
    __slots__ = ("text", "start", "end", "share")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    text: str
    start: int
    end: int
    share: float
    def __init__(self, text: _Optional[str] = ..., start: _Optional[int] = ..., end: _Optional[int] = ..., share: _Optional[float] = ...) -> None: ...

class LayerSimilarity(_message.Message):
    __slots__ = ("layer", "cosine", "centered")
    LAYER_FIELD_NUMBER: _ClassVar[int]
    COSINE_FIELD_NUMBER: _ClassVar[int]
    CENTERED_FIELD_NUMBER: _ClassVar[int]
    layer: int
    cosine: Tensor
    centered: Tensor
    def __init__(self, layer: _Optional[int] = ..., cosine: _Optional[_Union[Tensor, _Mapping]] = ..., centered: _Optional[_Union[Tensor, _Mapping]] = ...) -> None: ...

class TokenizeRequest(_message.Message):
    __slots__ = ("model", "inputs")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    model: str
    inputs: _containers.RepeatedCompositeFieldContainer[Input]
    def __init__(self, model: _Optional[str] = ..., inputs: _Optional[_Iterable[_Union[Input, _Mapping]]] = ...) -> None: ...

class TokenizeResponse(_message.Message):
    __slots__ = ("model", "results")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    model: str
    results: _containers.RepeatedCompositeFieldContainer[TokenizeResult]
    def __init__(self, model: _Optional[str] = ..., results: _Optional[_Iterable[_Union[TokenizeResult, _Mapping]]] = ...) -> None: ...

class TokenizeResult(_message.Message):
    __slots__ = ("token_count", "tokens", "words")
    TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    WORDS_FIELD_NUMBER: _ClassVar[int]
    token_count: int
    tokens: _containers.RepeatedCompositeFieldContainer[Token]
    words: _containers.RepeatedCompositeFieldContainer[Word]
    def __init__(self, token_count: _Optional[int] = ..., tokens: _Optional[_Iterable[_Union[Token, _Mapping]]] = ..., words: _Optional[_Iterable[_Union[Word, _Mapping]]] = ...) -> None: ...

class Token(_message.Message):
    __slots__ = ("id", "text", "start", "end", "word", "segment", "special")
    ID_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    WORD_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    SPECIAL_FIELD_NUMBER: _ClassVar[int]
    id: int
    text: str
    start: int
    end: int
    word: int
    segment: int
    special: bool
    def __init__(self, id: _Optional[int] = ..., text: _Optional[str] = ..., start: _Optional[int] = ..., end: _Optional[int] = ..., word: _Optional[int] = ..., segment: _Optional[int] = ..., special: _Optional[bool] = ...) -> None: ...

class Word(_message.Message):
    __slots__ = ("text", "start", "end", "segment")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    text: str
    start: int
    end: int
    segment: int
    def __init__(self, text: _Optional[str] = ..., start: _Optional[int] = ..., end: _Optional[int] = ..., segment: _Optional[int] = ...) -> None: ...

class Tensor(_message.Message):
    __slots__ = ("shape", "dtype", "data")
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    shape: _containers.RepeatedScalarFieldContainer[int]
    dtype: DType
    data: bytes
    def __init__(self, shape: _Optional[_Iterable[int]] = ..., dtype: _Optional[_Union[DType, str]] = ..., data: _Optional[bytes] = ...) -> None: ...

class Usage(_message.Message):
    __slots__ = ("tokens", "truncated_inputs")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_INPUTS_FIELD_NUMBER: _ClassVar[int]
    tokens: int
    truncated_inputs: int
    def __init__(self, tokens: _Optional[int] = ..., truncated_inputs: _Optional[int] = ...) -> None: ...

class GetModelRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetModelResponse(_message.Message):
    __slots__ = ("name", "aliases", "digest", "source", "revision", "licence", "family", "layer_count", "head_count", "width", "output_width", "vocabulary_size", "max_tokens", "pooling", "normalize", "prompts", "precision", "provider", "row_lengths", "layers", "attention_kinds", "limits", "version", "threads", "backend_reason")
    class PromptsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    ALIASES_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    LICENCE_FIELD_NUMBER: _ClassVar[int]
    FAMILY_FIELD_NUMBER: _ClassVar[int]
    LAYER_COUNT_FIELD_NUMBER: _ClassVar[int]
    HEAD_COUNT_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_WIDTH_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    POOLING_FIELD_NUMBER: _ClassVar[int]
    NORMALIZE_FIELD_NUMBER: _ClassVar[int]
    PROMPTS_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    PROVIDER_FIELD_NUMBER: _ClassVar[int]
    ROW_LENGTHS_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    ATTENTION_KINDS_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    THREADS_FIELD_NUMBER: _ClassVar[int]
    BACKEND_REASON_FIELD_NUMBER: _ClassVar[int]
    name: str
    aliases: _containers.RepeatedScalarFieldContainer[str]
    digest: str
    source: str
    revision: str
    licence: str
    family: str
    layer_count: int
    head_count: int
    width: int
    output_width: int
    vocabulary_size: int
    max_tokens: int
    pooling: Pooling
    normalize: bool
    prompts: _containers.ScalarMap[str, str]
    precision: str
    provider: str
    row_lengths: _containers.RepeatedScalarFieldContainer[int]
    layers: _containers.RepeatedScalarFieldContainer[int]
    attention_kinds: _containers.RepeatedScalarFieldContainer[str]
    limits: Limits
    version: str
    threads: int
    backend_reason: str
    def __init__(self, name: _Optional[str] = ..., aliases: _Optional[_Iterable[str]] = ..., digest: _Optional[str] = ..., source: _Optional[str] = ..., revision: _Optional[str] = ..., licence: _Optional[str] = ..., family: _Optional[str] = ..., layer_count: _Optional[int] = ..., head_count: _Optional[int] = ..., width: _Optional[int] = ..., output_width: _Optional[int] = ..., vocabulary_size: _Optional[int] = ..., max_tokens: _Optional[int] = ..., pooling: _Optional[_Union[Pooling, str]] = ..., normalize: _Optional[bool] = ..., prompts: _Optional[_Mapping[str, str]] = ..., precision: _Optional[str] = ..., provider: _Optional[str] = ..., row_lengths: _Optional[_Iterable[int]] = ..., layers: _Optional[_Iterable[int]] = ..., attention_kinds: _Optional[_Iterable[str]] = ..., limits: _Optional[_Union[Limits, _Mapping]] = ..., version: _Optional[str] = ..., threads: _Optional[int] = ..., backend_reason: _Optional[str] = ...) -> None: ...

class Limits(_message.Message):
    __slots__ = ("max_inputs", "max_input_characters", "max_request_bytes", "max_response_bytes", "max_queue_tokens", "max_deadline_ms", "max_explain_queue_tokens", "header_timeout_ms", "body_timeout_ms", "max_spans_per_input", "max_spans_per_request", "max_grpc_message_bytes", "max_pending_request_bytes", "max_connections", "max_grpc_streams", "max_queue_ms", "max_explain_queue_ms")
    MAX_INPUTS_FIELD_NUMBER: _ClassVar[int]
    MAX_INPUT_CHARACTERS_FIELD_NUMBER: _ClassVar[int]
    MAX_REQUEST_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_RESPONSE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_QUEUE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_EXPLAIN_QUEUE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    HEADER_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    BODY_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_SPANS_PER_INPUT_FIELD_NUMBER: _ClassVar[int]
    MAX_SPANS_PER_REQUEST_FIELD_NUMBER: _ClassVar[int]
    MAX_GRPC_MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_PENDING_REQUEST_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_CONNECTIONS_FIELD_NUMBER: _ClassVar[int]
    MAX_GRPC_STREAMS_FIELD_NUMBER: _ClassVar[int]
    MAX_QUEUE_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_EXPLAIN_QUEUE_MS_FIELD_NUMBER: _ClassVar[int]
    max_inputs: int
    max_input_characters: int
    max_request_bytes: int
    max_response_bytes: int
    max_queue_tokens: int
    max_deadline_ms: int
    max_explain_queue_tokens: int
    header_timeout_ms: int
    body_timeout_ms: int
    max_spans_per_input: int
    max_spans_per_request: int
    max_grpc_message_bytes: int
    max_pending_request_bytes: int
    max_connections: int
    max_grpc_streams: int
    max_queue_ms: int
    max_explain_queue_ms: int
    def __init__(self, max_inputs: _Optional[int] = ..., max_input_characters: _Optional[int] = ..., max_request_bytes: _Optional[int] = ..., max_response_bytes: _Optional[int] = ..., max_queue_tokens: _Optional[int] = ..., max_deadline_ms: _Optional[int] = ..., max_explain_queue_tokens: _Optional[int] = ..., header_timeout_ms: _Optional[int] = ..., body_timeout_ms: _Optional[int] = ..., max_spans_per_input: _Optional[int] = ..., max_spans_per_request: _Optional[int] = ..., max_grpc_message_bytes: _Optional[int] = ..., max_pending_request_bytes: _Optional[int] = ..., max_connections: _Optional[int] = ..., max_grpc_streams: _Optional[int] = ..., max_queue_ms: _Optional[int] = ..., max_explain_queue_ms: _Optional[int] = ...) -> None: ...
