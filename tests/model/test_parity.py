"""The measure of an export: honest ones come out small, anything else comes out large."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
import transformers

from model.checkpoint import load_checkpoint
from model.encoder import Encoder
from model.parity import GRID, Row, make_text, measure_parity, pack, pack_flat

Publish = Callable[[str], Path]

FAMILIES = ("bert", "roberta", "xlm-roberta", "camembert", "distilbert", "electra")
LENGTHS = (11, 1, 29, 5)


def text_of(encoder: Encoder, length: int) -> Row:
    """A random text of one family, without padding ids."""
    rng = np.random.default_rng(length)
    return {
        "input_ids": rng.integers(5, encoder.config.vocab_size, (1, length)),
        "position_ids": np.arange(length)[None],
        "token_type_ids": rng.integers(0, encoder.config.types, (1, length)),
        "sequence_ids": np.ones((1, length), dtype=np.int64),
    }


def of_transformers(directory: Path, text: Row) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    model = transformers.AutoModel.from_pretrained(directory, attn_implementation="eager").eval()
    given = {
        "input_ids": torch.from_numpy(text["input_ids"]),
        "token_type_ids": torch.from_numpy(text["token_type_ids"]),
    }
    if model.config.model_type == "distilbert":
        del given["token_type_ids"]
    with torch.inference_mode():
        hidden: torch.Tensor = model(**given).last_hidden_state
    return hidden.numpy()


@pytest.fixture
def encoder(published: Path) -> Encoder:
    """The tiny BERT, the test's own to sabotage."""
    return load_checkpoint(published).encoder


@pytest.fixture(scope="session")
def graph(graphs: Publish) -> Path:
    """The graph of the tiny BERT."""
    return graphs("bert")


@pytest.mark.parametrize("family", FAMILIES)
def test_the_graph_of_a_family_is_transformers(publish: Publish, graphs: Publish, family: str) -> None:
    """Four texts packed in one row of the graph, against each alone in the oracle, to 1e-4."""
    encoder = load_checkpoint(publish(family)).encoder
    texts = [text_of(encoder, length) for length in LENGTHS]
    session = onnxruntime.InferenceSession(graphs(family), providers=["CPUExecutionProvider"])
    (packed,) = session.run(None, pack(texts))
    expected = np.concatenate([of_transformers(publish(family), text) for text in texts], axis=1)
    assert packed.shape == expected.shape
    assert float(np.abs(packed - expected).max()) < 1e-4


@pytest.mark.parametrize("family", FAMILIES)
def test_an_honest_export_is_close(publish: Publish, graphs: Publish, family: str) -> None:
    """Below 1e-5 for a tiny model of any family, over every row that fits its positions."""
    found = load_checkpoint(publish(family))
    parity = measure_parity(found.encoder, graphs(family), found.max_tokens)
    assert parity.max_abs_difference < 1e-5
    assert parity.rows == sum(max(row) <= found.max_tokens for row in GRID) + 1


def test_the_graph_takes_several_rows(encoder: Encoder, graph: Path) -> None:
    """Rows and tokens are both free in the graph."""
    rows = [text_of(encoder, 13), {**text_of(encoder, 13), "sequence_ids": np.array([[1] * 6 + [0] * 7])}]
    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    stacked = {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}
    (together,) = session.run(None, stacked)
    alone = [session.run(None, row)[0] for row in rows]
    assert together.shape == (2, 13, 24)
    assert np.allclose(together, np.concatenate(alone), atol=1e-5)


def test_the_same_seed_measures_the_same(encoder: Encoder, graph: Path) -> None:
    """The figure in a manifest can be had again."""
    assert measure_parity(encoder, graph, 41) == measure_parity(encoder, graph, 41)


@pytest.mark.parametrize(
    "part",
    [
        "blocks.1.feed_forward.outer.weight",
        "blocks.0.attention.query.weight",
        "embeddings.norm.bias",
        "blocks.1.feed_forward_norm.weight",
    ],
)
def test_one_changed_weight_is_seen(encoder: Encoder, graph: Path, part: str) -> None:
    """One number of a tensor, changed after the export, puts the figure above what is allowed."""
    with torch.no_grad():
        encoder.get_parameter(part).view(-1)[7] += 3.0
    parity = measure_parity(encoder, graph, 41)
    assert parity.max_abs_difference > parity.tolerance


def test_a_row_without_segments_is_seen(encoder: Encoder, graph: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packing is measured too: texts that see each other are far from the texts alone."""
    monkeypatch.setattr(
        "model.parity.pack", lambda texts: {**pack(texts), "sequence_ids": pack(texts)["sequence_ids"] * 0}
    )
    parity = measure_parity(encoder, graph, 41)
    assert parity.max_abs_difference > parity.tolerance


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_what_is_not_a_number_is_never_close(encoder: Encoder, graph: Path, poison: float) -> None:
    """A NaN or an infinity on either side must not pass as no difference."""
    with torch.no_grad():
        encoder.get_parameter("blocks.1.feed_forward_norm.bias")[7] = poison
    parity = measure_parity(encoder, graph, 41)
    assert not parity.max_abs_difference <= parity.tolerance


def test_texts_are_packed_end_to_end() -> None:
    """Each input joined along the row, segments numbered from 1."""
    first = {name: np.array([[7, 8]]) for name in ("input_ids", "position_ids", "token_type_ids", "sequence_ids")}
    second = {name: np.array([[9]]) for name in first}
    row = pack([first, second])
    assert {name: values.tolist() for name, values in row.items()} == {
        "input_ids": [[7, 8, 9]],
        "position_ids": [[7, 8, 9]],
        "token_type_ids": [[7, 8, 9]],
        "sequence_ids": [[1, 1, 2]],
    }


def test_a_tiny_limit_is_still_measured(encoder: Encoder, graph: Path) -> None:
    """A model of five tokens: rows of 1 and 2, and its longest text."""
    assert measure_parity(encoder, graph, 5).rows == 3


def test_a_flat_row_has_what_a_packed_one_has() -> None:
    """The same ids, positions and types; the bounds in place of segments."""
    texts = [make_text([5, 6, 7], [0, 0, 1]), make_text([8, 9], [1, 1])]
    flat, packed = pack_flat(texts), pack(texts)
    for name in ("input_ids", "position_ids", "token_type_ids"):
        assert flat[name].tolist() == packed[name][0].tolist()
    assert flat["cu_seqlens"].tolist() == [0, 3, 5]
    assert flat["token_offset"].shape == (2, 3)
    assert {values.dtype for values in flat.values()} == {np.dtype(np.int32)}
