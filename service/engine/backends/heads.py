"""The heads on top of a model's encoder: classifiers, token vectors, sparse vectors, masked-word predictions."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain, islice, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from threadpoolctl import threadpool_limits

from model.artifact.files import Artifact
from model.artifact.manifest import (
    ClassificationHead,
    CombinedPooling,
    MaskedLMHead,
    MultiVectorHead,
    SparseActivation,
    SparseHead,
    TensorRecord,
)
from service.engine.backends.sessions import open_cpu_session
from service.engine.tasks import (
    EncodeTask,
    HeadName,
    ModelInput,
    PooledVectors,
    PredictedWords,
    SparseEntries,
    TextVectors,
    WordQuery,
    heads_of,
    hidden_of,
    pool_from_of,
    pooling_of,
)
from service.engine.vectors import Floats, normalize, pool_batch
from service.errors import NonFiniteOutput

if TYPE_CHECKING:
    import onnxruntime

BLOCK_ENTRIES = 4096
PREDICTED_ROWS = 8
"""Number of positions whose logits are in memory at the same time: 8 MB for 250,000 vocabulary entries."""


class Projection:
    """Logits (N, V) of features (N, E), computed in blocks of vocabulary entries."""

    def __init__(self, artifact: Artifact, decoder: TensorRecord, bias: TensorRecord | None) -> None:
        threadpool_limits(1, user_api="blas")  # a batch runs on one thread; see ExplainBackend
        self._decoder = artifact.map(decoder)
        self._bias = None if bias is None else np.array(artifact.map(bias)[:])
        self.size = decoder.shape[0]

    def blocks(self) -> Iterator[tuple[slice, Floats]]:
        """Yield ranges of entries, each with its part of the table, (E, block)."""
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
    """The words that a masked-LM head predicts, computed in float32."""

    def __init__(self, artifact: Artifact, head: MaskedLMHead) -> None:
        self._projection = Projection(artifact, head.decoder, head.bias)
        self._last = _open(artifact, head.graph)
        self._earlier = self._last if head.layer_graph is None else _open(artifact, head.layer_graph)

    def predict_all(self, tasks: Sequence[EncodeTask], texts: "Texts") -> list[PredictedWords]:
        """Return the words for each task's query, predicted from the last layer's hidden states."""
        return self._predict(texts, [task.words for task in tasks if task.words is not None], self._last)

    def predict(self, hidden: Floats, query: WordQuery, *, last_layer: bool) -> PredictedWords:
        """Return the words at the positions of a query, given the hidden states (T, D) of a layer.

        Raises:
            NonFiniteOutput: a logit is infinite or NaN.
        """
        (words,) = self._predict([hidden], [query], self._last if last_layer else self._earlier)
        return words

    def _predict(
        self, texts: "Texts", queries: Sequence[WordQuery], session: "onnxruntime.InferenceSession | None"
    ) -> list[PredictedWords]:
        """Return the words for each text's query. Several positions share each pass over the embedding table."""
        own = [hidden[list(query.positions)] for hidden, query in zip(texts, queries, strict=True)]
        rows = np.concatenate(own).astype(np.float32, copy=False)
        if session is not None:
            rows = run(session, rows)
        of_rows = iter([query for query in queries for _ in query.positions])
        ranked: list[tuple[Floats, Floats]] = []
        for start in range(0, len(rows), PREDICTED_ROWS):
            ranked.extend(map(self._rank, self._logits(rows[start : start + PREDICTED_ROWS]), of_rows))
        of_texts = iter(ranked)
        return [PredictedWords(*map(np.stack, zip(*islice(of_texts, len(part)), strict=True))) for part in own]

    def _logits(self, rows: Floats) -> Floats:
        """Return the logits (N, V) of rows (N, E)."""
        logits: Floats = np.empty((len(rows), self._projection.size), dtype=np.float32)
        for block, table in self._projection.blocks():
            logits[:, block] = self._projection.logits(rows, block, table)
        return logits

    def _rank(self, logits: Floats, query: WordQuery) -> tuple[Floats, Floats]:
        """Return the ids and the probabilities (K) of the likeliest entries, given the logits (V) at a position."""
        count = min(query.count, len(logits))
        logits = logits - logits.max()
        total = np.exp(logits).sum(dtype=np.float64)
        if not np.isfinite(total):
            raise NonFiniteOutput
        ids = _likeliest(logits, count) if query.targets is None else np.sort(query.targets)
        order = np.argsort(-logits[ids], kind="stable")[:count]
        return ids[order], (np.exp(logits[ids[order]]) / total).astype(np.float32)


