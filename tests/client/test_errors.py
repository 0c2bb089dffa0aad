"""attendant-client errors: the same fields over gRPC and HTTP, and in requests that it has split."""

import asyncio
import copy
import pickle
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from decimal import Decimal
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
from attendant_client import (
    AsyncClient,
    AttendantError,
    ChunkOptions,
    Client,
    EncodeResult,
    Input,
    Occurrence,
    required,
)
from attendant_client.connections import SLACK_S, Address
from attendant_client.requests import CALLS
from attendant_client.responses import merge
from attendant_client.transports import MAX_CONNECTIONS, AsyncHttpTransport, HttpTransport, http_response

from service.rpc.servicer import SERVICE
from tests.client.clients import KINDS, NO_RETRIES, Protocol, SyncCaller, service_url
from tests.conftest import HANG_TIMEOUT_S
from tests.serving import ServiceThread

Call = Callable[[Any], Any]
HUGE = 2**40


@pytest.fixture(params=["grpc", "async grpc"])
def grpc_client(service: ServiceThread, request: pytest.FixtureRequest) -> Iterator[Client]:
    kind, protocol = KINDS[request.param]
    with kind(service_url(service, protocol), retries=NO_RETRIES) as opened:
        yield opened


def catch_error(client: Client, call: Call) -> AttendantError:
    with pytest.raises(AttendantError) as raised:
        call(client)
    return raised.value


def encode(*inputs: Any, **options: Any) -> Call:
    return lambda client: client.encode(inputs, **options)


def attend(**options: Any) -> Call:
    return lambda client: client.attend("a bank", **options)


def compare(*occurrences: Any) -> Call:
    return lambda client: client.compare(occurrences)


def similarity(queries: Any = "a", **options: Any) -> Call:
    return lambda client: client.similarity(queries, ["b"], **options)


def rerank(query: Any = "a", documents: Any = ("b",), **options: Any) -> Call:
    return lambda client: client.rerank(query, documents, **options)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (encode("a", Input("a", token_ids=[2000])), "inputs[1]: text and token_ids are both set. Send one of them."),
        (encode(Input(pair="a", token_ids=[5])), "inputs[0]: pair and token_ids are both set. Send one of them."),
        (
            compare(Occurrence("a b", (0, 1)), Occurrence("a b", (0, 1), word_index=1)),
            "occurrences[1]: span and word_index are both set. Send one of them.",
        ),
    ],
)
def test_contradictory_fields_are_an_error(client: Client, call: Call, message: str) -> None:
    error = catch_error(client, call)
    assert (error.code, error.field, error.message) == ("INVALID_ARGUMENT", message.partition(":")[0], message)


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (encode("a", 5), "inputs[1]"),
        (encode("a", {"text": "a"}), "inputs[1]"),
        (lambda client: client.encode(5), "inputs"),
        (lambda client: client.embed("a. b.", chunks=ChunkOptions()), "chunks"),
        (lambda client: client.encode({"text": "a"}), "inputs"),
        (lambda client: client.encode(np.array("a bank")), "inputs"),
        (encode(Input(5)), "inputs[0].text"),  # type: ignore[arg-type]
        (encode("a", Input(token_ids=[HUGE])), "inputs[1].token_ids"),
        (encode(Input(token_ids=[5, "a"])), "inputs[0].token_ids[1]"),  # type: ignore[list-item]
        (encode(Input(token_ids=5)), "inputs[0].token_ids"),  # type: ignore[arg-type]
        (encode(Input("a", spans=[(0, 1), (0, HUGE)])), "inputs[0].spans[1]"),
        (encode(Input("a", spans=[(0, "a")])), "inputs[0].spans[0][1]"),  # type: ignore[list-item]
        (encode(Input("a", spans=[(0,)])), "inputs[0].spans[0]"),  # type: ignore[list-item]
        (encode(Input("a", spans=[5])), "inputs[0].spans[0]"),  # type: ignore[list-item]
        (encode("a", outputs="tokens"), "outputs"),
        (encode("a", outputs=5), "outputs"),
        (encode("a", outputs=[]), "outputs"),
        (encode("a", layers=[]), "layers"),
        (encode("a", outputs=["pooled", "token"]), "outputs[1]"),
        (encode("a", dimensions=HUGE), "dimensions"),
        (encode("a", dimensions="5"), "dimensions"),
        (encode("a", normalize="yes"), "normalize"),
        (encode("a", normalize=1), "normalize"),
        (encode("a", layers=5), "layers"),
        (encode("a", layers=[1, HUGE]), "layers[1]"),
        (encode("a", layers="last"), "layers"),
        (encode("a", model=5), "model"),
        (encode("a", output=["pooled"]), "output"),
        (attend(heads=["a"]), "heads[0]"),
        (attend(heads=[]), "heads"),
        (attend(rows="a"), "rows"),
        (attend(kind=["probs"]), "kind"),
        (attend(top_p="a"), "top_p"),
        (compare("a", "b"), "occurrences[0]"),
        (compare(*[Occurrence("a b", word_index=-HUGE)] * 2), "occurrences[0].word_index"),
        (compare(*[Occurrence("a b", span=(0, HUGE))] * 2), "occurrences[0].span"),
        (compare(*[Occurrence("a b", span=(0,))] * 2), "occurrences[0].span"),  # type: ignore[arg-type]
        (similarity(["a", 5]), "queries[1]"),
        (similarity(5), "queries"),
        (similarity(explain=True, top_k=-HUGE), "top_k"),
        (rerank(5), "query"),
        (rerank(documents="b"), "documents"),
        (rerank(documents=["b", 5]), "documents[1]"),
        (rerank(documents=["b", {"text": "c"}]), "documents[1]"),
        (rerank(top_n=-HUGE), "top_n"),
        (rerank(effect="occlusion", explain_top="1"), "explain_top"),
        (lambda client: client.classify("a", top_k="1"), "top_k"),
        (lambda client: client.model(""), "model"),
        (lambda client: client.model(".."), "model"),
    ],
)
def test_invalid_value_is_an_error_with_its_field(client: Client, call: Call, field: str) -> None:
    error = catch_error(client, call)
    assert (error.code, error.field) == ("INVALID_ARGUMENT", field)
    assert error.message.startswith(f"{field}: ")


