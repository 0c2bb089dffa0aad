"""Attend: attention maps of inputs."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from model.artifact.manifest import Manifest
from service.engine.admission import count_characters, estimate_tokens
from service.engine.explain.attend import AttendTask, maps_bytes, suggest_smaller_maps
from service.engine.explain.units import find_units
from service.engine.observer import Observation
from service.engine.operations.costs import describe_cost
from service.engine.operations.inputs import check_inputs, check_layers, check_length, require
from service.engine.schema.explain import AttendRequest, AttendResponse, AttentionMapSpec
from service.errors import ConflictingFields, Duplicate, Empty, MissingField, OutOfRange, UnsupportedByModel
from service.spelling import join, named

if TYPE_CHECKING:
    from service.engine.engine import Engine

MAX_DECIMALS = 9
HEAD_REDUCES = {
    "probs": ("none", "mean", "max"),
    "scores": ("none", "mean", "max"),
    "norm": ("none", "sum"),
    "block_norm": ("none", "sum"),
    "projection": ("none", "sum"),
}
"""The values of `head_reduce` by kind. Maps of block_norm and projection always cover all heads."""
SCORES_WITHOUT_SUM = "not supported for kind {kind.scores} (rows do not sum to 1)"


async def attend(engine: "Engine", request: AttendRequest, deadline: float) -> AttendResponse:
    """Return attention maps of the inputs."""
    check_inputs(request.inputs, engine.limits, engine.manifest)
    spec, lane = check_attend(request, engine.manifest), engine.explain
    observation = Observation(lane.observer)
    sizes = estimate_tokens(map(count_characters, request.inputs), engine.manifest.max_input_tokens)
    with lane.reserve(sizes, deadline):
        tasks = await engine.run(describe_cost(request.inputs), deadline, prepare, engine, request, spec)
        token_count, truncated = observation.tokenized([task.tokens for task in tasks])
        job = lane.submit(tasks, deadline)
    results = await lane.wait(job)
    observation.ran(job.queue_s, job.batch_size)
    return AttendResponse(engine.name, lane.precision, results, token_count, truncated, observation.finish())


def check_attend(request: AttendRequest, manifest: Manifest) -> AttentionMapSpec:
    """Check kind, layers, heads, reductions, units and encodings; return the maps to compute."""
    kinds = require(manifest.explain, "Attention maps are not supported for this model").kinds
    if request.kind not in kinds:
        known = join([named("kind", kind) for kind in kinds], "or") if kinds else ""
        raise UnsupportedByModel(
            f"{named('kind', request.kind)} is not supported for this model{_explain_absence(request.kind, manifest)}",
            f"Use {known}." if known else "Use another model.",
            field="kind", actual=request.kind,
        )  # fmt: skip
    last = manifest.architecture.num_hidden_layers
    if request.layers is not None:
        check_layers(request.layers, manifest, first=1)
    layers = range(1, last + 1) if request.layers is None else [layer % (last + 1) for layer in request.layers]
    heads = range(manifest.architecture.num_attention_heads) if request.heads is None else request.heads
    _check_heads(heads, manifest.architecture.num_attention_heads - 1)
    spec = AttentionMapSpec(request.kind, tuple(layers), tuple(heads), request.head_reduce, request.layer_reduce)
    _check_reduction(request)
    _check_units(request)
    if request.kind == "scores":
        _check_scores(request)
    _check_sparsity(request)
    _check_precision(request, spec)
    return spec


def _explain_absence(kind: str, manifest: Manifest) -> str:
    """Return why a model lacks a kind of map: only causality and windows leave pairs of tokens without scores."""
    if kind != "scores":
        return ""
    causal = manifest.architecture.attention == "causal"
    return f", because its attention {'is causal' if causal else 'has windows'}"


def _check_heads(heads: Sequence[int], last: int) -> None:
    if not heads:
        raise Empty("empty", "Leave it out or name at least one.", field="heads")
    for index, head in enumerate(heads):
        if not 0 <= head <= last:
            raise OutOfRange(
                "out of range", f"Use 0 to {last}.",
                field=f"heads[{index}]", actual=head, minimum=0, maximum=last,
            )  # fmt: skip
    if len(set(heads)) < len(heads):
        raise Duplicate("contains the same head twice", "Remove one.", field="heads")


def _check_reduction(request: AttendRequest) -> None:
    kind = request.kind
    allowed = HEAD_REDUCES[kind]
    if request.head_reduce not in allowed:
        *values, last = [named("head_reduce", value) for value in allowed]
        raise ConflictingFields(
            f"{named('head_reduce', request.head_reduce)} is not supported for kind {named('kind', kind)}",
            f"Use {', '.join(values)} or {last}.", field="head_reduce",
        )  # fmt: skip
    if kind in ("block_norm", "projection") and request.heads is not None:
        raise ConflictingFields(f"kind {named('kind', kind)} always covers all heads", "Leave it out.", field="heads")
    if request.layer_reduce == "rollout":
        if kind == "scores":
            raise ConflictingFields(
                f"{{map_layer_reduce.rollout}} is {SCORES_WITHOUT_SUM}",
                "Use {map_layer_reduce.none} or {map_layer_reduce.mean}.", field="layer_reduce",
            )  # fmt: skip
        if request.head_reduce == "max":
            raise ConflictingFields(
                "{head_reduce.max} is not supported with layer_reduce {map_layer_reduce.rollout}",
                "Leave it out.", field="head_reduce",
            )  # fmt: skip


def _check_units(request: AttendRequest) -> None:
    unit, segments = named("unit", request.unit), named("segments", request.segments)
    for index, item in enumerate(request.inputs):
        path = f"inputs[{index}]"
        if request.unit == "span" and not item.spans:
            raise MissingField("missing, but unit is {unit.span}", "Send spans.", field=f"{path}.spans")
        if request.unit != "span" and item.spans:
            raise ConflictingFields(f"set, but unit is {unit}", "Set unit to {unit.span}.", field=f"{path}.spans")
        if request.unit != "token" and item.source.token_ids is not None:
            raise ConflictingFields(f"{unit} is not supported for token_ids", "Use {unit.token}.", field="unit")
        if request.segments != "all" and item.source.pair is None:
            raise MissingField(
                f"missing, but segments is {segments}", "Send pair or set segments to {segments.all}.",
                field=f"{path}.pair",
            )  # fmt: skip
    if request.unit == "span" and request.segments != "all":
        raise ConflictingFields(
            f"{segments} is not supported with unit {{unit.span}} (spans are in the first text)",
            "Use {segments.all}.", field="segments",
        )  # fmt: skip


def _check_scores(request: AttendRequest) -> None:
    if request.special_tokens == "renormalize":
        raise ConflictingFields(
            f"{{special_tokens.renormalize}} is {SCORES_WITHOUT_SUM}",
            "Use {special_tokens.keep} or {special_tokens.drop}.", field="special_tokens",
        )  # fmt: skip
    for field in ("top_p", "top_k"):
        if getattr(request, field) is not None:
            raise ConflictingFields(SCORES_WITHOUT_SUM, "Leave it out.", field=field)


def _check_sparsity(request: AttendRequest) -> None:
    if request.top_p is not None and not 0 < request.top_p <= 1:
        raise OutOfRange(
            "out of range", "Use a number above 0 and at most 1.",
            field="top_p", actual=request.top_p, minimum=0, maximum=1,
        )  # fmt: skip
    if request.top_k is not None and request.top_k < 1:
        raise OutOfRange("out of range", "Use 1 or more.", field="top_k", actual=request.top_k, minimum=1)


def _check_precision(request: AttendRequest, spec: AttentionMapSpec) -> None:
    if request.decimals is not None and not 1 <= request.decimals <= MAX_DECIMALS:
        raise OutOfRange(
            "out of range", f"Use 1 to {MAX_DECIMALS}.",
            field="decimals", actual=request.decimals, minimum=1, maximum=MAX_DECIMALS,
        )  # fmt: skip
    if request.dtype == "sqrt_uint8" and not spec.at_most_one(request.special_tokens):
        raise ConflictingFields(
            "{dtype.sqrt_uint8} requires values from 0 to 1 (probs, rollout, or a renormalized norm)",
            "Use {dtype.float16}.", field="dtype",
        )  # fmt: skip


def prepare(engine: "Engine", request: AttendRequest, spec: AttentionMapSpec) -> list[AttendTask]:
    """Tokenize the inputs and find their units; return one task per input."""
    tasks, options = [], replace(request, inputs=())
    tokenized = engine.tokenizer.encode([item.source for item in request.inputs])
    for index, (item, tokens) in enumerate(zip(request.inputs, tokenized, strict=True)):
        path = f"inputs[{index}]"
        kept = check_length(tokens, engine.manifest, request.truncation, path)
        units = find_units(item, kept, engine.tokenizer.token_texts(kept), request, path)
        tasks.append(AttendTask(kept, units, spec, options))
    engine.check_explain_size([len(task.tokens) for task in tasks], maps=True)
    limit = engine.limits.max_response_bytes
    engine.check_response_size(maps_bytes(tasks), len(tasks), lambda: suggest_smaller_maps(tasks, limit))
    return tasks