def _likeliest(logits: Floats, count: int) -> Floats:
    """Return the ids of the `count` largest logits, ascending. Ties go to the smallest ids."""
    least = np.partition(logits, -count)[-count]
    above = np.flatnonzero(logits > least)
    return np.sort(np.concatenate([above, np.flatnonzero(logits == least)[: count - len(above)]]))


def _open(artifact: Artifact, graph: str | None) -> "onnxruntime.InferenceSession | None":
    return None if graph is None else open_cpu_session(artifact, graph, 1, arena=False)


BLOCK_ROWS = 512
"""Number of tokens whose logits for a block of entries are in memory at the same time: 8 MiB."""
BLOCK_TEXTS = 32
"""Number of texts that share a pass over the embedding table. Their weights take 32 MB for 250,000 entries."""


class SparseWeights:
    """The sparse vectors of texts, in float32.

    The logits of all tokens for all entries, (T, V), would take 0.5 GB for 512 tokens and 250,000 entries, so they are
    computed and reduced in blocks, from the mapped embedding table. Texts are computed together: a product with the
    rows of one sentence takes two to three times as long per row as one with hundreds of rows.
    """

    def __init__(self, artifact: Artifact, head: SparseHead) -> None:
        self._head = head
        self._session = _open(artifact, head.graph)
        self._projection = None if head.decoder is None else Projection(artifact, head.decoder, head.bias)
        own = head.query_weights
        self._query_weights = None if own is None else np.array(artifact.map(own)[:])
        self._skipped = np.array(head.skipped_token_ids, dtype=np.int32)

    def reads_hidden(self, task: EncodeTask) -> bool:
        """Return whether the weights of a text depend on its hidden states."""
        return self._query_weights is None or task.tokens.side != "query"

    def weigh_all(self, tasks: Sequence[EncodeTask], texts: "Texts") -> list[SparseEntries]:
        """Return the weights of each text, given its hidden states (T, D). Raises `NonFiniteOutput`."""
        places = [place for place, task in enumerate(tasks) if self.reads_hidden(task)]
        blocks = (places[start : start + BLOCK_TEXTS] for start in range(0, len(places), BLOCK_TEXTS))
        return self.complete(tasks, chain.from_iterable(self._weigh(tasks, texts, block) for block in blocks))

    def complete(self, tasks: Sequence[EncodeTask], found: Iterable[SparseEntries]) -> list[SparseEntries]:
        """Return the weights of each text, given those of the texts whose weights depend on hidden states."""
        found = iter(found)
        return [next(found) if self.reads_hidden(task) else self._weigh_query(task.tokens) for task in tasks]

    def select(self, logits: Floats) -> SparseEntries:
        """Return the weights of a text, given the largest logit of each vocabulary entry, (V), for pooling by maximum.

        Raises `NonFiniteOutput`.
        """
        return self._select(np.arange(len(logits), dtype=np.int32), logits)

    def _weigh_query(self, tokens: ModelInput) -> SparseEntries:
        assert self._query_weights is not None
        ids = np.unique(np.array(tokens.input_ids, dtype=np.int32))
        return self._keep(ids, self._query_weights[ids])

    def _weigh(self, tasks: Sequence[EncodeTask], texts: "Texts", places: Sequence[int]) -> Iterator[SparseEntries]:
        texts = [texts[place] for place in places]
        rows = np.concatenate(texts).astype(np.float32, copy=False)
        if self._session is not None:
            rows = run(self._session, rows)
        ends = [*accumulate(map(len, texts))]
        ranges = [*pairwise((0, *ends))]
        if self._projection is None:
            for place, (start, end) in zip(places, ranges, strict=True):
                token_ids = np.array(tasks[place].tokens.input_ids, np.int32)
                yield self._select(*_largest_of_tokens(token_ids, rows[start:end, 0]))
        else:
            yield from map(self.select, self._project(rows, ranges))

    def _select(self, ids: Floats, values: Floats) -> SparseEntries:
        """Return the weights of entries from their largest logits, or from the sums of their weights."""
        if not np.isfinite(values.sum()):
            raise NonFiniteOutput
        entries = self._keep(ids, values)
        if self._head.pooling == "max":  # the activation is monotonic
            return SparseEntries(entries.token_ids, activate(entries.weights, self._head.activation))
        return entries

    def _keep(self, ids: Floats, values: Floats) -> SparseEntries:
        """Return the entries with a positive value; only the largest if the head limits their number."""
        most = self._head.max_active
        kept = np.flatnonzero(values > 0)
        if len(self._skipped):
            kept = kept[~np.isin(ids[kept], self._skipped)]
        if most is not None and len(kept) > most:
            kept = np.sort(kept[np.argsort(-values[kept], kind="stable")[:most]])
        return SparseEntries(ids[kept], values[kept])

    def _project(self, rows: Floats, ranges: Sequence[tuple[int, int]]) -> Floats:
        """Return the largest logit of each vocabulary entry, or the sum of its weights, for each text, (N, V).

        `ranges`: the rows of each text in `rows` (T, E).
        """
        assert self._projection is not None
        is_max, activation = self._head.pooling == "max", self._head.activation
        pooled: Floats = np.full((len(ranges), self._projection.size), -np.inf if is_max else 0.0, dtype=np.float32)
        for block, table in self._projection.blocks():
            for first in range(0, len(rows), BLOCK_ROWS):
                logits = self._projection.logits(rows[first : first + BLOCK_ROWS], block, table)
                if not is_max:
                    logits = activate(logits, activation)
                for weights, (start, end) in zip(pooled[:, block], ranges, strict=True):
                    own = logits[max(0, start - first) : max(0, end - first)]
                    if is_max and len(own):
                        np.maximum(weights, own.max(axis=0), out=weights)
                    elif len(own):
                        np.add(weights, own.sum(axis=0), out=weights)
        return pooled


