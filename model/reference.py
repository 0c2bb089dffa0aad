"""The packed operator in standard ONNX, so that onnxruntime's CPU provider can run a graph made for CUDA.

Only the one operator is replaced, by a function with the same inputs; the rest of the graph and its weights are what
the GPU runs. The CPU provider computes float16 nodes in float32 and need not round between them, so it proves the
graph's mathematics and not what rounding does to it; model/accuracy.py does that.
"""

from pathlib import Path

import onnx
import onnxruntime
from onnx import parser

OPERATOR = "PackedMultiHeadAttention"
DOMAIN = "attendant.reference"

FUNCTION = f"""
<domain: "{DOMAIN}", opset_import: ["": 20]>
{OPERATOR} <num_heads> (query, key, value, bias, token_offset, bounds) => (mixed)
{{
    heads = Constant <value_int: int = @num_heads> ()
    axis = Constant <value_ints = [0]> ()
    rest = Constant <value_ints = [-1]> ()
    tokens = Shape <end = 1> (query)
    count = Squeeze (tokens, axis)
    zero = Constant <value_int = 0> ()
    one = Constant <value_int = 1> ()
    at = Range (zero, count, one)
    column = Unsqueeze (at, rest)
    bounds_long = Cast <to = 7> (bounds)
    end = Gather (bounds_long, rest)
    covered = Less (column, end)

    one_head = Unsqueeze (heads, axis)
    split = Concat <axis = 0> (axis, one_head, rest)
    q = Cast <to = 1> (query)
    k = Cast <to = 1> (key)
    v = Cast <to = 1> (value)
    nothing = Constant <value_float = 0.0> ()
    v_covered = Where (covered, v, nothing)
    q_split = Reshape (q, split)
    k_split = Reshape (k, split)
    v_split = Reshape (v_covered, split)
    q_heads = Transpose <perm = [1, 0, 2]> (q_split)
    k_heads = Transpose <perm = [1, 2, 0]> (k_split)
    v_heads = Transpose <perm = [1, 0, 2]> (v_split)
    products = MatMul (q_heads, k_heads)
    head_width = Shape <start = 2> (q_split)
    head_width_float = Cast <to = 1> (head_width)
    scale = Sqrt (head_width_float)
    scores = Div (products, scale)

    begun = LessOrEqual (bounds_long, column)
    begun_long = Cast <to = 7> (begun)
    segment = ReduceSum <keepdims = 1> (begun_long, rest)
    segment_row = Transpose (segment)
    same = Equal (segment, segment_row)
    lowest = Constant <value_float = -3.4e38> ()
    masked = Where (same, scores, lowest)
    probs = Softmax <axis = -1> (masked)
    mixed_heads = MatMul (probs, v_heads)
    mixed_split = Transpose <perm = [1, 0, 2]> (mixed_heads)
    shape = Shape (query)
    mixed_float = Reshape (mixed_split, shape)

    nan = Div (nothing, nothing)
    written = Where (covered, mixed_float, nan)
    mixed = CastLike (written, query)
}}
"""


def reference_of(graph: bytes) -> bytes:
    """The graph, an ONNX file's bytes, with the packed operator as a function of standard ones."""
    model = onnx.load_model_from_string(graph)
    for node in model.graph.node:
        if node.op_type == OPERATOR:
            node.domain = DOMAIN
    model.functions.append(parser.parse_function(FUNCTION))
    model.opset_import.append(onnx.helper.make_opsetid(DOMAIN, 1))
    body: bytes = model.SerializeToString()
    return body


def open_reference(graph: Path, weights: str) -> onnxruntime.InferenceSession:
    """A session on the CPU provider over the graph's reference, with the weights that lie beside it."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    body = (graph.parent / weights).read_bytes()
    options.add_external_initializers_from_files_in_memory([weights], [body], [len(body)])
    return onnxruntime.InferenceSession(reference_of(graph.read_bytes()), options, providers=["CPUExecutionProvider"])
