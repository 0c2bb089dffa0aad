"""The Open Inference Protocol over REST: tensors, names, limits, metadata, statistics and errors."""

import gzip
import json
import socket
import time
import zlib
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from service.engine.model_loader import LoadedModel
from service.engine.scheduling import Cost
from service.errors import Internal
from service.lifecycle import Status
from tests.conftest import RunningServer, wait_until
from tests.keys import make_keys
from tests.manifests import with_manifest, with_prompts
from tests.oip_messages import LENGTH_HEADER, Outputs, Tensor, rest_outputs, rest_request, text, token_ids
from tests.response_contract import assert_close, to_array
from tests.service.conftest import GOLDEN, ServiceHarness, fast_lane, open_harness

MODEL = "all-MiniLM-L6-v2"
INFER = f"/v2/models/{MODEL}/infer"


async def post(
    harness: ServiceHarness, *tensors: Tensor, path: str = INFER, accept: str = "identity", **options: Any
) -> httpx.Response:
    content, headers = rest_request(tensors, **options)
    return await harness.client.post(path, content=content, headers={**headers, "accept-encoding": accept})


async def infer(harness: ServiceHarness, *tensors: Tensor, **options: Any) -> Outputs:
    response = await post(harness, *tensors, **options)
    assert response.status_code == 200, response.text
    return rest_outputs(response)


def names(*outputs: str) -> list[dict[str, Any]]:
    return [{"name": output} for output in outputs]


# The Open Inference Protocol over REST: binary outputs, compression, prompts, names and limits. test_oip_products.py
# compares outputs with the native API.

TOLERANCE = 5e-4


@pytest.fixture
async def prompted(model: LoadedModel) -> AsyncIterator[ServiceHarness]:
    """The default model with prompts, one of them the default."""
    prompts = {"query": "find: ", "document": "some text: "}
    manifest = with_prompts(model.artifact.manifest, prompts, "document")
    async with open_harness(with_manifest(model, manifest)) as opened:
        yield opened


async def native(harness: ServiceHarness, inputs: Any, **fields: Any) -> list[Any]:
    response = await harness.post("/v1/encode", {"inputs": inputs, **fields})
    results: list[Any] = response.raise_for_status().json()["results"]
    return results


async def test_parameters_of_the_protocol_are_accepted(harness: ServiceHarness) -> None:
    expected = (await infer(harness, text(GOLDEN)))["pooled"].tolist()
    for parameters in (
        {"priority": 1, "sequence_id": 0, "sequence_start": False, "sequence_end": False, "timeout": 10_000_000},
        {"sequence_id": "", "timeout": 0, "binary_data_output": False},
        {"binary_data_output": True},
    ):
        assert (await infer(harness, text(GOLDEN), parameters=parameters))["pooled"].tolist() == expected


async def test_outputs_are_binary_if_requested(harness: ServiceHarness) -> None:
    """An output's setting overrides the request's."""
    flags = [{"name": "pooled", "parameters": {"binary_data": False}}, {"name": "tokens"}, {"name": "token_counts"}]
    response = await post(harness, text(GOLDEN), outputs=flags, parameters={"binary_data_output": True}, id="7")
    header = json.loads(response.content[: int(response.headers[LENGTH_HEADER])])
    assert response.headers["content-type"] == "application/octet-stream"
    assert (header["model_name"], header["model_version"], header["id"]) == (MODEL, "1", "7")
    sizes = [output.get("parameters", {}).get("binary_data_size") for output in header["outputs"]]
    assert sizes == [None, 5 * 384 * 4, 8]
    binary = rest_outputs(response)
    for name, values in (await infer(harness, text(GOLDEN), outputs=names(*binary))).items():
        assert values.tolist() == binary[name].tolist()


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
@pytest.mark.parametrize("binary", [True, False])
async def test_responses_are_compressed(harness: ServiceHarness, coding: str, binary: bool) -> None:
    options: dict[str, Any] = {"outputs": names("tokens"), "parameters": {"binary_data_output": binary}}
    content, headers = rest_request([text(*[GOLDEN] * 8)], **options)
    headers["accept-encoding"] = coding
    async with harness.client.stream("POST", INFER, content=content, headers=headers) as response:
        raw = b"".join([part async for part in response.aiter_raw()])
    assert (response.headers["content-encoding"], response.headers["vary"]) == (coding, "accept-encoding")
    plain = await post(harness, text(*[GOLDEN] * 8), **options)
    inflated = gzip.decompress(raw) if coding == "gzip" else zlib.decompress(raw)
    assert inflated == plain.content
    assert response.headers.get(LENGTH_HEADER) == plain.headers.get(LENGTH_HEADER)


