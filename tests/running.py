"""Runs operations without an adapter."""

from typing import Any

from service.engine.engine import Engine
from service.operations.inputs import Call
from service.operations.table import OPERATIONS

RUN = {entry.request: entry.run for entry in OPERATIONS.values()}


async def run(engine: Engine, request: Any, **options: Any) -> Any:
    """Return the response of the operation of a request; `options` are fields of `Call`."""
    return await RUN[type(request)](engine, request, Call(**options))
