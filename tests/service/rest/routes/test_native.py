"""/v1/encode, /v1/tokenize, /v1/model, /v1/attend and /v1/similarity, as documented."""

import base64
import re
from typing import Any

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray

from model.artifact.manifest import Manifest
from service.engine.model_loader import LoadedModel
from service.operations.inputs import MAX_OCCLUDED_SEQUENCES
from service.operations.similarity import MAX_EXPLAINED_PAIRS
from tests.service.conftest import GOLDEN, ServiceHarness, open_harness


async def test_response_has_the_fields_of_the_contract(harness: ServiceHarness) -> None:
    """Requests all outputs."""
    outputs = ["pooled", "tokens", "words", "spans", "static"]
    request = {"inputs": [{"text": GOLDEN, "spans": [[0, 5]]}], "outputs": outputs}
    body = (await harness.post("/v1/encode", request)).json()
    assert set(body) == {"model", "precision", "results", "usage", "prompt_name", "prompt"}
    assert (body["model"], body["usage"]) == ("all-MiniLM-L6-v2", {"tokens": 5, "truncated_inputs": 0})
    assert body["precision"] == harness.engine.info.precision
    (result,) = body["results"]
    assert (result["token_count"], result["truncated"]) == (5, False)
    assert result["tokens"][0] == {"id": 101, "text": "[CLS]", "start": 0, "end": 0, "word_index": None, "segment": 0,
                                   "special": True}  # fmt: skip
    assert result["tokens"][1] == {"id": 2769, "text": "money", "start": 0, "end": 5, "word_index": 0, "segment": 0,
                                   "special": False}  # fmt: skip
    assert result["words"][0] == {"text": "money", "start": 0, "end": 5, "segment": 0}
    shapes = {name: np.shape(result[f"{name}_vectors"]) for name in ("token", "word", "span", "static")}
    assert shapes == {"token": (5, 384), "word": (3, 384), "span": (1, 384), "static": (5, 384)}
    assert np.shape(result["pooled"]) == (384,)


async def test_inputs_have_four_equivalent_forms(harness: ServiceHarness) -> None:
    forms = [GOLDEN, [GOLDEN], [{"text": GOLDEN}], [{"token_ids": [2769, 2924, 7502]}]]
    results = [(await harness.post("/v1/encode", {"inputs": inputs})).json()["results"] for inputs in forms]
    assert results[1:] == results[:1] * 3


async def test_response_headers_have_model_timing_and_request_id(harness: ServiceHarness) -> None:
    response = await harness.post("/v1/encode", {"inputs": GOLDEN}, **{"x-request-id": "call-17"})
    assert response.headers["x-attendant-model"] == f"all-MiniLM-L6-v2@{harness.engine.info.digest}"
    assert re.fullmatch(r"tokenize;dur=[\d.]+, queue;dur=[\d.]+, run;dur=[\d.]+, postprocess;dur=[\d.]+",
                        response.headers["server-timing"])  # fmt: skip
    assert response.headers["x-request-id"] == "call-17"
    assert response.headers["content-type"] == "application/json"


def test_model_route_returns_properties_and_limits(rest: httpx.Client, manifest: Manifest) -> None:
    info = rest.get("/v1/model").json()
    for record, names in ((manifest, ("name", "source", "revision")), (manifest.embedding, ("pooling", "normalize"))):
        assert {name: info[name] for name in names} == {name: getattr(record, name) for name in names}
    assert (info["model_type"], info["hidden_size"], info["max_input_tokens"]) == ("bert", 384, 256)
    assert re.fullmatch(r"sha256:[0-9a-f]{64}", info["digest"])
    assert info["limits"] == {
        "max_inputs": 256, "max_documents": 1000, "max_input_characters": 16384, "max_request_bytes": 2 * 2**20,
        "max_response_bytes": 64 * 2**20, "max_explain_bytes": 2**30, "max_queue_tokens": 262_144,
        "max_queue_ms": 2000, "max_explain_queue_ms": 2000,
        "max_explain_queue_tokens": 65_536, "max_timeout_ms": 60000,
        "header_timeout_ms": 10000, "body_timeout_ms": 15000, "max_spans_per_input": 1024,
        "max_spans_per_request": 4096, "max_grpc_message_bytes": 8 * 2**20,
        "max_pending_request_bytes": 256 * 2**20, "max_connections": 2048, "max_grpc_streams": 256,
    }  # fmt: skip
    assert info["operations"] == ["encode", "attend", "compare", "similarity", "rerank", "tokenize"]
    assert info["labels"] == []
    assert info["layers"] == [0, 1, 2, 3, 4, 5, 6]
    assert info["threads"] >= 1
    assert info["backend_reason"]
    assert info["attention"] == "bidirectional"
    assert info["attention_kinds"] == ["probs", "scores", "norm", "block_norm", "projection"]
    assert max(info["length_buckets"]) >= info["max_input_tokens"]


