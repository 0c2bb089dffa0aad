"""The OpenAPI document: routes, schemas, examples, and a generated client."""

import contextlib
import http.client
import importlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator

from service.engine.model_loader import LoadedModel
from service.rest.middleware import ROUTES
from tests.conftest import RunningServer
from tests.keys import make_keys
from tests.service.conftest import GOLDEN, open_harness

OPERATIONS = {
    route.operation_id: (route.template, method.lower())
    for (method, _), (_, route) in ROUTES.items()
    if route.is_public
} | {"livez": ("/livez", "get"), "readyz": ("/readyz", "get")}

HEADS = {"tei_embed_sparse", "tei_rerank", "tei_predict"}
"""Operations that need a model head, which the default model lacks."""
CLASSIFY = {
    "classify": 422, "token_classify": 422, "fill_mask": 422, "huggingface_fill_mask": 422,
    "huggingface_token_classification": 422, "vllm_classify": 400, "infinity_classify": 422,
}  # fmt: skip
"""Statuses of operations that need another head, which the default model lacks."""
ADMIN = {"oip_load", "oip_unload"}
"""Operations that need an admin key; the server of these tests has none."""
EMPTY = {"tei_health", "tei_ping"}
"""Operations without a response body."""


@pytest.fixture(scope="module")
def document(rest: httpx.Client) -> dict[str, Any]:
    body: dict[str, Any] = rest.get("/openapi.json").json()
    return body


def validator(document: dict[str, Any], schema: Any) -> Draft202012Validator:
    return Draft202012Validator({**schema, "components": document["components"]})


def test_operations_have_short_ids(document: dict[str, Any]) -> None:
    operations = {
        operation["operationId"]: (path, method)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }
    assert operations == OPERATIONS
    assert HEADS | CLASSIFY.keys() | ADMIN | EMPTY <= operations.keys()


@pytest.mark.parametrize("name", OPERATIONS)
def test_examples_match_their_schemas_and_run(document: dict[str, Any], rest: httpx.Client, name: str) -> None:
    """Sends the example request. The response must match the schema."""
    path, method = OPERATIONS[name]
    operation = document["paths"][path][method]
    body = None
    if "requestBody" in operation:
        content = operation["requestBody"]["content"]["application/json"]
        body = content["example"]
        validator(document, content["schema"]).validate(body)
    concrete = path.replace("{name}", "all-MiniLM-L6-v2").replace("{version}", "1")
    response = rest.request(method, concrete, json=body)
    expected = 424 if name in HEADS else 403 if name in ADMIN else CLASSIFY.get(name, 200)
    assert response.status_code == expected, response.text
    if name in EMPTY:
        assert "content" not in operation["responses"]["200"]
        assert response.content == b""
        return
    described = operation["responses"][str(response.status_code)]["content"]["application/json"]
    validator(document, described["schema"]).validate(response.json())


@pytest.mark.parametrize(
    "name",
    [
        "encode", "attend", "compare", "tokenize", "create_embeddings", "tei_embed", "tei_similarity", "tei_decode",
        "oip_model_infer", "cohere_rerank", "cohere_embed", "vllm_score",
        "vllm_classify", "vllm_pooling", "infinity_embeddings", "infinity_rerank", "infinity_classify",
    ],
)  # fmt: skip
def test_errors_match_their_schemas(document: dict[str, Any], rest: httpx.Client, name: str) -> None:
    path, method = OPERATIONS[name]
    responses = document["paths"][path][method]["responses"]
    for content, status in ((b"{", {400}), (b"{}", {400, 422})):
        concrete = path.replace("{name}", "all-MiniLM-L6-v2")
        response = rest.post(concrete, content=content, headers={"content-type": "application/json"})
        assert response.status_code in status
        described = responses[str(response.status_code)]
        validator(document, described["content"]["application/json"]["schema"]).validate(response.json())
    assert {"401", "413", "415", "429", "503", "504"} <= set(responses)
    assert "Retry-After" in responses["429"]["headers"]


