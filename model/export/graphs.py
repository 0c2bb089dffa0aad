"""ONNX graphs: export from PyTorch, attention in long rows, compact weight storage, and records."""

import hashlib
import logging
import os
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir
import onnxruntime
import torch
from numpy.typing import NDArray
from onnx_ir.passes.common import InlinePass, RemoveUnusedNodesPass
from torch import Tensor, nn

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
from model.encoder.attention import BLOCK_TOKENS, DOMAIN, MAX_DENSE_TOKENS

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

HEADER = f'<opset_import: ["" : 20, "{DOMAIN}" : 1], domain: "{DOMAIN}">'
CONSTANTS = f"""
    zero = Constant<value = int64 {{0}}>()
    one = Constant<value = int64 {{1}}>()
    block = Constant<value = int64 {{{BLOCK_TOKENS}}}>()
    limit = Constant<value = int64 {{{MAX_DENSE_TOKENS}}}>()
    allow = Constant<value = float {{0}}>()
    lowest = Constant<value = float {{-3.4028234663852886e38}}>()
    axis0 = Constant<value = int64[1] {{0}}>()
    axis1 = Constant<value = int64[1] {{1}}>()
    axis2 = Constant<value = int64[1] {{2}}>()
    rest = Constant<value = int64[1] {{-1}}>()
"""
MASK_SIZES = f"""{CONSTANTS}
    shape = Shape<start = 1, end = 2>(sequence_ids)
    tokens = Squeeze(shape)
    short = LessOrEqual(tokens, limit)
"""
SIZES = f"""{CONSTANTS}
    shape = Shape<start = 2, end = 3>(q)
    tokens = Squeeze(shape)
    short = LessOrEqual(tokens, limit)
    fused = {DOMAIN}.Fused()
    last = Sub(tokens, one)
    padded = Add(last, block)
    blocks = Div(padded, block)
    yes = Constant<value = bool {{1}}>()
"""
JOIN_BLOCKS = """
        ordered = Transpose<perm = [1, 2, 0, 3, 4]>(parts)
        keep = Constant<value = int64[3] {0, 0, -1}>()
        size = Shape<start = 3>(q)
        joined_shape = Concat<axis = 0>(keep, size)
        joined = Reshape(ordered, joined_shape)
        unpadded = Slice(joined, axis0, shape, axis2)
"""
QUERY_BLOCK = """
            again = Identity(more)
            start = Mul(number, block)
            stop = Add(start, block)
            range = Range(start, stop, one)
            queries = Min(range, last)
            q_block = Gather<axis = 2>(q, queries)
"""


def _attend(name: str, inputs: str, fused: str, body: str) -> str:
    return f"""{name} <scale: float> ({inputs}) => (output) {{
    {SIZES}
    output = If (fused) <then_branch = fused_branch () => (together) {{
        {fused}
    }}, else_branch = loop_branch () => (either) {{
        either = If (short) <then_branch = short_branch () => (dense) {{
            dense = {DOMAIN}.Dense<scale: float = @scale>(q, k, v, mask)
        }}, else_branch = long_branch () => (unpadded) {{
            parts = Loop (blocks, yes) <body = block_body (int64 number, bool more)
                => (bool again, float[R, H, B, d] part) {{
                {QUERY_BLOCK}
                {body}
            }}>
            {JOIN_BLOCKS}
        }}>
    }}>
}}"""


