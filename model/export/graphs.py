"""ONNX graphs: export from PyTorch, attention in long rows, compact weight storage, and records."""

import hashlib
import logging
import os
import tempfile
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir
import onnxruntime
import onnxscript
import torch
from numpy.typing import NDArray
from onnx_ir.passes.common import InlinePass, RemoveUnusedNodesPass
from torch import Tensor, nn
from torch.onnx._internal.exporter._registration import ONNXRegistry

from model.artifact.console import EX_SOFTWARE, ReportedError
from model.artifact.files import ArtifactError, describe_file
from model.artifact.manifest import (
    AccuracyRecord,
    GraphPrecision,
    GraphRecord,
    GraphReport,
    ParityRecord,
    TensorRecord,
    TensorType,
    ValueRecord,
)
from model.encoder.attention import BLOCK_TOKENS, DOMAIN, LOWEST, MAX_DENSE_TOKENS

# torch.onnx parses the definitions of all operators again for each graph: a fifth of the export of a tiny model.
ONNXRegistry.from_torchlib = staticmethod(cache(ONNXRegistry.from_torchlib))  # type: ignore[method-assign]

TO_FLOAT = {"to": onnx_ir.DataType.FLOAT.value}
COMPACT_TYPES = (onnx_ir.DataType.BFLOAT16, onnx_ir.DataType.FLOAT16)
OTHER_WEIGHTS = "other.bin"
TYPES: dict[TensorType, torch.dtype] = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
CHUNK = 2**20
"""Number of values compared per step. Most float32 matrices are rejected after the first chunk."""


def compact_weights(model: onnx_ir.Model) -> None:
    """Store each float32 matrix in bfloat16 or float16 if all values fit exactly, with a Cast to float32.

    For tables, only the rows that are looked up are cast, so that no float32 copy of the table is in memory. Vectors
    are small, and remain float32.
    """
    for value in list(model.graph.initializers.values()):
        tensor = value.const_value
        if tensor is None or tensor.dtype != onnx_ir.DataType.FLOAT or len(tensor.shape) < 2:
            continue
        values = tensor.numpy()
        fitting = next((dtype for dtype in COMPACT_TYPES if is_lossless(values, dtype.numpy())), None)
        if fitting is not None:
            stored = _narrow(tensor, fitting, f"{value.name}.{fitting.name.lower()}")
            if _is_table(model.graph, value):
                _cast_rows(model.graph, value, stored)
            else:
                compute_weight(model.graph, value, "Cast", [stored], TO_FLOAT)


def _narrow(tensor: onnx_ir.TensorProtocol, dtype: onnx_ir.DataType, name: str) -> onnx_ir.TensorProtocol:
    """Return a lazy 16-bit tensor, computed when it is saved."""
    shape = onnx_ir.Shape(tensor.numpy().shape)
    return onnx_ir.LazyTensor(lambda: onnx_ir.tensor(tensor.numpy().astype(dtype.numpy())), dtype, shape, name=name)


def _is_table(graph: onnx_ir.Graph, value: onnx_ir.Value) -> bool:
    """Return whether nodes of a graph only look up rows of a value."""
    uses = value.uses()
    return len(uses) > 0 and all(
        node.op_type == "Gather" and index == 0 and node.graph is graph and not node.outputs[0].is_graph_output()
        for node, index in uses
    )


def _cast_rows(graph: onnx_ir.Graph, table: onnx_ir.Value, stored: onnx_ir.TensorProtocol) -> None:
    """Replace a table with a 16-bit table, and cast the rows that nodes gather from it."""
    narrow = onnx_ir.val(stored.name, const_value=stored)
    graph.register_initializer(narrow)
    for gather, _ in list(table.uses()):
        rows = gather.outputs[0]
        gather.replace_input_with(0, narrow)
        cast = onnx_ir.node("Cast", [rows], TO_FLOAT, name=f"{rows.name}.cast")
        cast.outputs[0].name, cast.outputs[0].type, cast.outputs[0].shape = rows.name, rows.type, rows.shape
        rows.replace_all_uses_with(cast.outputs[0])
        cast.replace_input_with(0, rows)
        rows.name, rows.type = f"{rows.name}.{stored.dtype.name.lower()}", onnx_ir.TensorType(stored.dtype)
        graph.insert_after(gather, cast)
    del graph.initializers[str(table.name)]


