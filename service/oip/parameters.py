"""Request parameters: options of the native API and of the protocol."""

import difflib
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from model.artifact.manifest import KINDS, POOLINGS, Kind, Pooling
from service.engine.schema.encode import Truncation
from service.engine.schema.explain import HeadReduce
from service.errors import (
    InvalidArgument,
    InvalidFormat,
    OutOfRange,
    UnknownField,
    UnknownValue,
    Unsupported,
    WrongType,
    echo,
    json_type,
)
from service.limits import too_many

CHOICES: dict[str, tuple[str, ...]] = {
    "truncation": get_args(Truncation),
    "pooling": POOLINGS,
    "kind": KINDS,
    "head_reduce": get_args(HeadReduce),
}
TYPES: dict[str, tuple[type, str]] = {
    **dict.fromkeys((*CHOICES, "layers", "prompt_name"), (str, "a string")),
    **dict.fromkeys(("dimensions", "timeout"), (int, "an integer")),
    **dict.fromkeys(("normalize", "raw_scores"), (bool, "true or false")),
}
IGNORED = ("binary_data_output", "priority", "triton_enable_empty_final_response")
"""Parameters of the protocol. The REST adapter reads the first one."""
SEQUENCE = ("sequence_id", "sequence_start", "sequence_end")
UNSUPPORTED_OF_OUTPUTS = ("classification",)
SHARED_MEMORY = ("shared_memory_region", "shared_memory_byte_size", "shared_memory_offset")
INPUT_PARAMETERS, OUTPUT_PARAMETERS = ("binary_data_size",), ("binary_data",)
PATH = "parameters"
LAYERS = re.compile(r"-?[0-9]{1,9}(,-?[0-9]{1,9})*")
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
MAX_NAME = 64
"""Longer names are compared with no other name."""
MICROSECONDS = 1_000_000


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a request; None if not set."""

    normalize: bool | None = None
    raw_scores: bool | None = None
    dimensions: int | None = None
    truncation: Truncation | None = None
    prompt_name: str | None = None
    pooling: Pooling | None = None
    kind: Kind | None = None
    layers: str | None = None
    head_reduce: HeadReduce | None = None
    timeout: int | None = None

    def deadline(self, other: float | None) -> float | None:
        """Return the earlier of two deadlines: the timeout in microseconds (0 is none) from now, and `deadline`."""
        if not self.timeout:
            return other
        own = time.monotonic() + self.timeout / MICROSECONDS
        return own if other is None else min(own, other)

    def layer_numbers(self, limit: int) -> tuple[int, ...] | None:
        """Return the layers of attention maps; None for all. Raises `InvalidArgument` for more than `limit`."""
        if self.layers in (None, "all"):
            return None
        assert self.layers is not None
        if not LAYERS.fullmatch(self.layers):
            raise InvalidFormat("not a list of layers", 'Send "all", or numbers like "1,-1".',
                                  field=f"{PATH}.layers")  # fmt: skip
        count = self.layers.count(",") + 1
        if count > limit:
            raise too_many(f"{PATH}.layers", "layers", count, limit)
        return tuple(map(int, self.layers.split(",")))


def parse_parameters(parameters: Mapping[str, Any]) -> Options:
    """Return the options. Raises `InvalidArgument` for unknown parameters and invalid values."""
    options: dict[str, Any] = {}
    for name, value in parameters.items():
        if name in IGNORED:
            continue
        if name in SEQUENCE:
            if value not in (0, "", False):
                raise Unsupported("sequences are not supported", "Leave it out.", field=f"{PATH}.{name}")
        elif name in TYPES:
            options[name] = _checked(name, value)
        else:
            raise _unknown(name, PATH, sorted((*TYPES, *IGNORED)))
    return Options(**options)


def check_tensor_parameters(parameters: Mapping[str, Any], field: str, known: Sequence[str]) -> None:
    """Raise an error for a parameter of a tensor other than the `known` ones, which have no effect here."""
    for name in parameters:
        if name in SHARED_MEMORY:
            raise Unsupported("shared memory is not supported", "Send the data.", field=f"{field}.parameters")
        if name in UNSUPPORTED_OF_OUTPUTS:
            raise Unsupported("classification is not supported", "Leave it out.", field=f"{field}.parameters")
        if name not in known:
            raise _unknown(name, f"{field}.parameters", known)


def _checked(name: str, value: Any) -> Any:
    """Return the value of an option; raises `InvalidArgument` unless it is valid."""
    field, (kind, noun) = f"{PATH}.{name}", TYPES[name]
    number: Any = value
    if type(value) is not kind:  # bool is a subclass of int
        raise WrongType("wrong type", f"Send {noun}.", field=field, actual=json_type(value))
    if name in CHOICES and value not in CHOICES[name]:
        raise UnknownValue("unknown value", f"Use {listed(CHOICES[name])}.", field=field, actual=echo(str(value)))
    if name == "timeout" and number < 0:
        raise OutOfRange("negative", "Send microseconds.", field=field, actual=number, minimum=0)
    return value


def _unknown(name: str, field: str, known: Sequence[str]) -> InvalidArgument:
    path = f"{field}.{name}" if NAME.fullmatch(name) else f"{field}.(another name)"
    remedy = f"Use {', '.join(known)}, or leave it out."
    nearest = difflib.get_close_matches(name, known, 1) if len(name) <= MAX_NAME else []
    if nearest:
        remedy = f'Did you mean "{nearest[0]}"? {remedy}'
    return UnknownField("unknown parameter", remedy, field=path)


def listed(names: Iterable[str]) -> str:
    """Return names as alternatives in prose."""
    *first, last = (f'"{name}"' for name in names)
    return f"{', '.join(first)} or {last}"
