"""Parity measurement: small for a correct export, large for any error."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch

from model.checkpoint import load_checkpoint
from model.encoder import Encoder
from model.export.parity import make_sequence, measure_parity, pack_sequences, pack_varlen
from tests.model.varlen_inputs import random_sequences

Publish = Callable[[str], Path]


@pytest.fixture
def encoder(published: Path) -> Encoder:
    """Return a tiny BERT that the test may modify."""
    return load_checkpoint(published).encoder


@pytest.fixture(scope="session")
def graph(graphs: Publish) -> Path:
    return graphs("bert")


def test_graph_accepts_several_rows(encoder: Encoder, graph: Path) -> None:
    first, second = random_sequences(encoder, (13, 13))
    rows = [first, second | {"sequence_ids": np.array([[1] * 6 + [0] * 7])}]
    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    stacked = {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}
    (batched,) = session.run(None, stacked)
    alone = [session.run(None, row)[0] for row in rows]
    assert batched.shape == (2, 13, 24)
    assert np.allclose(batched, np.concatenate(alone), atol=1e-5)


@pytest.mark.parametrize(
    "part",
    [
        "blocks.1.feed_forward.outer.weight",
        "blocks.0.attention.query.weight",
        "embeddings.norm.bias",
        "blocks.1.feed_forward_norm.weight",
    ],
)
def test_parity_detects_one_changed_weight(encoder: Encoder, graph: Path, part: str) -> None:
    with torch.no_grad():
        encoder.get_parameter(part).view(-1)[7] += 3.0
    parity = measure_parity(encoder, graph, 41)
    assert parity.max_abs_difference > parity.tolerance


def test_parity_detects_missing_sequence_ids(encoder: Encoder, graph: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "model.export.parity.pack_sequences",
        lambda sequences: {**pack_sequences(sequences), "sequence_ids": pack_sequences(sequences)["sequence_ids"] * 0},
    )
    parity = measure_parity(encoder, graph, 41)
    assert parity.max_abs_difference > parity.tolerance


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_parity_detects_nonfinite_values(encoder: Encoder, graph: Path, value: float) -> None:
    with torch.no_grad():
        encoder.get_parameter("blocks.1.feed_forward_norm.bias")[7] = value
    parity = measure_parity(encoder, graph, 41)
    assert not parity.max_abs_difference <= parity.tolerance


def test_parity_works_for_max_input_tokens_5(encoder: Encoder, graph: Path) -> None:
    """This leaves batches of lengths 1, 2 and the maximum."""
    assert measure_parity(encoder, graph, 5).batches == 3


def test_pack_varlen_equals_pack_sequences_with_cu_seqlens() -> None:
    sequences = [make_sequence([5, 6, 7], [0, 0, 1]), make_sequence([8, 9], [1, 1])]
    varlen, packed = pack_varlen(sequences), pack_sequences(sequences)
    for name in ("input_ids", "position_ids", "token_type_ids"):
        assert varlen[name].tolist() == packed[name][0].tolist()
    assert varlen["cu_seqlens"].tolist() == [0, 3, 5]
    assert varlen["token_offset"].shape == (2, 3)
    assert {values.dtype for values in varlen.values()} == {np.dtype(np.int32)}
