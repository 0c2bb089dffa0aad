"""Requests and responses of encode and tokenize, and the description of the model."""

import base64
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from model.encodings import Offsets
from model.manifest import Attention, EvaluationRecord, Pooling, Similarity, TrainingRecord
from model.tokenized_input import TokenizedInput, TokenizerInput
from service.engine.schema.operations import Operation, Output

HeadName = Literal["classification", "token_classification", "masked_lm", "sparse", "multi_vector"]
"""The type of a head whose results a backend computes with each batch."""
LayerReduce = Literal["concat", "mean", "stack"]
Truncation = Literal["error", "right", "left"]
Side = Literal["query", "document"]
"""What a text is in retrieval. Some models read queries and documents differently."""
DType = Literal["float32", "float16", "int8", "ubinary"]
MapDType = Literal["float32", "float16", "sqrt_uint8"]
Wire = Literal["json", "base64", "binary"]

DTYPES: dict[DType | MapDType, np.dtype[Any]] = {
    "float32": np.dtype("<f4"),
    "float16": np.dtype("<f2"),
    "int8": np.dtype("i1"),
    "ubinary": np.dtype("u1"),
    "sqrt_uint8": np.dtype("u1"),
}


@dataclass(frozen=True, slots=True)
class Input:
    """One text, a pair, or token ids; `spans` are ranges of characters of the text."""

    source: TokenizerInput
    spans: tuple[Offsets, ...] = ()


@dataclass(frozen=True, slots=True)
class EncodeRequest:
    """An encode request, as docs/api.md describes it.

    Attributes:
        layers: 0..L or -L-1..-1; None selects all layers.
        prompt_name: Selects a prompt of the model; mutually exclusive with `prompt`.
        prompt: Text to prepend to each text; "" selects none. With neither, the prompt of the role applies, else the
            model's default prompt.
        role: What the texts are for a model that reads queries and documents differently.
        wire: The encoding of arrays in the response, which decides its size.
        deadline: A time.monotonic() reading; None selects the maximum timeout.
        max_inputs: Overrides `Limits.max_inputs` for an API with its own limit.
        padded: Whether all inputs take the space of the longest one in the response, which then has arrays alone.
    """

    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...] = ("pooled",)
    layers: tuple[int, ...] | None = (-1,)
    layer_reduce: LayerReduce = "concat"
    pooling: Pooling | None = None
    normalize: bool | None = None
    dimensions: int | None = None
    truncation: Truncation = "error"
    prompt_name: str | None = None
    prompt: str | None = None
    role: Side | None = None
    dtype: DType = "float32"
    wire: Wire = "json"
    deadline: float | None = None
    max_inputs: int | None = None
    padded: bool = False


@dataclass(frozen=True, slots=True)
class TokenizeRequest:
    """A tokenize request; fields as in `EncodeRequest`."""

    inputs: tuple[Input, ...]
    wire: Wire = "json"
    deadline: float | None = None


@dataclass(frozen=True, slots=True)
class Array:
    """A dense array of a response. API adapters take its values, bytes or base64, and need no numpy."""

    values: NDArray[Any]
    dtype: DType | MapDType

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    def to_list(self) -> list[Any]:
        listed: list[Any] = self.values.tolist()
        return listed

    def to_bytes(self) -> bytes:
        return self.values.tobytes()

    def to_base64(self) -> str:
        return base64.b64encode(self.values.tobytes()).decode("ascii")


@dataclass(frozen=True, slots=True)
class Token:
    id: int
    text: str
    start: int
    end: int
    word_index: int | None
    segment: int
    special: bool


@dataclass(frozen=True, slots=True)
class Word:
    text: str
    start: int
    end: int
    segment: int


@dataclass(slots=True)
class EncodeResult:
    token_count: int
    truncated: bool
    tokens: list[Token] | None = None
    words: list[Word] | None = None
    pooled: Array | None = None
    token_vectors: Array | None = None
    word_vectors: Array | None = None
    span_vectors: Array | None = None
    static_vectors: Array | None = None
    sparse: "SparseResult | None" = None
    multi_vector: Array | None = None
    multi_vector_tokens: list[Token] | None = None


@dataclass(frozen=True, slots=True)
class SparseResult:
    """The N vocabulary entries with a positive weight, by id: ids, texts in the vocabulary, and `weights` (N)."""

    token_ids: list[int]
    tokens: list[str]
    weights: Array