def _largest_of_tokens(token_ids: Floats, logits: Floats) -> tuple[Floats, Floats]:
    """Return the distinct ids of a text, ascending, and the largest logit of each."""
    ids, places = np.unique(token_ids, return_inverse=True)
    largest: Floats = np.full(len(ids), -np.inf, dtype=np.float32)
    np.maximum.at(largest, places, logits)
    return ids, largest


def activate(logits: Floats, activation: SparseActivation) -> Floats:
    """Return the weights of logits."""
    weights: Floats = np.maximum(logits, 0)
    if activation != "relu":
        weights = np.log1p(weights)
    return np.log1p(weights) if activation == "log1p_log1p_relu" else weights


Texts = Sequence[Floats]
"""The hidden states of each text, (T, D)."""


class Heads:
    """An artifact's heads other than the embedding head. Several threads may call it concurrently."""

    def __init__(self, artifact: Artifact) -> None:
        manifest = artifact.manifest
        self._compute: dict[HeadName, tuple[str, Callable[[Sequence[EncodeTask], Texts], Iterable[Any]]]] = {}
        """For each head, its field in `TextVectors` and the function that computes the values."""
        if manifest.classification is not None:
            self._compute["classification"] = "logits", Classifier(artifact, manifest.classification).logits
        if manifest.token_classification is not None:
            session = open_cpu_session(artifact, manifest.token_classification.graph, 1, arena=False)
            self._compute["token_classification"] = "token_logits", lambda _, texts: (run(session, t) for t in texts)
        if manifest.multi_vector is not None:
            self._compute["multi_vector"] = "multi_vector", TokenVectors(artifact, manifest.multi_vector).vectors
        if manifest.masked_lm is not None:
            self._compute["masked_lm"] = "words", MaskedWords(artifact, manifest.masked_lm).predict_all
        self.sparse = None if manifest.sparse is None else SparseWeights(artifact, manifest.sparse)
        if self.sparse is not None:
            self._compute["sparse"] = "sparse", self.sparse.weigh_all

    def finish(
        self,
        tasks: Sequence[EncodeTask],
        hidden: Floats,
        starts: Sequence[int],
        sizes: Sequence[int],
        pooled: Mapping[CombinedPooling, Floats] = {},
        sparse: Iterable[SparseEntries] | None = None,
    ) -> Sequence[TextVectors]:
        """Return the requested results of each task, given hidden states (T, D) and vectors pooled in the graph.

        `sparse`: the sparse vectors that depend on hidden states, if the backend computes them. Then `hidden` may be
        empty. Operations check that the model has the heads. Raises `NonFiniteOutput`.
        """
        # Any NaN or infinity propagates to the sum. Padding is computed like any sequence, so it is finite too.
        for array in (hidden, *pooled.values()):
            if not np.isfinite(array.sum()):
                raise NonFiniteOutput
        pooled, modes = {**pooled}, {*map(pooling_of, tasks)}
        for mode in modes - {None, *pooled}:
            pooled[mode] = pool_batch(hidden, starts, sizes, mode, [*map(pool_from_of, tasks)])
        if len(modes) == 1 and None not in modes and not (any(map(hidden_of, tasks)) or any(map(heads_of, tasks))):
            (mode,) = modes  # the usual case
            return PooledVectors(pooled[mode])
        texts = [hidden[start : start + size] for start, size in zip(starts, sizes, strict=True)]
        results: list[dict[str, Any]] = [{} for _ in tasks]
        for head, (field, compute) in self._compute.items():
            places = [place for place, task in enumerate(tasks) if head in task.heads]
            if places:
                own = [tasks[place] for place in places]
                if head == "sparse" and self.sparse is not None and sparse is not None:
                    values: Iterable[Any] = self.sparse.complete(own, sparse)
                else:
                    values = compute(own, [texts[place] for place in places])
                for place, value in zip(places, values, strict=True):
                    results[place][field] = value
        return [
            TextVectors(
                hidden=text[None] if task.hidden else None,
                pooled=None if task.pooling is None else pooled[task.pooling][None, index],
                **results[index],
            )
            for index, (task, text) in enumerate(zip(tasks, texts, strict=True))
        ]


