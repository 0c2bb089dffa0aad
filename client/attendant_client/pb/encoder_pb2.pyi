from google.rpc import status_pb2 as _status_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ChunkUnit(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CHUNK_UNIT_UNSPECIFIED: _ClassVar[ChunkUnit]
    CHUNK_UNIT_SENTENCE: _ClassVar[ChunkUnit]
    CHUNK_UNIT_PARAGRAPH: _ClassVar[ChunkUnit]
    CHUNK_UNIT_TOKEN: _ClassVar[ChunkUnit]
    CHUNK_UNIT_SPAN: _ClassVar[ChunkUnit]

class ChunkMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CHUNK_MODE_UNSPECIFIED: _ClassVar[ChunkMode]
    CHUNK_MODE_SEPARATE: _ClassVar[ChunkMode]
    CHUNK_MODE_LATE: _ClassVar[ChunkMode]

class Output(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OUTPUT_UNSPECIFIED: _ClassVar[Output]
    OUTPUT_POOLED: _ClassVar[Output]
    OUTPUT_TOKENS: _ClassVar[Output]
    OUTPUT_WORDS: _ClassVar[Output]
    OUTPUT_SPANS: _ClassVar[Output]
    OUTPUT_STATIC: _ClassVar[Output]
    OUTPUT_SPARSE: _ClassVar[Output]
    OUTPUT_MULTI_VECTOR: _ClassVar[Output]

class Operation(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OPERATION_UNSPECIFIED: _ClassVar[Operation]
    OPERATION_ENCODE: _ClassVar[Operation]
    OPERATION_ATTEND: _ClassVar[Operation]
    OPERATION_COMPARE: _ClassVar[Operation]
    OPERATION_SIMILARITY: _ClassVar[Operation]
    OPERATION_RERANK: _ClassVar[Operation]
    OPERATION_CLASSIFY: _ClassVar[Operation]
    OPERATION_TOKEN_CLASSIFY: _ClassVar[Operation]
    OPERATION_TOKENIZE: _ClassVar[Operation]
    OPERATION_FILL_MASK: _ClassVar[Operation]

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
    POOLING_LAST: _ClassVar[Pooling]
    POOLING_MEAN_SQRT_LEN: _ClassVar[Pooling]
    POOLING_WEIGHTED_MEAN: _ClassVar[Pooling]

class ScoredBy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SCORED_BY_UNSPECIFIED: _ClassVar[ScoredBy]
    SCORED_BY_CROSS_ENCODER: _ClassVar[ScoredBy]
    SCORED_BY_LATE_INTERACTION: _ClassVar[ScoredBy]
    SCORED_BY_SPARSE: _ClassVar[ScoredBy]
    SCORED_BY_EMBEDDINGS: _ClassVar[ScoredBy]

class Truncation(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TRUNCATION_UNSPECIFIED: _ClassVar[Truncation]
    TRUNCATION_ERROR: _ClassVar[Truncation]
    TRUNCATION_RIGHT: _ClassVar[Truncation]
    TRUNCATION_LEFT: _ClassVar[Truncation]
    TRUNCATION_AUTO: _ClassVar[Truncation]

class Role(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROLE_UNSPECIFIED: _ClassVar[Role]
    ROLE_QUERY: _ClassVar[Role]
    ROLE_DOCUMENT: _ClassVar[Role]

class Dtype(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DTYPE_UNSPECIFIED: _ClassVar[Dtype]
    DTYPE_FLOAT32: _ClassVar[Dtype]
    DTYPE_FLOAT16: _ClassVar[Dtype]
    DTYPE_INT8: _ClassVar[Dtype]
    DTYPE_UBINARY: _ClassVar[Dtype]
    DTYPE_SQRT_UINT8: _ClassVar[Dtype]

class AttentionKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ATTENTION_KIND_UNSPECIFIED: _ClassVar[AttentionKind]
    ATTENTION_KIND_PROBS: _ClassVar[AttentionKind]
    ATTENTION_KIND_SCORES: _ClassVar[AttentionKind]
    ATTENTION_KIND_NORM: _ClassVar[AttentionKind]
    ATTENTION_KIND_BLOCK_NORM: _ClassVar[AttentionKind]
    ATTENTION_KIND_PROJECTION: _ClassVar[AttentionKind]

class BlockKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    BLOCK_KIND_UNSPECIFIED: _ClassVar[BlockKind]
    BLOCK_KIND_POST: _ClassVar[BlockKind]
    BLOCK_KIND_PRE: _ClassVar[BlockKind]
    BLOCK_KIND_SANDWICH: _ClassVar[BlockKind]
    BLOCK_KIND_DOUBLE_POST: _ClassVar[BlockKind]

class NormKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NORM_KIND_UNSPECIFIED: _ClassVar[NormKind]
    NORM_KIND_LAYER_NORM: _ClassVar[NormKind]
    NORM_KIND_RMS_NORM: _ClassVar[NormKind]

class PositionKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    POSITION_KIND_UNSPECIFIED: _ClassVar[PositionKind]
    POSITION_KIND_TABLE: _ClassVar[PositionKind]
    POSITION_KIND_ROTARY: _ClassVar[PositionKind]
    POSITION_KIND_RELATIVE: _ClassVar[PositionKind]

class LayerOutput(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LAYER_OUTPUT_UNSPECIFIED: _ClassVar[LayerOutput]
    LAYER_OUTPUT_INPUT: _ClassVar[LayerOutput]
    LAYER_OUTPUT_NORMALIZED: _ClassVar[LayerOutput]
    LAYER_OUTPUT_QUERIES: _ClassVar[LayerOutput]
    LAYER_OUTPUT_KEYS: _ClassVar[LayerOutput]
    LAYER_OUTPUT_VALUES: _ClassVar[LayerOutput]
    LAYER_OUTPUT_SCORES: _ClassVar[LayerOutput]
    LAYER_OUTPUT_WEIGHTS: _ClassVar[LayerOutput]
    LAYER_OUTPUT_HEADS: _ClassVar[LayerOutput]
    LAYER_OUTPUT_PROJECTED: _ClassVar[LayerOutput]
    LAYER_OUTPUT_RESIDUAL: _ClassVar[LayerOutput]
    LAYER_OUTPUT_FEED_FORWARD: _ClassVar[LayerOutput]
    LAYER_OUTPUT_OUTPUT: _ClassVar[LayerOutput]
    LAYER_OUTPUT_POSITION: _ClassVar[LayerOutput]
    LAYER_OUTPUT_BIAS: _ClassVar[LayerOutput]
    LAYER_OUTPUT_CONTENT_TO_POSITION: _ClassVar[LayerOutput]
    LAYER_OUTPUT_POSITION_TO_CONTENT: _ClassVar[LayerOutput]

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
    UNIT_KIND_SPAN: _ClassVar[UnitKind]

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

class Pairs(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PAIRS_UNSPECIFIED: _ClassVar[Pairs]
    PAIRS_ALL: _ClassVar[Pairs]
    PAIRS_ZIP: _ClassVar[Pairs]

class SimilarityFunction(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SIMILARITY_FUNCTION_UNSPECIFIED: _ClassVar[SimilarityFunction]
    SIMILARITY_FUNCTION_COSINE: _ClassVar[SimilarityFunction]
    SIMILARITY_FUNCTION_DOT: _ClassVar[SimilarityFunction]
    SIMILARITY_FUNCTION_MAXSIM: _ClassVar[SimilarityFunction]
    SIMILARITY_FUNCTION_SPARSE: _ClassVar[SimilarityFunction]
    SIMILARITY_FUNCTION_EUCLIDEAN: _ClassVar[SimilarityFunction]
    SIMILARITY_FUNCTION_MANHATTAN: _ClassVar[SimilarityFunction]

class Effect(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EFFECT_UNSPECIFIED: _ClassVar[Effect]
    EFFECT_NONE: _ClassVar[Effect]
    EFFECT_LEAVE_ONE_OUT: _ClassVar[Effect]
    EFFECT_OCCLUSION: _ClassVar[Effect]

class Aggregation(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    AGGREGATION_UNSPECIFIED: _ClassVar[Aggregation]
    AGGREGATION_NONE: _ClassVar[Aggregation]
    AGGREGATION_SIMPLE: _ClassVar[Aggregation]
    AGGREGATION_FIRST: _ClassVar[Aggregation]
    AGGREGATION_AVERAGE: _ClassVar[Aggregation]
    AGGREGATION_MAX: _ClassVar[Aggregation]

class Precision(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PRECISION_UNSPECIFIED: _ClassVar[Precision]
    PRECISION_FLOAT32: _ClassVar[Precision]
    PRECISION_BFLOAT16: _ClassVar[Precision]
    PRECISION_FLOAT16: _ClassVar[Precision]
    PRECISION_INT8: _ClassVar[Precision]

class Provider(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PROVIDER_UNSPECIFIED: _ClassVar[Provider]
    PROVIDER_OPENVINO: _ClassVar[Provider]
    PROVIDER_CPU: _ClassVar[Provider]
    PROVIDER_CUDA: _ClassVar[Provider]

class Attention(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ATTENTION_UNSPECIFIED: _ClassVar[Attention]
    ATTENTION_BIDIRECTIONAL: _ClassVar[Attention]
    ATTENTION_CAUSAL: _ClassVar[Attention]
CHUNK_UNIT_UNSPECIFIED: ChunkUnit
CHUNK_UNIT_SENTENCE: ChunkUnit
CHUNK_UNIT_PARAGRAPH: ChunkUnit
CHUNK_UNIT_TOKEN: ChunkUnit
CHUNK_UNIT_SPAN: ChunkUnit
CHUNK_MODE_UNSPECIFIED: ChunkMode
CHUNK_MODE_SEPARATE: ChunkMode
CHUNK_MODE_LATE: ChunkMode
OUTPUT_UNSPECIFIED: Output
OUTPUT_POOLED: Output
OUTPUT_TOKENS: Output
OUTPUT_WORDS: Output
OUTPUT_SPANS: Output
OUTPUT_STATIC: Output
OUTPUT_SPARSE: Output
OUTPUT_MULTI_VECTOR: Output
OPERATION_UNSPECIFIED: Operation
OPERATION_ENCODE: Operation
OPERATION_ATTEND: Operation
OPERATION_COMPARE: Operation
OPERATION_SIMILARITY: Operation
OPERATION_RERANK: Operation
OPERATION_CLASSIFY: Operation
OPERATION_TOKEN_CLASSIFY: Operation
OPERATION_TOKENIZE: Operation
OPERATION_FILL_MASK: Operation
LAYER_REDUCE_UNSPECIFIED: LayerReduce
LAYER_REDUCE_CONCAT: LayerReduce
LAYER_REDUCE_MEAN: LayerReduce
LAYER_REDUCE_STACK: LayerReduce
POOLING_UNSPECIFIED: Pooling
POOLING_MEAN: Pooling
POOLING_CLS: Pooling
POOLING_MAX: Pooling
POOLING_LAST: Pooling
POOLING_MEAN_SQRT_LEN: Pooling
POOLING_WEIGHTED_MEAN: Pooling
SCORED_BY_UNSPECIFIED: ScoredBy
SCORED_BY_CROSS_ENCODER: ScoredBy
SCORED_BY_LATE_INTERACTION: ScoredBy
SCORED_BY_SPARSE: ScoredBy
SCORED_BY_EMBEDDINGS: ScoredBy
TRUNCATION_UNSPECIFIED: Truncation
TRUNCATION_ERROR: Truncation
TRUNCATION_RIGHT: Truncation
TRUNCATION_LEFT: Truncation
TRUNCATION_AUTO: Truncation
ROLE_UNSPECIFIED: Role
ROLE_QUERY: Role
ROLE_DOCUMENT: Role
DTYPE_UNSPECIFIED: Dtype
DTYPE_FLOAT32: Dtype
DTYPE_FLOAT16: Dtype
DTYPE_INT8: Dtype
DTYPE_UBINARY: Dtype
DTYPE_SQRT_UINT8: Dtype
ATTENTION_KIND_UNSPECIFIED: AttentionKind
ATTENTION_KIND_PROBS: AttentionKind
ATTENTION_KIND_SCORES: AttentionKind
ATTENTION_KIND_NORM: AttentionKind
ATTENTION_KIND_BLOCK_NORM: AttentionKind
ATTENTION_KIND_PROJECTION: AttentionKind
BLOCK_KIND_UNSPECIFIED: BlockKind
BLOCK_KIND_POST: BlockKind
BLOCK_KIND_PRE: BlockKind
BLOCK_KIND_SANDWICH: BlockKind
BLOCK_KIND_DOUBLE_POST: BlockKind
NORM_KIND_UNSPECIFIED: NormKind
NORM_KIND_LAYER_NORM: NormKind
NORM_KIND_RMS_NORM: NormKind
POSITION_KIND_UNSPECIFIED: PositionKind
POSITION_KIND_TABLE: PositionKind
POSITION_KIND_ROTARY: PositionKind
POSITION_KIND_RELATIVE: PositionKind
LAYER_OUTPUT_UNSPECIFIED: LayerOutput
LAYER_OUTPUT_INPUT: LayerOutput
LAYER_OUTPUT_NORMALIZED: LayerOutput
LAYER_OUTPUT_QUERIES: LayerOutput
LAYER_OUTPUT_KEYS: LayerOutput
LAYER_OUTPUT_VALUES: LayerOutput
LAYER_OUTPUT_SCORES: LayerOutput
LAYER_OUTPUT_WEIGHTS: LayerOutput
LAYER_OUTPUT_HEADS: LayerOutput
LAYER_OUTPUT_PROJECTED: LayerOutput
LAYER_OUTPUT_RESIDUAL: LayerOutput
LAYER_OUTPUT_FEED_FORWARD: LayerOutput
LAYER_OUTPUT_OUTPUT: LayerOutput
LAYER_OUTPUT_POSITION: LayerOutput
LAYER_OUTPUT_BIAS: LayerOutput
LAYER_OUTPUT_CONTENT_TO_POSITION: LayerOutput
LAYER_OUTPUT_POSITION_TO_CONTENT: LayerOutput
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
UNIT_KIND_SPAN: UnitKind
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
PAIRS_UNSPECIFIED: Pairs
PAIRS_ALL: Pairs
PAIRS_ZIP: Pairs
SIMILARITY_FUNCTION_UNSPECIFIED: SimilarityFunction
SIMILARITY_FUNCTION_COSINE: SimilarityFunction
SIMILARITY_FUNCTION_DOT: SimilarityFunction
SIMILARITY_FUNCTION_MAXSIM: SimilarityFunction
SIMILARITY_FUNCTION_SPARSE: SimilarityFunction
SIMILARITY_FUNCTION_EUCLIDEAN: SimilarityFunction
SIMILARITY_FUNCTION_MANHATTAN: SimilarityFunction
EFFECT_UNSPECIFIED: Effect
EFFECT_NONE: Effect
EFFECT_LEAVE_ONE_OUT: Effect
EFFECT_OCCLUSION: Effect
AGGREGATION_UNSPECIFIED: Aggregation
AGGREGATION_NONE: Aggregation
AGGREGATION_SIMPLE: Aggregation
AGGREGATION_FIRST: Aggregation
AGGREGATION_AVERAGE: Aggregation
AGGREGATION_MAX: Aggregation
PRECISION_UNSPECIFIED: Precision
PRECISION_FLOAT32: Precision
PRECISION_BFLOAT16: Precision
PRECISION_FLOAT16: Precision
PRECISION_INT8: Precision
PROVIDER_UNSPECIFIED: Provider
PROVIDER_OPENVINO: Provider
PROVIDER_CPU: Provider
PROVIDER_CUDA: Provider
ATTENTION_UNSPECIFIED: Attention
ATTENTION_BIDIRECTIONAL: Attention
ATTENTION_CAUSAL: Attention

class EncodeRequest(_message.Message):
    __slots__ = ("model", "inputs", "outputs", "layers", "all_layers", "layer_reduce", "pooling", "normalize", "dimensions", "truncation", "dtype", "prompt_name", "prompt", "role", "chunks")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    ALL_LAYERS_FIELD_NUMBER: _ClassVar[int]
    LAYER_REDUCE_FIELD_NUMBER: _ClassVar[int]
    POOLING_FIELD_NUMBER: _ClassVar[int]
    NORMALIZE_FIELD_NUMBER: _ClassVar[int]
    DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
    TRUNCATION_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    PROMPT_NAME_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    model: str
    inputs: _containers.RepeatedCompositeFieldContainer[Input]
    outputs: _containers.RepeatedScalarFieldContainer[Output]
    layers: _containers.RepeatedScalarFieldContainer[int]
    all_layers: bool
    layer_reduce: LayerReduce
    pooling: Pooling
    normalize: bool
    dimensions: int
    truncation: Truncation
    dtype: Dtype
    prompt_name: str
    prompt: str
    role: Role
    chunks: ChunkOptions
    def __init__(self, model: _Optional[str] = ..., inputs: _Optional[_Iterable[_Union[Input, _Mapping]]] = ..., outputs: _Optional[_Iterable[_Union[Output, str]]] = ..., layers: _Optional[_Iterable[int]] = ..., all_layers: _Optional[bool] = ..., layer_reduce: _Optional[_Union[LayerReduce, str]] = ..., pooling: _Optional[_Union[Pooling, str]] = ..., normalize: _Optional[bool] = ..., dimensions: _Optional[int] = ..., truncation: _Optional[_Union[Truncation, str]] = ..., dtype: _Optional[_Union[Dtype, str]] = ..., prompt_name: _Optional[str] = ..., prompt: _Optional[str] = ..., role: _Optional[_Union[Role, str]] = ..., chunks: _Optional[_Union[ChunkOptions, _Mapping]] = ...) -> None: ...

class ChunkOptions(_message.Message):
    __slots__ = ("by", "max_tokens", "overlap_tokens", "merge", "mode", "language")
    BY_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OVERLAP_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MERGE_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    by: ChunkUnit
    max_tokens: int
    overlap_tokens: int
    merge: bool
    mode: ChunkMode
    language: str
    def __init__(self, by: _Optional[_Union[ChunkUnit, str]] = ..., max_tokens: _Optional[int] = ..., overlap_tokens: _Optional[int] = ..., merge: _Optional[bool] = ..., mode: _Optional[_Union[ChunkMode, str]] = ..., language: _Optional[str] = ...) -> None: ...

class Chunk(_message.Message):
    __slots__ = ("text", "start", "end", "token_count")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    text: str
    start: int
    end: int
    token_count: int
    def __init__(self, text: _Optional[str] = ..., start: _Optional[int] = ..., end: _Optional[int] = ..., token_count: _Optional[int] = ...) -> None: ...

class Input(_message.Message):
    __slots__ = ("text", "token_ids", "pair", "spans")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    PAIR_FIELD_NUMBER: _ClassVar[int]
    SPANS_FIELD_NUMBER: _ClassVar[int]
    text: str
    token_ids: TokenIds
    pair: str
    spans: _containers.RepeatedCompositeFieldContainer[Span]
    def __init__(self, text: _Optional[str] = ..., token_ids: _Optional[_Union[TokenIds, _Mapping]] = ..., pair: _Optional[str] = ..., spans: _Optional[_Iterable[_Union[Span, _Mapping]]] = ...) -> None: ...

class TokenIds(_message.Message):
    __slots__ = ("ids",)
    IDS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ids: _Optional[_Iterable[int]] = ...) -> None: ...

class Span(_message.Message):
    __slots__ = ("start", "end")
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    start: int
    end: int
    def __init__(self, start: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class EncodeResponse(_message.Message):
    __slots__ = ("model", "precision", "results", "usage", "prompt_name", "prompt")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    PROMPT_NAME_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    model: str
    precision: Precision
    results: _containers.RepeatedCompositeFieldContainer[EncodeResult]
    usage: Usage
    prompt_name: str
    prompt: str
    def __init__(self, model: _Optional[str] = ..., precision: _Optional[_Union[Precision, str]] = ..., results: _Optional[_Iterable[_Union[EncodeResult, _Mapping]]] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ..., prompt_name: _Optional[str] = ..., prompt: _Optional[str] = ...) -> None: ...

class EncodeResult(_message.Message):
    __slots__ = ("token_count", "truncated", "tokens", "words", "pooled", "token_vectors", "word_vectors", "span_vectors", "static_vectors", "sparse", "multi_vector", "multi_vector_tokens", "chunks", "chunk_vectors")
    TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    WORDS_FIELD_NUMBER: _ClassVar[int]
    POOLED_FIELD_NUMBER: _ClassVar[int]
    TOKEN_VECTORS_FIELD_NUMBER: _ClassVar[int]
    WORD_VECTORS_FIELD_NUMBER: _ClassVar[int]
    SPAN_VECTORS_FIELD_NUMBER: _ClassVar[int]
    STATIC_VECTORS_FIELD_NUMBER: _ClassVar[int]
    SPARSE_FIELD_NUMBER: _ClassVar[int]
    MULTI_VECTOR_FIELD_NUMBER: _ClassVar[int]
    MULTI_VECTOR_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    CHUNK_VECTORS_FIELD_NUMBER: _ClassVar[int]
    token_count: int
    truncated: bool
    tokens: _containers.RepeatedCompositeFieldContainer[Token]
    words: _containers.RepeatedCompositeFieldContainer[Word]
    pooled: Tensor
    token_vectors: Tensor
    word_vectors: Tensor
    span_vectors: Tensor
    static_vectors: Tensor
    sparse: SparseVector
    multi_vector: Tensor
    multi_vector_tokens: _containers.RepeatedCompositeFieldContainer[Token]
    chunks: _containers.RepeatedCompositeFieldContainer[Chunk]
    chunk_vectors: Tensor
    def __init__(self, token_count: _Optional[int] = ..., truncated: _Optional[bool] = ..., tokens: _Optional[_Iterable[_Union[Token, _Mapping]]] = ..., words: _Optional[_Iterable[_Union[Word, _Mapping]]] = ..., pooled: _Optional[_Union[Tensor, _Mapping]] = ..., token_vectors: _Optional[_Union[Tensor, _Mapping]] = ..., word_vectors: _Optional[_Union[Tensor, _Mapping]] = ..., span_vectors: _Optional[_Union[Tensor, _Mapping]] = ..., static_vectors: _Optional[_Union[Tensor, _Mapping]] = ..., sparse: _Optional[_Union[SparseVector, _Mapping]] = ..., multi_vector: _Optional[_Union[Tensor, _Mapping]] = ..., multi_vector_tokens: _Optional[_Iterable[_Union[Token, _Mapping]]] = ..., chunks: _Optional[_Iterable[_Union[Chunk, _Mapping]]] = ..., chunk_vectors: _Optional[_Union[Tensor, _Mapping]] = ...) -> None: ...

class SparseVector(_message.Message):
    __slots__ = ("token_ids", "tokens", "weights")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    tokens: _containers.RepeatedScalarFieldContainer[str]
    weights: Tensor
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., tokens: _Optional[_Iterable[str]] = ..., weights: _Optional[_Union[Tensor, _Mapping]] = ...) -> None: ...

class EncodeStreamRequest(_message.Message):
    __slots__ = ("id", "request")
    ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    id: str
    request: EncodeRequest
    def __init__(self, id: _Optional[str] = ..., request: _Optional[_Union[EncodeRequest, _Mapping]] = ...) -> None: ...

class EncodeStreamResponse(_message.Message):
    __slots__ = ("id", "response", "error")
    ID_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    id: str
    response: EncodeResponse
    error: _status_pb2.Status
    def __init__(self, id: _Optional[str] = ..., response: _Optional[_Union[EncodeResponse, _Mapping]] = ..., error: _Optional[_Union[_status_pb2.Status, _Mapping]] = ...) -> None: ...

class AttendRequest(_message.Message):
    __slots__ = ("model", "inputs", "truncation", "kind", "layers", "heads", "head_reduce", "layer_reduce", "unit", "special_tokens", "segments", "top_p", "top_k", "dtype", "outputs", "rows")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    TRUNCATION_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    HEADS_FIELD_NUMBER: _ClassVar[int]
    HEAD_REDUCE_FIELD_NUMBER: _ClassVar[int]
    LAYER_REDUCE_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    model: str
    inputs: _containers.RepeatedCompositeFieldContainer[Input]
    truncation: Truncation
    kind: AttentionKind
    layers: _containers.RepeatedScalarFieldContainer[int]
    heads: _containers.RepeatedScalarFieldContainer[int]
    head_reduce: HeadReduce
    layer_reduce: MapLayerReduce
    unit: UnitKind
    special_tokens: SpecialTokens
    segments: Segments
    top_p: float
    top_k: int
    dtype: Dtype
    outputs: _containers.RepeatedScalarFieldContainer[LayerOutput]
    rows: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, model: _Optional[str] = ..., inputs: _Optional[_Iterable[_Union[Input, _Mapping]]] = ..., truncation: _Optional[_Union[Truncation, str]] = ..., kind: _Optional[_Union[AttentionKind, str]] = ..., layers: _Optional[_Iterable[int]] = ..., heads: _Optional[_Iterable[int]] = ..., head_reduce: _Optional[_Union[HeadReduce, str]] = ..., layer_reduce: _Optional[_Union[MapLayerReduce, str]] = ..., unit: _Optional[_Union[UnitKind, str]] = ..., special_tokens: _Optional[_Union[SpecialTokens, str]] = ..., segments: _Optional[_Union[Segments, str]] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ..., dtype: _Optional[_Union[Dtype, str]] = ..., outputs: _Optional[_Iterable[_Union[LayerOutput, str]]] = ..., rows: _Optional[_Iterable[int]] = ...) -> None: ...

class AttendResponse(_message.Message):
    __slots__ = ("header", "map", "layer_outputs")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    MAP_FIELD_NUMBER: _ClassVar[int]
    LAYER_OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    header: AttendHeader
    map: AttentionMap
    layer_outputs: LayerOutputs
    def __init__(self, header: _Optional[_Union[AttendHeader, _Mapping]] = ..., map: _Optional[_Union[AttentionMap, _Mapping]] = ..., layer_outputs: _Optional[_Union[LayerOutputs, _Mapping]] = ...) -> None: ...

class AttendHeader(_message.Message):
    __slots__ = ("model", "precision", "inputs", "usage")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    model: str
    precision: Precision
    inputs: _containers.RepeatedCompositeFieldContainer[AttendInputInfo]
    usage: Usage
    def __init__(self, model: _Optional[str] = ..., precision: _Optional[_Union[Precision, str]] = ..., inputs: _Optional[_Iterable[_Union[AttendInputInfo, _Mapping]]] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ...) -> None: ...

class AttendInputInfo(_message.Message):
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
    __slots__ = ("text", "start", "end", "segment", "special", "word_index")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    SPECIAL_FIELD_NUMBER: _ClassVar[int]
    WORD_INDEX_FIELD_NUMBER: _ClassVar[int]
    text: str
    start: int
    end: int
    segment: int
    special: bool
    word_index: int
    def __init__(self, text: _Optional[str] = ..., start: _Optional[int] = ..., end: _Optional[int] = ..., segment: _Optional[int] = ..., special: _Optional[bool] = ..., word_index: _Optional[int] = ...) -> None: ...

class AttentionMap(_message.Message):
    __slots__ = ("input_index", "layer", "head", "matrix", "sparse", "excluded_mass", "bias_share", "empty_rows")
    INPUT_INDEX_FIELD_NUMBER: _ClassVar[int]
    LAYER_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    MATRIX_FIELD_NUMBER: _ClassVar[int]
    SPARSE_FIELD_NUMBER: _ClassVar[int]
    EXCLUDED_MASS_FIELD_NUMBER: _ClassVar[int]
    BIAS_SHARE_FIELD_NUMBER: _ClassVar[int]
    EMPTY_ROWS_FIELD_NUMBER: _ClassVar[int]
    input_index: int
    layer: int
    head: int
    matrix: Tensor
    sparse: SparseMatrix
    excluded_mass: _containers.RepeatedScalarFieldContainer[float]
    bias_share: _containers.RepeatedScalarFieldContainer[float]
    empty_rows: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, input_index: _Optional[int] = ..., layer: _Optional[int] = ..., head: _Optional[int] = ..., matrix: _Optional[_Union[Tensor, _Mapping]] = ..., sparse: _Optional[_Union[SparseMatrix, _Mapping]] = ..., excluded_mass: _Optional[_Iterable[float]] = ..., bias_share: _Optional[_Iterable[float]] = ..., empty_rows: _Optional[_Iterable[int]] = ...) -> None: ...

class LayerOutputs(_message.Message):
    __slots__ = ("input_index", "layer", "heads_of", "input", "normalized", "queries", "keys", "values", "scores", "weights", "heads", "projected", "residual", "feed_forward", "output", "position", "bias", "content_to_position", "position_to_content")
    INPUT_INDEX_FIELD_NUMBER: _ClassVar[int]
    LAYER_FIELD_NUMBER: _ClassVar[int]
    HEADS_OF_FIELD_NUMBER: _ClassVar[int]
    INPUT_FIELD_NUMBER: _ClassVar[int]
    NORMALIZED_FIELD_NUMBER: _ClassVar[int]
    QUERIES_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    SCORES_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    HEADS_FIELD_NUMBER: _ClassVar[int]
    PROJECTED_FIELD_NUMBER: _ClassVar[int]
    RESIDUAL_FIELD_NUMBER: _ClassVar[int]
    FEED_FORWARD_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    BIAS_FIELD_NUMBER: _ClassVar[int]
    CONTENT_TO_POSITION_FIELD_NUMBER: _ClassVar[int]
    POSITION_TO_CONTENT_FIELD_NUMBER: _ClassVar[int]
    input_index: int
    layer: int
    heads_of: _containers.RepeatedScalarFieldContainer[int]
    input: Tensor
    normalized: Tensor
    queries: Tensor
    keys: Tensor
    values: Tensor
    scores: Tensor
    weights: Tensor
    heads: Tensor
    projected: Tensor
    residual: Tensor
    feed_forward: Tensor
    output: Tensor
    position: Tensor
    bias: Tensor
    content_to_position: Tensor
    position_to_content: Tensor
    def __init__(self, input_index: _Optional[int] = ..., layer: _Optional[int] = ..., heads_of: _Optional[_Iterable[int]] = ..., input: _Optional[_Union[Tensor, _Mapping]] = ..., normalized: _Optional[_Union[Tensor, _Mapping]] = ..., queries: _Optional[_Union[Tensor, _Mapping]] = ..., keys: _Optional[_Union[Tensor, _Mapping]] = ..., values: _Optional[_Union[Tensor, _Mapping]] = ..., scores: _Optional[_Union[Tensor, _Mapping]] = ..., weights: _Optional[_Union[Tensor, _Mapping]] = ..., heads: _Optional[_Union[Tensor, _Mapping]] = ..., projected: _Optional[_Union[Tensor, _Mapping]] = ..., residual: _Optional[_Union[Tensor, _Mapping]] = ..., feed_forward: _Optional[_Union[Tensor, _Mapping]] = ..., output: _Optional[_Union[Tensor, _Mapping]] = ..., position: _Optional[_Union[Tensor, _Mapping]] = ..., bias: _Optional[_Union[Tensor, _Mapping]] = ..., content_to_position: _Optional[_Union[Tensor, _Mapping]] = ..., position_to_content: _Optional[_Union[Tensor, _Mapping]] = ...) -> None: ...

class SparseMatrix(_message.Message):
    __slots__ = ("indptr", "indices", "values", "dropped_mass")
    INDPTR_FIELD_NUMBER: _ClassVar[int]
    INDICES_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    DROPPED_MASS_FIELD_NUMBER: _ClassVar[int]
    indptr: _containers.RepeatedScalarFieldContainer[int]
    indices: _containers.RepeatedScalarFieldContainer[int]
    values: Tensor
    dropped_mass: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, indptr: _Optional[_Iterable[int]] = ..., indices: _Optional[_Iterable[int]] = ..., values: _Optional[_Union[Tensor, _Mapping]] = ..., dropped_mass: _Optional[_Iterable[float]] = ...) -> None: ...

class CompareRequest(_message.Message):
    __slots__ = ("model", "occurrences", "layers", "top_contributors")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    OCCURRENCES_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    TOP_CONTRIBUTORS_FIELD_NUMBER: _ClassVar[int]
    model: str
    occurrences: _containers.RepeatedCompositeFieldContainer[Occurrence]
    layers: _containers.RepeatedScalarFieldContainer[int]
    top_contributors: int
    def __init__(self, model: _Optional[str] = ..., occurrences: _Optional[_Iterable[_Union[Occurrence, _Mapping]]] = ..., layers: _Optional[_Iterable[int]] = ..., top_contributors: _Optional[int] = ...) -> None: ...

class Occurrence(_message.Message):
    __slots__ = ("text", "span", "word_index")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    SPAN_FIELD_NUMBER: _ClassVar[int]
    WORD_INDEX_FIELD_NUMBER: _ClassVar[int]
    text: str
    span: Span
    word_index: int
    def __init__(self, text: _Optional[str] = ..., span: _Optional[_Union[Span, _Mapping]] = ..., word_index: _Optional[int] = ...) -> None: ...

class CompareResponse(_message.Message):
    __slots__ = ("model", "precision", "occurrences", "static", "layers", "usage")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    OCCURRENCES_FIELD_NUMBER: _ClassVar[int]
    STATIC_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    model: str
    precision: Precision
    occurrences: _containers.RepeatedCompositeFieldContainer[OccurrenceResult]
    static: Tensor
    layers: _containers.RepeatedCompositeFieldContainer[LayerSimilarity]
    usage: Usage
    def __init__(self, model: _Optional[str] = ..., precision: _Optional[_Union[Precision, str]] = ..., occurrences: _Optional[_Iterable[_Union[OccurrenceResult, _Mapping]]] = ..., static: _Optional[_Union[Tensor, _Mapping]] = ..., layers: _Optional[_Iterable[_Union[LayerSimilarity, _Mapping]]] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ...) -> None: ...

class OccurrenceResult(_message.Message):
    __slots__ = ("text", "start", "end", "contributors")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    CONTRIBUTORS_FIELD_NUMBER: _ClassVar[int]
    text: str
    start: int
    end: int
    contributors: _containers.RepeatedCompositeFieldContainer[Contributor]
    def __init__(self, text: _Optional[str] = ..., start: _Optional[int] = ..., end: _Optional[int] = ..., contributors: _Optional[_Iterable[_Union[Contributor, _Mapping]]] = ...) -> None: ...

class Contributor(_message.Message):
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

class SimilarityRequest(_message.Message):
    __slots__ = ("model", "pairs", "queries", "documents", "similarity", "dimensions", "truncation", "query_prompt_name", "query_prompt", "document_prompt_name", "document_prompt", "explain", "unit", "top_k", "effect")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PAIRS_FIELD_NUMBER: _ClassVar[int]
    QUERIES_FIELD_NUMBER: _ClassVar[int]
    DOCUMENTS_FIELD_NUMBER: _ClassVar[int]
    SIMILARITY_FIELD_NUMBER: _ClassVar[int]
    DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
    TRUNCATION_FIELD_NUMBER: _ClassVar[int]
    QUERY_PROMPT_NAME_FIELD_NUMBER: _ClassVar[int]
    QUERY_PROMPT_FIELD_NUMBER: _ClassVar[int]
    DOCUMENT_PROMPT_NAME_FIELD_NUMBER: _ClassVar[int]
    DOCUMENT_PROMPT_FIELD_NUMBER: _ClassVar[int]
    EXPLAIN_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    EFFECT_FIELD_NUMBER: _ClassVar[int]
    model: str
    pairs: Pairs
    queries: _containers.RepeatedScalarFieldContainer[str]
    documents: _containers.RepeatedScalarFieldContainer[str]
    similarity: SimilarityFunction
    dimensions: int
    truncation: Truncation
    query_prompt_name: str
    query_prompt: str
    document_prompt_name: str
    document_prompt: str
    explain: bool
    unit: UnitKind
    top_k: int
    effect: Effect
    def __init__(self, model: _Optional[str] = ..., pairs: _Optional[_Union[Pairs, str]] = ..., queries: _Optional[_Iterable[str]] = ..., documents: _Optional[_Iterable[str]] = ..., similarity: _Optional[_Union[SimilarityFunction, str]] = ..., dimensions: _Optional[int] = ..., truncation: _Optional[_Union[Truncation, str]] = ..., query_prompt_name: _Optional[str] = ..., query_prompt: _Optional[str] = ..., document_prompt_name: _Optional[str] = ..., document_prompt: _Optional[str] = ..., explain: _Optional[bool] = ..., unit: _Optional[_Union[UnitKind, str]] = ..., top_k: _Optional[int] = ..., effect: _Optional[_Union[Effect, str]] = ...) -> None: ...

class SimilarityResponse(_message.Message):
    __slots__ = ("model", "precision", "similarity", "scores", "queries", "documents", "pairs", "contributions_unavailable", "usage", "query_prompt_name", "query_prompt", "document_prompt_name", "document_prompt")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    SIMILARITY_FIELD_NUMBER: _ClassVar[int]
    SCORES_FIELD_NUMBER: _ClassVar[int]
    QUERIES_FIELD_NUMBER: _ClassVar[int]
    DOCUMENTS_FIELD_NUMBER: _ClassVar[int]
    PAIRS_FIELD_NUMBER: _ClassVar[int]
    CONTRIBUTIONS_UNAVAILABLE_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    QUERY_PROMPT_NAME_FIELD_NUMBER: _ClassVar[int]
    QUERY_PROMPT_FIELD_NUMBER: _ClassVar[int]
    DOCUMENT_PROMPT_NAME_FIELD_NUMBER: _ClassVar[int]
    DOCUMENT_PROMPT_FIELD_NUMBER: _ClassVar[int]
    model: str
    precision: Precision
    similarity: SimilarityFunction
    scores: Tensor
    queries: _containers.RepeatedCompositeFieldContainer[SimilarityText]
    documents: _containers.RepeatedCompositeFieldContainer[SimilarityText]
    pairs: _containers.RepeatedCompositeFieldContainer[SimilarityPair]
    contributions_unavailable: str
    usage: Usage
    query_prompt_name: str
    query_prompt: str
    document_prompt_name: str
    document_prompt: str
    def __init__(self, model: _Optional[str] = ..., precision: _Optional[_Union[Precision, str]] = ..., similarity: _Optional[_Union[SimilarityFunction, str]] = ..., scores: _Optional[_Union[Tensor, _Mapping]] = ..., queries: _Optional[_Iterable[_Union[SimilarityText, _Mapping]]] = ..., documents: _Optional[_Iterable[_Union[SimilarityText, _Mapping]]] = ..., pairs: _Optional[_Iterable[_Union[SimilarityPair, _Mapping]]] = ..., contributions_unavailable: _Optional[str] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ..., query_prompt_name: _Optional[str] = ..., query_prompt: _Optional[str] = ..., document_prompt_name: _Optional[str] = ..., document_prompt: _Optional[str] = ...) -> None: ...

class SimilarityText(_message.Message):
    __slots__ = ("token_count", "truncated", "units")
    TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    UNITS_FIELD_NUMBER: _ClassVar[int]
    token_count: int
    truncated: bool
    units: _containers.RepeatedCompositeFieldContainer[Unit]
    def __init__(self, token_count: _Optional[int] = ..., truncated: _Optional[bool] = ..., units: _Optional[_Iterable[_Union[Unit, _Mapping]]] = ...) -> None: ...

class SimilarityPair(_message.Message):
    __slots__ = ("query", "document", "score", "matrix", "top", "rest", "query_effects", "document_effects", "matches", "products")
    QUERY_FIELD_NUMBER: _ClassVar[int]
    DOCUMENT_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    MATRIX_FIELD_NUMBER: _ClassVar[int]
    TOP_FIELD_NUMBER: _ClassVar[int]
    REST_FIELD_NUMBER: _ClassVar[int]
    QUERY_EFFECTS_FIELD_NUMBER: _ClassVar[int]
    DOCUMENT_EFFECTS_FIELD_NUMBER: _ClassVar[int]
    MATCHES_FIELD_NUMBER: _ClassVar[int]
    PRODUCTS_FIELD_NUMBER: _ClassVar[int]
    query: int
    document: int
    score: float
    matrix: Tensor
    top: TopContributions
    rest: ContributionRest
    query_effects: _containers.RepeatedScalarFieldContainer[float]
    document_effects: _containers.RepeatedScalarFieldContainer[float]
    matches: _containers.RepeatedCompositeFieldContainer[TokenMatch]
    products: _containers.RepeatedCompositeFieldContainer[SharedEntry]
    def __init__(self, query: _Optional[int] = ..., document: _Optional[int] = ..., score: _Optional[float] = ..., matrix: _Optional[_Union[Tensor, _Mapping]] = ..., top: _Optional[_Union[TopContributions, _Mapping]] = ..., rest: _Optional[_Union[ContributionRest, _Mapping]] = ..., query_effects: _Optional[_Iterable[float]] = ..., document_effects: _Optional[_Iterable[float]] = ..., matches: _Optional[_Iterable[_Union[TokenMatch, _Mapping]]] = ..., products: _Optional[_Iterable[_Union[SharedEntry, _Mapping]]] = ...) -> None: ...

class TokenMatch(_message.Message):
    __slots__ = ("query_unit", "document_unit", "value")
    QUERY_UNIT_FIELD_NUMBER: _ClassVar[int]
    DOCUMENT_UNIT_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    query_unit: int
    document_unit: int
    value: float
    def __init__(self, query_unit: _Optional[int] = ..., document_unit: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...

class SharedEntry(_message.Message):
    __slots__ = ("token_id", "token", "value")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    token_id: int
    token: str
    value: float
    def __init__(self, token_id: _Optional[int] = ..., token: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...

class TopContributions(_message.Message):
    __slots__ = ("query_units", "document_units", "values")
    QUERY_UNITS_FIELD_NUMBER: _ClassVar[int]
    DOCUMENT_UNITS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    query_units: _containers.RepeatedScalarFieldContainer[int]
    document_units: _containers.RepeatedScalarFieldContainer[int]
    values: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, query_units: _Optional[_Iterable[int]] = ..., document_units: _Optional[_Iterable[int]] = ..., values: _Optional[_Iterable[float]] = ...) -> None: ...

class ContributionRest(_message.Message):
    __slots__ = ("special_tokens", "prompt", "bias", "dropped")
    SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    BIAS_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    special_tokens: float
    prompt: float
    bias: float
    dropped: float
    def __init__(self, special_tokens: _Optional[float] = ..., prompt: _Optional[float] = ..., bias: _Optional[float] = ..., dropped: _Optional[float] = ...) -> None: ...

class RerankRequest(_message.Message):
    __slots__ = ("model", "raw_scores", "query", "documents", "top_n", "truncation", "effect", "unit", "explain_top")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    RAW_SCORES_FIELD_NUMBER: _ClassVar[int]
    QUERY_FIELD_NUMBER: _ClassVar[int]
    DOCUMENTS_FIELD_NUMBER: _ClassVar[int]
    TOP_N_FIELD_NUMBER: _ClassVar[int]
    TRUNCATION_FIELD_NUMBER: _ClassVar[int]
    EFFECT_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    EXPLAIN_TOP_FIELD_NUMBER: _ClassVar[int]
    model: str
    raw_scores: bool
    query: str
    documents: _containers.RepeatedScalarFieldContainer[str]
    top_n: int
    truncation: Truncation
    effect: Effect
    unit: UnitKind
    explain_top: int
    def __init__(self, model: _Optional[str] = ..., raw_scores: _Optional[bool] = ..., query: _Optional[str] = ..., documents: _Optional[_Iterable[str]] = ..., top_n: _Optional[int] = ..., truncation: _Optional[_Union[Truncation, str]] = ..., effect: _Optional[_Union[Effect, str]] = ..., unit: _Optional[_Union[UnitKind, str]] = ..., explain_top: _Optional[int] = ...) -> None: ...

class RerankResponse(_message.Message):
    __slots__ = ("model", "precision", "results", "usage", "scored_by")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    SCORED_BY_FIELD_NUMBER: _ClassVar[int]
    model: str
    precision: Precision
    results: _containers.RepeatedCompositeFieldContainer[RankedDocument]
    usage: Usage
    scored_by: ScoredBy
    def __init__(self, model: _Optional[str] = ..., precision: _Optional[_Union[Precision, str]] = ..., results: _Optional[_Iterable[_Union[RankedDocument, _Mapping]]] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ..., scored_by: _Optional[_Union[ScoredBy, str]] = ...) -> None: ...

class RankedDocument(_message.Message):
    __slots__ = ("index", "relevance_score", "explanation")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    RELEVANCE_SCORE_FIELD_NUMBER: _ClassVar[int]
    EXPLANATION_FIELD_NUMBER: _ClassVar[int]
    index: int
    relevance_score: float
    explanation: RankExplanation
    def __init__(self, index: _Optional[int] = ..., relevance_score: _Optional[float] = ..., explanation: _Optional[_Union[RankExplanation, _Mapping]] = ...) -> None: ...

class RankExplanation(_message.Message):
    __slots__ = ("query_units", "document_units", "query_effects", "document_effects")
    QUERY_UNITS_FIELD_NUMBER: _ClassVar[int]
    DOCUMENT_UNITS_FIELD_NUMBER: _ClassVar[int]
    QUERY_EFFECTS_FIELD_NUMBER: _ClassVar[int]
    DOCUMENT_EFFECTS_FIELD_NUMBER: _ClassVar[int]
    query_units: _containers.RepeatedCompositeFieldContainer[Unit]
    document_units: _containers.RepeatedCompositeFieldContainer[Unit]
    query_effects: _containers.RepeatedScalarFieldContainer[float]
    document_effects: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, query_units: _Optional[_Iterable[_Union[Unit, _Mapping]]] = ..., document_units: _Optional[_Iterable[_Union[Unit, _Mapping]]] = ..., query_effects: _Optional[_Iterable[float]] = ..., document_effects: _Optional[_Iterable[float]] = ...) -> None: ...

class ClassifyRequest(_message.Message):
    __slots__ = ("model", "inputs", "top_k", "raw_scores", "truncation", "effect", "unit", "labels", "template", "multi_label")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    RAW_SCORES_FIELD_NUMBER: _ClassVar[int]
    TRUNCATION_FIELD_NUMBER: _ClassVar[int]
    EFFECT_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    TEMPLATE_FIELD_NUMBER: _ClassVar[int]
    MULTI_LABEL_FIELD_NUMBER: _ClassVar[int]
    model: str
    inputs: _containers.RepeatedCompositeFieldContainer[Input]
    top_k: int
    raw_scores: bool
    truncation: Truncation
    effect: Effect
    unit: UnitKind
    labels: _containers.RepeatedScalarFieldContainer[str]
    template: str
    multi_label: bool
    def __init__(self, model: _Optional[str] = ..., inputs: _Optional[_Iterable[_Union[Input, _Mapping]]] = ..., top_k: _Optional[int] = ..., raw_scores: _Optional[bool] = ..., truncation: _Optional[_Union[Truncation, str]] = ..., effect: _Optional[_Union[Effect, str]] = ..., unit: _Optional[_Union[UnitKind, str]] = ..., labels: _Optional[_Iterable[str]] = ..., template: _Optional[str] = ..., multi_label: _Optional[bool] = ...) -> None: ...

class ClassifyResponse(_message.Message):
    __slots__ = ("model", "precision", "results", "usage")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    model: str
    precision: Precision
    results: _containers.RepeatedCompositeFieldContainer[ClassifyResult]
    usage: Usage
    def __init__(self, model: _Optional[str] = ..., precision: _Optional[_Union[Precision, str]] = ..., results: _Optional[_Iterable[_Union[ClassifyResult, _Mapping]]] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ...) -> None: ...

class ClassifyResult(_message.Message):
    __slots__ = ("token_count", "truncated", "labels", "units")
    TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    UNITS_FIELD_NUMBER: _ClassVar[int]
    token_count: int
    truncated: bool
    labels: _containers.RepeatedCompositeFieldContainer[Label]
    units: _containers.RepeatedCompositeFieldContainer[Unit]
    def __init__(self, token_count: _Optional[int] = ..., truncated: _Optional[bool] = ..., labels: _Optional[_Iterable[_Union[Label, _Mapping]]] = ..., units: _Optional[_Iterable[_Union[Unit, _Mapping]]] = ...) -> None: ...

class Label(_message.Message):
    __slots__ = ("label", "score", "effects")
    LABEL_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    EFFECTS_FIELD_NUMBER: _ClassVar[int]
    label: str
    score: float
    effects: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, label: _Optional[str] = ..., score: _Optional[float] = ..., effects: _Optional[_Iterable[float]] = ...) -> None: ...

class TokenClassifyRequest(_message.Message):
    __slots__ = ("model", "inputs", "aggregation", "truncation")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    AGGREGATION_FIELD_NUMBER: _ClassVar[int]
    TRUNCATION_FIELD_NUMBER: _ClassVar[int]
    model: str
    inputs: _containers.RepeatedCompositeFieldContainer[Input]
    aggregation: Aggregation
    truncation: Truncation
    def __init__(self, model: _Optional[str] = ..., inputs: _Optional[_Iterable[_Union[Input, _Mapping]]] = ..., aggregation: _Optional[_Union[Aggregation, str]] = ..., truncation: _Optional[_Union[Truncation, str]] = ...) -> None: ...

class TokenClassifyResponse(_message.Message):
    __slots__ = ("model", "precision", "results", "usage")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    model: str
    precision: Precision
    results: _containers.RepeatedCompositeFieldContainer[TokenClassifyResult]
    usage: Usage
    def __init__(self, model: _Optional[str] = ..., precision: _Optional[_Union[Precision, str]] = ..., results: _Optional[_Iterable[_Union[TokenClassifyResult, _Mapping]]] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ...) -> None: ...

class TokenClassifyResult(_message.Message):
    __slots__ = ("token_count", "truncated", "entities")
    TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    ENTITIES_FIELD_NUMBER: _ClassVar[int]
    token_count: int
    truncated: bool
    entities: _containers.RepeatedCompositeFieldContainer[Entity]
    def __init__(self, token_count: _Optional[int] = ..., truncated: _Optional[bool] = ..., entities: _Optional[_Iterable[_Union[Entity, _Mapping]]] = ...) -> None: ...

class Entity(_message.Message):
    __slots__ = ("label", "score", "text", "start", "end", "segment")
    LABEL_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    label: str
    score: float
    text: str
    start: int
    end: int
    segment: int
    def __init__(self, label: _Optional[str] = ..., score: _Optional[float] = ..., text: _Optional[str] = ..., start: _Optional[int] = ..., end: _Optional[int] = ..., segment: _Optional[int] = ...) -> None: ...

class FillMaskRequest(_message.Message):
    __slots__ = ("model", "inputs", "position", "layers", "all_layers", "top_k", "targets", "truncation")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    ALL_LAYERS_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TARGETS_FIELD_NUMBER: _ClassVar[int]
    TRUNCATION_FIELD_NUMBER: _ClassVar[int]
    model: str
    inputs: _containers.RepeatedCompositeFieldContainer[Input]
    position: int
    layers: _containers.RepeatedScalarFieldContainer[int]
    all_layers: bool
    top_k: int
    targets: _containers.RepeatedScalarFieldContainer[str]
    truncation: Truncation
    def __init__(self, model: _Optional[str] = ..., inputs: _Optional[_Iterable[_Union[Input, _Mapping]]] = ..., position: _Optional[int] = ..., layers: _Optional[_Iterable[int]] = ..., all_layers: _Optional[bool] = ..., top_k: _Optional[int] = ..., targets: _Optional[_Iterable[str]] = ..., truncation: _Optional[_Union[Truncation, str]] = ...) -> None: ...

class FillMaskResponse(_message.Message):
    __slots__ = ("model", "precision", "results", "usage")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    model: str
    precision: Precision
    results: _containers.RepeatedCompositeFieldContainer[FillMaskResult]
    usage: Usage
    def __init__(self, model: _Optional[str] = ..., precision: _Optional[_Union[Precision, str]] = ..., results: _Optional[_Iterable[_Union[FillMaskResult, _Mapping]]] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ...) -> None: ...

class FillMaskResult(_message.Message):
    __slots__ = ("token_count", "truncated", "positions")
    TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    token_count: int
    truncated: bool
    positions: _containers.RepeatedCompositeFieldContainer[FilledPosition]
    def __init__(self, token_count: _Optional[int] = ..., truncated: _Optional[bool] = ..., positions: _Optional[_Iterable[_Union[FilledPosition, _Mapping]]] = ...) -> None: ...

class FilledPosition(_message.Message):
    __slots__ = ("position", "start", "end", "segment", "layers")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    position: int
    start: int
    end: int
    segment: int
    layers: _containers.RepeatedCompositeFieldContainer[LayerPredictions]
    def __init__(self, position: _Optional[int] = ..., start: _Optional[int] = ..., end: _Optional[int] = ..., segment: _Optional[int] = ..., layers: _Optional[_Iterable[_Union[LayerPredictions, _Mapping]]] = ...) -> None: ...

class LayerPredictions(_message.Message):
    __slots__ = ("layer", "predictions")
    LAYER_FIELD_NUMBER: _ClassVar[int]
    PREDICTIONS_FIELD_NUMBER: _ClassVar[int]
    layer: int
    predictions: _containers.RepeatedCompositeFieldContainer[Prediction]
    def __init__(self, layer: _Optional[int] = ..., predictions: _Optional[_Iterable[_Union[Prediction, _Mapping]]] = ...) -> None: ...

class Prediction(_message.Message):
    __slots__ = ("token", "id", "probability")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    PROBABILITY_FIELD_NUMBER: _ClassVar[int]
    token: str
    id: int
    probability: float
    def __init__(self, token: _Optional[str] = ..., id: _Optional[int] = ..., probability: _Optional[float] = ...) -> None: ...

class TokenizeRequest(_message.Message):
    __slots__ = ("model", "inputs")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    model: str
    inputs: _containers.RepeatedCompositeFieldContainer[Input]
    def __init__(self, model: _Optional[str] = ..., inputs: _Optional[_Iterable[_Union[Input, _Mapping]]] = ...) -> None: ...

class TokenizeResponse(_message.Message):
    __slots__ = ("model", "results", "usage")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    model: str
    results: _containers.RepeatedCompositeFieldContainer[TokenizeResult]
    usage: Usage
    def __init__(self, model: _Optional[str] = ..., results: _Optional[_Iterable[_Union[TokenizeResult, _Mapping]]] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ...) -> None: ...

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
    __slots__ = ("id", "text", "start", "end", "word_index", "segment", "special")
    ID_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    WORD_INDEX_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    SPECIAL_FIELD_NUMBER: _ClassVar[int]
    id: int
    text: str
    start: int
    end: int
    word_index: int
    segment: int
    special: bool
    def __init__(self, id: _Optional[int] = ..., text: _Optional[str] = ..., start: _Optional[int] = ..., end: _Optional[int] = ..., word_index: _Optional[int] = ..., segment: _Optional[int] = ..., special: _Optional[bool] = ...) -> None: ...

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
    dtype: Dtype
    data: bytes
    def __init__(self, shape: _Optional[_Iterable[int]] = ..., dtype: _Optional[_Union[Dtype, str]] = ..., data: _Optional[bytes] = ...) -> None: ...

class Usage(_message.Message):
    __slots__ = ("tokens", "truncated_inputs")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_INPUTS_FIELD_NUMBER: _ClassVar[int]
    tokens: int
    truncated_inputs: int
    def __init__(self, tokens: _Optional[int] = ..., truncated_inputs: _Optional[int] = ...) -> None: ...

class GetModelRequest(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: str
    def __init__(self, model: _Optional[str] = ...) -> None: ...

class ListModelsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListModelsResponse(_message.Message):
    __slots__ = ("models",)
    MODELS_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedCompositeFieldContainer[Model]
    def __init__(self, models: _Optional[_Iterable[_Union[Model, _Mapping]]] = ...) -> None: ...

class Model(_message.Message):
    __slots__ = ("name", "aliases", "digest", "source", "revision", "license", "model_type", "num_hidden_layers", "num_attention_heads", "hidden_size", "dimensions", "vocab_size", "max_input_tokens", "pooling", "normalize", "prompts", "default_prompt_name", "precision", "provider", "threads", "backend_reason", "gpu_memory_bytes", "length_buckets", "layers", "attention_kinds", "layer_outputs", "layer_structure", "limits", "version", "similarity", "attention", "training", "evaluations", "operations", "labels", "outputs", "token_labels", "mask_token", "unknown_token_id", "multi_vector", "sparse", "truncation_side", "role_max_tokens", "poolings")
    class PromptsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class RoleMaxTokensEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    ALIASES_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    LICENSE_FIELD_NUMBER: _ClassVar[int]
    MODEL_TYPE_FIELD_NUMBER: _ClassVar[int]
    NUM_HIDDEN_LAYERS_FIELD_NUMBER: _ClassVar[int]
    NUM_ATTENTION_HEADS_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_SIZE_FIELD_NUMBER: _ClassVar[int]
    DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_INPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    POOLING_FIELD_NUMBER: _ClassVar[int]
    NORMALIZE_FIELD_NUMBER: _ClassVar[int]
    PROMPTS_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_PROMPT_NAME_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    PROVIDER_FIELD_NUMBER: _ClassVar[int]
    THREADS_FIELD_NUMBER: _ClassVar[int]
    BACKEND_REASON_FIELD_NUMBER: _ClassVar[int]
    GPU_MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    LENGTH_BUCKETS_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    ATTENTION_KINDS_FIELD_NUMBER: _ClassVar[int]
    LAYER_OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    LAYER_STRUCTURE_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SIMILARITY_FIELD_NUMBER: _ClassVar[int]
    ATTENTION_FIELD_NUMBER: _ClassVar[int]
    TRAINING_FIELD_NUMBER: _ClassVar[int]
    EVALUATIONS_FIELD_NUMBER: _ClassVar[int]
    OPERATIONS_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_LABELS_FIELD_NUMBER: _ClassVar[int]
    MASK_TOKEN_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    MULTI_VECTOR_FIELD_NUMBER: _ClassVar[int]
    SPARSE_FIELD_NUMBER: _ClassVar[int]
    TRUNCATION_SIDE_FIELD_NUMBER: _ClassVar[int]
    ROLE_MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    POOLINGS_FIELD_NUMBER: _ClassVar[int]
    name: str
    aliases: _containers.RepeatedScalarFieldContainer[str]
    digest: str
    source: str
    revision: str
    license: str
    model_type: str
    num_hidden_layers: int
    num_attention_heads: int
    hidden_size: int
    dimensions: int
    vocab_size: int
    max_input_tokens: int
    pooling: Pooling
    normalize: bool
    prompts: _containers.ScalarMap[str, str]
    default_prompt_name: str
    precision: Precision
    provider: Provider
    threads: int
    backend_reason: str
    gpu_memory_bytes: int
    length_buckets: _containers.RepeatedScalarFieldContainer[int]
    layers: _containers.RepeatedScalarFieldContainer[int]
    attention_kinds: _containers.RepeatedScalarFieldContainer[AttentionKind]
    layer_outputs: _containers.RepeatedScalarFieldContainer[LayerOutput]
    layer_structure: LayerStructure
    limits: Limits
    version: str
    similarity: SimilarityFunction
    attention: Attention
    training: TrainingRecord
    evaluations: _containers.RepeatedCompositeFieldContainer[EvaluationRecord]
    operations: _containers.RepeatedScalarFieldContainer[Operation]
    labels: _containers.RepeatedScalarFieldContainer[str]
    outputs: _containers.RepeatedScalarFieldContainer[Output]
    token_labels: _containers.RepeatedScalarFieldContainer[str]
    mask_token: str
    unknown_token_id: int
    multi_vector: MultiVectorInfo
    sparse: SparseInfo
    truncation_side: Truncation
    role_max_tokens: _containers.ScalarMap[str, int]
    poolings: _containers.RepeatedScalarFieldContainer[Pooling]
    def __init__(self, name: _Optional[str] = ..., aliases: _Optional[_Iterable[str]] = ..., digest: _Optional[str] = ..., source: _Optional[str] = ..., revision: _Optional[str] = ..., license: _Optional[str] = ..., model_type: _Optional[str] = ..., num_hidden_layers: _Optional[int] = ..., num_attention_heads: _Optional[int] = ..., hidden_size: _Optional[int] = ..., dimensions: _Optional[int] = ..., vocab_size: _Optional[int] = ..., max_input_tokens: _Optional[int] = ..., pooling: _Optional[_Union[Pooling, str]] = ..., normalize: _Optional[bool] = ..., prompts: _Optional[_Mapping[str, str]] = ..., default_prompt_name: _Optional[str] = ..., precision: _Optional[_Union[Precision, str]] = ..., provider: _Optional[_Union[Provider, str]] = ..., threads: _Optional[int] = ..., backend_reason: _Optional[str] = ..., gpu_memory_bytes: _Optional[int] = ..., length_buckets: _Optional[_Iterable[int]] = ..., layers: _Optional[_Iterable[int]] = ..., attention_kinds: _Optional[_Iterable[_Union[AttentionKind, str]]] = ..., layer_outputs: _Optional[_Iterable[_Union[LayerOutput, str]]] = ..., layer_structure: _Optional[_Union[LayerStructure, _Mapping]] = ..., limits: _Optional[_Union[Limits, _Mapping]] = ..., version: _Optional[str] = ..., similarity: _Optional[_Union[SimilarityFunction, str]] = ..., attention: _Optional[_Union[Attention, str]] = ..., training: _Optional[_Union[TrainingRecord, _Mapping]] = ..., evaluations: _Optional[_Iterable[_Union[EvaluationRecord, _Mapping]]] = ..., operations: _Optional[_Iterable[_Union[Operation, str]]] = ..., labels: _Optional[_Iterable[str]] = ..., outputs: _Optional[_Iterable[_Union[Output, str]]] = ..., token_labels: _Optional[_Iterable[str]] = ..., mask_token: _Optional[str] = ..., unknown_token_id: _Optional[int] = ..., multi_vector: _Optional[_Union[MultiVectorInfo, _Mapping]] = ..., sparse: _Optional[_Union[SparseInfo, _Mapping]] = ..., truncation_side: _Optional[_Union[Truncation, str]] = ..., role_max_tokens: _Optional[_Mapping[str, int]] = ..., poolings: _Optional[_Iterable[_Union[Pooling, str]]] = ...) -> None: ...

class LayerStructure(_message.Message):
    __slots__ = ("block", "norm", "positions", "segments", "embedding_norm", "head_size", "num_key_value_heads", "attention_scale", "intermediate_size", "gated")
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    NORM_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    EMBEDDING_NORM_FIELD_NUMBER: _ClassVar[int]
    HEAD_SIZE_FIELD_NUMBER: _ClassVar[int]
    NUM_KEY_VALUE_HEADS_FIELD_NUMBER: _ClassVar[int]
    ATTENTION_SCALE_FIELD_NUMBER: _ClassVar[int]
    INTERMEDIATE_SIZE_FIELD_NUMBER: _ClassVar[int]
    GATED_FIELD_NUMBER: _ClassVar[int]
    block: BlockKind
    norm: NormKind
    positions: _containers.RepeatedScalarFieldContainer[PositionKind]
    segments: bool
    embedding_norm: bool
    head_size: int
    num_key_value_heads: int
    attention_scale: float
    intermediate_size: int
    gated: bool
    def __init__(self, block: _Optional[_Union[BlockKind, str]] = ..., norm: _Optional[_Union[NormKind, str]] = ..., positions: _Optional[_Iterable[_Union[PositionKind, str]]] = ..., segments: _Optional[bool] = ..., embedding_norm: _Optional[bool] = ..., head_size: _Optional[int] = ..., num_key_value_heads: _Optional[int] = ..., attention_scale: _Optional[float] = ..., intermediate_size: _Optional[int] = ..., gated: _Optional[bool] = ...) -> None: ...

class SparseInfo(_message.Message):
    __slots__ = ("similarity", "max_active")
    SIMILARITY_FIELD_NUMBER: _ClassVar[int]
    MAX_ACTIVE_FIELD_NUMBER: _ClassVar[int]
    similarity: SimilarityFunction
    max_active: int
    def __init__(self, similarity: _Optional[_Union[SimilarityFunction, str]] = ..., max_active: _Optional[int] = ...) -> None: ...

class MultiVectorInfo(_message.Message):
    __slots__ = ("dimensions", "query", "document", "query_expansion")
    DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
    QUERY_FIELD_NUMBER: _ClassVar[int]
    DOCUMENT_FIELD_NUMBER: _ClassVar[int]
    QUERY_EXPANSION_FIELD_NUMBER: _ClassVar[int]
    dimensions: int
    query: MultiVectorSide
    document: MultiVectorSide
    query_expansion: QueryExpansion
    def __init__(self, dimensions: _Optional[int] = ..., query: _Optional[_Union[MultiVectorSide, _Mapping]] = ..., document: _Optional[_Union[MultiVectorSide, _Mapping]] = ..., query_expansion: _Optional[_Union[QueryExpansion, _Mapping]] = ...) -> None: ...

class MultiVectorSide(_message.Message):
    __slots__ = ("max_input_tokens", "marker")
    MAX_INPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MARKER_FIELD_NUMBER: _ClassVar[int]
    max_input_tokens: int
    marker: str
    def __init__(self, max_input_tokens: _Optional[int] = ..., marker: _Optional[str] = ...) -> None: ...

class QueryExpansion(_message.Message):
    __slots__ = ("token", "length", "attended")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    ATTENDED_FIELD_NUMBER: _ClassVar[int]
    token: str
    length: int
    attended: bool
    def __init__(self, token: _Optional[str] = ..., length: _Optional[int] = ..., attended: _Optional[bool] = ...) -> None: ...

class TrainingRecord(_message.Message):
    __slots__ = ("objective", "initial_model", "teacher", "data", "steps", "tokens", "seed", "precision", "validation_loss")
    OBJECTIVE_FIELD_NUMBER: _ClassVar[int]
    INITIAL_MODEL_FIELD_NUMBER: _ClassVar[int]
    TEACHER_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    VALIDATION_LOSS_FIELD_NUMBER: _ClassVar[int]
    objective: str
    initial_model: str
    teacher: str
    data: _containers.RepeatedCompositeFieldContainer[DataFileRecord]
    steps: int
    tokens: int
    seed: int
    precision: str
    validation_loss: float
    def __init__(self, objective: _Optional[str] = ..., initial_model: _Optional[str] = ..., teacher: _Optional[str] = ..., data: _Optional[_Iterable[_Union[DataFileRecord, _Mapping]]] = ..., steps: _Optional[int] = ..., tokens: _Optional[int] = ..., seed: _Optional[int] = ..., precision: _Optional[str] = ..., validation_loss: _Optional[float] = ...) -> None: ...

class DataFileRecord(_message.Message):
    __slots__ = ("name", "size")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    name: str
    size: int
    def __init__(self, name: _Optional[str] = ..., size: _Optional[int] = ...) -> None: ...

class EvaluationRecord(_message.Message):
    __slots__ = ("task", "file", "measure", "value", "low", "high")
    TASK_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    MEASURE_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    LOW_FIELD_NUMBER: _ClassVar[int]
    HIGH_FIELD_NUMBER: _ClassVar[int]
    task: str
    file: str
    measure: str
    value: float
    low: float
    high: float
    def __init__(self, task: _Optional[str] = ..., file: _Optional[str] = ..., measure: _Optional[str] = ..., value: _Optional[float] = ..., low: _Optional[float] = ..., high: _Optional[float] = ...) -> None: ...

class Limits(_message.Message):
    __slots__ = ("max_inputs", "max_spans_per_input", "max_spans_per_request", "max_input_characters", "max_request_bytes", "max_grpc_message_bytes", "max_pending_request_bytes", "max_connections", "max_grpc_streams", "max_response_bytes", "max_queue_ms", "max_explain_queue_ms", "max_queue_tokens", "max_explain_queue_tokens", "max_timeout_ms", "header_timeout_ms", "body_timeout_ms", "max_explain_bytes", "max_documents")
    MAX_INPUTS_FIELD_NUMBER: _ClassVar[int]
    MAX_SPANS_PER_INPUT_FIELD_NUMBER: _ClassVar[int]
    MAX_SPANS_PER_REQUEST_FIELD_NUMBER: _ClassVar[int]
    MAX_INPUT_CHARACTERS_FIELD_NUMBER: _ClassVar[int]
    MAX_REQUEST_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_GRPC_MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_PENDING_REQUEST_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_CONNECTIONS_FIELD_NUMBER: _ClassVar[int]
    MAX_GRPC_STREAMS_FIELD_NUMBER: _ClassVar[int]
    MAX_RESPONSE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_QUEUE_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_EXPLAIN_QUEUE_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_QUEUE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_EXPLAIN_QUEUE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    HEADER_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    BODY_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_EXPLAIN_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_DOCUMENTS_FIELD_NUMBER: _ClassVar[int]
    max_inputs: int
    max_spans_per_input: int
    max_spans_per_request: int
    max_input_characters: int
    max_request_bytes: int
    max_grpc_message_bytes: int
    max_pending_request_bytes: int
    max_connections: int
    max_grpc_streams: int
    max_response_bytes: int
    max_queue_ms: int
    max_explain_queue_ms: int
    max_queue_tokens: int
    max_explain_queue_tokens: int
    max_timeout_ms: int
    header_timeout_ms: int
    body_timeout_ms: int
    max_explain_bytes: int
    max_documents: int
    def __init__(self, max_inputs: _Optional[int] = ..., max_spans_per_input: _Optional[int] = ..., max_spans_per_request: _Optional[int] = ..., max_input_characters: _Optional[int] = ..., max_request_bytes: _Optional[int] = ..., max_grpc_message_bytes: _Optional[int] = ..., max_pending_request_bytes: _Optional[int] = ..., max_connections: _Optional[int] = ..., max_grpc_streams: _Optional[int] = ..., max_response_bytes: _Optional[int] = ..., max_queue_ms: _Optional[int] = ..., max_explain_queue_ms: _Optional[int] = ..., max_queue_tokens: _Optional[int] = ..., max_explain_queue_tokens: _Optional[int] = ..., max_timeout_ms: _Optional[int] = ..., header_timeout_ms: _Optional[int] = ..., body_timeout_ms: _Optional[int] = ..., max_explain_bytes: _Optional[int] = ..., max_documents: _Optional[int] = ...) -> None: ...
