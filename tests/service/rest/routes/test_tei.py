"""The TEI API: the native API's numbers in TEI's shapes, and TEI's headers."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import numpy as np
import pytest

from service.engine.model_loader import LoadedModel
from service.lifecycle import Status
from service.operations.encode import encode as encode_texts
from service.operations.inputs import Call
from tests.manifests import with_head, with_manifest, with_prompts
from tests.response_contract import assert_close, to_array
from tests.service.conftest import GOLDEN, ServiceHarness, cosine, encode_request, open_harness

IDS = [2769, 2924, 7502]
"""Token ids of GOLDEN."""
WITH_SPECIAL = [101, *IDS, 102]
LONG = "bank " + "word " * 300
PROMPTS = {"query": "find: ", "document": "text: ", "none": ""}


@pytest.fixture
async def prompted(model: LoadedModel) -> AsyncIterator[ServiceHarness]:
    """The default model with prompts, one of them the default."""
    manifest = with_prompts(model.artifact.manifest, PROMPTS, "document")
    async with open_harness(with_manifest(model, manifest)) as opened:
        yield opened


async def native(harness: ServiceHarness, inputs: Any, name: str = "pooled", **fields: Any) -> list[Any]:
    """Return one of the native API's outputs."""
    response = await harness.post("/v1/encode", {"inputs": inputs, **fields})
    return [result[name] for result in response.raise_for_status().json()["results"]]


def assert_same(actual: list[Any], expected: list[Any]) -> None:
    """Compare arrays for several inputs. They may be in different batches, which round differently."""
    assert len(actual) == len(expected)
    for left, right in zip(actual, expected, strict=True):
        assert_close(to_array(left), to_array(right), 5e-4)


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
    """TEI requires them, but here they may be left out."""
    expected = await native(harness, [{"token_ids": IDS}])
    assert await ok(harness, "/embed", {"inputs": ids}) == expected
    assert await ok(harness, "/embed", {"inputs": [ids]}) == expected
    mixed = await ok(harness, "/embed", {"inputs": [ids, "river bank"]})
    assert cosine(mixed[0], expected[0]) > 0.999
    assert_same(mixed, await native(harness, [{"token_ids": IDS}, "river bank"]))


async def test_normalize_applies_to_models_that_do_not(model: LoadedModel) -> None:
    async with open_harness(with_manifest(model, with_head(model.artifact.manifest, normalize=False))) as harness:
        (embedding,) = await ok(harness, "/embed", {"inputs": GOLDEN})
        assert np.linalg.norm(embedding) == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize(("direction", "word"), [("Right", "river"), ("Left", "money")])
async def test_text_over_the_character_limit_is_cut(harness: ServiceHarness, direction: str, word: str) -> None:
    """The native API rejects such a text in every truncation mode."""
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
    """The default prompt does not apply to token ids."""
    response = await prompted.post(path, {"inputs": IDS, "prompt_name": "query"})
    assert (response.status_code, response.json()["error_type"]) == (422, "Validation")
    assert response.json()["error"].startswith("prompt_name: not supported for token")
    assert (await prompted.post(path, {"inputs": IDS})).status_code == 200


@pytest.mark.parametrize(
    ("path", "field"), [("/embed", "prompt_name"), ("/embed_all", "prompt_name"), ("/tokenize", "prompt_name")]
)
async def test_unknown_prompt_is_rejected(prompted: ServiceHarness, path: str, field: str) -> None:
    response = await prompted.post(path, {"inputs": GOLDEN, "prompt_name": "passage"})
    message = f'{field}: not found ("passage"). Use one of "query", "document", "none".'
    assert (response.status_code, response.json()) == (422, {"error": message, "error_type": "Validation"})


async def test_unknown_prompt_of_similarity_is_rejected(prompted: ServiceHarness) -> None:
    body = {"inputs": {"source_sentence": "a", "sentences": ["b"]}, "parameters": {"prompt_name": "passage"}}
    response = await prompted.post("/similarity", body)
    assert response.status_code == 422
    assert response.json()["error"].startswith('parameters.prompt_name: not found ("passage").')


@pytest.mark.parametrize("text", [GOLDEN, "déjà 漢字 vu 👩‍👩‍👧 x", "e\u0301 \U0001d54f", "[CLS] </s>"])
async def test_tokens_have_byte_offsets(harness: ServiceHarness, text: str) -> None:
    """The native API's offsets count characters."""
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
    """TEI clients send back the ids from /tokenize."""
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


@pytest.mark.parametrize(
    ("path", "body"),
    [("/embed", {"inputs": GOLDEN}), ("/similarity", {"inputs": {"source_sentence": "a", "sentences": ["b"]}})],
)
async def test_accepted_request_is_answered_although_the_server_rejects_new_ones(
    harness: ServiceHarness, monkeypatch: pytest.MonkeyPatch, path: str, body: Any
) -> None:
    lane, submit = harness.engine.fast_lane, harness.engine.fast_lane.submit

    def reject_and_submit(*arguments: Any, **options: Any) -> Any:
        harness.lifecycle.reject_new()
        return submit(*arguments, **options)

    monkeypatch.setattr(lane, "submit", reject_and_submit)
    response = await harness.post(path, body)
    assert response.status_code == 200
    assert response.headers["x-attendant-model"].startswith(harness.engine.info.name)


async def test_queue_time_is_part_of_the_run_time(harness: ServiceHarness) -> None:
    call = Call()
    await encode_texts(harness.engine, encode_request(*[GOLDEN] * 3), call)
    timing = call.timing
    assert 0 < timing.queue < timing.run
    observed = harness.sample("attendant_stage_duration_seconds_sum", stage="queue", lane="fast")
    assert timing.queue == pytest.approx(observed)


def test_running_server_answers(rest: httpx.Client) -> None:
    expected = [result["pooled"] for result in rest.post("/v1/encode", json={"inputs": [GOLDEN]}).json()["results"]]
    for path in ("/embed", "/"):
        response = rest.post(path, json={"inputs": GOLDEN})
        np.testing.assert_array_equal(np.array(response.json(), np.float32), np.array(expected, np.float32))
