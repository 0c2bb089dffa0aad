"""The TEI API: numbers of the native API in TEI's shapes, and TEI's headers and errors."""

import dataclasses
from collections.abc import AsyncIterator
from typing import Any

import httpx
import numpy as np
import pytest

from service.auth import ApiKeys
from service.engine.model_loader import LoadedModel
from service.errors import Internal
from service.lifecycle import Status
from tests.response_contract import array_of, assert_close
from tests.service.conftest import GOLDEN, ServiceHarness, cosine, encode, fast_lane, open_harness

IDS = [2769, 2924, 7502]
"""The token ids of GOLDEN."""
WITH_SPECIAL = [101, *IDS, 102]
LONG = "bank " + "word " * 300
POSTS = ("/", "/embed", "/embed_all", "/embed_sparse", "/rerank", "/predict", "/similarity", "/tokenize", "/decode")
PROMPTS = {"query": "find: ", "document": "text: ", "none": ""}


@pytest.fixture
async def prompted(model: LoadedModel) -> AsyncIterator[ServiceHarness]:
    """The default model with prompts, and a default prompt."""
    update = {"prompts": PROMPTS, "default_prompt_name": "document"}
    artifact = dataclasses.replace(model.artifact, manifest=model.artifact.manifest.model_copy(update=update))
    async with open_harness(dataclasses.replace(model, artifact=artifact)) as opened:
        yield opened


async def native(harness: ServiceHarness, inputs: Any, name: str = "pooled", **fields: Any) -> list[Any]:
    """Return an output of the native API."""
    response = await harness.post("/v1/encode", {"inputs": inputs, **fields})
    return [result[name] for result in response.raise_for_status().json()["results"]]


def assert_same(actual: list[Any], expected: list[Any]) -> None:
    """Compare the arrays of several inputs. They may be in different batches, which rounds differently."""
    assert len(actual) == len(expected)
    for left, right in zip(actual, expected, strict=True):
        assert_close(array_of(left), array_of(right), 5e-4)


async def ok(harness: ServiceHarness, path: str, body: Any) -> Any:
    return (await harness.post(path, body)).raise_for_status().json()


@pytest.mark.parametrize("path", ["/embed", "/"])
@pytest.mark.parametrize(
    ("options", "fields"),
    [
        ({}, {}),
        ({"normalize": False}, {"normalize": False}),
        ({"normalize": None, "dimensions": 64}, {"dimensions": 64}),
        ({"truncate": None, "truncation_direction": None, "prompt_name": None}, {}),
        ({"truncate": True, "truncation_direction": "Left"}, {"truncation": "left"}),
        ({"truncation_direction": "left"}, {"truncation": "left"}),
        ({"truncation_direction": "Right"}, {"truncation": "right"}),
        ({"encoding_format": "float", "unknown": [1]}, {}),
    ],
)
async def test_embed_equals_the_native_api(
    harness: ServiceHarness, path: str, options: dict[str, Any], fields: dict[str, Any]
) -> None:
    """Truncation is on by default. Unknown fields are ignored."""
    texts = [GOLDEN, LONG, "déjà vu"]
    expected = await native(harness, texts, **({"truncation": "right"} | fields))
    assert_same(await ok(harness, path, {"inputs": texts, **options}), expected)


async def test_embed_of_one_text_is_a_list_of_one(harness: ServiceHarness) -> None:
    expected = await native(harness, GOLDEN)
    assert await ok(harness, "/embed", {"inputs": GOLDEN}) == expected
    assert await ok(harness, "/embed", {"inputs": [GOLDEN]}) == expected


@pytest.mark.parametrize("ids", [IDS, WITH_SPECIAL])
async def test_token_ids_may_have_special_tokens(harness: ServiceHarness, ids: list[int]) -> None:
    """TEI requires them; here they may be left out."""
    expected = await native(harness, [{"token_ids": IDS}])
    assert await ok(harness, "/embed", {"inputs": ids}) == expected
    assert await ok(harness, "/embed", {"inputs": [ids]}) == expected
    mixed = await ok(harness, "/embed", {"inputs": [ids, "river bank"]})
    assert cosine(mixed[0], expected[0]) > 0.999
    assert_same(mixed, await native(harness, [{"token_ids": IDS}, "river bank"]))