async def test_binary_responses_are_not_compressed_by_default(harness: ServiceHarness) -> None:
    """HTTP libraries accept several codings by default, and compression takes longer than inference."""
    options: dict[str, Any] = {"outputs": names("tokens"), "accept": "gzip, deflate"}
    response = await post(harness, text(*[GOLDEN] * 8), parameters={"binary_data_output": True}, **options)
    assert "content-encoding" not in response.headers
    assert (await post(harness, text(*[GOLDEN] * 8), **options)).headers["content-encoding"] == "gzip"


async def test_prompts(prompted: ServiceHarness) -> None:
    """Prompts have no token vectors and do not count. Attention maps never include one."""
    for parameters in ({}, {"prompt_name": "query"}):
        (result,) = await native(prompted, [GOLDEN], outputs=["pooled", "tokens"], **parameters)
        count = len(result["token_vectors"])
        assert count < result["token_count"]
        for outputs in (["token_counts"], ["token_counts", "pooled"], ["tokens", "token_counts", "attention"]):
            found = await infer(prompted, text(GOLDEN), outputs=names(*outputs), parameters=parameters)
            assert found["token_counts"].tolist() == [count]
        assert found["attention"].shape[-1] == count
        pooled = (await infer(prompted, text(GOLDEN), parameters=parameters))["pooled"]
        assert_close(pooled[0], to_array(result["pooled"]), TOLERANCE)


async def test_padded_size_is_limited_before_inference(model: LoadedModel) -> None:
    """Each of the 16 inputs is padded to the length of the longest."""
    texts = [*["a"] * 15, "word " * 100]
    limit = 2**20
    async with open_harness(model, max_response_bytes=limit) as harness:
        await native(harness, texts, outputs=["tokens"], encoding_format="base64")
        batches = harness.batches_run
        for output, maximum in (("tokens", 16 * 102 * 384 * 4), ("attention", 16 * 72 * 102 * 102 * 4)):
            parameters = {"binary_data_output": True}
            response = await post(harness, text(*texts), outputs=names(output), parameters=parameters)
            assert response.status_code == 400
            message = response.json()["error"]
            actual = int(message.partition("(")[2].split()[0])
            assert message.startswith("Response too large (")
            assert maximum <= actual < maximum * 1.1
            assert "encoding_format" not in message
        assert harness.batches_run == batches
        largest = text(*["word " * 39] * 16)
        outputs = await infer(harness, largest, outputs=names("tokens"), parameters={"binary_data_output": True})
        assert outputs["tokens"].nbytes == 16 * 41 * 384 * 4


async def test_names_may_contain_slashes_and_models_have_one_version(model: LoadedModel) -> None:
    async with open_harness(model, model_aliases="team/embedder") as harness:
        for path in ("/v2/models/team/embedder", "/v2/models/team%2Fembedder", "/v2/models/team/embedder/versions/1"):
            assert (await harness.client.get(path)).json()["name"] == MODEL
            for suffix in ("/ready", "/config", "/stats"):
                assert (await harness.client.get(path + suffix)).status_code == 200
            assert (await infer(harness, text(GOLDEN), path=path + "/infer"))["pooled"].shape == (1, 384)
        index = (await harness.client.post("/v2/repository/index")).json()
        assert [entry["name"] for entry in index] == [MODEL, "team/embedder"]
        for path in ("team", "team/embedder/versions/2", "embedder", "team/embedder/versions/"):
            response = await harness.client.get(f"/v2/models/{path}")
            assert (response.status_code, "not found" in response.json()["error"]) == (404, True)
            assert (await post(harness, text(GOLDEN), path=f"/v2/models/{path}/infer")).status_code == 404


async def test_deadlines(harness: ServiceHarness) -> None:
    content, headers = rest_request([text(GOLDEN)])
    response = await harness.client.post(INFER, content=content, headers={**headers, "X-Request-Timeout-Ms": "0"})
    assert response.status_code == 504
    response = await post(harness, text(GOLDEN), parameters={"timeout": 1})
    assert (response.status_code, response.json()["error"].partition(" ")[0]) == (504, "Deadline")
    backlog = fast_lane(harness).admission.backlog
    backlog.add(Cost(480, 40_000), count=600)  # more than the queue may hold
    assert (await post(harness, text(GOLDEN), parameters={"timeout": 10_000_000})).status_code == 429
    backlog.add(Cost(480, 40_000), count=-600)


