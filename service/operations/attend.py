"""Attend: attention maps of inputs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from attendant_client.types import (
    DTYPES,
    MAX_DECIMALS,
    AttendRequest,
    AttendResponse,
    AttendResult,
    AttentionMap,
    SparseMatrix,
)
from numpy.typing import NDArray

from model.artifact.manifest import Manifest
from model.artifact.tokenizer import TokenizedInput
from service.engine.engine import Engine
from service.engine.tasks import ModelParts
from service.engine.vectors import Floats, cast_map
from service.errors import ConflictingFields, Duplicate, Empty, MissingField, OutOfRange, UnsupportedByModel
from service.operations.inputs import (
    JSON_VALUE_BYTES,
    RESULT_BYTES,
    Call,
    array_bytes,
    check_at_least_one,
    check_inputs,
    check_length,
    count_characters,
    describe_cost,
    estimate_tokens,
    listed_bytes,
    require,
    resolve_layers,
    tokenizer_inputs,
    total_bytes,
)
from service.operations.layer_outputs import LayerOutputsTask, check_layer_outputs, check_rows, check_step_size
from service.operations.maps import AttentionMapSpec, TokenMaps, check_explain_size, token_maps
from service.operations.units import Units, find_units
from service.spelling import Change, Remedy, join, named, use_range

HEAD_REDUCES = {
    "probs": ("none", "mean", "max"),
    "scores": ("none", "mean", "max"),
    "norm": ("none", "sum"),
    "block_norm": ("none", "sum"),
    "projection": ("none", "sum"),
}
"""The values of `head_reduce` by kind. Maps of block_norm and projection always cover all heads."""
SCORES_WITHOUT_SUM = "not supported for kind {kind.scores} (rows do not sum to 1)"
# Upper bounds in bytes for a map without its values, and for an index in JSON and in binary.
MAP_BYTES = 256
JSON_INDEX_BYTES = 6
BINARY_INDEX_BYTES = 3
SUGGESTED_TOP_K = 10
SMALLER_STEPS = Remedy("Request fewer outputs, layers, heads or rows")


async def attend(engine: Engine, request: AttendRequest, call: Call) -> AttendResponse:
    """Return attention maps of the inputs."""
    deadline = call.start(engine)
    check_inputs(request.inputs, engine.limits, engine.manifest, spans=True)
    spec, lane = check_attend(request, call, engine.manifest), engine.explain
    sizes = estimate_tokens(count_characters(request.inputs), engine.manifest.max_input_tokens)
    cost = describe_cost(request.inputs)
    with lane.admit(sizes, deadline, cost) as admitted:
        tasks = await engine.run(cost, deadline, prepare, engine, request, call, spec)
        usage = admitted.tokenized([task.tokens for task in tasks])
        results = await admitted.run(tasks)
    call.timing = admitted.finish()
    return AttendResponse(engine.name, lane.precision, [*results], usage)


def check_attend(request: AttendRequest, call: Call, manifest: Manifest) -> AttentionMapSpec:
    """Check kind, layers, heads, reductions, units and encodings; return the maps to compute."""
    kinds = require(manifest.explain, "Attention maps are not supported for this model").kinds
    if request.kind not in kinds:
        known = join([named("kind", kind) for kind in kinds], "or") if kinds else ""
        raise UnsupportedByModel(
            f"{named('kind', request.kind)} is not supported for this model{_explain_absence(request.kind, manifest)}",
            f"Use {known}." if known else "Use another model.",
            field="kind", actual=request.kind,
        )  # fmt: skip
    layers = resolve_layers(request.layers, manifest, first=1)
    heads = range(manifest.architecture.num_attention_heads) if request.heads == "all" else request.heads
    _check_heads(heads, manifest.architecture.num_attention_heads - 1)
    spec = AttentionMapSpec(request.kind, layers, tuple(heads), request.head_reduce, request.layer_reduce)
    check_layer_outputs(request, manifest)
    _check_reduction(request)
    _check_units(request)
    if request.kind == "scores":
        _check_scores(request)
    _check_sparsity(request)
    _check_precision(request, call, spec)
    return spec


def _explain_absence(kind: str, manifest: Manifest) -> str:
    """Return why a model lacks a kind of map. Only causality and windows leave pairs of tokens without scores."""
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
                "out of range", use_range(0, last),
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
    if kind in ("block_norm", "projection") and request.heads != "all":
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
        if request.unit != "token" and item.token_ids is not None:
            raise ConflictingFields(f"{unit} is not supported for token_ids", "Use {unit.token}.", field="unit")
        if request.segments != "all" and item.pair is None:
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
    check_at_least_one("top_k", request.top_k)


def _check_precision(request: AttendRequest, call: Call, spec: AttentionMapSpec) -> None:
    if request.decimals is not None and call.wire != "json":
        raise ConflictingFields('set, but encoding_format is not "float"', "Leave it out.", field="decimals")
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
    if request.dtype == "sqrt_uint8" and call.wire == "json":
        raise ConflictingFields('"sqrt_uint8" requires encoding_format "base64"', "Set encoding_format.", field="dtype")


def prepare(
    engine: Engine, request: AttendRequest, call: Call, spec: AttentionMapSpec
) -> "list[AttendTask] | list[LayerOutputsTask]":
    """Tokenize the inputs and find their units; return one task per input."""
    tasks: list[AttendTask] = []
    steps: list[LayerOutputsTask] = []
    options = replace(request, inputs=())
    tokenized = engine.tokenizer.encode_each(tokenizer_inputs(request.inputs))
    for index, (item, tokens) in enumerate(zip(request.inputs, tokenized, strict=True)):
        path = f"inputs[{index}]"
        kept = check_length(tokens, engine.manifest, request.truncation, path)
        units = find_units(item, kept, engine.tokenizer.token_texts(kept), request, path)
        if request.outputs:
            rows = check_rows(request, kept, path)
            steps.append(LayerOutputsTask(kept, units, rows, spec.layers, spec.heads, options, call))
        else:
            tasks.append(AttendTask(kept, units, spec, options, call))
    if steps:
        check_step_size(engine, steps)
        sizes = [task.response_bytes(engine.manifest) for task in steps]
        engine.check_response_size(total_bytes(sizes, padded=call.padded), len(steps), lambda: SMALLER_STEPS)
        return steps
    check_explain_size(engine, [len(task.tokens) for task in tasks], maps=True)
    limit = engine.limits.max_response_bytes
    engine.check_response_size(maps_bytes(tasks), len(tasks), lambda: suggest_smaller_maps(tasks, limit))
    return tasks


@dataclass(frozen=True, slots=True)
class AttendTask:
    """One input of an attend request. `request` contains the map options, without the inputs."""

    tokens: TokenizedInput
    units: Units
    spec: AttentionMapSpec
    request: AttendRequest
    call: Call

    def compute(self, hidden: Floats, model: ModelParts) -> AttendResult:
        """Return the maps of the text; `hidden` is (L+1, T, D). Only one layer's token maps are in memory at a time."""
        maps = [unit_map for maps in token_maps(hidden, model.layers, self.spec) for unit_map in self.aggregate(maps)]
        return AttendResult(self.tokens.truncated, self.units.units, self.units.rows, self.units.columns, maps)

    def response_bytes(self) -> int:
        """Return the size of the result: exact for dense arrays in binary and base64, else an upper bound."""
        request, spec, wire = self.request, self.spec, self.call.wire
        rows, columns = len(self.units.rows), len(self.units.columns)
        index = JSON_INDEX_BYTES if wire != "binary" else BINARY_INDEX_BYTES
        kept = columns if request.top_k is None else min(request.top_k, columns)
        cells = rows * (kept if is_sparse(request) else columns)
        map_bytes = MAP_BYTES + self._values_bytes(cells) + (cells * index if is_sparse(request) else 0)
        row_arrays = (request.kind != "scores") + spec.has_bias_share + is_sparse(request)
        map_bytes += rows * row_arrays * (4 if wire == "binary" else JSON_VALUE_BYTES["float32"])
        map_bytes += rows * index  # empty_rows and indptr
        listed = listed_bytes(self.units.units, wire) + 2 * len(self.units.units) * index
        return RESULT_BYTES + listed + spec.count * map_bytes

    def _values_bytes(self, values: int) -> int:
        request, wire = self.request, self.call.wire
        if wire == "json" and request.decimals is not None and self.spec.at_most_one(request.special_tokens):
            return values * min(JSON_VALUE_BYTES["float32"], request.decimals + 3)  # "0." and a comma
        return array_bytes(values, request.dtype, wire)

    def aggregate(self, maps: TokenMaps) -> list[AttentionMap]:
        """Aggregate one layer's maps to units, in the requested representation."""
        request, units, sparse = self.request, self.units, is_sparse(self.request)
        bias_share = excluded_mass = empty = None
        if request.kind == "scores":
            values = units.aggregate_scores(maps.values)
        else:
            unit_maps = units.aggregate(maps.values, request.special_tokens)
            values, empty = unit_maps.values, unit_maps.empty
            excluded_mass = self._row_array(unit_maps.excluded_mass)
            if maps.bias_share is not None:
                bias_share = self._row_array(units.aggregate_rows(maps.bias_share))
        matrices = [None] * len(values) if sparse else self._array(values)
        return [
            AttentionMap(
                maps.layer,
                head,
                matrices[index],
                self._sparsify(values[index]) if sparse else None,
                None if excluded_mass is None else excluded_mass[index],
                bias_share,
                [] if empty is None else np.flatnonzero(empty[index]).tolist(),
            )
            for index, head in enumerate(maps.heads)
        ]

    def _sparsify(self, values: Floats) -> SparseMatrix:
        """Keep the largest magnitudes of each row: as few as cover `top_p` of its mass, at most `top_k`.

        All-zero rows keep nothing.
        """
        request = self.request
        magnitudes = np.abs(values)
        order = np.argsort(-magnitudes, axis=1, kind="stable")
        most = values.shape[1] if request.top_k is None else min(request.top_k, values.shape[1])
        keep = np.where(magnitudes.any(axis=1), most, 0)
        if request.top_p is not None:
            covered = np.take_along_axis(magnitudes, order, axis=1).cumsum(axis=1, dtype=np.float64)
            enough = covered < request.top_p * covered.max(axis=1, keepdims=True, initial=0) * (1 - 1e-9)
            keep = np.minimum(keep, enough.sum(axis=1) + 1)
        chosen = np.arange(values.shape[1]) < keep[:, None]
        largest = np.take_along_axis(values, order, axis=1)
        columns = np.array(self.units.columns, dtype=np.intp)
        return SparseMatrix(
            indptr=np.concatenate([[0], np.cumsum(keep)]).astype(np.int32),
            indices=columns[order[chosen]].astype(np.int32),
            values=self._array(largest[chosen]),
            dropped_mass=self._row_array(np.where(chosen, 0, largest).sum(axis=1)),
        )

    def _array(self, values: Floats) -> NDArray[Any]:
        return self._rounded(cast_map(values, self.request.dtype))

    def _row_array(self, values: Floats) -> NDArray[Any]:
        return self._rounded(values.astype(DTYPES["float32"], copy=False))

    def _rounded(self, values: NDArray[Any]) -> NDArray[Any]:
        # Round in float32: np.round multiplies by powers of ten, which overflow float16.
        if self.request.decimals is not None:
            values = np.round(values.astype(DTYPES["float32"], copy=False), self.request.decimals)
        return np.ascontiguousarray(values)


