"""Combinations of request fields over REST and gRPC: responses follow the contract, and both APIs agree.

`make fuzz` runs this file with 2,500 examples.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, event, given, settings
from hypothesis import strategies as st

from model.export.export import export
from model.source.sentence_transformers import SettingOptions
from service.config import Settings
from tests.conftest import EXAMPLES
from tests.labels import CLASSIFIER, CROSS_ENCODER, ENTAILMENT, TOKEN_CLASSIFIER, export_classifier
from tests.model.conftest import definitions, publish  # noqa: F401
from tests.model.retriever_cases import BGE_M3
from tests.operation_requests import Body, ModelFacts, requests, to_message
from tests.response_contract import (
    as_list,
    assert_close,
    assert_same_error,
    assert_sparse_close,
    check_attend,
    check_classify,
    check_compare,
    check_encode,
    check_fill_mask,
    check_rerank,
    check_similarity,
    check_token_classify,
    check_tokens,
    check_words,
    compare_attend,
    compare_classify,
    compare_compare,
    compare_encode,
    compare_fill_mask,
    compare_rerank,
    compare_similarity,
    compare_token_classify,
    compare_tokenize,
    dtype_tolerance,
    input_texts,
    to_array,
)
from tests.retrievers import SPLADE, export_retriever
from tests.service.access_log import Lines, check_access_log
from tests.serving import ServiceThread
from tests.shared_models import load_anew
from tests.stubs import EncoderServiceStub

COLBERT = "stanford"
MOST_CHUNKS = 64
FAMILIES = (
    "mpnet", "deberta-v2", "t5", "modernbert", "nomic_bert", "gte", "jina_embeddings_v3", "eurobert", "mistral",
    "qwen3", "gemma3_text",
)  # fmt: skip
SLOW_MODELS = (
    "causal_model", CROSS_ENCODER, CLASSIFIER, ENTAILMENT, TOKEN_CLASSIFIER, SPLADE, BGE_M3, COLBERT, *FAMILIES,
)  # fmt: skip
TEXTS_OF_SCRIPTS = ("Ein Hund läuft.", "Кошка спит", "الماء نقي", "שלום", "नमस्ते", "猫在睡觉。", "고양이가 잔다", "x")
SERVER_ERRORS = {"INTERNAL", "UNKNOWN", "UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED"}


@dataclass(frozen=True)
class Clients:
    """A running service with one client per API, and its model info."""

    service: ServiceThread
    rest: httpx.Client
    stub: EncoderServiceStub
    facts: ModelFacts
    tolerance: float
    codes: dict[str, str] = field(default_factory=dict)
    """Status of each request, by request ID."""

    def post(self, operation: str, request: Body) -> httpx.Response:
        self.service.largest_response = 0
        response = self.rest.post(f"/v1/{operation.replace('_', '-')}", json=request)
        self.codes[response.headers["x-request-id"]] = str(response.status_code)
        return response

    def call(self, operation: str, message: Any) -> Any:
        """Return the response message, the list of a stream's messages, or the error."""
        request_id = f"call-{len(self.codes)}"
        self.codes[request_id] = "OK"
        try:
            method = getattr(self.stub, operation.title().replace("_", ""))
            response = method(message, metadata=(("x-request-id", request_id),))
            return list(response) if operation == "attend" else response
        except grpc.RpcError as error:
            self.codes[request_id] = error.code().name
            return error


@pytest.fixture(scope="module")
def access_log() -> Iterator[Lines]:
    logger, lines = logging.getLogger("attendant.access"), Lines()
    logger.addHandler(lines)
    logger.setLevel(logging.INFO)
    yield lines
    logger.removeHandler(lines)
    logger.setLevel(logging.NOTSET)


@pytest.fixture(
    scope="module",
    params=["model", *(pytest.param(kind, marks=pytest.mark.slow) for kind in SLOW_MODELS)],
)
def clients(
    request: pytest.FixtureRequest, access_log: Lines, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Clients]:
    """Clients for the default model, its weights with causal attention, and tiny models: with heads, of each family."""
    if request.param in (CROSS_ENCODER, CLASSIFIER, ENTAILMENT, TOKEN_CLASSIFIER):
        artifact = export_classifier(request.param, SettingOptions(normalize=True))
        model = load_anew(Settings(model_dir=artifact, precision="float32"))
    elif request.param in (SPLADE, BGE_M3, COLBERT):
        artifact = export_retriever(request.param, SettingOptions(normalize=True))
        model = load_anew(Settings(model_dir=artifact, precision="float32"))
    elif request.param in FAMILIES:
        out = tmp_path_factory.mktemp("family") / request.param
        published = request.getfixturevalue("publish")(request.param)
        normalized = SettingOptions(normalize=True)  # as the default model, whose contract the requests are held to
        export(str(published), out, revision=None, name=None, progress=lambda step: None, settings=normalized)
        model = load_anew(Settings(model_dir=out, precision="float32"))
    else:
        model = request.getfixturevalue(request.param)
    access_log.lines.clear()
    with (
        ServiceThread(model, openai_token_ids=True, access_log="all") as service,
        httpx.Client(base_url=service.rest, timeout=120) as rest,
    ):
        info = rest.get("/v1/model").json()
        facts = ModelFacts(**{field.name: info[field.name] for field in fields(ModelFacts)})
        options = [("grpc.max_receive_message_length", -1)]
        with grpc.insecure_channel(service.grpc, options=options) as channel:
            tolerance = 1e-5 if info["precision"] == "float32" else 5e-4
            stub = EncoderServiceStub(channel)
            opened = Clients(service, rest, stub, facts, tolerance)
            yield opened
    check_access_log(access_log.lines, opened.codes, facts.name)


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=EXAMPLES <= 300,
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)
@given(data=st.data())
def test_responses_follow_the_contract(clients: Clients, data: st.DataObject) -> None:
    operation, request = data.draw(requests(clients.facts))
    response = clients.post(operation, request)
    event(f"{operation} {response.status_code}")
    assert response.status_code < 500, response.text
    if response.status_code == 200:
        assert len(response.content) <= clients.service.largest_response, "larger than computed before inference"
        check_response(clients, operation, request, response.json())
    else:
        check_error(operation, request, response)
    if operation != "embeddings":
        check_rpc(clients, operation, request, response)


