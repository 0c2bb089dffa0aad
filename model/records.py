"""What all records in an artifact share, and the record of a tensor."""

from typing import Literal

from pydantic import BaseModel, ConfigDict

TensorType = Literal["float32", "float16", "bfloat16"]


class Record(BaseModel):
    """An immutable object without unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class TensorRecord(Record):
    """A little-endian array in a file of the artifact; `offset` in bytes."""

    file: str
    offset: int
    shape: tuple[int, ...]
    dtype: TensorType
