"""Accuracy of the encoder in float16 compared with float32, and the choice of parts that must stay in float32.

GPUs compute float16 operations in float32 and round the result. This module emulates that in torch, one operation at
a time, so rounding and overflow can be measured without a GPU.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from model.console import EX_SOFTWARE
from model.encoder import Encoder
from model.manifest import Pooling
from model.measurements import AccuracyRecord
from model.parity import Inputs, make_sequence, pack_sequences, pack_varlen
from model.tokenized_input import TokenizerInput
from model.tokenizer import Tokenizer
from model.varlen import VarlenEncoder, part_names

MIN_COSINE = 0.9999
"""Required cosine similarity of every embedding with its float32 embedding."""
MAX_BATCH_TOKENS = 512
RANKING_BATCHES = 8
"""Number of batches used to rank the parts."""

CAST_OPERATORS = (torch.ops.aten.to, torch.ops.aten._to_copy)
Floats = NDArray[np.float64]


class AccuracyError(Exception):
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
        """Return a test over `sequences`."""
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
        """The number of sequences."""
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
    """Return the fewest top-ranked float32 parts that keep every cosine similarity at or above `MIN_COSINE`.

    Raises:
        AccuracyError: The limit is missed even with every part in float32.
    """
    names = part_names(test.encoder)
    head = test.head()

    def error_of(name: str) -> float:
        return -head.min_cosine_float16([other for other in names if other != name])

    parts, cosine = minimize_float32_parts(names, MIN_COSINE, test.min_cosine_float16, error_of)
    if cosine < MIN_COSINE:
        raise AccuracyError(
            f"Accuracy: too low with every part in float32 except attention (smallest cosine {cosine:.6f} over "
            f"{test.texts} texts, limit {MIN_COSINE}). Export without --variant cuda."
        )
    return AccuracyRecord(texts=test.texts, min_cosine=cosine, float32_parts=parts)


def minimize_float32_parts(
    names: Sequence[str],
    limit: float,
    cosine_of: Callable[[Sequence[str]], float],
    error_of: Callable[[str], float],
) -> tuple[tuple[str, ...], float]:
    """Return the smallest set of float32 parts with which `cosine_of` reaches `limit`, and that cosine.

    Parts are added in decreasing order of `error_of`, the error with only that part in float16. Returns all parts if
    that is not enough.
    """
    cosine = cosine_of(())
    if cosine >= limit:
        return (), cosine
    ranked = sorted(names, key=error_of, reverse=True)
    cosines: dict[int, float] = {}

    def suffices(count: int) -> bool:
        cosines[count] = cosine_of(ranked[:count])
        return cosines[count] >= limit

    count = bisect_left(range(len(names)), True, lo=1, key=suffices)
    if count not in cosines:
        suffices(count)
    return tuple(sorted(ranked[:count], key=names.index)), cosines[count]


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
    functions = {
        "mean": lambda part: part.mean(axis=0),
        "cls": lambda part: part[0],
        "max": lambda part: part.max(axis=0),
        "last": lambda part: part[-1],
    }
    bounds = np.cumsum([sequence["input_ids"].shape[1] for sequence in sequences])[:-1]
    return np.stack([functions[pooling](part) for part in np.split(hidden.astype(np.float64), bounds)])


def _make_batches(sequences: Sequence[Inputs]) -> list[list[Inputs]]:
    """Split sequences, in order, into batches of at most `MAX_BATCH_TOKENS`; a longer sequence gets its own batch."""
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
