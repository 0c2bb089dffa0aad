"""Fields that clients of other servers send: ignored and named in a header, or understood by other names."""

import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from service.engine.model_loader import LoadedModel
from tests.serving import ServiceThread

MODEL = "all-MiniLM-L6-v2"
HEADER = "x-attendant-ignored"
TENSOR = {"name": "text", "shape": [1], "datatype": "BYTES", "data": ["a"]}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/embeddings": {"input": "a", "model": MODEL},
    "/embed": {"inputs": "a"},
    "/similarity": {"inputs": {"source_sentence": "a", "sentences": ["b"]}},
    "/tokenize": {"inputs": "a"},
    "/decode": {"ids": [101]},
    "/v2/rerank": {"query": "a", "documents": ["b"]},
    "/v2/embed": {"texts": ["a"], "input_type": "search_query"},
    "/v1/rerank": {"query": "a", "documents": ["b"]},
    "/score": {"text_1": "a", "text_2": "b"},
    "/pooling": {"input": "a"},
    "/infinity/embeddings": {"input": "a"},
    "/infinity/rerank": {"query": "a", "documents": ["b"]},
    f"/v2/models/{MODEL}/infer": {"inputs": [TENSOR]},
}
NATIVE = {"/v1/encode": {"inputs": "a"}, "/v1/attend": {"inputs": "a"}, "/v1/tokenize": {"inputs": "a"}}


@pytest.mark.parametrize("path", BODIES)
def test_unknown_fields_change_nothing_and_are_named(rest: httpx.Client, path: str) -> None:
    expected, extra = rest.post(path, json=BODIES[path]), {"priority": 1, "nested": {"a": [1]}, "user": None}
    assert expected.status_code == 200
    assert HEADER not in expected.headers
    response = rest.post(path, json=extra | BODIES[path])
    assert response.status_code == 200
    assert response.headers[HEADER] == "priority, nested, user"
    changing = {"id", "created", "meta"}
    first, second = (body if isinstance(body := answer.json(), list) else {
        name: value for name, value in body.items() if name not in changing
    } for answer in (expected, response))  # fmt: skip
    assert first == second
    strict = rest.post(path, json=extra | BODIES[path], headers={"x-attendant-strict": "1"})
    assert strict.status_code in (400, 422)
    assert "priority: unknown field. Remove it." in strict.text
    assert rest.post(path, json=BODIES[path], headers={"x-attendant-strict": "1"}).status_code == 200


@pytest.mark.parametrize("path", BODIES)
def test_query_parameters_are_named(rest: httpx.Client, path: str) -> None:
    response = rest.post(path, json=BODIES[path], params={"api-version": "2024-02-01"})
    assert (response.status_code, response.headers[HEADER]) == (200, "?api-version")
    strict = rest.post(path, json=BODIES[path], params={"api-version": "1"}, headers={"x-attendant-strict": "1"})
    assert strict.status_code in (400, 422)
    assert "unknown query parameter" in strict.text


@pytest.mark.parametrize("path", NATIVE)
def test_native_api_is_strict(rest: httpx.Client, path: str) -> None:
    response = rest.post(path, json=NATIVE[path] | {"layer": [1]})
    assert response.status_code == 422
    assert response.json()["error"]["reason"] == "UNKNOWN_FIELD"


def test_fields_of_nested_objects_are_named_with_their_path(rest: httpx.Client) -> None:
    body = {"inputs": {"source_sentence": "a", "sentences": ["b"], "x": 1}, "parameters": {"truncate": True, "y": 1}}
    assert rest.post("/similarity", json=body).headers[HEADER] == "inputs.x, parameters.y"
    body = {"inputs": [TENSOR | {"z": 1}], "outputs": [{"name": "pooled", "w": 1}]}
    assert rest.post(f"/v2/models/{MODEL}/infer", json=body).headers[HEADER] == "inputs[0].z, outputs[0].w"


def test_misspelled_required_field_is_named(rest: httpx.Client) -> None:
    response = rest.post("/v1/embeddings", json={"inputs": "a", "model": MODEL})
    assert response.json()["error"]["message"] == "input: missing. Rename `inputs`."


def test_many_unknown_fields_are_not_compared(rest: httpx.Client) -> None:
    """Comparing 10,000 names with a missing one would take the event loop for a second."""
    names = {f"inpu{number}": 1 for number in range(10_000)}
    durations = []
    for _ in range(3):  # one of them while other processes leave the machine idle
        start = time.monotonic()
        response = rest.post("/v1/embeddings", json=names | {"model": MODEL})
        durations.append(time.monotonic() - start)
        assert response.json()["error"]["message"] == "input: missing. Send it."
    assert min(durations) < 0.5


def test_images_are_not_ignored(rest: httpx.Client) -> None:
    """They would be missing in the response."""
    response = rest.post("/v2/embed", json=BODIES["/v2/embed"] | {"images": ["data:"]})
    assert "images is not supported. Send texts only." in response.text


