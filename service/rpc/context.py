"""The context of a call: its deadline, and the metadata of its response."""

import time
from typing import Any

from service.engine.schema.encode import Timing

MODEL_HEADER = "x-attendant-model"

Context = Any
"""grpc.aio.ServicerContext; the package declares no types."""


def deadline_of(context: Context) -> float | None:
    """Return the deadline of the client, a time.monotonic() reading; None if it set none."""
    remaining = context.time_remaining()
    return None if remaining is None else time.monotonic() + remaining


def add_model(context: Context, name: str, digest: str) -> None:
    """Add the model to the trailing metadata."""
    context.set_trailing_metadata((*context.trailing_metadata(), (MODEL_HEADER, f"{name}@{digest}")))


def add_timing(context: Context, timing: Timing) -> None:
    """Add the duration of each stage to the trailing metadata."""
    context.set_trailing_metadata((*context.trailing_metadata(), ("server-timing", timing.describe())))
