"""Parity measurement: small for a correct export, large for any error."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
import transformers

from model.checkpoint import load_checkpoint
from model.encoder import Encoder
from model.export.parity import GRID, Inputs, make_sequence, measure_parity, pack_sequences, pack_varlen
from tests.model.conftest import mark_slow

Publish = Callable[[str], Path]

FAMILIES = ("bert", "roberta", "xlm-roberta", "camembert", "distilbert", "electra", "causal-bert", "causal-roberta")
LENGTHS = (11, 1, 29, 5)


def make_random_sequence(encoder: Encoder, length: int) -> Inputs:
    """Return a random sequence without padding ids."""
    rng = np.random.default_rng(length)
    return {
        "input_ids": rng.integers(5, encoder.config.vocab_size, (1, length)),
        "position_ids": np.arange(length)[None],
        "token_type_ids": rng.integers(0, max(1, encoder.config.type_vocab_size), (1, length)),
        "sequence_ids": np.ones((1, length), dtype=np.int64),
    }


def run_transformers(directory: Path, sequence: Inputs) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    model = transformers.AutoModel.from_pretrained(directory, attn_implementation="eager").eval()
    inputs = {
        "input_ids": torch.from_numpy(sequence["input_ids"]),
        "token_type_ids": torch.from_numpy(sequence["token_type_ids"]),
    }
    if model.config.model_type == "distilbert":
        del inputs["token_type_ids"]
    with torch.inference_mode():
        hidden: torch.Tensor = model(**inputs).last_hidden_state
    return hidden.numpy()


@pytest.fixture
def encoder(published: Path) -> Encoder:
    """Return a tiny BERT that the test may modify."""
    return load_checkpoint(published).encoder


@pytest.fixture(scope="session")
def graph(graphs: Publish) -> Path:
    return graphs("bert")


@pytest.mark.parametrize("family", mark_slow(*FAMILIES, fast=("bert", "causal-roberta")))
def test_graph_with_packed_sequences_equals_transformers_without_packing(
    publish: Publish, graphs: Publish, family: str
) -> None:
    encoder = load_checkpoint(publish(family)).encoder
    sequences = [make_random_sequence(encoder, length) for length in LENGTHS]
    session = onnxruntime.InferenceSession(graphs(family), providers=["CPUExecutionProvider"])
    (packed,) = session.run(None, pack_sequences(sequences))
    expected = np.concatenate([run_transformers(publish(family), sequence) for sequence in sequences], axis=1)
    assert packed.shape == expected.shape
    assert float(np.abs(packed - expected).max()) < 1e-4


@pytest.mark.parametrize("family", mark_slow(*FAMILIES, fast=("electra",)))
def test_parity_of_correct_export_is_below_1e_5(publish: Publish, graphs: Publish, family: str) -> None:
    checkpoint = load_checkpoint(publish(family))
    parity = measure_parity(checkpoint.encoder, graphs(family), checkpoint.max_input_tokens)
    assert parity.max_abs_difference < 1e-5
    assert parity.batches == sum(max(lengths) <= checkpoint.max_input_tokens for lengths in GRID) + 1


def test_graph_accepts_several_rows(encoder: Encoder, graph: Path) -> None:
    rows = [
        make_random_sequence(encoder, 13),
        {**make_random_sequence(encoder, 13), "sequence_ids": np.array([[1] * 6 + [0] * 7])},
    ]
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
