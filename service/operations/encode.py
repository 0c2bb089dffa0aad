"""Encode: embeddings of inputs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any, NamedTuple, overload

import numpy as np
from attendant_client.types import (
    EncodeRequest,
    EncodeResponse,
    EncodeResult,
    Input,
    Output,
    Role,
    SparseVector,
    TextInputs,
    Token,
    Word,
)
from numpy.typing import NDArray

from model.artifact.manifest import CombinedPooling, Manifest, TensorRecord, split_pooling
from model.artifact.tokenizer import TokenizedInput, Tokenizer
from service.engine.engine import Engine
from service.engine.lane import Lane
from service.engine.model_info import outputs_of
from service.engine.sides import add_side, max_tokens
from service.engine.tasks import (
    EncodeTask,
    HeadName,
    ModelParts,
    PooledVectors,
    TextVectors,
    ids_of,
    make_tuples,
    tokens_of,
    truncated_of,
)
from service.engine.vectors import Floats, cast, finish_pooled, mean_ranges, pool_batch, reduce_layers
from service.errors import ConflictingFields, Duplicate, Empty, MissingField, OutOfRange, UnsupportedByModel
from service.operations.inputs import (
    DESCRIBED_CHARACTER,
    ELEMENTS,
    INPUT,
    JSON_CHARACTER_BYTES,
    NO_PROMPT,
    OUTPUT,
    RESULT_BYTES,
    SPAN,
    SPLIT_OR_CHUNKS,
    AppliedPrompt,
    Call,
    Wire,
    array_bytes,
    check_inputs,
    check_length,
    count_characters,
    count_prompt,
    estimate_tokens,
    listed_bytes,
    prompt_bytes,
    require,
    resolve_layers,
    select_prompt,
    tokenizer_inputs,
    total_bytes,
)
from service.operations.maps import check_explain_size
from service.operations.units import describe_tokens, empty_span, overlapping_tokens, words_of
from service.spelling import Change, Remedy, join, named

POOLED = ("pooled",)
"""The outputs of most requests, one vector per text."""
HEAD_OUTPUTS: tuple[HeadName, ...] = ("sparse", "multi_vector")
"""The outputs that heads compute."""
LAST_LAYER = (-1,)
"""The layers of a request that needs only the last layer, so that it runs in the fast lane."""
SPARSE_ENTRY_BYTES = 16
"""Upper bound on the size of a sparse vector entry in JSON, without its text and weight."""


class PooledResults(Sequence[EncodeResult]):
    """The results of N inputs with one vector each, stored as columns. `EncodeResult` objects are created on access.

    Attributes:
        token_counts: The number of tokens of each input.
        truncated: Whether truncation dropped tokens of each input.
        vectors: The pooled vectors (N, ...).
    """

    __slots__ = ("token_counts", "truncated", "vectors")

    def __init__(self, token_counts: list[int], truncated: list[bool], vectors: NDArray[Any]) -> None:
        self.token_counts = token_counts
        self.truncated = truncated
        self.vectors = vectors

    def __len__(self) -> int:
        return len(self.token_counts)

    @overload
    def __getitem__(self, place: int) -> EncodeResult: ...
    @overload
    def __getitem__(self, place: slice) -> "PooledResults": ...
    def __getitem__(self, place: int | slice) -> "EncodeResult | PooledResults":
        columns = self.token_counts[place], self.truncated[place], self.vectors[place]
        if isinstance(place, slice):
            return PooledResults(*columns)  # type: ignore[arg-type]
        return EncodeResult(columns[0], columns[1], pooled=columns[2])  # type: ignore[arg-type]


def pooled_vectors(response: EncodeResponse) -> NDArray[Any]:
    """Return the pooled vectors of a response that contains them, (N, ...)."""
    if isinstance(response.results, PooledResults):
        return response.results.vectors
    return np.stack([_present(result.pooled) for result in response.results])


async def encode(engine: Engine, request: EncodeRequest, call: Call) -> EncodeResponse:
    """Return embeddings of the inputs: pooled, of tokens, words or spans, static."""
    deadline, manifest = call.start(engine), engine.manifest
    check_inputs(request.inputs, engine.limits, manifest, call.max_inputs, SPLIT_OR_CHUNKS, spans=True)
    request = check_encode(request, manifest)
    prompt = select_prompt(request.inputs, request.prompt_name, request.prompt, engine.limits, manifest, request.role)
    lane: Lane[Any, TextVectors] = engine.fast_lane if request.layers == LAST_LAYER else engine.explain
    prompt_tokens = 0 if prompt is None else await count_prompt(engine, prompt, len(request.inputs), deadline)
    lengths = count_characters(request.inputs)
    sizes = estimate_tokens(lengths, manifest.longest_input_tokens, prompt_tokens)
    cost = encode_cost(request, manifest, 0 if prompt is None else len(prompt.text), lengths)
    with lane.admit(sizes, deadline, cost) as admitted:
        prepared = await engine.run(cost, deadline, prepare, engine, request, call, prompt)
        usage = admitted.tokenized([*map(tokens_of, prepared)])
        vectors = await admitted.run(encode_tasks(request, manifest, prepared))
    if request.outputs == POOLED:
        cost = len(prepared) * len(request.layers) * manifest.architecture.hidden_size // ELEMENTS
    results: Any = await engine.run(cost, deadline, build_results, engine, request, call, prepared, vectors)
    call.timing = admitted.finish()
    applied = prompt or NO_PROMPT
    return EncodeResponse(engine.name, lane.precision, results, usage, applied.name, applied.text or None)


def check_encode(request: EncodeRequest, manifest: Manifest) -> EncodeRequest:
    """Check outputs, layers, dimensions and dtype; return the request with layers as 0..L, or `LAST_LAYER`."""
    outputs = set(request.outputs)
    if not outputs:
        raise Empty("empty", "Leave it out or name at least one.", field="outputs")
    if len(outputs) < len(request.outputs):
        raise Duplicate("contains the same output twice", "Remove one.", field="outputs")
    needs_spans, needs_words = "spans" in outputs, "words" in outputs
    may_conflict = needs_spans or not isinstance(request.inputs, TextInputs)
    for index, item in enumerate(request.inputs if may_conflict else ()):
        if needs_spans != bool(item.spans):
            field = f"inputs[{index}].spans"
            if needs_spans:
                raise MissingField("missing, but outputs contains {outputs.spans}", "Send spans.", field=field)
            raise ConflictingFields("set, but {outputs.spans} is missing from outputs", "Add it.", field=field)
        if needs_words and item.token_ids is not None:
            raise ConflictingFields(
                "{outputs.words} is not supported for token_ids",
                f"Remove it or send text in {{inputs}}[{index}].",
                field="outputs",
            )
    if request.layers != LAST_LAYER:
        layers = resolve_layers(request.layers, manifest)
        last = manifest.architecture.num_hidden_layers
        request = replace(request, layers=LAST_LAYER if layers == (last,) else layers)
    _check_parts(request, manifest)
    if "pooled" not in outputs:
        _check_no_pooled_options(request)
    _check_pooled(request, manifest, outputs)
    return request


def _check_parts(request: EncodeRequest, manifest: Manifest) -> None:
    """Check that the model supports the requested layers and static vectors."""
    if request.layers != LAST_LAYER:
        require(manifest.explain, "only the last layer is supported for this model", "layers")
    if "static" in request.outputs:
        require(manifest.static, "{outputs.static} is not supported for this model", "outputs")
    for output in HEAD_OUTPUTS:
        if output not in request.outputs:
            continue
        if output not in (supported := outputs_of(manifest)):
            raise UnsupportedByModel(
                f"{named('outputs', output)} is not supported for this model",
                f"Use {join([named('outputs', name) for name in supported], 'or')}, or another model.",
                field="outputs", actual=output,
            )  # fmt: skip
        if output == "multi_vector" and len(request.outputs) > 1 and side_of(request, manifest) is not None:
            raise ConflictingFields(
                "{outputs.multi_vector} of this model is supported alone (it reads other tokens)",
                "Remove the other outputs.", field="outputs",
            )  # fmt: skip
        if request.layers != LAST_LAYER:
            raise ConflictingFields(
                f"other layers are not supported for {named('outputs', output)}", "Leave layers out.", field="layers"
            )


def side_of(request: EncodeRequest, manifest: Manifest) -> Role | None:
    """Return the side whose marker is added to the inputs, by default documents; None for models without sides."""
    if "multi_vector" not in request.outputs or (head := manifest.multi_vector) is None or not head.has_sides:
        return None
    return request.role or "document"


def _check_no_pooled_options(request: EncodeRequest) -> None:
    for field in ("pooling", "normalize", "dimensions"):
        if getattr(request, field) is not None:
            raise ConflictingFields(
                "set, but {outputs.pooled} is missing from outputs", f"Add it or leave {field} out.", field=field
            )


def _check_pooled(request: EncodeRequest, manifest: Manifest, outputs: set[Output]) -> None:
    combined = split_pooling(manifest.embedding.pooling)
    if request.pooling is not None and len(combined) > 1:
        raise UnsupportedByModel(
            f"not supported for this model, which concatenates {join(combined)} pooling", "Leave it out.",
            field="pooling",
        )  # fmt: skip
    dimensions = request.dimensions
    if dimensions is None and request.dtype in ("float32", "float16"):
        return
    size = pooled_size(request, manifest)
    if dimensions is not None and not 1 <= dimensions <= size:
        raise OutOfRange(
            "out of range", f"Use 1 to {size}.", field="dimensions", actual=dimensions, minimum=1, maximum=size
        )
    if request.dtype in ("int8", "ubinary"):
        dtype = named("dtype", request.dtype)
        if outputs != {"pooled"}:
            raise ConflictingFields(
                f"{dtype} is supported for pooled vectors only", "Remove the other outputs.", field="dtype"
            )
        if request.normalize is False:
            raise ConflictingFields(f"{dtype} requires normalized vectors", "Leave normalize out.", field="dtype")
        if request.dtype == "ubinary" and (dimensions or size) % 8:
            raise ConflictingFields(
                f"{dtype} requires a multiple of 8", "Change dimensions.", field="dimensions", actual=dimensions or size
            )


def encode_cost(request: EncodeRequest, manifest: Manifest, prompt_length: int, lengths: Sequence[int]) -> int:
    """Return the cost of preparing a request with explicit layers, or of building its results.

    `lengths` are the inputs' lengths in characters.
    """
    inputs, layers = request.inputs, len(request.layers)
    characters = sum(lengths) + prompt_length * len(inputs)
    cost = characters + INPUT * len(inputs)
    if layers > 1 and "pooled" in request.outputs:
        cost += layers * manifest.architecture.hidden_size * len(inputs) // ELEMENTS
    if request.outputs == POOLED:
        return cost
    arrays = [output for output in request.outputs if output != "pooled"]
    spans = sum(len(item.spans) for item in inputs)
    means = layers * sum(output in ("words", "spans") for output in arrays)
    tokens = sum(estimate_tokens((2 * (prompt_length + length) for length in lengths), manifest.longest_input_tokens))
    elements = (tokens + spans) * manifest.architecture.hidden_size * layers * len(arrays) if layers > 1 else 0
    cost += (DESCRIBED_CHARACTER - 1) * characters + OUTPUT * (len(arrays) + means) * len(inputs)
    return cost + SPAN * spans + elements // ELEMENTS


class PreparedInput(NamedTuple):
    """The result of one input without its vectors."""

    tokens: TokenizedInput
    listed: NDArray[np.intp] | None = None
    """The tokens that get vectors, which excludes prompt tokens; None for all tokens."""
    described: list[Token] | None = None
    words: list[Word] | None = None
    ranges: NDArray[np.intp] | None = None
    """The tokens [first, last) of each word, then of each span; intp, (W + S, 2)."""
    span_count: int = 0
    vector_tokens: list[Token] | None = None
    """The tokens in the `multi_vector` output."""


def prepare(engine: Engine, request: EncodeRequest, call: Call, prompt: AppliedPrompt | None) -> list[PreparedInput]:
    """Tokenize the inputs; return their results without vectors."""
    side = side_of(request, engine.manifest)
    reads_roles = request.role is not None or side is not None
    limit = max_tokens(engine.manifest, side, request.role) if reads_roles else engine.manifest.max_input_tokens
    sources, pooled_only = tokenizer_inputs(request.inputs, prompt), request.outputs == POOLED
    tokenized = engine.tokenizer.encode_each(sources, offsets=not pooled_only)
    prepared: list[PreparedInput] = []
    tokens: list[TokenizedInput] = []
    for index, kept in enumerate(tokenized):
        if len(kept.input_ids) > limit or not kept.has_content:
            may_split = pooled_only and kept.source.token_ids is None and kept.source.pair is None
            kept = check_length(  # noqa: PLW2901
                kept, engine.manifest, request.truncation, f"inputs[{index}]", limit=limit, may_split=may_split
            )
        if side is not None:
            kept = add_side(kept, engine.manifest, side, engine.tokenizer.leading_special_tokens)  # noqa: PLW2901
        if request.role is not None:
            kept.side = request.role
        if pooled_only:
            tokens.append(kept)
        else:
            item, path = request.inputs[index], f"inputs[{index}]"
            prepared.append(prepare_input(item, kept, request, engine.tokenizer, engine.manifest, path))
    if pooled_only:
        nothing = repeat(None)
        prepared = make_tuples(PreparedInput, tokens, nothing, nothing, nothing, nothing, repeat(0), nothing)
    if request.layers != LAST_LAYER:
        check_explain_size(engine, [len(item.tokens) for item in prepared], maps=False)
    size, limit = response_bytes(prepared, request, call, engine.manifest), engine.limits.max_response_bytes
    if prompt is not None:
        repeated = prompt_bytes(prompt, call.wire)
        size, limit = size + repeated, limit - repeated
        if limit < 0:
            engine.check_response_size(size, 0, lambda: Remedy("Use a shorter prompt"))
    engine.check_response_size(
        size, len(prepared), lambda: suggest_smaller_vectors(prepared, request, call, engine.manifest, limit)
    )
    return prepared


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
    """Return the tokens that get a vector in the `multi_vector` output."""
    assert manifest.multi_vector is not None  # `check_encode` has checked it
    first = int(manifest.multi_vector.skips_first)
    return [token for token in described[first:] if token.id not in tokens.skipped_ids]


def response_bytes(prepared: Sequence[PreparedInput], request: EncodeRequest, call: Call, manifest: Manifest) -> int:
    """Return the size of the response: exact for arrays in binary and base64, an upper bound in JSON."""
    outputs = request.outputs
    if outputs == POOLED:
        return len(prepared) * (RESULT_BYTES + pooled_bytes(request, call, manifest))
    copies = 1 if request.layer_reduce == "mean" else len(request.layers)
    width = manifest.architecture.hidden_size * copies
    pooled_width = pooled_values(request, manifest)
    sizes = []
    for item in prepared:
        count = len(item.tokens)
        values = pooled_width if "pooled" in outputs else 0
        values += count * width if "tokens" in outputs else 0
        values += len(item.ranges) * width if item.ranges is not None else 0
        values += count * _static_size(manifest) if "static" in outputs else 0
        if item.vector_tokens is not None and manifest.multi_vector is not None:
            values += len(item.vector_tokens) * manifest.multi_vector.dimensions
        size = RESULT_BYTES + array_bytes(values, request.dtype, call.wire)
        if not call.padded:
            parts = (*(item.described or ()), *(item.words or ()), *(item.vector_tokens or ()))
            size += listed_bytes(parts, call.wire)
        sizes.append(size)
    return total_bytes(sizes, padded=call.padded)


def pooled_values(request: EncodeRequest, manifest: Manifest) -> int:
    """Return the number of values in a pooled vector, over all layers if they are stacked."""
    size = request.dimensions or pooled_size(request, manifest)
    return size * len(request.layers) if request.layer_reduce == "stack" else size


def pooled_bytes(request: EncodeRequest, call: Call, manifest: Manifest) -> int:
    """Return the size of a pooled vector in the response: exact in binary and base64, an upper bound in JSON."""
    return array_bytes(pooled_values(request, manifest), request.dtype, call.wire)


def suggest_smaller_vectors(
    prepared: Sequence[PreparedInput], request: EncodeRequest, call: Call, manifest: Manifest, limit: int
) -> Remedy:
    """Return the remedy for a response over the limit."""

    def fits(smaller: EncodeRequest, wire: Wire = call.wire) -> bool:
        return response_bytes(prepared, smaller, replace(call, wire=wire), manifest) <= limit

    layers = _numbers(request)
    changes: list[Change] = []
    if call.wire == "json" and fits(request, "base64"):
        changes.append({"encoding_format": "base64"})
    if request.dtype == "float32" and fits(replace(request, dtype="float16")):
        changes.append({"dtype": "float16"})
    if len(layers) > 1 and fits(replace(request, layers=layers[:1])):
        return Remedy("Request one layer", changes)
    lists = (("inputs", prepared), ("layers", layers), ("outputs", request.outputs))
    fewer = [name for name, values in lists if len(values) > 1]
    return Remedy(f"Request fewer {' or '.join(fewer)}" if fewer else "Send a shorter text", changes)


def _numbers(request: EncodeRequest) -> tuple[int, ...]:
    """Return the resolved layers of a checked request."""
    assert request.layers != "all"
    return tuple(request.layers)


def pooled_size(request: EncodeRequest, manifest: Manifest) -> int:
    """Return the number of components of a pooled vector before truncation; `request.layers` must be set."""
    if request.layers == LAST_LAYER:
        return manifest.embedding.dimensions
    return manifest.pooled_size * (len(request.layers) if request.layer_reduce == "concat" else 1)


def _static_size(manifest: Manifest) -> int:
    return manifest.static.shape[1] if isinstance(manifest.static, TensorRecord) else 0


def first_pooled_token(tokens: TokenizedInput, manifest: Manifest) -> int:
    """Return the first token to pool: include_prompt=False in sentence-transformers excludes [CLS] as well."""
    return 0 if manifest.embedding.include_prompt else tokens.prompt_range[1]


@dataclass(frozen=True, slots=True)
class LayerTask:
    """One tokenized input of the explain lane, for vectors of `layers`, 0..L; see `EncodeTask`."""

    tokens: TokenizedInput
    pooling: CombinedPooling | None
    hidden: bool
    pool_from: int
    layers: tuple[int, ...]

    def compute(self, hidden: Floats, model: ModelParts) -> TextVectors:
        """Return the vectors of the layers; `hidden` is (L+1, T, D)."""
        layers, pooled = hidden[list(self.layers)], None
        if self.pooling is not None:
            sizes = [len(self.tokens)]
            pooled = np.concatenate([pool_batch(layer, [0], sizes, self.pooling, [self.pool_from]) for layer in layers])
        return TextVectors(layers if self.hidden else None, pooled)


def encode_tasks(
    request: EncodeRequest, manifest: Manifest, prepared: Sequence[PreparedInput]
) -> list[EncodeTask] | list[LayerTask]:
    """Return fast-lane tasks if only the last layer is needed, otherwise explain-lane tasks."""
    embedding, hidden = manifest.embedding, not {"tokens", "words", "spans"}.isdisjoint(request.outputs)
    pooling = (request.pooling or embedding.pooling) if "pooled" in request.outputs else None
    heads = tuple(head for head in HEAD_OUTPUTS if head in request.outputs)
    if not hidden and pooling is None and not heads:
        return []
    if request.layers == LAST_LAYER:
        tokens: list[TokenizedInput] = [*map(tokens_of, prepared)]
        first = repeat(0) if embedding.include_prompt else [first_pooled_token(item, manifest) for item in tokens]
        return make_tuples(EncodeTask, tokens, repeat(pooling), repeat(hidden), first, repeat(heads), repeat(None))
    layers = _numbers(request)
    return [
        LayerTask(item.tokens, pooling, hidden, first_pooled_token(item.tokens, manifest), layers) for item in prepared
    ]


def build_results(
    engine: Engine,
    request: EncodeRequest,
    call: Call,
    prepared: Sequence[PreparedInput],
    vectors: Sequence[TextVectors],
) -> Sequence[EncodeResult]:
    """Return the results. May raise `ResponseTooLarge` for sparse vectors, whose sizes are unknown before inference.

    `vectors` is empty if only static vectors are requested.
    """
    manifest, outputs = engine.manifest, request.outputs
    pooled: Any = [None] * len(prepared)
    if "pooled" in outputs:
        if isinstance(vectors, PooledVectors):
            of_layers: Any = vectors.rows[None]  # (layers, N, D)
        else:
            of_layers = np.stack([_present(item.pooled) for item in vectors], axis=1)
        pooled = finish_pooled(
            of_layers,
            manifest.embedding,
            engine.dense_layers,
            last_layer_only=request.layers == LAST_LAYER,
            layer_reduce=request.layer_reduce,
            dimensions=request.dimensions,
            normalize_vectors=request.normalize,
            dtype=request.dtype,
        )
    if outputs == POOLED:
        tokens = [*map(tokens_of, prepared)]
        return PooledResults([*map(len, map(ids_of, tokens))], [*map(truncated_of, tokens)], pooled)
    of_inputs = vectors or [TextVectors(None, None)] * len(prepared)
    results = [
        EncodeResult(
            len(item.tokens),
            item.tokens.truncated,
            item.described,
            item.words,
            vector,
            **_token_outputs(engine, request, item, own),
            **_head_outputs(engine, request, item, own),
        )
        for item, vector, own in zip(prepared, pooled, of_inputs, strict=True)
    ]
    if not set(HEAD_OUTPUTS).isdisjoint(outputs):
        prompt = next((item.tokens.source.prompt for item in prepared if item.tokens.source.prompt), "")
        size = response_bytes(prepared, request, call, manifest) + sparse_bytes(results, request, call)
        size += prompt_bytes(AppliedPrompt(None, prompt), call.wire)
        engine.check_response_size(size, len(results), lambda: Remedy("Request fewer inputs or outputs"))
    return results


def _token_outputs(engine: Engine, request: EncodeRequest, item: PreparedInput, own: TextVectors) -> dict[str, Any]:
    """Return the vectors of tokens, words and spans of an input."""
    found: dict[str, Any] = {}
    listed = slice(None) if item.listed is None else item.listed
    if "static" in request.outputs:
        assert engine.static is not None
        token_ids = np.asarray(item.tokens.input_ids)[listed]
        found["static_vectors"] = cast(engine.static[token_ids], request.dtype)
    if "tokens" in request.outputs:
        found["token_vectors"] = _reduced(_present(own.hidden)[:, listed], request)
    if item.ranges is not None:
        means = np.stack([mean_ranges(layer, item.ranges) for layer in _present(own.hidden)])
        word_count = len(item.ranges) - item.span_count
        if "words" in request.outputs:
            found["word_vectors"] = _reduced(means[:, :word_count], request)
        if "spans" in request.outputs:
            found["span_vectors"] = _reduced(means[:, word_count:], request)
    return found


def _head_outputs(engine: Engine, request: EncodeRequest, item: PreparedInput, own: TextVectors) -> dict[str, Any]:
    """Return the sparse vector of an input, and its vectors for late interaction."""
    found: dict[str, Any] = {}
    if "sparse" in request.outputs:
        assert own.sparse is not None
        ids = own.sparse.token_ids
        texts = engine.tokenizer.vocabulary_texts(ids.tolist())
        found["sparse"] = SparseVector(ids, texts, cast(own.sparse.weights, request.dtype))
    if "multi_vector" in request.outputs:
        found["multi_vector"] = np.ascontiguousarray(cast(_present(own.multi_vector), request.dtype))
        found["multi_vector_tokens"] = item.vector_tokens
    return found


def sparse_bytes(results: Sequence[EncodeResult], request: EncodeRequest, call: Call) -> int:
    """Return the size of a response's sparse vectors; in JSON, an upper bound."""
    sizes = [0]
    for result in results:
        if result.sparse is not None:
            size = array_bytes(len(result.sparse.token_ids), request.dtype, call.wire)
            texts = () if call.padded else result.sparse.tokens
            size += SPARSE_ENTRY_BYTES * len(result.sparse.token_ids) + JSON_CHARACTER_BYTES * sum(map(len, texts))
            sizes.append(size)
    return len(results) * max(sizes) if call.padded else sum(sizes)


def _reduced(vectors: Floats, request: EncodeRequest) -> NDArray[Any]:
    return np.ascontiguousarray(cast(reduce_layers(vectors, request.layer_reduce), request.dtype))


def _present(vectors: Floats | None) -> Floats:
    assert vectors is not None
    return vectors
