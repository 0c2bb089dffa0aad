"""Request bodies: the JSON that routes accept, and its conversion to the engine's types."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, FailFast, Field, Tag, model_validator
from pydantic_core import PydanticCustomError
from pydantic_core.core_schema import ValidationInfo

from model.artifact.tokenizer import TokenizerInput
from service.engine.schema.encode import Input
from service.errors import ConflictingFields, MissingField
from service.rest.problems import ITEM_TAG, LIST_TAG, NUMBERS_TAG, OTHER_TAG, TOO_MANY
from service.spelling import Spelling

JSON = "application/json"
EncodingFormat = Literal["float", "base64"]
MODEL_DESCRIPTION = "Name or alias of the served model."
INPUTS_DESCRIPTION = "A text, or a list of texts and input objects."
TRUNCATION_DESCRIPTION = (
    "What to do with inputs over the token limit: reject, drop the end, drop the beginning, or drop tokens where the "
    "model's tokenizer does."
)
ENCODING_DESCRIPTION = "How to encode arrays: numbers, or little-endian bytes in base64."


TIMEOUT_HEADER = "X-Request-Timeout-Ms"
TIMEOUT_PARAMETER = {
    "name": TIMEOUT_HEADER,
    "in": "header",
    "description": "Timeout of the request in milliseconds.",
    "schema": {"type": "integer", "minimum": 0},
}


def body_schema(*models: type[BaseModel]) -> dict[str, Any]:
    """Return the OpenAPI of a route that parses its own body; `make_app` adds the referenced schema."""
    schemas = [{"$ref": f"#/components/schemas/{model.__name__}"} for model in models]
    content = {JSON: {"schema": schemas[0] if len(schemas) == 1 else {"anyOf": schemas}}}
    return {"requestBody": {"required": True, "content": content}, "parameters": [TIMEOUT_PARAMETER]}


class NativeSpelling(Spelling):
    """The names of the native API in error messages."""

    def option(self, field: str) -> str | None:
        return "encoding_format" if field == "wire" else field


NATIVE = NativeSpelling()


class StrictModel(BaseModel):
    """A JSON object that rejects type coercion, unknown fields and NaN."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _stop_at_unknown_field(cls, value: Any) -> Any:
        """Drop the fields after the first unknown field, because pydantic makes one error object per unknown field."""
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
    """Raise a validation error if a list is over its limit; `item_limits` is the validation context."""
    limit = (info.context or {})[name]
    if actual > limit:
        raise PydanticCustomError(TOO_MANY, "too many items", {"name": name, "actual": actual, "limit": limit})


def count_inputs_or_ids(value: Any, info: ValidationInfo) -> Any:
    """Check the number of inputs, or of token ids if the value is one list of ids."""
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
    """`FailFast` that may be part of a union: validation of a list stops at the first invalid item."""

    __hash__ = object.__hash__


def by_type(kind: type, tag: str, other: str) -> Discriminator:
    """Select a branch of a union by the type of the value, so that only that branch reports errors."""

    def select(value: Any) -> str:
        return tag if isinstance(value, kind) else other

    return Discriminator(select)


Texts = Annotated[
    Annotated[str, Tag(OTHER_TAG)] | Annotated[list[str], FirstError(), Tag(LIST_TAG)],
    by_type(str, OTHER_TAG, LIST_TAG),
    at_most("inputs"),
]
Integers = Annotated[list[int], FirstError()]
Span = Annotated[list[int], FirstError(), Field(min_length=2, max_length=2)]
Spans = Annotated[list[Span], FirstError(), at_most("spans")]
TokenIds = Annotated[Integers, at_most("token_ids")]


class InputBody(StrictModel):
    """A text, a pair of texts, or token ids without special tokens."""

    text: str | None = Field(None, description="A text. Mutually exclusive with `token_ids`.")
    pair: str | None = Field(None, description="A second text, encoded with the first.")
    spans: Spans | None = Field(None, description="Character ranges `[start, end)` of the text.")
    token_ids: TokenIds | None = Field(None, description="Token ids, without special tokens.")


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
    """Return the engine's inputs; raises `InvalidArgument` for an item with both text and token ids, or neither."""
    if isinstance(inputs, str):
        return (Input(TokenizerInput(inputs)),)
    return tuple(
        [
            Input(TokenizerInput(item)) if isinstance(item, str) else _to_input(item, f"inputs[{index}]")
            for index, item in enumerate(inputs)
        ]
    )


def _to_input(body: InputBody, field: str) -> Input:
    if body.token_ids is None:
        if body.text is None:
            raise MissingField("text and token_ids are both missing", "Send one of them.", field=field)
    else:
        for name in ("text", "pair"):
            if getattr(body, name) is not None:
                raise ConflictingFields(f"{name} and token_ids are both set", "Send one of them.", field=field)
    ids = None if body.token_ids is None else tuple(body.token_ids)
    spans = tuple((start, end) for start, end in body.spans or ())
    return Input(TokenizerInput(body.text or "", body.pair, ids), spans)
