"""Parity: comparison of exported graphs with PyTorch."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from numpy.typing import NDArray
from onnx import parser
from torch import Tensor, nn

from model.artifact.manifest import COMBINED, CombinedPooling, ParityRecord, split_pooling
from model.encoder import Encoder, EncoderConfig, HiddenStatesEncoder
from model.export.graphs import open_session
from model.source.model_size import MAX_TESTED_TOKENS

DOMAIN = "attendant.reference"
PACKED, BLOCKS = "PackedMultiHeadAttention", "MultiHeadAttention"
"""Operators in CUDA graphs that the CPU execution provider does not support, or supports only in float32."""

HEADS = """
    heads = Constant <value_int: int = @num_heads> ()
    axis_0 = Constant <value_ints = [0]> ()
    minus_one = Constant <value_ints = [-1]> ()
    heads_1d = Unsqueeze (heads, axis_0)
    scale = Constant <value_float: float = @scale> ()
"""
SEPARATE = """
    q = Cast <to = 1> (query)
    k = Cast <to = 1> (key)
    v = Cast <to = 1> (value)
"""
ADD_BIAS = """
    three = Constant <value_ints = [3]> ()
    bias_shape = Concat <axis = 0> (three, heads_1d, minus_one)
    bias_parts = Reshape (bias, bias_shape)
    bias_of_heads = Transpose <perm = [1, 0, 2]> (bias_parts)
    joined = Add (query, bias_of_heads)
"""
JOINED = """
    joined_float = Cast <to = 1> (joined)
    q_part, k_part, v_part = Split <axis = 2, num_outputs = 3> (joined_float)
    q = Flatten (q_part)
    k = Flatten (k_part)
    v = Flatten (v_part)
"""
PACKED_BODY = """
    tokens = Shape <end = 1> (query)
    count = Squeeze (tokens, axis_0)
    zero = Constant <value_int = 0> ()
    one = Constant <value_int = 1> ()
    indices = Range (zero, count, one)
    index = Unsqueeze (indices, minus_one)
    cu_seqlens_long = Cast <to = 7> (cu_seqlens)
    end = Gather (cu_seqlens_long, minus_one)
    covered = Less (index, end)

    split = Concat <axis = 0> (axis_0, heads_1d, minus_one)
    float_zero = Constant <value_float = 0.0> ()
    v_covered = Where (covered, v, float_zero)
    q_split = Reshape (q, split)
    k_split = Reshape (k, split)
    v_split = Reshape (v_covered, split)
    q_heads = Transpose <perm = [1, 0, 2]> (q_split)
    k_heads = Transpose <perm = [1, 2, 0]> (k_split)
    v_heads = Transpose <perm = [1, 0, 2]> (v_split)
    products = MatMul (q_heads, k_heads)
    scaled = Mul (products, scale)

    started = LessOrEqual (cu_seqlens_long, index)
    started_long = Cast <to = 7> (started)
    sequence_id = ReduceSum <keepdims = 1> (started_long, minus_one)
    sequence_id_row = Transpose (sequence_id)
    same = Equal (sequence_id, sequence_id_row)
    lowest = Constant <value_float = -3.4e38> ()
"""
NO_SCORE_BIAS = "scores = Identity (scaled)"
SCORE_BIAS = """
    previous = Sub (sequence_id, one)
    starts = Gather (cu_seqlens_long, previous)
    offsets = Sub (index, starts)
    places = Squeeze (offsets, minus_one)
    size = Shape <start = 3> (attention_bias)
    last = Sub (size, one)
    inside = Min (places, last)
    inside_column = Unsqueeze (inside, minus_one)
    batch = Shape <end = 1> (attention_bias)
    last_sequence = Sub (batch, one)
    bias_number = Min (previous, last_sequence)
    bias_index = Concat <axis = 1> (bias_number, inside_column)
    bias_by_query = Transpose <perm = [0, 2, 1, 3]> (attention_bias)
    bias_rows = GatherND (bias_by_query, bias_index)
    bias_pairs = Gather <axis = 2> (bias_rows, inside)
    bias_heads = Transpose <perm = [1, 0, 2]> (bias_pairs)
    bias_float = Cast <to = 1> (bias_heads)
    scores = Add (scaled, bias_float)
"""
PACKED_END = """
    masked = Where (same, scores, lowest)
    probs = Softmax <axis = -1> (masked)
    context_heads = MatMul (probs, v_heads)
    context_split = Transpose <perm = [1, 0, 2]> (context_heads)
    shape = Shape (q)
    context_float = Reshape (context_split, shape)

    nan = Div (float_zero, float_zero)
    written = Where (covered, context_float, nan)
    context = CastLike (written, query)