def test_layers_count_from_either_end(rest: httpx.Client) -> None:
    """Hidden layers are computed in float32. A layer out of range is rejected."""
    positive, negative = (rest.post("/v1/encode", json={"inputs": "a", "layers": [layer]}).json() for layer in (3, -4))
    assert positive == negative
    assert positive["precision"] == "float32"
    assert rest.post("/v1/encode", json={"inputs": "a", "layers": [99]}).status_code == 422


async def test_spans_of_tokenize_are_rejected(harness: ServiceHarness) -> None:
    response = await harness.post("/v1/tokenize", {"inputs": ["a", {"text": "bank", "spans": [[0, 4]]}]})
    assert response.status_code == 422
    assert response.json()["error"]["field"] == "inputs[1].spans"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/encode", {"inputs": "bank"}),
        ("/v1/tokenize", {"inputs": "bank"}),
    ],
)
async def test_query_parameters_are_rejected(harness: ServiceHarness, path: str, body: dict[str, Any]) -> None:
    """The APIs of other servers ignore query parameters and name them in a header; this API rejects them."""
    response = await harness.client.post(path, json=body, params={"dimensions": "1"})
    assert response.status_code in (400, 413, 422)
    assert "dimensions: unknown query parameter. Send options in the body." in response.text


async def test_usage_of_compare_counts_equal_texts_once(harness: ServiceHarness) -> None:
    occurrences = [{"text": "bank", "word_index": 0}, {"text": "bank", "span": [0, 4]}]
    response = await harness.post("/v1/compare", {"occurrences": occurrences})
    assert response.json()["usage"] == {"tokens": 3, "truncated_inputs": 0}


async def test_endpoint_of_a_path_with_a_parameter_is_its_template(harness: ServiceHarness) -> None:
    assert (await harness.client.get("/v1/models/all-MiniLM-L6-v2")).status_code == 200
    assert harness.sample("attendant_requests_total", endpoint="/v1/models/{name}", code="200") == 1


async def test_equal_scores_are_printed_equally(harness: ServiceHarness) -> None:
    body = {"queries": ["river bank", "money"], "documents": ["a bank account", "water", "loan"], "explain": True}
    response = (await harness.post("/v1/similarity", body)).json()
    for pair in response["pairs"]:
        assert repr(pair["score"]) == repr(response["scores"][pair["query"]][pair["document"]])


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank", "/infinity/rerank"])
def test_rerank_accepts_booleans_as_strings(rest: httpx.Client, path: str) -> None:
    """RAGFlow's client for Xinference sends `return_documents` and `return_len` as strings."""
    body = {"model": "all-MiniLM-L6-v2", "query": "money", "documents": ["river", "bank"], "return_len": "true"}
    for value, is_returned in (("true", True), ("false", False)):
        results = rest.post(path, json=body | {"return_documents": value}).raise_for_status().json()["results"]
        assert all((result.get("document") is not None) == is_returned for result in results)
    assert rest.post(path, json=body | {"return_documents": "yes"}).status_code in (400, 422)


# /v1/attend, as documented in docs/api.md.

CASHED = "He cashed a check at the bank."


async def attend(harness: ServiceHarness, inputs: object = CASHED, **fields: Any) -> dict[str, Any]:
    response = await harness.post("/v1/attend", {"inputs": inputs, **fields})
    assert response.status_code == 200, response.text
    result: dict[str, Any] = response.json()["results"][0]
    return result


def layers_and_heads(result: dict[str, Any]) -> list[tuple[int | None, int | None]]:
    return [(attention_map["layer"], attention_map["head"]) for attention_map in result["maps"]]


