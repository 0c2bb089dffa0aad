"""Attention maps against torch, against the naive formulas, and against real interventions.

Every exact statement is made twice: in float32, as served, and in float64, where the same code must be exact.
"""

import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from model.artifact import Kind
from model.encoder import Block, Encoder
from service.engine.explain.maps import BlockAttention, BlockWeights, TokenMaps, token_maps
from service.engine.schema.explain import AttentionMapSpec, HeadReduce, MapLayerReduce
from tests.random_encoders import (
    as_bert_begins,
    blocks_in,
    blocks_of,
    catching,
    changing,
    random_encoder,
    random_ids,
    run,
    run_block,
)
from tests.ranking import spearman

Floats = NDArray[Any]
Layer = tuple[BlockAttention, Block, Floats, BlockWeights, Floats]

TOKENS, HEADS, LAYERS = 19, 4, 3
ALL_HEADS = tuple(range(HEADS))
ROLLED: tuple[Kind, ...] = ("probs", "norm", "block_norm", "projection")

PRECISIONS = pytest.mark.parametrize(
    ("dtype", "bar"), [(torch.float32, 1e-5), (torch.float64, 1e-12)], ids=["float32", "float64"]
)

# How far a vector moved carries the rounding of the whole vector: the maps must be so even that no move is tiny.
EVEN = 0.15
PRECISIONS_OF_A_MOVE = pytest.mark.parametrize(
    ("dtype", "bar"), [(torch.float32, 1e-4), (torch.float64, 1e-12)], ids=["float32", "float64"]
)


def zero_value(token: int, heads: Sequence[int], width: int) -> Any:
    """A change of the values `(1, T, D)`: one token's are zero in some heads."""

    def change(values: Tensor) -> Tensor:
        values = values.clone()
        for head in heads:
            values[0, token, head * width : (head + 1) * width] = 0
        return values

    return change


def naive_parts(hidden: Floats, weights: BlockWeights, probs: Floats) -> tuple[Floats, Floats]:
    """`T_i(x_j)` as `(T, T, D)` and the part of the biases `(T, D)`, term by term as the papers write them."""
    count, width = hidden.shape
    each = width // weights.heads
    parts = np.zeros((count, count, width), hidden.dtype)
    for head in range(weights.heads):
        own = slice(head * each, (head + 1) * each)
        value = hidden @ weights.value[:, own] + weights.value_bias[own]
        parts += probs[head][:, :, None] * (value @ weights.output[own])[None]
    parts[np.arange(count), np.arange(count)] += hidden
    before = parts.sum(axis=1) + weights.output_bias
    deviation = np.sqrt(before.var(axis=1) + hidden.dtype.type(weights.eps))

    def normed(vectors: Floats, by: Floats) -> Floats:
        scaled: Floats = (vectors - vectors.mean(axis=-1, keepdims=True)) * weights.norm / by
        return scaled

    return (
        normed(parts, deviation[:, None, None]),
        normed(np.broadcast_to(weights.output_bias, hidden.shape), deviation[:, None]) + weights.norm_bias,
    )


def plan(
    kind: Kind = "probs",
    layers: tuple[int, ...] = (1, 2, 3),
    heads: tuple[int, ...] = ALL_HEADS,
    head_reduce: HeadReduce = "none",
    layer_reduce: MapLayerReduce = "none",
) -> AttentionMapSpec:
    return AttentionMapSpec(kind, layers, heads, head_reduce, layer_reduce)


def each_layer(
    dtype: torch.dtype, scale: float = 0.3
) -> list[tuple[BlockAttention, Block, Floats, BlockWeights, Floats]]:
    """Of every layer: our attention, torch's block, what went in, the weights, and torch's maps."""
    encoder = random_encoder(dtype, scale=scale)
    ran = run(encoder, random_ids(TOKENS))
    return [
        (BlockAttention(hidden, weights), block, hidden, weights, probs)
        for hidden, weights, block, probs in zip(
            ran.hidden[:-1], blocks_of(encoder), blocks_in(encoder), ran.probs, strict=True
        )
    ]


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return random_encoder(torch.float64)


@pytest.fixture(scope="module")
def hidden(encoder: Encoder) -> Floats:
    """What every layer gave for one text, in float64."""
    return run(encoder, random_ids(TOKENS)).hidden