"""
BLOCKS_BODY = """
    copied = Constant <value_ints = [0, 0]> ()
    split = Concat <axis = 0> (copied, heads_1d, minus_one)
    q_split = Reshape (q, split)
    k_split = Reshape (k, split)
    v_split = Reshape (v, split)
    q_heads = Transpose <perm = [0, 2, 1, 3]> (q_split)
    k_heads = Transpose <perm = [0, 2, 3, 1]> (k_split)
    v_heads = Transpose <perm = [0, 2, 1, 3]> (v_split)
    products = MatMul (q_heads, k_heads)
    scaled = Mul (products, scale)
    bias_float = Cast <to = 1> (attention_bias)
    scores = Add (scaled, bias_float)
    probs = Softmax <axis = -1> (scores)
    context_heads = MatMul (probs, v_heads)
    context_split = Transpose <perm = [0, 2, 1, 3]> (context_heads)
    shape = Shape (query)
    context_float = Reshape (context_split, shape)
    context = CastLike (context_float, query)
"""


def define_operator(node: onnx.NodeProto) -> str:
    """Convert a GPU-only operator to a function call; return the function's definition."""
    given = dict(enumerate(node.input))
    if node.op_type == BLOCKS:
        inputs, body = "query, key, value, bias, key_padding_mask, attention_bias", SEPARATE + BLOCKS_BODY
    else:
        inputs = "query, key, value, bias, token_offset, cu_seqlens"
        assert not (given[1] and given[3]), "biases are of joined projections"
        joined = (ADD_BIAS if given[3] else "joined = Identity (query)") + JOINED
        body = (SEPARATE if given[1] else joined) + PACKED_BODY
        body += (SCORE_BIAS if given.get(6) else NO_SCORE_BIAS) + PACKED_END
        inputs += ", attention_bias" if given.get(6) else ""
    node.domain = DOMAIN
    node.op_type += "".join(str(number) for number, name in given.items() if name)
    return (
        f'<domain: "{DOMAIN}", opset_import: ["": 20]> {node.op_type} <num_heads, scale> ({inputs}) => (context)'
        f"{{{HEADS}{body}}}"
    )


def to_reference_graph(graph: bytes) -> bytes:
    """Return the serialized ONNX graph with these operators defined as functions of standard operators."""
    model = onnx.load_model_from_string(graph)
    replaced = [node for node in model.graph.node if node.op_type in (PACKED, BLOCKS)]
    for definition in sorted({define_operator(node) for node in replaced}):
        model.functions.append(parser.parse_function(definition))
    model.opset_import.append(onnx.helper.make_opsetid(DOMAIN, 1))
    body: bytes = model.SerializeToString()
    return body


def open_reference_session(graph: Path, weights: str, fused: Path | None = None) -> onnxruntime.InferenceSession:
    """Open a graph's reference on the CPU execution provider; `weights` is next to the graph.

    The graph after onnxruntime's fusions is written to `fused`.
    """
    options = onnxruntime.SessionOptions()
    body = (graph.parent / weights).read_bytes()
    options.add_external_initializers_from_files_in_memory([weights], [body], [len(body)])
    if fused is not None:
        options.optimized_model_filepath = str(fused)
    return open_session(to_reference_graph(graph.read_bytes()), options)


GRID = ((1,), (2,), (7,), (16,), (33,), (64,), (128,), (5, 1, 9), (3, 30, 17, 14), (60, 4, 60), (96, 31))
"""Sequence lengths of each tested batch. A sequence of the maximum length is added."""

TOLERANCE = 1e-4
"""Maximum difference, relative to the largest absolute value of the reference (at least 1)."""

Inputs = dict[str, NDArray[np.int64]]
"""Model inputs by name, each (R, T)."""


def measure_parity(
    module: Encoder | HiddenStatesEncoder,
    graph: Path,
    max_input_tokens: int,
    tolerance: float = TOLERANCE,
    *,
    copies_weights: bool = False,
) -> ParityRecord:
    """Return the parity of `module` and its exported graph on onnxruntime's CPU execution provider.

    Set `copies_weights` for an int8 graph: otherwise, onnxruntime does not use its int8 kernels, which quantize
    activations.
    """
    session = open_session(graph, copies_weights=copies_weights)
    return compare_outputs(
        module, lambda sequences: session.run(None, pack_sequences(sequences))[0], max_input_tokens, tolerance
    )


def compare_outputs(
    module: Encoder | HiddenStatesEncoder,
    run: Callable[[list[Inputs]], NDArray[Any]],
    max_input_tokens: int,
    tolerance: float,
) -> ParityRecord:
    """Return the largest difference between `module` and `run` over the grid.

    Args:
        module: reference, run on one sequence at a time.
        run: returns (..., T, D) for the T tokens of a batch of sequences.
        max_input_tokens: longest sequence to test, at most `MAX_TESTED_TOKENS`.
        tolerance: as in `compare`.
    """
    rng = np.random.default_rng(0)
    longest = min(max_input_tokens, MAX_TESTED_TOKENS)

    def run_both() -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
        for lengths in (*GRID, (longest,)):
            if max(lengths) <= longest:
                sequences = [_random_sequence(module.config, length, rng) for length in lengths]
                alone = [_run_torch(module, sequence) for sequence in sequences]
                yield alone[0] if len(alone) == 1 else np.concatenate(alone, axis=-2), run(sequences)

    return compare(run_both(), tolerance)


