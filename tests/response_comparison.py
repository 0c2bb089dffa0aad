"""Comparisons of REST and gRPC responses to the same request."""

from typing import Any

import numpy as np

from tests.request_strategies import Body
from tests.response_contract import assert_close, assert_sparse_close, tensor_to_array, to_array


def compare_compare(body: Any, result: Any) -> None:
    for actual, expected in zip(result.layers, body["layers"], strict=True):
        assert_close(tensor_to_array(actual.cosine), to_array(expected["cosine"]), 1e-5)


def compare_tokenize(body: Any, result: Any) -> None:
    for actual, expected in zip(result.results, body["results"], strict=True):
        assert [token.text for token in actual.tokens] == [token["text"] for token in expected["tokens"]]
        assert [(word.start, word.end) for word in actual.words] == [
            (word["start"], word["end"]) for word in expected["words"]
        ]


def compare_encode(request: Body, body: Any, result: Any, tolerance: float) -> None:
    dtype = request.get("dtype", "float32")
    for actual, expected in zip(result.results, body["results"], strict=True):
        assert (actual.token_count, actual.truncated) == (expected["token_count"], expected["truncated"])
        for name in ("pooled", "token_vectors", "word_vectors", "span_vectors", "static_vectors", "multi_vector"):
            assert actual.HasField(name) == (name in expected)
            if name in expected:
                rest = to_array(expected[name], dtype)
                assert_close(tensor_to_array(getattr(actual, name)), rest, dtype_tolerance(tolerance, dtype))
        assert actual.HasField("sparse") == ("sparse" in expected)
        if "sparse" in expected:
            weights = tensor_to_array(actual.sparse.weights)
            found = {"token_ids": list(actual.sparse.token_ids), "weights": weights}
            assert_sparse_close(found, expected["sparse"], dtype_tolerance(tolerance, dtype))
        assert len(actual.multi_vector_tokens) == len(expected.get("multi_vector_tokens", ()))


def compare_attend(request: Body, body: Any, result: Any) -> None:
    header, maps = result[0].header, [message.map for message in result[1:]]
    assert [info.map_count for info in header.inputs] == [len(item["maps"]) for item in body["results"]]
    expected_maps = [attention_map for item in body["results"] for attention_map in item["maps"]]
    dtype = request.get("dtype", "float32")
    for actual, expected in zip(maps, expected_maps, strict=True):
        assert list(actual.empty_rows) == expected["empty_rows"]
        if actual.HasField("matrix"):
            left, right = tensor_to_array(actual.matrix), to_array(expected["matrix"], dtype)
            np.testing.assert_allclose(
                left.astype(float), right.astype(float).reshape(left.shape), atol=2e-2, rtol=2e-2
            )
        else:
            assert list(actual.sparse.indices) == [index for row in expected["matrix"]["indices"] for index in row]


def compare_similarity(body: Any, result: Any, tolerance: float) -> None:
    assert_close(tensor_to_array(result.scores), to_array(body["scores"]), tolerance)
    assert len(result.pairs) == len(body.get("pairs", ()))
    for actual, expected in zip(result.pairs, body.get("pairs", ()), strict=True):
        assert (actual.query, actual.document) == (expected["query"], expected["document"])
        values = expected["contributions"]
        if values is None:  # maxsim, sparse or a distance; a weight near 0 may be missing from one of them
            own = [term.value for term in (*actual.matches, *actual.products)]
            other = [term["value"] for term in expected.get("matches", expected.get("products", ()))]
            count = min(len(own), len(other))
            left, right = np.array(own[:count]), np.array(other[:count])
        elif actual.HasField("top"):  # equal magnitudes may swap places between batches
            left, right = np.abs(actual.top.values), np.abs(values["values"])
        else:
            left, right = tensor_to_array(actual.matrix), to_array(values).reshape(tuple(actual.matrix.shape))
        np.testing.assert_allclose(left, right, atol=5e-3 * max(1.0, abs(expected["score"])))
        for name in ("query_effects", "document_effects"):
            effects = expected[name] or []
            np.testing.assert_allclose(getattr(actual, name), effects, atol=5e-3 * max(1.0, abs(expected["score"])))


def dtype_tolerance(tolerance: float, dtype: str) -> float:
    """Return the tolerance of values of a type, given the tolerance of float32."""
    return tolerance + {"float32": 0, "float16": 1e-3, "int8": 2e-2, "ubinary": 0.2}.get(dtype, 0)
