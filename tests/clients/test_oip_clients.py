"""Clients of the Open Inference Protocol from PyPI get the numbers of the native API.

Each client is installed into an environment of its own.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from service.engine.model_loader import LoadedModel
from tests.clients.environments import run_client
from tests.response_contract import array_of, assert_close
from tests.serving import ServiceThread

pytestmark = pytest.mark.slow

MODEL = "all-MiniLM-L6-v2"
TEXTS = ["money bank grows", "the river bank, déjà vu", *["word " * 100] * 6]
IDS = [[2769, 2924, 7502, 0], [2314, 2924, 1010, 2003]]
MASK = [[1, 1, 1, 0], [1, 1, 1, 1]]
NOT_FOUND = f'model_name: not found. This server serves "{MODEL}".'

TRITON_HTTP = """
import asyncio, itertools
import numpy as np
import tritonclient.http as triton
import tritonclient.http.aio as triton_aio

url, model, texts = arguments["rest"].removeprefix("http://"), arguments["model"], arguments["texts"]

def text_input(binary):
    tensor = triton.InferInput("text", [len(texts)], "BYTES")
    return tensor.set_data_from_numpy(np.array(texts, dtype=object), binary_data=binary)

def ids_inputs(binary):
    tensors = []
    for name in ("input_ids", "attention_mask"):
        values = np.array(arguments[name], np.int64)
        tensors.append(triton.InferInput(name, values.shape, "INT64").set_data_from_numpy(values, binary_data=binary))
    return tensors

def output(name, binary):
    return triton.InferRequestedOutput(name, binary_data=binary)

client = triton.InferenceServerClient(url)
codings = (None, "gzip", "deflate")
combinations = itertools.product((True, False), (True, False), codings, codings)
results = {
    "texts": [
        client.infer(
            model, [text_input(binary_in)], outputs=[output("pooled", binary_out), output("tokens", not binary_out)],
            request_compression_algorithm=sent, response_compression_algorithm=received, request_id="7",
        )
        for binary_in, binary_out, sent, received in combinations
    ],
    "default": [client.infer(model, [text_input(True)]), client.async_infer(model, [text_input(False)]).get_result()],
    "ids": [client.infer(model, ids_inputs(binary)) for binary in (True, False)],
}
assert all(result.get_response()["id"] == "7" for result in results["texts"])
tokens = {result.as_numpy("tokens").shape for result in results["texts"]}
results = {name: [result.as_numpy("pooled").tolist() for result in found] for name, found in results.items()}
results["tokens"] = [list(shape) for shape in tokens]
results["options"] = client.infer(
    model, [text_input(True)], parameters={"normalize": False, "dimensions": 8}, timeout=30_000_000, priority=1
).as_numpy("pooled").tolist()
results["reads"] = [
    client.is_server_live(), client.is_server_ready(), client.is_model_ready(model), client.is_model_ready(model, "1"),
    client.is_model_ready("x"), client.get_server_metadata(), client.get_model_metadata(model),
    client.get_model_config(model), client.get_model_repository_index(), client.get_inference_statistics(model),
]

async def run():
    async with triton_aio.InferenceServerClient(url) as client:
        found = []
        for sent, received in itertools.product(codings, codings):
            result = await client.infer(
                model, [text_input(True)], request_compression_algorithm=sent, response_compression_algorithm=received
            )
            found.append(result.as_numpy("pooled").tolist())
        assert await client.is_server_live() and await client.is_model_ready(model)
        assert await client.get_model_metadata(model) == results["reads"][6]
        try:
            await client.infer("x", [text_input(True)])
        except triton_aio.InferenceServerException as error:
            return found, [error.status(), error.message()]

results["aio"], aio_error = asyncio.run(run())
results["errors"] = [aio_error]
for call in (
    lambda: client.infer("x", [text_input(True)]),
    lambda: client.infer(model, [text_input(True)], model_version="2"),
    lambda: client.infer(model, [text_input(True)], outputs=[triton.InferRequestedOutput("x")]),
    lambda: client.infer(model, [text_input(True)], outputs=[triton.InferRequestedOutput("pooled", class_count=2)]),
    lambda: client.infer(model, [text_input(True)], parameters={"dimensions": 500}),
    lambda: client.load_model(model),
):
    try:
        call()
    except triton.InferenceServerException as error:
        results["errors"].append([error.status(), error.message()])