async def test_normalize_applies_to_models_that_do_not(model: LoadedModel) -> None:
    manifest = model.artifact.manifest.model_copy(update={"normalize": False})
    artifact = dataclasses.replace(model.artifact, manifest=manifest)
    async with open_harness(dataclasses.replace(model, artifact=artifact)) as harness:
        (embedding,) = await ok(harness, "/embed", {"inputs": GOLDEN})
        assert np.linalg.norm(embedding) == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize(("direction", "word"), [("Right", "river"), ("Left", "money")])
async def test_text_over_the_character_limit_is_cut(harness: ServiceHarness, direction: str, word: str) -> None:
    """The native API rejects it in every truncation mode."""
    limit = harness.engine.info.limits.max_input_characters
    text = "river " + "bank " * limit + " money"
    kept = text[:limit] if direction == "Right" else text[-limit:]
    body = {"inputs": text, "truncation_direction": direction}
    assert word in kept
    assert await ok(harness, "/embed", body) == await native(harness, kept, truncation=direction.lower())
    other = {
        "inputs": {"source_sentence": text, "sentences": [kept]},
        "parameters": {"truncation_direction": direction},
    }
    assert await ok(harness, "/similarity", other) == pytest.approx([1], abs=1e-5)
    assert (await harness.post("/embed", {**body, "truncate": False})).status_code == 413
    assert (await harness.post("/tokenize", {"inputs": text})).status_code == 413


async def test_embed_all_equals_the_native_api(harness: ServiceHarness) -> None:
    texts = [GOLDEN, LONG]
    expected = await native(harness, texts, "token_vectors", outputs=["tokens"], truncation="right")
    assert_same(await ok(harness, "/embed_all", {"inputs": texts}), expected)
    alone = await native(harness, GOLDEN, "token_vectors", outputs=["tokens"])
    assert await ok(harness, "/embed_all", {"inputs": GOLDEN}) == alone
    assert [len(vectors) for vectors in expected] == [5, 256]
    assert len((await ok(harness, "/embed_all", {"inputs": WITH_SPECIAL}))[0]) == 5


async def test_similarity_equals_the_native_api(harness: ServiceHarness) -> None:
    sentences = ["river bank floods", "the dog", GOLDEN]
    body = {"queries": GOLDEN, "documents": sentences, "truncation": "right"}
    (expected,) = (await ok(harness, "/v1/similarity", body))["scores"]
    inputs = {"source_sentence": GOLDEN, "sentences": sentences}
    for options in ({}, {"parameters": None}, {"parameters": {"truncate": True}}):
        assert await ok(harness, "/similarity", {"inputs": inputs, **options}) == pytest.approx(expected, abs=1e-3)


async def test_prompt_name_selects_a_prompt(prompted: ServiceHarness) -> None:
    for options in ({}, {"prompt_name": "query"}, {"prompt_name": "none"}):
        assert await ok(prompted, "/embed", {"inputs": GOLDEN, **options}) == await native(prompted, GOLDEN, **options)
        text = PROMPTS[options.get("prompt_name", "document")] + GOLDEN
        expected = await native(prompted, text, "token_vectors", outputs=["tokens"], prompt="")
        assert await ok(prompted, "/embed_all", {"inputs": GOLDEN, **options}) == expected
        (tokens,) = await ok(prompted, "/tokenize", {"inputs": GOLDEN, **options})
        assert len(tokens) == len(expected[0])
        assert [text[token["start"] : token["stop"]] for token in tokens[1:-1]] == [
            token["text"] for token in tokens[1:-1]
        ]


async def test_similarity_applies_one_prompt_to_all_texts(prompted: ServiceHarness) -> None:
    inputs = {"source_sentence": GOLDEN, "sentences": [GOLDEN]}
    assert await ok(prompted, "/similarity", {"inputs": inputs}) == pytest.approx([1], abs=1e-5)
    scores = await ok(prompted, "/similarity", {"inputs": inputs, "parameters": {"prompt_name": "query"}})
    assert scores == pytest.approx([1], abs=1e-5)
    native_body = {"queries": GOLDEN, "documents": [GOLDEN]}
    assert (await ok(prompted, "/v1/similarity", native_body))["scores"][0][0] < 0.999


@pytest.mark.parametrize("path", ["/embed_all", "/tokenize"])
async def test_blank_text_is_rejected_with_a_prompt_too(prompted: ServiceHarness, path: str) -> None:
    response = await prompted.post(path, {"inputs": ["a", " "]})
    assert (response.status_code, response.json()["error"]) == (422, "inputs[1]: empty or blank. Send text.")


