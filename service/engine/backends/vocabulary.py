"""The projection onto the vocabulary, in blocks of its mapped table, and the words that it predicts."""

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from threadpoolctl import threadpool_limits

from model.artifact.files import Artifact
from model.artifact.manifest import MaskedLMHead, TensorRecord
from service.engine.backends.cpu_session import open_cpu_session
from service.engine.encode.pooling import Floats
from service.engine.schema.tasks import PredictedWords, WordQuery
from service.errors import NonFiniteOutput

if TYPE_CHECKING:
    import onnxruntime

BLOCK_ENTRIES = 4096
PREDICTED_ROWS = 8
"""Positions whose logits for all entries are in memory at the same time: 8 MB for 250,000 entries."""


class Projection:
    """Logits (N, V) of features (N, E), computed in blocks of entries."""

    def __init__(self, artifact: Artifact, decoder: TensorRecord, bias: TensorRecord | None) -> None:
        threadpool_limits(1, user_api="blas")  # a batch has one thread; see ExplainBackend
        self._decoder = artifact.map(decoder)
        self._bias = None if bias is None else np.array(artifact.map(bias)[:])
        self.size = decoder.shape[0]

    def blocks(self) -> Iterator[tuple[slice, Floats]]:
        """Yield ranges of entries, each with its table (E, block)."""
        for start in range(0, self.size, BLOCK_ENTRIES):
            block = slice(start, min(self.size, start + BLOCK_ENTRIES))
            yield block, self._decoder[block].T

    def logits(self, rows: Floats, block: slice, table: Floats) -> Floats:
        """Return the logits (N, block) of rows (N, E)."""
        logits: Floats = rows @ table
        if self._bias is not None:
            logits += self._bias[block]
        return logits


class MaskedWords:
    """The words of a masked-LM head, in float32."""

    def __init__(self, artifact: Artifact, head: MaskedLMHead) -> None:
        self._projection = Projection(artifact, head.decoder, head.bias)
        self._last = _open(artifact, head.graph)
        self._earlier = self._last if head.layer_graph is None else _open(artifact, head.layer_graph)

    def predict(self, hidden: Floats, query: WordQuery, *, last_layer: bool) -> PredictedWords:
        """Return the words at the positions of a query, given the hidden states (T, D) of a layer.

        Raises:
            NonFiniteOutput: a logit is infinite or NaN.
        """
        query = replace(query, count=min(query.count, self._projection.size))
        rows = hidden[list(query.positions)].astype(np.float32, copy=False)
        session = self._last if last_layer else self._earlier
        if session is not None:
            (rows,) = session.run(None, {"rows": rows})
        parts = [
            self._rank(rows[start : start + PREDICTED_ROWS], query) for start in range(0, len(rows), PREDICTED_ROWS)
        ]
        ids, probabilities = zip(*parts, strict=True)
        return PredictedWords(np.concatenate(ids), np.concatenate(probabilities))

    def _rank(self, rows: Floats, query: WordQuery) -> tuple[Floats, Floats]:
        """Return the ids and the probabilities (N, K) of the likeliest entries for rows (N, E)."""
        logits: Floats = np.empty((len(rows), self._projection.size), dtype=np.float32)
        for block, table in self._projection.blocks():
            logits[:, block] = self._projection.logits(rows, block, table)
        logits -= logits.max(axis=1, keepdims=True)
        totals = np.exp(logits).sum(axis=1, keepdims=True, dtype=np.float64)
        if not np.isfinite(totals.sum()):
            raise NonFiniteOutput
        if query.targets is not None:
            ids = np.broadcast_to(np.sort(query.targets), (len(rows), len(query.targets)))
        else:
            # The K-th largest logit decides; of entries with an equal logit, the smallest ids.
            least = np.partition(logits, -query.count, axis=1)[:, -query.count]
            ids = np.stack([_likeliest(row, bound, query.count) for row, bound in zip(logits, least, strict=True)])
        chosen = np.take_along_axis(logits, ids, axis=1)
        order = np.argsort(-chosen, axis=1, kind="stable")[:, : query.count]
        probabilities = np.exp(np.take_along_axis(chosen, order, axis=1)) / totals
        return np.take_along_axis(ids, order, axis=1), probabilities.astype(np.float32)


def _likeliest(logits: Floats, least: float, count: int) -> Floats:
    """Return the ids of the `count` largest logits, ascending; of equal ones, the smallest."""
    above = np.flatnonzero(logits > least)
    return np.sort(np.concatenate([above, np.flatnonzero(logits == least)[: count - len(above)]]))


def _open(artifact: Artifact, graph: str | None) -> "onnxruntime.InferenceSession | None":
    return None if graph is None else open_cpu_session(artifact, graph, 1, arena=False)
