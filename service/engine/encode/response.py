"""The results of an encode request: prepared and measured before inference, filled in after it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from model.artifact import Manifest, Pooling
from model.tokenizer import Tokenizer, Tokens
from service.engine.encode.alignment import describe_tokens, is_cut_off, overlapping_tokens, words_of
from service.engine.encode.pooling import DenseLayers, Floats, cast, mean_ranges, normalize, pool_batch, reduce_layers
from service.engine.schema.encode import (
    DTYPES,
    Array,
    DType,
    EncodeRequest,
    EncodeResult,
    EncodeTask,
    Input,
    MapDType,
    TextVectors,
    Token,
    Wire,
    Word,
)
from service.engine.validation import is_last_alone, pooled_size
from service.errors import InvalidArgument

# Upper bounds of sizes in a response, in bytes. JSON spells a character in at most 12 (two \u escapes).
JSON_VALUE_BYTES: dict[DType | MapDType, int] = {"float32": 16, "float16": 16, "int8": 5, "ubinary": 4}
JSON_CHARACTER_BYTES = 12
TOKEN_BYTES = 128
RESULT_BYTES = 512


class Listed(Protocol):
    """An item of a list in a response: a token, a word, a unit."""

    @property
    def text(self) -> str: ...


@dataclass(frozen=True, slots=True)
class PreparedInput:
    """One input's result without its vectors."""

    tokens: Tokens
    described: list[Token] | None
    words: list[Word] | None
    ranges: NDArray[np.intp] | None
    """Tokens of each word, then of each span, `(W + S, 2)`."""
    span_count: int


@dataclass(frozen=True, slots=True)
class LayerTask:
    """Work of the explain lane: vectors of some layers of one input. `layers` are 0..L."""

    tokens: Tokens
    pooling: Pooling | None
    hidden: bool
    layers: tuple[int, ...]

    def __call__(self, every: Floats) -> TextVectors:
        """`every` is `(L+1, T, D)`."""
        chosen = every[list(self.layers)]
        pooling, size = self.pooling, len(self.tokens)
        return TextVectors(
            hidden=chosen if self.hidden else None,
            pooled=None
            if pooling is None
            else np.concatenate([pool_batch(layer, [0], [size], pooling) for layer in chosen]),
        )


def prepare_input(
    item: Input, tokens: Tokens, request: EncodeRequest, tokenizer: Tokenizer, where: str
) -> PreparedInput:
    """Find the words and spans of an input; raise `InvalidArgument` for a span that nothing is left of."""
    outputs = request.outputs
    listed = "tokens" in outputs or "static" in outputs
    words = words_of(tokens) if listed or "words" in outputs else []
    described = describe_tokens(tokens, tokenizer.surfaces(tokens), words) if listed else None
    if "words" not in outputs and "spans" not in outputs:
        return PreparedInput(tokens, described, None, None, 0)
    for number, span in enumerate(item.spans):
        if is_cut_off(tokens, 0, span):
            raise InvalidArgument(f"{where}.spans[{number}] was wholly cut off by truncation.", reason="span_cut_off")
    asked = words if "words" in outputs else []
    ranges = overlapping_tokens(
        tokens, [(word.segment, (word.start, word.end)) for word in asked] + [(0, span) for span in item.spans]
    )
    for number, (first, last) in enumerate(ranges[len(asked) :]):
        if first == last:
            raise InvalidArgument(f"{where}.spans[{number}] covers no token, only blanks.", reason="span_empty")
    return PreparedInput(tokens, described, words if "words" in outputs else None, ranges, len(item.spans))


def response_bytes(prepared: Sequence[PreparedInput], request: EncodeRequest, manifest: Manifest) -> int:
    """How large the answer will be: exact for the arrays in binary and base64, an upper bound in JSON."""
    outputs = request.outputs
    copies = 1 if request.layer_reduce == "mean" else len(request.layers)
    width = manifest.hidden_size * copies
    pooled_width = request.dimensions or pooled_size(request, manifest)
    if request.layer_reduce == "stack":
        pooled_width *= copies
    total = 0
    for item in prepared:
        count = len(item.tokens)
        values = pooled_width if "pooled" in outputs else 0
        values += count * width if "tokens" in outputs else 0
        values += len(item.ranges) * width if item.ranges is not None else 0
        values += count * manifest.static.shape[1] if "static" in outputs else 0
        total += RESULT_BYTES + array_bytes(values, request.dtype, request.wire)
        total += listed_bytes((*(item.described or ()), *(item.words or ())), request.wire)
    return total


