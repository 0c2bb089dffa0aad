"""Input tensors of a request as inputs of the engine."""

import re
from collections.abc import Sequence

from model.artifact.tokenizer import TokenizerInput
from service.engine.engine import Engine
from service.engine.schema.encode import Input
from service.errors import (
    ConflictingFields,
    Duplicate,
    Empty,
    InvalidFormat,
    UnknownValue,
    WrongShape,
    echo,
    missing_or_conflicting,
)
from service.limits import item_limits
from service.oip.parameters import INPUT_PARAMETERS, PATH, TYPES, check_tensor_parameters, listed
from service.oip.tensors import InputTensor, check_axes, check_datatype, integers_of, strings_of
from service.spelling import Spelling

TEXT, INPUT_IDS, ATTENTION_MASK = "text", "input_ids", "attention_mask"
INPUT_DATATYPES = {TEXT: ("BYTES",), INPUT_IDS: ("INT64", "INT32"), ATTENTION_MASK: ("INT64", "INT32", "BOOL")}

IDS_SUFFIX = ".token_ids"
"""The end of the path of token ids in the native API, where an input is an object."""

TEXT_SHAPES, IDS_SHAPE = "[N], [N, 1] or [N, 2]", "[N, T]"
"""A row of two texts is a pair."""
MAX_COLUMNS = 2


class InferSpelling(Spelling):
    """The names of tensors and parameters in error messages. `inputs`: the tensor of the inputs."""

    def __init__(self, inputs: str) -> None:
        self._inputs = inputs

    def path(self, path: str) -> str:
        if re.split(r"[.\[]", path, maxsplit=1)[0] in TYPES:
            return f"{PATH}.{path}"
        if path.startswith("inputs"):
            path = re.sub(r"\.pair$", "[1]", path.replace("inputs", self._inputs, 1))
        return path.removesuffix(IDS_SUFFIX)

    def option(self, field: str) -> str | None:
        return field if field in TYPES else None


def to_inputs(engine: Engine, tensors: Sequence[InputTensor]) -> tuple[InferSpelling, tuple[Input, ...]]:
    """Return the inputs, and their name for errors. Raises a `ServiceError` for tensors that are not valid."""
    by_name: dict[str, InputTensor] = {}
    for tensor in tensors:
        if tensor.name not in INPUT_DATATYPES:
            raise UnknownValue("unknown input", f"Use {listed(INPUT_DATATYPES)}.", field=f"{tensor.field}.name",
                               actual=echo(tensor.name))  # fmt: skip
        if tensor.name in by_name:
            raise Duplicate("sent twice", "Remove one.", field=f"{tensor.field}.name")
        check_tensor_parameters(tensor.parameters, tensor.field, INPUT_PARAMETERS)
        check_datatype(tensor, INPUT_DATATYPES[tensor.name])
        by_name[tensor.name] = tensor
    text, ids, mask = (by_name.get(name) for name in INPUT_DATATYPES)
    if (text is None) == (ids is None):
        raise missing_or_conflicting((TEXT, INPUT_IDS), text is None, "inputs")
    if mask is not None and ids is None:
        raise ConflictingFields(f"{ATTENTION_MASK} without {INPUT_IDS}", "Leave it out.", field=mask.field)
    limits = item_limits([engine.info])
    if text is not None:
        first = ("inputs", limits["inputs"])
        columns = text.shape[1] if len(text.shape) == 2 else 1
        if not 1 <= columns <= MAX_COLUMNS:
            raise WrongShape("not 1 or 2", f"Use {TEXT_SHAPES}.", field=f"{text.field}.shape[1]", actual=columns)
        check_axes(text, [first, ("column", MAX_COLUMNS)] if len(text.shape) == 2 else [first], TEXT_SHAPES)
        strings = strings_of(text)
        if columns == 1:
            return InferSpelling(TEXT), tuple(Input(TokenizerInput(item)) for item in strings)
        pairs = zip(strings[::2], strings[1::2], strict=True)
        return InferSpelling(TEXT), tuple(Input(TokenizerInput(item, pair)) for item, pair in pairs)
    assert ids is not None
    rows = _rows(ids, mask, [("inputs", limits["inputs"]), ("token_ids", limits["token_ids"])])
    return InferSpelling(INPUT_IDS), tuple(Input(TokenizerInput(token_ids=engine.content_ids(row))) for row in rows)


def _rows(ids: InputTensor, mask: InputTensor | None, limits: Sequence[tuple[str, int]]) -> list[tuple[int, ...]]:
    """Return the token ids of each row without padding."""
    check_axes(ids, limits, IDS_SHAPE)
    width = ids.shape[1]
    if mask is not None and list(mask.shape) != list(ids.shape):
        raise WrongShape(f"differs from the shape of {INPUT_IDS}", "Send one value per token id.",
                              field=f"{mask.field}.shape")  # fmt: skip
    numbers, flags = integers_of(ids), None if mask is None else integers_of(mask)
    rows = []
    for row, start in enumerate(range(0, len(numbers), width)):
        count = width if flags is None else _unpadded(flags[start : start + width], row)
        rows.append(tuple(numbers[start : start + count]))
    return rows


def _unpadded(flags: Sequence[int], row: int) -> int:
    """Return the number of tokens before the padding; raises `InvalidArgument` for padding elsewhere."""
    count, field = sum(flags), f"{ATTENTION_MASK}[{row}]"
    if not 0 <= count <= len(flags) or list(flags) != [1] * count + [0] * (len(flags) - count):
        raise InvalidFormat("not ones followed by zeros", "Pad on the right.", field=field)
    if count == 0:
        raise Empty("empty", "Send at least one token id.", field=field)
    return count
