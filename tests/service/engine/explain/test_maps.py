"""Attention maps of one layer and of several, against PyTorch, published formulas, and interventions."""

import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from attendant_client.types import HeadReduce, MapLayerReduce
from numpy.typing import NDArray
from torch import Tensor

from model.artifact.manifest import Kind
from model.encoder import Encoder, SelfAttention
from service.engine.layers import AttentionOutput, Layer
from service.operations.maps import AttentionMapSpec, LayerMaps, TokenMaps, token_maps
from tests.random_encoders import (
    PARTS,
    TorchLayer,
    capture_outputs,
    random_encoder,
    random_ids,
    replace_outputs,
    run,
    torch_layers,
)

Floats = NDArray[Any]
Case = tuple[LayerMaps, TorchLayer, Floats, Floats]
TOKENS, HEADS, LAYERS = 19, 4, 3
ALL_HEADS = tuple(range(HEADS))
PRECISIONS = pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)], ids=["float32", "float64"]
)
EACH_PART = pytest.mark.parametrize("parts", PARTS)


def layers_of_random_encoder(dtype: torch.dtype, scale: float = 0.3, *, parts: str = "bert") -> list[Case]:
    """Return per layer: its maps, the layer, its input, and PyTorch's attention probabilities in the encoder."""
    encoder = random_encoder(dtype, scale=scale, parts=parts)
    outputs = run(encoder, random_ids(TOKENS))
    return [
        (layer.maps(hidden), layer, hidden, probs)
        for hidden, layer, probs in zip(outputs.hidden_states[:-1], torch_layers(encoder), outputs.probs, strict=True)
    ]


# Attention maps of one layer against PyTorch and against the formulas in the papers. Exact identities are tested in
# float32, as served, and in float64 with a tolerance close to rounding error.


def naive_parts(hidden: Floats, layer: TorchLayer, probs: Floats) -> tuple[Floats, Floats]:
    """Return the papers' vectors `T_i(x_j)`, (T, T, D), and the contribution of the biases, (T, D)."""
    attention, weights = layer.block.attention, layer.weights
    count, heads = len(hidden), attention.num_heads
    with torch.inference_mode():
        x = torch.from_numpy(hidden)
        values = attention.value(layer.block.attention_norm(x) if layer.block.norm_before_attention else x).numpy()
    head_size = weights.output.shape[0] // heads
    parts = np.zeros((count, count, hidden.shape[1]), hidden.dtype)
    for head in range(heads):
        group = head // (heads // attention.num_key_value_heads)
        value = values[:, group * head_size : (group + 1) * head_size]
        output = weights.output[head * head_size : (head + 1) * head_size]
        parts += probs[head][:, :, None] * (value @ output)[None]
    diagonal, zeros = np.arange(count), np.zeros(hidden.shape[1], hidden.dtype)
    output_bias = zeros if weights.output_bias is None else weights.output_bias
    norm_bias = zeros if weights.norm_bias is None else weights.norm_bias
    if weights.residual_in_norm:
        parts[diagonal, diagonal] += hidden
    summed = parts.sum(axis=1) + output_bias
    mean = summed.mean(axis=1, keepdims=True) if weights.centered else 0
    deviation = np.sqrt(((summed - mean) ** 2).mean(axis=1) + hidden.dtype.type(weights.eps))

    def normalized(vectors: Floats, by: Floats) -> Floats:
        center = vectors.mean(axis=-1, keepdims=True) if weights.centered else 0
        scaled: Floats = (vectors - center) * weights.norm / by
        return scaled

    parts = normalized(parts, deviation[:, None, None])
    if not weights.residual_in_norm:
        parts[diagonal, diagonal] += hidden
    return parts, normalized(np.broadcast_to(output_bias, hidden.shape), deviation[:, None]) + norm_bias


@EACH_PART
@PRECISIONS
def test_probs_match_pytorch_and_the_softmax_of_the_scores(dtype: torch.dtype, tolerance: float, parts: str) -> None:
    for attention, _, _, probs in layers_of_random_encoder(dtype, parts=parts):
        assert attention.probs.dtype == probs.dtype
        np.testing.assert_allclose(attention.probs, probs, atol=tolerance, rtol=0)
        np.testing.assert_allclose(attention.probs.sum(axis=-1), 1, atol=tolerance, rtol=0)
        exponentials = np.exp(attention.scores)
        softmax = exponentials / exponentials.sum(axis=-1, keepdims=True)
        np.testing.assert_allclose(softmax, attention.probs, atol=tolerance, rtol=0)


