"""What the doors ask of the engine and what they get back."""

import base64
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from model.artifact import Pooling
from model.tokenizer import Offsets, Source, Tokens

Output = Literal["pooled", "tokens", "words", "spans", "static"]
LayerReduce = Literal["concat", "mean", "stack"]
Truncation = Literal["error", "right", "left"]
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

    source: Source
    spans: tuple[Offsets, ...] = ()


@dataclass(frozen=True, slots=True)
class EncodeRequest:
    """As API.md, encode. `wire` is how the door will spell the arrays, which decides how large the answer is.

    `deadline` is a time.monotonic() reading; None means the longest that is allowed. `field` names the inputs
    in error messages, as the caller wrote them; `max_inputs` is the door's own limit,
    and `too_long_hint` says what a caller of that door can do about a text that is too long.
    """

    inputs: tuple[Input, ...]
    model: str | None = None
    outputs: tuple[Output, ...] = ("pooled",)
    layers: tuple[int, ...] = (-1,)
    layer_reduce: LayerReduce = "concat"
    pooling: Pooling | None = None
    normalize: bool | None = None
    dimensions: int | None = None
    truncation: Truncation = "error"
    dtype: DType = "float32"
    wire: Wire = "json"
    deadline: float | None = None
    field: str = "inputs"
    max_inputs: int | None = None
    too_long_hint: str = 'Shorten it or set truncation to "right".'


@dataclass(frozen=True, slots=True)
class TokenizeRequest:
    inputs: tuple[Input, ...]
    model: str | None = None
    wire: Wire = "json"
    deadline: float | None = None
    field: str = "inputs"


@dataclass(frozen=True, slots=True)
class Array:
    """A dense array on its way out; doors take its values, bytes or base64, and need no numpy for it."""

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
    word: int | None
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


@dataclass(frozen=True, slots=True)
class Timing:
    """Where a request's time went, in seconds."""

    tokenize: float
    run: float
    postprocess: float

    def describe(self) -> str:
        """As the header server-timing, in milliseconds."""
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


@dataclass(frozen=True, slots=True)
class TokenizeResult:
    token_count: int
    tokens: list[Token]
    words: list[Word]


@dataclass(frozen=True, slots=True)
class TokenizeResponse:
    model: str
    results: list[TokenizeResult]


@dataclass(frozen=True, slots=True)
class EncodeTask:
    """One tokenised text as the fast lane sees it.

    `pooling` is wanted of the runtime, which pools a whole row at once; `hidden` says whether the vectors of the
    tokens are wanted too.
    """

    tokens: Tokens
    pooling: Pooling | None
    hidden: bool


class ExplainTask(Protocol):
    """One tokenised text as the explain lane sees it, and what to make of it there.

    Called on the lane's worker with what every layer gave, `(L+1, T, D)` float32, the embeddings first.
    """

    @property
    def tokens(self) -> Tokens: ...

    def __call__(self, hidden: NDArray[np.float32], /) -> Any: ...


@dataclass(frozen=True, slots=True)
class TextVectors:
    """What N layers gave for one text, where wanted: `hidden` `(N, T, D)` and `pooled` `(N, D)`, float32."""

    hidden: NDArray[np.float32] | None
    pooled: NDArray[np.float32] | None


@dataclass(frozen=True, slots=True)
class Limits:
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
    max_deadline_ms: int
    header_timeout_ms: int
    body_timeout_ms: int


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What `/v1/model` and GetModel tell."""

    name: str
    aliases: list[str]
    digest: str
    source: str
    revision: str | None
    licence: str | None
    family: str
    layer_count: int
    head_count: int
    width: int
    output_width: int
    vocabulary_size: int
    max_tokens: int
    pooling: Pooling
    normalize: bool
    prompts: dict[str, str]
    precision: str
    provider: str
    threads: int
    backend_reason: str
    row_lengths: list[int]
    layers: list[int]
    attention_kinds: list[str]
    limits: Limits
    version: str = field(default="")
