"""The Open Inference Protocol over REST: binary outputs, compression, prompts, names and limits.

test_oip_products.py compares outputs with the native API.
"""

import gzip
import json
import socket
import zlib
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from service.engine.model_loader import LoadedModel
from service.engine.scheduling import Cost
from service.errors import Internal
from tests.conftest import RunningServer, wait_until
from tests.manifests import with_manifest, with_prompts
from tests.oip_messages import LENGTH_HEADER, rest_outputs, rest_request, text
from tests.response_contract import assert_close, to_array
from tests.service.conftest import GOLDEN, ServiceHarness, fast_lane, open_harness
from tests.service.rest.routes.oip_client import INFER, MODEL, infer, names, post

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
