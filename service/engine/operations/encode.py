"""Encode: embeddings of inputs."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from model.artifact.manifest import Manifest
from service.engine.admission import count_characters, estimate_tokens
from service.engine.encode.head_results import add_head_results, sparse_bytes
from service.engine.encode.response import (
    HEAD_OUTPUTS,
    PreparedInput,
    build_results,
    encode_tasks,
    least_response_bytes,
    needs_last_layer_only,
    pooled_size,
    prepare_input,
    response_bytes,
    suggest_smaller_vectors,
)
from service.engine.encode.sides import add_side, max_tokens
from service.engine.lane import Lane
from service.engine.observer import Observation
from service.engine.operations.costs import DESCRIBED_CHARACTER, ELEMENTS, INPUT, OUTPUT, SPAN
from service.engine.operations.inputs import (
    check_inputs,
    check_layers,
    check_length,
    count_prompt,
    prepend_prompt,
    require,
    select_prompt,
)
from service.engine.schema.encode import AppliedPrompt, EncodeRequest, EncodeResponse, EncodeResult, Side
from service.engine.schema.operations import Output, outputs_of
from service.engine.schema.tasks import TextVectors
from service.errors import ConflictingFields, Duplicate, Empty, MissingField, OutOfRange, UnsupportedByModel
from service.spelling import Remedy, join, named

if TYPE_CHECKING:
    from service.engine.engine import Engine


async def encode(engine: "Engine", request: EncodeRequest, deadline: float) -> EncodeResponse:
    """Return embeddings of the inputs."""
    manifest = engine.manifest
    check_inputs(request.inputs, engine.limits, manifest, request.max_inputs)
    request = check_encode(request, manifest)
    prompt = select_prompt(request.inputs, request.prompt_name, request.prompt, engine.limits, manifest, request.role)
    lane: Lane[Any, TextVectors] = engine.fast_lane if needs_last_layer_only(request, manifest) else engine.explain
    if lane.near_capacity:  # a permanent error takes precedence over one that asks to retry
        least = least_response_bytes(request, manifest)
        engine.check_response_size(least, len(request.inputs), lambda: Remedy("Request fewer inputs, spans or layers"))
    prompt_tokens = 0 if prompt is None else await count_prompt(engine, prompt, len(request.inputs), deadline)
    lengths = [count_characters(item) for item in request.inputs]
    sizes = estimate_tokens(lengths, manifest.longest_input_tokens, prompt_tokens)
    cost = encode_cost(request, manifest, 0 if prompt is None else len(prompt.text), lengths)
    observation = Observation(lane.observer)
    with lane.reserve(sizes, deadline):
        prepared = await engine.run(cost, deadline, prepare, engine, request, prompt)
        token_count, truncated = observation.tokenized([item.tokens for item in prepared])
        job = lane.submit(encode_tasks(request, manifest, prepared), deadline)
    vectors = await lane.wait(job)
    observation.ran(job.queue_s, job.batch_size)
    results = await engine.run(cost, deadline, finish, engine, request, prepared, vectors)
    timing = observation.finish()
    return EncodeResponse(engine.name, lane.precision, results, token_count, truncated, timing, prompt)


def check_encode(request: EncodeRequest, manifest: Manifest) -> EncodeRequest:
    """Check outputs, layers, dimensions and dtype; return the request with explicit layers."""
    outputs = set(request.outputs)
    if not outputs:
        raise Empty("empty", "Leave it out or name at least one.", field="outputs")
    if len(outputs) < len(request.outputs):
        raise Duplicate("contains the same output twice", "Remove one.", field="outputs")
    needs_spans, needs_words = "spans" in outputs, "words" in outputs
    for index, item in enumerate(request.inputs):
        if needs_spans != bool(item.spans):
            field = f"inputs[{index}].spans"
            if needs_spans:
                raise MissingField("missing, but outputs contains {outputs.spans}", "Send spans.", field=field)
            raise ConflictingFields("set, but {outputs.spans} is missing from outputs", "Add it.", field=field)
        if needs_words and item.source.token_ids is not None:
            raise ConflictingFields(
                "{outputs.words} is not supported for token_ids",
                f"Remove it or send text in {{inputs}}[{index}].",
                field="outputs",
            )
    if request.layers is None:
        request = replace(request, layers=tuple(range(manifest.architecture.num_hidden_layers + 1)))
    _check_parts(request, manifest)
    check_layers(request.layers or (), manifest)
    if "pooled" not in outputs:
        _check_no_pooled_options(request)
    _check_pooled(request, manifest, outputs)
    return request


def _check_parts(request: EncodeRequest, manifest: Manifest) -> None:
    """Check that the model has what other layers and static vectors need."""
    if not needs_last_layer_only(request, manifest):
        require(manifest.explain, "only the last layer is supported for this model", "layers")
    if "static" in request.outputs:
        require(manifest.static, "{outputs.static} is not supported for this model", "outputs")
    supported = outputs_of(manifest)
    for output in HEAD_OUTPUTS:
        if output not in request.outputs:
            continue
        if output not in supported:
            raise UnsupportedByModel(
                "not supported for this model",
                f"Use {join([named('outputs', name) for name in supported], 'or')}, or another model.",
                field="outputs", actual=output,
            )  # fmt: skip
        if output == "multi_vector" and len(request.outputs) > 1 and side_of(request, manifest) is not None:
            raise ConflictingFields(
                "{outputs.multi_vector} of this model is supported alone (it reads other tokens)",
                "Remove the other outputs.", field="outputs",
            )  # fmt: skip
        if not needs_last_layer_only(request, manifest):
            raise ConflictingFields(
                f"other layers are not supported for {named('outputs', output)}", "Leave layers out.", field="layers"
            )


def side_of(request: EncodeRequest, manifest: Manifest) -> Side | None:
    """Return the side whose marker the inputs get: documents by default; None for models that have no sides."""
    head = manifest.multi_vector
    if "multi_vector" not in request.outputs or head is None or not head.has_sides:
        return None
    return request.role or "document"


def _check_no_pooled_options(request: EncodeRequest) -> None:
    for field in ("pooling", "normalize", "dimensions"):
        if getattr(request, field) is not None:
            raise ConflictingFields(
                "set, but {outputs.pooled} is missing from outputs", f"Add it or leave {field} out.", field=field
            )


def _check_pooled(request: EncodeRequest, manifest: Manifest, outputs: set[Output]) -> None:
    dimensions = request.dimensions
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

    `lengths` are the numbers of characters of the inputs.
    """
    assert request.layers is not None
    inputs, layers = request.inputs, len(request.layers)
    characters = sum(lengths) + prompt_length * len(inputs)
    cost = characters + INPUT * len(inputs)
    if layers > 1 and "pooled" in request.outputs:
        cost += layers * manifest.architecture.hidden_size * len(inputs) // ELEMENTS
    if request.outputs == ("pooled",):
        return cost
    arrays = [output for output in request.outputs if output != "pooled"]
    spans = sum(len(item.spans) for item in inputs)
    means = layers * sum(output in ("words", "spans") for output in arrays)
    tokens = sum(estimate_tokens((2 * (prompt_length + length) for length in lengths), manifest.longest_input_tokens))
    elements = (tokens + spans) * manifest.architecture.hidden_size * layers * len(arrays) if layers > 1 else 0
    cost += (DESCRIBED_CHARACTER - 1) * characters + OUTPUT * (len(arrays) + means) * len(inputs)
    return cost + SPAN * spans + elements // ELEMENTS


