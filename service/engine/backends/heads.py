"""The heads of a model, run on the hidden states of each batch, on the thread of the batch."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from model.artifact.files import Artifact
from model.artifact.manifest import ClassificationHead, MultiVectorHead
from service.engine.backends.cpu_session import open_cpu_session
from service.engine.backends.sparse_head import SparseWeights
from service.engine.backends.vocabulary import MaskedWords
from service.engine.encode.pooling import Floats, normalize, pool_batch
from service.engine.schema.tasks import EncodeTask, HeadName
from service.errors import NonFiniteOutput

Results = dict[str, Any]
"""Fields of `TextVectors`."""
NO_RESULTS: Results = {}


class Heads:
    """The heads of an artifact besides the embedding head. May be called from several threads at the same time."""

    def __init__(self, artifact: Artifact) -> None:
        manifest = artifact.manifest
        self._classifier = None if manifest.classification is None else Classifier(artifact, manifest.classification)
        self._words = None if manifest.masked_lm is None else MaskedWords(artifact, manifest.masked_lm)
        self._sparse = None if manifest.sparse is None else SparseWeights(artifact, manifest.sparse)
        self._multi_vector = None if manifest.multi_vector is None else TokenVectors(artifact, manifest.multi_vector)
        tokens = manifest.token_classification
        self._tokens = None if tokens is None else open_cpu_session(artifact, tokens.graph, 1, arena=False)

    def run(
        self, tasks: Sequence[EncodeTask], hidden: Floats, starts: Sequence[int], sizes: Sequence[int]
    ) -> list[Results]:
        """Return the results that each task asks for, given the hidden states (T, D) of all. Raises `NonFiniteOutput`.

        Operations check that the model has the heads.
        """
        if not any(task.heads for task in tasks):
            return [NO_RESULTS] * len(tasks)
        results: list[Results] = [{} for _ in tasks]
        if places := _places(tasks, "classification"):
            assert self._classifier is not None
            own = [tasks[place] for place in places]
            logits = self._classifier.logits(own, hidden, _pick(starts, places), _pick(sizes, places))
            for place, row in zip(places, logits, strict=True):
                results[place]["logits"] = row
        for place in _places(tasks, "token_classification"):
            assert self._tokens is not None
            rows = hidden[starts[place] : starts[place] + sizes[place]].astype(np.float32, copy=False)
            (results[place]["token_logits"],) = self._tokens.run(None, {"rows": rows})
        if places := _places(tasks, "multi_vector"):
            assert self._multi_vector is not None
            own = [tasks[place] for place in places]
            vectors = self._multi_vector.vectors(own, hidden, _pick(starts, places), _pick(sizes, places))
            for place, rows in zip(places, vectors, strict=True):
                results[place]["multi_vector"] = rows
        for place in _places(tasks, "masked_lm"):
            query = tasks[place].words
            assert self._words is not None
            assert query is not None
            rows = hidden[starts[place] : starts[place] + sizes[place]]
            results[place]["words"] = self._words.predict(rows, query, last_layer=True)
        for place in _places(tasks, "sparse"):
            assert self._sparse is not None
            rows = hidden[starts[place] : starts[place] + sizes[place]]
            results[place]["sparse"] = self._sparse.weigh(tasks[place].tokens, rows)
        return results


def _places(tasks: Sequence[EncodeTask], head: HeadName) -> list[int]:
    return [place for place, task in enumerate(tasks) if head in task.heads]


def _pick(values: Sequence[int], places: Sequence[int]) -> list[int]:
    return [values[place] for place in places]


class Classifier:
    """The logits of texts, in float32."""

    def __init__(self, artifact: Artifact, head: ClassificationHead) -> None:
        self._head = head
        self._session = open_cpu_session(artifact, head.graph, 1, arena=False)

    def logits(
        self, tasks: Sequence[EncodeTask], hidden: Floats, starts: Sequence[int], sizes: Sequence[int]
    ) -> Floats:
        """Return the logits (N, C) of N sequences in `hidden` (T, D). Raises `NonFiniteOutput`."""
        pooling = self._head.pooling
        if pooling == "mean_logits":
            rows = np.concatenate([hidden[start : start + size] for start, size in zip(starts, sizes, strict=True)])
            first = np.cumsum([0, *sizes[:-1]])
            logits = np.add.reduceat(self._run(rows), first, axis=0) / np.array(sizes, np.float32)[:, None]
        elif pooling == "last":
            places = [start + self._last_place(task) for task, start in zip(tasks, starts, strict=True)]
            logits = self._run(hidden.take(places, axis=0))
        else:
            logits = self._run(pool_batch(hidden, starts, sizes, pooling, [0] * len(sizes)))
        if not np.isfinite(logits.sum()):
            raise NonFiniteOutput
        return logits

    def _last_place(self, task: EncodeTask) -> int:
        """Return the place of the last token that is not skipped; of the last token if all are."""
        ids = task.tokens.input_ids
        last = len(ids) - 1
        return next((place for place in range(last, -1, -1) if ids[place] != self._head.skipped_token_id), last)

    def _run(self, rows: Floats) -> Floats:
        (logits,) = self._session.run(None, {"rows": rows.astype(np.float32, copy=False)})
        return logits  # type: ignore[no-any-return]


class TokenVectors:
    """One vector of length 1 per token, in float32."""

    def __init__(self, artifact: Artifact, head: MultiVectorHead) -> None:
        self._first = int(head.skips_first)
        self._session = open_cpu_session(artifact, head.graph, 1, arena=False)

    def vectors(
        self, tasks: Sequence[EncodeTask], hidden: Floats, starts: Sequence[int], sizes: Sequence[int]
    ) -> list[Floats]:
        """Return the vectors (K, dimensions) of N sequences in `hidden` (T, D)."""
        parts = []
        for task, start, size in zip(tasks, starts, sizes, strict=True):
            rows = hidden[start + self._first : start + size]
            if task.tokens.skipped_ids:
                rows = rows[~np.isin(task.tokens.input_ids[self._first :], task.tokens.skipped_ids)]
            parts.append(rows)
        (vectors,) = self._session.run(None, {"rows": np.concatenate(parts).astype(np.float32, copy=False)})
        return np.split(normalize(vectors), np.cumsum([len(rows) for rows in parts])[:-1])
