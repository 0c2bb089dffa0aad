"""Errors in requests that attendant-client has split."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from attendant_client import AsyncClient, AttendantError, Client, Input
from attendant_client.responses import merge

from tests.client.clients import SyncCaller
from tests.serving import ServiceThread

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
