"""Inputs as the native routes take them, and arrays as they give them."""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Tag

from model.tokenizer import Source
from service.engine.schema.encode import Array, Input
from service.errors import InvalidArgument
from service.rest.wire import OBJECT_BRANCH, TEXT_BRANCH, StrictModel

Encoding = Literal["float", "base64"]


class InputBody(StrictModel):
    """A text, a pair of texts, or token ids without special tokens."""

    text: str | None = None
    pair: str | None = None
    spans: list[tuple[int, int]] | None = None
    token_ids: list[int] | None = None


def _branch(value: object) -> str:
    return TEXT_BRANCH if isinstance(value, str) else OBJECT_BRANCH


Element = Annotated[Annotated[str, Tag(TEXT_BRANCH)] | Annotated[InputBody, Tag(OBJECT_BRANCH)], Discriminator(_branch)]
Inputs = str | list[Element]


def inputs_of(inputs: Inputs) -> tuple[Input, ...]:
    """Raises `InvalidArgument` for one that is not one thing."""
    if isinstance(inputs, str):
        return (Input(Source(inputs)),)
    return tuple(
        Input(Source(element)) if isinstance(element, str) else _input(element, index)
        for index, element in enumerate(inputs)
    )


def _input(body: InputBody, index: int) -> Input:
    if (body.text is None) == (body.token_ids is None):
        raise InvalidArgument(f"inputs[{index}] must have either text or token_ids.", reason="invalid_field")
    if body.token_ids is not None and body.pair is not None:
        raise InvalidArgument(f"inputs[{index}].pair goes with text, not with token_ids.", reason="invalid_field")
    ids = None if body.token_ids is None else tuple(body.token_ids)
    return Input(Source(body.text or "", body.pair, ids), tuple(body.spans or ()))


def tensor(array: Array) -> dict[str, Any]:
    """An array in base64."""
    return {"shape": array.shape, "dtype": array.dtype, "data": array.to_base64()}