def test_large_scores_do_not_overflow() -> None:
    encoder = random_encoder(torch.float32, scale=30)
    attention = torch_layers(encoder)[0].maps(run(encoder, random_ids(TOKENS)).hidden_states[0])
    assert np.abs(attention.scores).max() > 1e4
    assert np.isfinite(attention.scores).all()
    np.testing.assert_allclose(attention.probs.sum(axis=-1), 1, atol=1e-5)


@PRECISIONS
def test_later_tokens_contribute_exactly_0_in_causal_models(dtype: torch.dtype, tolerance: float) -> None:
    """Scores are the lowest float32. All other values in a row match the sequence truncated after that row."""
    later = np.triu(np.ones((TOKENS, TOKENS), dtype=bool), 1)
    for attention, layer, hidden, _ in layers_of_random_encoder(dtype, parts="causal"):
        assert (attention.scores[:, later] <= np.finfo(np.float32).min / 2).all()
        prefix = layer.maps(hidden[:7])
        for kind in ("probs", "norm_per_head", "norm", "block_norm", "projection"):
            values = getattr(attention, kind)
            assert (values[..., later] == 0).all()
            assert not np.signbit(values[..., later]).any()
            np.testing.assert_allclose(values[..., :7, :7], getattr(prefix, kind), atol=tolerance, rtol=tolerance)


@EACH_PART
@PRECISIONS
def test_block_norm_is_the_length_of_terms_that_sum_to_the_decomposed_result(
    dtype: torch.dtype, tolerance: float, parts: str
) -> None:
    for attention, layer, hidden, probs in layers_of_random_encoder(dtype, parts=parts):
        terms, biases = naive_parts(hidden, layer, probs)
        np.testing.assert_allclose(terms.sum(axis=1) + biases, layer.decomposed(hidden), atol=3 * tolerance, rtol=0)
        lengths = np.linalg.norm(terms, axis=-1)
        np.testing.assert_allclose(attention.block_norm, lengths, rtol=tolerance, atol=tolerance)


@EACH_PART
@PRECISIONS
def test_projection_is_the_share_of_each_part_in_the_output(dtype: torch.dtype, tolerance: float, parts: str) -> None:
    """A share is `<part, y> / <y, y>` for the layer norm output y. A row plus its bias share sums to 1."""
    signs: set[float] = set()
    for attention, layer, hidden, probs in layers_of_random_encoder(dtype, parts=parts):
        output = layer.decomposed(hidden)
        terms, biases = naive_parts(hidden, layer, probs)
        squares = np.einsum("id,id->i", output, output)
        np.testing.assert_allclose(
            attention.projection, np.einsum("ijd,id->ij", terms, output) / squares[:, None], atol=tolerance, rtol=0
        )
        np.testing.assert_allclose(
            attention.bias_share, np.einsum("id,id->i", biases, output) / squares, atol=tolerance, rtol=0
        )
        np.testing.assert_allclose(attention.projection.sum(axis=1) + attention.bias_share, 1, atol=tolerance, rtol=0)
        signs |= set(np.sign(attention.projection).ravel().tolist())
    masked = parts in ("causal", "modernbert", "qwen", "gemma")
    assert signs == ({-1.0, 0.0, 1.0} if masked else {-1.0, 1.0}), "no negative share"


def test_block_norm_uses_the_epsilon_of_the_layer_norm() -> None:
    _, layer, hidden, _ = layers_of_random_encoder(torch.float64)[0]
    attention = layer.attend(hidden, ("probs", "values"))
    small, large = (LayerMaps(hidden, attention, replace(layer.weights, eps=eps)).block_norm for eps in (0.0, 1.0))
    assert (large < small).all()


def test_peak_memory_is_below_a_quarter_of_the_naive_parts() -> None:
    """The naive parts take T x T x D floats. The test computes three kinds for one layer."""
    tokens, width = 128, 384
    encoder = random_encoder(torch.float32, layers=1, heads=4, hidden_size=width, scale=0.05)
    hidden = np.random.default_rng(1).standard_normal((1, tokens, width)).astype(np.float32)
    (layer,) = torch_layers(encoder)
    tracemalloc.start()
    try:
        attention = layer.maps(hidden[0])
        assert attention.norm.shape == attention.block_norm.shape == attention.projection.shape == (tokens, tokens)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < tokens * tokens * width * 4 / 4