def test_other_apis_return_the_same_vectors(clients: Clients) -> None:
    """Compares TEI and the Open Inference Protocol with the native API."""

    def post(path: str, request: Body) -> Any:
        response = clients.rest.post(path, json=request).raise_for_status()
        clients.codes[response.headers["x-request-id"]] = str(response.status_code)
        return response.json()

    texts = list(TEXTS_OF_SCRIPTS)
    native = post("/v1/encode", {"inputs": texts, "outputs": ["pooled", "tokens"]})["results"]
    pooled, tokens = post("/embed", {"inputs": texts}), post("/embed_all", {"inputs": texts})
    tensor = {"name": "text", "datatype": "BYTES", "shape": [len(texts)], "data": texts}
    body = {"inputs": [tensor], "outputs": [{"name": "pooled"}, {"name": "tokens"}]}
    outputs = post(f"/v2/models/{clients.facts.name}/infer", body)["outputs"]
    oip_pooled, oip_tokens = (np.reshape(output["data"], output["shape"]) for output in outputs)
    for index, result in enumerate(native):
        vectors = to_array(result["token_vectors"])
        for other in (pooled[index], oip_pooled[index]):
            assert_close(to_array(result["pooled"]), to_array(other), clients.tolerance)
        for other in (tokens[index], oip_tokens[index, : len(vectors)]):
            assert_close(vectors, to_array(other), clients.tolerance)


def check_error(operation: str, request: Body, response: httpx.Response) -> None:
    assert len(response.content) <= 1024
    assert response.status_code in (400, 404, 413, 422)
    error = response.json()["error"]
    assert error["message"]
    for text in (word for word in str(request).split() if len(word) > 60):
        assert text not in error["message"]


def check_response(clients: Clients, operation: str, request: Body, body: Any) -> None:
    facts = clients.facts
    checks: dict[str, Callable[[], None]] = {
        "encode": lambda: check_encode(request, body, facts),
        "attend": lambda: check_attend(request, body, facts),
        "compare": lambda: check_compare(request, body, facts.num_hidden_layers),
        "similarity": lambda: check_similarity(request, body),
        "rerank": lambda: check_rerank(request, body),
        "classify": lambda: check_classify(request, body, facts.labels),
        "token_classify": lambda: check_token_classify(request, body, facts.token_labels),
        "fill_mask": lambda: check_fill_mask(request, body, facts),
        "tokenize": lambda: check_tokenize(request, body),
        "embeddings": lambda: check_embeddings(clients, request, body),
    }
    checks[operation]()
    if operation == "encode":
        check_alone(clients, request, body)
        if "chunks" in request:
            check_chunk_vectors(clients, request, body)


def check_tokenize(request: Body, body: Any) -> None:
    items = [request["inputs"]] if isinstance(request["inputs"], str) else request["inputs"]
    for item, result in zip(items, body["results"], strict=True):
        assert len(result["tokens"]) == result["token_count"]
        check_words(result["words"], item)
        check_tokens(result["tokens"], result["words"], item)


def check_alone(clients: Clients, request: Body, body: Any) -> None:
    """Check that the last input's vectors do not depend on the other inputs."""
    if isinstance(request["inputs"], str) or len(request["inputs"]) == 1:
        return
    alone = clients.post("encode", {**request, "inputs": request["inputs"][-1:]})
    assert alone.status_code == 200, alone.text
    (expected,), result = alone.json()["results"], body["results"][-1]
    assert set(expected) == set(result)
    dtype = request.get("dtype", "float32")
    tolerance = dtype_tolerance(clients.tolerance, dtype)
    for name in expected:
        if name == "sparse":
            assert_sparse_close(expected[name], result[name], tolerance)
        elif name in ("pooled", "multi_vector") or name.endswith("_vectors"):
            assert_close(to_array(expected[name], dtype), to_array(result[name], dtype), tolerance)
        else:
            assert expected[name] == result[name]