@pytest.mark.parametrize("value", [HUGE, -HUGE])
def test_number_over_32_bits_is_an_error_with_actual_and_limit(grpc_client: Client, value: int) -> None:
    error = catch_error(grpc_client, encode("a", dimensions=value))
    assert (error.actual, error.minimum, error.maximum) == (value, -(2**31), 2**31 - 1)
    assert error.message == f"dimensions: out of range ({value}). Use a 32-bit integer."


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_of_numpy_sets_and_iterators_are_values(service: ServiceThread, kind: str) -> None:
    client_type, protocol = KINDS[kind]
    with client_type(service_url(service, protocol), retries=NO_RETRIES) as client:
        expected = client.encode(Input("a bank", spans=[(2, 6)]), outputs=["pooled", "spans"], dimensions=4)
        spans = (np.array([[2, 6]]), [(np.int64(2), np.int64(6))])
        for given in spans:
            options: Any = {"outputs": {"pooled", "spans"}, "dimensions": np.int32(4)}
            (result,) = client.encode(Input("a bank", spans=given), **options).results  # type: ignore[arg-type]
            np.testing.assert_array_equal(result.pooled, expected.results[0].pooled)
            np.testing.assert_array_equal(result.span_vectors, expected.results[0].span_vectors)
        ids: Any = np.array([2924])
        assert client.encode(Input(token_ids=ids)).results[0].token_count == 3
        assert client.attend("a bank", layers=list(np.arange(1, 3)), top_p=Decimal("0.5")).results
        names: Any = iter(["static"])
        results = client.encode(["a bank"] * 300, outputs=names).results  # in two parts
        assert all(result.static_vectors is not None for result in results)
        error = catch_error(client, attend(top_p=float("nan")))
        assert (error.reason, error.field) == ("OUT_OF_RANGE", "top_p")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("field", "inputs"),
    [("inputs[1]", ["a", "bank\ud800"]), ("inputs[0].pair", [Input("a", pair="\udfff")])],
)
def test_text_with_a_surrogate_is_an_error_without_the_text(
    service: ServiceThread, kind: str, field: str, inputs: list[Any]
) -> None:
    client_type, protocol = KINDS[kind]
    with client_type(service_url(service, protocol), retries=NO_RETRIES) as opened:
        error = catch_error(opened, encode(*inputs))
    assert (error.field, error.message) == (field, f"{field}: not valid Unicode. Remove surrogates.")


