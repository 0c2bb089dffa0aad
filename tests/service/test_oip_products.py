"""The Open Inference Protocol: combinations of tensors and every kind of head, compared with the native API."""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from model.artifact.manifest import POOLINGS
from service.engine.model_loader import LoadedModel
from tests.conftest import EXAMPLES
from tests.labels import CLASSIFIER, CROSS_ENCODER
from tests.manifests import with_manifest, with_prompts
from tests.model.retriever_cases import BGE_M3
from tests.oip_messages import Outputs, Tensor, grpc_outputs, grpc_request, rest_outputs, rest_request, text, token_ids
from tests.operation_requests import SHORT_TEXTS, TEXTS, Body, body, optional
from tests.response_contract import assert_close, assert_finite, to_array
from tests.retrievers import SPLADE
from tests.serving import ServiceThread, load_kind, serve
from tests.stubs import GRPCInferenceServiceStub

MODEL = "all-MiniLM-L6-v2"
PROMPTS = {"query": "find: ", "document": "text: "}
LAYERS = 6
STATUS = {422: 400, 404: 400}
"""Maps the native API's statuses to this protocol's, where they differ."""
GRPC_STATUS = {"INVALID_ARGUMENT": 400, "NOT_FOUND": 400, "RESOURCE_EXHAUSTED": 413, "UNIMPLEMENTED": 501}
"""Maps gRPC codes to HTTP statuses."""
ENCODE_OPTIONS = ("normalize", "dimensions", "prompt_name", "pooling")
POOLED_OPTIONS = ("normalize", "dimensions", "pooling")
ATTEND_OPTIONS = ("kind", "head_reduce", "layers")


@dataclass(frozen=True)
class Client:
    """A running service with all APIs, and the tolerance for its precision."""

    rest: httpx.Client
    rpc: GRPCInferenceServiceStub
    tolerance: float
    model: str = MODEL


@dataclass(frozen=True)
class Result:
    """A request's outputs, or its error's status and message."""

    outputs: Outputs | None
    status: int
    message: str


@pytest.fixture(scope="module", params=["plain", "prompted"])
def client(request: pytest.FixtureRequest, model: LoadedModel) -> Iterator[Client]:
    """Clients for the default model without prompts, and with prompts including a default."""
    if request.param == "prompted":
        model = with_manifest(model, with_prompts(model.artifact.manifest, PROMPTS, "document"))
    options = [("grpc.max_receive_message_length", -1)]
    with (
        ServiceThread(model) as service,
        httpx.Client(base_url=service.rest, timeout=120) as rest,
        grpc.insecure_channel(service.grpc, options=options) as channel,
    ):
        tolerance = 1e-5 if rest.get("/v1/model").json()["precision"] == "float32" else 5e-4
        yield Client(rest, GRPCInferenceServiceStub(channel), tolerance)


ROWS = st.lists(st.lists(st.integers(0, 30_521), min_size=1, max_size=20), min_size=1, max_size=4)
FLAGS = st.sampled_from([None, True, False])
TEXT_LISTS = st.lists(st.one_of(TEXTS, SHORT_TEXTS, SHORT_TEXTS), min_size=1, max_size=4)
PAIRS = st.lists(st.tuples(SHORT_TEXTS, st.one_of(TEXTS, SHORT_TEXTS)), min_size=1, max_size=3)
INPUTS = st.one_of(
    TEXT_LISTS,
    PAIRS,
    ROWS,
    ROWS.map(lambda rows: [[101, *row, 102] for row in rows]),
)
OUTPUTS = st.lists(st.sampled_from(["pooled", "tokens", "token_counts", "attention"]), unique=True, max_size=4)
PARAMETERS = body(
    normalize=optional(st.booleans()),
    dimensions=optional(st.integers(0, 385)),
    truncation=optional(st.sampled_from(["error", "right", "left", "auto"])),
    prompt_name=st.sampled_from([...] * 12 + ["query", "document", "passage"]),
    pooling=optional(st.sampled_from(POOLINGS)),
    kind=st.sampled_from([...] * 8 + ["probs", "scores", "norm", "block_norm", "projection"]),
    head_reduce=st.sampled_from([...] * 8 + ["none", "mean", "max", "sum"]),
    layers=st.sampled_from([...] * 8 + ["all", "-1", "1,-1", "6", "7", "1,1", "0"]),
    priority=optional(st.integers(0, 3)),
    timeout=optional(st.just(60_000_000)),
)
product = settings(
    max_examples=EXAMPLES, deadline=None, derandomize=EXAMPLES <= 300, suppress_health_check=list(HealthCheck)
)


