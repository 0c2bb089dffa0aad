"""The OpenAI API, tested with OpenAI's client."""

from collections.abc import Iterator
from dataclasses import replace

import httpx
import numpy as np
import openai
import pytest

from service.engine.model_loader import LoadedModel
from service.errors import NonFiniteOutput
from service.operations.table import OPERATIONS
from tests.conftest import RunningServer
from tests.service.conftest import GOLDEN, ServiceHarness, open_harness

MODEL = "all-MiniLM-L6-v2"


@pytest.fixture
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.rest}/v1", api_key="none", max_retries=0) as opened:
        yield opened


@pytest.fixture
def golden(rest: httpx.Client) -> list[float]:
    """The native API's embedding."""
    embedding: list[float] = rest.post("/v1/encode", json={"inputs": GOLDEN}).json()["results"][0]["pooled"]
    return embedding


@pytest.mark.parametrize("ids", [[2769, 2924, 7502], [[2769, 2924, 7502], [2924]]])
def test_token_ids_are_rejected_by_default(client: openai.OpenAI, ids: list[int]) -> None:
    """LangChain sends ids from OpenAI's vocabulary. The error must name the option that prevents this."""
    with pytest.raises(openai.BadRequestError, match="check_embedding_ctx_length=False") as raised:
        client.embeddings.create(model=MODEL, input=ids)
    assert (raised.value.code, raised.value.param) == ("token_ids_disabled", "input")


@pytest.mark.parametrize("ids", [[-1], [30522], [[]]])
async def test_invalid_token_ids_are_rejected_when_enabled(model: LoadedModel, ids: list[int]) -> None:
    async with open_harness(model, openai_token_ids=True) as harness:
        response = await harness.post("/v1/embeddings", {"model": MODEL, "input": ids})
    assert (response.status_code, response.json()["error"]["param"].partition("[")[0]) == (400, "input")


@pytest.mark.parametrize("input_type", ["query", "document", "passage"])
async def test_input_type_is_accepted_without_prompts(harness: ServiceHarness, input_type: str) -> None:
    body = {"model": MODEL, "input": GOLDEN, "input_type": input_type}
    response = await harness.post("/v1/embeddings", body)
    assert response.status_code == 200
    assert (
        response.json()["data"] == (await harness.post("/v1/embeddings", {**body, "input_type": None})).json()["data"]
    )


async def test_permanent_errors_disable_retries(harness: ServiceHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without this header, OpenAI clients retry every 5xx response."""

    async def broken(*arguments: object) -> None:
        raise NonFiniteOutput

    monkeypatch.setitem(OPERATIONS, "encode", replace(OPERATIONS["encode"], run=broken))
    response = await harness.post("/v1/embeddings", {"model": MODEL, "input": GOLDEN})
    assert (response.status_code, response.headers["x-should-retry"]) == (500, "false")


def test_unknown_model_is_not_found(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as raised:
        client.embeddings.create(model="text-embedding-3-small", input="a")
    assert raised.value.code == "model_not_found"


@pytest.mark.parametrize("texts", ["", [], [""], ["a", " "], "word " * 300])
def test_invalid_inputs_are_rejected_with_the_openai_error_body(client: openai.OpenAI, texts: list[str]) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        client.embeddings.create(model=MODEL, input=texts)
    assert raised.value.type == "invalid_request_error"
    assert str(raised.value.param).partition("[")[0] == "input"
    assert isinstance(raised.value.body, dict)
    assert set(raised.value.body) == {"message", "type", "param", "code"}


@pytest.mark.parametrize("fields", [{"input": 5}, {"input": "a", "model": 5}, {"input": ["a", 5]}, {"model": MODEL},
                                    {"input": "a", "dimensions": 0}, {"input": "a", "dimensions": 385},
                                    {"input": "a", "encoding_format": "hex"}])  # fmt: skip
def test_invalid_field_is_named_in_param(rest: httpx.Client, fields: dict[str, object]) -> None:
    response = rest.post("/v1/embeddings", json={"model": MODEL, **fields})
    error = response.json()["error"]
    others = [name for name in ("dimensions", "encoding_format", "model") if fields.get(name, MODEL) != MODEL]
    expected = others[0] if others else "input"
    assert (response.status_code, error["param"].partition("[")[0]) == (400, expected), error


def test_malformed_json_is_rejected_with_the_openai_error_body(rest: httpx.Client) -> None:
    response = rest.post("/v1/embeddings", content=b"{", headers={"content-type": "application/json"})
    assert (response.status_code, set(response.json()["error"])) == (400, {"message", "type", "param", "code"})


def test_models_lists_and_retrieves_the_served_model(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-9")


def test_precision_is_returned_in_a_header(rest: httpx.Client) -> None:
    """The OpenAI body has no field for it."""
    response = rest.post("/v1/embeddings", json={"model": "all-MiniLM-L6-v2", "input": "a"})
    assert response.headers["x-attendant-precision"] == rest.get("/v1/model").json()["precision"]


def test_model_is_optional(rest: httpx.Client, golden: list[float]) -> None:
    """Dify's plugin for text-embeddings-inference sends no model."""
    (item,) = rest.post("/v1/embeddings", json={"input": [GOLDEN]}).raise_for_status().json()["data"]
    np.testing.assert_allclose(item["embedding"], golden, atol=1e-5)


def test_azure_client_names_the_model_in_the_path(server: RunningServer, golden: list[float]) -> None:
    """The query parameter `api-version` has no effect, and is named in a header."""
    with openai.AzureOpenAI(azure_endpoint=server.rest, api_key="none", api_version="2024-10-21") as client:
        response = client.embeddings.with_raw_response.create(model=MODEL, input=GOLDEN)
        with pytest.raises(openai.NotFoundError, match="not found"):
            client.embeddings.create(model="other", input=GOLDEN)
    assert response.headers["x-attendant-ignored"] == "?api-version"
    np.testing.assert_allclose(response.parse().data[0].embedding, golden, atol=1e-6)