def is_lossless(values: NDArray[np.float32], dtype: np.dtype[Any]) -> bool:
    """Return whether every value is bit-for-bit the same in a 16-bit type."""
    flat = values.reshape(-1)
    with np.errstate(over="ignore"):
        return all(
            np.array_equal(chunk.astype(dtype).astype(np.float32).view(np.uint32), chunk.view(np.uint32))
            for chunk in (flat[start : start + CHUNK] for start in range(0, len(flat), CHUNK))
        )


def compute_weight(
    graph: onnx_ir.Graph, weight: onnx_ir.Value, operator: str, stored: Sequence[onnx_ir.TensorProtocol], options: Any
) -> None:
    """Replace a weight (an initializer or its Cast) with an operator over the `stored` tensors, by name."""
    inputs = [onnx_ir.val(tensor.name, const_value=tensor) for tensor in stored]
    node = onnx_ir.node(operator, inputs, options, name=f"{weight.name}.{operator.lower()}")
    weight.replace_all_uses_with(node.outputs[0])
    initializer, cast = stored_weight(weight).name, weight.producer()
    assert initializer is not None
    if cast is not None:
        graph.remove(cast, safe=True)
    del graph.initializers[initializer]
    for value in inputs:
        graph.register_initializer(value)
    node.outputs[0].name, node.outputs[0].type, node.outputs[0].shape = weight.name, weight.type, weight.shape
    graph.insert_before(graph[0], node)


def stored_weight(value: onnx_ir.Value) -> onnx_ir.Value:
    """Return the operand of the Cast that computes `value`, else `value`."""
    node = value.producer()
    operand = node.inputs[0] if node is not None and node.op_type == "Cast" else None
    return value if operand is None else operand


FUSED = "fused_attention"
OPSET = 20
INT64, BOOL, FLOAT = onnx_ir.DataType.INT64, onnx_ir.DataType.BOOL, onnx_ir.DataType.FLOAT


def _sizes(op: Any, values: Any, axis: int) -> tuple[Any, Any, Any]:
    """Return the number of tokens, (1,) and as a scalar, and whether rows of this length use masks of size T x T."""
    shape = op.Shape(values, start=axis, end=axis + 1)
    tokens = op.Squeeze(shape)
    return shape, tokens, op.LessOrEqual(tokens, MAX_DENSE_TOKENS)


def _fused(op: Any) -> Any:
    """Return a placeholder of the constant `FUSED`."""
    return op.Fused(_domain=DOMAIN, _outputs=[onnx_ir.val("fused", BOOL, [])])


def _additive(op: Any, allowed: Any) -> Any:
    return op.Unsqueeze(op.Where(allowed, 0.0, LOWEST), [1])


def _row_mask(kind: str, op: Any, position_ids: Any, sequence_ids: Any, slopes: Any = None) -> Any:
    """Return the mask of all queries, or of the first one if the queries of long rows are attended to in blocks."""
    _, tokens, every = _sizes(op, sequence_ids, 1)
    if kind != "FullMask":
        every = op.Or(_fused(op), every)
    stop = op.Unsqueeze(op.Where(every, tokens, 1), [0])
    query_ids = op.Abs(op.Slice(sequence_ids, [0], stop, [1]))
    same = op.Equal(op.Unsqueeze(query_ids, [2]), op.Unsqueeze(sequence_ids, [1]))
    if kind == "FullMask":
        return _additive(op, same)
    query_positions = op.Unsqueeze(op.Slice(position_ids, [0], stop, [1]), [2])
    key_positions = op.Unsqueeze(position_ids, [1])
    if kind == "CausalMask":
        return _additive(op, op.And(same, op.GreaterOrEqual(query_positions, key_positions)))
    distances = op.Cast(op.Abs(op.Sub(query_positions, key_positions)), to=FLOAT)
    penalties = op.Mul(op.Unsqueeze(distances, [1]), op.Where(every, slopes, 0.0))
    return op.Sub(_additive(op, same), penalties)