def draw_tensors(data: st.DataObject, inputs: Sequence[Any]) -> list[Tensor]:
    """Return the inputs as tensors with a drawn type and shape."""
    if isinstance(inputs[0], tuple):
        return [Tensor("text", "BYTES", [len(inputs), 2], [item for pair in inputs for item in pair])]
    if isinstance(inputs[0], str):
        tensor = text(*inputs)
        return [dataclasses.replace(tensor, shape=[len(inputs), 1]) if data.draw(st.booleans()) else tensor]
    ids, mask = token_ids(inputs, data.draw(st.sampled_from(["INT64", "INT32"])))
    if len(set(map(len, inputs))) == 1 and data.draw(st.booleans()):
        return [ids]
    if data.draw(st.booleans()):
        mask = Tensor(mask.name, "BOOL", mask.shape, [bool(flag) for flag in mask.items])
    return [ids, mask] if data.draw(st.booleans()) else [mask, ids]


def send_rest(client: Client, data: st.DataObject, tensors: list[Tensor], outputs: list[str], fields: Body) -> Result:
    flags: list[bool | None] = [data.draw(FLAGS) for _ in outputs]
    requested = [
        {"name": name, "parameters": {"binary_data": flag}} if flag is not None else {"name": name}
        for name, flag in zip(outputs, flags, strict=True)
    ]
    default: bool | None = data.draw(FLAGS)
    parameters = fields if default is None else fields | {"binary_data_output": default}
    empty_parameters, empty_outputs = data.draw(st.booleans()), data.draw(st.booleans())
    options: dict[str, Any] = {"parameters": parameters} if parameters or empty_parameters else {}
    if outputs or empty_outputs:
        options["outputs"] = requested
    content, headers = rest_request(
        tensors,
        binary=data.draw(st.booleans()),
        nested=data.draw(st.booleans()),
        coding=data.draw(st.sampled_from([None, "gzip", "deflate"])),
        id="7",
        **options,
    )
    headers["accept-encoding"] = data.draw(st.sampled_from(["identity", "gzip", "deflate", "gzip, deflate"]))
    response = client.rest.post(f"/v2/models/{client.model}/infer", content=content, headers=headers)
    if response.status_code != 200:
        assert response.json().keys() == {"error"}
        assert len(response.content) <= 1024
        return Result(None, response.status_code, response.json()["error"])
    assert b'"id":"7"' in response.content
    return Result(rest_outputs(response), 200, "")


def send_grpc(client: Client, data: st.DataObject, tensors: list[Tensor], outputs: list[str], fields: Body) -> Result:
    raw = data.draw(st.booleans())
    request = grpc_request(client.model, tensors, raw=raw, outputs=outputs, parameters=fields, id="7")
    if data.draw(st.booleans()):
        (answer,) = client.rpc.ModelStreamInfer(iter([request]))
        if answer.error_message:
            return Result(None, 0, answer.error_message)
        response = answer.infer_response
    else:
        try:
            response, call = client.rpc.ModelInfer.with_call(request)
            assert {"x-attendant-model", "server-timing"} <= {key for key, _ in call.trailing_metadata()}
        except grpc.RpcError as error:
            return Result(None, GRPC_STATUS[error.code().name], error.details())
    assert response.id == "7"
    return Result(grpc_outputs(response, raw=raw), 200, "")


