"""Model families and random sequences for the tests of encoders."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import torch
from torch import Tensor

from model.checkpoint import Checkpoint
from model.encoder import Encoder
from model.export.cuda import Reach, SequenceBounds, VarlenInputs
from model.export.parity import Inputs, make_sequence

BERT_SHAPED = ("bert", "roberta", "xlm-roberta", "camembert", "distilbert", "electra")
FAMILIES = (
    *BERT_SHAPED, "causal-bert", "mpnet", "t5", "mt5", "jina_bert", "jina_bert_code", "deberta-v2",
    "nomic_bert", "nomic_bert, dynamic", "gte", "new", "jina_embeddings_v3", "modernbert", "modernbert, biases",
    "eurobert", "llama", "mistral", "qwen2", "qwen3", "qwen3, windows", "gemma3_text", "gemma3_text, causal",
)  # fmt: skip
"""Every architecture, and variants of attention and positions."""
WINDOWS = {
    "modernbert": ({"local_attention": 32}, 16),
    "gemma3_text": ({"sliding_window": 40}, 16),
    "qwen3, windows": ({"sliding_window": 25}, 24),
}
"""Options for windows of more than 8 tokens, and the longest texts that they cover, in tokens, a multiple of 8."""
FLOATS, INTS, FLAGS = {"FLOAT", "FLOAT16"}, {"INT32", "INT64"}, {"BOOL"}
KERNELS = (
    (("Clip", "Cos", "Div", "Erf", "Gelu", "LayerNormalization", "Log", "MatMul", "Pow", "Reciprocal"), FLOATS),
    (("GatherElements", "Pad", "ReduceMean", "Relu", "Sigmoid", "Sin", "Sqrt", "Tanh"), FLOATS),
    (("MultiHeadAttention", "PackedMultiHeadAttention", "RotaryEmbedding"), FLOATS),
    (("Abs", "Add", "CumSum", "Max", "Min", "Mul", "ReduceSum", "Sub"), FLOATS | INTS),
    (("Greater", "GreaterOrEqual", "Less", "LessOrEqual"), FLOATS | INTS),
    (("Cast", "Concat", "Equal", "Gather", "Reshape", "Slice"), FLOATS | INTS | FLAGS | {"BFLOAT16"}),
    (("Squeeze", "Transpose", "Unsqueeze"), FLOATS | INTS | FLAGS),
    (("And", "Not", "Where"), FLAGS),
)
CUDA_KERNELS = {name: types for names, types in KERNELS for name in names}
"""Operators and types of the first input for which onnxruntime 1.31 has CUDA kernels (its docs/OperatorKernels.md).

CUDA cannot capture a graph with others, and `Shape`, whose result onnxruntime computes on the CPU, is one of them.
"""


def publish_windows(family: str, directory: Path) -> None:
    """Write a model of a family of `WINDOWS`."""
    from tests.model.family_cases import FAMILY_CASES
    from tests.model.tiny_tokenizers import BUILDERS

    case = FAMILY_CASES[family]
    case = replace(case, options={**case.options, **WINDOWS[family][0]})
    case.publish(directory, BUILDERS[case.tokenizer]().to_str().encode())


def check_kernels(graph: Path) -> None:
    """Fail if CUDA has no kernel for a node of a graph."""
    model = onnx.shape_inference.infer_shapes(onnx.load(graph, load_external_data=False))
    values = [*model.graph.value_info, *model.graph.input, *model.graph.output]
    types = {value.name: value.type.tensor_type.elem_type for value in values}
    types |= {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    for node in model.graph.node:
        name = onnx.TensorProto.DataType.Name(types[node.input[0]])
        assert name in CUDA_KERNELS.get(node.op_type, ()), f"{node.op_type} of {name}"


def run_alone(encoder: Encoder, sequences: list[Inputs]) -> list[torch.Tensor]:
    """Return the last hidden states (T, D) of each sequence."""
    with torch.inference_mode():
        return [encoder(**{name: torch.from_numpy(values) for name, values in item.items()})[0] for item in sequences]


def hide_last(encoder: Encoder, sequences: list[Inputs], counts: list[int]) -> None:
    """Hide the last tokens of each sequence, but leave at least one visible token in each window."""
    most = min(
        (layer.window for layer in encoder.config.layers if layer.window is not None), default=max(counts, default=0)
    )
    for sequence, count in zip(sequences, counts, strict=False):
        length = sequence["sequence_ids"].shape[1]
        sequence["sequence_ids"][:, length - min(count, most, length - 1) :] *= -1


def random_sequences(encoder: Encoder, lengths: tuple[int, ...]) -> list[Inputs]:
    rng = np.random.default_rng(lengths)
    config = encoder.config
    return [
        make_sequence(
            rng.integers(5, config.vocab_size, length).tolist(),
            rng.integers(0, max(1, config.type_vocab_size), length).tolist(),
        )
        for length in lengths
    ]


def varlen_inputs(*lengths: int) -> VarlenInputs:
    """Return the inputs of attention for sequences of these lengths, without windows and positions."""
    bounds = torch.from_numpy(np.cumsum([0, *lengths], dtype=np.int32))
    offset = torch.zeros(len(lengths), max(lengths), dtype=torch.int32)
    indices = torch.arange(sum(lengths), dtype=torch.int32)
    return VarlenInputs(SequenceBounds(offset, bounds), indices, Reach(), None, None)


FIRST_ORDINARY_ID = 5


def random_ids(checkpoint: Checkpoint, length: int) -> Tensor:
    """Return the ids (1, T) of a sequence without special tokens."""
    generator = torch.Generator().manual_seed(length)
    return torch.randint(FIRST_ORDINARY_ID, checkpoint.encoder.config.vocab_size, (1, length), generator=generator)


def run(checkpoint: Checkpoint, input_ids: Tensor) -> Tensor:
    """Return the hidden states (T, D) of one sequence."""
    positions, zeros = torch.arange(input_ids.shape[1])[None], torch.zeros_like(input_ids)
    with torch.inference_mode():
        hidden: Tensor = checkpoint.encoder(input_ids, positions, zeros, zeros + 1)[0]
    return hidden
