"""The served model, its limits, and its training and evaluation records."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Server limits that the client needs."""

    max_inputs: int
    max_spans_per_request: int
    max_request_bytes: int
    max_grpc_message_bytes: int
    max_input_characters: int
    max_timeout_ms: int
    max_documents: int


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
    """One measure of an evaluation, with its 95 % interval if there is one."""

    task: str
    file: str
    measure: str
    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class MultiVectorSide:
    """The limits and the marker for queries, or for documents, of a model with token vectors.

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
class SparseInfo:
    """The sparse vectors of a model such as SPLADE.

    `similarity` is the function that compares them. `max_active` is the number of entries that a text keeps at most, or
    None for all.
    """

    similarity: str
    max_active: int | None


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """The served model.

    `max_input_tokens` includes special tokens. `role_max_tokens` replaces it for queries or documents. The truncation
    "auto" drops tokens at the `truncation_side`. `dimensions` is the size of pooled vectors; `attention` is
    "bidirectional" or "causal"; `training` is None unless the model was trained with Attendant. `operations` are the
    operations that the model supports, such as "classify", and `outputs` are the outputs of `encode`, such as "sparse".
    `labels` are the labels of its classifier, if any, and `token_labels` the labels of its token classifier.
    `mask_token` marks the positions that `fill_mask` predicts. `multi_vector` is None for models without token vectors,
    and `sparse` for models without sparse vectors.
    """

    name: str
    aliases: list[str]
    digest: str
    model_type: str
    num_hidden_layers: int
    num_attention_heads: int
    hidden_size: int
    dimensions: int
    vocab_size: int
    max_input_tokens: int
    role_max_tokens: dict[str, int]
    truncation_side: str
    pooling: str
    normalize: bool
    prompts: dict[str, str]
    default_prompt_name: str | None
    precision: str
    provider: str
    attention: str
    attention_kinds: list[str]
    version: str
    similarity: str
    operations: list[str]
    outputs: list[str]
    labels: list[str]
    token_labels: list[str]
    mask_token: str | None
    multi_vector: MultiVectorInfo | None
    sparse: SparseInfo | None
    training: TrainingRecord | None
    evaluations: list[EvaluationRecord]
    limits: Limits