def prepare(engine: "Engine", request: EncodeRequest, prompt: AppliedPrompt | None) -> list[PreparedInput]:
    """Tokenize the inputs; return their results without vectors."""
    sources = prepend_prompt(request.inputs, prompt)
    prepared, side = [], side_of(request, engine.manifest)
    limit = max_tokens(engine.manifest, side, request.role)
    place = engine.tokenizer.leading_special_tokens
    tokenized = engine.tokenizer.encode(sources, offsets=request.outputs != ("pooled",))
    for index, (item, tokens) in enumerate(zip(request.inputs, tokenized, strict=True)):
        path = f"inputs[{index}]"
        kept = check_length(tokens, engine.manifest, request.truncation, path, limit=limit)
        kept = add_side(kept, engine.manifest, side, place)
        kept.side = request.role
        prepared.append(prepare_input(item, kept, request, engine.tokenizer, engine.manifest, path))
    if not needs_last_layer_only(request, engine.manifest):
        engine.check_explain_size([len(item.tokens) for item in prepared], maps=False)
    size, limit = response_bytes(prepared, request, engine.manifest), engine.limits.max_response_bytes
    engine.check_response_size(
        size, len(prepared), lambda: suggest_smaller_vectors(prepared, request, engine.manifest, limit)
    )
    return prepared


def finish(
    engine: "Engine", request: EncodeRequest, prepared: Sequence[PreparedInput], vectors: Sequence[TextVectors]
) -> list[EncodeResult]:
    """Return the results; raise `ResponseTooLarge` for sparse vectors that are too large."""
    manifest = engine.manifest
    results = build_results(prepared, vectors, request, manifest, engine.dense_layers, engine.static)
    if not set(HEAD_OUTPUTS).isdisjoint(request.outputs):
        add_head_results(results, prepared, vectors, request, engine.tokenizer)
        size = response_bytes(prepared, request, manifest) + sparse_bytes(results, request)
        engine.check_response_size(size, len(results), lambda: Remedy("Request fewer inputs or outputs"))
    return results
