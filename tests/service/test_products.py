"""Every combination of options, through REST and gRPC: each response keeps its contract, and both protocols agree.

`make fuzz` runs this file with 20,000 examples.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, event, given, settings
from hypothesis import strategies as st

from service.engine.model_loader import LoadedModel
from service.pb.encoder_pb2_grpc import EncoderServiceStub
from tests.request_strategies import Body, ModelFacts, requests, to_message
from tests.response_contract import (
    array_of,
    array_of_tensor,
    assert_close,
    check_attend,
    check_compare,
    check_encode,
    check_tokens,
    check_words,
)
from tests.serving import ServiceThread

EXAMPLES = int(os.environ.get("ATTENDANT_FUZZ_EXAMPLES", "300"))
SERVER_ERRORS = {"INTERNAL", "UNKNOWN", "UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED"}
GRPC_OF_HTTP = {400: "INVALID_ARGUMENT", 422: "INVALID_ARGUMENT", 413: "RESOURCE_EXHAUSTED", 404: "NOT_FOUND"}


@dataclass(frozen=True)
class Clients:
    """A running service with a client per protocol, and the facts of its model."""

    service: ServiceThread
    rest: httpx.Client
    stub: EncoderServiceStub
    facts: ModelFacts
    tolerance: float

    def post(self, operation: str, request: Body) -> httpx.Response:
        return self.rest.post(f"/v1/{operation}", json=request)

    def call(self, operation: str, message: Any) -> Any:
        """Return the response message, the list of a stream's messages, or the error."""
        try:
            response = getattr(self.stub, operation.capitalize())(message)
            return list(response) if operation == "attend" else response
        except grpc.RpcError as error:
            return error


@pytest.fixture(scope="module")
def clients(model: LoadedModel) -> Iterator[Clients]:
    with ServiceThread(model) as service, httpx.Client(base_url=service.rest, timeout=120) as rest:
        described = rest.get("/v1/model").json()
        facts = ModelFacts(*(described[name] for name in ("layer_count", "head_count", "width", "vocabulary_size")))
        options = [("grpc.max_receive_message_length", -1)]
        with grpc.insecure_channel(service.grpc, options=options) as channel:
            tolerance = 1e-5 if described["precision"] == "float32" else 5e-4
            stub = EncoderServiceStub(channel)  # type: ignore[no-untyped-call]
            yield Clients(service, rest, stub, facts, tolerance)


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=EXAMPLES <= 300,
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)
@given(data=st.data())
def test_every_response_keeps_the_contract(clients: Clients, data: st.DataObject) -> None:
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


def check_error(operation: str, request: Body, response: httpx.Response) -> None:
    assert len(response.content) <= 1024
    assert response.status_code in (400, 413, 422)
    error = response.json()["error"]
    assert error["message"]
    for text in (word for word in str(request).split() if len(word) > 60):
        assert text not in error["message"]


def check_response(clients: Clients, operation: str, request: Body, body: Any) -> None:
    facts = clients.facts
    if operation == "encode":
        check_encode(request, body, facts.width)
        check_alone(clients, request, body)
    elif operation == "attend":
        check_attend(request, body, facts)
    elif operation == "compare":
        check_compare(request, body, facts.layer_count)
    elif operation == "tokenize":
        items = [request["inputs"]] if isinstance(request["inputs"], str) else request["inputs"]
        for item, result in zip(items, body["results"], strict=True):
            assert len(result["tokens"]) == result["token_count"]
            check_words(result["words"], item)
            check_tokens(result["tokens"], result["words"], item)
    else:
        check_embeddings(clients, request, body)


def check_alone(clients: Clients, request: Body, body: Any) -> None:
    """The last input alone gives the vectors that it has among the others."""
    if isinstance(request["inputs"], str) or len(request["inputs"]) == 1:
        return
    alone = clients.post("encode", {**request, "inputs": request["inputs"][-1:]})
    assert alone.status_code == 200, alone.text
    (one,), together = alone.json()["results"], body["results"][-1]
    assert set(one) == set(together)
    dtype = request.get("dtype", "float32")
    for name in one:
        if name == "pooled" or name.endswith("_vectors"):
            assert_close(array_of(one[name], dtype), array_of(together[name], dtype), tolerance(clients, dtype))
        else:
            assert one[name] == together[name]


