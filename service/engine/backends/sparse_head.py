"""Weights of vocabulary entries: SPLADE's projection onto the vocabulary, and linear weights of tokens."""

from typing import TYPE_CHECKING

import numpy as np

from model.artifact.files import Artifact
from model.artifact.manifest import SparseActivation, SparseHead
from service.engine.backends.cpu_session import open_cpu_session
from service.engine.backends.vocabulary import Projection
from service.engine.encode.pooling import Floats
from service.engine.schema.tasks import ModelInput, SparseVector
from service.errors import NonFiniteOutput

if TYPE_CHECKING:
    import onnxruntime

BLOCK_ROWS = 512
"""Tokens whose logits for a block of entries are in memory at the same time, 8 MiB."""


class SparseWeights:
    """The sparse vectors of texts, in float32.

    The logits of all tokens for all entries, (T, V), would take 0.5 GB for 512 tokens and 250,000 entries, so they are
    computed and reduced in blocks, from the mapped embedding table.
    """

    def __init__(self, artifact: Artifact, head: SparseHead) -> None:
        self._head = head
        self._session: onnxruntime.InferenceSession | None = None
        if head.graph is not None:
            self._session = open_cpu_session(artifact, head.graph, 1, arena=False)
        self._projection = None if head.decoder is None else Projection(artifact, head.decoder, head.bias)
        own = head.query_weights
        self._query_weights = None if own is None else np.array(artifact.map(own)[:])
        self._skipped = np.array(head.skipped_token_ids, dtype=np.int32)

    def weigh(self, tokens: ModelInput, hidden: Floats) -> SparseVector:
        """Return the weights of one text, given its hidden states (T, D). Raises `NonFiniteOutput`."""
        if tokens.side == "query" and self._query_weights is not None:
            ids = np.unique(np.array(tokens.input_ids, dtype=np.int32))
            return self._keep(ids, self._query_weights[ids])
        rows = hidden.astype(np.float32, copy=False)
        if self._session is not None:
            (rows,) = self._session.run(None, {"rows": rows})
        if self._projection is None:
            ids, weights = self._weigh_tokens(np.array(tokens.input_ids, dtype=np.int32), rows[:, 0])
        else:
            weights = self._project(rows)
            ids = np.arange(len(weights), dtype=np.int32)
        if not np.isfinite(weights.sum()):
            raise NonFiniteOutput
        return self._keep(ids, weights)

    def _keep(self, ids: Floats, weights: Floats) -> SparseVector:
        """Return the entries with a positive weight, of these the ones with the largest, as the head defines."""
        most = self._head.max_active
        kept = np.flatnonzero((weights > 0) & ~np.isin(ids, self._skipped))
        if most is not None and len(kept) > most:
            kept = np.sort(kept[np.argsort(-weights[kept], kind="stable")[:most]])
        return SparseVector(ids[kept], weights[kept])

    def _weigh_tokens(self, token_ids: Floats, logits: Floats) -> tuple[Floats, Floats]:
        """Return the distinct ids of a text, ascending, and the largest weight of each."""
        ids, places = np.unique(token_ids, return_inverse=True)
        weights: Floats = np.zeros(len(ids), dtype=np.float32)
        np.maximum.at(weights, places, activate(logits, self._head.activation))
        return ids, weights

    def _project(self, rows: Floats) -> Floats:
        """Return the weight of each vocabulary entry, (V), for rows (T, E)."""
        assert self._projection is not None
        is_max = self._head.pooling == "max"
        pooled: Floats = np.full(self._projection.size, -np.inf if is_max else 0.0, dtype=np.float32)
        for block, table in self._projection.blocks():
            for first in range(0, len(rows), BLOCK_ROWS):
                logits = self._projection.logits(rows[first : first + BLOCK_ROWS], block, table)
                if is_max:
                    np.maximum(pooled[block], logits.max(axis=0), out=pooled[block])
                else:
                    pooled[block] += activate(logits, self._head.activation).sum(axis=0)
        return activate(pooled, self._head.activation) if is_max else pooled  # the activation is monotonic


def activate(logits: Floats, activation: SparseActivation) -> Floats:
    """Return the weights of logits."""
    weights: Floats = np.maximum(logits, 0)
    if activation != "relu":
        weights = np.log1p(weights)
    return np.log1p(weights) if activation == "log1p_log1p_relu" else weights