@product
@given(data=st.data())
def test_responses_follow_the_contract(client: Client, data: st.DataObject) -> None:
    """Compares both transports with each other and with the native API."""
    inputs, outputs, fields = data.draw(INPUTS), data.draw(OUTPUTS), data.draw(PARAMETERS)
    tensors = draw_tensors(data, inputs)
    rest = send_rest(client, data, tensors, outputs, fields)
    rpc = send_grpc(client, data, tensors, outputs, fields)
    event(f"{outputs} {rest.status}")
    if rest.outputs is None or rpc.outputs is None:
        if not (rest.message or rpc.message).startswith("Response too large"):  # its size depends on the form
            assert rest.message == rpc.message
            check_error(client, rest, inputs, outputs, fields)
        return
    assert list(rest.outputs) == list(rpc.outputs) == (outputs or ["pooled"])
    for name, values in rest.outputs.items():
        assert_close(values.astype(np.float32), rpc.outputs[name].astype(np.float32), client.tolerance)
        assert_finite(values)
    check_encoded(client, rest.outputs, inputs, fields)
    check_attention(client, rest.outputs, inputs, fields)


def native_inputs(inputs: Sequence[Any]) -> list[Any]:
    """Return inputs for the native API, without special tokens at both ends."""
    if isinstance(inputs[0], tuple):
        return [{"text": item, "pair": pair} for item, pair in inputs]
    framed = [not isinstance(item, str) and len(item) > 1 and (item[0], item[-1]) == (101, 102) for item in inputs]
    return [
        item if isinstance(item, str) else {"token_ids": item[1:-1] if cut else item}
        for item, cut in zip(inputs, framed, strict=True)
    ]


def native_encode(client: Client, inputs: Sequence[Any], outputs: Sequence[str], fields: Body) -> httpx.Response:
    options = {name: fields[name] for name in (*ENCODE_OPTIONS, "truncation") if name in fields}
    names = [name for name in ("pooled", "tokens") if name in outputs] or ["pooled"]
    body = {"inputs": native_inputs(inputs), "outputs": names, "encoding_format": "base64"} | options
    return client.rest.post("/v1/encode", json=body)


def native_attend(client: Client, inputs: Sequence[Any], fields: Body) -> httpx.Response:
    options: Body = {name: fields[name] for name in ("kind", "head_reduce", "truncation") if name in fields}
    layers = fields.get("layers", "all")
    if layers != "all":
        options["layers"] = [int(number) for number in layers.split(",")]
    body = {"inputs": native_inputs(inputs), "encoding_format": "base64"} | options
    return client.rest.post("/v1/attend", json=body)


def check_error(client: Client, result: Result, inputs: Any, outputs: list[str], fields: Body) -> None:
    """Check that the request is invalid in this protocol, or that the native API fails with the same status."""
    names = outputs or ["pooled"]
    encodes = bool({"pooled", "tokens"} & set(names)) or "attention" not in names
    unused = (
        *(() if "attention" in names else ATTEND_OPTIONS),
        *(() if "pooled" in names else POOLED_OPTIONS),
        *(() if encodes else ("prompt_name",)),
    )
    if any(name in fields for name in unused):
        expected = {400}
    else:
        responses = [native_encode(client, inputs, names, fields)] if encodes else []
        if "attention" in names:
            responses.append(native_attend(client, inputs, fields))
        expected = {STATUS.get(response.status_code, response.status_code) for response in responses} - {200}
    assert result.status in expected, result.message


def check_encoded(client: Client, outputs: Outputs, inputs: Any, fields: Body) -> None:
    names = ["pooled", "tokens"] if "pooled" in outputs else ["tokens"]
    if not {"pooled", "tokens"} & set(outputs):
        return
    results = native_encode(client, inputs, names, fields).raise_for_status().json()["results"]
    vectors = [to_array(result["token_vectors"]) for result in results]
    if "pooled" in outputs:
        expected = np.stack([to_array(result["pooled"]) for result in results])
        assert_close(outputs["pooled"], expected, client.tolerance)
    if "tokens" in outputs:
        assert outputs["tokens"].shape == (len(inputs), max(map(len, vectors)), 384)
        for row, matrix in zip(outputs["tokens"], vectors, strict=True):
            assert_close(row[: len(matrix)], matrix, client.tolerance)
            assert not row[len(matrix) :].any()
    if "token_counts" in outputs:
        assert outputs["token_counts"].tolist() == [*map(len, vectors)]


