"""Converts messages of attendant.v1 to operation requests, and responses to messages."""

import re
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import chain
from typing import Any

from attendant_client import types
from attendant_client.pb import encoder_pb2 as pb
from attendant_client.types import AtMost
from attendant_client.wire import (
    ConflictingLayers,
    InvalidEnum,
    dtype_name,
    enum_numbers,
    fields_of,
    from_message,
    item_type,
    write_in_pieces,
)
from google.protobuf.descriptor import Descriptor

from service.errors import ConflictingFields, UnknownValue
from service.operations.encode import PooledResults
from service.operations.inputs import too_many
from service.spelling import Spelling, join
from service.steps import Steps

Message = Any

DTYPE_NUMBERS = enum_numbers(pb.DESCRIPTOR.enum_types_by_name["Dtype"])
PIECE = 64
"""Number of single-vector results written in one step, which takes a tenth of a millisecond."""


def read_request(kind: Any, message: Message, limits: Mapping[str, int]) -> Any:
    """Convert a message to a request. Lists are counted before any item is converted.

    Raises a `ServiceError`.
    """
    check_lists(kind, message, limits)
    try:
        return from_message(kind, message)
    except InvalidEnum as error:
        allowed = join(error.allowed, "or")
        raise UnknownValue("unknown value", f"Use {allowed}.", field=error.field, actual=error.actual) from None
    except ConflictingLayers:
        raise ConflictingFields("set, but layers is not empty", "Send one of them.", field="all_layers") from None


def check_lists(kind: Any, message: Message, limits: Mapping[str, int], path: str = "") -> None:
    """Raise an error for a list over its limit in a message or its items."""
    for name, limit, is_wrapped, item in _lists(kind, message.DESCRIPTOR):
        items = getattr(message, name)
        check_count(limit, len(items.ids if is_wrapped else items), limits, path + name)
        if item is not None:
            spans = sum([len(each.spans) for each in items])
            check_count("spans_per_request", spans, limits, path + name)
            if not (spans or any([each.HasField("token_ids") for each in items])):  # noqa: C419  # twice as fast
                continue
            for index, each in enumerate(items):
                check_lists(item, each, limits, f"{path}{name}[{index}].")


@cache
def _lists(kind: Any, descriptor: Descriptor) -> list[tuple[str, str, bool, Any]]:
    """Return each list field's name and limit, whether a message wraps it, and the type of items that contain lists."""
    table = []
    for field in fields_of(kind):
        limit, target = field.find(AtMost), descriptor.fields_by_name.get(field.name)
        if limit is None or target is None:
            continue
        item = item_type(field.kind)
        nested = item if target.is_repeated and target.message_type and item is types.Input else None
        table.append((field.name, limit.limit, not target.is_repeated, nested))
    return table


def check_count(name: str, actual: int, limits: Mapping[str, int], field: str | None = None) -> None:
    """Raise an error for a list over its limit."""
    if actual > limits[name]:
        raise too_many(field or name, name, actual, limits[name])


async def write_response(response: Any, message: Message) -> Message:
    """Convert a response to a message in short steps."""
    pieces = write_in_pieces(response, message)
    if isinstance(results := getattr(response, "results", None), PooledResults):
        head = write_in_pieces(response, message, without="results")
        pieces = chain(head, _write_pooled(results, message.results))
    async for _ in Steps().each(pieces):
        pass
    return message


def _write_pooled(results: PooledResults, messages: Any) -> Iterator[None]:
    """Append the results slice by slice, and yield after each slice."""
    vectors = results.vectors
    shape, dtype = vectors.shape[1:], DTYPE_NUMBERS[dtype_name(vectors, "ubinary")]
    for start in range(0, len(results), PIECE):
        rows = slice(start, start + PIECE)
        for count, truncated, vector in zip(
            results.token_counts[rows], results.truncated[rows], vectors[rows], strict=True
        ):
            message = messages.add()
            message.token_count = count
            message.truncated = truncated
            tensor = message.pooled
            tensor.shape.extend(shape)
            tensor.dtype = dtype
            tensor.data = vector.tobytes()
        yield


def enum_labels() -> dict[str, dict[str, str]]:
    """Return the labels of the values of each enum, by the names of the enum and of the fields of its type.

    Fields of two requests may have the same name and different enums, as `outputs` has. Where both have a value, the
    label is that of the first one; errors of the other request name the enum, as in `{map_layer_reduce.mean}`.
    """
    by_enum = {
        enum.name: {value: enum.values_by_number[number].name for value, number in enum_numbers(enum).items()}
        for enum in pb.DESCRIPTOR.enum_types_by_name.values()
    }
    labels = {re.sub(r"(?<!^)([A-Z])", r"_\1", name).lower(): values for name, values in by_enum.items()}
    for message in pb.DESCRIPTOR.message_types_by_name.values():
        for field in message.fields:
            if message.name.endswith(("Request", "Options")) and field.enum_type is not None:
                labels[field.name] = by_enum[field.enum_type.name] | labels.get(field.name, {})
    labels["chunks.by"] = labels["by"]
    return labels


PROTO = Spelling(keeps_ids=True, lacks=("encoding_format", "decimals"), values=enum_labels())
"""gRPC's names in errors: enum values have their proto names."""
