"""A reference of PackedMultiHeadAttention in standard ONNX, to run the graph for CUDA on the CPU.

Only this operator is replaced, by a function with the same inputs. The rest of the graph and its weights are those
that the GPU runs. The CPU execution provider computes float16 nodes in float32 and may skip rounding between them, so
it tests the mathematics of the graph. model/mixed_precision.py measures the effect of rounding.
"""

from pathlib import Path

import onnx
import onnxruntime
from onnx import parser

OPERATOR = "PackedMultiHeadAttention"
DOMAIN = "attendant.reference"

FUNCTION = f"""
<domain: "{DOMAIN}", opset_import: ["": 20]>
{OPERATOR} <num_heads> (query, key, value, bias, token_offset, cu_seqlens) => (context)
{{
    heads = Constant <value_int: int = @num_heads> ()
    axis_0 = Constant <value_ints = [0]> ()
    minus_one = Constant <value_ints = [-1]> ()
    tokens = Shape <end = 1> (query)
    count = Squeeze (tokens, axis_0)
    zero = Constant <value_int = 0> ()
    one = Constant <value_int = 1> ()
    indices = Range (zero, count, one)
    index = Unsqueeze (indices, minus_one)
    cu_seqlens_long = Cast <to = 7> (cu_seqlens)
    end = Gather (cu_seqlens_long, minus_one)
    covered = Less (index, end)

    heads_1d = Unsqueeze (heads, axis_0)
    split = Concat <axis = 0> (axis_0, heads_1d, minus_one)
    q = Cast <to = 1> (query)
    k = Cast <to = 1> (key)
    v = Cast <to = 1> (value)
    float_zero = Constant <value_float = 0.0> ()
    v_covered = Where (covered, v, float_zero)
    q_split = Reshape (q, split)
    k_split = Reshape (k, split)
    v_split = Reshape (v_covered, split)
    q_heads = Transpose <perm = [1, 0, 2]> (q_split)
    k_heads = Transpose <perm = [1, 2, 0]> (k_split)
    v_heads = Transpose <perm = [1, 0, 2]> (v_split)
    products = MatMul (q_heads, k_heads)
    head_size = Shape <start = 2> (q_split)
    head_size_float = Cast <to = 1> (head_size)
    scale = Sqrt (head_size_float)
    scores = Div (products, scale)

    started = LessOrEqual (cu_seqlens_long, index)
    started_long = Cast <to = 7> (started)
    sequence_id = ReduceSum <keepdims = 1> (started_long, minus_one)
    sequence_id_row = Transpose (sequence_id)
    same = Equal (sequence_id, sequence_id_row)
    lowest = Constant <value_float = -3.4e38> ()
    masked = Where (same, scores, lowest)
    probs = Softmax <axis = -1> (masked)
    context_heads = MatMul (probs, v_heads)
    context_split = Transpose <perm = [1, 0, 2]> (context_heads)
    shape = Shape (query)
    context_float = Reshape (context_split, shape)

    nan = Div (float_zero, float_zero)
    written = Where (covered, context_float, nan)
    context = CastLike (written, query)
}}
"""


def to_reference_graph(graph: bytes) -> bytes:
    """Return the serialized ONNX graph with the packed operator defined as a function of standard operators."""
    model = onnx.load_model_from_string(graph)
    for node in model.graph.node:
        if node.op_type == OPERATOR:
            node.domain = DOMAIN
    model.functions.append(parser.parse_function(FUNCTION))
    model.opset_import.append(onnx.helper.make_opsetid(DOMAIN, 1))
    body: bytes = model.SerializeToString()
    return body


def open_reference_session(graph: Path, weights: str) -> onnxruntime.InferenceSession:
    """Return a session for the reference of a graph on the CPU execution provider; `weights` is next to the graph."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    body = (graph.parent / weights).read_bytes()
    options.add_external_initializers_from_files_in_memory([weights], [body], [len(body)])
    return onnxruntime.InferenceSession(
        to_reference_graph(graph.read_bytes()), options, providers=["CPUExecutionProvider"]
    )
