"""Attention maps over tokens, recomputed from what went into each block and that block's weights.

Post-LN blocks (BERT and its kin). T tokens, D width, H heads of width D/H, L blocks; `map[i, j]` is what token i
takes from token j. Nothing here is ever as large as T x T x D. The element type is that of what comes in: float32 when
serving, float64 in the tests that show the formulas exact.

Sources: Vaswani et al. 2017 (scores, probs); Kobayashi et al. 2020 (norm) and 2021 (block_norm);
Abnar & Zuidema 2020 (rollout). projection is their decomposition, projected on what it adds up to.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model.artifact import Artifact
from service.engine.schema.explain import AttentionMapSpec

Floats = NDArray[Any]


@dataclass(frozen=True)
class BlockWeights:
    """One block's attention and the layer norm after it; linear maps are `x @ weight + bias`."""

    heads: int
    eps: float
    query: Floats
    query_bias: Floats
    key: Floats
    key_bias: Floats
    value: Floats
    value_bias: Floats
    output: Floats
    output_bias: Floats
    norm: Floats
    norm_bias: Floats

    @classmethod
    def of(cls, artifact: Artifact) -> "tuple[BlockWeights, ...]":
        """All L blocks, on disk until their pages are touched."""
        manifest = artifact.manifest
        return tuple(
            cls(
                manifest.num_attention_heads,
                manifest.layer_norm_eps,
                **{name: np.asarray(artifact.map(record)) for name, record in block},
            )
            for block in manifest.blocks
        )


class BlockAttention:
    """What one block's attention did to one text: `hidden` is what went into the block, `(T, D)`.

    `heads` are the heads that `scores`, `probs` and the norms are of; block_norm and projection need all of them.
    """

    def __init__(self, hidden: Floats, weights: BlockWeights, heads: Sequence[int] | None = None) -> None:
        self._hidden = hidden
        self._weights = weights
        self._heads = list(range(weights.heads) if heads is None else heads)

    @cached_property
    def scores(self) -> Floats:
        """`(H, T, T)`: query times key over the root of the head's width, before the softmax."""
        weights = self._weights
        query = self._split(self._hidden @ weights.query + weights.query_bias)
        key = self._split(self._hidden @ weights.key + weights.key_bias)
        query *= query.shape[-1] ** -0.5
        return query @ key.swapaxes(1, 2)

    @cached_property
    def probs(self) -> Floats:
        """`(H, T, T)`, the softmax of the scores: rows sum to 1."""
        probs = self.scores - self.scores.max(axis=-1, keepdims=True)
        np.exp(probs, out=probs)
        probs /= probs.sum(axis=-1, keepdims=True)
        return probs

    @cached_property
    def norm_of_each_head(self) -> Floats:
        """`(H, T, T)`: how long a vector each head takes from j to i, `A[h, i, j] * ||f(h, j)||` (2020, eq. 5)."""
        lengths = np.sqrt(np.einsum("hjd,hjd->hj", self._transformed, self._transformed))
        return self.probs * lengths[:, None, :]

    @cached_property
    def norm(self) -> Floats:
        """`(T, T)`: how far the attention's output for i moves if the value of j is made zero (2020, eq. 7)."""
        return np.sqrt(np.maximum(self._squared_sums(self._transformed), 0))

    @cached_property
    def block_norm(self) -> Floats:
        """`(T, T)`: the length of j's part of the layer norm's output for i, residual included (2021, eq. 7)."""
        terms = self._scale_centred(self._transformed)
        residual = self._scale_centred(self._hidden)
        squares = self._squared_sums(terms)
        own = np.einsum("hii->ih", self.probs)
        aligned = np.einsum("hid,id->ih", terms, residual)
        each = np.arange(len(squares))
        squares[each, each] += 2 * (own * aligned).sum(axis=1) + np.einsum("id,id->i", residual, residual)
        return np.sqrt(np.maximum(squares, 0)) / self._deviation[:, None]

    @cached_property
    def projection(self) -> Floats:
        """`(T, T)`: j's part of the layer norm's output y for i, along y: `<part, y> / <y, y>`.

        Signed; a row and its `bias_share` sum to 1. The inner products are taken in each head's own space, so that
        they cost what the scores cost.
        """
        values = self._split(self._direction @ self._weights.output.T) @ self._values.swapaxes(1, 2)
        values *= self.probs
        parts = values.sum(axis=0)
        each = np.arange(len(parts))
        parts[each, each] += np.einsum("id,id->i", self._hidden, self._direction)
        return parts / (self._deviation * self._squared_length)[:, None]

    @cached_property
    def bias_share(self) -> Floats:
        """`(T,)`: the share of y that the biases of the output map and the layer norm make, and no token."""
        biases = self._direction @ self._weights.output_bias / self._deviation + self._normed @ self._weights.norm_bias
        return biases / self._squared_length

    @cached_property
    def _values(self) -> Floats:
        return self._split(self._hidden @ self._weights.value + self._weights.value_bias)

    @cached_property
    def _transformed(self) -> Floats:
        """`(H, T, D)`, f(h, j): a head's value of j, taken through that head's part of the output map."""
        output = self._weights.output
        return self._values @ output.reshape(self._weights.heads, -1, output.shape[1])[self._heads]

    @cached_property
    def _summed(self) -> Floats:
        """`(T, D)`, what goes into the layer norm: the residual, what all heads took, the output map's bias."""
        mixed = (self.probs @ self._values).swapaxes(0, 1).reshape(self._hidden.shape)
        return self._hidden + mixed @ self._weights.output + self._weights.output_bias

    @cached_property
    def _deviation(self) -> Floats:
        return np.sqrt(self._summed.var(axis=1) + self._summed.dtype.type(self._weights.eps))

    @cached_property
    def _normed(self) -> Floats:
        """`(T, D)`, y: the layer norm's output."""
        return self._scale_centred(self._summed) / self._deviation[:, None] + self._weights.norm_bias

    @cached_property
    def _direction(self) -> Floats:
        """`(T, D)`: y taken back through the layer norm, so that a part's product with it is its part of `<y, y>`."""
        return self._centre(self._weights.norm * self._normed)

    @cached_property
    def _squared_length(self) -> Floats:
        squares = np.einsum("id,id->i", self._normed, self._normed)
        return np.maximum(squares, np.finfo(squares.dtype).tiny)  # a layer norm may be trained to nothing: no 0 / 0

    def _squared_sums(self, terms: Floats) -> Floats:
        """`||sum over h of A[h, i, j] terms[h, j]||^2` as `(T, T)`, from the inner products of each j's H terms."""
        by_source = np.ascontiguousarray(terms.swapaxes(0, 1))  # (T, H, D)
        products = by_source @ by_source.swapaxes(1, 2)  # (T, H, H)
        weights = np.ascontiguousarray(self.probs.T)  # (T source, T query, H)
        return np.einsum("jih,jih->ij", weights @ products, weights)

    def _scale_centred(self, vectors: Floats) -> Floats:
        """What a layer norm does to a term of its input, but for the deviation."""
        return self._centre(vectors) * self._weights.norm

    @staticmethod
    def _centre(vectors: Floats) -> Floats:
        return vectors - vectors.mean(axis=-1, keepdims=True)

    def _split(self, x: Floats) -> Floats:
        """`(T, D)` to the chosen heads, `(H, T, D/H)`."""
        return np.ascontiguousarray(x.reshape(len(x), self._weights.heads, -1).swapaxes(0, 1)[self._heads])