ATTEND_ALL = f"together = {DOMAIN}.Dense<scale: float = @scale>(q, k, v, mask)"
FUNCTIONS = (
    f"""FullMask (position_ids, sequence_ids) => (mask) {{
    {MASK_SIZES}
    queries = Where(short, tokens, one)
    stop = Unsqueeze(queries, axis0)
    signed_ids = Slice(sequence_ids, axis0, stop, axis1)
    query_ids = Abs(signed_ids)
    query_column = Unsqueeze(query_ids, axis2)
    key_row = Unsqueeze(sequence_ids, axis1)
    allowed = Equal(query_column, key_row)
    additive = Where(allowed, allow, lowest)
    mask = Unsqueeze(additive, axis1)
}}""",
    f"""AlibiMask (position_ids, sequence_ids, slopes) => (mask) {{
    {MASK_SIZES}
    fused = {DOMAIN}.Fused()
    all = Or(fused, short)
    queries = Where(all, tokens, one)
    stop = Unsqueeze(queries, axis0)
    signed_ids = Slice(sequence_ids, axis0, stop, axis1)
    query_positions = Slice(position_ids, axis0, stop, axis1)
    query_ids = Abs(signed_ids)
    query_id_column = Unsqueeze(query_ids, axis2)
    query_column = Unsqueeze(query_positions, axis2)
    key_id_row = Unsqueeze(sequence_ids, axis1)
    key_row = Unsqueeze(position_ids, axis1)
    allowed = Equal(query_id_column, key_id_row)
    additive = Where(allowed, allow, lowest)
    of_all_heads = Unsqueeze(additive, axis1)
    offsets = Sub(query_column, key_row)
    distances = Abs(offsets)
    distance_values = Cast<to = 1>(distances)
    distances_of_heads = Unsqueeze(distance_values, axis1)
    used_slopes = Where(all, slopes, allow)
    penalties = Mul(distances_of_heads, used_slopes)
    mask = Sub(of_all_heads, penalties)
}}""",
    f"""CausalMask (position_ids, sequence_ids) => (mask) {{
    {MASK_SIZES}
    fused = {DOMAIN}.Fused()
    all = Or(fused, short)
    queries = Where(all, tokens, one)
    stop = Unsqueeze(queries, axis0)
    signed_ids = Slice(sequence_ids, axis0, stop, axis1)
    query_ids = Abs(signed_ids)
    query_positions = Slice(position_ids, axis0, stop, axis1)
    query_id_column = Unsqueeze(query_ids, axis2)
    query_column = Unsqueeze(query_positions, axis2)
    key_id_row = Unsqueeze(sequence_ids, axis1)
    key_row = Unsqueeze(position_ids, axis1)
    same = Equal(query_id_column, key_id_row)
    earlier = GreaterOrEqual(query_column, key_row)
    allowed = And(same, earlier)
    additive = Where(allowed, allow, lowest)
    mask = Unsqueeze(additive, axis1)
}}""",
    f"""WindowMask <behind: int, ahead: int> (position_ids, sequence_ids) => (mask, keys) {{
    {MASK_SIZES}
    none = Constant<value = int64 {{-1}}>()
    radius_behind = Constant<value_int: int = @behind>()
    radius_ahead = Constant<value_int: int = @ahead>()
    B = Where(short, tokens, block)
    behind = Where(short, zero, radius_behind)
    ahead = Where(short, zero, radius_ahead)
    starts = Range(zero, tokens, B)
    start_column = Unsqueeze(starts, axis1)
    last = Sub(tokens, one)

    query_offsets = Range(zero, B, one)
    query_grid = Add(start_column, query_offsets)
    query_range = Reshape(query_grid, rest)
    queries = Min(query_range, last)
    to = Add(B, ahead)
    from = Neg(behind)
    key_offsets = Range(from, to, one)
    key_grid = Add(start_column, key_offsets)
    key_range = Reshape(key_grid, rest)
    key_floor = Max(key_range, zero)
    keys = Min(key_floor, last)

    query_shape = Shape(query_offsets)
    key_shape = Shape(key_offsets)
    column_shape = Concat<axis = 0>(rest, query_shape, axis1)
    row_shape = Concat<axis = 0>(rest, axis1, key_shape)
    inside = Equal(keys, key_range)
    clamped_ids = Gather<axis = 1>(sequence_ids, keys)
    key_ids = Where(inside, clamped_ids, none)
    key_positions = Gather<axis = 1>(position_ids, keys)
    signed_ids = Gather<axis = 1>(sequence_ids, queries)
    query_ids = Abs(signed_ids)
    query_positions = Gather<axis = 1>(position_ids, queries)
    query_id_column = Reshape(query_ids, column_shape)
    query_column = Reshape(query_positions, column_shape)
    key_id_row = Reshape(key_ids, row_shape)
    key_row = Reshape(key_positions, row_shape)
    same = Equal(query_id_column, key_id_row)
    distance = Sub(query_column, key_row)
    distance_ahead = Neg(distance)
    near_behind = LessOrEqual(distance, radius_behind)
    near_ahead = LessOrEqual(distance_ahead, radius_ahead)
    near = And(near_behind, near_ahead)
    allowed = And(same, near)
    additive = Where(allowed, allow, lowest)
    mask = Unsqueeze(additive, axis1)
}}""",
    """Dense <scale: float> (q, k, v, mask) => (output) {
    factor = Constant<value_float: float = @scale>()
    k_columns = Transpose<perm = [0, 1, 3, 2]>(k)
    products = MatMul(q, k_columns)
    scores = Mul(products, factor)
    masked = Add(scores, mask)
    probs = Softmax<axis = -1>(masked)
    output = MatMul(probs, v)
}""",
    _attend(
        "FullAttend", "q, k, v, mask", ATTEND_ALL, f"part = {DOMAIN}.Dense<scale: float = @scale>(q_block, k, v, mask)"
    ),
    _attend(
        "AlibiAttend",
        "q, k, v, mask, slopes",
        ATTEND_ALL,
        f"""
                key_range = Range(zero, tokens, one)
                query_column = Unsqueeze(queries, axis1)
                offsets = Sub(query_column, key_range)
                distances = Abs(offsets)
                distance_values = Cast<to = 1>(distances)
                penalties = Mul(distance_values, slopes)
                block_mask = Sub(mask, penalties)
                part = {DOMAIN}.Dense<scale: float = @scale>(q_block, k, v, block_mask)""",
    ),
    _attend(
        "CausalAttend",
        "q, k, v, mask",
        ATTEND_ALL,
        f"""
                key_stop = Min(stop, tokens)
                key_end = Unsqueeze(key_stop, axis0)
                k_block = Slice(k, axis0, key_end, axis2)
                v_block = Slice(v, axis0, key_end, axis2)
                key_range = Range(zero, key_stop, one)
                query_column = Unsqueeze(queries, axis1)
                earlier = GreaterOrEqual(query_column, key_range)
                block_mask = Where(earlier, allow, lowest)
                part = {DOMAIN}.Dense<scale: float = @scale>(q_block, k_block, v_block, block_mask)""",
    ),
    _attend(
        "WindowAttend",
        "q, k, v, mask, keys",
        f"""
        query_count = Shape<start = 2, end = 3>(mask)
        key_count = Shape<start = 3>(mask)
        q_rows = Transpose<perm = [0, 2, 1, 3]>(q)
        q_rows_shape = Shape(q_rows)
        heads = Shape<start = 2>(q_rows)
        q_shape = Concat<axis = 0>(rest, query_count, heads)
        k_shape = Concat<axis = 0>(rest, key_count, heads)
        q_blocks = Reshape(q_rows, q_shape)
        q_heads = Transpose<perm = [0, 2, 1, 3]>(q_blocks)
        k_rows = Transpose<perm = [0, 2, 1, 3]>(k)
        k_gathered = Gather<axis = 1>(k_rows, keys)
        k_blocks = Reshape(k_gathered, k_shape)
        k_heads = Transpose<perm = [0, 2, 1, 3]>(k_blocks)
        v_rows = Transpose<perm = [0, 2, 1, 3]>(v)
        v_gathered = Gather<axis = 1>(v_rows, keys)
        v_blocks = Reshape(v_gathered, k_shape)
        v_heads = Transpose<perm = [0, 2, 1, 3]>(v_blocks)
        out_heads = {DOMAIN}.Dense<scale: float = @scale>(q_heads, k_heads, v_heads, mask)
        out_blocks = Transpose<perm = [0, 2, 1, 3]>(out_heads)
        out_rows = Reshape(out_blocks, q_rows_shape)
        together = Transpose<perm = [0, 2, 1, 3]>(out_rows)""",
        f"""
                key_count = Shape<start = 3>(mask)
                number_axis = Unsqueeze(number, axis0)
                key_start = Mul(number_axis, key_count)
                key_stop = Add(key_start, key_count)
                block_keys = Slice(keys, key_start, key_stop, axis0)
                k_block = Gather<axis = 2>(k, block_keys)
                v_block = Gather<axis = 2>(v, block_keys)
                block_mask = Gather<axis = 0>(mask, number_axis)
                part = {DOMAIN}.Dense<scale: float = @scale>(q_block, k_block, v_block, block_mask)""",
    ),
)


