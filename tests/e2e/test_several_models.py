"""Each model of a multi-model server answers as it would alone, under every alias and in every API."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
from attendant_client import Client
from attendant_client.pb import encoder_pb2 as pb
from hypothesis import HealthCheck, Phase, event, given, settings
from hypothesis import strategies as st

from service.config import Settings
from service.engine.model_loader import LoadedModel
from tests.conftest import EXAMPLES, run_python, serving
from tests.manifests import with_manifest, with_prompts
from tests.operation_requests import Body, ModelFacts, requests, to_message
from tests.response_contract import assert_close, tensor_to_array, to_array
from tests.serving import ServiceThread
from tests.stubs import EncoderServiceStub

NAMES = {"large": ["large", "text-embedding-3-small"], "org/tiny": ["org/tiny", "t"]}
"""Each model's name and aliases."""
MODELS = {
    "models": "large=models/all-MiniLM-L6-v2,org/tiny=unused",
    "model_aliases": "text-embedding-3-small,t=org/tiny",
}
PROMPTS = {"query": "find: "}


@dataclass(frozen=True)
class Clients:
    rest: httpx.Client
    stub: EncoderServiceStub


@pytest.fixture(scope="module")
def loaded(default_artifact: Path, tiny_artifact: Path) -> dict[str, LoadedModel]:
    """Models of different sizes; the second one has a prompt."""
    large, tiny = (
        LoadedModel.load(Settings(model_dir=artifact, precision="float32"))
        for artifact in (default_artifact, tiny_artifact)
    )
    return {"large": large, "org/tiny": with_manifest(tiny, with_prompts(tiny.artifact.manifest, PROMPTS))}


def serve(*models: LoadedModel, **options: Any) -> Iterator[Clients]:
    with (
        ServiceThread(*models, openai_token_ids=True, **options) as service,
        httpx.Client(base_url=service.rest, timeout=120) as rest,
        grpc.insecure_channel(service.grpc, options=[("grpc.max_receive_message_length", -1)]) as channel,
    ):
        yield Clients(rest, EncoderServiceStub(channel))


@pytest.fixture(scope="module")
def together(loaded: dict[str, LoadedModel]) -> Iterator[Clients]:
    yield from serve(*loaded.values(), **MODELS)


@pytest.fixture(scope="module")
def large_alone(loaded: dict[str, LoadedModel]) -> Iterator[Clients]:
    yield from serve(loaded["large"], models="large=unused")


@pytest.fixture(scope="module")
def tiny_alone(loaded: dict[str, LoadedModel]) -> Iterator[Clients]:
    yield from serve(loaded["org/tiny"], models="org/tiny=unused")


@settings(
    max_examples=EXAMPLES, deadline=None, derandomize=EXAMPLES <= 100, suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
)  # fmt: skip
@given(data=st.data())
def test_model_responds_as_it_would_alone(
    together: Clients, large_alone: Clients, tiny_alone: Clients, data: st.DataObject
) -> None:
    model = data.draw(st.sampled_from(list(NAMES)))
    alone = large_alone if model == "large" else tiny_alone
    info = alone.rest.get("/v1/model").json()
    facts = ModelFacts(**{field.name: info[field.name] for field in fields(ModelFacts)})
    operation, request = data.draw(requests(facts))
    name = data.draw(st.sampled_from([*NAMES[model], *([None] if model == "large" else [])]))
    request = {key: value for key, value in request.items() if key != "model"}
    named = request if name is None else {**request, "model": name}
    if operation == "embeddings":
        request, named = {**request, "model": model}, {**request, "model": name or model}
    path = f"/v1/{operation.replace('_', '-')}"
    expected, response = alone.rest.post(path, json=request), together.rest.post(path, json=named)
    event(f"{model} {operation} {response.status_code}")
    assert response.status_code == expected.status_code, response.text
    if response.status_code != 200:
        assert without_request_id(response.json()) == without_request_id(expected.json())
        return
    assert_same(without_request_id(response.json()), without_request_id(expected.json()))
    assert response.json()["model"] == model
    if operation != "tokenize":
        assert response.headers["x-attendant-model"] == f"{model}@{info['digest']}"
    check_rpc(together, operation, named, response.json())


def check_rpc(clients: Clients, operation: str, request: Body, expected: Any) -> None:
    message = to_message(operation, request) if operation != "embeddings" else None
    if message is None:
        return
    message.model = request.get("model", "")
    response = getattr(clients.stub, operation.title().replace("_", ""))(message)
    if operation == "attend":
        header, *_ = list(response)
        response = header.header
    assert response.model == expected["model"]
    if operation == "encode" and "pooled" in expected["results"][0]:
        left = tensor_to_array(response.results[0].pooled)
        right = to_array(expected["results"][0]["pooled"], request.get("dtype", "float32"))
        assert_close(left, right, 1e-5)


def without_request_id(document: Any) -> Any:
    """Return a response without its request ID, which errors and rerank responses (for Jina and Cohere) contain."""
    if "error" in document:
        return {**document, "error": {**document["error"], "request_id": ""}}
    return {name: value for name, value in document.items() if name != "id"}


