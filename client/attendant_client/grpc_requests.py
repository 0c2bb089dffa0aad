"""gRPC request messages, built from bodies. Errors name the same fields as over REST."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any, get_args, get_type_hints

from google.protobuf.descriptor import FieldDescriptor

from attendant_client.bodies import Body, to_list
from attendant_client.errors import invalid, wrong_type
from attendant_client.options import (
    AttendOptions,
    ClassifyOptions,
    CompareOptions,
    EncodeOptions,
    FillMaskOptions,
    RerankOptions,
    SimilarityOptions,
    TokenClassifyOptions,
)
from attendant_client.pb import encoder_pb2 as pb

REQUESTS: dict[str, Any] = {
    "encode": pb.EncodeRequest,
    "attend": pb.AttendRequest,
    "compare": pb.CompareRequest,
    "similarity": pb.SimilarityRequest,
    "rerank": pb.RerankRequest,
    "classify": pb.ClassifyRequest,
    "token_classify": pb.TokenClassifyRequest,
    "fill_mask": pb.FillMaskRequest,
    "tokenize": pb.TokenizeRequest,
    "model": pb.GetModelRequest,
}
OPTIONS = {
    "encode": EncodeOptions,
    "attend": AttendOptions,
    "compare": CompareOptions,
    "similarity": SimilarityOptions,
    "rerank": RerankOptions,
    "classify": ClassifyOptions,
    "token_classify": TokenClassifyOptions,
    "fill_mask": FillMaskOptions,
}
PROMPTS = ("prompt", "query_prompt", "document_prompt")
"""Prompt fields, each in a oneof with the corresponding prompt name. Setting one field of a oneof clears the other."""
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
    message = REQUESTS[operation]()
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
    if name in ("layers", "heads") and isinstance(value, str):
        if value != "all":
            raise invalid("UNKNOWN_VALUE", name, "unknown value", 'Use "all".', actual=value[:64])
        if operation in ("encode", "fill_mask"):
            message.all_layers = True
    elif labels := _enum_labels(operation, name):
        _set_enum(message, name, value, labels)
    else:
        _set_field(message, name, value, name)


@cache
def _enum_labels(operation: str, name: str) -> dict[str, str]:
    """Map each REST value of an enum option to its proto label; empty if the option is not an enum."""
    field = REQUESTS[operation].DESCRIPTOR.fields_by_name.get(name)
    if field is None or field.enum_type is None:
        return {}
    hint = get_type_hints(OPTIONS[operation])[name]
    values = get_args(get_args(hint)[0] if field.is_repeated else hint)
    prefix = field.enum_type.values[0].name.removesuffix("UNSPECIFIED")
    return {value: prefix + value.upper() for value in values}


def _set_enum(message: Any, name: str, value: Any, labels: dict[str, str]) -> None:
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
        items = to_list(value, name)
        getattr(message, name).extend(label(item, f"{name}[{index}]") for index, item in enumerate(items))
    else:
        setattr(message, name, label(value, name))


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
