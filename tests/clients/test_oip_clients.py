"""Open Inference Protocol clients from PyPI get the same numbers as the native API.

Each client is installed in its own environment.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from service.engine.model_loader import LoadedModel
from tests.clients.conftest import serve_kind
from tests.clients.environments import ClientEnvironment, run_client
from tests.clients.oip_programs import KSERVE, TRITON_GRPC, TRITON_HTTP, TRITON_PAIRS, TRITON_SPARSE
from tests.labels import CROSS_ENCODER
from tests.response_contract import assert_close, to_array
from tests.retrievers import SPLADE
from tests.serving import ServiceThread

pytestmark = pytest.mark.slow

MODEL = "all-MiniLM-L6-v2"
TEXTS = ["money bank grows", "the river bank, déjà vu", *["word " * 100] * 6]
IDS = [[2769, 2924, 7502, 0], [2314, 2924, 1010, 2003]]
MASK = [[1, 1, 1, 0], [1, 1, 1, 1]]
NOT_FOUND = f'model_name: not found ("x"). This server serves "{MODEL}".'


@dataclass(frozen=True)
class Server:
    """A running service, the native API, and the tolerance for its precision."""

    rest: httpx.Client
    grpc: str
    tolerance: float

    def native(self, inputs: Any, **fields: Any) -> list[Any]:
        response = self.rest.post("/v1/encode", json={"inputs": inputs, **fields})
        return [result["pooled"] for result in response.raise_for_status().json()["results"]]

    def native_ids(self) -> list[Any]:
        rows = zip(IDS, MASK, strict=True)
        return self.native([{"token_ids": ids[: sum(mask)]} for ids, mask in rows])

    def check(self, results: list[Any], expected: Any) -> None:
        assert results
        for result in results:
            assert_close(to_array(result), to_array(expected), self.tolerance)

    def run(self, name: str, code: str, directory: Any) -> Any:
        """Run a client's snippet and compare its vectors, then run further code."""
        inputs = {"texts": TEXTS, "input_ids": IDS, "attention_mask": MASK}
        results = run_client(name, code, directory, self.rest, grpc=self.grpc, model=MODEL, **inputs)
        self.check([results.pop("snippet")], self.native(TEXTS))
        return results


@pytest.fixture(scope="module")
def server(model: LoadedModel) -> Iterator[Server]:
    with ServiceThread(model) as service, httpx.Client(base_url=service.rest, timeout=60) as rest:
        precision = rest.get("/v1/model").json()["precision"]
        yield Server(rest, service.grpc, 1e-5 if precision == "float32" else 5e-4)


def test_tritonclient_http(server: Server, tmp_path: Any) -> None:
    results = server.run("tritonclient", TRITON_HTTP, tmp_path)
    expected = server.native(TEXTS)
    assert len(results["texts"]) == 36
    for name in ("texts", "default", "aio"):
        server.check(results[name], expected)
    assert results["tokens"] == [[8, 102, 384]]
    server.check(results["ids"], server.native_ids())
    server.check([results["options"]], server.native(TEXTS, normalize=False, dimensions=8))
    *ready, unknown, metadata, model, config, index, statistics = results["reads"]
    assert (ready, unknown) == ([True] * 4, False)
    assert metadata == server.rest.get("/v2").json()
    assert model == server.rest.get(f"/v2/models/{MODEL}").json()
    assert config == server.rest.get(f"/v2/models/{MODEL}/config").json()
    assert index == [{"name": MODEL, "version": "1", "state": "READY", "reason": ""}]
    assert statistics["model_stats"][0]["inference_count"] >= 36 * len(TEXTS)
    assert results["errors"] == [
        ["404", NOT_FOUND],
        ["404", NOT_FOUND],
        ["404", 'model_version: not found ("2"). Use "1".'],
        ["400", 'outputs[0].name: unknown output ("x"). Use "pooled", "tokens", "token_counts" or "attention".'],
        ["501", "outputs[0].parameters: classification is not supported. Leave it out."],
        ["400", "parameters.dimensions: out of range (500). Use 1 to 384."],
        ["403", "No admin key is configured. Set ATTENDANT_ADMIN_KEYS_FILE and restart the server."],
    ]