@pytest.mark.parametrize("path", ["/embed", "/embed_all"])
async def test_prompt_name_is_rejected_for_token_ids(prompted: ServiceHarness, path: str) -> None:
    """The default prompt does not apply to them."""
    response = await prompted.post(path, {"inputs": IDS, "prompt_name": "query"})
    assert (response.status_code, response.json()["error_type"]) == (422, "Validation")
    assert response.json()["error"].startswith("prompt_name: not supported for token")
    assert (await prompted.post(path, {"inputs": IDS})).status_code == 200


@pytest.mark.parametrize(
    ("path", "field"), [("/embed", "prompt_name"), ("/embed_all", "prompt_name"), ("/tokenize", "prompt_name")]
)
async def test_unknown_prompt_is_rejected(prompted: ServiceHarness, path: str, field: str) -> None:
    response = await prompted.post(path, {"inputs": GOLDEN, "prompt_name": "passage"})
    message = f'{field}: not found. Use one of "query", "document", "none".'
    assert (response.status_code, response.json()) == (422, {"error": message, "error_type": "Validation"})


async def test_unknown_prompt_of_similarity_is_rejected(prompted: ServiceHarness) -> None:
    body = {"inputs": {"source_sentence": "a", "sentences": ["b"]}, "parameters": {"prompt_name": "passage"}}
    response = await prompted.post("/similarity", body)
    assert response.status_code == 422
    assert response.json()["error"].startswith("parameters.prompt_name: not found.")


@pytest.mark.parametrize("text", [GOLDEN, "déjà 漢字 vu 👩‍👩‍👧 x", "e\u0301 \U0001d54f", "[CLS] </s>"])
async def test_tokens_have_byte_offsets(harness: ServiceHarness, text: str) -> None:
    """Offsets of the native API count characters."""
    (tokens,) = await ok(harness, "/tokenize", {"inputs": text})
    (expected,) = (await ok(harness, "/v1/tokenize", {"inputs": text}))["results"]
    assert [token["id"] for token in tokens] == [token["id"] for token in expected["tokens"]]
    for token, other in zip(tokens, expected["tokens"], strict=True):
        assert list(token) == ["id", "text", "special", "start", "stop"]
        assert token["special"] == other["special"]
        if token["special"]:
            assert (token["text"], token["start"], token["stop"]) == (other["text"], None, None)
        else:
            assert text.encode()[token["start"] : token["stop"]].decode() == token["text"] == other["text"]


async def test_special_tokens_are_optional_in_tokenize(harness: ServiceHarness) -> None:
    inputs = ["a bank", "b"]
    tokens = await ok(harness, "/tokenize", {"inputs": inputs, "add_special_tokens": False})
    assert [[token["text"] for token in item] for item in tokens] == [["a", "bank"], ["b"]]
    whole = await ok(harness, "/tokenize", {"inputs": inputs})
    assert [len(item) for item in whole] == [4, 3]


async def test_tokens_can_be_embedded_and_decoded(harness: ServiceHarness) -> None:
    """TEI's clients send the ids of /tokenize."""
    ids = [token["id"] for token in (await ok(harness, "/tokenize", {"inputs": GOLDEN}))[0]]
    assert ids == WITH_SPECIAL
    assert await ok(harness, "/embed", {"inputs": ids}) == await native(harness, [{"token_ids": IDS}])
    assert await ok(harness, "/decode", {"ids": ids}) == [GOLDEN]


async def test_decode_returns_one_text_per_list(harness: ServiceHarness) -> None:
    body = {"ids": [WITH_SPECIAL, [2924]], "skip_special_tokens": False}
    assert await ok(harness, "/decode", body) == [f"[CLS] {GOLDEN} [SEP]", "bank"]
    assert await ok(harness, "/decode", {**body, "skip_special_tokens": True}) == [GOLDEN, "bank"]
    assert await ok(harness, "/decode", {"ids": WITH_SPECIAL}) == [GOLDEN]


async def test_decode_response_is_limited(model: LoadedModel) -> None:
    async with open_harness(model, max_response_bytes=1000) as harness:
        response = await harness.post("/decode", {"ids": [[2924] * 50] * 3})
        assert (response.status_code, response.json()["error_type"]) == (422, "Validation")
        assert response.json()["error"].startswith("Response too large")


async def test_error_for_a_large_response_suggests_no_field_of_another_api(model: LoadedModel) -> None:
    async with open_harness(model, max_response_bytes=50_000) as harness:
        response = await harness.post("/embed_all", {"inputs": ["word " * 20] * 3})
        assert response.status_code == 422
        assert "Request fewer inputs." in response.json()["error"]