def check_embeddings(clients: Clients, request: Body, body: Any) -> None:
    """The OpenAI adapter returns the pooled vectors of the native one."""
    given_input = request["input"]
    if isinstance(given_input, str):
        inputs: Any = given_input
    elif isinstance(given_input[0], int):
        inputs = [{"token_ids": given_input}]
    else:
        inputs = [item if isinstance(item, str) else {"token_ids": item} for item in given_input]
    native = {"inputs": inputs} | ({"dimensions": request["dimensions"]} if "dimensions" in request else {})
    results = clients.post("encode", native).json()["results"]
    assert len(body["data"]) == len(results)
    for index, (item, result) in enumerate(zip(body["data"], results, strict=True)):
        assert item["index"] == index
        encoded = item["embedding"]
        if request.get("encoding_format") == "base64":
            encoded = {"data": encoded, "dtype": "float32", "shape": [len(result["pooled"])]}
        assert_close(array_of(encoded), array_of(result["pooled"]), clients.tolerance)


def check_rpc(clients: Clients, operation: str, request: Body, response: httpx.Response) -> None:
    message = to_message(operation, request)
    if message is None:
        return
    answer = clients.call(operation, message)
    if isinstance(answer, grpc.RpcError):
        code = answer.code().name
        assert code not in SERVER_ERRORS, answer
        too_large = response.status_code == 200  # JSON and protobuf differ in size, and only in size
        assert not too_large, answer
        assert code == GRPC_OF_HTTP[response.status_code], (answer, response.text)
        return
    if response.status_code != 200:
        reason = response.json()["error"]["reason"]
        json_only = reason == "response_too_large" or "encoding" in response.json()["error"]["message"]
        assert json_only, response.text
        return
    body = response.json()
    if operation == "encode":
        compare_encode(clients, request, body, answer)
    elif operation == "attend":
        compare_attend(clients, request, body, answer)
    elif operation == "compare":
        for ours, theirs in zip(answer.layers, body["layers"], strict=True):
            assert_close(array_of_tensor(ours.cosine), array_of(theirs["cosine"]), 1e-5)
    else:
        for ours, theirs in zip(answer.results, body["results"], strict=True):
            assert [token.text for token in ours.tokens] == [token["text"] for token in theirs["tokens"]]
            assert [(word.start, word.end) for word in ours.words] == [
                (word["start"], word["end"]) for word in theirs["words"]
            ]


def compare_encode(clients: Clients, request: Body, body: Any, answer: Any) -> None:
    dtype = request.get("dtype", "float32")
    for ours, theirs in zip(answer.results, body["results"], strict=True):
        assert (ours.token_count, ours.truncated) == (theirs["token_count"], theirs["truncated"])
        for name in ("pooled", "token_vectors", "word_vectors", "span_vectors", "static_vectors"):
            assert ours.HasField(name) == (name in theirs)
            if name in theirs:
                rest = array_of(theirs[name], dtype)
                assert_close(array_of_tensor(getattr(ours, name)), rest, tolerance(clients, dtype))


def compare_attend(clients: Clients, request: Body, body: Any, answer: Any) -> None:
    header, maps = answer[0].header, [message.map for message in answer[1:]]
    assert [each.map_count for each in header.inputs] == [len(result["maps"]) for result in body["results"]]
    theirs = [each for result in body["results"] for each in result["maps"]]
    dtype = request.get("dtype", "float32")
    for ours, other in zip(maps, theirs, strict=True):
        assert list(ours.no_mass_rows) == other["no_mass_rows"]
        if ours.HasField("matrix"):
            left, right = array_of_tensor(ours.matrix), array_of(other["matrix"], dtype)
            np.testing.assert_allclose(
                left.astype(float), right.astype(float).reshape(left.shape), atol=2e-2, rtol=2e-2
            )
        else:
            assert list(ours.sparse.indices) == [index for row in other["matrix"]["indices"] for index in row]


def tolerance(clients: Clients, dtype: str) -> float:
    return clients.tolerance + {"float32": 0, "float16": 1e-3, "int8": 2e-2, "ubinary": 0.2}.get(dtype, 0)
