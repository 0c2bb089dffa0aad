"""Inputs and enums of request messages as the engine's types, and arrays as messages."""

from collections.abc import Mapping, Sequence
from typing import Any, get_args

from model.artifact.tokenizer import TokenizerInput
from service.engine.schema.encode import Array, DType, Input, MapDType, Truncation
from service.engine.schema.explain import Unit
from service.errors import ConflictingFields, MissingField, UnknownValue
from service.limits import too_many
from service.pb import encoder_pb2 as pb
from service.spelling import Spelling

# The value of each number of an enum; the first is the default. The proto lists them in the order of the Literals.
TRUNCATIONS = ("error", *get_args(Truncation))
DTYPE_NUMBERS: dict[DType | MapDType, int] = {
    **{name: number for number, name in enumerate(get_args(DType), start=1)},
    "sqrt_uint8": pb.DTYPE_SQRT_UINT8,
}

ENUM_PREFIXES = {
    "aggregation": "AGGREGATION",
    "dtype": "DTYPE",
    "effect": "EFFECT",
    "head_reduce": "HEAD_REDUCE",
    "kind": "ATTENTION_KIND",
    "layer_reduce": "LAYER_REDUCE",
    "map_layer_reduce": "MAP_LAYER_REDUCE",
    "outputs": "OUTPUT",
    "pairs": "PAIRS",
    "pooling": "POOLING",
    "segments": "SEGMENTS",
    "similarity": "SIMILARITY_FUNCTION",
    "special_tokens": "SPECIAL_TOKENS",
    "truncation": "TRUNCATION",
    "unit": "UNIT_KIND",
}


class ProtoSpelling(Spelling):
    """The names of gRPC in error messages: enum values by their names in the proto."""

    def value(self, field: str, value: str) -> str:
        prefix = ENUM_PREFIXES.get(field)
        return super().value(field, value) if prefix is None else enum_label(prefix, value)

    def option(self, field: str) -> str | None:
        return None if field in ("wire", "decimals") else field


PROTO = ProtoSpelling()


def enum_label(prefix: str, value: str) -> str:
    """Return the label of an enum value, such as PRECISION_FLOAT32; message constructors accept labels."""
    return f"{prefix}_{value.upper()}"


def enum_value(values: Sequence[Any], number: int, field: str) -> Any:
    """Return the value of an enum's number; raises `InvalidArgument` for an unknown number."""
    if not 0 <= number < len(values):
        raise UnknownValue("unknown value", "Use a value of the enum.", field=field, actual=number)
    return values[number]


def check_count(name: str, actual: int, limits: Mapping[str, int], field: str | None = None) -> None:
    """Raise the error of a list over its limit, before any item is converted."""
    if actual > limits[name]:
        raise too_many(field or name, name, actual, limits[name])


def to_layers(request: pb.EncodeRequest | pb.FillMaskRequest) -> tuple[int, ...] | None:
    """Return the layers of a request: None for all, the last one for none."""
    if not request.all_layers:
        return tuple(request.layers) or (-1,)
    if request.layers:
        raise ConflictingFields("set, but layers is not empty", "Send one of them.", field="all_layers")
    return None


def to_inputs(inputs: Sequence[pb.Input], limits: Mapping[str, int]) -> tuple[Input, ...]:
    """Return the engine's inputs; raises `InvalidArgument` for an item without text and token ids."""
    check_count("inputs", len(inputs), limits)
    check_count("spans_per_request", sum(len(item.spans) for item in inputs), limits, "inputs")
    return tuple(_to_input(item, f"inputs[{index}]", limits) for index, item in enumerate(inputs))


def _to_input(item: pb.Input, field: str, limits: Mapping[str, int]) -> Input:
    check_count("spans", len(item.spans), limits, f"{field}.spans")
    spans = tuple((span.start, span.end) for span in item.spans)
    pair = item.pair if item.HasField("pair") else None
    if item.HasField("text"):
        return Input(TokenizerInput(item.text, pair), spans)
    if not item.HasField("token_ids"):
        raise MissingField("text and token_ids are both missing", "Send one of them.", field=field)
    if pair is not None:
        raise ConflictingFields("pair and token_ids are both set", "Send one of them.", field=field)
    check_count("token_ids", len(item.token_ids.ids), limits, f"{field}.token_ids")
    return Input(TokenizerInput(token_ids=tuple(item.token_ids.ids)), spans)


def unit_message(unit: Unit) -> pb.Unit:
    """Return a token, word or span as a message."""
    return pb.Unit(
        text=unit.text,
        start=unit.start,
        end=unit.end,
        segment=unit.segment,
        special=unit.special,
        word_index=unit.word_index,
    )


def tensor(array: Array | None) -> pb.Tensor | None:
    """Return an array as a message."""
    if array is None:
        return None
    return pb.Tensor(shape=array.shape, dtype=DTYPE_NUMBERS[array.dtype], data=array.to_bytes())  # type: ignore[arg-type]
