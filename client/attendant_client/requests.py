"""Requests: JSON bodies and gRPC messages built from a call's arguments, split to fit the server's limits."""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from decimal import Decimal
from functools import cache, partial
from typing import Any, NamedTuple, get_args

import numpy as np
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from attendant_client import types
from attendant_client.errors import AttendantError, invalid, wrong_type
from attendant_client.pb import encoder_pb2 as pb
from attendant_client.types import Input, Limits, Occurrence
from attendant_client.wire import allowed_values, enum_numbers, fields_of, item_type, present, strip

Body = dict[str, Any]
Inputs = str | Input | Sequence[str | Input]


class InputChunk(NamedTuple):
    """A body with consecutive inputs of a request. `first` is the index of its first input."""

    first: int
    body: Body


FILL = 0.9
"""Fraction of a byte limit to fill, because sizes are estimates."""
INPUT_BYTES = 64
"""Estimated size of an input, not counting its strings."""


def make_body(inputs: Inputs, **options: Any) -> Body:
    """Return a body, leaving out options that are None."""
    items = [inputs] if isinstance(inputs, (str, Input)) else to_list(inputs, "inputs")
    bodies = [_input_body(item, f"inputs[{index}]") for index, item in enumerate(items)]
    return {"inputs": bodies, **{name: _option_body(value) for name, value in present(options).items()}}


def check_embed_options(options: Mapping[str, Any]) -> None:
    """Raise `AttendantError` for chunks, which have several vectors per text."""
    if options.get("chunks") is not None:
        raise invalid("CONFLICTING_FIELDS", "chunks", "not supported by embed, which returns one vector per text",
                      "Use encode.")  # fmt: skip


def make_comparison(occurrences: Iterable[Occurrence], **options: Any) -> Body:
    """Return the body of a comparison, leaving out options that are None."""
    items = []
    for index, occurrence in enumerate(to_list(occurrences, "occurrences")):
        path = f"occurrences[{index}]"
        if not isinstance(occurrence, Occurrence):
            raise wrong_type(path, occurrence, "Send an Occurrence.")
        place: Body = {} if occurrence.span is None else {"span": to_list(occurrence.span, f"{path}.span")}
        if occurrence.word_index is not None:
            place["word_index"] = occurrence.word_index
        items.append({"text": occurrence.text, **place})
    return {"occurrences": items, **present(options)}


def make_similarity(queries: str | Sequence[str], documents: str | Sequence[str], **options: Any) -> Body:
    """Return the body of a similarity request, leaving out options that are None."""
    texts = {"queries": queries, "documents": documents}
    lists = {name: [value] if isinstance(value, str) else to_list(value, name) for name, value in texts.items()}
    return {**lists, **present(options)}


def make_ranking(query: str, documents: Sequence[str], **options: Any) -> Body:
    """Return the body of a rerank request, leaving out options that are None."""
    items = to_list(documents, "documents")
    for index, item in enumerate(items):
        if not isinstance(item, str):  # REST would also accept an object with `text`
            raise wrong_type(f"documents[{index}]", item, "Send a string.")
    return {"query": query, "documents": items, **present(options)}


def make_model_query(name: str | None) -> Body:
    """Return the fields of a model info request; None selects the default model."""
    if name is None:
        return {}
    if not isinstance(name, str):
        raise wrong_type("model", name, "Send a string.")
    if not name:  # REST would list all models, and gRPC would return the default one
        raise invalid("EMPTY", "model", "empty", "Send a name, or None for the default model.")
    if name in (".", ".."):  # clients and proxies remove these parts of a path
        raise invalid("INVALID_FORMAT", "model", "not a name", "Send the name of a model.", actual=name)
    return {"model": name}


