"""Programs for the Open Inference Protocol clients. Each reports its results with `send`."""

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

TRITON_PAIRS = """
import numpy as np
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton

def infer(module, url):
    client = module.InferenceServerClient(url)
    tensor = module.InferInput("text", [len(texts), 2], "BYTES")
    tensor.set_data_from_numpy(np.array([[arguments["query"], text] for text in texts], dtype=object))
    outputs = [module.InferRequestedOutput(name) for name in ("scores", "token_counts")]
    found = client.infer(arguments["model"], [tensor], outputs=outputs, parameters={"truncation": "right"})
    return [found.as_numpy(name) for name in ("scores", "token_counts")]

send([infer(triton, rest.removeprefix("http://")), infer(triton_grpc, grpc_address)])
"""
TRITON_SPARSE = """
import numpy as np
import tritonclient.grpc as triton

client = triton.InferenceServerClient(grpc_address)
tensor = triton.InferInput("text", [len(texts)], "BYTES").set_data_from_numpy(np.array(texts, dtype=object))
names = ("sparse_token_ids", "sparse_weights")
outputs = [triton.InferRequestedOutput(name) for name in names]
found = client.infer(arguments["model"], [tensor], outputs=outputs)
send([found.as_numpy(name) for name in names])
"""