@PRECISIONS
def test_probs_are_torchs_and_the_softmax_of_the_scores(dtype: torch.dtype, bar: float) -> None:
    """Recomputed from what went into a block they are what the block used; rows sum to 1."""
    for ours, _, _, _, probs in each_layer(dtype):
        assert ours.probs.dtype == probs.dtype
        np.testing.assert_allclose(ours.probs, probs, atol=bar, rtol=0)
        np.testing.assert_allclose(ours.probs.sum(axis=-1), 1, atol=bar, rtol=0)
        powers = np.exp(ours.scores)
        np.testing.assert_allclose(powers / powers.sum(axis=-1, keepdims=True), ours.probs, atol=bar, rtol=0)


def test_scores_far_apart_give_no_overflow() -> None:
    """Of scores in the tens of thousands the softmax is 0 and 1, and their own values are kept."""
    encoder = random_encoder(torch.float32, scale=30)
    ours = BlockAttention(run(encoder, random_ids(TOKENS)).hidden[0], blocks_of(encoder)[0])
    assert np.abs(ours.scores).max() > 1e4
    assert np.isfinite(ours.scores).all()
    np.testing.assert_allclose(ours.probs.sum(axis=-1), 1, atol=1e-5)


@PRECISIONS
def test_texts_that_share_a_row_take_nothing_from_each_other_or_from_padding(dtype: torch.dtype, bar: float) -> None:
    """Packed, the encoder's maps are exactly 0 across texts and those of each text alone within it."""
    encoder = random_encoder(dtype)
    sizes, length = [7, 1, TOKENS], 40
    texts = [random_ids(size) for size in sizes]
    row = torch.zeros(3, 1, length, dtype=torch.int64)
    starts = [0, 7, 8]
    for number, (start, ids) in enumerate(zip(starts, texts, strict=True), start=1):
        own = slice(start, start + len(ids))
        row[0, 0, own], row[1, 0, own], row[2, 0, own] = torch.tensor(ids), torch.arange(len(ids)), number
    with torch.inference_mode():
        packed = encoder.encode(row[0], row[1], torch.zeros_like(row[0]), row[2])
    text_of = row[2, 0].numpy()
    for layer, probs in enumerate(packed.probs):
        maps = probs[0].numpy()
        assert (maps[:, text_of[:, None] != text_of] == 0).all()
        np.testing.assert_allclose(maps.sum(axis=-1), 1, atol=bar)
        for start, ids in zip(starts, texts, strict=True):
            own = slice(start, start + len(ids))
            alone = BlockAttention(run(encoder, ids).hidden[layer], blocks_of(encoder)[layer])
            np.testing.assert_allclose(alone.probs, maps[:, own, own], atol=bar, rtol=0)


@PRECISIONS
@pytest.mark.parametrize("blind", [True, False], ids=["no positions", "positions"])
def test_maps_follow_their_tokens_unless_positions_tell_them_apart(dtype: torch.dtype, bar: float, blind: bool) -> None:
    """With the position table zero, permuted tokens permute vectors, maps and shares; with positions they do not."""
    ids, order = np.array(random_ids(TOKENS)), np.random.default_rng(5).permutation(TOKENS)
    encoder = random_encoder(dtype)
    if blind:
        encoder.embeddings.positions.weight.data.zero_()
    straight, permuted = (run(encoder, each.tolist()).hidden for each in (ids, ids[order]))
    found = [(straight[-1][order], permuted[-1])]
    for layer, weights in enumerate(blocks_of(encoder)):
        one, other = (BlockAttention(every[layer], weights) for every in (straight, permuted))
        found.append((one.bias_share[order], other.bias_share))
        found += [
            (getattr(one, kind)[..., order, :][..., order], getattr(other, kind))
            for kind in ("probs", "scores", "norm", "block_norm", "projection")
        ]
    apart = [float(np.abs(left - right).max() / np.abs(left).max()) for left, right in found]
    assert max(apart) <= bar if blind else min(apart) > 0.01