def split_body(body: Body, limits: Limits, max_bytes: int) -> Iterator[InputChunk]:
    """Split a body into parts. Each part is within the limits if its inputs are."""
    part: list[Any] = []
    first = size = spans = 0
    for item in body["inputs"]:
        item_size, item_spans = _size(item), len(item.get("spans", ())) if isinstance(item, dict) else 0
        full = (
            len(part) >= limits.max_inputs
            or size + item_size > FILL * max_bytes
            or spans + item_spans > limits.max_spans_per_request
        )
        if part and full:
            yield InputChunk(first, {**body, "inputs": part})
            first += len(part)
            part, size, spans = [], 0, 0
        part.append(item)
        size += item_size
        spans += item_spans
    if part or not body["inputs"]:
        yield InputChunk(first, {**body, "inputs": part})


def is_too_large(error: AttendantError) -> bool:
    """Return whether splitting the request may help: it is too large, or its response is.

    Requests are within the limits of `/v1/model`, but the server may have been restarted with lower ones.
    """
    if error.reason == "TOO_MANY":
        return error.field in ("inputs", "chunks")
    return error.reason in ("REQUEST_TOO_LARGE", "RESPONSE_TOO_LARGE")


def halves(part: InputChunk) -> tuple[InputChunk, InputChunk]:
    first, body = part
    middle = len(body["inputs"]) // 2
    return (
        InputChunk(first, {**body, "inputs": body["inputs"][:middle]}),
        InputChunk(first + middle, {**body, "inputs": body["inputs"][middle:]}),
    )


def to_list(value: Any, path: str) -> list[Any]:
    """Convert items to a list. Raises `AttendantError` for a string, a mapping or a value that is not iterable."""
    if isinstance(value, np.ndarray) and value.ndim > 0:
        return value.tolist()  # type: ignore[no-any-return]
    if isinstance(value, str | Mapping | np.ndarray) or not isinstance(value, Iterable):
        raise wrong_type(path, value, "Send a list.")
    return list(value)


def to_json_value(value: Any, path: str = "") -> Any:
    """Convert a value to JSON types. NumPy numbers and arrays, sets and decimals become numbers and lists.

    Raises `AttendantError` for non-finite numbers, invalid Unicode, and unsupported types.
    """
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    elif isinstance(value, Decimal):
        value = float(value)
    if isinstance(value, str):
        if any("\ud800" <= character <= "\udfff" for character in value):
            raise invalid("INVALID_FORMAT", path, "not valid Unicode", "Remove surrogates.")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise invalid("OUT_OF_RANGE", path, "not a finite number", "Send a finite number.", actual=str(value))
    elif isinstance(value, Mapping):
        return {name: to_json_value(item, f"{path}.{name}" if path else name) for name, item in value.items()}
    elif isinstance(value, list | tuple | set | frozenset):
        return [to_json_value(item, f"{path}[{index}]") for index, item in enumerate(value)]
    elif value is not None and not isinstance(value, int):
        raise wrong_type(path, value, "Send another value.")
    return value


def _input_body(item: str | Input, path: str) -> str | Body:
    if isinstance(item, str):
        return item
    if not isinstance(item, Input):
        raise wrong_type(path, item, "Send a string or an Input.")
    fields: Body = present({"text": item.text, "pair": item.pair})
    if item.token_ids is not None:
        fields["token_ids"] = to_list(item.token_ids, f"{path}.token_ids")
    if spans := to_list(item.spans, f"{path}.spans"):
        fields["spans"] = [to_list(span, f"{path}.spans[{index}]") for index, span in enumerate(spans)]
    return fields


def _option_body(value: Any) -> Any:
    """Convert an option to JSON. Objects such as `ChunkOptions` omit fields that are None."""
    return present(asdict(value)) if is_dataclass(value) and not isinstance(value, type) else value


def _size(item: str | Body) -> int:
    return INPUT_BYTES + len(json.dumps(item, default=to_json_value))


class Call(NamedTuple):
    """An operation's REST path, RPC, request message, and response type."""

    path: str
    method: str
    request: Any
    response: Any