@pytest.mark.parametrize(
    ("operation", "name"),
    [
        (operation, field.name)
        for operation in CALLS
        for field in CALLS[operation].request.DESCRIPTOR.fields
        if field.enum_type is not None
    ],
)
def test_unknown_enum_value_is_an_error_with_the_values_of_the_rest_api(
    service: ServiceThread, operation: str, name: str
) -> None:
    value = ["other"] if name == "outputs" else "other"
    arguments: Any = {"similarity": [["a"], ["b"]], "rerank": ["a", ["b"]]}.get(operation, [["a"]])
    errors = []
    for kind, protocol in KINDS.values():
        with kind(service_url(service, protocol)) as client:
            errors.append(catch_error(client, lambda client: getattr(client, operation)(*arguments, **{name: value})))
    assert len({(error.code, error.reason, error.field, error.message) for error in errors}) == 1
    assert "Use " in errors[0].message


def test_actual_is_a_value_of_the_rest_api(client: Client) -> None:
    assert catch_error(client, lambda client: client.classify("a")).actual == "classify"


def test_empty_name_does_not_select_the_default_model(client: Client) -> None:
    assert catch_error(client, encode("a", model="")).field == "model"


def test_enum_labels_of_the_proto_are_accepted(grpc_client: Client) -> None:
    options: Any = {"truncation": "TRUNCATION_RIGHT", "outputs": ["OUTPUT_POOLED", "static"], "dtype": "DTYPE_FLOAT16"}
    (result,) = grpc_client.encode("word " * 300, **options).results
    assert result.truncated
    assert result.pooled is not None
    assert result.static_vectors is not None
    assert result.pooled.dtype == "float16"


@pytest.mark.parametrize(
    ("call", "remedy"),
    [
        (encode("word " * 300), 'Shorten it or set truncation to "right" or chunks.by to "sentence".'),
        (attend(kind="scores", layer_reduce="rollout"), 'Use "none" or "mean".'),
    ],
)
def test_message_of_the_server_has_enum_values_that_the_client_accepts(client: Client, call: Call, remedy: str) -> None:
    assert catch_error(client, call).message.endswith(f" {remedy}")


def call_grpc(respond: Any, call: Callable[[AsyncClient], Awaitable[object]]) -> AttendantError:
    """Return the error of a call to a gRPC server whose GetModel is `respond`."""

    async def serve() -> None:
        server = grpc.aio.server()
        method = grpc.unary_unary_rpc_method_handler(respond)
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE.full_name, {"GetModel": method}),)
        )
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            async with AsyncClient(f"grpc://127.0.0.1:{port}", retries=NO_RETRIES) as client:
                await call(client)
        finally:
            await server.stop(0)

    with pytest.raises(AttendantError) as raised:
        asyncio.run(serve())
    return raised.value


def test_call_cancelled_by_a_stopping_server_is_retryable() -> None:
    async def cancel(request: bytes, context: grpc.aio.ServicerContext) -> None:
        await context.abort(grpc.StatusCode.CANCELLED)

    error = call_grpc(cancel, AsyncClient.model)
    assert (error.code, error.retryable) == ("CANCELLED", True)


def test_call_of_a_client_that_is_closed_is_an_error() -> None:
    """The task that waits for the call is not cancelled."""
    began = asyncio.Event()

    async def wait(request: bytes, context: grpc.aio.ServicerContext) -> None:
        began.set()
        await asyncio.sleep(HANG_TIMEOUT_S)

    async def close(client: AsyncClient) -> None:
        task = asyncio.create_task(client.model())
        await began.wait()
        await client.close()
        await task

    error = call_grpc(wait, close)
    assert (error.code, error.retryable) == ("CANCELLED", False)