def test_tritonclient_grpc(server: Server, tmp_path: Any) -> None:
    results = server.run("tritonclient", TRITON_GRPC, tmp_path)
    expected = server.native(TEXTS)
    server.check(results["texts"], expected)
    server.check(results["aio"], expected)
    server.check(results["ids"], server.native_ids())
    attention, counts = results["attention"]
    assert counts == [5, 6]
    response = server.rest.post("/v1/attend", json={"inputs": [{"token_ids": IDS[1]}], "layers": [-1]}).json()
    server.check([attention[1][0]], [item["matrix"] for item in response["results"][0]["maps"]])
    assert results["reads"] == [True] * 4 + ["attendant", *[MODEL] * 4]
    dimensions = "parameters.dimensions: out of range (500). Use 1 to 384."
    assert results["stream"] == ["0", "1", "2", dimensions, "4", "5", "6", "7"]
    assert results["errors"] == [
        ["StatusCode.NOT_FOUND", NOT_FOUND],
        ["StatusCode.NOT_FOUND", NOT_FOUND],
        ["StatusCode.INVALID_ARGUMENT", dimensions],
        [
            "StatusCode.PERMISSION_DENIED",
            "No admin key is configured. Set ATTENDANT_ADMIN_KEYS_FILE and restart the server.",
        ],
    ]


@pytest.fixture
def triton(tmp_path: Path) -> ClientEnvironment:
    return ClientEnvironment.create("tritonclient", tmp_path / "tritonclient")


def test_tritonclient_ranks_pairs(triton: ClientEnvironment) -> None:
    query = "money in a bank"
    with serve_kind(CROSS_ENCODER) as (rest, arguments):
        results = triton.call(TRITON_PAIRS, texts=TEXTS, query=query, **arguments)
        ranked = rest.post("/v1/rerank", json={"query": query, "documents": TEXTS, "truncation": "right"}).json()
        pairs = [{"text": query, "pair": text} for text in TEXTS]
        native = rest.post("/v1/classify", json={"inputs": pairs, "truncation": "right"}).json()["results"]
    expected = {result["index"]: result["relevance_score"] for result in ranked["results"]}
    for scores, counts in results:
        np.testing.assert_allclose(scores, [[expected[index]] for index in range(len(TEXTS))], rtol=0, atol=1e-4)
        assert counts == [result["token_count"] for result in native]


def test_tritonclient_gets_sparse_vectors(triton: ClientEnvironment) -> None:
    texts = TEXTS[:2]
    with serve_kind(SPLADE) as (rest, arguments):
        ids, weights = triton.call(TRITON_SPARSE, texts=texts, **arguments)
        results = rest.post("/v1/encode", json={"inputs": texts, "outputs": ["sparse"]}).json()["results"]
    for row, values, result in zip(ids, weights, results, strict=True):
        found = {number: weight for number, weight in zip(row, values, strict=True) if weight}
        expected = dict(zip(result["sparse"]["token_ids"], result["sparse"]["weights"], strict=True))
        assert found == pytest.approx(expected, abs=1e-4)


def test_kserve(server: Server, tmp_path: Any) -> None:
    results = server.run("kserve", KSERVE, tmp_path)
    for api in ("rest", "grpc"):
        server.check(results[api]["texts"], server.native(TEXTS))
        server.check(results[api]["ids"], server.native_ids())
        server.check(results[api]["options"], server.native(TEXTS, normalize=False, dimensions=8))
    assert results["reads"] == [*[True] * 6, False]
    (rest_type, rest_message), (_, parameter_message), grpc_error = results["errors"]
    assert rest_type == "HTTPStatusError"
    assert rest_message.startswith(f"{NOT_FOUND}, '404 Not Found'")
    assert parameter_message.startswith("parameters.x: unknown parameter.")
    assert grpc_error == ["AioRpcError", NOT_FOUND]
