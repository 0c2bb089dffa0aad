"""Request bodies: reading under size, time and memory limits, pydantic models derived from the contract, and errors.

A body is valid JSON without type coercion, NaN or unknown fields. Lists are counted before any item is validated, and
validation stops at the first invalid item. An error names the first problem in document order, without input text.
"""

import asyncio
import difflib
import gc
import re
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import MISSING, dataclass, is_dataclass
from functools import cache
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

import numpy as np
import orjson
from attendant_client.types import (
    Above,
    Alternative,
    AtMost,
    Encoding,
    Input,
    Items,
    Nullable,
    Range,
    SparseMatrix,
    TextInputs,
    Truncation,
)
from attendant_client.wire import Field as ContractField
from attendant_client.wire import fields_of, item_type, strip
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    FailFast,
    Field,
    Tag,
    ValidationError,
    create_model,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError
from pydantic_core.core_schema import ValidationInfo
from starlette.requests import ClientDisconnect, Request

from service.config import Settings
from service.errors import (
    Cancelled,
    InvalidArgument,
    InvalidHeader,
    MalformedRequest,
    MissingField,
    OutOfRange,
    RequestTimeout,
    RequestTooLarge,
    TooMany,
    UnknownField,
    UnknownValue,
    UnsupportedMedia,
    WrongShape,
    WrongType,
    echo,
    json_type,
)
from service.lifecycle import Lifecycle
from service.memory import MemoryBudget, Reservation
from service.operations.inputs import item_limits, too_many
from service.spelling import join

JSON = "application/json"
TIMEOUT_HEADER = "X-Request-Timeout-Ms"
STRICT_HEADER = "X-Attendant-Strict"
IGNORED_HEADER = "x-attendant-ignored"
MAX_FIELD_NAME = 40
MAX_COMPARED = 64
"""Do not suggest corrections for longer names, or for objects with more unknown names."""
NO_LIMIT = -1
"""Value of `truncate_prompt_tokens` that selects the model's limit."""
TIMEOUT_PARAMETER = {
    "name": TIMEOUT_HEADER,
    "in": "header",
    "description": "Timeout of the request in milliseconds.",
    "schema": {"type": "integer", "minimum": 0},
}
ENCODING_DESCRIPTION = "How to encode arrays: numbers, or little-endian bytes in base64."
MODEL_DESCRIPTION = "Name or alias of the served model. null selects the default model."
BOOLEANS = {"true": True, "false": False}
LooseBool = Annotated[
    bool, BeforeValidator(lambda value: BOOLEANS.get(value, value) if isinstance(value, str) else value)
]
"""A boolean that RAGFlow's clients send as a string."""
SCHEMA_REFERENCE = "#/components/schemas/{model}"

TOO_MANY = "too_many"
"""Error type for a list over its limit."""
OTHER_TAG, ITEM_TAG, LIST_TAG, NUMBERS_TAG = "<other>", "<item>", "<list>", "<numbers>"
IDS_TAG, IDS_LIST_TAG = "<ids>", "<ids list>"
"""Names of union branches, which pydantic includes in error paths."""
_TAGS = frozenset((OTHER_TAG, ITEM_TAG, LIST_TAG, NUMBERS_TAG, IDS_TAG, IDS_LIST_TAG))


def body_schema(*models: type[BaseModel], required: bool = True) -> dict[str, Any]:
    """Return OpenAPI for a route that parses its body itself; `complete_document` adds the referenced schema."""
    schemas = [{"$ref": f"#/components/schemas/{model.__name__}"} for model in models]
    content = {JSON: {"schema": schemas[0] if len(schemas) == 1 else {"anyOf": schemas}}}
    return {"requestBody": {"required": required, "content": content}, "parameters": [TIMEOUT_PARAMETER]}


# Building blocks of models


class StrictModel(BaseModel):
    """A JSON object that rejects type coercion, unknown fields and NaN."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _stop_at_unknown_field(cls, value: Any) -> Any:
        """Drop the fields after the first unknown field: pydantic creates one error object per unknown field."""
        if not isinstance(value, dict) or value.keys() <= cls.model_fields.keys():
            return value
        kept = {}
        for name, item in value.items():
            kept[name] = item
            if name not in cls.model_fields:
                break
        return kept


class ForeignModel(BaseModel):
    """A JSON object of another server's API: clients may send fields that have no effect. No type coercion, no NaN."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False, frozen=True)


