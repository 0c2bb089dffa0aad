"""Torch against onnxruntime: how far the exported graph is from the encoder it was made of.

The reference is torch with each text *alone*; the graph gets the same texts packed end to end in one row. So
one figure proves both the export and the packing.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from numpy.typing import NDArray
from torch import nn

from model.artifact import ParityRecord
from model.encoder import Encoder, EncoderConfig, EveryLayer

GRID = ((1,), (2,), (7,), (16,), (33,), (64,), (128,), (5, 1, 9), (3, 30, 17, 14), (60, 4, 60), (96, 31))
"""Lengths of the texts in each row that is tried; the model's longest text is added."""

TOLERANCE = 1e-4
"""Largest difference allowed, as a share of the largest value in the reference (at least 1)."""

Row = dict[str, NDArray[np.int64]]


def measure_parity(module: Encoder | EveryLayer, graph: Path, max_tokens: int) -> ParityRecord:
    """Run the grid through the exported module and its graph."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    return compare(module, lambda texts: session.run(None, pack(texts))[0], max_tokens, TOLERANCE)


def compare(
    module: Encoder | EveryLayer, run: Callable[[list[Row]], NDArray[Any]], max_tokens: int, tolerance: float
) -> ParityRecord:
    """Run the grid through the module, and each of its rows through `run`, which gives `(..., T, D)`.

    `tolerance` is a share of the largest value in the reference; in the record it is absolute.
    """
    rng = np.random.default_rng(0)
    lengths = [row for row in (*GRID, (max_tokens,)) if max(row) <= max_tokens]
    worst, largest = 0.0, 1.0
    for row_lengths in lengths:
        texts = [_random_text(module.config, length, rng) for length in row_lengths]
        reference = np.concatenate([_torch_alone(module, text) for text in texts], axis=-2)
        found = run(texts)
        if not np.isfinite(reference).all():
            return ParityRecord(rows=len(lengths), max_abs_difference=float("nan"), tolerance=tolerance)
        worst = float(np.maximum(worst, np.abs(found - reference).max()))  # max() would lose a NaN
        largest = max(largest, float(np.abs(reference).max()))
    return ParityRecord(rows=len(lengths), max_abs_difference=worst, tolerance=tolerance * largest)


def make_text(ids: Sequence[int], types: Sequence[int]) -> Row:
    """One text alone in its row: `(1, T)` for each input."""
    length = len(ids)
    return {
        "input_ids": np.array([ids], dtype=np.int64),
        "position_ids": np.arange(length)[None],
        "token_type_ids": np.array([types], dtype=np.int64),
        "sequence_ids": np.ones((1, length), dtype=np.int64),
    }


def pack(texts: Sequence[Row]) -> Row:
    """Texts end to end: `(1, sum of T)` for each input, segments numbered from 1."""
    row = {name: np.concatenate([text[name] for text in texts], axis=1) for name in texts[0]}
    row["sequence_ids"] = np.repeat(np.arange(1, len(texts) + 1), [text["input_ids"].shape[1] for text in texts])[None]
    return row


def pack_flat(texts: Sequence[Row]) -> dict[str, NDArray[np.int32]]:
    """Texts end to end as a flat graph takes them: `(sum of T,)` for each token's inputs, and the bounds of B texts."""
    row: dict[str, NDArray[np.int32]] = {
        name: np.concatenate([text[name][0] for text in texts]).astype(np.int32)
        for name in ("input_ids", "position_ids", "token_type_ids")
    }
    lengths = [text["input_ids"].shape[1] for text in texts]
    row["cu_seqlens"] = np.cumsum([0, *lengths], dtype=np.int32)
    row["token_offset"] = np.zeros((len(texts), max(lengths)), dtype=np.int32)
    return row


def _random_text(config: EncoderConfig, length: int, rng: np.random.Generator) -> Row:
    ids = rng.integers(0, config.vocab_size, length).tolist()
    return make_text(ids, rng.integers(0, config.types, length).tolist())


def _torch_alone(module: nn.Module, text: Row) -> NDArray[np.float32]:
    with torch.inference_mode():
        hidden: torch.Tensor = module(**{name: torch.from_numpy(values) for name, values in text.items()})
    return hidden.numpy()
