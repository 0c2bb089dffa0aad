"""Attention maps over tokens, computed from each layer's attention and the surrounding weights.

T tokens, D hidden size, H heads of size d, L layers. In `map[i, j]`, i is the query and j the key. Tokens that cannot
attend to each other, because of causality or windows, have the value 0; such models do not support maps of scores. No
array has T x T x D elements. The dtype follows the hidden states: float32 when serving, float64 in the tests of the
formulas.

A layer's graph computes its attention from the layer's input. With the output map Wo_h of each head, the contribution
of j to the attention output of i is the sum over h of `probs[h, i, j] * values[h, j] Wo_h`. Rotary positions, windows,
causality, grouped queries, and query and key norms affect only probs and values.

Sources: Vaswani et al. 2017 (scores, probs); Kobayashi et al. 2020 (norm) and 2021 (block_norm); Abnar and Zuidema 2020
(rollout). projection projects the terms of Kobayashi's decomposition onto their sum.

block_norm and projection decompose the output of the norm that reads the attention output. In post-norm blocks, this is
the norm after the residual connection, as published. In pre-norm blocks, it is the norm before the feed-forward
network: the residual stream itself has a few very large channels that would mask all others. In sandwich blocks, the
norm reads only the attention output, so the residual stream is decomposed, including the token's own hidden state.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from attendant_client.types import HeadReduce, Kind, MapLayerReduce, SpecialTokens
from numpy.typing import NDArray

from model.artifact.manifest import Architecture
from service.engine.engine import Engine
from service.engine.layers import AttentionOutput, Layer, OutputWeights
from service.errors import RequestTooLarge

Floats = NDArray[Any]


@dataclass(frozen=True, slots=True)
class AttentionMapSpec:
    """The maps to compute: `layers` 1..L in the order of the request, `heads` 0..H-1."""

    kind: Kind
    layers: tuple[int, ...]
    heads: tuple[int, ...]
    head_reduce: HeadReduce
    layer_reduce: MapLayerReduce

    @property
    def by_head(self) -> bool:
        """True if each head has its own map."""
        per_head = self.kind in ("probs", "scores", "norm") and self.layer_reduce != "rollout"
        return per_head and self.head_reduce == "none"

    @property
    def count(self) -> int:
        """Number of maps."""
        layers = len(self.layers) if self.layer_reduce == "none" else 1
        return layers * (len(self.heads) if self.by_head else 1)

    @property
    def signed(self) -> bool:
        """True if values may be negative."""
        return self.kind == "scores" or (self.kind == "projection" and self.layer_reduce != "rollout")

    @property
    def has_bias_share(self) -> bool:
        return self.kind == "projection" and self.layer_reduce != "rollout"

    def at_most_one(self, special_tokens: SpecialTokens) -> bool:
        """Return whether every value is between 0 and 1."""
        shares = self.kind == "probs" or self.layer_reduce == "rollout" or special_tokens == "renormalize"
        return shares and not self.signed


class LayerMaps:
    """Maps of one layer for one sequence; `hidden` is the layer's input, (T, D).

    `heads` selects the heads of `scores`, `probs` and the norms. block_norm and projection require all heads.
    """

    def __init__(
        self, hidden: Floats, attention: Mapping[AttentionOutput, Floats], weights: OutputWeights,
        heads: Sequence[int] | None = None,
    ) -> None:  # fmt: skip
        self._hidden = hidden
        self._attention = attention
        self._weights = weights
        count = len(next(iter(attention.values())))
        self._heads = slice(None) if heads is None or [*heads] == [*range(count)] else [*heads]

    @cached_property
    def scores(self) -> Floats:
        """(H, T, T): scaled dot products of query and key, with a relative position bias if the model has one."""
        return self._attention["scores"][self._heads]

    @cached_property
    def probs(self) -> Floats:
        """(H, T, T): attention weights, the softmax of the scores. Rows sum to 1."""
        return self._attention["probs"][self._heads]

    @cached_property
    def norm_per_head(self) -> Floats:
        """(H, T, T): norms of the weighted value vectors per head, `A[h, i, j] * ||f(h, j)||` (2020, eq. 5)."""
        lengths = np.sqrt(np.einsum("hjd,hjd->hj", self._transformed, self._transformed))
        return self.probs * lengths[:, None, :]

    @cached_property
    def norm(self) -> Floats:
        """(T, T): norm of j's contribution to i's attention output, over all heads (2020, eq. 7)."""
        return np.sqrt(np.maximum(self._squared_sums(self._transformed), 0))

    @cached_property
    def block_norm(self) -> Floats:
        """(T, T): norm of j's contribution to i's decomposed result, including the residual (2021, eq. 7)."""
        terms = self._scale_centered(self._transformed)
        residual = self._residual
        squares = self._squared_sums(terms)
        own = np.einsum("hii->ih", self.probs)
        aligned = np.einsum("hid,id->ih", terms, residual)
        diagonal = np.arange(len(squares))
        squares[diagonal, diagonal] += 2 * (own * aligned).sum(axis=1) + np.einsum("id,id->i", residual, residual)
        return np.sqrt(np.maximum(squares, 0)) / self._deviation[:, None]

    @cached_property
    def projection(self) -> Floats:
        """(T, T): j's term in i's decomposed result y, projected onto y: `<term, y> / <y, y>`.

        Signed; a row and its `bias_share` sum to 1. Inner products are computed per head, at the same cost as the
        scores.
        """
        by_head = (self._direction @ self._weights.output.T).reshape(len(self._hidden), len(self._values), -1)
        values = np.ascontiguousarray(by_head.swapaxes(0, 1)) @ self._values.swapaxes(1, 2)
        values *= self.probs
        parts = values.sum(axis=0, initial=0)  # without an initial value, the sum over a masked key can be -0.0
        diagonal = np.arange(len(parts))
        parts[diagonal, diagonal] += np.einsum("id,id->i", self._residual, self._result)
        return parts / (self._deviation * self._squared_length)[:, None]

    @cached_property
    def bias_share(self) -> Floats:
        """(T,): the share of y from the biases of the output map and the norm."""
        share = np.zeros(len(self._hidden), self._hidden.dtype)
        if self._weights.output_bias is not None:
            share += self._direction @ self._weights.output_bias / self._deviation
        if self._weights.norm_bias is not None:
            share += self._result @ self._weights.norm_bias
        return share / self._squared_length

    @property
    def _values(self) -> Floats:
        return self._attention["values"][self._heads]

    @cached_property
    def _transformed(self) -> Floats:
        """(H, T, D): j's value times the output weights of head h."""
        output = self._weights.output
        return self._values @ output.reshape(len(self._attention["values"]), -1, output.shape[1])[self._heads]

    @cached_property
    def _summed(self) -> Floats:
        """(T, D): the norm's input."""
        mixed = (self.probs @ self._values).swapaxes(0, 1).reshape(len(self._hidden), -1)
        summed = mixed @ self._weights.output
        if self._weights.output_bias is not None:
            summed = summed + self._weights.output_bias
        return summed + self._hidden if self._weights.residual_in_norm else summed

    @cached_property
    def _deviation(self) -> Floats:
        squares = np.square(self._center(self._summed)).mean(axis=1)
        return np.sqrt(squares + self._summed.dtype.type(self._weights.eps))

    @cached_property
    def _residual(self) -> Floats:
        """(T, D): the residual stream's term in the result, multiplied by the standard deviation like all terms."""
        if self._weights.residual_in_norm:
            return self._scale_centered(self._hidden)
        return self._hidden * self._deviation[:, None]

    @cached_property
    def _result(self) -> Floats:
        """(T, D): y, the output of the norm, plus the residual stream if the norm does not read it."""
        result = self._scale_centered(self._summed) / self._deviation[:, None]
        if self._weights.norm_bias is not None:
            result = result + self._weights.norm_bias
        return result if self._weights.residual_in_norm else result + self._hidden

    @cached_property
    def _direction(self) -> Floats:
        """(T, D): y times the transposed linear part of the norm. Its product with a term is a summand of `<y, y>`."""
        return self._center(self._weights.norm * self._result)

    @cached_property
    def _squared_length(self) -> Floats:
        squares = np.einsum("id,id->i", self._result, self._result)
        return np.maximum(squares, np.finfo(squares.dtype).tiny)  # avoids 0 / 0 if all weights of a norm are 0

    def _squared_sums(self, terms: Floats) -> Floats:
        """Return `||sum over h of A[h, i, j] terms[h, j]||^2`, (T, T), from the inner products of the H terms of j."""
        by_source = np.ascontiguousarray(terms.swapaxes(0, 1))  # (T, H, D)
        products = by_source @ by_source.swapaxes(1, 2)  # (T, H, H)
        weights = np.ascontiguousarray(self.probs.T)  # (T source, T query, H)
        return np.einsum("jih,jih->ij", weights @ products, weights)

    def _scale_centered(self, vectors: Floats) -> Floats:
        """Apply the norm to a term of its input, without dividing by the standard deviation."""
        return self._center(vectors) * self._weights.norm

    def _center(self, vectors: Floats) -> Floats:
        return vectors - vectors.mean(axis=-1, keepdims=True) if self._weights.centered else vectors


