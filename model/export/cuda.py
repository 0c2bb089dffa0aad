"""The varlen graph for CUDA: B sequences packed into T tokens, in float16 where accuracy allows."""

import copy
from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from model.artifact.console import EX_SOFTWARE, ReportedError
from model.artifact.manifest import AccuracyRecord, Pooling
from model.artifact.tokenizer import Tokenizer, TokenizerInput
from model.checkpoint import Checkpoint
from model.encoder import Block, Encoder, EncoderConfig, SelfAttention
from model.export.graphs import GraphSet, GraphSignature, write_graph
from model.export.parity import (
    Inputs,
    compare_outputs,
    make_sequence,
    open_reference_session,
    pack_sequences,
    pack_varlen,
    pool,
)
from model.source.published import CheckpointError

PACKED_ATTENTION = "com.microsoft::PackedMultiHeadAttention"
TOKEN_INPUTS = ("input_ids", "position_ids", "token_type_ids")
LAST_HIDDEN_STATE, SENTENCE_EMBEDDING = "last_hidden_state", "sentence_embedding"


class SequenceBounds(NamedTuple):
    """The bounds of the sequences. The operator reads only the shape (B, S) of `token_offset`."""

    token_offset: Tensor
    cu_seqlens: Tensor


def packed_attention(query: Tensor, key: Tensor, value: Tensor, bounds: SequenceBounds, num_heads: int) -> Tensor:
    """Return the scaled dot-product attention (T, D) of each sequence; inputs are (T, D).

    Outputs of tokens past the last sequence are NaN: the CUDA kernel leaves them uninitialized, so nothing may depend
    on them. Sums are float32 for any input dtype, as in the kernel.
    """
    if torch.compiler.is_exporting():
        inputs = (query, key, value, None, bounds.token_offset, bounds.cu_seqlens)
        return torch.onnx.ops.symbolic(
            PACKED_ATTENTION, inputs, {"num_heads": num_heads}, dtype=query.dtype, shape=query.shape, version=1
        )
    tokens, hidden_size = query.shape
    context = torch.full((tokens, hidden_size), torch.nan)
    q, k, v = (part.float().view(tokens, num_heads, -1).transpose(0, 1) for part in (query, key, value))  # (H, T, D/H)
    for start, end in pairwise(bounds.cu_seqlens.tolist()):
        scores = q[:, start:end] @ k[:, start:end].transpose(1, 2) * (hidden_size // num_heads) ** -0.5  # (H, S, S)
        context[start:end] = (scores.softmax(dim=-1) @ v[:, start:end]).transpose(0, 1).flatten(1)
    return context.to(query.dtype)


def unsupported_part(config: EncoderConfig) -> str | None:
    """Return the first part of an encoder that the varlen encoder lacks; None if it has all.

    The operator supports neither causal attention nor windows. Rotary positions would fit in front of it, but have not
    been run on a GPU.
    """
    unsupported = {
        "causal attention": config.causal,
        "rotary positions": any(layer.rotary is not None for layer in config.layers),
        "windows": any(layer.window is not None for layer in config.layers),
        "relative position biases": config.relative_bias,
        "pre-norm blocks": config.block != "post",
        "grouped queries": config.num_key_value_heads != config.num_attention_heads,
        "norms of queries and keys": config.query_key_norm,
    }
    return next((part for part, present in unsupported.items() if present), None)


class PackedAttention(nn.Module):
    """`SelfAttention` with the packed operator, whose fast kernel supports float16 only."""

    def __init__(self, attention: SelfAttention) -> None:
        super().__init__()
        self.num_heads = attention.num_heads
        self.query, self.key, self.value = attention.query, attention.key, attention.value
        self.output = attention.output

    def forward(self, x: Tensor, bounds: SequenceBounds) -> Tensor:
        """Return the output (1, T, D)."""
        query, key, value = (part(x).squeeze(0).half() for part in (self.query, self.key, self.value))
        context = packed_attention(query, key, value, bounds, self.num_heads)
        output: Tensor = self.output(context.unsqueeze(0).to(x.dtype))
        return output


class VarlenEncoder(nn.Module):
    """A copy of an encoder that takes varlen inputs, followed by pooling of each sequence.

    Parts compute in float16, except those in `float32_parts`; `part_names` lists all parts. Max pooling is not part of
    the graph, whose only output is then the last hidden state.
    """

    def __init__(self, encoder: Encoder, pooling: Pooling, float32_parts: Collection[str] = ()) -> None:
        super().__init__()
        assert unsupported_part(encoder.config) is None  # checked by `check_cuda`
        clone = copy.deepcopy(encoder)
        self.pooling = pooling
        self.embeddings, self.blocks = clone.embeddings, clone.blocks
        for block in self.blocks:
            assert isinstance(block.attention, SelfAttention)
            block.attention = PackedAttention(block.attention)
        for name, part in zip(part_names(encoder), (self.embeddings, *self.blocks), strict=True):
            part.to(torch.float32 if name in float32_parts else torch.float16)

    @property
    def outputs(self) -> tuple[str, ...]:
        return (LAST_HIDDEN_STATE,) if self.pooling == "max" else (LAST_HIDDEN_STATE, SENTENCE_EMBEDDING)

    def forward(
        self, input_ids: Tensor, position_ids: Tensor, token_type_ids: Tensor, cu_seqlens: Tensor, token_offset: Tensor
    ) -> tuple[Tensor, ...]:
        """Return the last hidden state (T, D) and the float32 sentence embeddings (B, D).

        Args:
            input_ids: int32 (T,), as are `position_ids` and `token_type_ids`.
            position_ids: restart at 0 in each sequence.
            token_type_ids: segment numbers of pairs.
            cu_seqlens: int32 (B+1,), cumulative sequence lengths.
            token_offset: int32 (B, S), only its shape is used.
        """
        bounds = SequenceBounds(token_offset, cu_seqlens)
        x = self.embeddings(input_ids.unsqueeze(0), position_ids.unsqueeze(0), token_type_ids.unsqueeze(0))  # (1, T, D)
        for block in self.blocks:
            assert isinstance(block, Block)
            x = block(x.to(block.attention_norm.weight.dtype), bounds)
        hidden = x.squeeze(0)
        if self.pooling == "max":
            return (hidden,)
        return hidden, pool_varlen(hidden, token_indices(input_ids), cu_seqlens, self.pooling)


def token_indices(input_ids: Tensor) -> Tensor:
    """Return 0, 1, ..., T-1, (T,), as a cumulative sum of ones.

    A range would need T as a number, which onnxruntime computes on the CPU, and a graph that synchronizes with the CPU
    cannot be captured as a CUDA graph.
    """
    return torch.cumsum(input_ids * 0 + 1, 0, dtype=torch.int32) - 1


def pool_varlen(hidden: Tensor, indices: Tensor, cu_seqlens: Tensor, pooling: Pooling) -> Tensor:
    """Return the mean, first or last vector of each sequence, float32 (B, D); zeros for an empty sequence.

    `indices` is the result of `token_indices`. The mean is one matrix product in the dtype of `hidden`. A factor in
    float32 then corrects the rounding error of the weights 1/length.
    """
    starts, ends = cu_seqlens[:-1], cu_seqlens[1:]
    lengths = ends - starts
    if pooling in ("cls", "last"):
        index = torch.minimum(starts, ends[-1:] - 1) if pooling == "cls" else (ends - 1).clamp(min=0)
        return torch.where(lengths.unsqueeze(1) > 0, hidden.index_select(0, index).float(), torch.zeros(()))
    inside = (indices >= starts.unsqueeze(1)) & (indices < ends.unsqueeze(1))  # (B, T)
    counts = lengths.clamp(min=1).float()
    weight = (1 / counts).to(hidden.dtype)
    mean = (inside.to(hidden.dtype) * weight.unsqueeze(1)) @ hidden
    return mean.float() * (1 / (weight.float() * counts)).unsqueeze(1)


def part_names(encoder: Encoder) -> tuple[str, ...]:
    """Return the names of the parts that can differ in precision: the embeddings, then each block."""
    return "embeddings", *(f"block {number}" for number in range(1, len(encoder.blocks) + 1))


def varlen_signature(module: VarlenEncoder) -> GraphSignature:
    """Return the signature for export, with dynamic T, B and S."""
    # Separate tensors: the exporter would merge inputs that share one tensor into a single input.
    examples = {name: torch.zeros(16, dtype=torch.int32) for name in TOKEN_INPUTS}
    examples["cu_seqlens"] = torch.tensor([0, 5, 16, 16], dtype=torch.int32)
    examples["token_offset"] = torch.zeros(3, 11, dtype=torch.int32)
    dynamic_axes = {name: {0: "T"} for name in TOKEN_INPUTS}
    dynamic_axes |= {"cu_seqlens": {0: "bounds"}, "token_offset": {0: "B", 1: "S"}}
    return GraphSignature(examples, dynamic_axes, module.outputs)


MIN_COSINE = 0.9999
"""Required cosine similarity of every embedding with its float32 embedding."""
MAX_BATCH_TOKENS = 512
RANKING_BATCHES = 8
"""Number of batches used to rank the parts."""

CAST_OPERATORS = (torch.ops.aten.to, torch.ops.aten._to_copy)
Floats = NDArray[np.float64]


class AccuracyError(ReportedError):
    """Insufficient accuracy in float16, even with every supported part in float32."""

    status = EX_SOFTWARE


class EmulatedFloat16(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode that computes operations on float16 tensors in float32 and rounds their results.

    torch's float16 kernels for CPUs round in the same way, but their matrix product is fifty times slower.
    """

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        arguments = (args, kwargs or {})
        tensors = [value for value in tree_leaves(arguments) if isinstance(value, torch.Tensor)]
        if func.overloadpacket in CAST_OPERATORS or all(tensor.dtype != torch.float16 for tensor in tensors):
            return func(*args, **kwargs or {})
        float32_args, float32_kwargs = tree_map_only(torch.Tensor, _to_float32, arguments)
        return tree_map_only(torch.Tensor, _to_float16, func(*float32_args, **float32_kwargs))


def _to_float32(value: torch.Tensor) -> torch.Tensor:
    return value.float() if value.dtype == torch.float16 else value


def _to_float16(value: torch.Tensor) -> torch.Tensor:
    return value.half() if value.dtype == torch.float32 else value


@dataclass(frozen=True)
class AccuracyTest:
    """Batches of sequences and their float32 embeddings, `expected` (N, D)."""

    encoder: Encoder
    pooling: Pooling
    batches: list[list[Inputs]]
    expected: Floats

    @classmethod
    def from_sequences(cls, encoder: Encoder, pooling: Pooling, sequences: Sequence[Inputs]) -> "AccuracyTest":
        batches = _make_batches(sequences)
        embeddings = []
        for batch in batches:
            with torch.inference_mode():
                inputs = {name: torch.from_numpy(values) for name, values in pack_sequences(batch).items()}
                hidden = encoder(**inputs)[0].numpy()
            embeddings.append(pool_sequences(hidden, batch, pooling))
        return cls(encoder, pooling, batches, np.concatenate(embeddings))

    @property
    def texts(self) -> int:
        return len(self.expected)

    def min_cosine(self, embed: Callable[[list[Inputs]], NDArray[Any]]) -> float:
        """Return the smallest cosine similarity between `embed` of a batch and `expected`; -1 if not all are finite."""
        embeddings = np.concatenate([embed(batch) for batch in self.batches]).astype(np.float64)
        if not np.isfinite(embeddings).all():
            return -1.0
        norms = np.linalg.norm(embeddings, axis=1) * np.linalg.norm(self.expected, axis=1)
        return float(((embeddings * self.expected).sum(axis=1) / np.maximum(norms, 1e-300)).min())

    def min_cosine_float16(self, float32_parts: Sequence[str]) -> float:
        """Return the smallest cosine similarity of the varlen encoder in float16, except for `float32_parts`."""
        module = VarlenEncoder(self.encoder, self.pooling, float32_parts).eval()
        return self.min_cosine(lambda batch: run_varlen(module, batch))

    def head(self) -> "AccuracyTest":
        """Return the test over the first `RANKING_BATCHES` batches."""
        batches = self.batches[:RANKING_BATCHES]
        return AccuracyTest(self.encoder, self.pooling, batches, self.expected[: sum(map(len, batches))])


def choose_float32_parts(test: AccuracyTest) -> AccuracyRecord:
    """Return the fewest float32 parts that keep every cosine similarity at or above `MIN_COSINE`.

    Parts are added in decreasing order of the error with only that part in float16.

    Raises:
        AccuracyError: The limit is missed even with every part in float32.
    """
    names, head, ranked = part_names(test.encoder), test.head(), list[str]()

    @cache
    def cosine_of(count: int) -> float:
        return test.min_cosine_float16(ranked[:count])

    count = 0
    if cosine_of(0) < MIN_COSINE:
        ranked += sorted(names, key=lambda name: head.min_cosine_float16([other for other in names if other != name]))
        count = bisect_left(range(len(names)), True, lo=1, key=lambda count: cosine_of(count) >= MIN_COSINE)
    cosine, parts = cosine_of(count), tuple(sorted(ranked[:count], key=names.index))
    if cosine < MIN_COSINE:
        raise AccuracyError(
            f"Accuracy: smallest cosine {cosine:.6f} with all supported parts in float32, limit {MIN_COSINE}. "
            "Export without --variant cuda."
        )
    return AccuracyRecord(texts=test.texts, min_cosine=cosine, float32_parts=parts)


def tokenize_texts(
    texts: Sequence[str], tokenizer: Tokenizer, max_input_tokens: int, type_vocab_size: int
) -> list[Inputs]:
    """Return the sequences of texts, truncated on the right to `max_input_tokens`."""
    sequences = []
    for tokens in tokenizer.encode([TokenizerInput(text) for text in texts]):
        truncated = tokens.truncate(max_input_tokens, "right")
        type_ids = truncated.token_type_ids if type_vocab_size > 1 else [0] * len(truncated)
        sequences.append(make_sequence(truncated.input_ids, type_ids))
    return sequences


def run_varlen(module: VarlenEncoder, sequences: list[Inputs]) -> NDArray[Any]:
    """Return the embeddings (B, D) of one batch with float16 rounding as on a GPU."""
    inputs = {name: torch.from_numpy(values) for name, values in pack_varlen(sequences).items()}
    with torch.inference_mode(), EmulatedFloat16():  # type: ignore[no-untyped-call]
        hidden, *pooled = module(**inputs)
    return pooled[0].numpy() if pooled else pool_sequences(hidden.float().numpy(), sequences, module.pooling)


def pool_sequences(hidden: NDArray[Any], sequences: Sequence[Inputs], pooling: Pooling) -> NDArray[Any]:
    """Return the pooled vector of each sequence, (B, D), from hidden states (T, D)."""
    lengths = [sequence["input_ids"].shape[1] for sequence in sequences]
    parts = torch.split(torch.from_numpy(hidden).double(), lengths)
    return torch.stack([pool(part, pooling) for part in parts]).numpy()


def _make_batches(sequences: Sequence[Inputs]) -> list[list[Inputs]]:
    """Split sequences, in order, into batches of at most `MAX_BATCH_TOKENS`; a longer one gets a batch to itself."""
    batches: list[list[Inputs]] = []
    remaining = 0
    for sequence in sequences:
        length = sequence["input_ids"].shape[1]
        if length > remaining:
            batches.append([])
            remaining = MAX_BATCH_TOKENS
        batches[-1].append(sequence)
        remaining -= length
    return batches


WEIGHTS = "cuda.bin"
TOLERANCE = 2e-2
"""Maximum relative difference of a token vector, as in parity.py. The limit of the cosine similarity is stricter."""


def check_cuda(checkpoint: Checkpoint) -> None:
    """Raise `CheckpointError` for an encoder with parts that the graph does not have."""
    if part := unsupported_part(checkpoint.encoder.config):
        raise CheckpointError(f"--variant cuda: not available for models with {part}. Export without it.")
    vectors = checkpoint.multi_vector
    expansion = None if vectors is None else vectors.record.expansion
    if expansion is not None and not expansion.attended:
        raise CheckpointError("--variant cuda: unsupported query expansion without attention. Export without it.")


def write_cuda(graphs: GraphSet, checkpoint: Checkpoint, eval_texts: Sequence[str]) -> None:
    """Write the graph and its weights; `eval_texts` determine which parts stay in float32. Raises AccuracyError."""
    encoder, pooling, progress = checkpoint.encoder, checkpoint.embedding_config.pooling, graphs.progress
    path = graphs.path("cuda")
    tokenizer = Tokenizer(checkpoint.tokenizer)
    sequences = tokenize_texts(eval_texts, tokenizer, checkpoint.max_input_tokens, encoder.config.type_vocab_size)
    progress(f"measuring float16 accuracy over {len(sequences)} texts")
    test = AccuracyTest.from_sequences(encoder, pooling, sequences)
    accuracy = choose_float32_parts(test)
    progress(f"smallest cosine {accuracy.min_cosine:.6f}, in float32: {', '.join(accuracy.float32_parts) or 'none'}")
    progress(f"exporting {path.name}")
    module = VarlenEncoder(encoder, pooling, accuracy.float32_parts).eval()
    signature = varlen_signature(module)
    write_graph(module, path, WEIGHTS, signature)
    progress(f"running {path.name} with reference attention")
    session = open_reference_session(path, WEIGHTS)

    def run(output: str, batch: list[Inputs]) -> NDArray[Any]:
        (result,) = session.run([output], pack_varlen(batch))
        return result  # type: ignore[no-any-return]

    def embed(batch: list[Inputs]) -> NDArray[Any]:
        if SENTENCE_EMBEDDING in signature.outputs:
            return run(SENTENCE_EMBEDDING, batch)
        return pool_sequences(run(LAST_HIDDEN_STATE, batch), batch, pooling)

    parity = compare_outputs(
        encoder, lambda batch: run(LAST_HIDDEN_STATE, batch), checkpoint.max_input_tokens, TOLERANCE
    )
    cosine = test.min_cosine(embed)
    progress(f"smallest cosine {cosine:.6f}")
    if cosine < MIN_COSINE:
        raise AccuracyError(f"{path.name}: smallest cosine {cosine:.6f}, limit {MIN_COSINE}. Report this as a bug.")
    measured = accuracy.model_copy(update={"min_cosine": min(cosine, accuracy.min_cosine)})
    graphs.add("cuda", parity, WEIGHTS, "float16", measured)
