"""Attention maps over several heads and layers: rollout, head_reduce, layer_reduce and map order."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from attendant_client.types import HeadReduce, MapLayerReduce

from model.artifact.manifest import Kind
from model.encoder import Encoder
from service.engine.layers import AttentionOutput, Layer
from service.operations.maps import AttentionMapSpec, LayerMaps, TokenMaps, token_maps
from tests.random_encoders import (
    TorchLayer,
    random_encoder,
    random_ids,
    run,
    torch_layers,
)
from tests.service.engine.explain.map_cases import ALL_HEADS, PRECISIONS, TOKENS, Floats

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