async def test_internal_errors_reveal_nothing(harness: ServiceHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*arguments: object) -> None:
        raise Internal from RuntimeError("secret")

    monkeypatch.setattr("service.oip.inference.encode", fail)
    response = await post(harness, text(GOLDEN))
    assert (response.status_code, "secret" in response.text) == (500, False)
    assert response.json() == {"error": "Internal error. See the server log for this request ID."}


def test_work_of_a_disconnected_client_is_dropped(server: RunningServer) -> None:
    """Most of the inputs leave the queue without having run."""
    content, headers = rest_request([text(*["word " * 250] * 256)])
    lines = [f"POST {INFER} HTTP/1.1", "host: localhost", f"content-length: {len(content)}"]
    head = "\r\n".join([*lines, *(f"{name}: {value}" for name, value in headers.items()), "", ""])
    address = httpx.URL(server.rest)
    queued = f'attendant_queue_size{{lane="fast",model="{MODEL}"}}'
    discarded = f'attendant_cancelled_inputs_total{{model="{MODEL}",stage="queue"}}'
    before = metric(server, discarded)
    with socket.create_connection((address.host, address.port or 80)) as connection:
        connection.sendall(head.encode() + content)
        wait_until(lambda: metric(server, queued) > 200)
    wait_until(lambda: metric(server, discarded) >= before + 200)
    wait_until(lambda: metric(server, queued) == 0)
    labels = f'api="oip",code="499",endpoint="/v2/models/{{name}}/infer",model="{MODEL}"'
    assert metric(server, f"attendant_requests_total{{{labels}}}") == 1


def metric(server: RunningServer, name: str) -> float:
    """Return the value of a metric with these labels, or 0 if it does not exist."""
    lines = httpx.get(f"{server.admin}/metrics").text.splitlines()
    return sum(float(line.removeprefix(name)) for line in lines if line.startswith(f"{name} "))


# Invalid Open Inference Protocol requests over REST get the protocol's status and error, never a 500.

TENSOR: dict[str, Any] = {"name": "text", "datatype": "BYTES", "shape": [1], "data": [GOLDEN]}
IDS_TENSOR: dict[str, Any] = {"name": "input_ids", "datatype": "INT64", "shape": [1, 2], "data": [2769, 2924]}
MASK: dict[str, Any] = {"name": "attention_mask", "datatype": "INT64", "shape": [1, 2], "data": [1, 1]}


def check(response: httpx.Response, status: int, message: str) -> None:
    assert (response.status_code, response.json()["error"][: len(message)]) == (status, message)
    assert response.json().keys() == {"error"}
    assert len(response.content) <= 1024


def body(*tensors: Any, **fields: Any) -> dict[str, Any]:
    return {"inputs": [*tensors] or [TENSOR], **fields}


def with_parameters(**parameters: Any) -> dict[str, Any]:
    return body(parameters=parameters)