def listed_bytes(parts: Sequence[Listed], wire: Wire) -> int:
    """An upper bound of what tokens, words or units take in an answer."""
    character = 4 if wire == "binary" else JSON_CHARACTER_BYTES
    return sum(TOKEN_BYTES + len(part.text) * character for part in parts)


def array_bytes(values: int, dtype: DType | MapDType, wire: Wire) -> int:
    """What so many values take: exact in binary and base64, an upper bound in JSON."""
    if wire == "json":
        return values * JSON_VALUE_BYTES[dtype]
    size = -(-values // 8) if dtype == "ubinary" else values * DTYPES[dtype].itemsize
    return size if wire == "binary" else -(-size // 3) * 4


def encode_tasks(
    request: EncodeRequest, manifest: Manifest, prepared: Sequence[PreparedInput], *, last: bool
) -> Sequence[EncodeTask | LayerTask]:
    """Return the work of a lane: the fast lane if only the `last` layer is wanted. Static vectors need none."""
    hidden = not {"tokens", "words", "spans"}.isdisjoint(request.outputs)
    pooling = (request.pooling or manifest.pooling) if "pooled" in request.outputs else None
    if not hidden and pooling is None:
        return []
    if last:
        return [EncodeTask(item.tokens, pooling, hidden) for item in prepared]
    layers = tuple(layer % (manifest.num_hidden_layers + 1) for layer in request.layers)
    return [LayerTask(item.tokens, pooling, hidden, layers) for item in prepared]


def build_results(
    prepared: Sequence[PreparedInput],
    vectors: Sequence[TextVectors],
    request: EncodeRequest,
    manifest: Manifest,
    head: DenseLayers,
    static: Floats,
) -> list[EncodeResult]:
    """Return the results of a request; `vectors` is empty if only static vectors are wanted."""
    outputs = request.outputs
    results = [EncodeResult(len(item.tokens), item.tokens.truncated) for item in prepared]
    if "pooled" in outputs:
        pooled = np.stack([_present(found.pooled) for found in vectors], axis=1)  # (layers, N, D)
        finished = finish_pooled(pooled, request, manifest, head)
        for result, vector in zip(results, finished, strict=True):
            result.pooled = Array(vector, request.dtype)
    for number, (item, result) in enumerate(zip(prepared, results, strict=True)):
        result.tokens, result.words = item.described, item.words
        if "static" in outputs:
            result.static_vectors = Array(cast(static[item.tokens.ids], request.dtype), request.dtype)
        if "tokens" in outputs:
            result.token_vectors = _reduced(_present(vectors[number].hidden), request)
        if item.ranges is not None:
            means = np.stack([mean_ranges(layer, item.ranges) for layer in _present(vectors[number].hidden)])
            word_count = len(item.ranges) - item.span_count
            result.word_vectors = _reduced(means[:, :word_count], request) if "words" in outputs else None
            result.span_vectors = _reduced(means[:, word_count:], request) if "spans" in outputs else None
    return results


def finish_pooled(pooled: Floats, request: EncodeRequest, manifest: Manifest, head: DenseLayers) -> NDArray[Any]:
    """Pooled vectors `(layers, N, D)` to one array a text, `(N, ...)`.

    The model's own trained layers follow where it was trained with them, on the last layer alone. Then layers are
    put together, and the vectors cut, normalised and narrowed as asked.
    """
    if is_last_alone(request, manifest):
        pooled = head(pooled[0])[None]
    whole = reduce_layers(pooled, request.layer_reduce)[..., : request.dimensions]
    own = manifest.normalize if request.normalize is None else request.normalize
    if own or request.dtype in ("int8", "ubinary"):
        whole = normalize(whole)
    if request.layer_reduce == "stack":
        whole = whole.swapaxes(0, 1)
    return np.ascontiguousarray(cast(whole, request.dtype))


def _reduced(vectors: Floats, request: EncodeRequest) -> Array:
    return Array(np.ascontiguousarray(cast(reduce_layers(vectors, request.layer_reduce), request.dtype)), request.dtype)


def _present(vectors: Floats | None) -> Floats:
    assert vectors is not None
    return vectors
