"""Pooling of packed batches, contrastive loss and next-token loss, compared with naive implementations."""

import math
import random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from model.artifact.manifest import POOLINGS, Pooling
from model.artifact.packing import BatchShape
from model.train.data import Item, TrainingBatch, fill, pack
from model.train.network import TextEncoder, pool
from model.train.objectives import IGNORED, ContrastiveModel, collate_pairs, predict_next
from service.engine.vectors import pool_batch
from tests.random_encoders import VOCAB_SIZE, random_encoder

SHAPE = BatchShape(3, 20)
WORDS = ("a", "b", "c", "d")


def to_items(examples: list[tuple[str, ...]]) -> tuple[list[Item], list[int]]:
    """Return items in which equal texts have equal token ids, and their places."""
    items = [Item([[2, *map(ord, text), 3] for text in texts], texts) for texts in examples]
    small = [Item([[token % VOCAB_SIZE for token in ids] for ids in item.sequences], item.texts) for item in items]
    chosen, starts, _ = fill(small, SHAPE)
    return chosen, starts


@pytest.mark.parametrize("pooling", POOLINGS)
@given(sizes=st.lists(st.integers(1, 20), min_size=1, max_size=20))
def test_pooling_matches_the_server(pooling: Pooling, sizes: list[int]) -> None:
    items, starts, _ = fill([Item([[5] * size], ("",)) for size in sizes], SHAPE)
    inputs = pack([item.sequences[0] for item in items], SHAPE, starts)
    hidden = np.random.default_rng(0).normal(size=(SHAPE.tokens, 6)).astype(np.float32)
    expected = pool_batch(hidden, starts, [item.tokens for item in items], pooling, [0] * len(items))
    actual = pool(
        torch.from_numpy(hidden).view(3, 20, 6), inputs["sequence_ids"], inputs["position_ids"], pooling
    )  # fmt: skip
    np.testing.assert_allclose(actual.numpy(), expected, atol=1e-6)


texts = st.text(WORDS, min_size=1, max_size=2)


@given(
    examples=st.lists(st.tuples(texts, texts) | st.tuples(texts, texts, texts), min_size=1, max_size=8),
    dimensions=st.sampled_from([(), (4,), (2, 16)]),
)
def test_contrastive_loss_matches_a_loop_over_queries(examples: list[Any], dimensions: tuple[int, ...]) -> None:
    """The reference loops over queries, documents and dimensions, and encodes each text alone."""
    items, starts = to_items(examples)
    encoder = TextEncoder(random_encoder(layers=1), "mean", ())
    network = ContrastiveModel(encoder, 0.1, dimensions)
    batch = collate_pairs(items, SHAPE, starts, random.Random(0))
    assert batch.count == len(items)
    with torch.no_grad():
        loss = float(network(batch))
        expected = naive_loss(items, encoder, (*dimensions, 32), 0.1)
    assert loss == pytest.approx(expected, rel=1e-4, abs=1e-4)


def naive_loss(items: list[Item], encoder: TextEncoder, sizes: tuple[int, ...], temperature: float) -> float:
    def embed(ids: list[int]) -> torch.Tensor:
        vectors: torch.Tensor = encoder(pack([ids], BatchShape(1, len(ids)), [0]))
        return vectors[0]

    relevant = {(item.texts[0], item.texts[1]) for item in items}
    total = 0.0
    for size in sizes:
        for number, item in enumerate(items):
            query = embed(item.sequences[0])[:size]
            scores = []
            for other_number, other in enumerate(items):
                for index, (ids, text) in enumerate(zip(other.sequences[1:], other.texts[1:], strict=True)):
                    is_own = other_number == number and index == 0
                    if is_own or (text != item.texts[0] and (item.texts[0], text) not in relevant):
                        cosine = float(torch.cosine_similarity(query, embed(ids)[:size], dim=0))
                        scores.append((not is_own, cosine / temperature))
            ordered = [score for _, score in sorted(scores)]
            total -= ordered[0] - math.log(sum(math.exp(score) for score in ordered))
    return total / len(sizes)


def test_next_tokens_come_from_the_same_sequence() -> None:
    items = [Item([[2, 7, 8, 3]], ("x",)), Item([[2, 9, 3]], ("y",))]
    batch = predict_next(items, BatchShape(1, 10), [0, 4], random.Random(0))
    assert batch.targets["labels"].tolist() == [[7, 8, 3, IGNORED, 9, 3, IGNORED, IGNORED, IGNORED, IGNORED]]
    assert batch.count == 5


def test_gradient_reaches_every_parameter() -> None:
    items, starts = to_items([("ab", "cd"), ("ba", "d")])
    network = ContrastiveModel(TextEncoder(random_encoder(layers=2).train(), "max", ()), 0.1, ())
    batch: TrainingBatch = collate_pairs(items, SHAPE, starts, random.Random(0))
    network(batch).backward()
    assert all(parameter.grad is not None for parameter in network.parameters())