class PromptTokensRequest(ForeignModel):
    """A request in which clients of vLLM limit the number of tokens."""

    truncate_prompt_tokens: int | None = Field(
        None,
        description=f"{NO_LIMIT} or the model's token limit truncates longer inputs. null does what ATTENDANT_TRUNCATE "
        "says.",
    )

    def chosen_truncation(self, limit: int) -> Truncation | None:
        """Return the truncation that the request sets. Raises `OutOfRange` for a limit other than the model's."""
        actual = self.truncate_prompt_tokens
        if actual not in (None, NO_LIMIT, limit):
            remedy = f"Use {NO_LIMIT} or {limit}."
            raise OutOfRange("not the model's limit", remedy, field="truncate_prompt_tokens", actual=actual)
        return None if actual is None else "auto"


def unknown_fields(body: Any, prefix: str = "") -> Iterator[str]:
    """Yield the paths of the body fields that its models do not define."""
    if not isinstance(body, ForeignModel):
        return
    for name in body.model_extra or ():
        yield prefix + name
    for name, value in body.__dict__.items():
        if isinstance(value, ForeignModel):
            yield from unknown_fields(value, f"{prefix}{name}.")
        elif isinstance(value, list) and value and isinstance(value[0], ForeignModel):
            for index, item in enumerate(value):
                yield from unknown_fields(item, f"{prefix}{name}[{index}].")


def printable(name: str) -> str:
    """Return a field name in ASCII, for a header: at most 40 characters, without separators."""
    return re.sub(r"[^!-~]|,", "?", name)[:MAX_FIELD_NAME] or "?"


def at_most(name: str) -> BeforeValidator:
    """Return a validator that counts the items of a list before validating any of them."""

    def check(value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, list):
            check_count(name, len(value), info)
        return value

    return BeforeValidator(check)


def check_count(name: str, actual: int, info: ValidationInfo) -> None:
    """Raise a validation error if a list is over its limit; `item_limits` is the validation context."""
    limit = (info.context or {})[name]
    if actual > limit:
        raise PydanticCustomError(TOO_MANY, "too many items", {"name": name, "actual": actual, "limit": limit})


def count_inputs_or_ids(value: Any, info: ValidationInfo) -> Any:
    """Check the number of inputs, or of token ids if the value is a single list of ids."""
    if isinstance(value, list):
        check_count("token_ids" if value and isinstance(value[0], int) else "inputs", len(value), info)
    return value


def _check_inputs(value: Any, info: ValidationInfo) -> Any:
    if isinstance(value, list):
        check_count("inputs", len(value), info)
        spans = 0
        for item in value:
            if isinstance(item, dict) and isinstance(item.get("spans"), list):
                spans += len(item["spans"])
        if spans:
            check_count("spans_per_request", spans, info)
    return value


class FirstError(FailFast):
    """A `FailFast` that works inside a union: list validation stops at the first invalid item."""

    __hash__ = object.__hash__


def by_type(kind: type, tag: str, other: str) -> Discriminator:
    """Select a union branch by the type of the value, so that only that branch reports errors."""

    def select(value: Any) -> str:
        return tag if isinstance(value, kind) else other

    return Discriminator(select)


def list_of(item: Any, limit: str) -> Any:
    """Return the type of a list whose length is capped by the limit of this name."""
    return Annotated[list[item], FirstError(), at_most(limit)]


def text_or(item: Any, tag: str = ITEM_TAG) -> Any:
    """Return the union of a text and another item type."""
    return Annotated[Annotated[str, Tag(OTHER_TAG)] | Annotated[item, Tag(tag)], by_type(str, OTHER_TAG, tag)]


def _all_or_numbers(limit: str) -> Any:
    numbers = Annotated[list[int], FirstError(), at_most(limit), Tag(NUMBERS_TAG)]
    return Annotated[Annotated[Literal["all"], Tag(OTHER_TAG)] | numbers, by_type(str, OTHER_TAG, NUMBERS_TAG)]


Texts = Annotated[
    Annotated[str, Tag(OTHER_TAG)] | Annotated[list[str], FirstError(), Tag(LIST_TAG)],
    by_type(str, OTHER_TAG, LIST_TAG),
    at_most("inputs"),
]
TextList = Annotated[list[str], FirstError(), at_most("inputs")]
Integers = Annotated[list[int], FirstError()]
TokenIds = Annotated[list[int], FirstError(), at_most("token_ids")]
Span = Annotated[list[int], FirstError(), Field(min_length=2, max_length=2)]


