"""The description of a served model, and its limits."""

from dataclasses import dataclass, field

from model.artifact.manifest import (
    Attention,
    EvaluationRecord,
    Pooling,
    RetrievalRole,
    Similarity,
    TrainingRecord,
    TruncationSide,
)
from service.engine.schema.operations import Operation, Output


@dataclass(frozen=True, slots=True)
class Limits:
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
class MultiVectorSide:
    """The limits and the marker for queries, or for documents, of a model with token vectors."""

    max_input_tokens: int
    marker: str | None


@dataclass(frozen=True, slots=True)
class QueryExpansion:
    """The tokens that fill up short queries."""

    token: str
    length: int
    attended: bool


@dataclass(frozen=True, slots=True)
class MultiVectorInfo:
    """The token vectors of a model such as ColBERT."""

    dimensions: int
    query: MultiVectorSide
    document: MultiVectorSide
    query_expansion: QueryExpansion | None


@dataclass(frozen=True, slots=True)
class SparseInfo:
    """The sparse vectors of a model such as SPLADE: how to compare them, and how many entries a text keeps at most."""

    similarity: Similarity
    max_active: int | None


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """The description of the served model in `/v1/model` and GetModel; proto/attendant/v1 documents the fields."""

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
    role_max_tokens: dict[RetrievalRole, int]
    truncation_side: TruncationSide
    pooling: Pooling
    normalize: bool
    prompts: dict[str, str]
    default_prompt_name: str | None
    precision: str
    provider: str
    threads: int
    backend_reason: str
    length_buckets: list[int]
    layers: list[int]
    operations: list[Operation]
    outputs: list[Output]
    labels: list[str]
    token_labels: list[str]
    mask_token: str | None
    multi_vector: MultiVectorInfo | None
    sparse: SparseInfo | None
    attention: Attention
    attention_kinds: list[str]
    limits: Limits
    similarity: Similarity
    training: TrainingRecord | None
    evaluations: list[EvaluationRecord]
    version: str = field(default="")
