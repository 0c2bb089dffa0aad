"""Request bodies: the JSON that routes accept, and the engine's types that it stands for."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, FailFast, Field, Tag, model_validator
from pydantic_core import PydanticCustomError
from pydantic_core.core_schema import ValidationInfo

from model.tokenizer import Source
from service.engine.schema.encode import Input
from service.errors import InvalidArgument
from service.rest.problems import ITEM_TAG, LIST_TAG, NUMBERS_TAG, OTHER_TAG, TOO_MANY

JSON = "application/json"
Encoding = Literal["float", "base64"]


def body_schema(model: type[BaseModel]) -> dict[str, Any]:
    """Return the OpenAPI of a route that reads its body itself; `make_app` adds the schema it refers to."""
    schema = {"$ref": f"#/components/schemas/{model.__name__}"}
    return {"requestBody": {"required": True, "content": {JSON: {"schema": schema}}}}


class StrictModel(BaseModel):
    """A JSON object without coercion, unknown fields and NaN."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _stop_at_unknown_field(cls, value: Any) -> Any:
        """Drop what follows the first unknown field, because pydantic makes one error object per unknown field."""
        if not isinstance(value, dict) or value.keys() <= cls.model_fields.keys():
            return value
        kept = {}
        for name, item in value.items():
            kept[name] = item
            if name not in cls.model_fields:
                break
        return kept


def at_most(name: str) -> BeforeValidator:
    """Return a validator that counts the items of a list before any of them is validated."""

    def check(value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, list):
            check_count(name, len(value), info)
        return value

    return BeforeValidator(check)


def check_count(name: str, actual: int, info: ValidationInfo) -> None:
    """Raise the validation error of a list over its limit; the context of the validation is `item_limits`."""
    limit = (info.context or {})[name]
    if actual > limit:
        raise PydanticCustomError(TOO_MANY, "too many items", {"name": name, "actual": actual, "limit": limit})


def _check_inputs(value: Any, info: ValidationInfo) -> Any:
    if isinstance(value, list):
        check_count("inputs", len(value), info)
        spans = (item.get("spans") for item in value if isinstance(item, dict))
        check_count("spans_per_request", sum(len(item) for item in spans if isinstance(item, list)), info)
    return value


class FirstError(FailFast):
    """`FailFast` that may be part of a union: validation of a list stops at the first invalid item."""

    __hash__ = object.__hash__


def by_type(kind: type, tag: str, other: str) -> Discriminator:
    """Select a branch of a union by the type of the value, so that errors are those of one branch."""

    def select(value: Any) -> str:
        return tag if isinstance(value, kind) else other

    return Discriminator(select)


Integers = Annotated[list[int], FirstError()]
Span = Annotated[list[int], FirstError(), Field(min_length=2, max_length=2)]
Spans = Annotated[list[Span], FirstError(), at_most("spans")]
TokenIds = Annotated[Integers, at_most("token_ids")]


class InputBody(StrictModel):
    """A text, a pair of texts, or token ids without special tokens."""

    text: str | None = None
    pair: str | None = None
    spans: Spans | None = None
    token_ids: TokenIds | None = None


Item = Annotated[
    Annotated[str, Tag(OTHER_TAG)] | Annotated[InputBody, Tag(ITEM_TAG)], by_type(str, OTHER_TAG, ITEM_TAG)
]
Inputs = Annotated[
    Annotated[str, Tag(OTHER_TAG)] | Annotated[list[Item], FirstError(), Tag(LIST_TAG)],
    by_type(str, OTHER_TAG, LIST_TAG),
    BeforeValidator(_check_inputs),
]
Layers = Annotated[Integers, at_most("layers")]
LayersOrAll = Annotated[
    Annotated[Literal["all"], Tag(OTHER_TAG)] | Annotated[Layers, Tag(NUMBERS_TAG)],
    by_type(str, OTHER_TAG, NUMBERS_TAG),
]
HeadsOrAll = Annotated[
    Annotated[Literal["all"], Tag(OTHER_TAG)] | Annotated[Integers, at_most("heads"), Tag(NUMBERS_TAG)],
    by_type(str, OTHER_TAG, NUMBERS_TAG),
]


def to_inputs(inputs: str | list[str | InputBody]) -> tuple[Input, ...]:
    """Return the engine's inputs; raises `InvalidArgument` for an item that is not exactly one thing."""
    if isinstance(inputs, str):
        return (Input(Source(inputs)),)
    return tuple(
        Input(Source(item)) if isinstance(item, str) else _to_input(item, f"inputs[{index}]")
        for index, item in enumerate(inputs)
    )


def _to_input(body: InputBody, field: str) -> Input:
    if body.token_ids is None:
        if body.text is None:
            raise InvalidArgument(f"{field}: neither text nor token_ids is set. Send one.", reason="invalid_field")
    else:
        for name in ("text", "pair"):
            if getattr(body, name) is not None:
                raise InvalidArgument(f"{field}: {name} and token_ids are both set. Send one.", reason="invalid_field")
    ids = None if body.token_ids is None else tuple(body.token_ids)
    spans = tuple((start, end) for start, end in body.spans or ())
    return Input(Source(body.text or "", body.pair, ids), spans)
