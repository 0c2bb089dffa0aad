"""Startup check of a backend against the artifact's golden vectors.

The CPU determines which precision is selected, but the model determines its error: large activations lose digits in
bfloat16, and pooling a single token averages no errors out. The check runs this backend, precision and device through
the same steps as requests, for every head.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from attendant_client.types import Role

from model.artifact.manifest import (
    ASSUMED,
    SPARSE_ENTRIES,
    ClassificationHead,
    GoldenHead,
    GoldenOutput,
    GoldenVectors,
    Manifest,
    Precision,
)
from model.artifact.tokenizer import TokenizedInput, Tokenizer, TokenizerInput
from service.engine.backends.base import Backend
from service.engine.sides import add_side, max_tokens
from service.engine.tasks import EncodeTask, HeadName, TextVectors, WordQuery
from service.engine.vectors import DenseLayers, Floats, finish_pooled
from service.errors import NonFiniteOutput

EXPECTED_COSINE: dict[Precision, float] = {"float32": 0.999999, "bfloat16": 0.9999, "float16": 0.9999, "int8": 0.998}
"""The smallest cosine to float32 that is normal for a precision. A model below this value is served with a warning."""
FLOOR_COSINE: dict[Precision, float] = {"float32": 0.99999, "bfloat16": 0.99, "float16": 0.999, "int8": 0.98}
"""The smallest cosine at which a precision is served; see docs/decisions.md for measurements."""
NOT_FINITE = -1.0
"""The value returned for results with NaN or infinity."""
LEAST_PROBABILITY = 1e-30
"""Lower bound on word probabilities: float32 cannot represent values below 1e-45."""


def golden_cosines(
    golden: GoldenVectors,
    manifest: Manifest,
    tokenizer: Tokenizer,
    backend: Backend[EncodeTask, TextVectors],
    dense_layers: DenseLayers,
) -> dict[GoldenOutput, float]:
    """Return the cosine between a backend's results and the golden vectors for each head, `NOT_FINITE` for NaN.

    For embeddings and token vectors, this is the smallest cosine of any text; a text's token vectors are concatenated.
    For logits, centered log-probabilities and sparse vectors, all texts are concatenated, because the direction of
    logits or weights near 0 is meaningless.
    """
    return _Check(golden, manifest, tokenizer, backend, dense_layers).cosines()


def has_trained_embeddings(manifest: Manifest) -> bool:
    """Return whether the model was trained to output embeddings. Models for other tasks specify no pooling."""
    return len(manifest.heads) == 1 or manifest.origins.get("pooling") != ASSUMED


def cosine(actual: Floats, expected: Floats) -> float:
    """Return the cosine between two flattened arrays; 1 if both are zero, `NOT_FINITE` if they are not comparable."""
    actual, expected = (values.astype(np.float64).ravel() for values in (actual, expected))
    if actual.shape != expected.shape or not np.isfinite(actual).all():
        return NOT_FINITE
    lengths = float(np.linalg.norm(actual)), float(np.linalg.norm(expected))
    if 0.0 in lengths:
        return float(lengths[0] == lengths[1])
    return float(actual @ expected / (lengths[0] * lengths[1]))


@dataclass(frozen=True)
class _Check:
    """The texts of a check in the forms that heads read: single texts, pairs, queries and documents."""

    golden: GoldenVectors
    manifest: Manifest
    tokenizer: Tokenizer
    backend: Backend[EncodeTask, TextVectors]
    dense_layers: DenseLayers

    def cosines(self) -> dict[GoldenOutput, float]:
        """Run all texts and compare them."""
        compare: dict[GoldenOutput, Callable[[GoldenHead, list[TextVectors]], float]] = {
            "embedding": self._compare_embeddings,
            "classification": lambda head, found: _compare_together(head, [item.logits for item in found]),
            "token_classification": lambda head, found: _compare_together(head, [item.token_logits for item in found]),
            "masked_lm": _compare_words,
            "sparse": self._compare_sparse,
            "multi_vector": _compare_vectors,
            "multi_vector_query": _compare_vectors,
        }
        # Heads that read the same form share a run.
        forms = {name: self._form(name) for name in self.golden.heads}
        found: dict[GoldenOutput, float] = {}
        for form in dict.fromkeys(forms.values()):
            names = [name for name in self.golden.heads if forms[name] == form]
            try:
                results = self._run(self._tasks(form, names))
            except NonFiniteOutput:
                found |= dict.fromkeys(names, NOT_FINITE)
                continue
            for name in names:
                head = self.golden.heads[name]
                found[name] = compare[name](head, [results[place] for place in head.texts])
        return {name: found[name] for name in self.golden.heads}

    def _form(self, name: GoldenOutput) -> str:
        """Return the form in which a head reads texts."""
        multi_vector, classifier = self.manifest.multi_vector, self.manifest.classification
        if multi_vector is not None and multi_vector.has_sides and name.startswith("multi_vector"):
            return "query" if name == "multi_vector_query" else "document"
        return "pair" if name == "classification" and _reads_pairs(classifier) else "text"

    def _tasks(self, form: str, names: Sequence[GoldenOutput]) -> dict[int, EncodeTask]:
        """Return one task per text that any of these heads reads, by text index."""
        side: Role | None = "query" if form == "query" else "document" if form == "document" else None
        heads = {name: self.golden.heads[name] for name in names}
        places = sorted({place for head in heads.values() for place in head.texts})
        tasks = {}
        for place, tokens in zip(places, self._tokenize(form, places), strict=True):
            kept = tokens.truncate(max_tokens(self.manifest, side), self.manifest.truncation_side)
            kept = add_side(kept, self.manifest, side, self.tokenizer.leading_special_tokens)
            own = [name for name, head in heads.items() if place in head.texts]
            types: dict[str, HeadName] = {
                "classification": "classification", "token_classification": "token_classification",
                "masked_lm": "masked_lm", "sparse": "sparse",
                "multi_vector": "multi_vector", "multi_vector_query": "multi_vector",
            }  # fmt: skip
            task = EncodeTask(
                kept,
                self.manifest.embedding.pooling if "embedding" in own else None,
                hidden=False,
                heads=tuple(types[name] for name in own if name in types),
            )
            if "masked_lm" in own:
                ids = dict(zip(heads["masked_lm"].texts, heads["masked_lm"].split_ids(), strict=True))[place]
                targets = tuple(ids.tolist())
                task = task._replace(words=WordQuery((len(kept) // 2,), len(targets), targets))
            tasks[place] = task
        return tasks

    def _tokenize(self, form: str, places: Sequence[int]) -> list[TokenizedInput]:
        texts, classifier = self.golden.texts, self.manifest.classification
        if form != "pair":
            return self.tokenizer.encode([TokenizerInput(texts[place]) for place in places], offsets=False)
        assert classifier is not None
        pairs = [(texts[place], texts[(place + 1) % len(texts)]) for place in places]
        if classifier.template is None:
            return [next(self.tokenizer.encode_pairs(first, [second], offsets=False)) for first, second in pairs]
        return [next(self.tokenizer.encode_template(classifier.template, first, [second])) for first, second in pairs]

    def _run(self, tasks: dict[int, EncodeTask]) -> dict[int, TextVectors]:
        results: list[TextVectors] = []
        for batch in _batches([*tasks.values()], self.backend):
            results += self.backend.run(batch)
        return dict(zip(tasks, results, strict=True))

    def _compare_embeddings(self, head: GoldenHead, found: list[TextVectors]) -> float:
        pooled = np.stack([item.pooled for item in found if item.pooled is not None], axis=1)  # (1, N, D)
        vectors = finish_pooled(pooled, self.manifest.embedding, self.dense_layers)
        return _compare_each(head, [*vectors[:, : self.manifest.embedding.truncate_dim]])

    def _compare_sparse(self, head: GoldenHead, found: list[TextVectors]) -> float:
        """Compare the weights of all entries, or only of the entries in the golden vectors if those are truncated."""
        size = self.manifest.architecture.vocab_size
        actual, expected = [], []
        for item, ids, weights in zip(found, head.split_ids(), head.split_values(), strict=True):
            assert item.sparse is not None
            dense = np.zeros((2, max(size, *map(_end, (ids, item.sparse.token_ids)))), np.float32)
            dense[0, item.sparse.token_ids], dense[1, ids] = item.sparse.weights, weights
            kept = ids if len(ids) >= SPARSE_ENTRIES else slice(None)
            actual.append(dense[0, kept])
            expected.append(dense[1, kept])
        return cosine(np.concatenate(actual), np.concatenate(expected))


def _reads_pairs(head: ClassificationHead | None) -> bool:
    """Return whether a head scores pairs. A head with one label belongs to a cross-encoder."""
    return head is not None and (head.template is not None or len(head.labels) == 1)


def _batches(tasks: Sequence[EncodeTask], backend: Backend[EncodeTask, TextVectors]) -> Iterator[list[EncodeTask]]:
    """Yield batches that the backend accepts, in order. An oversized sequence gets a separate batch."""
    batch: list[EncodeTask] = []
    fill = backend.partial_fill(backend.max_batch_tokens)
    for task in tasks:
        if len(batch) == backend.max_batch_size or not fill.add(len(task.tokens)):
            yield batch
            batch, fill = [], backend.partial_fill(backend.max_batch_tokens)
            fill.add(len(task.tokens))
        batch.append(task)
    yield batch


def _compare_each(head: GoldenHead, found: Sequence[Floats]) -> float:
    """Return the smallest cosine over the texts."""
    return min(cosine(actual, expected) for actual, expected in zip(found, head.split_values(), strict=True))


def _compare_vectors(head: GoldenHead, found: list[TextVectors]) -> float:
    return _compare_each(head, [item.multi_vector for item in found])  # type: ignore[misc]


def _compare_together(head: GoldenHead, found: Sequence[Floats | None]) -> float:
    """Return the cosine over all texts, concatenated."""
    actual = [values.ravel() for values in found if values is not None]
    return cosine(np.concatenate(actual), np.concatenate(head.split_values()))


def _compare_words(head: GoldenHead, found: list[TextVectors]) -> float:
    """Compare log-probabilities minus their mean per text, which equal the logits up to a constant."""
    actual, expected = [], []
    for item, ids, probabilities in zip(found, head.split_ids(), head.split_values(), strict=True):
        assert item.words is not None
        own = dict(zip(item.words.token_ids[0].tolist(), item.words.probabilities[0].tolist(), strict=True))
        actual.append(np.array([own[number] for number in ids.tolist()]))
        expected.append(probabilities)
    logits = [[_center(np.log(np.maximum(row, LEAST_PROBABILITY))) for row in rows] for rows in (actual, expected)]
    return cosine(np.concatenate(logits[0]), np.concatenate(logits[1]))


def _center(values: Floats) -> Floats:
    centered: Floats = values - values.mean()
    return centered


def _end(ids: Floats) -> int:
    return int(ids.max()) + 1 if len(ids) else 0