# Models from the contract


class ContractModel(StrictModel):
    """The body of a contract request. REST may add fields that are not in the contract."""


@cache
def model_of(kind: Any, base: type[BaseModel] = ContractModel) -> type[Any]:
    """Create the model of the JSON object for a contract type, including the fields of `base`."""
    definitions: dict[str, Any] = {}
    for field in fields_of(kind):
        if field.name not in base.model_fields:
            hint = _body_type(field)
            default = ... if field.default is MISSING else field.default
            definitions[field.name] = (
                hint | None if field.optional or field.find(Nullable) is not None else hint,
                Field(default, description=field.description, json_schema_extra=_bounds(field) or None),
            )
    model: Any = create_model(kind.__name__, __base__=base, __module__=__name__, **definitions)
    model.__doc__ = kind.__doc__
    return model


def _body_type(field: ContractField) -> Any:
    """Return a field's type in JSON."""
    item, limit = item_type(field.kind), field.find(AtMost)
    if item is Input:
        text_or_object = text_or(model_of(Input, StrictModel))
        listed = Annotated[list[text_or_object], FirstError(), Tag(LIST_TAG)]  # type: ignore[valid-type]
        return Annotated[
            Annotated[str, Tag(OTHER_TAG)] | listed, by_type(str, OTHER_TAG, LIST_TAG), BeforeValidator(_check_inputs)
        ]
    if field.kind == tuple[int, int]:
        return Span
    if is_dataclass(field.kind):
        return model_of(field.kind, StrictModel)  # type: ignore[arg-type]  # classes are hashable
    if limit is None:
        return field.kind
    if item is None:  # layers or heads
        return _all_or_numbers(limit.limit)
    if item is str and limit.limit == "inputs":
        return Texts
    if item == tuple[int, int]:
        return list_of(Span, limit.limit)
    return list_of(model_of(item, StrictModel) if hasattr(item, "__dataclass_fields__") else item, limit.limit)


def _bounds(field: ContractField) -> dict[str, Any]:
    """Return a field's bounds for JSON Schema. Operations check them, so that every API returns the same errors."""
    if (between := field.find(Range)) is not None:
        bounds = {"minimum": between.minimum, "maximum": between.maximum}
        return {name: bound for name, bound in bounds.items() if bound is not None}
    if (above := field.find(Above)) is not None:
        return {"exclusiveMinimum": above.minimum, "maximum": above.maximum}
    if (items := field.find(Items)) is not None:
        return {"minItems": items.minimum, "maxItems": items.maximum}
    return {}


def to_contract(kind: Any, body: BaseModel) -> Any:
    """Convert the fields that the client sent to a contract request, with tuples for lists."""
    converters, values, sent = _converters(kind), body.__dict__, {}
    for name in body.model_fields_set:
        if name in converters:
            convert = converters[name]
            sent[name] = values[name] if convert is None else convert(values[name])
    return kind(**sent)


@cache
def _converters(kind: Any) -> dict[str, Callable[[Any], Any] | None]:
    return {field.name: _converter(field) for field in fields_of(kind)}


def _converter(field: ContractField) -> Callable[[Any], Any] | None:
    """Return the function that converts a field's JSON value; None if no conversion is needed."""
    item = item_type(field.kind)
    if item is Input:
        return _to_inputs
    if field.kind == tuple[int, int]:
        return lambda span: None if span is None else tuple(span)
    if item == tuple[int, int]:
        return lambda spans: tuple(map(tuple, spans or ()))
    if is_dataclass(field.kind):
        return lambda part: None if part is None else to_contract(field.kind, part)
    if item is not None and hasattr(item, "__dataclass_fields__"):
        return lambda bodies: tuple([to_contract(item, body) for body in bodies])
    if item is str:
        return _to_texts
    if item is not None or (get_origin(field.kind) is not None and field.find(AtMost) is not None):
        return _to_tuple
    return None


def _to_tuple(value: Any) -> Any:
    """Convert a list to a tuple; leave `all` and null unchanged."""
    return tuple(value) if isinstance(value, list) else value


def _to_texts(value: Any) -> Any:
    """Convert a text or a list of texts to a tuple."""
    return (value,) if isinstance(value, str) else _to_tuple(value)