def tensor(field: dict[str, Any]) -> NDArray[Any]:
    types = {"float32": "<f4", "float16": "<f2", "sqrt_uint8": "u1"}
    return np.frombuffer(base64.b64decode(field["data"]), types[field["dtype"]]).reshape(field["shape"])


async def test_outputs_are_the_steps_inside_the_layers(harness: ServiceHarness) -> None:
    """Queries, keys and values of two heads, for two tokens, in place of maps."""
    names = ["queries", "keys", "values", "scores", "weights", "heads"]
    result = await attend(harness, outputs=names, layers=[-1, 2], heads=[3, 0], rows=[8, 2])
    assert (result["rows"], result["columns"], result["maps"]) == ([8, 2], [*range(11)], [])
    maps = (await attend(harness, layers=[6, 2], heads=[3, 0]))["maps"]
    for index, layer in enumerate(result["layer_outputs"]):
        assert (layer["layer"], layer["heads_of"]) == ((6, 2)[index], [3, 0])
        assert set(layer) == {"layer", "heads_of", *names}
        step = {name: np.array(layer[name]) for name in names}
        np.testing.assert_allclose(step["queries"] @ step["keys"].swapaxes(1, 2) / 32**0.5, step["scores"], atol=1e-5)
        powers = np.exp(step["scores"])
        np.testing.assert_allclose(powers / powers.sum(axis=-1, keepdims=True), step["weights"], atol=1e-6)
        np.testing.assert_allclose(step["weights"] @ step["values"], step["heads"], atol=1e-6)
        for head in (0, 1):
            whole = np.array(maps[2 * index + head]["matrix"])
            np.testing.assert_allclose(step["weights"][head], whole[[8, 2]], atol=1e-6)
    encoded = await attend(harness, outputs=["output"], rows=[8], encoding_format="base64", dtype="float16")
    assert tensor(encoded["layer_outputs"][0]["output"]).shape == (1, 384)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kind": "norm"}, "kind: not supported with outputs. Leave it out."),
        ({"unit": "word"}, "unit: not supported with outputs. Leave it out."),
        ({"top_k": 3}, "top_k: not supported with outputs. Leave it out."),
        ({"layer_reduce": "mean"}, "layer_reduce: not supported with outputs. Leave it out."),
        ({"rows": [11]}, "rows[0]: out of range for inputs[0] (11). Use 0 to 10."),
        ({"rows": [1, 1]}, "rows: contains the same item twice. Remove one."),
        ({"rows": []}, "rows: empty. Leave it out or name at least one."),
        ({"outputs": []}, "rows: set, but outputs is empty. Leave it out, or set outputs."),
        (
            {"dtype": "sqrt_uint8", "encoding_format": "base64"},
            'dtype: "sqrt_uint8" is not supported with outputs. Use "float16".',
        ),
        (
            {"outputs": ["bias"]},
            'outputs: "bias" is not supported for this model, whose scores have no bias for positions. Remove it.',
        ),
    ],
)
async def test_outputs_reject_options_of_maps_and_invalid_rows(
    harness: ServiceHarness, fields: dict[str, Any], message: str
) -> None:
    body = {"inputs": CASHED, "outputs": ["queries"], "rows": [0], **fields}
    response = await harness.post("/v1/attend", body)
    assert (response.status_code, response.json()["error"]["message"]) == (422, message)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"layers": [6, 2], "heads": [3]}, [(6, 3), (2, 3)]),
        ({"layers": [6], "head_reduce": "mean"}, [(6, None)]),
        ({"head_reduce": "max", "layer_reduce": "mean"}, [(None, None)]),
        ({"heads": [1, 0], "layer_reduce": "mean"}, [(None, 1), (None, 0)]),
        ({"layer_reduce": "rollout"}, [(None, None)]),
        ({"kind": "norm", "layers": [1], "heads": [5, 6]}, [(1, 5), (1, 6)]),
        ({"kind": "norm", "layers": [1], "head_reduce": "sum"}, [(1, None)]),
        ({"kind": "block_norm", "layers": [1, 2]}, [(1, None), (2, None)]),
        ({"kind": "projection", "layer_reduce": "mean"}, [(None, None)]),
    ],
)
async def test_maps_follow_the_requested_order_of_layers_and_heads(
    harness: ServiceHarness, fields: dict[str, Any], expected: list[object]
) -> None:
    """A reduced axis is null."""
    assert layers_and_heads(await attend(harness, **fields)) == expected