def _window_mask(op: Any, position_ids: Any, sequence_ids: Any, behind: int, ahead: int) -> tuple[Any, Any]:
    """Return the mask of each block of queries, and the indices of its keys. A short row is a single block."""
    _, tokens, short = _sizes(op, sequence_ids, 1)
    size, last = op.Where(short, tokens, BLOCK_TOKENS), op.Sub(tokens, 1)
    starts = op.Unsqueeze(op.Range(0, tokens, size), [1])
    query_offsets = op.Range(0, size, 1)
    first = op.Neg(op.Where(short, 0, behind))
    key_offsets = op.Range(first, op.Add(size, op.Where(short, 0, ahead)), 1)
    queries = op.Min(op.Reshape(op.Add(starts, query_offsets), [-1]), last)
    places = op.Reshape(op.Add(starts, key_offsets), [-1])
    keys = op.Min(op.Max(places, 0), last)
    column = op.Concat([-1], op.Shape(query_offsets), [1], axis=0)
    row = op.Concat([-1], [1], op.Shape(key_offsets), axis=0)
    key_ids = op.Where(op.Equal(keys, places), op.Gather(sequence_ids, keys, axis=1), -1)  # -1 beyond the ends
    query_ids = op.Abs(op.Gather(sequence_ids, queries, axis=1))
    same = op.Equal(op.Reshape(query_ids, column), op.Reshape(key_ids, row))
    query_positions = op.Reshape(op.Gather(position_ids, queries, axis=1), column)
    distance = op.Sub(query_positions, op.Reshape(op.Gather(position_ids, keys, axis=1), row))
    near = op.And(op.LessOrEqual(distance, behind), op.LessOrEqual(op.Neg(distance), ahead))
    return _additive(op, op.And(same, near)), keys


def _dense(op: Any, q: Any, k: Any, v: Any, mask: Any, scale: float) -> Any:
    scores = op.Mul(op.MatMul(q, op.Transpose(k, perm=[0, 1, 3, 2])), scale)
    return op.MatMul(op.Softmax(op.Add(scores, mask), axis=-1), v)


def _attend(kind: str, op: Any, *inputs: Any, scale: float) -> Any:
    """Return attention: of all queries at once if the backend fuses it, or in short rows, else per block of queries.

    `inputs` are q, k, v, the mask and, for some kinds, the keys of a window or the slopes of biases.
    """
    q, k, v, mask, extra = (*inputs, None)[:5]
    shape, tokens, short = _sizes(op, q, 2)
    last = op.Sub(tokens, 1)
    blocks = op.Div(op.Add(last, BLOCK_TOKENS), BLOCK_TOKENS)

    def attend_to_block(op: Any, number: Any, more: Any) -> tuple[Any, Any]:
        start = op.Mul(number, BLOCK_TOKENS)
        stop = op.Add(start, BLOCK_TOKENS)
        queries = op.Min(op.Range(start, stop, 1), last)
        keys, values, block_mask = k, v, mask
        if kind == "AlibiAttend":
            distances = op.Abs(op.Sub(op.Unsqueeze(queries, [1]), op.Range(0, tokens, 1)))
            block_mask = op.Sub(mask, op.Mul(op.Cast(distances, to=FLOAT), extra))
        elif kind == "CausalAttend":
            key_stop = op.Min(stop, tokens)
            key_end = op.Unsqueeze(key_stop, [0])
            keys, values = (op.Slice(part, [0], key_end, [2]) for part in (k, v))
            earlier = op.GreaterOrEqual(op.Unsqueeze(queries, [1]), op.Range(0, key_stop, 1))
            block_mask = op.Where(earlier, 0.0, LOWEST)
        elif kind == "WindowAttend":
            count, index = op.Shape(mask, start=3), op.Unsqueeze(number, [0])
            key_start = op.Mul(index, count)
            indices = op.Slice(extra, key_start, op.Add(key_start, count), [0])
            keys, values = (op.Gather(part, indices, axis=2) for part in (k, v))
            block_mask = op.Gather(mask, index, axis=0)
        return op.Identity(more), _dense(op, op.Gather(q, queries, axis=2), keys, values, block_mask, scale)

    def attend_in_blocks(op: Any) -> Any:
        inputs = onnx_ir.val("number", INT64, []), onnx_ir.val("more", BOOL, [])
        outputs = onnx_ir.val("again", BOOL, []), onnx_ir.val("part", FLOAT, ["R", "H", "B", "d"])
        parts = op.Loop(blocks, True, body=op.builder.subgraph(attend_to_block, inputs, outputs))
        ordered = op.Transpose(parts, perm=[1, 2, 0, 3, 4])
        joined = op.Reshape(ordered, op.Concat([0, 0, -1], op.Shape(q, start=3), axis=0))
        return op.Slice(joined, [0], shape, [2])

    def attend_at_once(op: Any) -> Any:
        return _attend_window(op, (q, k, v), mask, extra, scale) if kind == "WindowAttend" else dense(op)

    def dense(op: Any) -> Any:
        return _dense(op, q, k, v, mask, scale)

    def choose(op: Any, condition: Any, then: Callable[[Any], Any], otherwise: Callable[[Any], Any]) -> Any:
        branches = [op.builder.subgraph(branch, [], [onnx_ir.Value(name="output")]) for branch in (then, otherwise)]
        return op.If(condition, then_branch=branches[0], else_branch=branches[1])

    return choose(op, _fused(op), attend_at_once, lambda op: choose(op, short, dense, attend_in_blocks))