def _to_inputs(value: Any) -> Sequence[Input]:
    if isinstance(value, str):
        return TextInputs((value,))
    if {*map(type, value)} <= {str}:
        return TextInputs(value)
    return tuple([Input(item) if isinstance(item, str) else to_contract(Input, item) for item in value])


# Response schemas, for the OpenAPI document only: routes render responses themselves, which is faster


class Tensor(BaseModel):
    """A dense array in row-major order, with `encoding_format: "base64"`."""

    shape: list[int] = Field(description="Sizes of the axes.")
    dtype: Literal["float32", "float16", "int8", "ubinary", "sqrt_uint8"] = Field(description="Element type.")
    data: str = Field(description="Elements, little-endian, in base64.")


class SparseRows(BaseModel):
    """The largest values of each row in descending order, with `top_p` or `top_k`."""

    indices: list[list[int]] = Field(description="Columns of the entries of each row, as indices of `units`.")
    values: list[list[float]] | Tensor = Field(
        description="Values of the entries of each row; in base64 one array over all rows."
    )
    dropped_mass: list[float] = Field(description="Sum of the dropped values of each row, (R).")


@cache
def schema_of(kind: Any) -> type[BaseModel]:
    """Create the schema of a contract response."""
    definitions: dict[str, Any] = {}
    alternatives: dict[str, list[ContractField]] = {}
    for field in fields_of(kind):
        alternative = field.find(Alternative)
        alternatives.setdefault(alternative.name if alternative else field.name, []).append(field)
    for name, (field, *others) in alternatives.items():
        hint = _response_type(field)
        for other in others:
            hint = hint | _response_type(other)
        default = None if field.default is None else ...
        definitions[name] = (
            hint | None if field.optional and not (name == "matrix" and others) else hint,
            Field(default, description=field.description),
        )
    model = create_model(kind.__name__, __module__=__name__, **definitions)
    model.__doc__ = kind.__doc__
    return model


def _response_type(field: ContractField) -> Any:
    kind, encoding = field.kind, field.find(Encoding)
    if get_origin(kind) is np.ndarray:
        element = int if "int" in str(get_args(kind)[1]) else float
        types: Any = None
        for axes in encoding.axes if encoding else (1,):
            nested: Any = element
            for _ in range(axes):
                nested = list[nested]
            types = nested if types is None else types | nested
        return types | Tensor if encoding and encoding.uint8 else types
    if kind is SparseMatrix:
        return SparseRows
    if (item := item_type(kind)) is not None:
        part: Any = strip(item)[0]
        if hasattr(part, "__dataclass_fields__"):
            part = schema_of(part)
        return list[part]
    return schema_of(kind) if hasattr(kind, "__dataclass_fields__") else kind


# Validation errors


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
    """Return the error for the first problem of a body in document order."""
    problems = error.errors(include_url=False, include_input=False)
    problem = min(problems, key=lambda problem: _position(_steps(problem), document))
    steps, details = _steps(problem), problem.get("ctx", {})
    path = _path(steps)
    match problem["type"]:
        case "extra_forbidden":
            return _unknown_field(steps, document, model)
        case "missing":
            known = _known_fields(steps, model)
            unknown = [name for name in _value(steps[:-1], document) if name not in known]
            similar = difflib.get_close_matches(str(steps[-1]), unknown, 1) if len(unknown) <= MAX_COMPARED else []
            kind = known[steps[-1]].annotation if steps[-1] in known else None
            values = [f'"{value}"' for value in get_args(kind)] if get_origin(kind) is Literal else []
            remedy = f"Use {join(values, 'or')}." if values else "Send it."
            return MissingField("missing", f"Rename `{similar[0]}`." if similar else remedy, field=path)
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
        return OutOfRange("out of range", "Send an integer of 64 bits.", field=path, actual=value)  # parsed as a float
    tag = str(problem["loc"][-1]) if problem["loc"] else ""
    remedy = _TAG_REMEDIES.get(tag) or _TYPE_REMEDIES.get(problem["type"], "Send another value.")
    return WrongType("wrong type", remedy, field=path, actual=json_type(value))


def _unknown_field(steps: Sequence[Step], document: Any, model: type[BaseModel]) -> InvalidArgument:
    present = _value(steps[:-1], document)
    return unknown_field(steps, [name for name in _known_fields(steps, model) if name not in present])


def _known_fields(steps: Sequence[Step], model: type[BaseModel]) -> Mapping[Any, FieldInfo]:
    """Return the known fields of the object that contains the field at this path."""
    for step in steps[:-1]:
        field = model.model_fields.get(str(step))
        model = next(_models_in(field.annotation), model) if field is not None else model
    return model.model_fields