def check_attention(client: Client, outputs: Outputs, inputs: Any, fields: Body) -> None:
    if "attention" not in outputs:
        return
    attention = outputs["attention"]
    results = native_attend(client, inputs, fields).raise_for_status().json()["results"]
    layers = fields.get("layers", "all")
    sizes = [len(result["units"]) for result in results]
    longest = max(sizes)
    count = LAYERS if layers == "all" else len(layers.split(","))
    assert attention.shape == (len(inputs), count, len(results[0]["maps"]) // count, longest, longest)
    for blocks, size, result in zip(attention, sizes, results, strict=True):
        maps = blocks.reshape(-1, longest, longest)
        expected = np.stack([to_array(item["matrix"]) for item in result["maps"]])
        assert_close(np.ascontiguousarray(maps[:, :size, :size]), expected, client.tolerance)
        assert not maps[:, size:].any()
        assert not maps[:, :, size:].any()
    if "token_counts" in outputs and not {"pooled", "tokens"} & set(outputs):
        assert outputs["token_counts"].tolist() == sizes


PARAMETER_NAMES = (*ENCODE_OPTIONS, *ATTEND_OPTIONS, "truncation", "timeout", "sequence_id", "binary_data_output", "x")
JUNK: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, 0, -1, 2**63, 2**70, 1.5, "", "text", "BYTES", "x" * 100, [], {}, [[]], [None], [[1, "a"]], [1, "a"],
     [2**40], [-1], [0], [1, 1], [[["a"]]], {"binary_data_size": 4}, {"classification": 1}, ["a"] * 300,
     [{"name": "pooled"}], [{"name": "pooled", "parameters": {"binary_data": 1}}]]
)  # fmt: skip


@product
@given(data=st.data())
def test_invalid_values_are_rejected(client: Client, data: st.DataObject) -> None:
    """Replaces one field of a request with another value, which must be an error in this protocol, or have no
    effect.
    """
    tensor: Body = {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["bank"], "parameters": {}}
    request: Body = {"id": "7", "inputs": [tensor], "outputs": [{"name": "pooled"}], "parameters": {"dimensions": 8}}
    changed = data.draw(st.sampled_from([request, tensor, tensor, request["parameters"], request["outputs"][0]]))
    names = [*changed, "parameters"] if changed is not request["parameters"] else [*PARAMETER_NAMES]
    changed[data.draw(st.sampled_from(sorted(set(names))))] = data.draw(JUNK)
    response = client.rest.post(f"/v2/models/{MODEL}/infer", json=request)
    event(str(response.status_code))
    if response.status_code == 200:
        assert rest_outputs(response)["pooled"].shape[0] == 1
        return
    assert response.status_code in (400, 413, 501, 504), response.text
    assert response.json().keys() == {"error"}
    assert len(response.content) <= 1024


# Open Inference Protocol with models that have heads: outputs have the native API's numbers, over REST and gRPC.

TOLERANCE = 1e-4
ENCODED = {"pooled": "pooled", "sparse_token_ids": "sparse", "sparse_weights": "sparse", "multi_vector": "multi_vector"}
"""The native API's outputs with the values of the protocol's."""
SLOW = (CLASSIFIER, BGE_M3)
HEAD_OUTPUTS = st.lists(st.sampled_from([*ENCODED, "scores", "token_counts"]), unique=True, min_size=1, max_size=4)
HEAD_PARAMETERS = body(
    raw_scores=optional(st.booleans()), truncation=optional(st.sampled_from(["error", "right", "left"]))
)


@pytest.fixture(
    scope="module",
    params=[CROSS_ENCODER, SPLADE, *(pytest.param(kind, marks=pytest.mark.slow) for kind in SLOW)],
)
def head_client(request: pytest.FixtureRequest) -> Iterator[Client]:
    model = load_kind(request.param)
    with (
        ServiceThread(model) as service,
        httpx.Client(base_url=service.rest, timeout=120) as rest,
        grpc.insecure_channel(service.grpc) as channel,
    ):
        name = rest.get("/v1/model").json()["name"]
        yield Client(rest, GRPCInferenceServiceStub(channel), TOLERANCE, name)