@PRECISIONS
def test_parts_and_biases_add_up_to_the_layer_norms_output(dtype: torch.dtype, bar: float) -> None:
    """The naive T x T x D parts, whose lengths block_norm gives, sum to what torch's layer norm put out."""
    for ours, block, hidden, weights, probs in each_layer(dtype):
        with catching(block.attention_norm) as caught:
            run_block(block, hidden)
        parts, biases = naive_parts(hidden, weights, probs)
        np.testing.assert_allclose(parts.sum(axis=1) + biases, caught[0], atol=bar, rtol=0)
        lengths = np.linalg.norm(parts, axis=-1)
        np.testing.assert_allclose(ours.block_norm, lengths, rtol=bar)


@PRECISIONS
def test_projections_are_each_parts_share_of_the_output(dtype: torch.dtype, bar: float) -> None:
    """`<part, y> / <y, y>` of the naive parts and the hooked y; a row and its bias share sum to 1."""
    signs: set[float] = set()
    for ours, block, hidden, weights, probs in each_layer(dtype):
        with catching(block.attention_norm) as caught:
            run_block(block, hidden)
        (output,) = caught
        parts, biases = naive_parts(hidden, weights, probs)
        squares = np.einsum("id,id->i", output, output)
        np.testing.assert_allclose(
            ours.projection, np.einsum("ijd,id->ij", parts, output) / squares[:, None], atol=bar, rtol=0
        )
        np.testing.assert_allclose(ours.bias_share, np.einsum("id,id->i", biases, output) / squares, atol=bar, rtol=0)
        np.testing.assert_allclose(ours.projection.sum(axis=1) + ours.bias_share, 1, atol=bar, rtol=0)
        signs |= set(np.sign(ours.projection).ravel().tolist())
    assert signs == {-1.0, 1.0}, "some parts push away"


@PRECISIONS_OF_A_MOVE
@pytest.mark.parametrize("heads", [None, (2,), (3, 0)], ids=["all heads", "one head", "two heads"])
def test_a_norm_is_how_far_the_output_moves_without_that_value(
    dtype: torch.dtype, bar: float, heads: tuple[int, ...] | None
) -> None:
    """Token j's value is really made zero in those heads, and the attention runs again."""
    for _, block, hidden, weights, _ in each_layer(dtype, EVEN):
        norm = BlockAttention(hidden, weights, heads).norm
        width = hidden.shape[1] // HEADS
        with catching(block.attention.output) as before:
            run_block(block, hidden)
        moved = np.empty_like(norm)
        for token in range(TOKENS):
            change = zero_value(token, heads or ALL_HEADS, width)
            with changing(block.attention.value, change), catching(block.attention.output) as after:
                run_block(block, hidden)
            moved[:, token] = np.linalg.norm(before[0] - after[0], axis=-1)
        np.testing.assert_allclose(norm, moved, rtol=bar)