def unknown_field(steps: Sequence[Step], known: Iterable[str]) -> InvalidArgument:
    """Return the error for an unknown field, which may be a misspelled known field."""
    name = str(steps[-1])
    nearest = difflib.get_close_matches(name, known, 1) if len(name) <= MAX_COMPARED else []
    remedy = f"Did you mean `{nearest[0]}`?" if nearest else "Remove it."
    path = _path(steps) if _FIELD_NAME.fullmatch(name) else _path([*steps[:-1], "(another name)"])
    return UnknownField("unknown field", remedy, field=path)


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the models of the objects in a type annotation."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models_in(part)


def _steps(problem: Mapping[str, Any]) -> list[Step]:
    """Return the path of a problem in the document. An unknown field may be named like a union branch."""
    *parents, last = problem["loc"] or (None,)
    steps = [step for step in parents if step not in _TAGS]
    if last is not None and (last not in _TAGS or problem["type"] == "extra_forbidden"):
        steps.append(last)
    return steps


def _position(steps: Sequence[Step], document: Any) -> tuple[int, ...]:
    """Return the position of a path in the document. A missing field comes last in its object."""
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


IDENTITY = "identity"
WINDOW_BITS = {"gzip": 31, "deflate": 15}
"""zlib's window bits by content coding. HTTP's deflate is the zlib format (RFC 9110, section 8.4.1.2)."""
CODINGS = tuple(WINDOW_BITS)
ENCODING_HEADER = "Content-Encoding"
GC_PAUSE_MIN_BYTES = 64 * 1024
"""Garbage collection is paused while parsing bodies of at least this size, because it doubles the time."""
EXTRA_CONTAINERS = 1024
"""Allowance for arrays and objects other than inputs, spans and occurrences."""
STRINGS_PER_CONTAINER = 8
MAX_TIMEOUT_DIGITS = 18
MAX_NAME = 40
HANDLING = "attendant.handling"
"""Scope key: the task that handles the request."""
BODY = "attendant.body"
"""Scope key: the body, once it is complete."""
FIELDS = "attendant.fields"
"""Scope key: the headers, as a dictionary."""
PAUSE_S = "attendant.pause_s"
"""Scope key: how long to stop reading from the connection after the response, in seconds."""
KNOWN = "attendant.known"
"""Scope key: True if a caller sent the request."""
DRAINED = "attendant.drained"
"""Scope key: a function that waits until the client has read the response, or has disconnected."""

ENCODING, TIMEOUT = ENCODING_HEADER.lower().encode(), TIMEOUT_HEADER.lower().encode()

BodyT = TypeVar("BodyT", bound=BaseModel)
Select = Callable[[Any], type[BaseModel]]
"""Returns the model of a body from its JSON value."""