def is_sparse(request: AttendRequest) -> bool:
    """Return whether maps contain only the largest values of each row."""
    return request.top_p is not None or request.top_k is not None


def maps_bytes(tasks: Sequence[AttendTask]) -> int:
    """Return the size of the response; exact or an upper bound as in `AttendTask.response_bytes`."""
    return total_bytes([task.response_bytes() for task in tasks], padded=tasks[0].call.padded)


def suggest_smaller_maps(tasks: Sequence[AttendTask], limit: int) -> Remedy:
    """Return the remedy for a response over the limit."""
    spec = tasks[0].spec
    changes = [change for change in _smaller_options(tasks[0]) if _fits(tasks, change, limit)]
    fewer = "Request fewer layers or " if len(spec.layers) > 1 and spec.layer_reduce == "none" else ""
    if len(tasks) == 1:
        return Remedy(f"{fewer}send a shorter text".capitalize(), changes)
    largest = max(tasks, key=AttendTask.response_bytes)
    if changes or largest.response_bytes() <= limit:
        return Remedy(f"{fewer}send fewer inputs".capitalize(), changes)
    return replace(suggest_smaller_maps([largest], limit), text="Send each input alone", connective="and")


def _fits(tasks: Sequence[AttendTask], change: Change, limit: int) -> bool:
    options: dict[str, Any] = dict(change)
    call = replace(tasks[0].call, wire="base64" if options.pop("encoding_format", None) else tasks[0].call.wire)
    request = replace(tasks[0].request, **options)
    spec = replace(tasks[0].spec, head_reduce=request.head_reduce)
    return maps_bytes([replace(task, request=request, call=call, spec=spec) for task in tasks]) <= limit


def _smaller_options(task: AttendTask) -> Iterator[Change]:
    """Yield variants of a request with one change each, least loss of information first."""
    request, spec = task.request, task.spec
    bounded = spec.at_most_one(request.special_tokens)
    if task.call.wire == "json":
        if request.decimals is None and bounded:
            yield {"decimals": 4}
        base64 = {"encoding_format": "base64"}
        yield base64 if request.decimals is None else {**base64, "decimals": None}
    else:
        if request.dtype == "float32":
            yield {"dtype": "float16"}
        if request.dtype != "sqrt_uint8" and bounded:
            yield {"dtype": "sqrt_uint8"}
    if spec.by_head:
        yield {"head_reduce": "sum" if request.kind == "norm" else "mean"}
    if request.kind != "scores":
        yield {"top_k": SUGGESTED_TOP_K}
