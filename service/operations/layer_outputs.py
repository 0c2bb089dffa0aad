"""Attend with `outputs`: intermediate steps of layers, from input to output.

Queries, keys, values and heads are limited to the chosen heads; all outputs except keys and values are limited to the
chosen tokens. docs/maps.md defines the steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from attendant_client.types import (
    DTYPES,
    AttendRequest,
    AttendResult,
    LayerOutput,
    LayerOutputs,
)
from numpy.typing import NDArray

from model.artifact.manifest import LayersRecord, Manifest
from model.artifact.tokenizer import TokenizedInput
from service.engine.engine import Engine
from service.engine.layers import ArtifactLayer
from service.engine.model_info import layer_outputs_of
from service.engine.tasks import ModelParts
from service.engine.vectors import Floats, cast_map
from service.errors import ConflictingFields, Duplicate, Empty, OutOfRange, RequestTooLarge, UnsupportedByModel
from service.operations.inputs import RESULT_BYTES, Call, array_bytes, listed_bytes
from service.operations.maps import FLOAT_BYTES, explain_bytes
from service.operations.units import Units
from service.spelling import use_range

DISTANCE_TERMS: tuple[LayerOutput, ...] = ("content_to_position", "position_to_content")
OF_PAIRS: tuple[LayerOutput, ...] = ("scores", "weights", "bias", *DISTANCE_TERMS)
PER_HEAD: tuple[LayerOutput, ...] = ("queries", "keys", "values", "heads", *OF_PAIRS)
OF_ALL_TOKENS: tuple[LayerOutput, ...] = ("keys", "values")
OF_MAPS = ("kind", "head_reduce", "layer_reduce", "unit", "special_tokens", "segments", "top_p", "top_k")
"""Options that apply only to maps."""
LAYER_BYTES = 512


def check_layer_outputs(request: AttendRequest, manifest: Manifest) -> None:
    """Raise an error if a request combines steps with map options, or if the model does not support steps."""
    if not request.outputs:
        if request.rows != "all":
            raise ConflictingFields("set, but outputs is empty", "Leave it out, or set outputs.", field="rows")
        return
    _check_artifact(request, manifest)
    defaults = {field.name: field.default for field in fields(AttendRequest)}
    for name in OF_MAPS:
        if getattr(request, name) != defaults[name]:
            raise ConflictingFields("not supported with outputs", "Leave it out.", field=name)
    if request.dtype == "sqrt_uint8":
        raise ConflictingFields(
            "{dtype.sqrt_uint8} is not supported with outputs", "Use {dtype.float16}.", field="dtype"
        )
    if not request.rows:
        raise Empty("empty", "Leave it out or name at least one.", field="rows")
    for name in ("outputs", "rows"):
        values = getattr(request, name)
        if values != "all" and len(set(values)) < len(values):
            raise Duplicate("contains the same item twice", "Remove one.", field=name)


def _check_artifact(request: AttendRequest, manifest: Manifest) -> None:
    available = layer_outputs_of(manifest)
    missing = next((name for name in request.outputs if name not in available), None)
    if missing is None:
        return
    layers = manifest.layers
    structure = layers.structure if isinstance(layers, LayersRecord) else None
    if structure is not None and available:
        kinds = {*structure.positions}
        if missing == "bias" and "relative" not in kinds:
            problem = "{outputs.bias} is not supported for this model, whose scores have no bias for positions"
            raise UnsupportedByModel(problem, "Remove it.", field="outputs")
        if missing in DISTANCE_TERMS:
            problem = f"{{outputs.{missing}}} is not supported for this model, whose attention has no such term"
            raise UnsupportedByModel(problem, "Remove it.", field="outputs")
        if missing == "position" and kinds == {"relative"}:
            problem = "{outputs.position} is not supported for this model, whose positions are a bias of the scores"
            raise UnsupportedByModel(problem, "Use {outputs.bias}.", field="outputs")
    subject = f"{{outputs.{missing}}} is " if available else ""
    problem = f"{subject}not supported for this artifact, which an earlier version exported"
    raise UnsupportedByModel(problem, "Export the model again.", field="outputs")


def check_rows(request: AttendRequest, tokens: TokenizedInput, path: str) -> NDArray[np.int64]:
    """Return the chosen tokens of an input, (R)."""
    if request.rows == "all":
        return np.arange(len(tokens))
    for index, row in enumerate(request.rows):
        if not 0 <= row < len(tokens):
            raise OutOfRange(
                f"out of range for {path}", use_range(0, len(tokens) - 1),
                field=f"rows[{index}]", actual=row, minimum=0, maximum=len(tokens) - 1,
            )  # fmt: skip
    return np.array(request.rows, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class LayerOutputsTask:
    """One input of an attend request with `outputs`. `rows` lists its chosen tokens."""

    tokens: TokenizedInput
    units: Units
    rows: NDArray[np.int64]
    layers: Sequence[int]
    heads: Sequence[int]
    request: AttendRequest
    call: Call

    def compute(self, hidden: Floats, model: ModelParts) -> AttendResult:
        """Return the steps of the text; `hidden` is (L+1, T, D)."""
        outputs = [self._layer_outputs(hidden, model, layer) for layer in self.layers]
        units = self.units
        return AttendResult(self.tokens.truncated, units.units, self.rows.tolist(), units.columns, [], outputs)

    def _layer_outputs(self, hidden: Floats, model: ModelParts, number: int) -> LayerOutputs:
        states = hidden[number - 1]
        layer = model.layers[number - 1]
        assert isinstance(layer, ArtifactLayer)
        computed = [name for name in self.request.outputs if name != "input"]
        steps = dict(layer.steps(states, self.rows, computed)) if computed else {}
        if "input" in self.request.outputs:
            steps["input"] = states[self.rows]
        heads = [*self.heads]
        values = {name: self._array(step[heads] if name in PER_HEAD else step) for name, step in steps.items()}
        return LayerOutputs(number, heads, **values)

    def _array(self, values: Floats) -> NDArray[Any]:
        values = cast_map(values, self.request.dtype)
        if self.request.decimals is not None:
            values = np.round(values.astype(DTYPES["float32"], copy=False), self.request.decimals)
        return np.ascontiguousarray(values)

    def response_bytes(self, manifest: Manifest) -> int:
        """Return the size of the result: exact for binary and base64, else an upper bound."""
        wire, request = self.call.wire, self.request
        tokens, rows, heads = len(self.tokens), len(self.rows), len(self.heads)
        size, width_of_head = manifest.architecture.hidden_size, head_size(manifest)
        position = manifest.position_table.shape[1] if manifest.position_table else width_of_head // 2
        total = RESULT_BYTES + listed_bytes(self.units.units, wire) + 16 * (rows + tokens)
        for name in request.outputs:
            length = tokens if name in OF_ALL_TOKENS else rows
            width = tokens if name in OF_PAIRS else width_of_head
            values = heads * length * width if name in PER_HEAD else rows * (position if name == "position" else size)
            total += len(self.layers) * (LAYER_BYTES + array_bytes(values, request.dtype, wire))
        return total


def head_size(manifest: Manifest) -> int:
    """Return the size of a head."""
    layers = manifest.layers
    assert isinstance(layers, LayersRecord)
    return layers.layers[0].output.shape[0] // manifest.architecture.num_attention_heads


def step_bytes(manifest: Manifest, tokens: int, rows: int) -> int:
    """Return the bytes that one layer's steps need in addition to an attention map."""
    layers = manifest.layers
    assert isinstance(layers, LayersRecord)
    steps = layers.layers[0].steps
    assert steps is not None
    inner = steps.weights["block.feed_forward.inner.weight"].shape[1]
    biases = len({*OF_PAIRS} & {*manifest.step_names}) - len(("scores", "weights"))
    of_pairs = biases * manifest.architecture.num_attention_heads * rows * tokens
    return FLOAT_BYTES * (rows * 3 * inner + tokens * 4 * manifest.architecture.hidden_size + of_pairs)


def check_step_size(engine: Engine, tasks: Sequence[LayerOutputsTask]) -> None:
    """Raise `RequestTooLarge` for an input whose intermediate results exceed the limit."""
    limit, manifest = engine.limits.max_explain_bytes, engine.manifest
    for index, task in enumerate(tasks):
        tokens, rows = len(task.tokens), len(task.rows)
        needed = explain_bytes(manifest.architecture, tokens, maps=True) + step_bytes(manifest, tokens, rows)
        if needed > limit:
            raise RequestTooLarge(
                "intermediate results too large", "Send a shorter text or fewer rows.",
                field=f"inputs[{index}]", actual=needed, maximum=limit, unit="bytes",
            )  # fmt: skip
