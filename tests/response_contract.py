"""What responses of every operation have in common (shapes, dtypes, offsets, row sums), and REST compared with gRPC."""

import base64
import re
import unicodedata
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, get_args

import httpx
import numpy as np
from attendant_client.pb import encoder_pb2 as pb
from attendant_client.types import ScoredBy
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo
from google.rpc.status_pb2 import Status
from numpy.typing import NDArray

from service.operations.rerank import EXPLAIN_TOP
from service.rpc.messages import enum_labels
from tests.operation_requests import Body, ModelFacts, texts_of

DTYPES = {"float32": "<f4", "float16": "<f2", "int8": "i1", "ubinary": "u1", "sqrt_uint8": "u1"}
NUMBERS: dict[int, str] = dict(enumerate(("", *DTYPES)))
Array = NDArray[Any]
SIDES = ("queries", "documents")
DROPPED = ("Cc", "Cf", "Cn", "Co", "Mn", "Zl", "Zp", "Zs")
"""Unicode categories of characters that tokenizers drop."""


def to_array(value: Any, dtype: str = "float32") -> Array:
    """Decode an array in a JSON response: nested lists, or base64 with its shape and dtype."""
    if isinstance(value, dict):
        data = np.frombuffer(base64.b64decode(value["data"]), dtype=DTYPES[value["dtype"]])
        return data.reshape(value["shape"])
    return np.asarray(value, dtype=DTYPES[dtype])


def tensor_to_array(tensor: Any) -> Array:
    return np.frombuffer(tensor.data, dtype=DTYPES[NUMBERS[tensor.dtype]]).reshape(tuple(tensor.shape))


def is_visible(character: str) -> bool:
    return character != "\ufffd" and unicodedata.category(character) not in DROPPED


def assert_finite(values: Array) -> None:
    assert np.isfinite(values.astype(np.float32)).all()


def assert_close(left: Array, right: Array, tolerance: float) -> None:
    """Compare arrays from two APIs or two batches: equal shapes, and a cosine near 1 or a small maximum difference."""
    assert left.shape == right.shape
    assert left.dtype == right.dtype
    if left.dtype == np.uint8 and left.ndim == 1:  # a bit can flip if a component is close to 0
        assert np.unpackbits(np.bitwise_xor(left, right, dtype=np.uint8)).mean() <= 0.05
        return
    a, b = left.astype(np.float64).ravel(), right.astype(np.float64).ravel()
    norms = np.linalg.norm(a) * np.linalg.norm(b)
    cosine = a @ b / norms if norms else 1.0
    assert cosine >= 1 - tolerance or np.abs(a - b).max() <= tolerance * max(1.0, np.abs(a).max()), cosine


def as_list(value: Any) -> list[Any]:
    """Return the items of a field that may be a single text."""
    return [value] if isinstance(value, str) else value


def input_texts(item: Any) -> tuple[str, str]:
    if isinstance(item, str):
        return item, ""
    return item.get("text", ""), item.get("pair", "")


def check_tokens(tokens: list[Any], words: list[Any] | None, item: Any) -> None:
    """Check that offsets match the segment's text, and that `word_index` refers to an overlapping word."""
    by_ids = isinstance(item, dict) and "token_ids" in item
    for token in tokens:
        text = input_texts(item)[token["segment"]]
        assert 0 <= token["start"] <= token["end"] <= len(text)
        if not token["special"] and not by_ids:
            assert token["text"] == text[token["start"] : token["end"]]
        if token["word_index"] is not None and words is not None:
            word = words[token["word_index"]]
            assert word["segment"] == token["segment"]
            assert word["start"] < token["end"]
            assert token["start"] < word["end"]


def check_words(words: list[Any], item: Any) -> None:
    previous = (0, 0)
    for word in words:
        text = input_texts(item)[word["segment"]]
        assert word["text"] == text[word["start"] : word["end"]]
        assert not word["text"].isspace()
        assert previous <= (word["segment"], word["start"]) < (word["segment"], word["end"])
        previous = (word["segment"], word["end"])


