"""The check of a backend against the golden vectors of the artifact, at every start.

The CPU decides which precision is selected, but the model decides how large its error is: large activations lose
digits in bfloat16. The check runs what this backend, precision and device compute.
"""

import base64
from collections.abc import Iterator, Sequence

import numpy as np

from model.manifest import Manifest
from model.measurements import GoldenVectors
from model.tokenized_input import TokenizedInput, TokenizerInput
from model.tokenizer import Tokenizer
from service.engine.backends.base import Backend
from service.engine.schema.tasks import EncodeTask, TextVectors


def min_golden_cosine(
    golden: GoldenVectors, manifest: Manifest, tokenizer: Tokenizer, backend: Backend[EncodeTask, TextVectors]
) -> float:
    """Return the smallest cosine between the backend's vectors and the golden vectors; NaN if any is not finite."""
    expected = np.frombuffer(base64.b64decode(golden.vectors), "<f4").reshape(-1, manifest.architecture.hidden_size)
    tokenized = [
        tokens.truncate(manifest.max_input_tokens, "right")
        for tokens in tokenizer.encode([TokenizerInput(text) for text in golden.texts], offsets=False)
    ]
    actual = [
        vectors.pooled[0]
        for batch in _batches(tokenized, backend.max_batch_tokens)
        for vectors in backend.run([EncodeTask(tokens, "mean", hidden=False) for tokens in batch])
        if vectors.pooled is not None
    ]
    norms = np.linalg.norm(actual, axis=1) * np.linalg.norm(expected, axis=1)
    return float((np.sum(np.array(actual) * expected, axis=1) / norms).min())


def _batches(tokenized: Sequence[TokenizedInput], max_tokens: int) -> Iterator[list[TokenizedInput]]:
    """Yield batches of at most `max_tokens`, in order; a longer sequence is a batch of its own."""
    batch: list[TokenizedInput] = []
    for tokens in tokenized:
        if batch and sum(map(len, batch)) + len(tokens) > max_tokens:
            yield batch
            batch = []
        batch.append(tokens)
    yield batch