async def test_info_describes_the_model_and_its_limits(harness: ServiceHarness) -> None:
    info, model = (await harness.client.get("/info")).json(), (await harness.client.get("/v1/model")).json()
    assert (info["model_id"], info["model_sha"]) == (model["source"], model["revision"])
    assert (info["served_model_name"], info["model_dtype"]) == (model["name"], model["precision"])
    assert info["model_type"] == {"embedding": {"pooling": "mean"}}
    assert (info["max_input_length"], info["max_client_batch_size"]) == (256, 256)
    assert info["max_batch_tokens"] == harness.engine.max_batch_tokens
    assert info["auto_truncate"] is True


@pytest.mark.parametrize("path", ["/health", "/ping"])
async def test_health_follows_the_lifecycle(harness: ServiceHarness, path: str) -> None:
    for status in Status:
        harness.lifecycle._set_status(status)
        response = await harness.client.get(path)
        if status is Status.READY:
            assert (response.status_code, response.content) == (200, b"")
        else:
            assert (response.status_code, response.json()["error_type"]) == (503, "Unhealthy")


async def test_page_is_still_served(harness: ServiceHarness) -> None:
    response = await harness.client.get("/")
    assert response.headers["content-type"] == "text/html; charset=utf-8"


@pytest.mark.parametrize(
    ("path", "body", "characters", "tokens"),
    [
        ("/embed", {"inputs": [GOLDEN, "vu"]}, 18, 8),
        ("/embed", {"inputs": WITH_SPECIAL}, 5, 5),
        ("/embed_all", {"inputs": GOLDEN}, 16, 5),
        ("/similarity", {"inputs": {"source_sentence": GOLDEN, "sentences": ["a", "b"]}}, 18, 11),
    ],
)
async def test_headers_describe_the_computation(
    harness: ServiceHarness, path: str, body: Any, characters: int, tokens: int
) -> None:
    headers = (await harness.post(path, body)).raise_for_status().headers
    assert headers["x-compute-type"] == "cpu"
    assert headers["x-compute-characters"] == str(characters)
    assert headers["x-compute-tokens"] == str(tokens)
    times = [int(headers[f"x-{name}-time"]) for name in ("tokenization", "queue", "inference")]
    assert int(headers["x-compute-time"]) == int(headers["x-total-time"]) >= sum(times)
    assert headers["x-attendant-precision"] == harness.engine.info.precision
    assert "server-timing" in headers


