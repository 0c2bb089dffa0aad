"""Results of an encode request: tokens, words and sizes before inference, vectors after it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from model.artifact.files import MappedTensor
from model.artifact.manifest import Manifest, Pooling, TensorRecord
from model.artifact.tokenizer import TokenizedInput, Tokenizer
from service.engine.encode.alignment import describe_tokens, empty_span, overlapping_tokens, words_of
from service.engine.encode.pooling import (
    DenseLayers,
    Floats,
    cast,
    mean_ranges,
    normalize,
    pool_batch,
    reduce_layers,
    truncates,
)
from service.engine.encode.sizes import RESULT_BYTES, array_bytes, listed_bytes, total_bytes
from service.engine.schema.encode import (
    Array,
    EncodeRequest,
    EncodeResult,
    Input,
    Token,
    Word,
)
from service.engine.schema.tasks import EncodeTask, ExplainOperation, HeadName, TextVectors
from service.spelling import Change, Remedy

HEAD_OUTPUTS: tuple[HeadName, ...] = ("sparse", "multi_vector")
"""The outputs that heads compute."""


@dataclass(frozen=True, slots=True)
class PreparedInput:
    """The result of one input without its vectors."""

    tokens: TokenizedInput
    listed: NDArray[np.intp] | None
    """The tokens with vectors of their own; None for all, else all but the prompt's."""
    described: list[Token] | None
    words: list[Word] | None
    ranges: NDArray[np.intp] | None
    """The tokens [first, last) of each word, then of each span; intp, (W + S, 2)."""
    span_count: int
    vector_tokens: list[Token] | None = None
    """The tokens of the output `multi_vector`."""


@dataclass(frozen=True, slots=True)
class LayerTask:
    """One tokenized input of the explain lane, for vectors of the layers `layers`, 0..L. See `EncodeTask`."""

    operation: ClassVar[ExplainOperation] = "layers"

    tokens: TokenizedInput
    pooling: Pooling | None
    hidden: bool
    pool_from: int
    layers: tuple[int, ...]


def layer_vectors(task: LayerTask, hidden: Floats) -> TextVectors:
    """Return the vectors of the layers of a text; `hidden` is (L+1, T, D)."""
    layers = hidden[list(task.layers)]
    pooled = None
    if task.pooling is not None:
        lengths = [len(task.tokens)]
        pooled = np.concatenate([pool_batch(layer, [0], lengths, task.pooling, [task.pool_from]) for layer in layers])
    return TextVectors(layers if task.hidden else None, pooled)


def prepare_input(
    item: Input, tokens: TokenizedInput, request: EncodeRequest, tokenizer: Tokenizer, manifest: Manifest, path: str
) -> PreparedInput:
    """Find the words and spans of an input; raises `InvalidArgument` for a span without tokens."""
    outputs = request.outputs
    with_tokens, with_vectors = "tokens" in outputs or "static" in outputs, "multi_vector" in outputs
    words = words_of(tokens) if with_tokens or with_vectors or "words" in outputs else []
    described = vector_tokens = listed = None
    if with_tokens or with_vectors:
        every = describe_tokens(tokens, tokenizer.token_texts(tokens), words)
        described = [*every] if with_tokens else None
        vector_tokens = _vector_tokens(every, tokens, manifest) if with_vectors else None
    if described is not None and tokens.source.prompt:
        first, last = tokens.prompt_range
        listed = np.delete(np.arange(len(tokens)), slice(first, last))
        del described[first:last]
    if "words" not in outputs and "spans" not in outputs:
        return PreparedInput(tokens, listed, described, None, None, 0, vector_tokens)
    vector_words = words if "words" in outputs else []
    ranges = overlapping_tokens(
        tokens, [(word.segment, (word.start, word.end)) for word in vector_words] + [(0, span) for span in item.spans]
    )
    for number, (first, last) in enumerate(ranges[len(vector_words) :].tolist()):
        if first == last:
            raise empty_span(tokens, 0, item.spans[number], f"{path}.spans[{number}]")
    own_words = words if "words" in outputs else None
    return PreparedInput(tokens, listed, described, own_words, ranges, len(item.spans), vector_tokens)


def _vector_tokens(described: Sequence[Token], tokens: TokenizedInput, manifest: Manifest) -> list[Token]:
    """Return the tokens with a vector of their own in the output `multi_vector`."""
    assert manifest.multi_vector is not None  # checked with the request
    first = int(manifest.multi_vector.skips_first)
    return [token for token in described[first:] if token.id not in tokens.skipped_ids]