REJECTED_HEADS = {
    400: (("content-type", "application/json"), ("content-type", "text/plain"), ("content-length", "0")),
    431: (("x-large", "a" * 70_000), ("content-length", "0")),
    501: (("transfer-encoding", "gzip"),),
}
"""Headers that are rejected before any route is selected."""


@pytest.mark.parametrize("status", REJECTED_HEADS)
def test_rejected_heads_have_the_error_of_the_api(document: dict[str, Any], rest: httpx.Client, status: int) -> None:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            connection = http.client.HTTPConnection(rest.base_url.host, rest.base_url.port)
            with contextlib.closing(connection):
                connection.putrequest(method.upper(), path.replace("{", "").replace("}", ""))
                for header in REJECTED_HEADS[status]:
                    connection.putheader(*header)
                connection.endheaders()
                response = connection.getresponse()
                found = json.loads(response.read())
            assert response.status == status
            described = operation["responses"].get(str(status))
            if described is None:  # a GET, whose clients send neither of these headers
                assert method == "get"
                continue
            validator(document, described["content"]["application/json"]["schema"]).validate(found)


def test_query_parameters_of_a_get_have_a_described_error(document: dict[str, Any], rest: httpx.Client) -> None:
    for path, methods in document["paths"].items():
        if "get" not in methods or path.startswith("/admin"):
            continue
        response = rest.get(path.replace("{name}", "all-MiniLM-L6-v2").replace("{version}", "1"), params={"x": "1"})
        described = methods["get"]["responses"][str(response.status_code)]
        if response.is_error:
            validator(document, described["content"]["application/json"]["schema"]).validate(response.json())
            assert "Remove it." in response.text


def test_rerank_routes_accept_both_requests(document: dict[str, Any], rest: httpx.Client) -> None:
    requests = ({"query": "a", "documents": ["b"]}, {"query": "a", "texts": ["b"]}, {"query": "a", "documents": []})
    for name in ("rerank", "tei_rerank"):
        path, method = OPERATIONS[name]
        operation = document["paths"][path][method]
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        for request in requests:
            validator(document, schema).validate(request)
            response = rest.post(path, json=request)
            described = operation["responses"][str(response.status_code)]["content"]["application/json"]
            validator(document, described["schema"]).validate(response.json())
        assert list(validator(document, schema).iter_errors({"query": "a"}))


def test_groups_are_described(document: dict[str, Any]) -> None:
    used = {tag for item in document["paths"].values() for operation in item.values() for tag in operation["tags"]}
    assert used == {tag["name"] for tag in document["tags"] if tag["description"].endswith(".")}


RESPONSES = {
    "AttentionMap", "CohereErrorResponse", "ErrorDetail", "TeiInfo", "OipInferResponse", "OipModelResponse",
    "TeiErrorResponse",
}  # fmt: skip


def test_fields_of_requests_are_described(document: dict[str, Any]) -> None:
    """Also in the objects that requests contain, and in the responses whose fields need it most."""
    schemas, named = document["components"]["schemas"], set(RESPONSES)
    text = json.dumps([method.get("requestBody") for path in document["paths"].values() for method in path.values()])
    while new := set(re.findall(r"#/components/schemas/(\w+)", text)) - named:
        named |= new
        text = json.dumps([schemas[name] for name in new])
    assert {"EncodeRequest", "OipInput"} <= named
    for name in named:
        for field, schema in schemas[name].get("properties", {}).items():
            assert "$ref" in schema or schema.get("description"), (name, field)