def compare(results: Iterable[tuple[NDArray[Any], NDArray[Any]]], tolerance: float) -> ParityRecord:
    """Return the largest absolute difference over all batches of (reference, output) pairs of equal sizes.

    `tolerance` is relative to the largest absolute value of the reference, at least 1; the record contains it as an
    absolute value. The difference is NaN if a value is NaN or the reference is infinite. Layers are compared one by
    one, because comparing all of them together would take three times the memory.
    """
    batches, difference, largest = 0, 0.0, 1.0
    for batches, (reference, output) in enumerate(results, start=1):  # noqa: B007
        for expected, computed in zip(reference, output.reshape(reference.shape), strict=True):
            finite = np.isfinite(expected).all()
            error = np.abs(computed - expected).max() if finite else np.nan
            difference = float(np.maximum(difference, error))  # max() would lose a NaN
            largest = max(largest, float(np.abs(expected).max())) if finite else largest
    return ParityRecord(batches=batches, max_abs_difference=difference, tolerance=tolerance * largest)


def make_sequence(input_ids: Sequence[int], token_type_ids: Sequence[int]) -> Inputs:
    """Return the inputs (1, T) of one sequence."""
    length = len(input_ids)
    return {
        "input_ids": np.array([input_ids], dtype=np.int64),
        "position_ids": np.arange(length)[None],
        "token_type_ids": np.array([token_type_ids], dtype=np.int64),
        "sequence_ids": np.ones((1, length), dtype=np.int64),
    }


def pool(hidden: Tensor, pooling: CombinedPooling) -> Tensor:
    """Return the pooled vector of one sequence (T, D): (D), or (P * D) of P combined poolings."""
    if COMBINED in pooling:
        return torch.cat([pool(hidden, part) for part in split_pooling(pooling)])
    if pooling == "cls":
        return hidden[0]
    if pooling == "last":
        return hidden[-1]
    if pooling == "max":
        return hidden.amax(dim=0)
    if pooling == "weighted_mean":
        weights = torch.arange(1, len(hidden) + 1, dtype=hidden.dtype)
        return weights @ hidden / weights.sum()
    mean = hidden.mean(dim=0)
    return mean * len(hidden) ** 0.5 if pooling == "mean_sqrt_len" else mean


def pack_sequences(sequences: Sequence[Inputs]) -> Inputs:
    """Return the inputs (1, T) of sequences packed end to end, with `sequence_ids` from 1."""
    batch = {name: np.concatenate([sequence[name] for sequence in sequences], axis=1) for name in sequences[0]}
    lengths = [sequence["input_ids"].shape[1] for sequence in sequences]
    batch["sequence_ids"] = np.repeat(np.arange(1, len(sequences) + 1), lengths)[None]
    return batch


def pack_varlen(sequences: Sequence[Inputs], multiple: int = 1) -> dict[str, NDArray[np.int32]]:
    """Return the inputs of a varlen graph: int32 tensors (T,), `cu_seqlens` (B+1,) and `token_offset` (B, S).

    A final padding sequence makes T a multiple of `multiple`.
    """
    lengths = [sequence["input_ids"].shape[1] for sequence in sequences]
    padding = -sum(lengths) % multiple
    names = ("input_ids", "position_ids", "token_type_ids", "sequence_ids")
    batch: dict[str, NDArray[np.int32]] = {
        name: np.concatenate([*(sequence[name][0] for sequence in sequences), np.zeros(padding)]).astype(np.int32)
        for name in names
    }
    types = batch["token_type_ids"]
    batch["token_type_ids"] = np.where(batch.pop("sequence_ids") < 0, -1 - types, types)
    if padding:
        lengths.append(padding)
    batch["cu_seqlens"] = np.cumsum([0, *lengths], dtype=np.int32)
    batch["token_offset"] = np.zeros((len(lengths), max(lengths)), dtype=np.int32)
    return batch


def run_varlen_graph(
    session: onnxruntime.InferenceSession, sequences: Sequence[Inputs], multiple: int = 1
) -> list[NDArray[Any]]:
    """Return the hidden states (T, D) of the sequences, and their embeddings (B, D) if the graph pools."""
    hidden, *pooled = session.run(None, pack_varlen(sequences, multiple))
    tokens = sum(sequence["input_ids"].shape[1] for sequence in sequences)
    return [hidden[:tokens], *(vectors[: len(sequences)] for vectors in pooled)]


def _random_sequence(config: EncoderConfig, length: int, rng: np.random.Generator) -> Inputs:
    input_ids = rng.integers(0, config.vocab_size, length).tolist()
    return make_sequence(input_ids, rng.integers(0, max(1, config.type_vocab_size), length).tolist())


def _run_torch(module: nn.Module, sequence: Inputs) -> NDArray[np.float32]:
    with torch.inference_mode():
        output: torch.Tensor = module(**{name: torch.from_numpy(values) for name, values in sequence.items()})
    return output.numpy()