async def test_sparse_rows_are_sorted_and_have_dropped_mass(harness: ServiceHarness) -> None:
    """Base64 must have the same values."""
    fields: dict[str, Any] = {"layers": [2], "heads": [7]}
    dense = np.array((await attend(harness, **fields))["maps"][0]["matrix"])
    fields |= {"top_p": 0.7, "top_k": 5}
    sparse = (await attend(harness, **fields))["maps"][0]["matrix"]
    encoded = (await attend(harness, **fields, encoding_format="base64"))["maps"][0]["matrix"]
    for row, (indices, values) in enumerate(zip(sparse["indices"], sparse["values"], strict=True)):
        assert indices == np.argsort(-dense[row])[: len(indices)].tolist()
        np.testing.assert_allclose(values, dense[row][indices], atol=1e-7)
        assert len(indices) == 5 or sum(values) >= 0.7
        assert sum(values) + sparse["dropped_mass"][row] == pytest.approx(1, abs=1e-5)
    assert encoded["indices"] == sparse["indices"]
    np.testing.assert_allclose(tensor(encoded["values"]), np.concatenate(sparse["values"]), atol=1e-7)


async def test_too_large_error_names_the_number_of_inputs_that_fit(model: LoadedModel) -> None:
    async with open_harness(model, max_response_bytes=60_000) as harness:
        response = await harness.post("/v1/attend", {"inputs": [CASHED] * 8, "head_reduce": "mean"})
        count = int(response.json()["error"]["message"].split("About ")[1].split()[0])
        response = await harness.post("/v1/attend", {"inputs": [CASHED] * count, "head_reduce": "mean"})
        assert response.status_code == 200


# /v1/similarity: pairs, errors, limits, and how much work a request triggers.

QUERY = "how to open a bank account"
DOCUMENTS = ["Opening an account takes ten minutes.", "The bank of the river is muddy."]


async def post(harness: ServiceHarness, **fields: Any) -> httpx.Response:
    return await harness.post("/v1/similarity", {"queries": QUERY, "documents": DOCUMENTS} | fields)


async def similarity(harness: ServiceHarness, **fields: Any) -> Any:
    response = await post(harness, **fields)
    assert response.status_code == 200, response.text
    return response.json()


async def error(harness: ServiceHarness, **fields: Any) -> dict[str, Any]:
    response = await post(harness, **fields)
    assert response.status_code in (413, 422), response.text
    problem: dict[str, Any] = response.json()["error"]
    return problem


async def test_zipped_pairs_are_the_diagonal(harness: ServiceHarness) -> None:
    everything = await similarity(harness, queries=DOCUMENTS, explain=True)
    zipped = await similarity(harness, queries=DOCUMENTS, explain=True, pairs="zip")
    np.testing.assert_allclose(zipped["scores"], np.diag(everything["scores"]), atol=1e-4)
    assert [(pair["query"], pair["document"]) for pair in zipped["pairs"]] == [(0, 0), (1, 1)]


@pytest.mark.parametrize(
    ("fields", "field", "reason"),
    [
        ({"documents": ["a", " "]}, "documents[1]", "EMPTY"),
        ({"documents": ["word " * 300]}, "documents[0]", "TOO_LONG"),
        ({"queries": ["x" * 20_000]}, "queries[0]", "TOO_LONG"),
        ({"queries": ["a"] * 257}, "queries", "TOO_MANY"),
        ({"queries": ["a"] * 128, "documents": ["a"] * 129}, "documents", "TOO_MANY"),
        ({"pairs": "zip"}, "documents", "WRONG_SHAPE"),
        ({"dimensions": 385}, "dimensions", "OUT_OF_RANGE"),
        ({"query_prompt_name": "query"}, "query_prompt_name", "PROMPT_NOT_FOUND"),
        ({"document_prompt": "a", "document_prompt_name": "b"}, "document_prompt_name", "CONFLICTING_FIELDS"),
        ({"document_prompt": "x" * 20_000}, "document_prompt", "TOO_LONG"),
        ({"query_prompt": "word " * 300}, "query_prompt", "TOO_LONG"),
        ({"unit": "word"}, "unit", "CONFLICTING_FIELDS"),
        ({"top_k": 3}, "top_k", "CONFLICTING_FIELDS"),
        ({"effect": "occlusion"}, "effect", "CONFLICTING_FIELDS"),
        ({"explain": True, "top_k": 0}, "top_k", "OUT_OF_RANGE"),
        ({"explain": True, "unit": "span"}, "unit", "UNKNOWN_VALUE"),
        ({"queries": ["a"] * 17, "documents": ["a"] * 16, "explain": True}, "explain", "TOO_MANY"),
    ],
)
async def test_invalid_request_names_field_and_reason(
    harness: ServiceHarness, fields: dict[str, Any], field: str, reason: str
) -> None:
    response = await post(harness, **fields)
    assert response.status_code in (404, 413, 422), response.text
    problem = response.json()["error"]
    assert (problem["field"], problem["reason"]) == (field, reason)
    assert problem["message"].startswith(f"{field}: ")
    assert problem["message"].endswith((".", "?"))