def _call(operation: str) -> Call:
    name = operation.title().replace("_", "")
    request, response = getattr(pb, f"{name}Request"), getattr(types, f"{name}Response")
    return Call(f"/v1/{operation.replace('_', '-')}", name, request, response)


CALLS = {operation: _call(operation) for operation in get_args(types.Operation)} | {
    "model": Call("/v1/model", "GetModel", pb.GetModelRequest, types.ModelInfo)
}
OPERATIONS: dict[type, str] = {call.response: operation for operation, call in CALLS.items()}
"""The operation by the type of its response."""
PROMPTS = ("prompt", "query_prompt", "document_prompt")
"""Prompt fields, each in a oneof with the corresponding prompt name. Setting one field of a oneof clears the other."""
SELECTIONS = ("model", "outputs", "layers", "heads", "rows", "labels", "targets")
"""Fields that must not be empty. REST rejects an empty value; in a message, it would select the default."""
REMEDIES = {
    FieldDescriptor.CPPTYPE_BOOL: "Send true or false.",
    FieldDescriptor.CPPTYPE_DOUBLE: "Send a number.",
    FieldDescriptor.CPPTYPE_INT32: "Send an integer.",
    FieldDescriptor.CPPTYPE_STRING: "Send a string.",
}
INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1


def to_message(operation: str, body: Body) -> Any:
    """Return the request message for a body; raises `AttendantError` for values that do not fit into the message."""
    for prompt in PROMPTS:
        if prompt in body and f"{prompt}_name" in body:
            raise invalid("CONFLICTING_FIELDS", f"{prompt}_name", f"set together with {prompt}", "Send one of them.")
    message = CALLS[operation].request()
    for name, value in body.items():
        if name == "inputs":
            for index, item in enumerate(value):
                _set_input(message.inputs.add(), item, f"inputs[{index}]")
        elif name == "occurrences":
            for index, item in enumerate(value):
                _set_occurrence(message.occurrences.add(), item, f"occurrences[{index}]")
        else:
            _set_option(message, operation, name, value)
    return message


def _set_option(message: Any, operation: str, name: str, value: Any) -> None:
    if name in ("layers", "heads", "rows") and isinstance(value, str):
        if value != "all":
            raise invalid("UNKNOWN_VALUE", name, "unknown value", 'Use "all".', actual=value[:64])
        if operation in ("encode", "fill_mask"):
            message.all_layers = True
    else:
        _set_value(message, name, value)
        if name in SELECTIONS and not getattr(message, name) and (operation, name) != ("attend", "outputs"):
            raise invalid("EMPTY", name, "empty", "Leave it out or name at least one.")


def _set_value(message: Any, name: str, value: Any, path: str = "") -> None:
    """Set a field of the message at `path`: an object, an enum, a scalar, or a list of them."""
    target = message.DESCRIPTOR.fields_by_name.get(name)
    if target is not None and target.message_type is not None:
        if not isinstance(value, Mapping):
            raise wrong_type(path + name, value, "Send an object.")
        part = getattr(message, name)
        part.SetInParent()
        for inner, item in value.items():
            if item is not None:
                _set_value(part, str(inner), item, f"{path}{name}.")
    elif labels := _enum_labels(message.DESCRIPTOR, name):
        _set_enum(message, name, value, labels, path + name)
    else:
        _set_field(message, name, value, path + name)


@cache
def _enum_labels(message: Descriptor, name: str) -> dict[str, str]:
    """Map each REST value of an enum field to its proto label; empty if the field is not an enum."""
    target = message.fields_by_name.get(name)
    if target is None or target.enum_type is None:
        return {}
    (field,) = (field for field in fields_of(getattr(types, message.name)) if field.name == name)
    labels = {number: value.name for value in target.enum_type.values for number in (value.number,)}
    numbers = enum_numbers(target.enum_type)
    return {value: labels[numbers[value]] for value in allowed_values(strip(item_type(field.kind) or field.kind)[0])}