def assert_same(left: Any, right: Any) -> None:
    """Compare JSON documents. Numbers may differ as much as embeddings do between batches."""
    if isinstance(left, dict):
        assert left.keys() == right.keys()
        for key, value in left.items():
            if key == "data" and isinstance(value, str):
                assert len(value) == len(right[key])  # base64
            else:
                assert_same(value, right[key])
    elif isinstance(left, list) and left and all(isinstance(item, float) for item in left):
        np.testing.assert_allclose(left, right, rtol=1e-3, atol=2e-4)
    elif isinstance(left, list):
        assert len(left) == len(right)
        for items in zip(left, right, strict=True):
            assert_same(*items)
    elif isinstance(left, float) or isinstance(right, float):
        assert left == pytest.approx(right, rel=1e-3, abs=2e-4)
    else:
        assert left == right


@pytest.mark.parametrize(("name", "model"), [(name, model) for model, names in NAMES.items() for name in names])
def test_every_name_selects_its_model(together: Clients, name: str, model: str) -> None:
    info = together.rest.get(f"/v1/models/{name}").json()
    assert (info["name"], info["aliases"]) == (model, NAMES[model][1:])
    assert together.stub.GetModel(pb.GetModelRequest(model=name)).name == model
    assert together.rest.get(f"/v1/models/{name}").json()["id"] == name
    body = {"input": "bank", "model": name}
    assert together.rest.post("/v1/embeddings", json=body).json()["model"] == model
    with Client(str(together.rest.base_url)) as client:
        assert client.model(name).name == client.encode("bank", model=name).model == model
        assert client.model().name == "large"


@pytest.mark.parametrize("operation", ["encode", "attend", "compare", "similarity", "tokenize", "embeddings"])
def test_unknown_name_is_not_found(together: Clients, operation: str) -> None:
    texts: dict[str, Body] = {
        "compare": {"occurrences": [{"text": "a", "word_index": 0}] * 2},
        "similarity": {"queries": "a", "documents": "b"},
        "embeddings": {"input": "a"},
    }
    response = together.rest.post(f"/v1/{operation}", json={**texts.get(operation, {"inputs": "a"}), "model": "nobody"})
    error = response.json()["error"]
    message = 'model: not found ("nobody"). This server serves "large", "text-embedding-3-small", "org/tiny" and "t".'
    assert (response.status_code, error["message"]) == (404, message)
    assert (error.get("reason") or error["code"].upper(), error.get("field") or error["param"]) == (
        "MODEL_NOT_FOUND",
        "model",
    )
    if operation == "embeddings":
        return
    call = getattr(together.stub, operation.capitalize())
    with pytest.raises(grpc.RpcError) as raised:
        list(call(pb.AttendRequest(model="nobody"))) if operation == "attend" else call(
            getattr(pb, f"{operation.capitalize()}Request")(model="nobody")
        )
    assert (raised.value.code(), raised.value.details()) == (grpc.StatusCode.NOT_FOUND, message)


def test_messages_of_a_stream_may_name_different_models(together: Clients) -> None:
    names = ["large", "t", "", "nobody", "org/tiny"]
    messages = (
        pb.EncodeStreamRequest(id=str(index), request=pb.EncodeRequest(model=name, inputs=[pb.Input(text="bank")]))
        for index, name in enumerate(names)
    )
    responses = together.stub.EncodeStream(messages)
    models = [response.response.model or response.error.code for response in responses]
    assert models == ["large", "org/tiny", "large", grpc.StatusCode.NOT_FOUND.value[0], "org/tiny"]
    (used,) = (value for key, value in responses.trailing_metadata() if key == "x-attendant-model")
    assert [part.partition("@")[0] for part in used.split(", ")] == ["large", "org/tiny"]


@pytest.mark.slow
def test_metrics_and_processes_know_every_model(default_artifact: Path, tiny_artifact: Path) -> None:
    """The server starts with one digest per model, and counts the requests per model."""
    digest = (tiny_artifact / "manifest.sha256").read_text().strip()
    with serving(models=f"a={default_artifact},b={tiny_artifact}@sha256:{digest}") as server:
        for model in ("a", "b", "b"):
            httpx.post(server.rest + "/v1/encode", json={"inputs": "bank", "model": model}).raise_for_status()
        text = httpx.get(server.admin + "/metrics").text
    for name, count in (("a", 1), ("b", 2)):
        labels = f'api="rest",code="200",endpoint="/v1/encode",model="{name}"'
        assert f"attendant_requests_total{{{labels}}} {count}.0" in text
        assert f'attendant_request_inputs_count{{model="{name}"}} {count}.0' in text
        assert f'attendant_queue_utilization{{lane="fast",model="{name}"}}' in text
        assert text.count('attendant_model_info{digest="sha256:') == 2


def test_wrong_digest_of_one_model_stops_the_server(tiny_artifact: Path) -> None:
    models = f"a={tiny_artifact},b={tiny_artifact}@sha256:{'0' * 64}"
    result = run_python("-m", "service", "serve", models=models)
    assert result.returncode == 78
    assert 'ATTENDANT_MODELS: \\"b\\": ' in result.stderr  # inside a JSON line
    assert str(tiny_artifact) in result.stderr
    assert "digest" in result.stderr.lower()


def test_ollama_lists_every_name(together: Clients) -> None:
    listed = [item["name"] for item in together.rest.get("/api/tags").json()["models"]]
    assert listed == [name for names in NAMES.values() for name in names]