# Attention maps over several heads and layers: rollout, head_reduce, layer_reduce and map order.

ROLLOUT_KINDS: tuple[Kind, ...] = ("probs", "norm", "block_norm", "projection")


def make_spec(
    kind: Kind = "probs",
    layers: tuple[int, ...] = (1, 2, 3),
    heads: tuple[int, ...] = ALL_HEADS,
    head_reduce: HeadReduce = "none",
    layer_reduce: MapLayerReduce = "none",
) -> AttentionMapSpec:
    return AttentionMapSpec(kind, layers, heads, head_reduce, layer_reduce)


@pytest.fixture(scope="module", params=["bert", "causal", "gemma"])
def encoder(request: pytest.FixtureRequest) -> Encoder:
    return random_encoder(torch.float64, parts=request.param)


@pytest.fixture(scope="module")
def hidden(encoder: Encoder) -> Floats:
    """Hidden states of one sequence in float64."""
    return run(encoder, random_ids(TOKENS)).hidden_states


@pytest.mark.parametrize("kind", ROLLOUT_KINDS)
def test_rollout_is_the_product_of_layer_matrices(encoder: Encoder, hidden: Floats, kind: Kind) -> None:
    """The product runs from the highest requested layer down to layer 1. Rows sum to 1."""
    steps = []
    for index, layer in enumerate(torch_layers(encoder)):
        attention = layer.maps(hidden[index])
        if kind == "probs":
            steps.append(0.5 * attention.probs.mean(axis=0) + 0.5 * np.eye(TOKENS))
        else:
            magnitudes = np.abs(getattr(attention, kind))
            steps.append(magnitudes / magnitudes.sum(axis=1, keepdims=True))
    products: list[tuple[tuple[int, ...], Floats]] = [
        ((1,), steps[0]),
        ((2,), steps[1] @ steps[0]),
        ((3, 1), steps[2] @ steps[1] @ steps[0]),
    ]
    for layers, expected in products:
        (rollout,) = token_maps(hidden, torch_layers(encoder), make_spec(kind, layers, layer_reduce="rollout"))
        assert (rollout.layer, rollout.heads, rollout.bias_share) == (None, (None,), None)
        np.testing.assert_allclose(rollout.values, expected[None], atol=1e-12)
        np.testing.assert_allclose(rollout.values.sum(axis=-1), 1, atol=1e-12)


def test_rollout_of_selected_heads_uses_their_mean(encoder: Encoder, hidden: Floats) -> None:
    spec = make_spec(layers=(1,), heads=(1, 2), layer_reduce="rollout")
    (rollout,) = token_maps(hidden, torch_layers(encoder), spec)
    probs = torch_layers(encoder)[0].maps(hidden[0]).probs
    np.testing.assert_allclose(rollout.values[0], (probs[1] + probs[2]) / 4 + np.eye(TOKENS) / 2, atol=1e-12)


@pytest.mark.parametrize("kind", ["probs", "scores", "norm"])
def test_maps_follow_the_requested_order_of_layers_and_heads(encoder: Encoder, hidden: Floats, kind: Kind) -> None:
    """A head's map must not depend on which other heads are requested."""
    layers = torch_layers(encoder)
    results = list(token_maps(hidden, layers, make_spec(kind, (3, 1), (2, 0))))
    name = "norm_per_head" if kind == "norm" else kind
    assert [(maps.layer, maps.heads, list(maps.heads)) for maps in results] == [
        (3, (2, 0), [2, 0]),
        (1, (2, 0), [2, 0]),
    ]
    for maps, layer in zip(results, (3, 1), strict=True):
        all_heads = getattr(layers[layer - 1].maps(hidden[layer - 1]), name)
        np.testing.assert_allclose(maps.values, all_heads[[2, 0]], atol=1e-12)


