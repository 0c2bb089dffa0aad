"""Validation errors of request bodies as one message: the first problem in document order, without input text."""

import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from service.errors import (
    InvalidArgument,
    MissingField,
    OutOfRange,
    RequestTooLarge,
    UnknownField,
    UnknownValue,
    WrongShape,
    WrongType,
    echo,
    json_type,
)
from service.limits import too_many

TOO_MANY = "too_many"
"""The type of the error of a list over its limit."""

OTHER_TAG, ITEM_TAG, LIST_TAG, NUMBERS_TAG = "<other>", "<item>", "<list>", "<numbers>"
IDS_TAG, IDS_LIST_TAG = "<ids>", "<ids list>"
"""Names of branches of unions. pydantic puts them into the path of an error."""
_TAGS = frozenset((OTHER_TAG, ITEM_TAG, LIST_TAG, NUMBERS_TAG, IDS_TAG, IDS_LIST_TAG))

_TAG_REMEDIES = {
    IDS_TAG: "Send a string or an array of token ids.",
    ITEM_TAG: "Send a string or an object.",
    LIST_TAG: "Send a string or an array.",
    NUMBERS_TAG: 'Send "all" or an array.',
}
_TYPE_REMEDIES = {
    "bool_type": "Send true or false.",
    "dict_type": "Send an object.",
    "float_type": "Send a number.",
    "int_from_float": "Send an integer.",
    "int_type": "Send an integer.",
    "list_type": "Send an array.",
    "model_type": "Send an object.",
    "string_type": "Send a string.",
}
_FIELD_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")

INT64_END = 2**63

Step = int | str


def invalid_body(error: ValidationError, document: Any, model: type[BaseModel]) -> InvalidArgument | RequestTooLarge:
    """Return the first problem of a body in document order."""
    problems = error.errors(include_url=False, include_input=False)
    problem = min(problems, key=lambda problem: _position(_steps(problem), document))
    steps, details = _steps(problem), problem.get("ctx", {})
    path = _path(steps)
    match problem["type"]:
        case "extra_forbidden":
            return _unknown_field(steps, document, model)
        case "missing":
            return MissingField("missing", "Send it.", field=path)
        case "too_many":
            return too_many(path, details["name"], details["actual"], details["limit"])
        case "too_long" | "too_short":
            size = details["actual_length"]
            return WrongShape(
                "wrong number of items", "Send [start, end].", field=path, actual=size, minimum=2, maximum=2
            )
        case "literal_error":
            allowed = re.sub(r"'([^']*)'", r'"\1"', details["expected"])
            return _unknown_value(path, _value(steps, document), f"Use {allowed}.")
    return _wrong_type(problem, steps, document)


def _unknown_value(path: str, value: Any, remedy: str) -> InvalidArgument:
    if isinstance(value, str):
        return UnknownValue("unknown value", remedy, field=path, actual=echo(value))
    return WrongType("wrong type", remedy, field=path, actual=json_type(value))


def _wrong_type(problem: Mapping[str, Any], steps: Sequence[Step], document: Any) -> InvalidArgument:
    path, value = _path(steps), _value(steps, document)
    if problem["type"] in ("int_from_float", "int_type") and isinstance(value, float) and abs(value) >= INT64_END:
        return OutOfRange("out of range", "Send an integer of 64 bits.", field=path, actual=value)  # made a float
    tag = str(problem["loc"][-1]) if problem["loc"] else ""
    remedy = _TAG_REMEDIES.get(tag) or _TYPE_REMEDIES.get(problem["type"], "Send another value.")
    return WrongType("wrong type", remedy, field=path, actual=json_type(value))


def _unknown_field(steps: Sequence[Step], document: Any, model: type[BaseModel]) -> InvalidArgument:
    name = str(steps[-1])
    present = _value(steps[:-1], document)
    known = [
        field for field in (_nested_fields(model) if len(steps) > 1 else model.model_fields) if field not in present
    ]
    nearest = difflib.get_close_matches(name, known, 1) if len(name) <= 64 else []
    remedy = f"Did you mean `{nearest[0]}`?" if nearest else "Remove it."
    path = _path(steps) if _FIELD_NAME.fullmatch(name) else _path([*steps[:-1], "(another name)"])
    return UnknownField("unknown field", remedy, field=path)


def _nested_fields(model: type[BaseModel]) -> Sequence[str]:
    """Return the fields of the objects in a body."""
    names: list[str] = []

    def collect(schema: Any) -> None:
        if isinstance(schema, dict):
            names.extend(schema.get("properties", {}))
            for value in schema.values():
                collect(value)
        elif isinstance(schema, list):
            for value in schema:
                collect(value)

    collect(model.model_json_schema().get("$defs", {}))
    return names


def _steps(problem: Mapping[str, Any]) -> list[Step]:
    """Return the path of a problem in the document; an unknown field may have the name of a branch."""
    *parents, last = problem["loc"] or (None,)
    steps = [step for step in parents if step not in _TAGS]
    if last is not None and (last not in _TAGS or problem["type"] == "extra_forbidden"):
        steps.append(last)
    return steps


def _position(steps: Sequence[Step], document: Any) -> tuple[int, ...]:
    """Return where a path is in the document; a missing field comes last in its object."""
    position = []
    for step in steps:
        if isinstance(document, dict):
            position.append(list(document).index(step) if step in document else len(document))
            document = document.get(step)
        elif isinstance(document, list) and isinstance(step, int):
            position.append(step)
            document = document[step]
    return tuple(position)


def _value(steps: Sequence[Step], document: Any) -> Any:
    for step in steps:
        document = document[step]
    return document


def _path(steps: Sequence[Step]) -> str:
    path = ""
    for step in steps:
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else step
    return path or "Body"