@dataclass(frozen=True)
class TokenMaps:
    """Maps over tokens, (N, T, T). `layer` (1..L) and entries of `heads` are None where several were combined."""

    layer: int | None
    heads: Sequence[int | None]
    """The head of each map."""
    values: Floats
    bias_share: Floats | None


COMBINED_HEADS = (None,)


def token_maps(hidden: Floats, layers: Sequence[Layer], spec: AttentionMapSpec) -> Iterator[TokenMaps]:
    """Yield the maps of one sequence, layer by layer; `hidden` (L+1, T, D) contains the hidden states of all layers."""
    if spec.layer_reduce == "rollout":
        yield TokenMaps(None, COMBINED_HEADS, _rollout(hidden, layers, spec)[None], None)
        return
    by_layer = (_layer_maps(hidden, layers, spec, layer) for layer in spec.layers)
    if spec.layer_reduce == "none":
        yield from by_layer
        return
    count, first = len(spec.layers), next(by_layer)
    values, bias_share = first.values, first.bias_share
    for maps in by_layer:
        values = values + maps.values
        bias_share = None if bias_share is None else bias_share + maps.bias_share
    yield TokenMaps(None, first.heads, values / count, None if bias_share is None else bias_share / count)


def _layer_maps(hidden: Floats, layers: Sequence[Layer], spec: AttentionMapSpec, layer: int) -> TokenMaps:
    attention = _attend(hidden, layers, spec, layer)
    bias_share = attention.bias_share if spec.has_bias_share else None
    if spec.by_head:
        name = {"probs": "probs", "scores": "scores", "norm": "norm_per_head"}[spec.kind]
        return TokenMaps(layer, spec.heads, getattr(attention, name), bias_share)
    values: Floats = getattr(attention, spec.kind)
    if values.ndim == 3:
        values = values.max(axis=0) if spec.head_reduce == "max" else values.mean(axis=0)
    return TokenMaps(layer, COMBINED_HEADS, values[None], bias_share)