send(results | {"snippet": vectors})
"""
TRITON_GRPC = """
import asyncio, queue
import numpy as np
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio

url, model, texts = arguments["grpc"], arguments["model"], arguments["texts"]
tensor = triton.InferInput("text", [len(texts)], "BYTES").set_data_from_numpy(np.array(texts, dtype=object))
ids = [
    triton.InferInput(name, [2, 4], "INT64").set_data_from_numpy(np.array(arguments[name], np.int64))
    for name in ("input_ids", "attention_mask")
]
client = triton.InferenceServerClient(url)
results = {
    "texts": [client.infer(model, [tensor], compression_algorithm=coding) for coding in (None, "gzip", "deflate")],
    "ids": [client.infer(model, ids)],
}
results = {name: [result.as_numpy("pooled").tolist() for result in found] for name, found in results.items()}
attention = client.infer(
    model, ids, outputs=[triton.InferRequestedOutput("attention"), triton.InferRequestedOutput("token_counts")],
    parameters={"layers": "-1", "kind": "probs"}, client_timeout=30,
)
results["attention"] = [attention.as_numpy("attention").tolist(), attention.as_numpy("token_counts").tolist()]
results["reads"] = [
    client.is_server_live(), client.is_server_ready(), client.is_model_ready(model), client.is_model_ready(model, "1"),
    client.get_server_metadata(as_json=True)["name"], client.get_model_metadata(model, as_json=True)["name"],
    client.get_model_config(model, as_json=True)["config"]["name"],
    client.get_model_repository_index(as_json=True)["models"][0]["name"],
    client.get_inference_statistics(model, as_json=True)["model_stats"][0]["name"],
]
results["errors"] = []
for call in (
    lambda: client.infer("x", [tensor]),
    lambda: client.is_model_ready("x"),
    lambda: client.infer(model, [tensor], parameters={"dimensions": 500}),
    lambda: client.unload_model(model),
):
    try:
        call()
    except triton.InferenceServerException as error:
        results["errors"].append([error.status(), error.message()])

received = queue.Queue()
client.start_stream(lambda result, error: received.put((result, error)))
for number in range(8):
    options = {"dimensions": 500 if number == 3 else 8}
    client.async_stream_infer(model, [tensor], request_id=str(number), parameters=options)
results["stream"] = []
for number in range(8):
    result, error = received.get(timeout=60)
    results["stream"].append(error.message() if error else result.get_response().id)
client.stop_stream()

async def run():
    async with triton_aio.InferenceServerClient(url) as client:
        async def requests():
            for number in range(3):
                yield {"model_name": model, "inputs": [tensor], "request_id": str(number)}

        found = [await client.infer(model, [tensor])]
        found += [result async for result, error in client.stream_infer(requests())]
        return [result.as_numpy("pooled").tolist() for result in found]

results["aio"] = asyncio.run(run())
send(results | {"snippet": vectors})
"""
KSERVE = """
import asyncio
import numpy as np
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest, RESTConfig
from kserve.protocol.infer_type import RequestedOutput

url, grpc_url, model, texts = (arguments[name] for name in ("rest", "grpc", "model", "texts"))

def request(binary, outputs=None, parameters=None, ids=False):
    if ids:
        tensors = []
        for name in ("input_ids", "attention_mask"):
            values = np.array(arguments[name], np.int64)
            tensors.append(InferInput(name, list(values.shape), "INT64"))
            tensors[-1].set_data_from_numpy(values, binary_data=binary)
    else:
        tensors = [InferInput("text", [len(texts)], "BYTES")]
        tensors[0].set_data_from_numpy(np.array(texts, dtype=object), binary_data=binary)
    names = None if outputs is None else [RequestedOutput(name, parameters={"binary_data": binary}) for name in outputs]
    return InferRequest(model, tensors, parameters=parameters, request_outputs=names, request_id="7")