INVALID: dict[str, tuple[Any, str]] = {
    "no inputs": ({}, "inputs: missing."),
    "empty inputs": ({"inputs": []}, "inputs: text and input_ids are both missing."),
    "tensor of a wrong type": ({"inputs": ["a"]}, "inputs[0]: wrong type (string)."),
    "no shape": (body({"name": "text", "datatype": "BYTES", "data": ["a"]}), "inputs[0].shape: missing."),
    "many inputs": (body(*[TENSOR] * 9), "inputs: too many items (9, limit 8)."),
    "many outputs": (body(outputs=[{"name": "pooled"}] * 9), "outputs: too many items (9, limit 8)."),
    "repeated input": (body(TENSOR, TENSOR), "inputs[1].name: sent twice."),
    "unknown input": (body(TENSOR | {"name": "prompt"}), "inputs[0].name: unknown input (\"prompt\")."),
    "both inputs": (body(TENSOR, IDS_TENSOR), "inputs: text and input_ids are both set."),
    "unknown datatype": (body(TENSOR | {"datatype": "STRING"}), "inputs[0].datatype: not supported"),
    "datatype of ids": (body(IDS_TENSOR | {"datatype": "FP32"}), "inputs[0].datatype: not supported"),
    "no data": (body({**TENSOR, "data": None}), "inputs[0]: data and binary_data_size are both missing."),
    "size without header": (body({**TENSOR, "parameters": {"binary_data_size": 1}}), "inputs[0].parameters."),
    "boolean in the shape": (body(TENSOR | {"shape": [True]}), "inputs[0].shape[0]: wrong type (boolean)."),
    "no axes": (body(TENSOR | {"shape": []}), "inputs[0].shape: wrong number of axes (0). Use [N], [N, 1] or [N, 2]."),
    "many axes": (body(TENSOR | {"shape": [1] * 9}), "inputs[0].shape: too many items (9, limit 8)."),
    "negative axis": (body(TENSOR | {"shape": [-1]}), "inputs[0].shape[0]: negative (-1, minimum 0)."),
    "empty axis": (body(TENSOR | {"shape": [0], "data": []}), "inputs[0].shape[0]: empty."),
    "axis over int64": (body(TENSOR | {"shape": [2**63]}), "inputs[0].shape[0]: too many items"),
    "axis over uint64": (body(TENSOR | {"shape": [2**70]}), "inputs[0].shape[0]: out of range (1.18059"),
    "overflowing product": (body(IDS_TENSOR | {"shape": [2**62, 2**62]}), "inputs[0].shape[0]: too many items"),
    "wrong product": (body(TENSOR | {"shape": [2]}), "inputs[0].data: 1 element, but the shape has 2. Correct"),
    "three columns": (body(TENSOR | {"shape": [1, 3]}), "inputs[0].shape[1]: not 1 or 2 (3). Use [N], [N, 1] or"),
    "no second text": (body(TENSOR | {"shape": [1, 2]}), "inputs[0].data: 1 element, but the shape has 2. Correct"),
    "blank second text": (body(TENSOR | {"shape": [1, 2], "data": ["a", " "]}), "text[0][1]: empty or blank."),
    "head": (body(TENSOR, outputs=[{"name": "scores"}]), "outputs[0].name: not supported for this model"),
    "one axis of ids": (body(IDS_TENSOR | {"shape": [2]}), "inputs[0].shape: wrong number of axes (1). Use [N, T]."),
    "ragged rows": (body(IDS_TENSOR | {"shape": [2, 2], "data": [[1, 2], [3]]}), "inputs[0].data[1]: 1 element, but"),
    "number as text": (body(TENSOR | {"data": [1]}), "inputs[0].data: wrong type of an element (number). Send"),
    "string as data": (body(TENSOR | {"data": "a"}), "inputs[0].data: wrong type (string). Send an array."),
    "string as id": (body(IDS_TENSOR | {"data": ["1", 2]}), "inputs[0].data: wrong type of an element (string)."),
    "float as id": (body(IDS_TENSOR | {"data": [1.5, 2]}), "inputs[0].data: wrong type of an element (number)."),
    "id outside of the vocabulary": (body(IDS_TENSOR | {"data": [1, 10**6]}), "input_ids[0]: id outside"),
    "blank text": (body(TENSOR | {"data": ["  "]}), "text[0]: empty or blank."),
    "mask alone": (body(MASK), "inputs: text and input_ids are both missing."),
    "mask with text": (body(TENSOR, MASK), "inputs[1]: attention_mask without input_ids."),
    "left padding": (body(IDS_TENSOR, MASK | {"data": [0, 1]}), "attention_mask[0]: not ones followed by zeros."),
    "empty row": (body(IDS_TENSOR, MASK | {"data": [0, 0]}), "attention_mask[0]: empty."),
    "shape of the mask": (body(IDS_TENSOR, MASK | {"shape": [2, 1]}), "inputs[1].shape: differs"),
    "boolean mask as INT64": (body(IDS_TENSOR, MASK | {"data": [True, True]}), "inputs[1].data: wrong type of an elem"),
    "id of a wrong type": (body(id=7), "id: wrong type (number). Send a string."),
    "unknown parameter": (with_parameters(temperature=1), (
        "parameters.temperature: unknown parameter. Use binary_data_output, dimensions, head_reduce, kind, layers, "
        "normalize, pooling, priority, prompt_name, raw_scores, timeout, triton_enable_empty_final_response, "
        "truncation, or leave"
    )),
    "similar parameter": (
        with_parameters(dimension=8), 'parameters.dimension: unknown parameter. Did you mean "dimensions"? Use binary_'
    ),
    "another name": (with_parameters(**{"a b\n": 1}), "parameters.(another name): unknown parameter."),
    "null parameter": (with_parameters(dimensions=None), "parameters.dimensions: wrong type (null). Send an integer."),
    "boolean parameter": (with_parameters(dimensions=True), "parameters.dimensions: wrong type (boolean)."),
    "nested parameter": (with_parameters(normalize={"a": 1}), "parameters.normalize: wrong type (object). Send true"),
    "string parameter": (
        with_parameters(truncation="middle"),
        'parameters.truncation: unknown value ("middle"). Use "error",',
    ),
    "large dimensions": (with_parameters(dimensions=2**62), "parameters.dimensions: out of range"),
    "negative timeout": (with_parameters(timeout=-1), "parameters.timeout: negative (-1, minimum 0)."),
    "kind alone": (with_parameters(kind="probs"), 'parameters.kind: set, but "attention" is missing from outputs.'),
    "binary_data_output": (with_parameters(binary_data_output=1), "parameters.binary_data_output: wrong type (num"),
    "unknown prompt": (with_parameters(prompt_name="x"), 'parameters.prompt_name: not found ("x").'),
    "unknown output": (body(outputs=[{"name": "logits"}]), 'outputs[0].name: unknown output ("logits").'),
    "repeated output": (body(outputs=[{"name": "pooled"}] * 2), "outputs[1].name: selected twice."),
    "binary_data": (
        body(outputs=[{"name": "pooled", "parameters": {"binary_data": "yes"}}]),
        "outputs[0].parameters.binary_data: wrong type (string). Send true or false.",
    ),
    "unknown parameter of an output": (
        body(outputs=[{"name": "pooled", "parameters": {"x": 1}}]), "outputs[0].parameters.x: unknown parameter."
    ),
    "unknown parameter of an input": (
        body(TENSOR | {"parameters": {"content_type": "str"}}), "inputs[0].parameters.content_type: unknown parameter."
    ),
    "dimensions without pooled": (
        body(outputs=[{"name": "token_counts"}], parameters={"dimensions": 8}),
        'parameters.dimensions: set, but "pooled" is missing from outputs. Add it or leave dimensions out.',
    ),
    "prompt with attention": (
        body(outputs=[{"name": "attention"}], parameters={"prompt_name": "x"}), "parameters.prompt_name: set, but"
    ),
    **{
        f"layers {layers}": (
            body(outputs=[{"name": "attention"}], parameters={"layers": layers}), f"parameters.layers{message}"
        )
        for layers, message in (
            ("", ": not a list of layers."), ("1,,2", ": not a list"), ("x", ": not a list"),
            ("1,1", ": contains the same layer twice."), ("0", "[0]: out of range"),
            ("1," * 6 + "1", ": too many items (7, limit 6)."), ("9" * 100, ": not a list"),
        )
    },
}  # fmt: skip


