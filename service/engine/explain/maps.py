"""Attention maps over tokens, recomputed from the input of each block and its weights.

For post-LN blocks such as BERT's. T tokens, D hidden size, H heads of size D/H, L blocks. In `map[i, j]`, i is
the query and j the key. In causal models, values with j > i are 0, and scores -inf. No array has T x T x D elements.
The dtype follows the hidden states: float32 when serving, float64 in the tests of the formulas.

Sources: Vaswani et al. 2017 (scores, probs); Kobayashi et al. 2020 (norm) and 2021 (block_norm); Abnar and Zuidema 2020
(rollout). projection projects the terms of Kobayashi's decomposition on their sum.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model.artifact import Artifact
from model.manifest import BlocksRecord
from service.engine.schema.explain import AttentionMapSpec

Floats = NDArray[Any]


@dataclass(frozen=True)
class BlockWeights:
    """Weights of the attention of one block and of the layer norm after it; linear maps are `x @ weight + bias`.

    `causal`: tokens do not attend to later tokens.
    """

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
    causal: bool = False


class MappedBlocks(Sequence[BlockWeights]):
    """The weights of a model's blocks in its artifact. Each access returns one block's, in float32."""

    def __init__(self, artifact: Artifact) -> None:
        self._architecture = artifact.manifest.architecture
        blocks = artifact.manifest.blocks
        self._eps = blocks.layer_norm_eps if isinstance(blocks, BlocksRecord) else 0
        self._blocks = [
            {name: artifact.map(record) for name, record in block}
            for block in (blocks.weights if isinstance(blocks, BlocksRecord) else ())
        ]

    def __len__(self) -> int:
        return len(self._blocks)

    def __getitem__(self, index: Any) -> Any:
        return BlockWeights(
            self._architecture.num_attention_heads,
            self._eps,
            **{name: tensor[:] for name, tensor in self._blocks[index].items()},
            causal=self._architecture.attention == "causal",
        )


class BlockAttention:
    """Attention of one block in one sequence; `hidden` is the input of the block, (T, D).

    `heads` are those of `scores`, `probs` and the norms. block_norm and projection require all heads.
    """

    def __init__(self, hidden: Floats, weights: BlockWeights, heads: Sequence[int] | None = None) -> None:
        self._hidden = hidden
        self._weights = weights
        self._heads = list(range(weights.heads) if heads is None else heads)

    @cached_property
    def scores(self) -> Floats:
        """(H, T, T): scaled dot products of query and key, the input of the softmax."""
        weights = self._weights
        query = self._split(self._hidden @ weights.query + weights.query_bias)
        key = self._split(self._hidden @ weights.key + weights.key_bias)
        query *= query.shape[-1] ** -0.5
        scores: Floats = query @ key.swapaxes(1, 2)
        if weights.causal:
            scores[:, np.triu(np.ones(scores.shape[1:], dtype=bool), 1)] = -np.inf
        return scores

    @cached_property
    def probs(self) -> Floats:
        """(H, T, T): attention weights, the softmax of the scores. Rows sum to 1."""
        probs = self.scores - self.scores.max(axis=-1, keepdims=True)
        np.exp(probs, out=probs)
        probs /= probs.sum(axis=-1, keepdims=True)
        return probs

    @cached_property
    def norm_per_head(self) -> Floats:
        """(H, T, T): norms of the weighted value vectors per head, `A[h, i, j] * ||f(h, j)||` (2020, eq. 5)."""
        lengths = np.sqrt(np.einsum("hjd,hjd->hj", self._transformed, self._transformed))
        return self.probs * lengths[:, None, :]

    @cached_property
    def norm(self) -> Floats:
        """(T, T): norm of the contribution of j to the attention output of i, over all heads (2020, eq. 7)."""
        return np.sqrt(np.maximum(self._squared_sums(self._transformed), 0))

    @cached_property
    def block_norm(self) -> Floats:
        """(T, T): norm of the contribution of j to the layer norm output of i, with the residual (2021, eq. 7)."""
        terms = self._scale_centered(self._transformed)
        residual = self._scale_centered(self._hidden)
        squares = self._squared_sums(terms)
        own = np.einsum("hii->ih", self.probs)
        aligned = np.einsum("hid,id->ih", terms, residual)
        diagonal = np.arange(len(squares))
        squares[diagonal, diagonal] += 2 * (own * aligned).sum(axis=1) + np.einsum("id,id->i", residual, residual)
        return np.sqrt(np.maximum(squares, 0)) / self._deviation[:, None]

    @cached_property
    def projection(self) -> Floats:
        """(T, T): the term of j in the layer norm output y of i, projected on y: `<term, y> / <y, y>`.

        Signed; a row and its `bias_share` sum to 1. Inner products are computed per head, so that they cost as much as
        the scores.
        """
        values = self._split(self._direction @ self._weights.output.T) @ self._values.swapaxes(1, 2)
        values *= self.probs
        parts = values.sum(axis=0, initial=0)  # without the initial value, the sum over a masked key can be -0.0
        diagonal = np.arange(len(parts))
        parts[diagonal, diagonal] += np.einsum("id,id->i", self._hidden, self._direction)
        return parts / (self._deviation * self._squared_length)[:, None]

    @cached_property
    def bias_share(self) -> Floats:
        """(T,): the share of y from the biases of the output map and the layer norm."""
        biases = self._direction @ self._weights.output_bias / self._deviation + self._normed @ self._weights.norm_bias
        return biases / self._squared_length

    @cached_property
    def _values(self) -> Floats:
        return self._split(self._hidden @ self._weights.value + self._weights.value_bias)

    @cached_property
    def _transformed(self) -> Floats:
        """(H, T, D): f(h, j), the value of j times the output weights of head h."""
        output = self._weights.output
        return self._values @ output.reshape(self._weights.heads, -1, output.shape[1])[self._heads]

    @cached_property
    def _summed(self) -> Floats:
        """(T, D): the input of the layer norm: residual, attention output and output bias."""
        mixed = (self.probs @ self._values).swapaxes(0, 1).reshape(self._hidden.shape)
        return self._hidden + mixed @ self._weights.output + self._weights.output_bias

    @cached_property
    def _deviation(self) -> Floats:
        return np.sqrt(self._summed.var(axis=1) + self._summed.dtype.type(self._weights.eps))

    @cached_property
    def _normed(self) -> Floats:
        """(T, D): y, the output of the layer norm."""
        return self._scale_centered(self._summed) / self._deviation[:, None] + self._weights.norm_bias

    @cached_property
    def _direction(self) -> Floats:
        """(T, D): y times the transposed linear part of the layer norm; its product with a term is part of `<y, y>`."""
        return self._center(self._weights.norm * self._normed)

    @cached_property
    def _squared_length(self) -> Floats:
        squares = np.einsum("id,id->i", self._normed, self._normed)
        return np.maximum(squares, np.finfo(squares.dtype).tiny)  # avoids 0 / 0 if all weights of a layer norm are 0

    def _squared_sums(self, terms: Floats) -> Floats:
        """Return `||sum over h of A[h, i, j] terms[h, j]||^2`, (T, T), from the inner products of the H terms of j."""
        by_source = np.ascontiguousarray(terms.swapaxes(0, 1))  # (T, H, D)
        products = by_source @ by_source.swapaxes(1, 2)  # (T, H, H)
        weights = np.ascontiguousarray(self.probs.T)  # (T source, T query, H)
        return np.einsum("jih,jih->ij", weights @ products, weights)

    def _scale_centered(self, vectors: Floats) -> Floats:
        """Apply a layer norm to a term of its input, without dividing by the deviation."""
        return self._center(vectors) * self._weights.norm

    @staticmethod
    def _center(vectors: Floats) -> Floats:
        return vectors - vectors.mean(axis=-1, keepdims=True)

    def _split(self, x: Floats) -> Floats:
        """Split (T, D) into the selected heads, (H, T, D/H)."""
        return np.ascontiguousarray(x.reshape(len(x), self._weights.heads, -1).swapaxes(0, 1)[self._heads])


@dataclass(frozen=True)
class TokenMaps:
    """Maps over tokens, (N, T, T); `layer` 1..L and `heads` have None where several were combined."""

    layer: int | None
    heads: Sequence[int | None]
    """The head of each map."""
    values: Floats
    bias_share: Floats | None


COMBINED_HEADS = (None,)


def token_maps(hidden: Floats, blocks: Sequence[BlockWeights], spec: AttentionMapSpec) -> Iterator[TokenMaps]:
    """Yield the maps of one sequence, layer by layer; `hidden` (L+1, T, D) are the hidden states of all layers."""
    if spec.layer_reduce == "rollout":
        yield TokenMaps(None, COMBINED_HEADS, _rollout(hidden, blocks, spec)[None], None)
        return
    layers = (_layer_maps(hidden, blocks, spec, layer) for layer in spec.layers)
    if spec.layer_reduce == "none":
        yield from layers
        return
    count, first = len(spec.layers), next(layers)
    values, bias_share = first.values, first.bias_share
    for maps in layers:
        values = values + maps.values
        bias_share = None if bias_share is None else bias_share + maps.bias_share
    yield TokenMaps(None, first.heads, values / count, None if bias_share is None else bias_share / count)


def _layer_maps(hidden: Floats, blocks: Sequence[BlockWeights], spec: AttentionMapSpec, layer: int) -> TokenMaps:
    attention = BlockAttention(hidden[layer - 1], blocks[layer - 1], spec.heads)
    bias_share = attention.bias_share if spec.has_bias_share else None
    if spec.by_head:
        name = {"probs": "probs", "scores": "scores", "norm": "norm_per_head"}[spec.kind]
        return TokenMaps(layer, spec.heads, getattr(attention, name), bias_share)
    values: Floats = getattr(attention, spec.kind)
    if values.ndim == 3:
        values = values.max(axis=0) if spec.head_reduce == "max" else values.mean(axis=0)
    return TokenMaps(layer, COMBINED_HEADS, values[None], bias_share)


def _rollout(hidden: Floats, blocks: Sequence[BlockWeights], spec: AttentionMapSpec) -> Floats:
    """Return `B[l] ... B[2] B[1]`, (T, T), for the highest requested layer l. Rows sum to 1.

    For probs, B is the average of the mean over heads and the identity, which stands for the residual (Abnar and
    Zuidema 2020, section 3). For the other kinds, B holds absolute values, each row divided by its sum: block_norm and
    projection include the residual, and norm is of the attention alone.
    """
    rollout: Floats | None = None
    for layer in range(1, max(spec.layers) + 1):
        attention = BlockAttention(hidden[layer - 1], blocks[layer - 1], spec.heads)
        if spec.kind == "probs":
            mean = attention.probs.mean(axis=0)
            step = (mean + np.eye(len(mean), dtype=mean.dtype)) / 2
        else:
            step = np.abs(getattr(attention, spec.kind))
            step /= np.maximum(step.sum(axis=1, keepdims=True), np.finfo(step.dtype).tiny)
        rollout = step if rollout is None else step @ rollout
    assert rollout is not None
    return rollout
