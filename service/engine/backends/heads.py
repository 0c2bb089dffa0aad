"""The heads of a model: small graphs over rows of hidden states, run with each batch on the thread of the batch."""

from collections.abc import Sequence

import numpy as np

from model.artifact import Artifact
from model.manifest import ClassificationHead
from service.engine.backends.cpu_session import open_cpu_session
from service.engine.encode.pooling import Floats, pool_batch
from service.engine.schema.encode import EncodeTask
from service.errors import NonFiniteOutput


class Classifier:
    """The logits of texts, in float32. May be called from several threads at the same time."""

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


def open_classifier(artifact: Artifact) -> Classifier | None:
    """Return the classifier of a model; None if it has none."""
    head = artifact.manifest.classification
    return None if head is None else Classifier(artifact, head)


def classify_batch(
    classifier: Classifier | None,
    tasks: Sequence[EncodeTask],
    hidden: Floats,
    starts: Sequence[int],
    sizes: Sequence[int],
) -> dict[int, Floats]:
    """Return the logits (C) of the tasks that ask for them, by their place in the batch."""
    places = [place for place, task in enumerate(tasks) if task.classify]
    if not places:
        return {}
    assert classifier is not None  # checked by the operation
    logits = classifier.logits(
        [tasks[place] for place in places],
        hidden,
        [starts[place] for place in places],
        [sizes[place] for place in places],
    )
    return dict(zip(places, logits, strict=True))
