"""The native door: /v1/encode, /v1/tokenize and /v1/model as API.md writes them."""

import base64
import re
from typing import Any

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray

from model.artifact import Manifest
from tests.service.conftest import GOLDEN, House


def tensor(field: dict[str, Any]) -> NDArray[Any]:
    types = {"float32": "<f4", "float16": "<f2", "int8": "i1", "ubinary": "u1"}
    return np.frombuffer(base64.b64decode(field["data"]), types[field["dtype"]]).reshape(field["shape"])


async def test_response_has_the_fields_of_the_contract(house: House) -> None:
    """Every output at once."""
    outputs = ["pooled", "tokens", "words", "spans", "static"]
    body = {"inputs": [{"text": GOLDEN, "spans": [[0, 5]]}], "outputs": outputs}
    found = (await house.post("/v1/encode", body)).json()
    assert set(found) == {"model", "precision", "results", "usage"}
    assert (found["model"], found["usage"]) == ("all-MiniLM-L6-v2", {"tokens": 5, "truncated_inputs": 0})
    assert found["precision"] == house.engine.info.precision
    (result,) = found["results"]
    assert (result["token_count"], result["truncated"]) == (5, False)
    assert result["tokens"][0] == {"id": 101, "text": "[CLS]", "start": 0, "end": 0, "word": None, "segment": 0,
                                   "special": True}  # fmt: skip
    assert result["tokens"][1] == {"id": 2769, "text": "money", "start": 0, "end": 5, "word": 0, "segment": 0,
                                   "special": False}  # fmt: skip
    assert result["words"][0] == {"text": "money", "start": 0, "end": 5, "segment": 0}
    shapes = {name: np.shape(result[f"{name}_vectors"]) for name in ("token", "word", "span", "static")}
    assert shapes == {"token": (5, 384), "word": (3, 384), "span": (1, 384), "static": (5, 384)}
    assert np.shape(result["pooled"]) == (384,)


async def test_response_has_only_requested_outputs(house: House) -> None:
    """By default the pooled vector alone."""
    (result,) = (await house.post("/v1/encode", {"inputs": GOLDEN})).json()["results"]
    assert set(result) == {"token_count", "truncated", "pooled"}


async def test_inputs_come_in_four_spellings(house: House) -> None:
    """A text, a list, objects, and ids; all the same."""
    spellings = [GOLDEN, [GOLDEN], [{"text": GOLDEN}], [{"token_ids": [2769, 2924, 7502]}]]
    answers = [(await house.post("/v1/encode", {"inputs": inputs})).json()["results"] for inputs in spellings]
    assert answers[1:] == answers[:1] * 3


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "ubinary"])
async def test_base64_is_the_same_numbers(house: House, dtype: str) -> None:
    """In the element type asked for, little-endian."""
    body = {"inputs": GOLDEN, "dtype": dtype}
    plain = (await house.post("/v1/encode", body)).json()["results"][0]["pooled"]
    coded = (await house.post("/v1/encode", {**body, "encoding": "base64"})).json()["results"][0]["pooled"]
    assert coded["dtype"] == dtype
    np.testing.assert_array_equal(tensor(coded), np.asarray(plain, tensor(coded).dtype))


async def test_headers_say_what_answered(house: House) -> None:
    """The model with its digest, the stages, and the caller's own request id."""
    answer = await house.post("/v1/encode", {"inputs": GOLDEN}, **{"x-request-id": "call-17"})
    assert answer.headers["x-attendant-model"] == f"all-MiniLM-L6-v2@{house.engine.info.digest}"
    assert re.fullmatch(r"tokenize;dur=[\d.]+, run;dur=[\d.]+, postprocess;dur=[\d.]+",
                        answer.headers["server-timing"])  # fmt: skip
    assert answer.headers["x-request-id"] == "call-17"
    assert answer.headers["content-type"] == "application/json"


async def test_tokenize_answers_as_the_contract_says(house: House) -> None:
    """Tokens, words and count of each input, and nothing runs."""
    body = {"inputs": [GOLDEN, {"text": "river bank", "pair": "flows"}]}
    found = (await house.post("/v1/tokenize", body)).json()
    assert [result["token_count"] for result in found["results"]] == [5, 6]
    assert set(found["results"][0]) == {"token_count", "tokens", "words"}
    assert [word["segment"] for word in found["results"][1]["words"]] == [0, 0, 1]
    assert house.batches_run == 0


async def test_tokenize_takes_no_other_fields(house: House) -> None:
    """As encode does."""
    answer = await house.post("/v1/tokenize", {"inputs": "a", "outputs": ["words"]})
    assert (answer.status_code, answer.json()["error"]["reason"]) == (422, "unknown_field")


def test_unknown_model_is_not_found(rest: httpx.Client) -> None:
    """404, whichever route is asked."""
    for route in ("/v1/encode", "/v1/tokenize"):
        answer = rest.post(route, json={"inputs": "a", "model": "gpt-9"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "NOT_FOUND")
        assert "gpt-9" not in answer.text


def test_model_route_returns_properties_and_limits(rest: httpx.Client, manifest: Manifest) -> None:
    """What a client needs to know before it asks."""
    found = rest.get("/v1/model").json()
    for name in ("name", "source", "revision", "pooling", "normalize"):
        assert found[name] == getattr(manifest, name)
    assert (found["family"], found["width"], found["max_tokens"]) == ("bert", 384, 256)
    assert re.fullmatch(r"sha256:[0-9a-f]{64}", found["digest"])
    assert found["limits"] == {
        "max_inputs": 256, "max_input_characters": 16384, "max_request_bytes": 2 * 2**20,
        "max_response_bytes": 64 * 2**20, "max_queue_tokens": 262_144,
        "max_queue_ms": 2000, "max_explain_queue_ms": 2000,
        "max_explain_queue_tokens": 65_536, "max_deadline_ms": 60000,
        "header_timeout_ms": 10000, "body_timeout_ms": 15000, "max_spans_per_input": 1024,
        "max_spans_per_request": 4096, "max_grpc_message_bytes": 8 * 2**20,
        "max_pending_request_bytes": 256 * 2**20, "max_connections": 2048, "max_grpc_streams": 256,
    }  # fmt: skip
    assert found["layers"] == [0, 1, 2, 3, 4, 5, 6]
    assert found["threads"] >= 1
    assert found["backend_reason"]
    assert found["attention_kinds"] == ["probs", "scores", "norm", "block_norm", "projection"]
    assert max(found["row_lengths"]) >= found["max_tokens"]


def test_layers_from_either_end_are_the_same(rest: httpx.Client) -> None:
    """And are computed in float32, which the answer says; a layer that is not there is refused."""
    ahead, back = (rest.post("/v1/encode", json={"inputs": "a", "layers": [at]}).json() for at in (3, -4))
    assert ahead == back
    assert ahead["precision"] == "float32"
    assert rest.post("/v1/encode", json={"inputs": "a", "layers": [99]}).status_code == 422


@pytest.mark.parametrize("encoding", ["float", "base64"])
def test_stacked_layers_of_several_inputs_have_one_vector_per_layer(rest: httpx.Client, encoding: str) -> None:
    body = {"inputs": ["money bank", "river bank"], "layers": [1, -1], "layer_reduce": "stack", "encoding": encoding}
    results = rest.post("/v1/encode", json=body).raise_for_status().json()["results"]
    shapes = [np.shape(one["pooled"]) if encoding == "float" else tuple(one["pooled"]["shape"]) for one in results]
    assert shapes == [(2, 384), (2, 384)]