@pytest.mark.parametrize("name", INVALID)
def test_invalid_content(rest: httpx.Client, name: str) -> None:
    document, message = INVALID[name]
    check(rest.post(INFER, json=document), 400, message)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "Request body is not JSON"), (b"{", "Request body is not JSON"), (b"{} {}", "Request body is not JSON"),
        (b'{"inputs": NaN}', "Request body is not JSON"), (b'{"inputs": 1e999}', "Request body is not JSON"),
        (b'{"parameters": {"dimensions": NaN}}', "Request body is not JSON"),
        (b'{"id": "\\ud800"}', "Request body is not JSON"), (b'{"id": "\xff"}', "Request body is not UTF-8 (byte 8)"),
        (b"\xff\xfe{\x00}\x00", "Request body is not UTF-8"), (b"[" * 1000, "Request body is not JSON"),
        (b'{"id": ' + b"[" * 100_000, "Too many arrays and objects in the request body (100001,"),
        (b'{"parameters": {' + b",".join(b'"%d": 1' % number for number in range(90_000)) + b"}}", "Too many strings"),
    ],
)  # fmt: skip
def test_malformed_json(rest: httpx.Client, content: bytes, message: str) -> None:
    check(rest.post(INFER, content=content), 400, message)


@pytest.mark.parametrize(
    ("length", "message"),
    [
        ("-1", "not a size in bytes."), ("", "not a size in bytes."), ("1.5", "not a size"), ("0x10", "not a size"),
        ("9" * 30, "not a size in bytes"), ("9" * 10, "over the size of the body (9999999999 bytes, limit "),
    ],
)  # fmt: skip
def test_invalid_length_of_the_json(rest: httpx.Client, length: str, message: str) -> None:
    content, headers = rest_request([text(GOLDEN)], binary=True)
    response = rest.post(INFER, content=content, headers={**headers, LENGTH_HEADER: length})
    check(response, 400, f"{LENGTH_HEADER}: {message}")