@dataclass(frozen=True, slots=True)
class Timing:
    """Duration of each stage of a request, in seconds; `run` includes `queue`, the wait for the first batch."""

    tokenize: float
    run: float
    postprocess: float
    queue: float = 0.0

    def describe(self) -> str:
        """Return the value of the header server-timing, in milliseconds."""
        return (
            f"tokenize;dur={self.tokenize * 1e3:.2f}, run;dur={self.run * 1e3:.2f}, "
            f"postprocess;dur={self.postprocess * 1e3:.2f}"
        )


@dataclass(frozen=True, slots=True)
class EncodeResponse:
    model: str
    precision: str
    results: list[EncodeResult]
    token_count: int
    truncated_inputs: int
    timing: Timing
    prompt: "AppliedPrompt | None" = None


@dataclass(frozen=True, slots=True)
class AppliedPrompt:
    """The text that was prepended to each text; `name` is None for a prompt text in the request."""

    name: str | None
    text: str


@dataclass(frozen=True, slots=True)
class TokenizeResult:
    token_count: int
    tokens: list[Token]
    words: list[Word]


@dataclass(frozen=True, slots=True)
class TokenizeResponse:
    model: str
    results: list[TokenizeResult]

    @property
    def token_count(self) -> int:
        return sum(result.token_count for result in self.results)


class ModelInput(Protocol):
    """One sequence as the model reads it."""

    @property
    def input_ids(self) -> list[int]: ...
    @property
    def token_type_ids(self) -> list[int]: ...
    @property
    def unattended(self) -> int:
        """The number of tokens at the end to which no token attends."""

    @property
    def skipped_ids(self) -> tuple[int, ...]:
        """The ids of tokens that have no vector in the output of a multi-vector head."""

    @property
    def side(self) -> "Side | None":
        """Whether the text is a query or a document, for a model that distinguishes them."""

    def __len__(self) -> int: ...


@dataclass(frozen=True, slots=True)
class OccludedSequence:
    """The token ids of an input without one unit. Fields are as in `ModelInput`."""

    input_ids: list[int]
    token_type_ids: list[int]
    unattended: int = 0
    skipped_ids: tuple[int, ...] = ()
    side: "Side | None" = None

    def __len__(self) -> int:
        return len(self.input_ids)


@dataclass(frozen=True, slots=True)
class WordQuery:
    """What a masked-LM head is asked: the `count` likeliest entries at each position, of `targets` or of all."""

    positions: tuple[int, ...]
    count: int
    targets: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class EncodeTask:
    """One sequence of the fast lane.

    Attributes:
        tokens: The tokens.
        pooling: The pooling to compute in the backend, which pools a whole batch at once; None if pooled vectors are
            not requested.
        hidden: Whether token vectors are needed.
        pool_from: Index of the first token to pool. Earlier tokens (an excluded prompt and [CLS]) are skipped.
        heads: The heads whose results are needed.
        words: The query of the head "masked_lm".
    """

    tokens: ModelInput
    pooling: Pooling | None
    hidden: bool
    pool_from: int = 0
    heads: tuple[HeadName, ...] = ()
    words: WordQuery | None = None


ExplainOperation = Literal["layers", "maps", "occurrences", "words"]
"""An operation of the explain lane on the hidden states of a text."""


class ExplainTask(Protocol):
    """One tokenized input of the explain lane: plain data, the operation and its parameters."""

    operation: ClassVar[ExplainOperation]

    @property
    def tokens(self) -> TokenizedInput: ...


@dataclass(frozen=True, slots=True)
class TextVectors:
    """Vectors of one input in N layers, float32: `hidden` (N, T, D) and `pooled` (N, D); None if not requested.

    `logits` (C) are those of the classifier, `token_logits` (T, C) those of the token classifier, and `multi_vector`
    (K, dimensions) has one vector of length 1 per token.
    """

    hidden: NDArray[np.float32] | None
    pooled: NDArray[np.float32] | None
    logits: NDArray[np.float32] | None = None
    token_logits: NDArray[np.float32] | None = None
    sparse: "SparseVector | None" = None
    multi_vector: NDArray[np.float32] | None = None
    words: "PredictedWords | None" = None


@dataclass(frozen=True, slots=True)
class PredictedWords:
    """The K likeliest entries of the vocabulary at P positions: `token_ids` and `probabilities` float32, (P, K) each.

    The most probable is first; of equally probable ones, the one with the smaller id.
    """

    token_ids: NDArray[np.int64]
    probabilities: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class SparseVector:
    """The vocabulary entries with a positive weight: `token_ids` int32, ascending, and `weights` float32, (N) each."""

    token_ids: NDArray[np.int32]
    weights: NDArray[np.float32]


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
    attention: Attention
    attention_kinds: list[str]
    limits: Limits
    similarity: Similarity
    training: TrainingRecord | None
    evaluations: list[EvaluationRecord]
    version: str = field(default="")