def _attend_window(op: Any, parts: Iterable[Any], mask: Any, keys: Any, scale: float) -> Any:
    """Return attention of all queries, with each block of queries as a row that has its own keys."""
    swap = [0, 2, 1, 3]
    q_rows, k_rows, v_rows = (op.Transpose(part, perm=swap) for part in parts)  # (R, T, H, d)
    heads = op.Shape(q_rows, start=2)
    of_queries = op.Concat([-1], op.Shape(mask, start=2, end=3), heads, axis=0)
    of_keys = op.Concat([-1], op.Shape(mask, start=3), heads, axis=0)
    k_blocks, v_blocks = (op.Reshape(op.Gather(rows, keys, axis=1), of_keys) for rows in (k_rows, v_rows))
    q_blocks = op.Reshape(q_rows, of_queries)
    q_heads, k_heads, v_heads = (op.Transpose(part, perm=swap) for part in (q_blocks, k_blocks, v_blocks))
    output = _dense(op, q_heads, k_heads, v_heads, mask, scale)
    return op.Transpose(op.Reshape(op.Transpose(output, perm=swap), op.Shape(q_rows)), perm=swap)


DEFINITIONS: dict[str, Callable[..., Any]] = {"WindowMask": _window_mask} | {
    **{kind: partial(_row_mask, kind) for kind in ("FullMask", "AlibiMask", "CausalMask")},
    **{kind: partial(_attend, kind) for kind in ("FullAttend", "AlibiAttend", "CausalAttend", "WindowAttend")},
}
"""Each operator of `DOMAIN`, as a function of standard operators `op`, its inputs and its attributes."""


def define_attention(model: onnx_ir.Model) -> None:
    """Replace the operators of `DOMAIN` in a model with the nodes of their definitions."""
    nodes = [node for node in model.graph if node.domain == DOMAIN]
    if not nodes:
        return
    for node in nodes:
        for value in node.outputs:
            value.shape = None  # torch declares T x T, but the definitions determine the shape
        attributes = {name: attribute.value for name, attribute in node.attributes.items()}
        name = "_".join(map(str, (node.op_type, *attributes.values())))
        if (DOMAIN, name, "") not in model.functions:
            values = enumerate(filter(None, node.inputs))
            inputs = [onnx_ir.Value(name=f"input{index}", type=value.type) for index, value in values]
            definition = partial(DEFINITIONS[node.op_type], **attributes)
            function = onnxscript.build_function(
                definition, inputs, domain=DOMAIN, name=name, opset_imports={"": OPSET, DOMAIN: 1}
            )
            model.functions[function.identifier()] = function
        node.op_type = name
        node.attributes.clear()
    model.opset_imports.setdefault(DOMAIN, 1)
    InlinePass()(model)
    fused = onnx_ir.val(FUSED, const_value=onnx_ir.tensor(False, name=FUSED))
    model.graph.register_initializer(fused)
    for node in list(model.graph.all_nodes()):
        if node.domain == DOMAIN:  # Fused
            node.outputs[0].replace_all_uses_with(fused)
    model.functions.clear()
    model.opset_imports.pop(DOMAIN, None)
    RemoveUnusedNodesPass()(model)


@dataclass(frozen=True)
class GraphSignature:
    """The inputs and outputs of a graph.

    `example_inputs` contains an example of each input, and `dynamic_axes` the names of dynamic axes by input and axis
    number. `variadic`: the inputs are variadic arguments of the module. `multiples` contains, for dynamic axes that
    must be a multiple of a number, that number.
    """

    example_inputs: dict[str, Tensor]
    dynamic_axes: dict[str, dict[int, str]]
    outputs: tuple[str, ...]
    variadic: bool = False
    multiples: Mapping[str, int] = field(default_factory=dict)


