"""How near a narrowed encoder stays to the one in float32, over real texts, and which of its parts must stay wide.

A GPU computes a float16 operation in float32 and rounds what it gives. torch can do the same here, operation by
operation, so that what rounding and overflow do to a model is known before it meets a GPU.
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

from model.artifact import AccuracyRecord, Pooling
from model.encoder import Encoder
from model.flat import FlatEncoder, part_names
from model.parity import Row, make_text, pack, pack_flat
from model.tokenizer import Source, Tokenizer

LEAST_COSINE = 0.9999
ROW_TOKENS = 512
RANKING_ROWS = 8
"""So many rows tell which part does most damage."""

CONVERSIONS = (torch.ops.aten.to, torch.ops.aten._to_copy)
Floats = NDArray[np.float64]


class AccuracyError(Exception):
    """The model cannot be narrowed: even with all that may stay in float32 there, its vectors are off."""


class RoundingToHalf(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While it lasts, every operation on float16 is computed in float32 and its result rounded.

    torch's own float16 kernels on a CPU round the same way, but their matrix product is fifty times slower.
    """

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = (args, kwargs or {})
        tensors = [value for value in tree_leaves(given) if isinstance(value, torch.Tensor)]
        if func.overloadpacket in CONVERSIONS or all(tensor.dtype != torch.float16 for tensor in tensors):
            return func(*args, **kwargs or {})
        wide_args, wide_kwargs = tree_map_only(torch.Tensor, _widen, given)
        return tree_map_only(torch.Tensor, _narrow, func(*wide_args, **wide_kwargs))


def _widen(value: torch.Tensor) -> torch.Tensor:
    return value.float() if value.dtype == torch.float16 else value


def _narrow(value: torch.Tensor) -> torch.Tensor:
    return value.half() if value.dtype == torch.float32 else value


@dataclass(frozen=True)
class Measure:
    """Texts in rows, and the vector that the encoder in float32 gives each: `(N, D)`."""

    encoder: Encoder
    pooling: Pooling
    rows: list[list[Row]]
    expected: Floats

    @classmethod
    def of(cls, encoder: Encoder, pooling: Pooling, texts: Sequence[Row]) -> "Measure":
        rows = _into_rows(texts)
        vectors = []
        for row in rows:
            with torch.inference_mode():
                packed = {name: torch.from_numpy(values) for name, values in pack(row).items()}
                hidden = encoder(**packed)[0].numpy()
            vectors.append(pool_texts(hidden, row, pooling))
        return cls(encoder, pooling, rows, np.concatenate(vectors))

    @property
    def texts(self) -> int:
        return len(self.expected)

    def least_cosine(self, vectors: Callable[[list[Row]], NDArray[Any]]) -> float:
        """The smallest cosine of what `vectors` gives for each row to what is expected; -1 for what is not finite."""
        found = np.concatenate([vectors(row) for row in self.rows]).astype(np.float64)
        if not np.isfinite(found).all():
            return -1.0
        lengths = np.linalg.norm(found, axis=1) * np.linalg.norm(self.expected, axis=1)
        return float(((found * self.expected).sum(axis=1) / np.maximum(lengths, 1e-300)).min())

    def rounded(self, kept: Sequence[str]) -> float:
        """The smallest cosine of the flat encoder in float16 but for the parts in `kept`."""
        module = FlatEncoder(self.encoder, self.pooling, kept).eval()
        return self.least_cosine(lambda row: flat_vectors(module, row))

    def few(self) -> "Measure":
        """The same over its first rows."""
        rows = self.rows[:RANKING_ROWS]
        return Measure(self.encoder, self.pooling, rows, self.expected[: sum(map(len, rows))])


def choose_kept(measure: Measure) -> AccuracyRecord:
    """Which parts must stay in float32 for every cosine to reach `LEAST_COSINE` in float16.

    Raises `AccuracyError` where all of them are not enough.
    """
    names = part_names(measure.encoder)
    few = measure.few()
    kept, cosine = keep_fewest(
        names, LEAST_COSINE, measure.rounded, lambda name: -few.rounded([other for other in names if other != name])
    )
    if cosine < LEAST_COSINE:
        raise AccuracyError(
            f"With every part in float32 but attention itself, which is float16, the smallest cosine over "
            f"{measure.texts} texts is {cosine:.6f}; {LEAST_COSINE} is wanted. Nothing was written."
        )
    return AccuracyRecord(texts=measure.texts, min_cosine=cosine, kept=kept)


def keep_fewest(
    names: Sequence[str],
    least: float,
    cosine_of: Callable[[Sequence[str]], float],
    damage_of: Callable[[str], float],
) -> tuple[tuple[str, ...], float]:
    """The fewest parts to keep wide so that `cosine_of` what is kept reaches `least`, and what it is then.

    Those are kept first that do most damage when they alone are narrow. All of them, where that is not enough.
    """
    cosine = cosine_of(())
    if cosine >= least:
        return (), cosine
    ranked = sorted(names, key=damage_of, reverse=True)
    cosines: dict[int, float] = {}

    def reaches(count: int) -> bool:
        cosines[count] = cosine_of(ranked[:count])
        return cosines[count] >= least

    count = bisect_left(range(len(names)), True, lo=1, key=reaches)
    if count not in cosines:
        reaches(count)
    return tuple(sorted(ranked[:count], key=names.index)), cosines[count]


def as_tokens(texts: Sequence[str], tokenizer: Tokenizer, max_tokens: int, types: int) -> list[Row]:
    """Texts as the model takes them, cut where they are longer."""
    found = [tokens.truncate(max_tokens, "right") for tokens in tokenizer.encode([Source(text) for text in texts])]
    return [make_text(tokens.ids, tokens.types if types > 1 else [0] * len(tokens)) for tokens in found]


def flat_vectors(module: FlatEncoder, texts: list[Row]) -> NDArray[Any]:
    """The vectors of one row of texts, `(B, D)`, rounded as a GPU would."""
    inputs = {name: torch.from_numpy(values) for name, values in pack_flat(texts).items()}
    with torch.inference_mode(), RoundingToHalf():  # type: ignore[no-untyped-call]
        hidden, *pooled = module(**inputs)
    return pooled[0].numpy() if pooled else pool_texts(hidden.float().numpy(), texts, module.pooling)


def pool_texts(hidden: NDArray[Any], texts: Sequence[Row], pooling: Pooling) -> NDArray[Any]:
    """`(T, D)` to a vector for each text, `(B, D)`."""
    pools = {"mean": lambda part: part.mean(axis=0), "cls": lambda part: part[0], "max": lambda part: part.max(axis=0)}
    bounds = np.cumsum([text["input_ids"].shape[1] for text in texts])[:-1]
    return np.stack([pools[pooling](part) for part in np.split(hidden.astype(np.float64), bounds)])


def _into_rows(texts: Sequence[Row]) -> list[list[Row]]:
    """In their order, as many to a row as fit."""
    rows: list[list[Row]] = []
    room = 0
    for text in texts:
        size = text["input_ids"].shape[1]
        if size > room:
            rows.append([])
            room = ROW_TOKENS
        rows[-1].append(text)
        room -= size
    return rows