def response_bytes(prepared: Sequence[PreparedInput], request: EncodeRequest, manifest: Manifest) -> int:
    """Return the size of the response: exact for arrays in binary and base64, an upper bound in JSON."""
    outputs = request.outputs
    assert request.layers is not None
    copies = 1 if request.layer_reduce == "mean" else len(request.layers)
    width = manifest.architecture.hidden_size * copies
    pooled_width = request.dimensions or pooled_size(request, manifest)
    if request.layer_reduce == "stack":
        pooled_width *= copies
    sizes = []
    for item in prepared:
        count = len(item.tokens)
        values = pooled_width if "pooled" in outputs else 0
        values += count * width if "tokens" in outputs else 0
        values += len(item.ranges) * width if item.ranges is not None else 0
        values += count * _static_size(manifest) if "static" in outputs else 0
        if item.vector_tokens is not None and manifest.multi_vector is not None:
            values += len(item.vector_tokens) * manifest.multi_vector.dimensions
        size = RESULT_BYTES + array_bytes(values, request.dtype, request.wire)
        if not request.padded:
            parts = (*(item.described or ()), *(item.words or ()), *(item.vector_tokens or ()))
            size += listed_bytes(parts, request.wire)
        sizes.append(size)
    return total_bytes(sizes, padded=request.padded)


def least_response_bytes(request: EncodeRequest, manifest: Manifest) -> int:
    """Return a lower bound on `response_bytes` before tokenization: each input has one token and no words."""
    assert request.layers is not None
    outputs, inputs = request.outputs, len(request.inputs)
    copies = 1 if request.layer_reduce == "mean" else len(request.layers)
    width = manifest.architecture.hidden_size * copies
    values = 0
    if "pooled" in outputs:
        pooled = request.dimensions or pooled_size(request, manifest)
        values += inputs * pooled * (copies if request.layer_reduce == "stack" else 1)
    values += inputs * width if "tokens" in outputs else 0
    values += inputs * _static_size(manifest) if "static" in outputs else 0
    values += sum(len(item.spans) for item in request.inputs) * width if "spans" in outputs else 0
    return inputs * RESULT_BYTES + array_bytes(values, request.dtype, request.wire)


def suggest_smaller_vectors(
    prepared: Sequence[PreparedInput], request: EncodeRequest, manifest: Manifest, limit: int
) -> Remedy:
    """Return the remedy for a response over the limit."""
    assert request.layers is not None

    def fits(smaller: EncodeRequest) -> bool:
        return response_bytes(prepared, smaller, manifest) <= limit

    changes: list[Change] = []
    if request.wire == "json" and fits(replace(request, wire="base64")):
        changes.append({"wire": "base64"})
    if request.dtype == "float32" and fits(replace(request, dtype="float16")):
        changes.append({"dtype": "float16"})
    if len(request.layers) > 1 and fits(replace(request, layers=request.layers[:1])):
        return Remedy("Request one layer", changes)
    lists = (("inputs", prepared), ("layers", request.layers), ("outputs", request.outputs))
    fewer = [name for name, values in lists if len(values) > 1]
    return Remedy(f"Request fewer {' or '.join(fewer)}" if fewer else "Send a shorter text", changes)


def encode_tasks(
    request: EncodeRequest, manifest: Manifest, prepared: Sequence[PreparedInput]
) -> list[EncodeTask] | list[LayerTask]:
    """Return the tasks of the fast lane if only the last layer is needed, else of the explain lane."""
    hidden = not {"tokens", "words", "spans"}.isdisjoint(request.outputs)
    pooling = (request.pooling or manifest.embedding.pooling) if "pooled" in request.outputs else None
    heads = tuple(head for head in HEAD_OUTPUTS if head in request.outputs)
    if not hidden and pooling is None and not heads:
        return []
    if needs_last_layer_only(request, manifest):
        return [
            EncodeTask(item.tokens, pooling, hidden, first_pooled_token(item.tokens, manifest), heads)
            for item in prepared
        ]
    assert request.layers is not None
    layers = tuple(layer % (manifest.architecture.num_hidden_layers + 1) for layer in request.layers)
    return [
        LayerTask(item.tokens, pooling, hidden, first_pooled_token(item.tokens, manifest), layers) for item in prepared
    ]