def test_missing_length_of_the_json(rest: httpx.Client) -> None:
    content, headers = rest_request([text(GOLDEN)], binary=True)
    headers = {name: value for name, value in headers.items() if name != LENGTH_HEADER}
    message = f"{LENGTH_HEADER}: missing, but the body has binary_data_size. Send the size of the JSON."
    check(rest.post(INFER, content=content, headers=headers), 400, message)


def test_wrong_length_of_the_json(rest: httpx.Client) -> None:
    content, headers = rest_request([text(GOLDEN)], binary=True)
    size = int(headers[LENGTH_HEADER])
    for length, message in (
        (size - 1, "Request body is not JSON"), (size + 1, "Request body is not"), (0, "Request body is not JSON"),
        (len(content), "Request body is not"),
    ):  # fmt: skip
        check(rest.post(INFER, content=content, headers={**headers, LENGTH_HEADER: str(length)}), 400, message)
    for changed, message in (
        (content[:-1], "inputs[0].parameters.binary_data_size: over the size of the binary data (20)."),
        (content + b"a", "inputs: 21 bytes of binary data, but the sum of binary_data_size is 20."),
    ):
        check(rest.post(INFER, content=changed, headers=headers), 400, message)


@pytest.mark.parametrize(
    ("size", "message"),
    [(-1, "negative (-1)"), (21, "over the size"), (2**63, "over"), (19, ""), ("20", "wrong type"),
     (20.0, "wrong type"), (True, "wrong type"), (None, "wrong type"), ([], "wrong type")],
)  # fmt: skip
def test_invalid_binary_data_size(rest: httpx.Client, size: Any, message: str) -> None:
    raw = text(GOLDEN).raw
    tensor = {"name": "text", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": size}}
    document = json.dumps(body(tensor)).encode()
    response = rest.post(INFER, content=document + raw, headers={LENGTH_HEADER: str(len(document))})
    field = (
        "inputs: 20 bytes of binary data, but the sum"
        if size == 19
        else f"inputs[0].parameters.binary_data_size: {message}"
    )
    check(response, 400, field)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"\xff\xff\xff\xffabc", "inputs[0]: 7 bytes of binary data, but element 0 ends after 4294967299."),
        (b"\x01\0\0\0\xff", "text[0]: not UTF-8 (byte 0)."),
        (b"\x03\0\0\0\xed\xa0\x80", "text[0]: not UTF-8 (byte 0)."),
        (b"\0\0\0\0", "text[0]: empty or blank."), (bytes(4 * 500_000), "inputs[0]: 2000000 bytes of binary data, but"),
    ],
)  # fmt: skip
def test_invalid_bytes(rest: httpx.Client, raw: bytes, message: str) -> None:
    tensor = {"name": "text", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": len(raw)}}
    document = json.dumps(body(tensor)).encode()
    response = rest.post(INFER, content=document + raw, headers={LENGTH_HEADER: str(len(document))})
    check(response, 400, message)


def test_media_types_and_codings(rest: httpx.Client) -> None:
    content, headers = rest_request([text(GOLDEN)])
    for media_type in ("text/plain", "multipart/form-data", "application/x-protobuf"):
        response = rest.post(INFER, content=content, headers={"content-type": media_type})
        check(response, 415, "Content-Type: not supported. Send application/json or application/octet-stream.")
    for coding in ("br", "gzip, gzip", "zstd"):
        response = rest.post(INFER, content=content, headers={**headers, "content-encoding": coding})
        check(response, 415, "Content-Encoding: not supported. Use gzip or deflate.")
    response = rest.post(INFER, content=content, headers={**headers, "content-encoding": "gzip"})
    check(response, 400, "Content-Encoding: not gzip. Correct it.")
    request = httpx.Request("POST", rest.base_url.join(INFER), content=content)
    assert "content-type" not in request.headers
    assert rest.send(request).status_code == 200


def test_bodies_over_the_limit(rest: httpx.Client) -> None:
    check(rest.post(INFER, content=bytes(2**21 + 1)), 413, "Request body too large (2097153 bytes, limit 2097152).")
    bomb = gzip.compress(bytes(64 * 2**20))
    durations = []
    for _ in range(3):  # one of them while other processes leave the machine idle
        started = time.perf_counter()
        response = rest.post(INFER, content=bomb, headers={"content-encoding": "gzip"})
        durations.append(time.perf_counter() - started)
        check(response, 413, "Decompressed request body too large (limit 2097152 bytes).")
    assert min(durations) < 0.5


def test_large_lists_are_rejected_or_converted_in_bounded_time(rest: httpx.Client) -> None:
    """The largest possible bodies: a million ids in JSON, and a million empty strings."""
    count = 64 * 16380
    ids = b'{"inputs": [{"name": "input_ids", "datatype": "INT64", "shape": [%d, %d], "data": [' + b"1," * (count - 1)
    started = time.perf_counter()
    shapes = {(1, count): "inputs[0].shape[1]: too many items", (64, count // 64): "input_ids[0]: too long"}
    for shape, message in shapes.items():
        response = rest.post(INFER, content=ids % shape + b"1]}]}")
        check(response, 413 if shape[0] == 1 else 400, message)
    raw = bytes(4 * 500_000)
    tensor = {"name": "text", "datatype": "BYTES", "shape": [500_000], "parameters": {"binary_data_size": len(raw)}}
    document = json.dumps(body(tensor)).encode()
    response = rest.post(INFER, content=document + raw, headers={LENGTH_HEADER: str(len(document))})
    check(response, 400, "inputs[0].shape[0]: too many items (500000, limit 256).")
    assert time.perf_counter() - started < 3


def test_unknown_models_are_not_found(rest: httpx.Client) -> None:
    for name in ("x", "../x", "all-MiniLM-L6-v2/x", "a" * 1000, "%00", "%ff", "é"):
        for method, suffix in (("POST", "/infer"), ("GET", ""), ("GET", "/ready"), ("GET", "/config")):
            response = rest.request(method, f"/v2/models/{name}{suffix}", json=body() if method == "POST" else None)
            assert response.status_code == 404
            assert response.json().keys() == {"error"}
            assert len(response.content) <= 1024


def test_unknown_paths_of_models(rest: httpx.Client) -> None:
    model = "/v2/models/all-MiniLM-L6-v2"
    message = "Path not found. The paths under that of a model are infer, ready, config, stats and versions/1."
    for method, suffix in (("GET", "/stat"), ("POST", "/infr"), ("GET", "/versions/1/stat"), ("POST", "/x/infer"),
                           ("POST", "/versions/1/infr"), ("GET", "/x/ready")):  # fmt: skip
        check(rest.request(method, model + suffix, json=body() if method == "POST" else None), 404, message)
    for suffix in ("", "/versions/1", "/stats"):
        check(rest.post(model + suffix, json=body()), 405, "Method not allowed")
    assert rest.post("/v2/models/stats").headers["allow"] == "GET, HEAD, OPTIONS"


def test_lone_surrogate_cannot_be_sent_as_bytes(rest: httpx.Client) -> None:
    content, headers = rest_request(token_ids([[2769]]))
    assert rest.post(INFER, content=content, headers=headers).status_code == 200
    check(rest.post(INFER, content=content.replace(b"input_ids", b"\\ud800")), 400, "Request body is not JSON")


# The Open Inference Protocol over REST: metadata, statistics, health, and methods.


async def test_metadata_and_configuration(harness: ServiceHarness) -> None:
    get = harness.client.get
    assert (await get("/v2")).json()["name"] == "attendant"
    metadata = (await get(f"/v2/models/{MODEL}")).json()
    assert {tensor["name"]: tensor["shape"] for tensor in metadata["outputs"]} == {
        "pooled": [-1, 384], "tokens": [-1, -1, 384], "token_counts": [-1], "attention": [-1] * 5,
    }  # fmt: skip
    config = (await get(f"/v2/models/{MODEL}/config")).json()
    assert [tensor["name"] for tensor in config["input"]] == [tensor["name"] for tensor in metadata["inputs"]]
    assert [tensor["dims"] for tensor in config["output"]] == [tensor["shape"] for tensor in metadata["outputs"]]


async def test_statistics_match_the_metrics(harness: ServiceHarness) -> None:
    async def stats() -> dict[str, Any]:
        (model_stats,) = (await harness.client.get("/v2/models/stats")).json()["model_stats"]
        assert (await harness.client.get(f"/v2/models/{MODEL}/stats")).json()["model_stats"] == [model_stats]
        return dict(model_stats)

    before = await stats()
    assert (before["inference_count"], before["execution_count"]) == (0, 0)
    await infer(harness, text(GOLDEN, "river", "bank"))
    await harness.post("/v1/encode", {"inputs": GOLDEN})
    after = await stats()
    assert after["inference_count"] == 4
    assert after["execution_count"] == harness.batches_run
    stages = after["inference_stats"]
    assert {name: stage["count"] for name, stage in stages.items()} == {
        "success": 2, "fail": 0, "queue": 2, "compute_input": 2, "compute_infer": harness.batches_run,
        "compute_output": 2,
    }  # fmt: skip
    assert stages["compute_infer"]["ns"] == pytest.approx(
        1e9 * harness.sample("attendant_stage_duration_seconds_sum", stage="inference")
    )
    assert "ns" not in stages["success"]


async def test_requests_are_counted_as_this_api(harness: ServiceHarness) -> None:
    await infer(harness, text(GOLDEN))
    await post(harness, text(""))
    labels = {"api": "oip", "endpoint": "/v2/models/{name}/infer", "model": MODEL}
    assert harness.sample("attendant_requests_total", code="200", **labels) == 1
    assert harness.sample("attendant_requests_total", code="400", **labels) == 1
    assert harness.sample("attendant_rejected_requests_total", api="oip", reason="invalid") == 1


async def test_health_requires_no_key_and_is_not_counted(model: LoadedModel) -> None:
    async with open_harness(model, make_keys("secret")) as harness:
        for path, body in (("/v2/health/live", {"live": True}), ("/v2/health/ready", {"ready": True})):
            response = await harness.client.get(path)
            assert (response.status_code, response.json()) == (200, body)
            assert (await harness.client.head(path)).content == b""
        for method, path in (("GET", "/v2"), ("GET", f"/v2/models/{MODEL}"), ("POST", INFER)):
            response = await harness.client.request(method, path)
            assert (response.status_code, response.json().keys()) == (401, {"error"})
            assert response.headers["www-authenticate"] == "Bearer"
        headers = {"authorization": "Bearer secret"}
        assert (await harness.client.get("/v2", headers=headers)).status_code == 200
        assert "health" not in str(list(harness.metrics.requests.collect()))


async def test_starting_draining_and_failed_servers_are_not_ready(harness: ServiceHarness) -> None:
    get = harness.client.get
    harness.lifecycle.start_draining()
    assert (await get("/v2/health/live")).status_code == 200
    response = await get("/v2/health/ready")
    assert (response.status_code, response.json()) == (503, {"ready": False})
    assert (await get(f"/v2/models/{MODEL}/ready")).status_code == 503
    await infer(harness, text(GOLDEN))
    harness.lifecycle.reject_new()
    response = await post(harness, text(GOLDEN))
    assert (response.status_code, response.headers["retry-after"]) == (503, "1")
    assert response.json() == {"error": "Server is shutting down. Retry on another instance."}
    assert (await get("/v2")).status_code == 200
    harness.lifecycle.fail()
    assert harness.lifecycle.status is Status.FAILED
    assert (await get("/v2/health/live")).json() == {"live": False}


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", INFER, "OPTIONS, POST"), ("POST", "/v2", "GET, HEAD, OPTIONS"),
        ("DELETE", f"/v2/models/{MODEL}", "GET, HEAD, OPTIONS"), ("PUT", INFER, "OPTIONS, POST"),
        ("GET", f"/v2/models/{MODEL}/versions/1/infer", "OPTIONS, POST"), ("HEAD", INFER, "OPTIONS, POST"),
        ("GET", "/v2/repository/index", "OPTIONS, POST"), ("POST", "/v2/models/stats", "GET, HEAD, OPTIONS"),
    ],
)  # fmt: skip
async def test_other_methods_are_not_allowed(harness: ServiceHarness, method: str, path: str, allowed: str) -> None:
    response = await harness.client.request(method, path)
    assert (response.status_code, response.headers["allow"]) == (405, allowed)
    assert method == "HEAD" or response.json().keys() == {"error"}
    options = await harness.client.options(path)
    assert (options.status_code, options.headers["allow"]) == (204, allowed)


async def test_models_cannot_be_loaded_without_admin_keys(harness: ServiceHarness) -> None:
    for action in ("load", "unload"):
        response = await harness.client.post(f"/v2/repository/models/{MODEL}/{action}", json={})
        assert response.status_code == 403
        assert response.json() == {
            "error": "No admin key is configured. Set ATTENDANT_ADMIN_KEYS_FILE and restart the server."
        }
