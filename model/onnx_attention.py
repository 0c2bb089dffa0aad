"""The ONNX functions of `long_attention`, which replace its operators in an exported graph.

Runtimes differ, so the graph has a constant, the initializer `FUSED`, that selects one of two forms:

- False, as written: from `MAX_DENSE_TOKENS` tokens on, a Loop computes one block of queries at a time. ONNX Runtime
  computes the scores of all queries it is given as one tensor, 3 GiB for 12 heads and 8,192 tokens.
- True, set by the OpenVINO backend: all queries at once. OpenVINO fuses the pattern into one kernel that has no scores
  in memory. Inside an If or a Loop it also fuses, but copies all inputs and keeps that memory for every layer. It
  removes an If whose condition is constant.

The masks have a form for each range of T, so that one compiled model serves all shapes:

- `FullMask`: (R, 1, T, T), for long rows (R, 1, 1, T).
- `CausalMask`: (R, 1, T, T); (R, 1, 1, T) where the Loop computes its own.
- `WindowMask`: (R, 1, T, T), for long rows (blocks, 1, B, B + behind + ahead), and the indices of the keys of all
  blocks. Blocks become batch entries, and their keys are gathered: for short rows, all keys as one block.
"""

import onnx
import onnx_ir
from onnx_ir.passes.common import InlinePass, RemoveUnusedNodesPass

DOMAIN = "attendant"
FUSED = "fused_attention"
MAX_DENSE_TOKENS = 1024
"""Rows up to this length use masks of size T x T."""
BLOCK_TOKENS = 128

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
        "FullAttend",
        "q, k, v, mask",
        ATTEND_ALL,
        f"part = {DOMAIN}.Dense<scale: float = @scale>(q_block, k, v, mask)",
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
    """Replace the operators of `DOMAIN` in a model by the nodes of their functions."""
    nodes = [node for node in model.graph if node.domain == DOMAIN]
    if not nodes:
        return
    for node in nodes:
        for value in node.outputs:
            value.shape = None  # torch declares T x T, the functions decide
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