@pytest.mark.parametrize(
    ("status", "content"),
    [
        (200, "<html>"),
        (200, "[]"),
        (404, '{"detail": "Not Found"}'),
        (404, '{"error": "a"}'),
        (404, '{"error": {"message": "a", "param": null, "code": null}}'),
        (429, "slow down"),
        (503, '{"error": {"message": "a", "param": null, "code": 503}}'),
    ],
)
def test_response_of_another_server_is_an_error(status: int, content: str) -> None:
    response = httpx.Response(status, headers=[(b"retry-after", b"\xb2")], text=content)
    with pytest.raises(AttendantError) as raised:
        http_response("model", response)
    reason = {200: "UNKNOWN", 404: "NOT_FOUND", 429: "UNAVAILABLE", 503: "UNAVAILABLE"}[status]
    assert (raised.value.reason, raised.value.message) == (reason, f"HTTP status {status}.")
    assert raised.value.retryable == (status in (429, 503))


@pytest.mark.parametrize("content", ['{"results": 5}', '{"results": [{"pooled": {"data": "a"}}]}'])
def test_json_of_another_server_is_an_error(content: str) -> None:
    with pytest.raises(AttendantError, match="UNKNOWN: Not a response of Attendant"):
        http_response("encode", httpx.Response(200, text=content))


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda error: pickle.loads(pickle.dumps(error))])
def test_copy_of_an_error_is_complete(duplicate: Callable[[AttendantError], AttendantError]) -> None:
    """Process pools send errors to another process, and wait forever for an error that cannot be copied."""
    error = AttendantError("NOT_FOUND", "MODEL_NOT_FOUND", "inputs[0]: a", field="inputs[0]", retry_after_s=1.5)
    error.count_from(256)
    copied = duplicate(error)
    assert (str(copied), vars(copied)) == ("MODEL_NOT_FOUND: inputs[256]: a", vars(error))


def test_damaged_response_is_an_error() -> None:
    def respond(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers={"content-encoding": "gzip"}, stream=httpx.ByteStream(b"no gzip"))

    transport = HttpTransport(Address.parse("http://a"), None)
    transport._client = httpx.Client(base_url="http://a", transport=httpx.MockTransport(respond))
    with pytest.raises(AttendantError, match=r"^UNAVAILABLE: http://a/v1/model: "):
        transport.call("model", {}, None)


def test_requests_wait_for_a_connection_of_the_pool() -> None:
    active = most = 0
    full = asyncio.Event()

    async def respond(request: httpx.Request) -> httpx.Response:
        nonlocal active, most
        active += 1
        most = max(active, most)
        if active == MAX_CONNECTIONS:
            asyncio.get_running_loop().call_soon(full.set)  # after requests beyond the limit, if any are sent
        await full.wait()
        active -= 1
        return httpx.Response(200, json={})

    async def call() -> None:
        transport = AsyncHttpTransport(Address.parse("http://a"), None)
        transport._client = httpx.AsyncClient(base_url="http://a", transport=httpx.MockTransport(respond))
        await asyncio.gather(*(transport.call("model", {}, None) for _ in range(250)))
        full.clear()  # the next response never comes
        with pytest.raises(AttendantError, match="DEADLINE_EXCEEDED"):
            await transport.call("model", {}, -SLACK_S)

    asyncio.run(call())
    assert most == MAX_CONNECTIONS


def test_required_returns_a_value_and_raises_for_none() -> None:
    assert required(0.0) == 0.0
    with pytest.raises(LookupError, match="was not requested"):
        required(EncodeResult(token_count=3, truncated=False).words)


@pytest.mark.parametrize("duplicate", [copy.copy, pickle.dumps])
@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_copy_of_a_client_is_an_error(kind: Any, duplicate: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError, match=f"^{kind.__name__}: cannot be copied, because it has connections"):
        duplicate(kind("http://127.0.0.1:9"))


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_async_client_on_a_second_event_loop_is_an_error(service: ServiceThread, protocol: Protocol) -> None:
    async def open_client() -> AsyncClient:
        client = AsyncClient(service_url(service, protocol), retries=NO_RETRIES)
        await client.model()
        return client

    with asyncio.Runner() as first, asyncio.Runner() as second:
        client = first.run(open_client())
        for call in (client.model, client.close):
            with pytest.raises(RuntimeError, match="AsyncClient: used on another event loop"):
                second.run(call())
        assert first.run(client.model()).name
        first.run(client.close())