@product
@given(data=st.data())
def test_heads_equal_the_native_api(head_client: Client, data: st.DataObject) -> None:
    inputs, outputs = data.draw(st.one_of(TEXT_LISTS, PAIRS)), data.draw(HEAD_OUTPUTS)
    fields, tensors = data.draw(HEAD_PARAMETERS), draw_tensors(data, inputs)
    rest = send_rest(head_client, data, tensors, outputs, fields)
    rpc = send_grpc(head_client, data, tensors, outputs, fields)
    event(f"{outputs} {rest.status}")
    assert (rest.outputs is None, rest.message) == (rpc.outputs is None, rpc.message)
    described = [output["name"] for output in head_client.rest.get(f"/v2/models/{head_client.model}").json()["outputs"]]
    if not set(outputs) <= set(described) or ("raw_scores" in fields and "scores" not in outputs):
        assert rest.status == 400
        return
    natives = native_responses(head_client, inputs, outputs, fields)
    if rest.outputs is None or rpc.outputs is None:
        statuses = {STATUS.get(native.status_code, native.status_code) for native in natives.values()} - {200}
        assert rest.status in statuses, rest.message
        return
    results = {name: native.raise_for_status().json()["results"] for name, native in natives.items()}
    for sent in (rest.outputs, rpc.outputs):
        assert list(sent) == outputs
        check_outputs(head_client, sent, results)


def native_responses(
    head_client: Client, inputs: Sequence[Any], outputs: Sequence[str], fields: Body
) -> dict[str, httpx.Response]:
    """Return the native API's responses by operation."""
    options = {name: fields[name] for name in ("truncation",) if name in fields}
    shared: Body = {"inputs": native_inputs(inputs), **options}
    names = sorted({ENCODED[name] for name in outputs if name in ENCODED})
    responses = {}
    if names or "scores" not in outputs:
        responses["encode"] = head_client.rest.post("/v1/encode", json={**shared, "outputs": names or ["pooled"]})
    if "scores" in outputs:
        raw = fields.get("raw_scores", False)
        responses["classify"] = head_client.rest.post("/v1/classify", json={**shared, "raw_scores": raw})
    return responses


def check_outputs(head_client: Client, sent: Outputs, results: dict[str, list[Any]]) -> None:
    for name, values in sent.items():
        if name == "scores":
            labels = head_client.rest.get("/v1/model").json()["labels"]
            found = [{item["label"]: item["score"] for item in result["labels"]} for result in results["classify"]]
            expected = [[scores[label] for label in labels] for scores in found]
            np.testing.assert_allclose(values, expected, rtol=TOLERANCE, atol=TOLERANCE)
        elif name == "token_counts":
            counted = next(iter(results.values()))
            assert values.tolist() == [result["token_count"] for result in counted]
        elif name == "pooled":
            expected = [result["pooled"] for result in results["encode"]]
            np.testing.assert_allclose(values, expected, rtol=0, atol=TOLERANCE)
        else:
            check_padded(name, values, results["encode"])


def check_padded(name: str, values: Any, results: list[Any]) -> None:
    """Compare each input's values, which zeros follow up to the length of the longest input."""
    if name == "multi_vector":
        rows = [np.array(result["multi_vector"]) for result in results]
    else:
        field = "token_ids" if name == "sparse_token_ids" else "weights"
        rows = [np.array(result["sparse"][field]) for result in results]
    assert values.shape[:2] == (len(rows), max(map(len, rows)))
    for row, expected in zip(values, rows, strict=True):
        np.testing.assert_allclose(row[: len(expected)], expected, rtol=0, atol=TOLERANCE)
        assert not row[len(expected) :].any()


def test_token_counts_beside_scores_exclude_the_prompt() -> None:
    model = load_kind(CROSS_ENCODER)
    model = with_manifest(model, with_prompts(model.artifact.manifest, {"query": "find: "}, "query"))
    with serve(model) as head_client:
        counts = []
        for outputs in (["token_counts"], ["scores", "token_counts"], ["pooled", "scores", "token_counts"]):
            content, headers = rest_request([text("money bank")], outputs=[{"name": name} for name in outputs])
            response = head_client.post("/v2/models/labels/infer", content=content, headers=headers)
            counts.append(rest_outputs(response)["token_counts"].tolist())
    assert counts == [[4]] * 3
