"""/v1/encode, /v1/tokenize and /v1/model, as documented in docs/api.md."""

import re
from typing import Any

import httpx
import numpy as np
import pytest

from model.artifact.manifest import Manifest
from tests.service.conftest import GOLDEN, ServiceHarness


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