async def test_timeout_header_is_described_and_keys_only_if_the_server_has_them(
    document: dict[str, Any], model: LoadedModel
) -> None:
    async with open_harness(model, make_keys("a-key")) as harness:
        protected = (await harness.client.get("/openapi.json")).json()
    assert protected["components"]["securitySchemes"]["bearer"] == {"type": "http", "scheme": "bearer"}
    assert protected["paths"]["/v1/encode"]["post"]["security"] == [{"bearer": []}, {"header": []}]
    assert "security" not in protected["paths"]["/livez"]["get"] or not protected["paths"]["/livez"]["get"]["security"]
    assert "securitySchemes" not in document["components"]
    encode = document["paths"]["/v1/encode"]["post"]
    assert "security" not in encode
    assert [parameter["name"] for parameter in encode["parameters"]] == [
        "X-Request-Timeout-Ms",
        "x-request-id",
        "traceparent",
    ]


@pytest.mark.parametrize("name", OPERATIONS)
def test_errors_have_examples_and_headers(document: dict[str, Any], name: str) -> None:
    """Each operation has a summary, and each error an example that matches its schema. FastAPI's own 422 must be
    absent.
    """
    path, method = OPERATIONS[name]
    operation = document["paths"][path][method]
    assert operation["summary"]
    assert "HTTPValidationError" not in str(operation)
    if "401" not in operation["responses"]:  # a probe
        assert name in ("livez", "readyz", "tei_health", "tei_ping", "oip_live", "oip_ready")
        return
    assert {"405", "431"} <= set(operation["responses"])
    for status, described in operation["responses"].items():
        assert "x-request-id" in described["headers"]
        if int(status) >= 400:
            content = described["content"]["application/json"]
            validator(document, content["schema"]).validate(content["example"])


@pytest.mark.parametrize(
    "name",
    [
        "encode",
        "attend",
        "compare",
        "similarity",
        "create_embeddings",
        "tokenize",
        "cohere_rerank",
        "cohere_embed",
        "vllm_score",
        "infinity_embeddings",
    ],
)
def test_described_headers_are_sent(document: dict[str, Any], rest: httpx.Client, name: str) -> None:
    path, method = OPERATIONS[name]
    operation = document["paths"][path][method]
    content = operation["requestBody"]["content"]["application/json"]["example"]
    ignored = {} if path.startswith("/v1/") and path != "/v1/embeddings" else {"unknown": 1}
    assert set(operation["responses"]["200"]["headers"]) <= set(rest.post(path, json=content | ignored).headers)
    rejected = rest.get(path)
    assert {header.lower() for header in operation["responses"]["405"]["headers"]} <= set(rejected.headers)


def test_docs_load_nothing_from_other_origins(rest: httpx.Client) -> None:
    page = rest.get("/docs")
    assert "https://" not in page.text
    assert page.headers["content-security-policy"].startswith("default-src 'none'")
    for path in ("/docs/swagger-ui-bundle.js", "/docs/swagger-ui.css", "/docs/start.js", "/openapi.json"):
        assert rest.get(path).status_code == 200


def test_generated_client_works(
    document: dict[str, Any], server: RunningServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """openapi-python-client must generate the client without warnings, and the client must be able to call the
    server.
    """
    source = tmp_path / "openapi.json"
    source.write_text(json.dumps(document))
    config = tmp_path / "config.yml"
    config.write_text("post_hooks: []\n")
    command = [
        sys.executable, "-m", "openapi_python_client", "generate", "--meta", "none", "--fail-on-warning",
        "--config", str(config), "--path", str(source), "--output-path", str(tmp_path / "generated_client"),
    ]  # fmt: skip
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    monkeypatch.syspath_prepend(tmp_path)
    client_module = importlib.import_module("generated_client")
    encode = importlib.import_module("generated_client.api.native.encode")
    models = importlib.import_module("generated_client.models")
    with client_module.Client(base_url=server.rest) as client:
        response = encode.sync(client=client, body=models.EncodeRequest(inputs=[GOLDEN]))
        assert isinstance(response, models.EncodeResponse)
        assert len(response.results[0].pooled) == 384
        error = encode.sync(client=client, body=models.EncodeRequest(inputs=[""]))
        assert isinstance(error, models.ErrorResponse)
        assert (error.error.reason, error.error.field) == ("EMPTY", "inputs[0]")
