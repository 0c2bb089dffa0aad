"""Attention maps of one layer against PyTorch and against the formulas in the papers.

Exact identities are tested in float32, as served, and in float64 with a tolerance close to rounding error.
"""

import tracemalloc
from dataclasses import replace

import numpy as np
import torch

from service.operations.maps import LayerMaps
from tests.random_encoders import (
    TorchLayer,
    random_encoder,
    random_ids,
    run,
    torch_layers,
)
from tests.service.engine.explain.map_cases import (
    EACH_PART,
    PRECISIONS,
    TOKENS,
    Floats,
    layers_of_random_encoder,
)


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