def _set_enum(message: Any, name: str, value: Any, labels: dict[str, str], field: str) -> None:
    """Set an enum or a list of enums from REST values or proto labels."""

    def label(item: Any, path: str) -> str:
        if isinstance(item, str) and (item in labels or item in labels.values()):
            return labels.get(item, item)
        *values, last = (f'"{value}"' for value in labels)
        remedy = f"Use {', '.join(values)} or {last}."
        if not isinstance(item, str):
            raise wrong_type(path, item, remedy)
        raise invalid("UNKNOWN_VALUE", path, "unknown value", remedy, actual=item[:64])

    if message.DESCRIPTOR.fields_by_name[name].is_repeated:
        items = to_list(value, field)
        getattr(message, name).extend(label(item, f"{field}[{index}]") for index, item in enumerate(items))
    else:
        setattr(message, name, label(value, field))


def _set_input(message: pb.Input, item: str | Body, path: str) -> None:
    if isinstance(item, str):
        _set_field(message, "text", item, path)
        return
    if "token_ids" in item:
        for name in ("text", "pair"):
            if name in item:
                raise invalid("CONFLICTING_FIELDS", path, f"{name} and token_ids are both set", "Send one of them.")
        message.token_ids.SetInParent()
        _set_field(message.token_ids, "ids", item["token_ids"], f"{path}.token_ids", f"{path}.token_ids")
    for name in ("text", "pair"):
        if name in item:
            _set_field(message, name, item[name], f"{path}.{name}")
    for index, span in enumerate(item.get("spans", ())):
        _set_span(message.spans.add(), span, f"{path}.spans[{index}]")


def _set_occurrence(message: pb.Occurrence, item: Body, path: str) -> None:
    if "span" in item and "word_index" in item:
        raise invalid("CONFLICTING_FIELDS", path, "span and word_index are both set", "Send one of them.")
    for name, value in item.items():
        if name == "span":
            _set_span(message.span, value, f"{path}.span")
        else:
            _set_field(message, name, value, f"{path}.{name}")


def _set_span(message: pb.Span, span: list[Any], path: str) -> None:
    if len(span) != 2:
        raise invalid(
            "WRONG_SHAPE", path, "wrong number of items", "Send [start, end].", actual=len(span), minimum=2, maximum=2
        )
    message.SetInParent()
    for index, name in enumerate(("start", "end")):
        _set_field(message, name, span[index], f"{path}[{index}]", path)


def _set_field(message: Any, name: str, value: Any, path: str, range_path: str | None = None) -> None:
    """Set a scalar or a list of scalars; `range_path` is the field named in range errors, by default `path`."""
    field = message.DESCRIPTOR.fields_by_name.get(name)
    if field is None:
        raise invalid("UNKNOWN_FIELD", path, "unknown field", "Remove it.")
    remedy = REMEDIES[field.cpp_type]
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL and not isinstance(value, (bool, np.bool_)):
        raise wrong_type(path, value, remedy)  # protobuf converts integers
    if not field.is_repeated:
        _put(partial(setattr, message, name), value, path, remedy, range_path or path)
        return
    items, target = to_list(value, path), getattr(message, name)
    try:
        target.extend(items)
    except (TypeError, ValueError):  # slower, but names the item
        del target[:]
        for index, item in enumerate(items):
            item_path = f"{path}[{index}]"
            _put(target.append, item, item_path, remedy, range_path or item_path)


def _put(put: Callable[[Any], None], value: Any, path: str, remedy: str, range_path: str) -> None:
    try:
        put(value)
    except TypeError:
        raise wrong_type(path, value, remedy) from None
    except UnicodeError:
        raise invalid("INVALID_FORMAT", path, "not valid Unicode", "Remove surrogates.") from None
    except ValueError:
        problem, remedy = "out of range", "Use a 32-bit integer."
        raise invalid(
            "OUT_OF_RANGE", range_path, problem, remedy, actual=value, minimum=INT32_MIN, maximum=INT32_MAX
        ) from None