def define_attention(model: onnx_ir.Model) -> None:
    """Replace the operators of `DOMAIN` in a model with the nodes of their functions."""
    nodes = [node for node in model.graph if node.domain == DOMAIN]
    if not nodes:
        return
    for node in nodes:
        for value in node.outputs:
            value.shape = None  # torch declares T x T, but the functions determine the shape
    for text in FUNCTIONS:
        function = onnx_ir.serde.deserialize_function(onnx.parser.parse_function(f"{HEADER}\n{text}"))
        model.functions[function.identifier()] = function
    model.opset_imports.setdefault(DOMAIN, 1)
    InlinePass()(model)
    fused = onnx_ir.Value(
        name=FUSED,
        type=onnx_ir.TensorType(onnx_ir.DataType.BOOL),
        shape=onnx_ir.Shape([]),
        const_value=onnx_ir.tensor(False, name=FUSED),
    )
    model.graph.register_initializer(fused)
    for node in list(model.graph.all_nodes()):
        if node.domain == DOMAIN:  # Fused
            node.outputs[0].replace_all_uses_with(fused)
    model.functions.clear()
    model.opset_imports.pop(DOMAIN, None)
    RemoveUnusedNodesPass()(model)


OPSET = 20


@dataclass(frozen=True)
class GraphSignature:
    """The inputs and outputs of a graph.

    `example_inputs` contains an example of each input, and `dynamic_axes` the names of dynamic axes by input and axis
    number. The last `variadic` inputs are variadic arguments of the module. `multiples` contains, for dynamic axes that
    must be a multiple of a number, that number.
    """

    example_inputs: dict[str, Tensor]
    dynamic_axes: dict[str, dict[int, str]]
    outputs: tuple[str, ...]
    variadic: int = 0
    multiples: Mapping[str, int] = field(default_factory=dict)

    @property
    def inputs(self) -> tuple[str, ...]:
        return tuple(self.example_inputs)


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
    shapes: list[Any] = [{axis: sizes[name] for axis, name in axes.get(key, {}).items()} for key in signature.inputs]
    if signature.variadic:
        shapes = [*shapes[: -signature.variadic], tuple(shapes[-signature.variadic :])]
    exporter_log = logging.getLogger("torch.onnx")
    level = exporter_log.level
    exporter_log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                module,
                tuple(signature.example_inputs.values()),
                input_names=signature.inputs,
                output_names=signature.outputs,
                dynamic_shapes=tuple(shapes),
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
