"""The TEI API: errors, limits, keys and metrics."""

from typing import Any

import pytest

from service.engine.model_loader import LoadedModel
from service.errors import Internal
from tests.keys import make_keys
from tests.service.conftest import GOLDEN, ServiceHarness, fast_lane, open_harness

IDS = [2769, 2924, 7502]
LONG = "bank " + "word " * 300
POSTS = ("/", "/embed", "/embed_all", "/embed_sparse", "/rerank", "/predict", "/similarity", "/tokenize", "/decode")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/embed_sparse", {"inputs": [GOLDEN, IDS]}),
        ("/rerank", {"query": "a", "texts": ["b", "c"], "raw_scores": True, "return_text": True}),
        ("/predict", {"inputs": "a", "raw_scores": False}),
        ("/predict", {"inputs": ["a", "b"]}),
        ("/predict", {"inputs": [["a"], ["b", "c"]]}),
    ],
)
async def test_missing_head_is_a_backend_error(harness: ServiceHarness, path: str, body: Any) -> None:
    response = await harness.post(path, body)
    assert (response.status_code, response.json()["error_type"]) == (424, "Backend")
    assert response.json()["error"].startswith("The model ")
    assert harness.batches_run == 0


async def test_truncation_is_the_remedy_for_too_many_characters(harness: ServiceHarness) -> None:
    """TEI is the only API where truncation applies to this limit."""
    text = "bank " * 4000
    response = await harness.post("/embed", {"inputs": ["a", text], "truncate": False})
    problem = "inputs[1]: too many characters (20000, limit 16384)."
    assert response.json()["error"] == f"{problem} Shorten it or set truncate to true."
    assert (await harness.post("/embed", {"inputs": ["a", text], "truncate": True})).status_code == 200
    response = await harness.post("/tokenize", {"inputs": text})
    assert response.json()["error"].endswith(". Split the text.")


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/embed", {"inputs": []}, "inputs: empty."),
        ("/embed_all", {"inputs": []}, "inputs: empty."),
        ("/embed_sparse", {"inputs": []}, "inputs: empty."),
        ("/rerank", {"query": "a", "texts": []}, "texts: empty."),
        ("/similarity", {"inputs": {"source_sentence": "a", "sentences": []}}, "inputs.sentences: empty."),
        ("/tokenize", {"inputs": []}, "inputs: empty."),
        ("/decode", {"ids": []}, "ids: empty."),
    ],
)
async def test_empty_list_has_its_own_error(harness: ServiceHarness, path: str, body: Any, message: str) -> None:
    response = await harness.post(path, body)
    assert (response.status_code, response.json()["error_type"]) == (400, "Empty")
    assert response.json()["error"].startswith(message)


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/embed", {}, "inputs: missing."),
        ("/embed", {"inputs": None}, "inputs: wrong type (null). Send a string or an array."),
        ("/embed", {"inputs": ["a", 5]}, "inputs[1]: wrong type (number). Send a string or an array of token ids."),
        ("/embed", {"inputs": [True]}, "inputs[0]: wrong type (boolean). Send an integer."),
        ("/embed", {"inputs": ["a", " "]}, "inputs[1]: empty or blank."),
        ("/embed", {"inputs": [101, 102]}, "inputs[0]: empty."),
        ("/embed", {"inputs": [30522]}, "inputs[0]: id outside of the vocabulary (30522)."),
        ("/embed", {"inputs": "a", "truncation_direction": "up"}, 'truncation_direction: unknown value ("up"). Use'),
        ("/embed", {"inputs": ["a"] * 2049}, "inputs: too many items (2049, limit 2048)."),
        ("/embed", {"inputs": LONG, "truncate": False}, "inputs[0]: too long (303 tokens, limit 256). Shorten"),
        ("/rerank", {"query": "a"}, "texts: missing."),
        ("/predict", {"inputs": ["a", "b", "c"]}, "inputs: wrong number of texts (3)."),
        ("/predict", {"inputs": [["a"], []]}, "inputs[1]: wrong number of texts (0)."),
        ("/predict", {"inputs": [["a"], "b"]}, "inputs[1]: wrong type (string). Send an array."),
        ("/similarity", {"inputs": {"source_sentence": "a"}}, "inputs.sentences: missing."),
        ("/similarity", {"inputs": {"source_sentence": "", "sentences": ["b"]}}, "inputs.source_sentence: empty or"),
        ("/similarity", {"inputs": {"source_sentence": "a", "sentences": ["b", ""]}}, "inputs.sentences[1]: empty or"),
        ("/similarity", {"inputs": {"source_sentence": "a", "sentences": ["b"] * 256}},
         "inputs.sentences: too many items, together with inputs.source_sentence (257, limit 256)."),
        ("/similarity", {"inputs": {"source_sentence": "a", "sentences": [LONG]}, "parameters": {"truncate": False}},
         "inputs.sentences[0]: too long (303 tokens, limit 256). Shorten it or set truncate to true."),
        ("/tokenize", {"inputs": [1]}, "inputs[0]: wrong type (number). Send a string."),
        ("/decode", {"ids": [[1], 2]}, "ids[1]: wrong type (number)."),
        ("/decode", {"ids": [30522]}, "ids[0]: id outside of the vocabulary"),
    ],
)  # fmt: skip
async def test_invalid_body_is_a_validation_error(harness: ServiceHarness, path: str, body: Any, message: str) -> None:
    response = await harness.post(path, body)
    assert (response.status_code, response.json()["error_type"]) == (422, "Validation"), response.text
    assert response.json()["error"].startswith(message)
    assert set(response.json()) == {"error", "error_type"}