async def run():
    rest, rpc = InferenceRESTClient(config=RESTConfig(protocol="v2")), InferenceGRPCClient(grpc_url)

    async def infer_rest(sent):
        return await rest.infer(url, sent, model_name=model)

    results = {}
    for name, infer in (("rest", infer_rest), ("grpc", rpc.infer)):
        found = {"texts": [], "ids": [], "options": []}
        for binary in (True, False):
            found["texts"].append(await infer(request(binary)))
            found["texts"].append(await infer(request(binary, ["pooled", "tokens"])))
            found["ids"].append(await infer(request(binary, ids=True)))
            found["options"].append(await infer(request(binary, parameters={"normalize": False, "dimensions": 8})))
        assert all(response.id == "7" for responses in found.values() for response in responses)
        results[name] = {
            key: [response.get_output_by_name("pooled").as_numpy().tolist() for response in responses]
            for key, responses in found.items()
        }
    results["reads"] = [
        await rest.is_server_live(url), await rest.is_server_ready(url), await rest.is_model_ready(url, model),
        await rpc.is_server_live(), await rpc.is_server_ready(), await rpc.is_model_ready(model),
        await rest.is_model_ready(url, "x"),
    ]
    results["errors"] = []
    for call in (rest.infer(url, request(True), model_name="x"), infer_rest(request(True, parameters={"x": 1}))):
        try:
            await call
        except Exception as error:
            results["errors"].append([type(error).__name__, str(error)])
    unknown = request(True)
    unknown.model_name = "x"
    try:
        await rpc.infer(unknown)
    except Exception as error:
        results["errors"].append([type(error).__name__, error.details()])
    await rest.close()
    await rpc.close()
    return results

send(asyncio.run(run()) | {"snippet": vectors})
"""


@dataclass(frozen=True)
class Server:
    """A running service, the native API, and the tolerance of its precision."""

    rest: httpx.Client
    grpc: str
    tolerance: float

    def native(self, inputs: Any, **fields: Any) -> list[Any]:
        """Return pooled embeddings of the native API."""
        response = self.rest.post("/v1/encode", json={"inputs": inputs, **fields})
        return [result["pooled"] for result in response.raise_for_status().json()["results"]]

    def native_ids(self) -> list[Any]:
        """Return embeddings of the token ids without padding."""
        rows = zip(IDS, MASK, strict=True)
        return self.native([{"token_ids": ids[: sum(mask)]} for ids, mask in rows])

    def check(self, results: list[Any], expected: Any) -> None:
        """Compare each of several results."""
        assert results
        for result in results:
            assert_close(array_of(result), array_of(expected), self.tolerance)

    def run(self, name: str, code: str, directory: Any) -> Any:
        """Run the snippet of a client, whose vectors are compared, and then further code."""
        url = str(self.rest.base_url).rstrip("/")
        results = run_client(
            name, code, directory, rest=url, grpc=self.grpc, model=MODEL, texts=TEXTS, input_ids=IDS,
            attention_mask=MASK,
        )  # fmt: skip
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
        ["404", 'model_version: not found. Use "1".'],
        ["400", 'outputs[0].name: unknown output. Use "pooled", "tokens", "token_counts" or "attention".'],
        ["501", "outputs[0].parameters: classification is not supported. Leave it out."],
        ["400", "parameters.dimensions: out of range (500, limit 384). Use 1 to 384."],
        ["501", "Models cannot be loaded or unloaded. Set ATTENDANT_MODELS and restart the server."],
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
    dimensions = "parameters.dimensions: out of range (500, limit 384). Use 1 to 384."
    assert results["stream"] == ["0", "1", "2", dimensions, "4", "5", "6", "7"]
    assert results["errors"] == [
        ["StatusCode.NOT_FOUND", NOT_FOUND],
        ["StatusCode.NOT_FOUND", NOT_FOUND],
        ["StatusCode.INVALID_ARGUMENT", dimensions],
        [
            "StatusCode.UNIMPLEMENTED",
            "Models cannot be loaded or unloaded. Set ATTENDANT_MODELS and restart the server.",
        ],
    ]


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