async def test_queue_time_is_part_of_the_run_time(harness: ServiceHarness) -> None:
    timing = (await encode(harness.engine, *[GOLDEN] * 3)).timing
    assert 0 < timing.queue < timing.run
    observed = harness.sample("attendant_stage_duration_seconds_sum", stage="queue", lane="fast")
    assert timing.queue == pytest.approx(observed)


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
async def test_empty_list_has_an_error_of_its_own(harness: ServiceHarness, path: str, body: Any, message: str) -> None:
    response = await harness.post(path, body)
    assert (response.status_code, response.json()["error_type"]) == (400, "Empty")
    assert response.json()["error"].startswith(message)


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/embed", {}, "inputs: missing."),
        ("/embed", [], "Body: wrong type"),
        ("/embed", {"inputs": None}, "inputs: wrong type (null). Send a string or an array."),
        ("/embed", {"inputs": 5}, "inputs: wrong type (number). Send a string or an array."),
        ("/embed", {"inputs": ["a", 5]}, "inputs[1]: wrong type (number). Send a string or an array of token ids."),
        ("/embed", {"inputs": [5, "a"]}, "inputs[1]: wrong type (string). Send an integer."),
        ("/embed", {"inputs": [[5, 1.5]]}, "inputs[0][1]: wrong type (number). Send an integer."),
        ("/embed", {"inputs": [True]}, "inputs[0]: wrong type (boolean). Send an integer."),
        ("/embed", {"inputs": ""}, "inputs[0]: empty or blank."),
        ("/embed", {"inputs": ["a", " "]}, "inputs[1]: empty or blank."),
        ("/embed", {"inputs": [[]]}, "inputs[0].token_ids: empty."),
        ("/embed", {"inputs": [101, 102]}, "inputs[0].token_ids: empty."),
        ("/embed", {"inputs": [-1]}, "inputs[0].token_ids: id outside of the vocabulary (-1, limit 0)."),
        ("/embed", {"inputs": [30522]}, "inputs[0].token_ids: id outside of the vocabulary (30522, limit 30521)."),
        ("/embed", {"inputs": "a", "truncate": "yes"}, "truncate: wrong type (string). Send true or false."),
        ("/embed", {"inputs": "a", "truncation_direction": "up"}, 'truncation_direction: unknown value. Use "Left" or'),
        ("/embed", {"inputs": "a", "truncation_direction": {}}, "truncation_direction: unknown value."),
        ("/embed", {"inputs": "a", "dimensions": 0}, "dimensions: out of range"),
        ("/embed", {"inputs": "a", "dimensions": 385}, "dimensions: out of range"),
        ("/embed", {"inputs": "a", "normalize": 1}, "normalize: wrong type"),
        ("/embed", {"inputs": ["a"] * 257}, "inputs: too many items (257, limit 256)."),
        ("/embed", {"inputs": LONG, "truncate": False}, "inputs[0]: too long (303 tokens, limit 256). Shorten"),
        ("/embed_all", {"inputs": LONG, "truncate": False}, "inputs[0]: too long (303 tokens, limit 256)."),
        ("/rerank", {"query": "a"}, "texts: missing."),
        ("/rerank", {"query": "a", "texts": "b"}, "texts: wrong type (string). Send an array."),
        ("/predict", {"inputs": []}, "inputs: wrong number of texts (0, limit 2)."),
        ("/predict", {"inputs": ["a", "b", "c"]}, "inputs: wrong number of texts (3, limit 2)."),
        ("/predict", {"inputs": [["a"], []]}, "inputs[1]: wrong number of texts (0, limit 2)."),
        ("/predict", {"inputs": [["a"], "b"]}, "inputs[1]: wrong type (string). Send an array."),
        ("/similarity", {"inputs": {"source_sentence": "a"}}, "inputs.sentences: missing."),
        ("/similarity", {"inputs": "a"}, "inputs: wrong type (string). Send an object."),
        ("/similarity", {"inputs": {"source_sentence": "", "sentences": ["b"]}}, "inputs.source_sentence: empty or"),
        ("/similarity", {"inputs": {"source_sentence": "a", "sentences": ["b", ""]}}, "inputs.sentences[1]: empty or"),
        ("/similarity", {"inputs": {"source_sentence": "a", "sentences": ["b"] * 256}},
         "inputs.sentences: too many items, together with inputs.source_sentence (257, limit 256)."),
        ("/similarity", {"inputs": {"source_sentence": "a", "sentences": [LONG]}, "parameters": {"truncate": False}},
         "inputs.sentences[0]: too long (303 tokens, limit 256). Shorten it or set truncate to true."),
        ("/tokenize", {"inputs": [1]}, "inputs[0]: wrong type (number). Send a string."),
        ("/decode", {"ids": "a"}, "ids: wrong type (string). Send an array."),
        ("/decode", {"ids": [[1], 2]}, "ids[1]: wrong type (number)."),
        ("/decode", {"ids": [[]]}, "ids[0].token_ids: empty."),
        ("/decode", {"ids": [30522]}, "ids[0].token_ids: id outside of the vocabulary"),
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
        with fast_lane(harness).reserve(10):
            for path in ("/", "/embed", "/embed_all", "/tokenize"):
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
    """Monitoring then counts it as an error of the server."""

    async def broken(request: object) -> None:
        raise Internal

    monkeypatch.setattr(harness.engine, "encode", broken)
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
    async with open_harness(model, ApiKeys(["secret"])) as harness:
        for path in POSTS:
            response = await harness.post(path, {"inputs": GOLDEN})
            assert (response.status_code, response.json()["error_type"]) == (401, "Validation")
        assert (await harness.client.get("/info")).status_code == 401
        for path in ("/health", "/ping", "/"):
            assert (await harness.client.get(path)).status_code == 200
        response = await harness.post("/", {"inputs": GOLDEN}, authorization="Bearer secret")
        assert response.status_code == 200


def test_running_server_answers(rest: httpx.Client) -> None:
    expected = [result["pooled"] for result in rest.post("/v1/encode", json={"inputs": [GOLDEN]}).json()["results"]]
    for path in ("/embed", "/"):
        response = rest.post(path, json={"inputs": GOLDEN})
        np.testing.assert_array_equal(np.array(response.json(), np.float32), np.array(expected, np.float32))