class RequestReader:
    """Reads the bodies of all REST routes."""

    def __init__(self, lifecycle: Lifecycle, settings: Settings, budget: MemoryBudget | None = None) -> None:
        self._lifecycle = lifecycle
        self.settings = settings
        self.budget = budget or MemoryBudget(settings.max_pending_request_bytes, "request bodies")
        self._limits_of = 0
        self._limits: dict[str, int] = {}
        self._max_bytes = settings.max_request_bytes

    async def read(self, request: Request, model: type[BodyT] | Select, **limits: int) -> BodyT:
        """Read and parse the body as `parse_json` does; `limits` override `item_limits`."""
        self._update_limits()
        media_type, _, parameters = header(request, b"content-type").partition(";")
        if media_type.strip().lower() != JSON or (
            "charset" in parameters.lower() and "utf-8" not in parameters.lower()
        ):
            raise UnsupportedMedia(f"not {JSON} in UTF-8", f"Send {JSON}.", field="Content-Type")
        if header(request, ENCODING, IDENTITY).strip().lower() != IDENTITY:
            raise UnsupportedMedia("not supported", "Send the body uncompressed.", field=ENCODING_HEADER)
        body = await self._receive(request)
        return parse_json(body, model, self._limits | limits if limits else self._limits)

    async def read_optional(self, request: Request, model: type[BodyT], **limits: int) -> BodyT:
        """Read and parse the body as `model`, or return default values if it is empty. Content-Type is optional."""
        body = await self.read_bytes(request, (JSON,))
        return parse_json(body, model, self._limits | limits) if body else model()

    async def read_bytes(self, request: Request, media_types: Sequence[str]) -> bytes | bytearray:
        """Read the body, which may be compressed. Its Content-Type, if any, must be one of `media_types`."""
        media_type = header(request, b"content-type", media_types[0]).partition(";")[0].strip().lower()
        if media_type not in media_types:
            raise UnsupportedMedia("not supported", f"Send {' or '.join(media_types)}.", field="Content-Type")
        coding = header(request, ENCODING, IDENTITY).strip().lower()
        if coding not in (IDENTITY, *CODINGS):
            raise UnsupportedMedia("not supported", f"Use {' or '.join(CODINGS)}.", field=ENCODING_HEADER)
        self._update_limits()
        body = await self._receive(request)
        return body if coding == IDENTITY else inflate(body, coding, self._max_bytes)

    def deadline(self, request: Request) -> float | None:
        """Return the deadline set by X-Request-Timeout-Ms, a time.monotonic() reading; None without that header."""
        if TIMEOUT not in request.scope[FIELDS]:
            return None
        value = header(request, TIMEOUT).strip(" \t")
        if not re.fullmatch(r"[0-9]+", value):
            raise InvalidHeader("not a whole number of milliseconds", "Send digits only.", field=TIMEOUT_HEADER)
        limit = self.settings.max_timeout_ms
        milliseconds = limit if len(value) > MAX_TIMEOUT_DIGITS else min(int(value), limit)
        return time.monotonic() + milliseconds / 1000

    def _update_limits(self) -> None:
        """Compute body limits over all models, because a body may name any of them, once the models are loaded."""
        models = self._lifecycle.models
        if models.generation != self._limits_of:
            self._limits_of, self._limits = models.generation, item_limits(models.infos)
            self._max_bytes = max(info.limits.max_request_bytes for info in models.infos)

    async def _receive(self, request: Request) -> bytes | bytearray:
        """Return the body. Raises `ServiceError` if it is too large or too slow, or if the client disconnects."""
        limit, timeout_ms = self._max_bytes, self.settings.body_timeout_ms
        body: bytearray | None = request.scope.get(BODY)
        if body is not None:  # the usual case: asyncio.timeout costs as much as parsing such a body
            if len(body) > limit:
                raise _too_large(limit, len(body))
            return body
        declared = header(request, b"content-length")
        if declared.isdigit() and int(declared[:MAX_TIMEOUT_DIGITS]) > limit:
            raise _too_large(limit, int(declared[:MAX_TIMEOUT_DIGITS]))
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await self._collect(request)
        except TimeoutError:
            raise RequestTimeout(
                "Request body not received in time",
                "Retry the request.",
                maximum=self.settings.body_timeout_ms,
                unit="ms",
            ) from None
        except ClientDisconnect:
            raise Cancelled from None

    async def _collect(self, request: Request) -> bytearray:
        """Collect the body. Chunks count against the memory budget as they arrive."""
        limit, body = self._max_bytes, bytearray()
        memory = Reservation(self.budget, request.scope["record"].holder)
        try:
            async for chunk in request.stream():
                if len(body) + len(chunk) > limit:
                    raise _too_large(limit)
                memory.grow(len(body) + len(chunk))
                body += chunk
        finally:
            memory.close()
        return body


def header(request: Request, name: bytes, default: str = "") -> str:
    """Return the value of a header by its name in lower case; Starlette compares all names one by one."""
    value: bytes | None = request.scope[FIELDS].get(name)
    return default if value is None else value.decode("latin-1")


def reject_query(request: Request) -> None:
    """Raise `InvalidArgument` for query parameters, which would be ignored: options are fields of the body."""
    for name in request.query_params:
        known = name if name.isidentifier() and len(name) <= MAX_NAME else "query"
        raise unknown_parameter(known, request.method)


def unknown_parameter(name: str, method: str = "GET") -> UnknownField:
    """Return the error for a query parameter."""
    remedy = "Remove it." if method == "GET" else "Send options in the body."
    return UnknownField("unknown query parameter", remedy, field=name)


def _too_large(limit: int, actual: int | None = None) -> RequestTooLarge:
    return RequestTooLarge("Request body too large", "Split the request.", actual=actual, maximum=limit, unit="bytes")