def test_async_grpc_client_without_an_event_loop_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="AsyncClient: no event loop is running"):
        AsyncClient("grpc://127.0.0.1:9")


# Errors in requests that attendant-client has split.

CASHED = "He cashed a check at the bank."


@pytest.mark.parametrize(
    ("operation", "options"), [("encode", {}), ("embed", {}), ("attend", {"layers": [1]}), ("tokenize", {})]
)
def test_error_in_a_part_counts_inputs_from_the_start_of_the_request(
    client: Client, operation: str, options: Any
) -> None:
    with pytest.raises(AttendantError) as raised:
        getattr(client, operation)([*["a"] * 257, " "], **options)
    error = raised.value
    assert error.field == "inputs[257]"
    assert error.message.startswith("inputs[257]: ")
    assert str(error) == f"{error.reason}: {error.message}"


def test_error_in_a_part_counts_inputs_of_nested_fields(client: Client) -> None:
    inputs = [*[Input("a", spans=[(0, 1)])] * 300, Input(CASHED, spans=[(0, 2), (3, 9), (25, 99)])]
    with pytest.raises(AttendantError) as raised:
        client.encode(inputs, outputs=["spans"])
    assert raised.value.field == "inputs[300].spans[2]"
    assert raised.value.message.startswith("inputs[300].spans[2]: ")


def test_limits_may_change_while_a_client_is_open(client: Client) -> None:
    opened: Any = client._client if isinstance(client, SyncCaller) else client
    info = client.model()
    opened._model = replace(info, limits=replace(info.limits, max_inputs=2**20))
    assert len(client.tokenize(["a"] * 600).results) == 600


def test_parts_after_an_error_are_not_sent(service: ServiceThread, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = []

    async def call() -> None:
        async with AsyncClient(service.rest) as client:
            send = client._call

            async def count(operation: str, body: Any, deadline: float | None) -> Any:
                sent.append(operation)
                return await send(operation, body, deadline)

            monkeypatch.setattr(client, "_call", count)
            with pytest.raises(AttendantError):
                await client.tokenize([" ", *["a"] * 10_000])
            await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()}, return_exceptions=True)

    asyncio.run(call())
    assert len(sent) < 20  # of 40 parts


@pytest.mark.parametrize("field", [None, "dtype", "inputs"])
def test_error_in_a_part_keeps_fields_without_index(field: str | None) -> None:
    error = AttendantError("INVALID_ARGUMENT", "EMPTY", "inputs[1]: empty", field=field)
    error.count_from(5)
    assert (error.field, error.message) == (field, "inputs[1]: empty")


def test_error_in_half_of_a_part_counts_inputs_from_the_start_of_the_request(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: Any = client._client if isinstance(client, SyncCaller) else client
    call = opened._call

    def call_with_few_inputs(operation: str, body: Any, deadline: float | None) -> Any:
        if len(body.get("inputs", ())) > 64:
            raise AttendantError("INVALID_ARGUMENT", "RESPONSE_TOO_LARGE", "Response too large.")
        return call(operation, body, deadline)

    monkeypatch.setattr(opened, "_call", call_with_few_inputs)
    with pytest.raises(AttendantError) as raised:
        client.encode([*["a"] * 259, " ", "a"])
    assert raised.value.field == "inputs[259]"


@pytest.mark.parametrize("operation", ["encode", "attend"])
def test_model_that_changes_between_parts_is_an_error(client: Client, operation: str) -> None:
    """The response would contain vectors of two models."""
    info = client.model()
    part = client._call(operation, {"inputs": ["a"]}, None)
    assert part[1] == f"{info.name}@{info.digest}"
    assert len(merge([part, part, (part[0], None)]).results) == 3
    with pytest.raises(AttendantError, match="MODEL_CHANGED: The model changed between two parts of the call"):
        merge([part, (part[0], "other@sha256:0")])