def check_encode(request: dict[str, Any], response: dict[str, Any], facts: Any) -> None:
    if request.get("chunks") is not None:
        check_chunks(request, response, facts)
        return
    outputs = request.get("outputs", ["pooled"])
    dtype = request.get("dtype", "float32")
    width, last = facts.hidden_size, facts.num_hidden_layers
    layers, reduce = request.get("layers", [-1]), request.get("layer_reduce", "concat")
    if layers == "all":
        layers = list(range(last + 1))
    copies = len(layers) if reduce == "concat" else 1
    stacked = (len(layers),) if reduce == "stack" else ()
    assert response["prompt"] == (request.get("prompt") or None)
    assert response["prompt_name"] is None
    assert response["usage"]["tokens"] == sum(result["token_count"] for result in response["results"])
    for item, result in zip(as_list(request["inputs"]), response["results"], strict=True):
        count = result["token_count"]
        if request.get("prompt") and "tokens" in result:
            assert 0 < len(result["tokens"]) < count
            count = len(result["tokens"])
        last_only = set(layers) <= {-1, last}
        dimensions = request.get("dimensions") or (width if last_only else width * copies)
        expected = {"pooled": (*stacked, dimensions if dtype != "ubinary" else dimensions // 8)}
        expected["tokens"] = (*stacked, count, width * copies)
        expected["static"] = (count, width)
        if "words" in outputs:
            check_words(result["words"], item)
            expected["words"] = (*stacked, len(result["words"]), width * copies)
        if "spans" in outputs:
            expected["spans"] = (*stacked, len(item["spans"]), width * copies)
        if "tokens" in outputs or "static" in outputs:
            assert len(result["tokens"]) == count
            check_tokens(result["tokens"], result.get("words"), item)
        check_heads(result, outputs, dtype, facts.vocab_size)
        for output in (name for name in outputs if name not in ("sparse", "multi_vector")):
            name = "pooled" if output == "pooled" else f"{output.removesuffix('s')}_vectors"
            name = "static_vectors" if output == "static" else name
            values = to_array(result[name], dtype)
            assert values.shape == expected[output], (output, values.shape, expected[output])
            assert_finite(values)
        if "pooled" in outputs and dtype == "float32" and not stacked and request.get("normalize", True) is True:
            assert abs(np.linalg.norm(to_array(result["pooled"])) - 1) < 1e-3


def check_chunks(request: dict[str, Any], response: dict[str, Any], facts: Any) -> None:
    options, dtype, last = request["chunks"], request.get("dtype", "float32"), facts.num_hidden_layers
    layers, reduce = request.get("layers", [-1]), request.get("layer_reduce", "concat")
    layers = list(range(last + 1)) if layers == "all" else layers
    size = facts.hidden_size * (len(layers) if reduce == "concat" and not set(layers) <= {-1, last} else 1)
    size = request.get("dimensions") or size
    width = size // 8 if dtype == "ubinary" else size
    assert response["usage"] == {
        "tokens": sum(result["token_count"] for result in response["results"]), "truncated_inputs": 0,
    }  # fmt: skip
    for item, result in zip(as_list(request["inputs"]), response["results"], strict=True):
        text, chunks = input_texts(item)[0], result["chunks"]
        stacked = (len(layers),) if reduce == "stack" else ()
        vectors = to_array(result["chunk_vectors"], dtype)
        assert vectors.shape == (*stacked, len(chunks), width)
        assert_finite(vectors)
        assert set(result) == {"token_count", "truncated", "chunks", "chunk_vectors"}
        assert [chunk["text"] for chunk in chunks] == [text[chunk["start"] : chunk["end"]] for chunk in chunks]
        if options.get("by") == "span":
            assert [[chunk["start"], chunk["end"]] for chunk in chunks] == item["spans"]
            continue
        overlaps = 0
        for before, after in pairwise(chunks):
            assert before["start"] < after["start"] or options.get("merge") is False
            assert before["end"] < after["end"]
            overlaps += after["start"] < before["end"]
            assert options.get("overlap_tokens") or not any(map(is_visible, text[before["end"] : after["start"]]))
        assert not overlaps or options.get("overlap_tokens")
        for chunk in chunks:
            assert chunk["text"] == chunk["text"].strip() != ""


def check_heads(result: Any, outputs: list[str], dtype: str, vocab_size: int) -> None:
    if "sparse" in outputs:
        check_sparse(result["sparse"], vocab_size)
    if "multi_vector" in outputs:
        vectors = to_array(result["multi_vector"], dtype)
        assert len(vectors) == len(result["multi_vector_tokens"]) <= result["token_count"]
        assert np.abs(np.linalg.norm(vectors.astype(np.float64), axis=1) - 1).max(initial=0) < 1e-3


def check_sparse(sparse: Any, vocab_size: int) -> None:
    ids, weights = sparse["token_ids"], to_array(sparse["weights"])
    assert ids == sorted(set(ids))
    assert set(ids) <= set(range(vocab_size))
    assert len(ids) == len(sparse["tokens"]) == len(weights)
    assert (weights > 0).all()
    assert_finite(weights)


def assert_sparse_close(left: Any, right: Any, tolerance: float) -> None:
    """Compare sparse vectors from two APIs or two batches; an entry with a weight near 0 may be missing from one."""
    weights = [dict(zip(sparse["token_ids"], to_array(sparse["weights"]), strict=True)) for sparse in (left, right)]
    for number in {*weights[0], *weights[1]}:
        a, b = (float(own.get(number, 0.0)) for own in weights)
        assert abs(a - b) <= tolerance * max(1.0, a, b), number


def check_attend(request: dict[str, Any], response: dict[str, Any], facts: Any) -> None:
    kind, special = request.get("kind", "probs"), request.get("special_tokens", "keep")
    by_head = kind in ("probs", "scores", "norm") and request.get("head_reduce", "none") == "none"
    layer_reduce = request.get("layer_reduce", "none")
    layers = request.get("layers", "all")
    layer_count = facts.num_hidden_layers if layers == "all" else len(layers)
    count = 1 if layer_reduce != "none" else layer_count
    if by_head and layer_reduce != "rollout":
        count *= len(request.get("heads", range(facts.num_attention_heads)))
    for item, result in zip(as_list(request["inputs"]), response["results"], strict=True):
        assert len(result["maps"]) == (0 if "outputs" in request else count)
        if "outputs" in request:
            _check_layer_outputs(result, request, layer_count, facts)
        units, rows, columns = result["units"], result["rows"], result["columns"]
        for unit in units:
            text = input_texts(item)[unit["segment"]]
            if not unit["special"] and not (isinstance(item, dict) and "token_ids" in item):
                assert unit["text"] == text[unit["start"] : unit["end"]]
        assert set(rows) | set(columns) <= set(range(len(units)))
        for attention_map in result["maps"]:
            _check_map(attention_map, request, len(rows), len(columns), kind, special)


def _check_layer_outputs(result: Any, request: Any, layers: int, facts: Any) -> None:
    dtype, outputs = request.get("dtype", "float32"), result["layer_outputs"]
    assert len(outputs) == layers
    heads = [*request.get("heads", range(facts.num_attention_heads))]
    tokens, rows = len(result["units"]), len(result["rows"])
    assert result["rows"] == [*request.get("rows", range(tokens))]
    for layer in outputs:
        assert set(layer) == {"layer", "heads_of", *request["outputs"]}
        assert layer["heads_of"] == heads
        arrays = {name: to_array(layer[name], dtype) for name in request["outputs"]}
        for name, array in arrays.items():
            assert_finite(array)
            length = tokens if name in ("keys", "values") else rows
            of_pairs = name in ("scores", "weights", "bias", "content_to_position", "position_to_content")
            per_head = of_pairs or name in ("queries", "keys", "values", "heads")
            assert array.shape[:-1] == ((len(heads), length) if per_head else (length,))
            if of_pairs:
                assert array.shape[-1] == tokens
            elif not per_head and name != "position":  # whose size depends on the kind of positions
                assert array.shape[-1] == facts.hidden_size
        if "weights" in arrays and "decimals" not in request:
            np.testing.assert_allclose(arrays["weights"].astype(float).sum(axis=-1), 1, atol=5e-3)


def _check_map(attention_map: Any, request: Any, rows: int, columns: int, kind: str, special: str) -> None:
    dtype = request.get("dtype", "float32")
    assert set(attention_map["empty_rows"]) <= set(range(rows))
    if "top_p" in request or "top_k" in request:
        sparse = attention_map["matrix"]
        assert len(sparse["indices"]) == rows
        assert all(len(set(indices)) == len(indices) <= columns for indices in sparse["indices"])
        if "top_k" in request:
            assert all(len(indices) <= request["top_k"] for indices in sparse["indices"])
        if isinstance(sparse["values"], dict):
            values = to_array(sparse["values"])
            assert len(values) == sum(map(len, sparse["indices"]))
            assert_finite(values)
        return
    matrix = to_array(attention_map["matrix"], dtype)
    if not rows:
        matrix = matrix.reshape(0, columns)  # an empty list does not determine the number of columns
    assert matrix.shape == (rows, columns)
    assert_finite(matrix)
    if kind == "scores" or dtype == "sqrt_uint8" or "decimals" in request or not rows:
        return
    values = matrix.astype(np.float64)
    tolerance = 1e-3 if dtype == "float32" else 1e-2 + 1e-3 * columns
    empty = np.zeros(rows, dtype=bool)
    empty[attention_map["empty_rows"]] = True
    if special == "renormalize":
        assert np.abs(np.abs(values).sum(axis=1)[~empty] - 1).max(initial=0) < tolerance
    elif kind == "probs" or request.get("layer_reduce") == "rollout":
        if kind == "probs" and request.get("head_reduce") == "max":
            return
        sums = values.sum(axis=1) + np.asarray(attention_map["excluded_mass"])
        assert np.abs(sums[~empty] - 1).max(initial=0) < tolerance
    elif kind == "projection":
        sums = values.sum(axis=1) + np.asarray(attention_map["excluded_mass"]) + np.asarray(attention_map["bias_share"])
        scale = 1 + np.abs(values).sum(axis=1)
        assert (np.abs(sums - 1) / scale)[~empty].max(initial=0) < tolerance


def check_compare(request: dict[str, Any], response: dict[str, Any], num_hidden_layers: int) -> None:
    count = len(request["occurrences"])
    assert len(response["occurrences"]) == count
    for requested, occurrence in zip(request["occurrences"], response["occurrences"], strict=True):
        assert occurrence["text"] == requested["text"][occurrence["start"] : occurrence["end"]]
        assert len(occurrence["contributors"]) <= request.get("top_contributors", 5)
        for word in occurrence["contributors"]:
            assert word["text"] == requested["text"][word["start"] : word["end"]]
            assert -1e-6 <= word["share"] <= 1 + 1e-6
    layers = request.get("layers", "all")
    if layers == "all":
        layers = range(num_hidden_layers + 1)
    expected = [layer % (num_hidden_layers + 1) for layer in layers]
    assert [similarity["layer"] for similarity in response["layers"]] == expected
    matrices = [similarity[name] for similarity in response["layers"] for name in ("cosine", "centered")]
    for matrix in (response["static"], *matrices):
        cosines = to_array(matrix)
        assert cosines.shape == (count, count)
        assert_finite(cosines)
        assert np.abs(np.diag(cosines) - 1).max() < 1e-6
        assert np.abs(cosines - cosines.T).max() < 1e-6


def check_similarity(request: dict[str, Any], response: dict[str, Any]) -> None:
    texts = {name: as_list(request[name]) for name in SIDES}
    scores, zipped = to_array(response["scores"]), request.get("pairs") == "zip"
    counts = tuple(map(len, texts.values()))
    assert scores.shape == (counts[:1] if zipped else counts)
    assert_finite(scores)
    function = request.get("similarity", "cosine")
    is_distance = function in ("euclidean", "manhattan")
    assert response["similarity"] == function
    if function == "cosine":
        assert np.abs(scores).max() <= 1 + 1e-5
    assert not is_distance or scores.max() <= 0
    explain = request.get("explain", False)
    for name in SIDES:
        for text, result in zip(texts[name], response[name], strict=True):
            assert ("units" in result) == explain
            for unit in result.get("units", ()):
                assert not unit["special"] or function == "maxsim"
                assert unit["special"] or unit["text"] == text[unit["start"] : unit["end"]]
    tokens = sum(result["token_count"] for name in SIDES for result in response[name])
    assert response["usage"]["tokens"] == tokens
    assert ("pairs" in response) == explain
    assert response["contributions_unavailable"] == ("distance" if is_distance and explain else None)
    if explain:
        places = [(pair["query"], pair["document"]) for pair in response["pairs"]]
        assert places == ([(index, index) for index in range(counts[0])] if zipped else list(np.ndindex(counts)))
        for pair in response["pairs"]:
            score = scores[pair["query"]] if zipped else scores[pair["query"], pair["document"]]
            check_terms = _check_head_pair if function in ("maxsim", "sparse") else _check_pair
            check_terms(pair, request, response, float(score))


def _check_head_pair(pair: Any, request: Any, response: Any, score: float) -> None:
    del response
    assert pair["contributions"] is None
    terms = pair["matches" if request["similarity"] == "maxsim" else "products"]
    assert "top_k" not in request or len(terms) <= request["top_k"]
    values = [term["value"] for term in terms]
    assert values == sorted(values, key=lambda value: -abs(value))
    assert abs(sum(values) + pair["rest"]["dropped"] - score) <= 1e-5 * max(1, abs(score))


def _check_pair(pair: Any, request: Any, response: Any, score: float) -> None:
    shape = (
        len(response["queries"][pair["query"]]["units"]),
        len(response["documents"][pair["document"]]["units"]),
    )
    assert abs(pair["score"] - score) <= 1e-5 * max(1, abs(score))
    if response["contributions_unavailable"] is None:
        _check_contributions(pair, request, shape, score)
    else:
        assert (pair["contributions"], pair["rest"]) == (None, None)
    for name, count in zip(("query_effects", "document_effects"), shape, strict=True):
        if request.get("effect", "none") == "none":
            assert pair[name] is None
        else:
            effects = to_array(pair[name])
            assert effects.shape == (count,)
            assert_finite(effects)


def _check_contributions(pair: Any, request: Any, shape: tuple[int, int], score: float) -> None:
    contributions, rest = pair["contributions"], sum(pair["rest"].values())
    if "top_k" in request:
        values = to_array(contributions["values"])
        assert len(values) == min(request["top_k"], shape[0] * shape[1])
        places = set(zip(contributions["query_units"], contributions["document_units"], strict=True))
        assert len(places) == len(values)
        assert all(row < shape[0] and column < shape[1] for row, column in places)
        assert (np.diff(np.abs(values)) <= 0).all()
    else:
        values = to_array(contributions).reshape(shape)
    assert_finite(values)
    assert abs(values.sum(dtype=np.float64) + rest - score) <= 1e-5 * max(1, abs(score))


def rest_spelling(message: str) -> str:
    """Convert a gRPC error message to REST spelling: values in lower case and quotes."""
    values = {label: f'"{value}"' for labels in enum_labels().values() for value, label in labels.items()}
    return re.sub(r"\b[A-Z]+(?:_[A-Z0-9]+)+\b", lambda match: values.get(match[0], match[0]), message)


def assert_same_error(call: Any, response: httpx.Response) -> None:
    """Compare code, reason, message and details of the error of a gRPC call with those of a REST response."""
    error, trailing = response.json()["error"], dict(call.trailing_metadata())
    status, info, violations = Status.FromString(trailing["grpc-status-details-bin"]), ErrorInfo(), BadRequest()
    status.details[0].Unpack(info)
    assert (call.code().name, info.reason) == (error["code"], error["reason"])
    assert (status.code, status.message) == (call.code().value[0], call.details())
    assert (info.domain, info.metadata["request_id"]) == ("attendant", trailing["x-request-id"])
    assert status.ByteSize() <= 1024
    details = ["field", "minimum", "maximum"]
    if info.reason != "RESPONSE_TOO_LARGE" and not isinstance(error["actual"], str):  # spelled by API
        details.append("actual")
    for name in details:
        assert info.metadata.get(name) == (None if error[name] is None else str(error[name]))
    if len(status.details) > 1:
        status.details[1].Unpack(violations)
        assert [violation.field for violation in violations.field_violations] == [error["field"]]
    messages = [rest_spelling(call.details()), error["message"]]
    if info.reason == "RESPONSE_TOO_LARGE":  # JSON and protobuf differ in size, and therefore in the remedy
        messages = [re.sub(r"\(\d+ bytes", "(", message).partition(". ")[0] for message in messages]
    assert messages[0] == messages[1]


def compare_compare(body: Any, result: Any) -> None:
    for actual, expected in zip(result.layers, body["layers"], strict=True):
        assert_close(tensor_to_array(actual.cosine), to_array(expected["cosine"]), 1e-5)


def compare_tokenize(body: Any, result: Any) -> None:
    for actual, expected in zip(result.results, body["results"], strict=True):
        assert [token.text for token in actual.tokens] == [token["text"] for token in expected["tokens"]]
        assert [(word.start, word.end) for word in actual.words] == [
            (word["start"], word["end"]) for word in expected["words"]
        ]


def paired_results(body: Any, message: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the results of gRPC and REST for each input, after comparing their numbers of tokens."""
    for actual, expected in zip(message.results, body["results"], strict=True):
        assert (actual.token_count, actual.truncated) == (expected["token_count"], expected["truncated"])
        yield actual, expected


def compare_encode(request: Body, body: Any, result: Any, tolerance: float) -> None:
    dtype = request.get("dtype", "float32")
    for actual, expected in paired_results(body, result):
        for name in ("pooled", "token_vectors", "word_vectors", "span_vectors", "static_vectors", "multi_vector",
                     "chunk_vectors"):  # fmt: skip
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
        for chunk, other in zip(actual.chunks, expected.get("chunks", ()), strict=True):
            assert other == {name: getattr(chunk, name) for name in ("text", "start", "end", "token_count")}


def compare_attend(request: Body, body: Any, result: Any) -> None:
    header, maps = result[0].header, [message.map for message in result[1:] if message.HasField("map")]
    assert [info.map_count for info in header.inputs] == [len(item["maps"]) for item in body["results"]]
    expected_maps = [attention_map for item in body["results"] for attention_map in item["maps"]]
    dtype = request.get("dtype", "float32")
    layers = [message.layer_outputs for message in result[1:] if message.HasField("layer_outputs")]
    expected_layers = [layer for item in body["results"] for layer in item.get("layer_outputs", ())]
    for actual, expected in zip(layers, expected_layers, strict=True):
        assert (actual.layer, list(actual.heads_of)) == (expected["layer"], expected["heads_of"])
        for name in request["outputs"]:
            left, right = tensor_to_array(getattr(actual, name)), to_array(expected[name], dtype)
            np.testing.assert_allclose(left.astype(float), right.astype(float), atol=2e-2, rtol=2e-2)
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


def check_classify(request: Body, response: Any, labels: list[str]) -> None:
    labels = request.get("labels", labels)
    count = min(request.get("top_k", len(labels)), len(labels))
    explain = request.get("effect", "none") != "none"
    assert response["usage"]["tokens"] == sum(result["token_count"] for result in response["results"])
    for item, result in zip(as_list(request["inputs"]), response["results"], strict=True):
        scores = [label["score"] for label in result["labels"]]
        assert len(scores) == count
        assert len({label["label"] for label in result["labels"]} & set(labels)) == count
        assert scores == sorted(scores, reverse=True)
        if not request.get("raw_scores") and not request.get("multi_label") and count == len(labels) > 1:
            assert abs(sum(scores) - 1) < 1e-5
        assert ("units" in result) == explain
        text = item if isinstance(item, str) else item.get("text")
        for unit in result.get("units", ()):
            if unit["segment"] == 0 and text is not None:
                assert unit["text"] == text[unit["start"] : unit["end"]]
        for label in result["labels"]:
            assert ("effects" in label) == explain
            assert np.isfinite(label.get("effects", [])).all()
            assert len(label.get("effects", ())) == len(result.get("units", ()))


def check_rerank(request: Body, response: Any) -> None:
    texts, results = texts_of(request), response["results"]
    assert len(results) == min(request.get("top_n", len(texts)), len(texts))
    assert len({result["index"] for result in results} & set(range(len(texts)))) == len(results)
    assert response["scored_by"] in get_args(ScoredBy)
    scores = [result["relevance_score"] for result in results]
    assert scores == sorted(scores, reverse=True)
    explain = request.get("effect", "none") != "none"
    explained = min(request.get("explain_top", EXPLAIN_TOP), len(results)) if explain else 0
    for place, result in enumerate(results):
        assert ("document" in result) == request.get("return_documents", False)
        if "document" in result:
            sent = request["documents"][result["index"]]
            assert result["document"] == ({"text": sent} if isinstance(sent, str) else sent)
        assert ("explanation" in result) == (place < explained)
        for side, text in (("query", request["query"]), ("document", texts[result["index"]])):
            if "explanation" not in result:
                continue
            units = result["explanation"][f"{side}_units"]
            assert all(unit["text"] == text[unit["start"] : unit["end"]] for unit in units)
            effects = result["explanation"][f"{side}_effects"]
            assert len(effects) == len(units)
            assert np.isfinite(effects).all()


def check_token_classify(request: Body, response: Any, labels: list[str]) -> None:
    aggregated = request.get("aggregation", "simple") != "none"
    known = {label.split("-", 1)[-1] for label in labels} if aggregated else set(labels)
    for item, result in zip(as_list(request["inputs"]), response["results"], strict=True):
        texts = input_texts(item)
        for entity in result["entities"]:
            assert entity["label"] in known - {"O"}
            assert 0 < entity["score"] <= 1
            if not (isinstance(item, dict) and "token_ids" in item) and entity["start"] < entity["end"]:
                assert entity["text"] == texts[entity["segment"]][entity["start"] : entity["end"]]


def compare_token_classify(body: Any, message: Any, tolerance: float) -> None:
    for actual, expected in paired_results(body, message):
        places = [(entity.label, entity.segment, entity.start, entity.end) for entity in actual.entities]
        others = [(item["label"], item["segment"], item["start"], item["end"]) for item in expected["entities"]]
        if places == others:  # two labels of a token may have scores so close that batches decide differently
            for entity, item in zip(actual.entities, expected["entities"], strict=True):
                assert abs(entity.score - item["score"]) <= tolerance
        else:
            assert abs(len(places) - len(others)) <= 2


def compare_classify(body: Any, message: Any, tolerance: float) -> None:
    for actual, expected in paired_results(body, message):
        scores = {label.label: label.score for label in actual.labels}
        for label in expected["labels"]:  # equal scores may swap places between batches
            if label["label"] in scores:
                assert abs(scores[label["label"]] - label["score"]) <= tolerance * max(1.0, abs(label["score"]))


def compare_rerank(body: Any, message: Any, tolerance: float) -> None:
    assert len(message.results) == len(body["results"])
    assert pb.ScoredBy.Name(message.scored_by) == f"SCORED_BY_{body['scored_by'].upper()}"
    scores = {result.index: result.relevance_score for result in message.results}
    for place, result in enumerate(body["results"]):
        expected = result["relevance_score"]
        for score in (message.results[place].relevance_score, scores.get(result["index"], expected)):
            assert abs(score - expected) <= tolerance * max(1.0, abs(expected))
        assert message.results[place].HasField("explanation") == ("explanation" in result)


def check_fill_mask(request: Body, response: Any, facts: ModelFacts) -> None:
    layers, targets, count = request.get("layers", [-1]), request.get("targets"), facts.num_hidden_layers + 1
    expected_layers = list(range(count)) if layers == "all" else [layer % count for layer in layers]
    size = request.get("top_k", 5 if targets is None else len(targets))
    for item, result in zip(as_list(request["inputs"]), response["results"], strict=True):
        texts = input_texts(item)
        places = [position["position"] for position in result["positions"]]
        assert places == sorted(set(places))
        assert max(places) < result["token_count"]
        if "position" in request:
            assert places == [request["position"]]
        for position in result["positions"]:
            if "position" not in request and texts[0]:
                assert texts[position["segment"]][position["start"] : position["end"]] == facts.mask_token
            assert [layer["layer"] for layer in position["layers"]] == expected_layers
            for layer in position["layers"]:
                predictions = layer["predictions"]
                probabilities = [word["probability"] for word in predictions]
                assert len(predictions) == min(size, facts.vocab_size if targets is None else len(targets))
                assert len({word["id"] for word in predictions}) == len(predictions)
                assert probabilities == sorted(probabilities, reverse=True)
                assert sum(probabilities) < 1 + 1e-5


def compare_fill_mask(body: Any, message: Any, tolerance: float) -> None:
    for actual, expected in paired_results(body, message):
        for one, other in zip(actual.positions, expected["positions"], strict=True):
            places = ("position", "start", "end", "segment")
            assert [getattr(one, name) for name in places] == [other[name] for name in places]
            for words, others in zip(one.layers, other["layers"], strict=True):
                assert words.layer == others["layer"]
                pairs = zip(words.predictions, others["predictions"], strict=True)  # equal ones may swap places
                assert all(abs(word.probability - item["probability"]) <= tolerance for word, item in pairs)
