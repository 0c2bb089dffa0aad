"""attendant-client against a running service: sync and async, over gRPC and HTTP."""

import math
import os
import shutil
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from attendant_client import (
    AsyncClient,
    AttendantError,
    Client,
    Input,
    Occurrence,
    RetryPolicy,
)
from jsonschema import Draft202012Validator

from service.config import Settings
from service.engine.model_loader import LoadedModel
from tests.client.clients import KINDS, NO_RETRIES, SyncCaller, service_url
from tests.client.results import assert_equal
from tests.model_records import EVALUATIONS, TRAINING, add_records
from tests.serving import ServiceThread

CASHED = "He cashed a check at the bank."
RIVER = "They sat on the bank of the river."


def test_clients_return_the_same_values(service: ServiceThread) -> None:
    """Compares every operation of an embedding model across the four clients."""
    results: list[tuple[Any, ...]] = []
    for kind, protocol in KINDS.values():
        with kind(service_url(service, protocol)) as client:
            encoded = client.encode(
                [Input(CASHED, spans=[(25, 29)]), Input(RIVER, spans=[(16, 20)])],
                outputs=["pooled", "tokens", "words", "spans", "static"],
            )
            attended = client.attend(Input(CASHED, pair=RIVER), unit="word", layers=[-1], head_reduce="mean")
            sparse = client.attend(CASHED, layers=[1], heads=[0, 3], top_k=3, dtype="float16")
            compared = client.compare([Occurrence(CASHED, (25, 29)), Occurrence(RIVER, word_index=4)], layers="all")
            options: Any = {"explain": True, "unit": "word", "effect": "leave_one_out"}
            explained = client.similarity(CASHED, [RIVER, "money"], **options)
            top = client.similarity([CASHED], [RIVER], pairs="zip", query_prompt="find: ", explain=True, top_k=2)
            scores = client.similarity([CASHED], [RIVER], similarity="dot", dimensions=16)
            ranked = client.rerank(CASHED, [RIVER, "money"], effect="occlusion", explain_top=1)
            tokenized, info = client.tokenize(["a b", "c"]), client.model()
            results.append((encoded, attended, sparse, compared, explained, top, scores, ranked, tokenized, info))
    for other in results[1:]:
        assert_equal(other, results[0])


@pytest.mark.slow
def test_model_info_has_records_of_training_and_evaluation(default_artifact: Path, tmp_path: Path) -> None:
    """Covers both APIs, and checks the REST response against the OpenAPI schema."""
    root = Path(shutil.copytree(default_artifact, tmp_path / "artifact"))
    add_records(root)
    with ServiceThread(LoadedModel.load(Settings(model_dir=root))) as service:
        infos = []
        for kind, protocol in KINDS.values():
            with kind(service_url(service, protocol)) as client:
                infos.append(client.model())
        body = httpx.get(f"{service.rest}/v1/model").json()
        document = httpx.get(f"{service.rest}/openapi.json").json()
    assert infos == infos[:1] * 4
    assert asdict(infos[0].training) == body["training"] == TRAINING.model_dump(mode="json")
    evaluations = [record.model_dump(mode="json") for record in EVALUATIONS]
    assert list(map(asdict, infos[0].evaluations)) == body["evaluations"] == evaluations
    schema = {"$ref": "#/components/schemas/ModelObject", "components": document["components"]}
    Draft202012Validator(schema).validate(body)


def test_embed_returns_a_matrix(client: Client) -> None:
    vectors = client.embed([CASHED, RIVER], dimensions=64)
    assert vectors.shape == (2, 64)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)


def test_sqrt_uint8_is_decoded_to_probabilities(client: Client) -> None:
    matrix = client.attend(CASHED, layers=[2], heads=[1], dtype="sqrt_uint8").results[0].maps[0].matrix
    assert matrix is not None
    np.testing.assert_allclose(matrix.sum(axis=1), 1, atol=0.05)


def test_inputs_over_the_limit_are_split_into_several_requests(client: Client) -> None:
    texts = [f"text {number}" for number in range(600)]
    response = client.encode(texts)
    assert len(response.results) == 600
    assert response.token_count == sum(result.token_count for result in response.results)
    alone = client.encode(texts[599]).results[0].pooled
    together = response.results[599].pooled
    assert alone is not None
    assert together is not None
    np.testing.assert_allclose(alone, together, atol=5e-3)


@pytest.mark.slow
def test_large_requests_are_split_by_bytes(model: LoadedModel) -> None:
    """With both APIs, 300 kB exceed the message limit. The parts fill the queue, so some of them are retried."""
    limits = {"max_request_bytes": 40_000, "max_grpc_message_bytes": 40_000, "max_queue_tokens": 256}
    with ServiceThread(model, **limits) as service:
        for kind, protocol in KINDS.values():
            with kind(service_url(service, protocol), timeout_s=300, retries=RetryPolicy(max_attempts=30)) as client:
                assert len(client.encode(["word " * 1000] * 60, truncation="right").results) == 60


def test_request_is_split_when_the_response_would_be_too_large(model: LoadedModel) -> None:
    with ServiceThread(model, max_response_bytes=20_000) as service:
        for kind, protocol in KINDS.values():
            with kind(service_url(service, protocol)) as client:
                assert client.embed(["a"] * 30).shape == (30, 384)


def test_error_has_reason_field_and_limit(client: Client) -> None:
    with pytest.raises(AttendantError) as raised:
        client.encode([CASHED, "word " * 300])
    error = raised.value
    assert (error.code, error.reason, error.field) == ("INVALID_ARGUMENT", "TOO_LONG", "inputs[1]")
    assert (error.actual, error.maximum, error.retryable) == (302, 256, False)
    assert error.request_id


