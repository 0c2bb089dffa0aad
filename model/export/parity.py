"""Parity: comparison of exported graphs with PyTorch."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir
import onnxruntime
import onnxscript
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from model.artifact.manifest import COMBINED, CombinedPooling, ParityRecord, split_pooling
from model.encoder import Encoder, HiddenStatesEncoder
from model.export.graphs import OPSET, open_session
from model.source.model_size import MAX_TESTED_TOKENS

DOMAIN = "attendant.reference"
FLOAT, INT64 = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64
PACKED, BLOCKS = "PackedMultiHeadAttention", "MultiHeadAttention"
"""Operators in CUDA graphs that the CPU execution provider does not support, or supports only in float32."""


def define_operator(op: Any, *inputs: Any, node: onnx.NodeProto) -> Any:
    """Return the output of a GPU-only operator for its inputs, computed in float32 with the standard operators `op`."""
    options = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
    heads, scale = options["num_heads"], options["scale"]
    query, key, value, bias, *others = inputs
    if node.op_type == BLOCKS:
        q, k, v = (op.Reshape(op.Cast(part, to=FLOAT), [0, 0, heads, -1]) for part in (query, key, value))
        products = op.MatMul(op.Transpose(q, perm=[0, 2, 1, 3]), op.Transpose(k, perm=[0, 2, 3, 1]))
        scores = op.Add(op.Mul(products, scale), op.Cast(others[1], to=FLOAT))
        context = op.MatMul(op.Softmax(scores, axis=-1), op.Transpose(v, perm=[0, 2, 1, 3]))
        return op.CastLike(op.Reshape(op.Transpose(context, perm=[0, 2, 1, 3]), op.Shape(query)), query)
    _, cu_seqlens, attention_bias = (*others, None)[:3]
    assert key is None or bias is None, "biases are of joined projections"
    if key is not None:
        q, k, v = (op.Cast(part, to=FLOAT) for part in (query, key, value))
    else:
        bias_of_heads = None if bias is None else op.Transpose(op.Reshape(bias, [3, heads, -1]), perm=[1, 0, 2])
        joined = op.Cast(query if bias is None else op.Add(query, bias_of_heads), to=FLOAT)
        q, k, v = (op.Flatten(part) for part in op.Split(joined, axis=2, num_outputs=3, _outputs=3))
    index = op.Unsqueeze(op.Range(0, op.Squeeze(op.Shape(query, end=1), [0]), 1), [-1])  # (T, 1)
    bounds = op.Cast(cu_seqlens, to=INT64)
    covered = op.Less(index, op.Gather(bounds, [-1]))
    q, k, v = (op.Reshape(part, [0, heads, -1]) for part in (q, k, op.Where(covered, v, 0.0)))
    products = op.MatMul(op.Transpose(q, perm=[1, 0, 2]), op.Transpose(k, perm=[1, 2, 0]))
    scores = op.Mul(products, scale)  # (H, T, T)
    number = op.ReduceSum(op.Cast(op.LessOrEqual(bounds, index), to=INT64), [-1], keepdims=1)  # of a sequence, from 1
    if attention_bias is not None:
        previous = op.Sub(number, 1)
        places = op.Squeeze(op.Sub(index, op.Gather(bounds, previous)), [-1])
        inside = op.Min(places, op.Sub(op.Shape(attention_bias, start=3), 1))
        sequence = op.Min(previous, op.Sub(op.Shape(attention_bias, end=1), 1))
        by_query = op.Transpose(attention_bias, perm=[0, 2, 1, 3])
        rows = op.GatherND(by_query, op.Concat(sequence, op.Unsqueeze(inside, [-1]), axis=1))
        pairs = op.Gather(rows, inside, axis=2)
        scores = op.Add(scores, op.Cast(op.Transpose(pairs, perm=[1, 0, 2]), to=FLOAT))
    masked = op.Where(op.Equal(number, op.Transpose(number)), scores, -3.4e38)
    context = op.MatMul(op.Softmax(masked, axis=-1), op.Transpose(v, perm=[1, 0, 2]))
    return op.CastLike(op.Where(covered, op.Flatten(op.Transpose(context, perm=[1, 0, 2])), np.nan), query)


def to_reference_graph(graph: bytes) -> bytes:
    """Return the serialized ONNX graph with these operators defined as functions of standard operators."""
    model = onnx.load_model_from_string(graph)
    names: dict[tuple[Any, ...], str] = {}
    for node in model.graph.node:
        if node.op_type in (PACKED, BLOCKS):
            key = (node.op_type, *map(bool, node.input), *(item.SerializeToString() for item in node.attribute))
            name = names.get(key)
            if name is None:
                name = names[key] = f"{node.op_type}{len(names)}"
                inputs = [
                    onnx_ir.Value(name=f"input{index}") if given else None for index, given in enumerate(node.input)
                ]
                options: dict[str, Any] = {"domain": DOMAIN, "name": name, "opset_imports": {"": OPSET}}
                function = onnxscript.build_function(partial(define_operator, node=node), inputs, **options)
                model.functions.append(onnx_ir.to_proto(function))
            node.domain, node.op_type = DOMAIN, name
            del node.attribute[:]
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

    def random_sequence(length: int) -> Inputs:
        sizes = (module.config.vocab_size, max(1, module.config.type_vocab_size))
        return make_sequence(*(rng.integers(0, size, length).tolist() for size in sizes))

    def run_both() -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
        for lengths in (*GRID, (longest,)):
            if max(lengths) <= longest:
                sequences = [random_sequence(length) for length in lengths]
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


def _run_torch(module: nn.Module, sequence: Inputs) -> NDArray[np.float32]:
    with torch.inference_mode():
        output: torch.Tensor = module(**{name: torch.from_numpy(values) for name, values in sequence.items()})
    return output.numpy()