OUTPUTS: dict[Kind, tuple[AttentionOutput, ...]] = {"probs": ("probs",), "scores": ("scores",)}
"""The layer graph outputs that a kind needs, if not probs and values."""


def _attend(hidden: Floats, layers: Sequence[Layer], spec: AttentionMapSpec, number: int) -> LayerMaps:
    """Run the attention of layer `number`, 1 to L."""
    layer, inputs = layers[number - 1], hidden[number - 1]
    outputs = OUTPUTS.get(spec.kind, ("probs", "values"))
    heads = None if spec.kind in ("block_norm", "projection") else spec.heads
    return LayerMaps(inputs, layer.attend(inputs, outputs), layer.weights, heads)


def _rollout(hidden: Floats, layers: Sequence[Layer], spec: AttentionMapSpec) -> Floats:
    """Return `B[l] ... B[2] B[1]`, (T, T), up to the highest requested layer l. Rows sum to 1.

    For probs, B averages the mean over heads and the identity, which represents the residual (Abnar and Zuidema 2020,
    section 3). For other kinds, B contains absolute values, each row divided by its sum: block_norm and projection
    include the residual, while norm covers only attention.
    """
    rollout: Floats | None = None
    for layer in range(1, max(spec.layers) + 1):
        attention = _attend(hidden, layers, spec, layer)
        if spec.kind == "probs":
            mean = attention.probs.mean(axis=0)
            step = (mean + np.eye(len(mean), dtype=mean.dtype)) / 2
        else:
            step = np.abs(getattr(attention, spec.kind))
            step /= np.maximum(step.sum(axis=1, keepdims=True), np.finfo(step.dtype).tiny)
        rollout = step if rollout is None else step @ rollout
    assert rollout is not None
    return rollout


# Memory

FLOAT_BYTES = 4
MAP_TENSORS = 3
"""Number of (H, T, T) tensors in memory at the same time while one layer's maps are computed."""


def explain_bytes(architecture: Architecture, tokens: int, *, maps: bool) -> int:
    """Return the bytes of the intermediate results for an input of T tokens.

    They are the hidden states, float32 (L+1, T, D), and with `maps` one layer's intermediate results.
    """
    linear, square = _coefficients(architecture, maps=maps)
    return tokens * (linear + square * tokens)


def max_explained_tokens(architecture: Architecture, limit: int, *, maps: bool) -> int:
    """Return the length in tokens of the longest input whose intermediate results fit in `limit` bytes."""
    linear, square = _coefficients(architecture, maps=maps)
    if not square:
        return limit // linear
    return (math.isqrt(linear * linear + 4 * square * limit) - linear) // (2 * square)


def _coefficients(architecture: Architecture, *, maps: bool) -> tuple[int, int]:
    """Return the bytes per token and per pair of tokens."""
    hidden_states = (architecture.num_hidden_layers + 1) * architecture.hidden_size
    map_values = MAP_TENSORS * architecture.num_attention_heads if maps else 0
    return FLOAT_BYTES * hidden_states, FLOAT_BYTES * map_values


def check_explain_size(engine: Engine, sizes: Sequence[int], *, maps: bool, path: str | None = None) -> None:
    """Raise `RequestTooLarge` for an input whose intermediate results exceed the limit.

    `sizes`: the number of tokens per input. `path` overrides the field path in errors.
    """
    architecture, limit = engine.manifest.architecture, engine.limits.max_explain_bytes
    for index, size in enumerate(sizes):
        needed = explain_bytes(architecture, size, maps=maps)
        if needed > limit:
            fitting = max_explained_tokens(architecture, limit, maps=maps)
            raise RequestTooLarge(
                "intermediate results too large", f"Send a shorter text (at most {fitting} tokens).",
                field=path or f"inputs[{index}]", actual=needed, maximum=limit, unit="bytes",
            )  # fmt: skip
