"""Attention maps against interventions on the encoder: zeroed values, attention sinks, changed weights."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from model.encoder import SelfAttention
from tests.random_encoders import (
    HandMadeLayer,
    bert_init_encoder,
    capture_outputs,
    random_encoder,
    random_ids,
    replace_outputs,
    run,
    torch_layers,
)
from tests.rank_stats import spearman
from tests.service.engine.explain.map_cases import ALL_HEADS, EACH_PART, HEADS, TOKENS, layers_of_random_encoder

# A change in a vector inherits the whole vector's rounding error. Even maps avoid changes that small.
EVEN_SCALE = 0.15
INTERVENTION_PRECISIONS = pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.float64, 1e-12)], ids=["float32", "float64"]
)


def zero_value(token: int, heads: Sequence[int], width: int) -> Any:
    """Return a hook that zeroes one token's value vectors in some heads; values: (1, T, D)."""

    def change(values: Tensor) -> Tensor:
        values = values.clone()
        for head in heads:
            values[0, token, head * width : (head + 1) * width] = 0
        return values

    return change


def whole_groups(attention: SelfAttention, heads: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return the key/value heads of query heads, and all query heads that share them."""
    size = attention.num_heads // attention.num_key_value_heads
    groups = list(dict.fromkeys(head // size for head in heads))
    return groups, [group * size + member for group in groups for member in range(size)]


@EACH_PART
@INTERVENTION_PRECISIONS
@pytest.mark.parametrize("heads", [None, (2,), (3, 0)], ids=["all heads", "one head", "two heads"])
def test_norm_is_the_change_of_the_output_without_the_value(
    dtype: torch.dtype, tolerance: float, heads: tuple[int, ...] | None, parts: str
) -> None:
    """Zeroes a token's value vector in the heads, and runs the attention again."""
    for _, layer, hidden, _ in layers_of_random_encoder(dtype, EVEN_SCALE, parts=parts):
        attention = layer.block.attention
        groups, chosen = whole_groups(attention, heads or ALL_HEADS)
        block, norm = layer.block, layer.maps(hidden, chosen).norm
        with capture_outputs(block.attention.output) as before:
            layer.run(hidden)
        change = np.empty_like(norm)
        for token in range(TOKENS):
            hook = zero_value(token, groups, attention.head_size)
            with replace_outputs(block.attention.value, hook), capture_outputs(block.attention.output) as after:
                layer.run(hidden)
            change[:, token] = np.linalg.norm(before[0] - after[0], axis=-1)
        np.testing.assert_allclose(norm, change, rtol=tolerance)


@INTERVENTION_PRECISIONS
def test_norm_per_head_is_the_change_of_the_output_without_the_value_in_that_head(
    dtype: torch.dtype, tolerance: float
) -> None:
    heads = (3, 1)
    for _, layer, hidden, _ in layers_of_random_encoder(dtype, EVEN_SCALE):
        block, norms = layer.block, layer.maps(hidden, heads).norm_per_head
        with capture_outputs(block.attention.output) as before:
            layer.run(hidden)
        for index, head in enumerate(heads):
            hook = zero_value(5, [head], hidden.shape[1] // HEADS)
            with replace_outputs(block.attention.value, hook), capture_outputs(block.attention.output) as after:
                layer.run(hidden)
            change = np.linalg.norm(before[0] - after[0], axis=-1)
            np.testing.assert_allclose(norms[index, :, 5], change, rtol=tolerance)


def test_norms_rank_tokens_by_their_effect_and_probs_do_not() -> None:
    """The effect is the output's cosine distance after zeroing a value, in an untrained encoder."""
    encoder = bert_init_encoder(torch.float64, layers=3, heads=12, hidden_size=192)
    outputs = run(encoder, random_ids(32))
    agreement: dict[str, list[float]] = {"norm": [], "block_norm": [], "probs": []}
    for hidden, layer in zip(outputs.hidden_states, torch_layers(encoder), strict=False):
        block, attention = layer.block, layer.maps(hidden)
        maps = {"norm": attention.norm, "block_norm": attention.block_norm, "probs": attention.probs.mean(axis=0)}
        with capture_outputs(block.attention_norm) as before:
            layer.run(hidden)
        distance = np.empty((len(hidden), len(hidden)))
        for token in range(len(hidden)):
            hook = zero_value(token, range(12), 16)
            with replace_outputs(block.attention.value, hook), capture_outputs(block.attention_norm) as after:
                layer.run(hidden)
            lengths = np.linalg.norm(before[0], axis=1) * np.linalg.norm(after[0], axis=1)
            distance[:, token] = 1 - (before[0] * after[0]).sum(axis=1) / lengths
        others = ~np.eye(len(hidden), dtype=bool)
        for kind, values in maps.items():
            agreement[kind].append(spearman(values[others], distance[others]))
    means = {kind: float(np.mean(correlations)) for kind, correlations in agreement.items()}
    print(f"Spearman correlation with zeroed values: {means}")
    assert means["norm"] >= 0.95
    assert means["block_norm"] >= 0.95
    assert means["probs"] <= 0.5


def test_norms_ignore_an_attention_sink_with_a_zero_value() -> None:
    """In a hand-made head, the sink has score 4 and a zero value, while the relevant key has score 2 and a nonzero
    value.
    """
    sink, relevant = 0, 3
    hidden = np.eye(6)
    zeros = np.zeros((6, 6))
    key = zeros.copy()
    key[sink, 0], key[relevant, 0] = 4, 2
    query_bias = np.sqrt(6) * np.eye(6)[0]  # equal queries that cancel the scale
    value = np.eye(6)
    value[sink] = 0
    attention = HandMadeLayer(zeros, query_bias, key, value).maps(hidden)
    np.testing.assert_allclose(attention.scores[0, :, [sink, relevant]], [[4.0] * 6, [2.0] * 6])
    assert (attention.probs[0].argmax(axis=1) == sink).all()
    assert (attention.norm.argmax(axis=1) == relevant).all()
    assert (attention.norm_per_head[0].argmax(axis=1) == relevant).all()
    assert (attention.norm[:, sink] == 0).all()
    # In the block, the sink contributes only its residual, in its own row.
    others = np.delete(np.arange(6), sink)
    assert (attention.block_norm[others, sink] == 0).all()
    assert (attention.projection[others, sink] == 0).all()


def test_different_attention_rows_can_give_the_same_output() -> None:
    """There are more tokens than a head has dimensions."""
    tokens = 50
    encoder = random_encoder(torch.float64)
    layer = torch_layers(encoder)[1]
    hidden = run(encoder, random_ids(tokens)).hidden_states[1]
    width = hidden.shape[1] // HEADS
    attention = layer.attend(hidden, ("probs", "values"))
    values, row = attention["values"][0], attention["probs"][0, 7]
    # Relative changes z with sum(row * z) = 0 and sum(row * z * value) = 0: the null space has T - dh - 1 dimensions.
    constraints = np.vstack([values.T, np.ones(tokens)]) * row
    _, singular_values, directions = np.linalg.svd(constraints)
    null_space = directions[len(singular_values) :]
    assert len(null_space) == tokens - width - 1
    best, distance = row, 0.0
    for change in (*null_space, *-null_space, *(null_space.T @ null_space), *-(null_space.T @ null_space)):
        candidate = row * (1 + change / -change.min())  # the largest step without negative weights
        variation = float(np.abs(candidate - row).sum()) / 2
        if variation > distance:
            best, distance = candidate, variation
    print(f"total variation of the other row: {distance:.3f}")
    assert best.min() >= 0
    assert abs(best.sum() - 1) <= 1e-9
    assert np.abs(best @ values - row @ values).max() <= 1e-9
    assert distance > 0.05