def needs_last_layer_only(request: EncodeRequest, manifest: Manifest) -> bool:
    """Return whether the request needs only the last layer, which the fast lane computes."""
    return request.layers is not None and set(request.layers) <= {-1, manifest.architecture.num_hidden_layers}


def pooled_size(request: EncodeRequest, manifest: Manifest) -> int:
    """Return the number of components of a pooled vector before truncation; `request.layers` must be set."""
    assert request.layers is not None
    if needs_last_layer_only(request, manifest):
        return manifest.embedding.dimensions
    return manifest.architecture.hidden_size * (len(request.layers) if request.layer_reduce == "concat" else 1)


def _static_size(manifest: Manifest) -> int:
    return manifest.static.shape[1] if isinstance(manifest.static, TensorRecord) else 0


def first_pooled_token(tokens: TokenizedInput, manifest: Manifest) -> int:
    """Return the first token to pool: include_prompt=False of sentence-transformers excludes [CLS] too."""
    return 0 if manifest.embedding.include_prompt else tokens.prompt_range[1]


def build_results(
    prepared: Sequence[PreparedInput],
    vectors: Sequence[TextVectors],
    request: EncodeRequest,
    manifest: Manifest,
    dense_layers: DenseLayers,
    static: MappedTensor | None,
) -> list[EncodeResult]:
    """Return the results of a request; `vectors` is empty if only static vectors are requested."""
    outputs = request.outputs
    results = [EncodeResult(len(item.tokens), item.tokens.truncated) for item in prepared]
    if "pooled" in outputs:
        rows = [_present(item.pooled) for item in vectors]
        pooled = rows[0][:, None] if len(rows) == 1 else np.stack(rows, axis=1)  # (layers, N, D)
        finished = finish_pooled(pooled, request, manifest, dense_layers)
        for result, vector in zip(results, finished, strict=True):
            result.pooled = Array(vector, request.dtype)
    for number, (item, result) in enumerate(zip(prepared, results, strict=True)):
        result.tokens, result.words = item.described, item.words
        if "static" in outputs:
            token_ids = np.asarray(item.tokens.input_ids)[_listed(item)]
            assert static is not None
            result.static_vectors = Array(cast(static[token_ids], request.dtype), request.dtype)
        if "tokens" in outputs:
            result.token_vectors = _reduced(_present(vectors[number].hidden)[:, _listed(item)], request)
        if item.ranges is not None:
            means = np.stack([mean_ranges(layer, item.ranges) for layer in _present(vectors[number].hidden)])
            word_count = len(item.ranges) - item.span_count
            result.word_vectors = _reduced(means[:, :word_count], request) if "words" in outputs else None
            result.span_vectors = _reduced(means[:, word_count:], request) if "spans" in outputs else None
    return results


def finish_pooled(
    pooled: Floats, request: EncodeRequest, manifest: Manifest, dense_layers: DenseLayers
) -> NDArray[Any]:
    """Return pooled vectors (layers, N, D) as one array per input, (N, ...).

    The dense layers of the model and its own truncation apply to its last layer alone. Then layers are combined, and
    vectors truncated, normalized and cast.
    """
    head = manifest.embedding
    own = head.normalize if request.normalize is None else request.normalize
    if needs_last_layer_only(request, manifest):
        pooled = dense_layers(pooled[0])[None]
        if truncates(head, request.dimensions):
            # As in sentence-transformers, the model normalizes before it truncates.
            if own:
                pooled = normalize(pooled)
            own = request.normalize is True
        pooled = pooled[..., : head.truncate_dim]
    whole = reduce_layers(pooled, request.layer_reduce)[..., : request.dimensions]
    if own or request.dtype in ("int8", "ubinary"):
        whole = normalize(whole)
    if request.layer_reduce == "stack":
        whole = whole.swapaxes(0, 1)
    return np.ascontiguousarray(cast(whole, request.dtype))


def _listed(item: PreparedInput) -> NDArray[np.intp] | slice:
    return slice(None) if item.listed is None else item.listed


def _reduced(vectors: Floats, request: EncodeRequest) -> Array:
    return Array(np.ascontiguousarray(cast(reduce_layers(vectors, request.layer_reduce), request.dtype)), request.dtype)


def _present(vectors: Floats | None) -> Floats:
    assert vectors is not None
    return vectors