def test_task_without_a_prompt_is_named(rest: httpx.Client) -> None:
    for extra, named in (
        ({"task": "separation"}, "task"),
        ({"task": "retrieval.query", "input_type": "query", "x": 1}, "x, task"),
        ({"task": "retrieval.query"}, None),
    ):
        response = rest.post("/v1/embeddings", json=BODIES["/v1/embeddings"] | extra)
        assert response.headers.get(HEADER) == named


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(names=st.lists(st.text(max_size=60), min_size=1, max_size=20, unique=True))
def test_any_name_is_safe_in_the_header(rest: httpx.Client, names: list[str]) -> None:
    """At most eight names, in printable ASCII, whatever the client sends."""
    names = [name for name in names if name not in BODIES["/v1/embeddings"] and name not in FIELDS]
    response = rest.post("/v1/embeddings", json=dict.fromkeys(names, 1) | BODIES["/v1/embeddings"])
    assert response.status_code == 200
    header = response.headers.get(HEADER, "")
    listed = header.split(", ") if names else []
    assert len(listed) == min(len(names), 8)
    for name, shown in zip(names, listed, strict=False):
        assert len(shown) <= 40
        assert all(other in (character, "?") for character, other in zip(name, shown, strict=False))


FIELDS = ("encoding_format", "dimensions", "input_type", "truncate")


# The names that clients of Jina and Voyage use at /v1/embeddings and /v1/rerank do what the usual names do.

LONG = "word " * 400
EMBEDDINGS: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    ({"embedding_type": "base64"}, {"encoding_format": "base64"}),
    ({"output_dimension": 8}, {"dimensions": 8}),
    ({"output_dtype": "float", "normalized": True}, {}),
    ({"truncation": True, "input": LONG}, {"truncate": True, "input": LONG}),
    ({"truncation": False, "input": LONG}, {"truncate": False, "input": LONG}),
    ({"output_dimension": 0}, {"dimensions": 0}),
)
RERANK: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    ({"top_k": 1}, {"top_n": 1}),
    ({"top_k": 0}, {"top_n": 0}),
    ({"truncation": True}, {"truncation": "auto"}),
    ({"truncation": False}, {"truncation": "error"}),
)


@pytest.fixture(scope="module")
def client(model: LoadedModel) -> Iterator[httpx.Client]:
    with ServiceThread(model) as service, httpx.Client(base_url=service.rest, timeout=60) as opened:
        yield opened


def answer(client: httpx.Client, path: str, body: dict[str, Any]) -> tuple[int, Any]:
    """Return the status, and the response without the ID of the request."""
    response = client.post(path, json=body)
    assert "x-attendant-ignored" not in response.headers
    document = response.json()
    document.pop("id", None)
    if isinstance(document.get("error"), dict):
        document["error"].pop("request_id", None)
    return response.status_code, document


def assert_same(left: Any, right: Any) -> None:
    """Compare answers; vectors depend slightly on the batch that a request is in."""
    if isinstance(left, dict):
        assert left.keys() == right.keys()
        left, right = list(left.values()), list(right.values())
    if isinstance(left, list | tuple):
        for one, other in zip(left, right, strict=True):
            assert_same(one, other)
    elif isinstance(left, float):
        assert left == pytest.approx(right, abs=1e-2)
    elif not (isinstance(left, str) and len(left) > 500):  # in base64
        assert left == right


@pytest.mark.parametrize(("theirs", "ours"), EMBEDDINGS)
def test_embeddings(client: httpx.Client, theirs: dict[str, Any], ours: dict[str, Any]) -> None:
    base = {"model": "all-MiniLM-L6-v2", "input": ["money bank grows"]}
    assert_same(answer(client, "/v1/embeddings", base | theirs), answer(client, "/v1/embeddings", base | ours))


def test_unnormalized_vectors(client: httpx.Client) -> None:
    body = {"model": "all-MiniLM-L6-v2", "input": "money bank grows"}
    _, document = answer(client, "/v1/embeddings", body | {"normalized": False})
    (native,) = client.post("/v1/encode", json={"inputs": "money bank grows", "normalize": False}).json()["results"]
    assert document["data"][0]["embedding"] == pytest.approx(native["pooled"], abs=1e-3)
    assert sum(value * value for value in native["pooled"]) > 2


@pytest.mark.parametrize("field", ["output_dtype", "embedding_type"])
def test_types_other_than_float_are_errors(client: httpx.Client, field: str) -> None:
    body = {"model": "all-MiniLM-L6-v2", "input": "a", field: "ubinary"}
    status, document = answer(client, "/v1/embeddings", body)
    assert (status, document["error"]["param"], document["error"]["code"]) == (400, field, "unknown_value")


@pytest.mark.parametrize(("theirs", "ours"), RERANK)
def test_rerank(client: httpx.Client, theirs: dict[str, Any], ours: dict[str, Any]) -> None:
    base = {"query": "money", "documents": ["river", "bank", LONG]} if "truncation" in ours else {
        "query": "money", "documents": ["river", "bank"],
    }  # fmt: skip
    assert_same(answer(client, "/v1/rerank", base | theirs), answer(client, "/v1/rerank", base | ours))
