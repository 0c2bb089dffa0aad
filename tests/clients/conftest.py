"""A server for the clients, and the native API's results."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from service.engine.model_loader import LoadedModel
from tests.response_contract import assert_close, to_array
from tests.serving import ServiceThread, load_kind

CheckArrays = Callable[[Any, Any], None]


@pytest.fixture(scope="module")
def service(model: LoadedModel) -> Iterator[ServiceThread]:
    with ServiceThread(model) as running:
        yield running


@pytest.fixture(scope="module")
def rest(service: ServiceThread) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=service.rest, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def check_arrays(rest: httpx.Client) -> CheckArrays:
    """Compare lists of vectors. The last bits of an embedding depend on its batch."""
    tolerance = 1e-5 if rest.get("/v1/model").json()["precision"] == "float32" else 5e-4

    def check(actual: Any, expected: Any) -> None:
        assert len(actual) == len(expected)
        for left, right in zip(actual, expected, strict=True):
            assert_close(to_array(left), to_array(right), tolerance)

    return check


@contextmanager
def serve_kind(kind: str) -> Iterator[tuple[httpx.Client, dict[str, str]]]:
    """Yield a client of the native API of a classifier or retriever, and what programs need to call the server."""
    with ServiceThread(load_kind(kind)) as service, httpx.Client(base_url=service.rest, timeout=60) as rest:
        yield rest, {"rest": service.rest, "grpc": service.grpc, "model": rest.get("/v1/model").json()["name"]}


def native(rest: httpx.Client, inputs: Any, name: str = "pooled", **fields: Any) -> list[Any]:
    """Return a native API output with TEI's default truncation."""
    response = rest.post("/v1/encode", json={"inputs": inputs, "truncation": "right", **fields})
    return [result[name] for result in response.raise_for_status().json()["results"]]