@PRECISIONS_OF_A_MOVE
def test_a_heads_norm_is_how_far_it_alone_moves_the_output(dtype: torch.dtype, bar: float) -> None:
    """Each head's own map, in the order in which heads are named."""
    chosen = (3, 1)
    for _, block, hidden, weights, _ in each_layer(dtype, EVEN):
        found = BlockAttention(hidden, weights, chosen).norm_of_each_head
        with catching(block.attention.output) as before:
            run_block(block, hidden)
        for index, head in enumerate(chosen):
            change = zero_value(5, [head], hidden.shape[1] // HEADS)
            with changing(block.attention.value, change), catching(block.attention.output) as after:
                run_block(block, hidden)
            moved = np.linalg.norm(before[0] - after[0], axis=-1)
            np.testing.assert_allclose(found[index, :, 5], moved, rtol=bar)


def test_norms_rank_what_the_values_do_and_raw_weights_do_not() -> None:
    """Zero each value, layer norm recomputed, before any training: the cosine distance orders as the norms do."""
    encoder = as_bert_begins(torch.float64, layers=3, heads=12, width=192)
    ran = run(encoder, random_ids(32))
    agreement: dict[str, list[float]] = {"norm": [], "block_norm": [], "probs": []}
    for hidden, weights, block in zip(ran.hidden, blocks_of(encoder), blocks_in(encoder), strict=False):
        ours = BlockAttention(hidden, weights)
        maps = {"norm": ours.norm, "block_norm": ours.block_norm, "probs": ours.probs.mean(axis=0)}
        with catching(block.attention_norm) as before:
            run_block(block, hidden)
        distance = np.empty((len(hidden), len(hidden)))
        for token in range(len(hidden)):
            change = zero_value(token, range(12), 16)
            with changing(block.attention.value, change), catching(block.attention_norm) as after:
                run_block(block, hidden)
            lengths = np.linalg.norm(before[0], axis=1) * np.linalg.norm(after[0], axis=1)
            distance[:, token] = 1 - (before[0] * after[0]).sum(axis=1) / lengths
        others = ~np.eye(len(hidden), dtype=bool)
        for kind, found in maps.items():
            agreement[kind].append(spearman(found[others], distance[others]))
    means = {kind: float(np.mean(found)) for kind, found in agreement.items()}
    print(f"Spearman with true value zeroing: {means}")
    assert means["norm"] >= 0.95
    assert means["block_norm"] >= 0.95
    assert means["probs"] <= 0.5


def test_where_raw_weights_point_at_a_sink_norms_point_at_what_counts() -> None:
    """One head set by hand: the sink scores 4 and has no value, the relevant key scores 2 and has one."""
    sink, relevant = 0, 3
    hidden = np.eye(6)
    zeros, bias = np.zeros((6, 6)), np.zeros(6)
    key = zeros.copy()
    key[sink, 0], key[relevant, 0] = 4, 2
    query_bias = np.sqrt(6) * np.eye(6)[0]  # every query is the same, and undoes the scale
    value = np.eye(6)
    value[sink] = 0
    weights = BlockWeights(
        1, 1e-12, zeros, query_bias, key, bias, value, bias, np.eye(6), bias, np.ones(6), bias
    )  # fmt: skip
    ours = BlockAttention(hidden, weights)
    np.testing.assert_allclose(ours.scores[0, :, [sink, relevant]], [[4.0] * 6, [2.0] * 6])
    assert (ours.probs[0].argmax(axis=1) == sink).all()
    assert (ours.norm.argmax(axis=1) == relevant).all()
    assert (ours.norm_of_each_head[0].argmax(axis=1) == relevant).all()
    assert (ours.norm[:, sink] == 0).all()
    # What is left of the sink in the whole block is its residual, in its own row.
    others = np.delete(np.arange(6), sink)
    assert (ours.block_norm[others, sink] == 0).all()
    assert (ours.projection[others, sink] == 0).all()


def test_the_same_output_has_many_maps() -> None:
    """With more tokens than a head is wide, another valid row of weights gives the very same vector."""
    tokens = 50
    encoder = random_encoder(torch.float64)
    weights = blocks_of(encoder)[1]
    hidden = run(encoder, random_ids(tokens)).hidden[1]
    width = hidden.shape[1] // HEADS
    values = hidden @ weights.value[:, :width] + weights.value_bias[:width]
    row = BlockAttention(hidden, weights).probs[0, 7]
    # Relative changes z with sum(row * z) = 0 and sum(row * z * value) = 0: the null space has T - dh - 1 dimensions.
    held = np.vstack([values.T, np.ones(tokens)]) * row
    _, lengths, directions = np.linalg.svd(held)
    free = directions[len(lengths) :]
    assert len(free) == tokens - width - 1
    best, distance = row, 0.0
    for change in (*free, *-free, *(free.T @ free), *-(free.T @ free)):
        other = row * (1 + change / -change.min())  # as far as no weight is negative
        moved = float(np.abs(other - row).sum()) / 2
        if moved > distance:
            best, distance = other, moved
    print(f"another row at total variation {distance:.3f}")
    assert best.min() >= 0
    assert abs(best.sum() - 1) <= 1e-9
    assert np.abs(best @ values - row @ values).max() <= 1e-9
    assert distance > 0.05


@pytest.mark.parametrize("kind", ROLLED)
def test_a_rollout_is_the_product_of_each_layers_step(encoder: Encoder, hidden: Floats, kind: Kind) -> None:
    """From the highest layer asked for down to the first, whichever were named; rows sum to 1."""
    steps = []
    for layer, weights in enumerate(blocks_of(encoder)):
        ours = BlockAttention(hidden[layer], weights)
        if kind == "probs":
            steps.append(0.5 * ours.probs.mean(axis=0) + 0.5 * np.eye(TOKENS))
        else:
            magnitudes = np.abs(getattr(ours, kind))
            steps.append(magnitudes / magnitudes.sum(axis=1, keepdims=True))
    asked: list[tuple[tuple[int, ...], Floats]] = [
        ((1,), steps[0]),
        ((2,), steps[1] @ steps[0]),
        ((3, 1), steps[2] @ steps[1] @ steps[0]),
    ]
    for layers, expected in asked:
        (found,) = token_maps(hidden, blocks_of(encoder), plan(kind, layers, layer_reduce="rollout"))
        assert (found.layer, found.heads, found.bias_share) == (None, None, None)
        np.testing.assert_allclose(found.values, expected[None], atol=1e-12)
        np.testing.assert_allclose(found.values.sum(axis=-1), 1, atol=1e-12)


@pytest.mark.parametrize("kind", ROLLED)
def test_rollouts_in_float32_have_rows_of_1(kind: Kind) -> None:
    """To 1e-6, through all layers."""
    encoder = random_encoder(torch.float32)
    every = run(encoder, random_ids(TOKENS)).hidden
    (found,) = token_maps(every, blocks_of(encoder), plan(kind, layer_reduce="rollout"))
    assert found.values.dtype == np.float32
    np.testing.assert_allclose(found.values.sum(axis=-1), 1, atol=1e-6, rtol=0)


def test_a_rollout_of_some_heads_is_of_their_mean(encoder: Encoder, hidden: Floats) -> None:
    """As if the other heads were not there."""
    (found,) = token_maps(hidden, blocks_of(encoder), plan(layers=(1,), heads=(1, 2), layer_reduce="rollout"))
    probs = BlockAttention(hidden[0], blocks_of(encoder)[0]).probs
    np.testing.assert_allclose(found.values[0], (probs[1] + probs[2]) / 4 + np.eye(TOKENS) / 2, atol=1e-12)


@pytest.mark.parametrize("kind", ROLLED)
def test_where_every_token_takes_from_itself_alone_so_does_the_rollout(kind: Kind) -> None:
    """Identity maps give the identity."""
    width = 8
    zeros, bias, eye = np.zeros((width, width)), np.zeros(width), np.eye(width)
    weights = BlockWeights(
        1, 1e-12, 1e3 * eye, bias, eye, bias, zeros + eye, bias, eye, bias, np.ones(width), bias
    )  # fmt: skip
    every = np.stack([eye] * 4)
    (found,) = token_maps(every, [weights] * 3, plan(kind, heads=(0,), layer_reduce="rollout"))
    np.testing.assert_allclose(found.values[0], eye, atol=1e-12)


@pytest.mark.parametrize("kind", ["probs", "scores", "norm"])
def test_each_head_has_its_own_map_in_the_order_asked_for(encoder: Encoder, hidden: Floats, kind: Kind) -> None:
    """Layers too; a head is the same alone as among all."""
    blocks = blocks_of(encoder)
    found = list(token_maps(hidden, blocks, plan(kind, (3, 1), (2, 0))))
    name = "norm_of_each_head" if kind == "norm" else kind
    assert [(maps.layer, maps.heads, list(maps.each_head)) for maps in found] == [
        (3, (2, 0), [2, 0]),
        (1, (2, 0), [2, 0]),
    ]
    for maps, layer in zip(found, (3, 1), strict=True):
        whole = getattr(BlockAttention(hidden[layer - 1], blocks[layer - 1]), name)
        np.testing.assert_allclose(maps.values, whole[[2, 0]], atol=1e-12)


@pytest.mark.parametrize("reduce", ["mean", "max"])
@pytest.mark.parametrize("kind", ["probs", "scores"])
def test_heads_are_reduced_to_their_mean_or_largest(
    encoder: Encoder, hidden: Floats, kind: Kind, reduce: HeadReduce
) -> None:
    """Of the heads asked for."""
    (found,) = token_maps(hidden, blocks_of(encoder), plan(kind, (2,), (0, 3), reduce))
    whole = getattr(BlockAttention(hidden[1], blocks_of(encoder)[1]), kind)[[0, 3]]
    assert (found.layer, found.heads, list(found.each_head)) == (2, None, [None])
    np.testing.assert_allclose(found.values, getattr(whole, reduce)(axis=0)[None], atol=1e-12)


def test_the_norm_of_one_head_is_the_same_summed_or_alone(encoder: Encoder, hidden: Floats) -> None:
    """The two ways to it agree where they must."""
    reduces: tuple[HeadReduce, HeadReduce] = ("none", "sum")
    each, summed = (
        next(token_maps(hidden, blocks_of(encoder), plan("norm", (2,), (1,), reduce))).values for reduce in reduces
    )
    np.testing.assert_allclose(each, summed, atol=1e-12)


@pytest.mark.parametrize("kind", ["probs", "scores", "norm", "block_norm", "projection"])
@pytest.mark.parametrize("reduce", ["none", "sum"])
def test_layers_are_reduced_to_the_mean_of_those_asked_for(
    encoder: Encoder, hidden: Floats, kind: Kind, reduce: HeadReduce
) -> None:
    """Maps and the shares of the biases alike; what a single layer gave is left as it was."""
    reduce = "mean" if reduce == "sum" and kind in ("probs", "scores") else reduce
    blocks = blocks_of(encoder)
    (found,) = token_maps(hidden, blocks, plan(kind, (3, 1), head_reduce=reduce, layer_reduce="mean"))
    first, third = (next(token_maps(hidden, blocks, plan(kind, (layer,), head_reduce=reduce))) for layer in (1, 3))
    assert (found.layer, found.heads) == (None, first.heads)
    np.testing.assert_allclose(found.values, (first.values + third.values) / 2, atol=1e-12)
    if kind == "projection":
        np.testing.assert_allclose(shares(found), (shares(first) + shares(third)) / 2, atol=1e-12)
        np.testing.assert_allclose(found.values[0].sum(axis=1) + shares(found), 1, atol=1e-12)
    else:
        assert found.bias_share is None


def shares(maps: TokenMaps) -> Floats:
    assert maps.bias_share is not None
    return maps.bias_share


def test_a_text_of_one_token_takes_all_from_itself(encoder: Encoder) -> None:
    """The smallest text there is."""
    every = run(encoder, [3]).hidden
    for kind in ROLLED:
        (found,) = token_maps(every, blocks_of(encoder), plan(kind, layer_reduce="rollout"))
        np.testing.assert_allclose(found.values, [[[1]]], atol=1e-12)
    ours = BlockAttention(every[0], blocks_of(encoder)[0])
    np.testing.assert_allclose(ours.projection[0, 0] + ours.bias_share[0], 1, atol=1e-12)


def test_the_epsilon_of_the_layer_norm_counts(encoder: Encoder, hidden: Floats) -> None:
    """A larger one shortens every part."""
    weights = blocks_of(encoder)[0]
    small, large = (BlockAttention(hidden[0], replace(weights, eps=eps)).block_norm for eps in (0.0, 1.0))
    assert (large < small).all()


@PRECISIONS
def test_weights_trained_to_nothing_give_zeros_and_no_nan(dtype: torch.dtype, bar: float) -> None:
    """Values that are all zero roll out to nothing; an output of zeros has no shares."""
    encoder = random_encoder(dtype)
    every, blocks = run(encoder, random_ids(TOKENS)).hidden, blocks_of(encoder)
    nothing = np.zeros_like(blocks[0].norm)
    silent = [replace(each, value=0 * each.value, value_bias=nothing) for each in blocks]
    (rolled,) = token_maps(every, silent, plan("norm", layer_reduce="rollout"))
    assert (rolled.values == 0).all()
    flat = BlockAttention(every[0], replace(blocks[0], norm=nothing, norm_bias=nothing))
    assert (flat.projection == 0).all()
    assert (flat.bias_share == 0).all()
    (rolled,) = token_maps(every, silent, plan("block_norm", layer_reduce="rollout"))
    np.testing.assert_allclose(rolled.values[0], np.eye(TOKENS), atol=bar)


def test_no_map_takes_memory_for_every_pair_times_the_width() -> None:
    """All kinds of one layer together stay below a quarter of T x T x D."""
    tokens, width = 128, 384
    encoder = random_encoder(torch.float32, layers=1, heads=4, width=width, scale=0.05)
    every = np.random.default_rng(1).standard_normal((1, tokens, width)).astype(np.float32)
    (weights,) = blocks_of(encoder)
    tracemalloc.start()
    try:
        ours = BlockAttention(every[0], weights)
        assert ours.norm.shape == ours.block_norm.shape == ours.projection.shape == (tokens, tokens)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < tokens * tokens * width * 4 / 4
