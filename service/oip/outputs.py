"""Outputs of models: names, types and shapes, and their values from the results of the engine."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from service.engine.padding import pad_maps, pad_matrices, pad_vectors, stack_rows, stack_vectors
from service.engine.schema.encode import Array, EncodeResponse, EncodeResult, SparseResult
from service.engine.schema.explain import AttendResponse
from service.engine.schema.labels import ClassifyResponse
from service.engine.schema.model import ModelInfo
from service.engine.schema.operations import Output
from service.oip.tensors import Integers, OutputTensor

POOLED, TOKENS, TOKEN_COUNTS, ATTENTION = "pooled", "tokens", "token_counts", "attention"
SCORES, SPARSE_TOKEN_IDS, SPARSE_WEIGHTS, MULTI_VECTOR = "scores", "sparse_token_ids", "sparse_weights", "multi_vector"
ENCODED: dict[str, Output] = {
    POOLED: "pooled",
    TOKENS: "tokens",
    SPARSE_TOKEN_IDS: "sparse",
    SPARSE_WEIGHTS: "sparse",
    MULTI_VECTOR: "multi_vector",
}
"""The output of encode that has the values."""
OUTPUTS = (POOLED, TOKENS, TOKEN_COUNTS, ATTENTION, SCORES, SPARSE_TOKEN_IDS, SPARSE_WEIGHTS, MULTI_VECTOR)
INLINE_BYTES = 2**20
"""Outputs up to this size are copied on the event loop, in less than a millisecond."""

T = TypeVar("T")


def describe_outputs(info: ModelInfo) -> list[tuple[str, str, list[int]]]:
    """Return name, datatype and shape of the outputs of a model; -1 is a size that depends on the request."""
    outputs = [
        (POOLED, "FP32", [-1, info.dimensions]),
        (TOKENS, "FP32", [-1, -1, info.hidden_size]),
        (TOKEN_COUNTS, "INT64", [-1]),
    ]
    if info.attention_kinds:
        outputs.append((ATTENTION, "FP32", [-1] * 5))
    if "classify" in info.operations:
        outputs.append((SCORES, "FP32", [-1, len(info.labels)]))
    if "sparse" in info.outputs:
        outputs += [(SPARSE_TOKEN_IDS, "INT64", [-1, -1]), (SPARSE_WEIGHTS, "FP32", [-1, -1])]
    if "multi_vector" in info.outputs:
        outputs.append((MULTI_VECTOR, "FP32", [-1, -1, -1]))
    return outputs


@dataclass(frozen=True, slots=True)
class Results:
    """The engine's responses to one request, at least one of them, and the labels in the order of `scores`."""

    encoded: EncodeResponse | None
    attended: AttendResponse | None
    classified: ClassifyResponse | None
    labels: Sequence[str]

    @property
    def first(self) -> EncodeResponse | AttendResponse | ClassifyResponse:
        """The response whose model, precision and timing the client gets."""
        response = self.encoded or self.classified or self.attended
        assert response is not None
        return response

    async def tensor(self, name: str) -> OutputTensor:
        """Return an output."""
        return OutputTensor(name, await self._values(name))

    async def _values(self, name: str) -> Array | Integers:
        if name == TOKEN_COUNTS:
            counts = self._token_counts()
            return Integers(counts, [len(counts)])
        if name == ATTENTION:
            assert self.attended is not None
            return await _padded_maps(self.attended)
        if name == SCORES:
            assert self.classified is not None
            scores = [{item.label: item.score for item in result.labels} for result in self.classified.results]
            return stack_rows([[row[label] for label in self.labels] for row in scores])
        assert self.encoded is not None
        results = self.encoded.results
        if name == POOLED:
            return stack_vectors([_present(result.pooled) for result in results])
        if name in (SPARSE_TOKEN_IDS, SPARSE_WEIGHTS):
            return await _sparse([_sparse_of(result) for result in results], ids=name == SPARSE_TOKEN_IDS)
        matrices = [_present(result.token_vectors if name == TOKENS else result.multi_vector) for result in results]
        return await _run(max(map(_size, matrices)) * len(matrices), lambda: pad_matrices(matrices))

    def _token_counts(self) -> list[int]:
        if self.encoded is not None:
            return [_token_count(result) for result in self.encoded.results]
        if self.attended is not None:
            return [len(result.units) for result in self.attended.results]
        assert self.classified is not None
        return [result.token_count for result in self.classified.results]


async def _padded_maps(attended: AttendResponse) -> Array:
    maps = [result.maps for result in attended.results]
    largest = max(_size(of_input[0].matrix) for of_input in maps)
    layers = len({item.layer for item in maps[0]})
    return await _run(largest * len(maps[0]) * len(maps), lambda: pad_maps(maps, layers))


async def _sparse(results: Sequence[SparseResult], *, ids: bool) -> Array | Integers:
    """Return the token ids or the weights of sparse vectors, padded with zeros."""
    longest = max(len(result.token_ids) for result in results)
    if not ids:
        weights = [result.weights for result in results]
        return await _run(longest * len(results) * 4, lambda: pad_vectors(weights))

    def pad() -> list[int]:
        padded: list[int] = []
        for result in results:
            padded += [*result.token_ids, *[0] * (longest - len(result.token_ids))]
        return padded

    return Integers(await _run(longest * len(results) * 8, pad), [len(results), longest])


def _sparse_of(result: EncodeResult) -> SparseResult:
    assert result.sparse is not None
    return result.sparse


def _token_count(result: EncodeResult) -> int:
    return result.token_count if result.token_vectors is None else result.token_vectors.shape[0]


def _present(array: Array | None) -> Array:
    assert array is not None
    return array


def _size(array: Array | None) -> int:
    """Return a size in bytes."""
    return int(_present(array).values.nbytes)


async def _run(size: int, work: Callable[[], T]) -> T:
    """Run `work` in a thread if it copies many bytes."""
    return work() if size <= INLINE_BYTES else await asyncio.to_thread(work)


def supported(info: ModelInfo) -> list[str]:
    """Return the names of the outputs of a model."""
    return [name for name, *_ in describe_outputs(info)]
