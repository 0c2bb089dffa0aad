"""Results of the heads in an encode request: sparse vectors, and vectors for late interaction."""

from collections.abc import Sequence

import numpy as np

from model.artifact.tokenizer import Tokenizer
from service.engine.encode.pooling import cast
from service.engine.encode.response import PreparedInput
from service.engine.encode.sizes import JSON_CHARACTER_BYTES, array_bytes
from service.engine.schema.encode import Array, EncodeRequest, EncodeResult, SparseResult
from service.engine.schema.tasks import TextVectors

SPARSE_ENTRY_BYTES = 16
"""Upper bound on the size of an entry of a sparse vector in JSON, without its text and weight."""


def add_head_results(
    results: Sequence[EncodeResult],
    prepared: Sequence[PreparedInput],
    vectors: Sequence[TextVectors],
    request: EncodeRequest,
    tokenizer: Tokenizer,
) -> None:
    """Add the requested results of heads to the results of the inputs."""
    dtype = request.dtype
    for result, item, own in zip(results, prepared, vectors, strict=False):  # static vectors have no inference
        if "sparse" in request.outputs:
            assert own.sparse is not None
            ids: list[int] = own.sparse.token_ids.tolist()
            weights = Array(cast(own.sparse.weights, dtype), dtype)
            result.sparse = SparseResult(ids, tokenizer.vocabulary_texts(ids), weights)
        if "multi_vector" in request.outputs:
            assert own.multi_vector is not None
            result.multi_vector = Array(np.ascontiguousarray(cast(own.multi_vector, dtype)), dtype)
            result.multi_vector_tokens = item.vector_tokens


def sparse_bytes(results: Sequence[EncodeResult], request: EncodeRequest) -> int:
    """Return the size of the sparse vectors of a response, which is not known before inference; in JSON at most."""
    sizes = [0]
    for result in results:
        if result.sparse is not None:
            size = array_bytes(len(result.sparse.token_ids), request.dtype, request.wire)
            texts = () if request.padded else result.sparse.tokens
            size += SPARSE_ENTRY_BYTES * len(result.sparse.token_ids) + JSON_CHARACTER_BYTES * sum(map(len, texts))
            sizes.append(size)
    return len(results) * max(sizes) if request.padded else sum(sizes)
