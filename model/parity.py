"""Torch against onnxruntime: how far the exported graph is from the encoder it was made of.

The reference is torch with each text *alone*; the graph gets the same texts packed end to end in one row. So
one figure proves both the export and the packing.
"""

from collections.abc import Sequence
from pathlib import Path

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
    """Run the grid through the exported module and its graph; the tolerance in the record is absolute."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    lengths = [row for row in (*GRID, (max_tokens,)) if max(row) <= max_tokens]
    worst, largest = 0.0, 1.0
    for row_lengths in lengths:
        texts = [_random_text(module.config, length, rng) for length in row_lengths]
        reference = np.concatenate([_torch_alone(module, text) for text in texts], axis=-2)
        (packed,) = session.run(None, pack(texts))
        if not np.isfinite(reference).all():
            return ParityRecord(rows=len(lengths), max_abs_difference=float("nan"), tolerance=TOLERANCE)
        worst = float(np.maximum(worst, np.abs(packed - reference).max()))  # max() would lose a NaN
        largest = max(largest, float(np.abs(reference).max()))
    return ParityRecord(rows=len(lengths), max_abs_difference=worst, tolerance=TOLERANCE * largest)


def pack(texts: Sequence[Row]) -> Row:
    """Texts end to end: `(1, sum of T)` for each input, segments numbered from 1."""
    row = {name: np.concatenate([text[name] for text in texts], axis=1) for name in texts[0]}
    row["segments"] = np.repeat(np.arange(1, len(texts) + 1), [text["ids"].shape[1] for text in texts])[None]
    return row


def _random_text(config: EncoderConfig, length: int, rng: np.random.Generator) -> Row:
    return {
        "ids": rng.integers(0, config.vocab_size, (1, length)),
        "positions": np.arange(length)[None],
        "types": rng.integers(0, config.types, (1, length)),
        "segments": np.ones((1, length), dtype=np.int64),
    }


def _torch_alone(module: nn.Module, text: Row) -> NDArray[np.float32]:
    with torch.inference_mode():
        hidden: torch.Tensor = module(**{name: torch.from_numpy(values) for name, values in text.items()})
    return hidden.numpy()
