"""Open Inference Protocol with models that have heads: outputs have the native API's numbers, over REST and gRPC."""

from collections.abc import Iterator, Sequence
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from tests.labels import CLASSIFIER, CROSS_ENCODER
from tests.manifests import with_manifest, with_prompts
from tests.model.retriever_cases import BGE_M3
from tests.oip_messages import Outputs, rest_outputs, rest_request, text
from tests.operation_requests import Body, body, optional
from tests.retrievers import SPLADE
from tests.service.test_oip_products import (
    PAIRS,
    STATUS,
    TEXT_LISTS,
    Client,
    draw_tensors,
    native_inputs,
    product,
    send_grpc,
    send_rest,
)
from tests.serving import ServiceThread, load_kind, serve
from tests.stubs import GRPCInferenceServiceStub

TOLERANCE = 1e-4
ENCODED = {"pooled": "pooled", "sparse_token_ids": "sparse", "sparse_weights": "sparse", "multi_vector": "multi_vector"}
"""The native API's outputs with the values of the protocol's."""
SLOW = (CLASSIFIER, BGE_M3)
OUTPUTS = st.lists(st.sampled_from([*ENCODED, "scores", "token_counts"]), unique=True, min_size=1, max_size=4)
PARAMETERS = body(raw_scores=optional(st.booleans()), truncation=optional(st.sampled_from(["error", "right", "left"])))


@pytest.fixture(
    scope="module",
    params=[CROSS_ENCODER, SPLADE, *(pytest.param(kind, marks=pytest.mark.slow) for kind in SLOW)],
)
def client(request: pytest.FixtureRequest) -> Iterator[Client]:
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
def test_heads_equal_the_native_api(client: Client, data: st.DataObject) -> None:
    inputs, outputs = data.draw(st.one_of(TEXT_LISTS, PAIRS)), data.draw(OUTPUTS)
    fields, tensors = data.draw(PARAMETERS), draw_tensors(data, inputs)
    rest = send_rest(client, data, tensors, outputs, fields)
    rpc = send_grpc(client, data, tensors, outputs, fields)
    event(f"{outputs} {rest.status}")
    assert (rest.outputs is None, rest.message) == (rpc.outputs is None, rpc.message)
    described = [output["name"] for output in client.rest.get(f"/v2/models/{client.model}").json()["outputs"]]
    if not set(outputs) <= set(described) or ("raw_scores" in fields and "scores" not in outputs):
        assert rest.status == 400
        return
    natives = native_responses(client, inputs, outputs, fields)
    if rest.outputs is None or rpc.outputs is None:
        statuses = {STATUS.get(native.status_code, native.status_code) for native in natives.values()} - {200}
        assert rest.status in statuses, rest.message
        return
    results = {name: native.raise_for_status().json()["results"] for name, native in natives.items()}
    for sent in (rest.outputs, rpc.outputs):
        assert list(sent) == outputs
        check_outputs(client, sent, results)


def native_responses(
    client: Client, inputs: Sequence[Any], outputs: Sequence[str], fields: Body
) -> dict[str, httpx.Response]:
    """Return the native API's responses by operation."""
    options = {name: fields[name] for name in ("truncation",) if name in fields}
    shared: Body = {"inputs": native_inputs(inputs), **options}
    names = sorted({ENCODED[name] for name in outputs if name in ENCODED})
    responses = {}
    if names or "scores" not in outputs:
        responses["encode"] = client.rest.post("/v1/encode", json={**shared, "outputs": names or ["pooled"]})
    if "scores" in outputs:
        raw = fields.get("raw_scores", False)
        responses["classify"] = client.rest.post("/v1/classify", json={**shared, "raw_scores": raw})
    return responses


def check_outputs(client: Client, sent: Outputs, results: dict[str, list[Any]]) -> None:
    for name, values in sent.items():
        if name == "scores":
            labels = client.rest.get("/v1/model").json()["labels"]
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
    with serve(model) as client:
        counts = []
        for outputs in (["token_counts"], ["scores", "token_counts"], ["pooled", "scores", "token_counts"]):
            content, headers = rest_request([text("money bank")], outputs=[{"name": name} for name in outputs])
            response = client.post("/v2/models/labels/infer", content=content, headers=headers)
            counts.append(rest_outputs(response)["token_counts"].tolist())
    assert counts == [[4]] * 3