@pytest.mark.parametrize("reduce", ["mean", "max"])
@pytest.mark.parametrize("kind", ["probs", "scores"])
def test_head_reduce_is_the_mean_or_maximum_of_the_requested_heads(
    encoder: Encoder, hidden: Floats, kind: Kind, reduce: HeadReduce
) -> None:
    (reduced,) = token_maps(hidden, torch_layers(encoder), make_spec(kind, (2,), (0, 3), reduce))
    heads = getattr(torch_layers(encoder)[1].maps(hidden[1]), kind)[[0, 3]]
    assert (reduced.layer, list(reduced.heads)) == (2, [None])
    np.testing.assert_allclose(reduced.values, getattr(heads, reduce)(axis=0)[None], atol=1e-12)


def test_norm_of_one_head_equals_the_sum_over_that_head(encoder: Encoder, hidden: Floats) -> None:
    """They are computed by different code."""
    reduces: tuple[HeadReduce, HeadReduce] = ("none", "sum")
    single, summed = (
        next(token_maps(hidden, torch_layers(encoder), make_spec("norm", (2,), (1,), reduce))).values
        for reduce in reduces
    )
    np.testing.assert_allclose(single, summed, atol=1e-12)


@pytest.mark.parametrize("kind", ["probs", "scores", "norm", "block_norm", "projection"])
@pytest.mark.parametrize("reduce", ["none", "sum"])
def test_layer_reduce_is_the_mean_of_the_requested_layers(
    encoder: Encoder, hidden: Floats, kind: Kind, reduce: HeadReduce
) -> None:
    """Bias shares are averaged, too."""
    reduce = "mean" if reduce == "sum" and kind in ("probs", "scores") else reduce
    layers = torch_layers(encoder)
    (mean,) = token_maps(hidden, layers, make_spec(kind, (3, 1), head_reduce=reduce, layer_reduce="mean"))
    first, third = (next(token_maps(hidden, layers, make_spec(kind, (layer,), head_reduce=reduce))) for layer in (1, 3))
    assert (mean.layer, mean.heads) == (None, first.heads)
    np.testing.assert_allclose(mean.values, (first.values + third.values) / 2, atol=1e-12)
    if kind == "projection":
        np.testing.assert_allclose(shares(mean), (shares(first) + shares(third)) / 2, atol=1e-12)
        np.testing.assert_allclose(mean.values[0].sum(axis=1) + shares(mean), 1, atol=1e-12)
    else:
        assert mean.bias_share is None


class WithoutValues(TorchLayer):
    """A layer whose values are 0."""

    def attend(self, hidden: Floats, outputs: Sequence[AttentionOutput]) -> dict[AttentionOutput, Floats]:
        attention = super().attend(hidden, outputs)
        return attention | {"values": 0 * attention["values"]}


def shares(maps: TokenMaps) -> Floats:
    assert maps.bias_share is not None
    return maps.bias_share


def test_single_token_contributes_only_to_itself(encoder: Encoder) -> None:
    hidden = run(encoder, [3]).hidden_states
    for kind in ROLLOUT_KINDS:
        (rollout,) = token_maps(hidden, torch_layers(encoder), make_spec(kind, layer_reduce="rollout"))
        np.testing.assert_allclose(rollout.values, [[[1]]], atol=1e-12)
    attention = torch_layers(encoder)[0].maps(hidden[0])
    np.testing.assert_allclose(attention.projection[0, 0] + attention.bias_share[0], 1, atol=1e-12)


@PRECISIONS
def test_zero_weights_give_zeros_and_no_nan(dtype: torch.dtype, tolerance: float) -> None:
    """The rollout of zero values is zero, and a zero output has zero shares."""
    encoder = random_encoder(dtype)
    hidden, layers = run(encoder, random_ids(TOKENS)).hidden_states, torch_layers(encoder)
    zero_values: list[Layer] = [WithoutValues(encoder, layer.index) for layer in layers]
    (rollout,) = token_maps(hidden, zero_values, make_spec("norm", layer_reduce="rollout"))
    assert (rollout.values == 0).all()
    zeros = np.zeros_like(layers[0].weights.norm)
    weights = replace(layers[0].weights, norm=zeros, norm_bias=zeros)
    attention = LayerMaps(hidden[0], layers[0].attend(hidden[0], ("probs", "values")), weights)
    assert (attention.projection == 0).all()
    assert (attention.bias_share == 0).all()
    (rollout,) = token_maps(hidden, zero_values, make_spec("block_norm", layer_reduce="rollout"))
    np.testing.assert_allclose(rollout.values[0], np.eye(TOKENS), atol=tolerance)


# Attention maps against interventions on the encoder: zeroed values.

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
