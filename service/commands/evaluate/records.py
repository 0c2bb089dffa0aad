"""JSON lines files: one object per line, with errors that name file, line and field."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

import orjson
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import PydanticCustomError

from service.commands.lines import ReadFile, TextError, read_file

MAX_SCORE = 1e9
PROBLEMS = {
    "missing": "missing. Add it.",
    "string_type": "not a string. Use a string.",
    "int_type": "not an integer. Use an integer.",
    "float_type": "not a number. Use a number.",
    "bool_type": "not true or false. Use true or false.",
    "too_short": "empty. Add an item.",
    "greater_than_equal": "out of range ({value:g}, limit {ge:g}). Use {ge:g} or more.",
    "less_than_equal": "out of range ({value:g}, limit {le:g}). Use {le:g} or less.",
}
"""Messages by pydantic error type."""


class Record(BaseModel):
    """An object of a file. Unknown fields are ignored."""

    model_config = ConfigDict(strict=True, frozen=True)

    line: int


T = TypeVar("T")
R = TypeVar("R", bound=Record)


@dataclass(frozen=True)
class Records(Generic[R]):
    """The records of a file."""

    file: ReadFile
    lines: tuple[R, ...]


def record_error(problem: str) -> PydanticCustomError:
    """Return an error of a validator. `problem` is a message without the path of the validated field."""
    return PydanticCustomError("record", "{problem}", {"problem": problem})


def _check_text(text: str) -> str:
    if not text or text.isspace():
        raise record_error("empty or blank. Remove the line or add text.")
    return text


Text = Annotated[str, AfterValidator(_check_text)]
Index = Annotated[int, Field(ge=0)]
Score = Annotated[float, Field(ge=-MAX_SCORE, le=MAX_SCORE)]
OneOrMore = Annotated[
    list[T], Field(min_length=1), BeforeValidator(lambda value: value if isinstance(value, list) else [value])
]
"""An item, or a non-empty array of items."""


def read_records(path: Path, limit: int, kind: type[R]) -> Records[R]:
    """Read the first `limit` lines of a file. Raises `TextError`, which names file, line and field, but no text."""
    file, lines = read_file(path, limit)
    return Records(file, tuple(_parse(path, number, line, kind) for number, line in lines))


def line_error(path: Path, line: int, problem: str) -> TextError:
    return TextError(f"{path}: line {line}: {problem}")


def _parse(path: Path, number: int, line: str, kind: type[R]) -> R:
    try:
        fields = orjson.loads(line)
    except orjson.JSONDecodeError:
        raise line_error(path, number, "not JSON. Write one JSON object per line.") from None
    if not isinstance(fields, dict):
        raise line_error(path, number, "not a JSON object. Write one JSON object per line.")
    try:
        return kind.model_validate({**fields, "line": number})
    except ValidationError as error:
        raise line_error(path, number, _message(error.errors(include_url=False)[0])) from None


def _message(error: Mapping[str, Any]) -> str:
    field = "".join(f"[{step}]" if isinstance(step, int) else step for step in error["loc"])
    problem = PROBLEMS.get(error["type"], error["msg"]).format(value=error["input"], **error.get("ctx", {}))
    return f"{field}: {problem}" if field else problem