def check_chunk_vectors(clients: Clients, request: Body, body: Any) -> None:
    """Check that chunks have the vectors of their texts or, if late, of the means of their tokens in the text."""
    options = {name: value for name, value in request.items() if name not in ("inputs", "chunks", "encoding_format")}
    dtype = request.get("dtype", "float32")
    for item, result in zip(as_list(request["inputs"]), body["results"], strict=True):
        chunks, vectors = result["chunks"], to_array(result["chunk_vectors"], dtype)
        check_chunk_sizes(clients, request, input_texts(item)[0], chunks)
        late = request["chunks"].get("mode") == "late" and len(chunks) > 1
        if len(chunks) > MOST_CHUNKS or (late and (result["token_count"] > clients.facts.max_input_tokens or options)):
            continue
        if late:
            start, end = chunks[0]["start"], chunks[-1]["end"]
            spans = [[chunk["start"] - start, chunk["end"] - start] for chunk in chunks]
            text = input_texts(item)[0][start:end]
            alone = clients.post("encode", {"inputs": [{"text": text, "spans": spans}], "outputs": ["spans"]})
            means = to_array(alone.json()["results"][0]["span_vectors"])
            expected = means / np.linalg.norm(means, axis=1, keepdims=True)
        else:
            alone = clients.post("encode", {**options, "inputs": [chunk["text"] for chunk in chunks]})
            expected = np.stack([to_array(other["pooled"], dtype) for other in alone.json()["results"]])
            expected = np.moveaxis(expected, 0, -2)
        for index in range(len(chunks)):
            actual, wanted = vectors[..., index, :], expected[..., index, :]
            assert_close(actual, wanted, dtype_tolerance(clients.tolerance, dtype))


def check_chunk_sizes(clients: Clients, request: Body, text: str, chunks: list[Any]) -> None:
    """Check that a chunk over the limit cannot be split: all of its tokens begin at one character."""
    limit = request["chunks"].get("max_tokens") or 256
    large = [chunk for chunk in chunks if chunk["token_count"] > limit and request["chunks"].get("by") != "span"]
    if not large:
        return
    (result,) = clients.post("tokenize", {"inputs": text}).json()["results"]
    tokens = [token for token in result["tokens"] if token["start"] < token["end"]]
    for chunk in large:
        starts = {token["start"] for token in tokens if chunk["start"] <= token["start"] < chunk["end"]}
        assert len(starts) <= 1, (chunk, starts)  # a token may also cross the start of the chunk


def check_embeddings(clients: Clients, request: Body, body: Any) -> None:
    """Check that the OpenAI API returns the native API's pooled vectors."""
    openai_input = request["input"]
    if isinstance(openai_input, str):
        inputs: Any = openai_input
    elif isinstance(openai_input[0], int):
        inputs = [{"token_ids": openai_input}]
    else:
        inputs = [item if isinstance(item, str) else {"token_ids": item} for item in openai_input]
    native = {"inputs": inputs} | ({"dimensions": request["dimensions"]} if "dimensions" in request else {})
    native["truncation"] = "right" if request.get("truncate") else "error"
    results = clients.post("encode", native).json()["results"]
    assert len(body["data"]) == len(results)
    for index, (item, result) in enumerate(zip(body["data"], results, strict=True)):
        assert item["index"] == index
        encoded = item["embedding"]
        if request.get("encoding_format") == "base64":
            encoded = {"data": encoded, "dtype": "float32", "shape": [len(result["pooled"])]}
        assert_close(to_array(encoded), to_array(result["pooled"]), clients.tolerance)


def check_rpc(clients: Clients, operation: str, request: Body, response: httpx.Response) -> None:
    message = to_message(operation, request)
    if message is None:
        return
    result = clients.call(operation, message)
    if isinstance(result, grpc.RpcError):
        code = result.code().name
        assert code not in SERVER_ERRORS, result
        too_large = response.status_code == 200  # JSON and protobuf may only differ in size
        assert not too_large, result
        assert_same_error(result, response)
        return
    if response.status_code != 200:
        reason = response.json()["error"]["reason"]
        json_only = reason == "RESPONSE_TOO_LARGE" or "encoding_format" in response.json()["error"]["message"]
        assert json_only, response.text
        return
    compare_responses(clients, operation, request, response.json(), result)


def compare_responses(clients: Clients, operation: str, request: Body, body: Any, result: Any) -> None:
    """Compare the JSON and the message of one request."""
    loose = 10 * clients.tolerance
    comparisons: dict[str, Callable[[], None]] = {
        "encode": lambda: compare_encode(request, body, result, clients.tolerance),
        "attend": lambda: compare_attend(request, body, result),
        "compare": lambda: compare_compare(body, result),
        "similarity": lambda: compare_similarity(body, result, clients.tolerance),
        "rerank": lambda: compare_rerank(body, result, loose),
        "classify": lambda: compare_classify(body, result, loose),
        "token_classify": lambda: compare_token_classify(body, result, loose),
        "fill_mask": lambda: compare_fill_mask(body, result, loose),
        "tokenize": lambda: compare_tokenize(body, result),
    }
    comparisons[operation]()