@dataclass(frozen=True)
class TokenMaps:
    """Maps over tokens, `(N, T, T)`: one a head, or one with `heads` None. `layer` is 1..L, None where reduced."""

    layer: int | None
    heads: tuple[int, ...] | None
    values: Floats
    bias_share: Floats | None

    @property
    def each_head(self) -> Sequence[int | None]:
        """What the first axis of `values` is."""
        return (None,) if self.heads is None else self.heads


def token_maps(hidden: Floats, blocks: Sequence[BlockWeights], plan: AttentionMapSpec) -> Iterator[TokenMaps]:
    """The maps of one text, layer by layer; `hidden` `(L+1, T, D)` is what every layer gave, the embeddings first."""
    if plan.layer_reduce == "rollout":
        yield TokenMaps(None, None, _rollout(hidden, blocks, plan)[None], None)
        return
    each = (_layer_maps(hidden, blocks, plan, layer) for layer in plan.layers)
    if plan.layer_reduce == "none":
        yield from each
        return
    count, mean = len(plan.layers), next(each)
    values, bias_share = mean.values, mean.bias_share
    for found in each:
        values = values + found.values
        bias_share = None if bias_share is None else bias_share + found.bias_share
    yield TokenMaps(None, mean.heads, values / count, None if bias_share is None else bias_share / count)


def _layer_maps(hidden: Floats, blocks: Sequence[BlockWeights], plan: AttentionMapSpec, layer: int) -> TokenMaps:
    attention = BlockAttention(hidden[layer - 1], blocks[layer - 1], plan.heads)
    bias_share = attention.bias_share if plan.has_bias_share else None
    if plan.by_head:
        each = {"probs": "probs", "scores": "scores", "norm": "norm_of_each_head"}[plan.kind]
        return TokenMaps(layer, plan.heads, getattr(attention, each), bias_share)
    values: Floats = getattr(attention, plan.kind)
    if values.ndim == 3:
        values = values.max(axis=0) if plan.head_reduce == "max" else values.mean(axis=0)
    return TokenMaps(layer, None, values[None], bias_share)


def _rollout(hidden: Floats, blocks: Sequence[BlockWeights], plan: AttentionMapSpec) -> Floats:
    """`B[l] ... B[2] B[1]` for the highest layer l that was asked for; rows sum to 1.

    For probs B is half the mean of the heads and half the identity, which stands for the residual (Abnar & Zuidema
    2020, section 3). For the other kinds B has the rows of absolute values, each divided by its sum: the residual is
    inside block_norm and projection, and norm is of the attention alone.
    """
    rolled: Floats | None = None
    for layer in range(1, max(plan.layers) + 1):
        attention = BlockAttention(hidden[layer - 1], blocks[layer - 1], plan.heads)
        if plan.kind == "probs":
            mean = attention.probs.mean(axis=0)
            step = (mean + np.eye(len(mean), dtype=mean.dtype)) / 2
        else:
            step = np.abs(getattr(attention, plan.kind))
            step /= np.maximum(step.sum(axis=1, keepdims=True), np.finfo(step.dtype).tiny)
        rolled = step if rolled is None else step @ rolled
    assert rolled is not None
    return rolled