@pytest.mark.parametrize("path", POSTS)
async def test_malformed_request_has_a_tei_error(harness: ServiceHarness, path: str) -> None:
    json, text = {"content-type": "application/json"}, {"content-type": "text/plain"}
    for content, headers, status in ((b"{", json, 400), (b"{}", text, 415), (b" " * 3_000_000, json, 413)):
        response = await harness.client.post(path, content=content, headers=headers)
        assert (response.status_code, response.json()["error_type"]) == (status, "Validation")


@pytest.mark.parametrize("path", [path for path in POSTS if path not in ("/embed_sparse", "/rerank", "/predict")])
async def test_deadline_applies(harness: ServiceHarness, path: str) -> None:
    bodies = {"/similarity": {"inputs": {"source_sentence": "a", "sentences": ["b"]}}, "/decode": {"ids": IDS}}
    response = await harness.post(path, bodies.get(path, {"inputs": "a"}), **{"x-request-timeout-ms": "0"})
    assert (response.status_code, response.json()["error_type"]) == (504, "Backend")


async def test_full_queue_is_overload(model: LoadedModel) -> None:
    async with open_harness(model, max_queue_tokens=10) as harness:
        with fast_lane(harness).reserve([10]):
            for path in ("/", "/embed", "/embed_all"):
                response = await harness.post(path, {"inputs": GOLDEN})
                assert (response.status_code, response.json()["error_type"]) == (429, "Overloaded")
                assert int(response.headers["retry-after"]) >= 1


async def test_server_that_shuts_down_is_unhealthy(harness: ServiceHarness) -> None:
    harness.lifecycle.reject_new()
    for path in POSTS:
        response = await harness.post(path, {"inputs": GOLDEN})
        assert (response.status_code, response.json()["error_type"]) == (503, "Unhealthy")
    assert (await harness.client.get("/info")).json()["error_type"] == "Unhealthy"


async def test_internal_error_has_status_500(harness: ServiceHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """This makes monitoring count it as a server error."""

    async def broken(*arguments: object) -> None:
        raise Internal

    monkeypatch.setattr("service.tei.encode", broken)
    response = await harness.post("/embed", {"inputs": GOLDEN})
    assert (response.status_code, response.json()["error_type"]) == (500, "Backend")


async def test_requests_are_counted_with_the_label_of_this_api(harness: ServiceHarness) -> None:
    await harness.post("/embed", {"inputs": GOLDEN})
    await harness.post("/", {"inputs": GOLDEN})
    await harness.post("/rerank", {"query": "a", "texts": ["b"]})
    await harness.client.get("/health")
    for endpoint, code in (("/embed", "200"), ("/", "200"), ("/rerank", "424")):
        assert harness.sample("attendant_requests_total", api="tei", endpoint=endpoint, code=code) == 1
    assert harness.sample("attendant_rejected_requests_total", api="tei", reason="invalid") == 1
    assert harness.sample("attendant_requests_total") == 3


async def test_key_is_required_except_for_health(model: LoadedModel) -> None:
    async with open_harness(model, make_keys("secret")) as harness:
        for path in POSTS:
            response = await harness.post(path, {"inputs": GOLDEN})
            assert (response.status_code, response.json()["error_type"]) == (401, "Validation")
        assert (await harness.client.get("/info")).status_code == 401
        for path in ("/health", "/ping", "/"):
            assert (await harness.client.get(path)).status_code == 200
        response = await harness.post("/", {"inputs": GOLDEN}, authorization="Bearer secret")
        assert response.status_code == 200
