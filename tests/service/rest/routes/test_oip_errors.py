"""Invalid Open Inference Protocol requests over REST get the protocol's status and error, never a 500."""

import gzip
import json
import time
from typing import Any

import httpx
import pytest

from tests.oip_messages import LENGTH_HEADER, rest_request, text, token_ids
from tests.service.conftest import GOLDEN

INFER = "/v2/models/all-MiniLM-L6-v2/infer"
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