def test_timeout_is_an_error(client: Client) -> None:
    client.model()
    with pytest.raises(AttendantError) as raised:
        client.encode(["word " * 250] * 256, timeout_s=0.01)
    assert raised.value.code == "DEADLINE_EXCEEDED"


@pytest.mark.parametrize("timeout_s", [math.inf, sys.maxsize])
def test_unlimited_timeout_is_none(client: Client, timeout_s: float) -> None:
    assert client.encode(CASHED, timeout_s=timeout_s).results


@pytest.mark.parametrize("name", KINDS)
def test_unreachable_server_is_retried(name: str) -> None:
    kind, protocol = KINDS[name]
    url = "http://127.0.0.1:9" if protocol == "http" else "grpc://127.0.0.1:9"
    retries = RetryPolicy(max_attempts=2, initial_delay_s=0.01)
    with kind(url, retries=retries) as client, pytest.raises(AttendantError) as raised:
        client.model()
    assert (raised.value.code, raised.value.retryable) == ("UNAVAILABLE", True)


def test_error_names_the_reset_of_a_connection() -> None:
    """The asynchronous error of httpx has no message."""
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor() as executor:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"

        def reset() -> None:
            connection, _ = server.accept()
            connection.recv(1)
            connection.close()  # resets, because received bytes are unread

        resetting = executor.submit(reset)
        with SyncCaller(url, retries=NO_RETRIES) as client, pytest.raises(AttendantError) as raised:
            client.model()
        resetting.result()
    assert str(raised.value) == f"UNAVAILABLE: {url}/v1/model: ReadError"


@pytest.mark.parametrize("name", KINDS)
def test_call_on_a_closed_client_is_an_error(name: str) -> None:
    kind, protocol = KINDS[name]
    with kind(f"{protocol}://127.0.0.1:9") as client:
        client.close()
        with pytest.raises(AttendantError, match=r"The client was closed\.") as raised:
            client.model()
    assert (raised.value.code, raised.value.retryable) == ("CANCELLED", False)


def test_forked_process_opens_new_connections(service: ServiceThread, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise, the processes of a server that forks would get the responses to requests of one another."""
    with Client(service.rest) as client:
        client.model()
        transport: Any = client._transport
        before = transport._client
        monkeypatch.setattr(os, "getpid", lambda: -1)
        client.model()
        assert transport._client is not before
        before.close()


@pytest.mark.parametrize("kind", [Client, AsyncClient])
@pytest.mark.parametrize(
    "url",
    [
        "127.0.0.1:8080",
        "ftp://a",
        "http://",
        "http://:80",
        "http://[::1",
        "http://a:b",
        "http://a:70000",
        "http://a\n",
        " http://a",
    ],
)
def test_invalid_url_is_rejected(kind: Any, url: str) -> None:
    with pytest.raises(ValueError, match="is not a URL of http, https, grpc or grpcs"):
        kind(url)


@pytest.mark.parametrize("url", ["grpc://a:1/v1", "grpc://a:1?b=2", "grpc://user:secret1@a:1"])
def test_grpc_url_with_more_than_host_and_port_is_rejected(url: str) -> None:
    with pytest.raises(ValueError, match="url: gRPC URLs have only a host and a port") as raised:
        Client(url)
    assert "secret1" not in str(raised.value)


def test_unencrypted_grpc_url_requires_a_port() -> None:
    """By default, gRPC would connect to port 443."""
    with pytest.raises(ValueError, match=r"url: grpc:// requires a port, such as grpc://127\.0\.0\.1:8081"):
        Client("grpc://localhost")
    Client("grpcs://localhost").close()


@pytest.mark.parametrize("kind", [Client, SyncCaller])
def test_error_does_not_show_the_password_of_the_url(kind: Any) -> None:
    with kind("http://user:secret1@127.0.0.1:9", retries=NO_RETRIES) as client, pytest.raises(AttendantError) as raised:
        client.model()
    assert str(raised.value).startswith("UNAVAILABLE: http://127.0.0.1:9/v1/model: ")


@pytest.mark.parametrize("kind", [Client, AsyncClient])
@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("key", ["", " ", "secret1\n", "secret1\x7f", "secret 1", "s\u00e9cret1"])
def test_invalid_api_key_is_rejected_without_its_value(kind: Any, protocol: str, key: str) -> None:
    with pytest.raises(ValueError, match="api_key: ") as raised:
        kind(f"{protocol}://127.0.0.1:9", api_key=key)
    assert not key.strip() or key.strip() not in str(raised.value)


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_user_in_the_url_excludes_an_api_key(kind: Any) -> None:
    with pytest.raises(ValueError, match=r"^url: user and password exclude an api_key\.") as raised:
        kind("http://user:secret1@127.0.0.1:9", api_key="secret2")
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("name", KINDS)
def test_api_key_may_have_any_visible_character(service: ServiceThread, name: str) -> None:
    kind, protocol = KINDS[name]
    with kind(service_url(service, protocol), api_key="".join(map(chr, range(0x21, 0x7F)))) as client:
        assert client.model().name


def test_embed_returns_pooled_vectors_whatever_the_outputs(client: Client) -> None:
    assert client.embed([CASHED], outputs=["tokens"]).shape == (1, 384)


def test_all_rows_are_the_default(client: Client) -> None:
    default = client.attend(CASHED, outputs=["weights"])
    assert client.attend(CASHED, outputs=["weights"], rows="all").results == default.results


def test_any_sequence_of_layers_is_accepted(client: Client) -> None:
    results = [client.encode(CASHED, layers=layers).results[0].pooled for layers in (range(2), (0, 1), [0, 1])]
    for pooled in results:
        assert pooled is not None
        np.testing.assert_array_equal(pooled, results[0])
