"""Requests and responses of encode and tokenize."""

import base64
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from model.artifact.manifest import Pooling
from model.artifact.tokenizer import Offsets, TokenizerInput
from service.engine.schema.operations import Output

LayerReduce = Literal["concat", "mean", "stack"]
Truncation = Literal["error", "right", "left", "auto"]
"""What to do with inputs over the token limit. "auto" drops tokens at the side that the model names."""
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
        """Return the value of the header server-timing, in milliseconds; `run` is without `queue`."""
        return (
            f"tokenize;dur={self.tokenize * 1e3:.2f}, queue;dur={self.queue * 1e3:.2f}, "
            f"run;dur={(self.run - self.queue) * 1e3:.2f}, postprocess;dur={self.postprocess * 1e3:.2f}"
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
