"""The context of a call: its deadline, and the metadata of its response."""

import time
from typing import Any

from service.engine.schema.encode import Timing
from service.engine.schema.model import ModelInfo

MODEL_HEADER = "x-attendant-model"

Context = Any
"""grpc.aio.ServicerContext; the package declares no types."""


def deadline_of(context: Context) -> float | None:
    """Return the deadline of the client, a time.monotonic() reading; None if it set none."""
    remaining = context.time_remaining()
    return None if remaining is None else time.monotonic() + remaining


def identity_of(info: ModelInfo) -> str:
    """Return the name and the digest of a model."""
    return f"{info.name}@{info.digest}"


def add_models(context: Context, *identities: str) -> None:
    """Add the models of the response to the trailing metadata."""
    if identities:
        context.set_trailing_metadata((*context.trailing_metadata(), (MODEL_HEADER, ", ".join(identities))))


def add_timing(context: Context, timing: Timing) -> None:
    """Add the duration of each stage to the trailing metadata."""
    context.set_trailing_metadata((*context.trailing_metadata(), ("server-timing", timing.describe())))