async def test_largest_number_of_pairs_is_explained(harness: ServiceHarness) -> None:
    body = await similarity(harness, queries=["a"] * 16, documents=["b"] * 16, explain=True, effect="leave_one_out")
    assert len(body["pairs"]) == MAX_EXPLAINED_PAIRS


async def test_scores_and_explanations_run_on_the_fast_lane(harness: ServiceHarness) -> None:
    """Expects one sequence per text, plus one per unit with occlusion."""
    words = len(QUERY.split())
    for fields, sequences in (
        ({}, 3),
        ({"explain": True, "effect": "leave_one_out"}, 3),
        ({"documents": ["money"], "explain": True, "effect": "occlusion"}, 2 + words + 1),
    ):
        before = harness.sample("attendant_batch_size_sum", lane="fast")
        await similarity(harness, **fields)
        assert harness.sample("attendant_batch_size_sum", lane="fast") - before == sequences
    assert harness.sample("attendant_batch_size_sum", lane="explain") == 0


async def test_too_many_occluded_sequences_are_rejected(model: LoadedModel) -> None:
    fields = {
        "queries": ["a b c d e f g h i j"] * 128,
        "documents": [" ".join("abcdefghijklmnopqrstuvwx")] * 128,
    }
    long = "word " * 250
    async with open_harness(model, max_timeout_ms=3_600_000) as harness:  # a slow machine rejects them by the deadline
        problem = await error(harness, **fields, pairs="zip", explain=True, effect="occlusion")
        assert (problem["field"], problem["reason"]) == ("effect", "REQUEST_TOO_LARGE")
        assert problem["actual"] == 128 * 34 > problem["maximum"] == MAX_OCCLUDED_SEQUENCES
        problem = await error(harness, queries=[long], documents=[long] * 4, explain=True, effect="occlusion")
        assert (problem["field"], problem["maximum"]) == ("effect", harness.settings.max_queue_tokens)
        assert harness.sample("attendant_batch_size_sum", lane="fast") == 0


async def test_explanation_over_the_memory_limit_is_rejected(model: LoadedModel) -> None:
    async with open_harness(model, max_response_bytes=200_000) as harness:
        problem = await error(harness, queries="word " * 75, documents="word", explain=True, top_k=1)
        assert (problem["field"], problem["reason"]) == ("explain", "REQUEST_TOO_LARGE")
        assert problem["actual"] > problem["maximum"] == 200_000
        await similarity(harness, queries="word " * 50, documents="word", explain=True, top_k=1)


async def test_response_over_the_limit_is_rejected_with_a_remedy(model: LoadedModel) -> None:
    async with open_harness(model, max_response_bytes=3_200_000) as harness:
        fields: dict[str, Any] = {"queries": ["word " * 60] * 8, "documents": ["word " * 60] * 8, "explain": True}
        problem = await error(harness, **fields)
        assert problem["reason"] == "RESPONSE_TOO_LARGE"
        assert "top_k" in problem["message"]
        await similarity(harness, **fields, top_k=10)


async def test_all_texts_count_in_usage_and_metrics(harness: ServiceHarness) -> None:
    body = await similarity(harness, documents=["word " * 300, "a"], truncation="right")
    assert [text["truncated"] for text in body["documents"]] == [True, False]
    assert body["usage"] == {"tokens": 8 + 256 + 3, "truncated_inputs": 1}
    assert harness.sample("attendant_request_tokens_sum") == 8 + 256 + 3
    assert harness.sample("attendant_truncated_inputs_total") == 1
