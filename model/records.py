"""What all records in an artifact share, and the record of a tensor."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=0, lt=2**63)]
Size = Annotated[int, Field(ge=1, le=2**24)]
"""The size of a part of a model. Larger ones are mistakes, for which there is no memory."""
TokenId = Annotated[int, Field(ge=-(2**31), lt=2**31)]
TensorType = Literal["float32", "float16", "bfloat16"]


class Record(BaseModel):
    """An immutable object without unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class TensorRecord(Record):
    """A little-endian array in a file of the artifact; `offset` in bytes."""

    file: str
    offset: Count
    shape: tuple[Size, ...]
    dtype: TensorType