def write_graph(
    module: nn.Module, path: Path, weights: str | None, signature: GraphSignature, owner: Path | None = None
) -> None:
    """Export `module` to the graph `path`, with its weights in the file `weights` next to it, or in the graph.

    Graphs may share a weights file. Raises ArtifactError if it exists with other contents. With `owner`, the graph that
    wrote this file, the new graph refers to those of its tensors that are in the file, and contains the others.
    """
    save_graph(_to_onnx(module, signature), path, weights, owner)


def save_graph(model: onnx_ir.Model, path: Path, weights: str | None, owner: Path | None = None) -> None:
    """Write an ONNX model like `write_graph`."""
    _strip_metadata(model)
    if weights is None:
        onnx_ir.save(model, path)
        return
    compact_weights(model)
    if owner is not None:
        _refer_to_weights(model, onnx_ir.load(owner))
        onnx_ir.save(model, path)
        return
    with tempfile.TemporaryDirectory(dir=path.parent.parent) as scratch:
        onnx_ir.save(model, Path(scratch) / path.name, external_data=weights, size_threshold_bytes=64)
        written, shared = Path(scratch) / weights, path.parent / weights
        if shared.exists() and describe_file(written) != describe_file(shared):
            raise ArtifactError(f"{path.name}: weights differ from the existing {weights}. Report this as a bug.")
        os.replace(written, shared)
        os.replace(Path(scratch) / path.name, path)


def _refer_to_weights(model: onnx_ir.Model, owner: onnx_ir.Model) -> None:
    """Replace the tensors of a model by those with the same contents in the weights file of another one."""

    def key_of(tensor: Any) -> tuple[Any, ...]:
        return tensor.dtype, tuple(tensor.shape), hashlib.sha256(tensor.tobytes()).digest()

    tensors = (value.const_value for value in owner.graph.initializers.values())
    stored = {key_of(tensor): tensor for tensor in tensors if isinstance(tensor, onnx_ir.ExternalTensor)}
    for name, value in model.graph.initializers.items():
        tensor = stored.get(key_of(value.const_value))
        if tensor is not None:
            value.const_value = onnx_ir.ExternalTensor(
                tensor.location, tensor.offset, tensor.length, tensor.dtype,
                shape=tensor.shape, name=name, base_dir=tensor.base_dir,
            )  # fmt: skip


def open_session(
    graph: Path | bytes, options: onnxruntime.SessionOptions | None = None, *, copies_weights: bool = True
) -> onnxruntime.InferenceSession:
    """Return a session on the CPU execution provider that logs only errors.

    Without `copies_weights`, the session uses the mapped file, and casts 16-bit weights in every run.
    """
    options = options or onnxruntime.SessionOptions()
    options.log_severity_level = 3
    disabled = []
    if not copies_weights:
        disabled.append("ConstantFolding")
        options.enable_cpu_mem_arena = False
        options.add_session_config_entry("session.disable_prepacking", "1")
    return onnxruntime.InferenceSession(
        graph, options, providers=["CPUExecutionProvider"], disabled_optimizers=disabled
    )


class ParityError(ReportedError):
    """A difference over the tolerance between the encoder and an exported graph. No artifact was written."""

    status = EX_SOFTWARE


@dataclass(frozen=True)
class GraphSet:
    """The graphs written to an artifact's directory, and their measurements, by name."""

    root: Path
    progress: Callable[[str], None] = lambda step: None
    records: dict[str, GraphRecord] = field(default_factory=dict)
    reports: dict[str, GraphReport] = field(default_factory=dict)

    def path(self, name: str) -> Path:
        return self.root / f"{name}.onnx"

    def add(  # noqa: PLR0913  # what the manifest and the report contain
        self,
        name: str,
        parity: ParityRecord,
        weights: str | None = None,
        precision: GraphPrecision = "float32",
        accuracy: AccuracyRecord | None = None,
        *,
        reference: str = "torch",
        longest: int | None = None,
    ) -> None:
        """Describe a graph that was written to `path(name)`. Raises ParityError if it differs from the reference."""
        difference, limit = f"{parity.max_abs_difference:.2e}", f"{parity.tolerance:.0e}"
        self.progress(f"largest difference between {name}.onnx and {reference}: {difference}, limit {limit}")
        if not parity.max_abs_difference <= parity.tolerance:
            remedy = "Report this as a bug, unless the weights are random: these may amplify rounding errors."
            if precision == "int8":
                remedy = "Export without --variant int8."
            raise ParityError(f"{name}.onnx: onnxruntime differs from torch (by {difference}, limit {limit}). {remedy}")
        graph = onnx_ir.load(self.path(name)).graph
        self.records[name] = GraphRecord(
            file=f"{name}.onnx",
            weights=() if weights is None else (weights,),
            inputs=_describe_values(graph.inputs),
            outputs=_describe_values(graph.outputs),
            precision=precision,
            longest=longest,
        )
        self.reports[name] = GraphReport(parity=parity, accuracy=accuracy)