def run(session: "onnxruntime.InferenceSession", rows: Floats) -> Floats:
    """Return the output of a head for rows (N, E)."""
    (output,) = session.run(None, {"rows": rows.astype(np.float32, copy=False)})
    return output  # type: ignore[no-any-return]


class Classifier:
    """The logits of texts, in float32."""

    def __init__(self, artifact: Artifact, head: ClassificationHead) -> None:
        self._head = head
        self._session = open_cpu_session(artifact, head.graph, 1, arena=False)

    def logits(self, tasks: Sequence[EncodeTask], texts: Texts) -> Floats:
        """Return the logits (N, C) of N texts. Raises `NonFiniteOutput`."""
        pooling, sizes = self._head.pooling, [len(text) for text in texts]
        if pooling == "mean_logits":
            logits = run(self._session, np.concatenate(texts))
            logits = np.add.reduceat(logits, np.cumsum([0, *sizes[:-1]]), axis=0) / np.array(sizes, np.float32)[:, None]
        elif pooling == "last":
            rows = [text[self._last_place(task)] for task, text in zip(tasks, texts, strict=True)]
            logits = run(self._session, np.stack(rows))
        else:
            rows = [pool_batch(text, [0], [len(text)], pooling, [0]) for text in texts]
            logits = run(self._session, np.concatenate(rows))
        if not np.isfinite(logits.sum()):
            raise NonFiniteOutput
        return logits

    def _last_place(self, task: EncodeTask) -> int:
        """Return the index of the last token that is not skipped, or of the last token if all are."""
        ids = task.tokens.input_ids
        last = len(ids) - 1
        return next((place for place in range(last, -1, -1) if ids[place] != self._head.skipped_token_id), last)


class TokenVectors:
    """One normalized vector per token, in float32."""

    def __init__(self, artifact: Artifact, head: MultiVectorHead) -> None:
        self._first = int(head.skips_first)
        self._session = open_cpu_session(artifact, head.graph, 1, arena=False)

    def vectors(self, tasks: Sequence[EncodeTask], texts: Texts) -> list[Floats]:
        """Return the vectors (K, dimensions) of N texts."""
        parts = []
        for task, text in zip(tasks, texts, strict=True):
            rows = text[self._first :]
            if task.tokens.skipped_ids:
                rows = rows[~np.isin(task.tokens.input_ids[self._first :], task.tokens.skipped_ids)]
            parts.append(rows)
        vectors = run(self._session, np.concatenate(parts))
        return np.split(normalize(vectors), np.cumsum([len(rows) for rows in parts])[:-1])