def parse_json(body: bytes | bytearray, model: type[BodyT] | Select, limits: dict[str, int]) -> BodyT:
    """Parse strict JSON as a model, which may be selected by the value. For duplicate keys, the last value wins.

    A thread would not relieve the event loop: orjson and pydantic hold the GIL. Raises `ServiceError`.
    """
    _check_containers(body, limits)
    pauses_gc = len(body) >= GC_PAUSE_MIN_BYTES and gc.isenabled()
    if pauses_gc:
        gc.disable()
    try:
        document = orjson.loads(body)
        selected: Any = model if isinstance(model, type) else model(document)
        parsed: BodyT = selected.model_validate(document, context=limits)
    except orjson.JSONDecodeError as error:
        raise _not_json(body, error) from None
    except ValidationError as error:
        raise invalid_body(error, document, selected) from None
    finally:
        if pauses_gc:
            gc.enable()
    return parsed


def _check_containers(body: bytes | bytearray, limits: dict[str, int]) -> None:
    """Reject a body with more arrays, objects or strings than any valid body.

    Parsing 2 MiB of `[],` or 200,000 field names takes 60 ms and holds the GIL.
    """
    limit = 2 * limits["inputs"] + limits["spans_per_request"] + limits["occurrences"] + EXTRA_CONTAINERS
    string_limit = STRINGS_PER_CONTAINER * limit
    if body.count(b"[") + body.count(b"{") <= limit and body.count(b'"') <= 2 * string_limit:
        return
    # Ignore quotes and brackets inside strings. Without escapes, every second part between quotes is outside of
    # strings.
    plain = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    strings = plain.count(b'"') // 2
    if strings > string_limit:
        raise _too_many("strings", strings, string_limit)
    outside = b"".join(plain.split(b'"')[::2])
    containers = outside.count(b"[") + outside.count(b"{")
    if containers > limit:
        raise _too_many("arrays and objects", containers, limit)


def _too_many(noun: str, actual: int, limit: int) -> InvalidArgument:
    return TooMany(
        f"Too many {noun} in the request body", "Send fewer.",
        actual=actual, maximum=limit,
    )  # fmt: skip


def _not_json(body: bytes | bytearray, error: orjson.JSONDecodeError) -> MalformedRequest:
    """Return the error for a body that is not UTF-8 or not JSON, with the position but without input text."""
    try:
        body.decode()
    except UnicodeDecodeError as wrong:
        return MalformedRequest(f"Request body is not UTF-8 (byte {wrong.start})", "Encode it in UTF-8.")
    reason = str(error).replace("surrogates not allowed", "unpaired surrogate")
    return MalformedRequest(f"Request body is not JSON ({reason})", "Correct it.")


def inflate(body: bytes | bytearray, coding: str, limit: int) -> bytes:
    """Decompress a body. Memory and time are bounded by `limit` bytes.

    Raises `RequestTooLarge` over the limit, and `MalformedRequest` for incomplete or additional data.
    """
    decompressor = zlib.decompressobj(WINDOW_BITS[coding])
    try:
        inflated = decompressor.decompress(body, limit + 1)
    except zlib.error:
        raise MalformedRequest(f"not {coding}", "Correct it.", field=ENCODING_HEADER) from None
    if len(inflated) > limit:
        raise RequestTooLarge("Decompressed request body too large", "Split the request.", maximum=limit, unit="bytes")
    if not decompressor.eof or decompressor.unused_data:
        problem = f"not one complete {coding} stream"
        raise MalformedRequest(problem, "Correct it.", field=ENCODING_HEADER)
    return inflated


@dataclass(slots=True)
class _Handling:
    """The task that handles a request, in the ASGI scope and its copies. `disconnected`: why it was cancelled."""

    task: "asyncio.Task[Any] | None"
    disconnected: bool = False


def allow_cancellation(scope: MutableMapping[str, Any]) -> None:
    """Let `cancel_request` cancel the current task, which handles the request of this ASGI scope."""
    scope[HANDLING] = _Handling(asyncio.current_task())


def cancel_request(scope: Mapping[str, Any]) -> None:
    """Cancel the task of a request whose client has disconnected, which uvicorn does not do."""
    handling: _Handling | None = scope.get(HANDLING)
    if handling is not None and handling.task is not None:
        handling.disconnected = True
        handling.task.cancel()


def was_disconnected(scope: Mapping[str, Any]) -> bool:
    """Return whether the task of a request was cancelled by `cancel_request`."""
    handling: _Handling = scope[HANDLING]
    return handling.disconnected