def _describe_values(values: Sequence[onnx_ir.Value]) -> tuple[ValueRecord, ...]:
    return tuple(
        ValueRecord.model_validate(
            {
                "name": value.name,
                "dtype": np.dtype(value.dtype.numpy()).name,
                "shape": [size if isinstance(size, int) else size.value for size in value.shape],
            }
        )
        for value in values
        if value.dtype is not None and value.shape is not None
    )


def _to_onnx(module: nn.Module, signature: GraphSignature) -> onnx_ir.Model:
    axes = signature.dynamic_axes
    sizes = {name: torch.export.Dim(name) for names in axes.values() for name in names.values()}
    parts = {name: multiple for name, multiple in signature.multiples.items() if multiple > 1}
    sizes |= {name: torch.export.Dim(f"{name}_parts") * multiple for name, multiple in parts.items()}
    multiples = {f"{multiple}*{name}_parts": name for name, multiple in signature.multiples.items()}
    shapes = tuple({axis: sizes[name] for axis, name in axes.get(key, {}).items()} for key in signature.example_inputs)
    exporter_log = logging.getLogger("torch.onnx")
    level = exporter_log.level
    exporter_log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                module,
                tuple(signature.example_inputs.values()),
                input_names=tuple(signature.example_inputs),
                output_names=signature.outputs,
                dynamic_shapes=(shapes,) if signature.variadic else shapes,
                opset_version=OPSET,
                dynamo=True,
                verbose=False,
            )
    finally:
        exporter_log.setLevel(level)
    assert program is not None
    for value in (*program.model.graph.inputs, *program.model.graph.outputs):  # "64*T_parts" is T
        assert value.shape is not None
        for axis, size in enumerate(value.shape):
            if (name := multiples.get(str(size))) is not None:
                value.shape[axis] = name
    define_attention(program.model)
    return program.model


def _strip_metadata(model: onnx_ir.Model) -> None:
    """Remove the source paths and stack traces that the exporter adds to every node, which depend on the machine."""
    model.metadata_props.clear()
    for graph in model.graphs():
        graph.metadata_props.clear()
        for node in graph:
            node.metadata_props.clear()
            node.doc_string = None


class WeightStore:
    """The tensors in a graph's weights, found by digest, and a file for other tensors, such as tiny ones.

    Tensor names cannot be used, because the exporter renames linear weights and merges equal tensors.
    """

    def __init__(self, graph: Path) -> None:
        self._other = graph.parent / OTHER_WEIGHTS
        self._locations: dict[bytes, tuple[str, int]] = {}
        for value in onnx_ir.load(graph).graph.initializers.values():
            tensor = value.const_value
            if isinstance(tensor, onnx_ir.ExternalTensor):
                self._locations[_digest(tensor.numpy())] = str(tensor.location), tensor.offset or 0

    def find(self, tensor: Tensor) -> TensorRecord:
        """Return the record of a tensor, after writing it if it is not yet stored."""
        for name, dtype in TYPES.items():
            stored = tensor.detach().to(dtype).contiguous()
            digest = _digest(stored.view(torch.int16 if dtype.itemsize == 2 else torch.int32).numpy())
            if digest in self._locations:
                file, offset = self._locations[digest]
                return TensorRecord(file=file, offset=offset, shape=tuple(tensor.shape), dtype=name)
        values = tensor.detach().contiguous().numpy().astype("<f4")
        with self._other.open("ab") as other:
            self._locations[_digest(values)] = self._other.name, other.tell()
            other.write(values.tobytes())
        return self.find(tensor)

    def find_optional(self, tensor: Tensor | None) -> TensorRecord | None:
        return None if tensor is None else self.find(tensor)


def _digest(values: NDArray[Any]) -> bytes:
    return hashlib.sha256(np.ascontiguousarray(values).reshape(-1).view(np.uint8).data).digest()
