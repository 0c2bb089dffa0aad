"""Open Inference Protocol requests and responses in each of their forms."""

import gzip
import json
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np
from numpy.typing import NDArray

from service.pb import inference_pb2 as pb

LENGTH_HEADER = "Inference-Header-Content-Length"
DTYPES = {"INT64": "<i8", "INT32": "<i4", "BOOL": "?", "FP32": "<f4"}
CONTENTS = {"BYTES": "bytes_contents", "INT64": "int64_contents", "INT32": "int_contents", "BOOL": "bool_contents"}
CODINGS: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "deflate": zlib.compress}
Outputs = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Tensor:
    """An input tensor; `items` are its elements, flattened."""

    name: str
    datatype: str
    shape: Sequence[int]
    items: Sequence[Any]

    @property
    def raw(self) -> bytes:
        """Elements in the protocol's binary form."""
        if self.datatype != "BYTES":
            return np.asarray(self.items, DTYPES[self.datatype]).tobytes()
        encoded = [item.encode() for item in self.items]
        return b"".join(struct.pack("<I", len(item)) + item for item in encoded)

    @property
    def nested(self) -> Any:
        """Elements as nested lists."""
        return np.array(self.items, dtype=object).reshape(self.shape).tolist()


def text(*texts: str) -> Tensor:
    return Tensor("text", "BYTES", [len(texts)], texts)


def token_ids(rows: Sequence[Sequence[int]], datatype: str = "INT64") -> list[Tensor]:
    """Return ids and a mask; rows are padded on the right."""
    width = max(map(len, rows))
    shape = [len(rows), width]
    ids = [number for row in rows for number in [*row, *[0] * (width - len(row))]]
    mask = [number for row in rows for number in [1] * len(row) + [0] * (width - len(row))]
    return [Tensor("input_ids", datatype, shape, ids), Tensor("attention_mask", datatype, shape, mask)]


def rest_request(
    tensors: Sequence[Tensor], *, binary: bool = False, nested: bool = False, coding: str | None = None, **fields: Any
) -> tuple[bytes, dict[str, str]]:
    """Return the content and headers of a request with the tensors as JSON, or as bytes after the JSON."""
    inputs, data = [], b""
    for tensor in tensors:
        described: dict[str, Any] = {"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.shape}
        if binary:
            data += tensor.raw
            described["parameters"] = {"binary_data_size": len(tensor.raw)}
        else:
            described["data"] = tensor.nested if nested else [*tensor.items]
        inputs.append(described)
    document = json.dumps({"inputs": inputs, **fields}).encode()
    headers = {"content-type": "application/octet-stream" if binary else "application/json"}
    if binary:
        headers[LENGTH_HEADER] = str(len(document))
    content = document + data
    if coding is not None:
        content = CODINGS[coding](content)
        headers["content-encoding"] = coding
    return content, headers


def rest_outputs(response: httpx.Response) -> Outputs:
    """Return a response's arrays after checking their sizes."""
    length = response.headers.get(LENGTH_HEADER)
    content = response.content
    end = len(content) if length is None else int(length)
    outputs = {}
    for output in json.loads(content[:end])["outputs"]:
        dtype = DTYPES[output["datatype"]]
        size = output.get("parameters", {}).get("binary_data_size")
        assert ("data" in output) == (size is None)
        if size is None:
            values = np.array(output["data"], dtype)
        else:
            values = np.frombuffer(content[end : end + size], dtype)
            end += size
        outputs[output["name"]] = values.reshape(output["shape"])
    assert end == len(content)
    return outputs


def parameter(value: Any) -> pb.InferParameter:
    """Return a value the way clients send it."""
    if isinstance(value, bool):
        return pb.InferParameter(bool_param=value)
    if isinstance(value, int):
        return pb.InferParameter(int64_param=value)
    if isinstance(value, float):
        return pb.InferParameter(double_param=value)
    return pb.InferParameter(string_param=value)


def grpc_request(
    model: str,
    tensors: Sequence[Tensor],
    *,
    raw: bool = True,
    outputs: Sequence[str] = (),
    parameters: dict[str, Any] | None = None,
    **fields: Any,
) -> pb.ModelInferRequest:
    """Return a request with raw or typed contents."""
    request = pb.ModelInferRequest(model_name=model, **fields)
    for tensor in tensors:
        added = request.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        if raw:
            request.raw_input_contents.append(tensor.raw)
        else:
            items = [item.encode() if isinstance(item, str) else item for item in tensor.items]
            getattr(added.contents, CONTENTS[tensor.datatype]).extend(items)
    for name in outputs:
        request.outputs.add(name=name)
    for name, value in (parameters or {}).items():
        request.parameters[name].CopyFrom(parameter(value))
    return request


def grpc_outputs(response: pb.ModelInferResponse, *, raw: bool = True) -> Outputs:
    """Return a response's arrays after checking that it has the same form as the request."""
    assert len(response.raw_output_contents) == (len(response.outputs) if raw else 0)
    outputs = {}
    for index, output in enumerate(response.outputs):
        if raw:
            values = np.frombuffer(response.raw_output_contents[index], DTYPES[output.datatype])
        else:
            contents = output.contents.fp32_contents if output.datatype == "FP32" else output.contents.int64_contents
            values = np.array(contents, DTYPES[output.datatype])
        outputs[output.name] = values.reshape(tuple(output.shape))
    return outputs
