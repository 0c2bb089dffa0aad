"""Inference: converts tensors and parameters to operations, runs them, and converts results to tensors."""

import asyncio
import difflib
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
from attendant_client.types import (
    DTYPES,
    Array,
    AttendRequest,
    AttendResponse,
    ClassifyRequest,
    ClassifyResponse,
    EncodeRequest,
    EncodeResponse,
    EncodeResult,
    HeadReduce,
    Input,
    Kind,
    ModelInfo,
    Output,
    Pooling,
    TextInputs,
    Truncation,
    required,
)

from service.engine.engine import Engine
from service.engine.lane import Timing
from service.errors import (
    ConflictingFields,
    Duplicate,
    Empty,
    InvalidArgument,
    InvalidFormat,
    OutOfRange,
    ServiceError,
    UnknownField,
    UnknownValue,
    Unsupported,
    UnsupportedByModel,
    WrongShape,
    WrongType,
    echo,
    json_type,
    missing_or_conflicting,
)
from service.oip.tensors import InputTensor, OutputTensor, check_axes, check_datatype, integers_of, strings_of
from service.operations.attend import attend
from service.operations.classify import classify
from service.operations.encode import encode, pooled_vectors
from service.operations.inputs import Call, Wire, item_limits, too_many
from service.spelling import IDS_SUFFIX, Spelling

# Parameters

CHOICES: dict[str, tuple[str, ...]] = {
    "truncation": get_args(Truncation),
    "pooling": get_args(Pooling),
    "kind": get_args(Kind),
    "head_reduce": get_args(HeadReduce),
}
TYPES: dict[str, tuple[type, str]] = {
    **dict.fromkeys((*CHOICES, "layers", "prompt_name"), (str, "a string")),
    **dict.fromkeys(("dimensions", "timeout"), (int, "an integer")),
    **dict.fromkeys(("normalize", "raw_scores"), (bool, "true or false")),
}
IGNORED = ("binary_data_output", "priority", "triton_enable_empty_final_response")
"""Protocol parameters without effect here. The REST adapter reads the first one."""
SEQUENCE = ("sequence_id", "sequence_start", "sequence_end")
UNSUPPORTED_OF_OUTPUTS = ("classification",)
SHARED_MEMORY = ("shared_memory_region", "shared_memory_byte_size", "shared_memory_offset")
INPUT_PARAMETERS, OUTPUT_PARAMETERS = ("binary_data_size",), ("binary_data",)
PATH = "parameters"
LAYERS = re.compile(r"-?[0-9]{1,9}(,-?[0-9]{1,9})*")
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
MAX_NAME = 64
"""Do not suggest corrections for names longer than this."""
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
    """Raise an error for tensor parameters other than the `known` ones, which have no effect here."""
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
        raise UnknownValue(
            "unknown value", f"Use {quote_alternatives(CHOICES[name])}.", field=field, actual=echo(str(value))
        )
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


def quote_alternatives(names: Iterable[str]) -> str:
    """Return names as alternatives in prose."""
    *first, last = (f'"{name}"' for name in names)
    return f"{', '.join(first)} or {last}"


# Inputs

TEXT, INPUT_IDS, ATTENTION_MASK = "text", "input_ids", "attention_mask"
INPUT_DATATYPES = {TEXT: ("BYTES",), INPUT_IDS: ("INT64", "INT32"), ATTENTION_MASK: ("INT64", "INT32", "BOOL")}

TEXT_SHAPES, IDS_SHAPE = "[N], [N, 1] or [N, 2]", "[N, T]"
"""Valid input shapes, for error messages. A row of two texts is a pair."""
MAX_COLUMNS = 2


@dataclass(frozen=True)
class InferSpelling(Spelling):
    """Translates names in error messages to tensors and parameters. `tensor`: the input tensor's name."""

    tensor: str = TEXT

    def path(self, path: str) -> str:
        if re.split(r"[.\[]", path, maxsplit=1)[0] in TYPES:
            return f"{PATH}.{path}"
        if path.startswith("inputs"):
            path = re.sub(r"\.pair$", "[1]", path.replace("inputs", self.tensor, 1))
        return path.removesuffix(IDS_SUFFIX)

    def option(self, field: str) -> str | None:
        return field if field in TYPES else None


def to_inputs(engine: Engine, tensors: Sequence[InputTensor]) -> tuple[InferSpelling, Sequence[Input]]:
    """Return the inputs, and their name for errors. Raises a `ServiceError` for invalid tensors."""
    by_name: dict[str, InputTensor] = {}
    for tensor in tensors:
        if tensor.name not in INPUT_DATATYPES:
            raise UnknownValue(
                "unknown input", f"Use {quote_alternatives(INPUT_DATATYPES)}.",
                field=f"{tensor.field}.name", actual=echo(tensor.name),
            )  # fmt: skip
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
            return InferSpelling(), TextInputs(strings)
        pairs = zip(strings[::2], strings[1::2], strict=True)
        return InferSpelling(), tuple(Input(item, pair) for item, pair in pairs)
    assert ids is not None
    rows = _rows(ids, mask, [("inputs", limits["inputs"]), ("token_ids", limits["token_ids"])])
    return InferSpelling(tensor=INPUT_IDS), tuple(Input(token_ids=engine.content_ids(row)) for row in rows)


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


# Outputs

POOLED, TOKENS, TOKEN_COUNTS, ATTENTION = "pooled", "tokens", "token_counts", "attention"
SCORES, SPARSE_TOKEN_IDS, SPARSE_WEIGHTS, MULTI_VECTOR = "scores", "sparse_token_ids", "sparse_weights", "multi_vector"
ENCODED: dict[str, Output] = {
    POOLED: "pooled",
    TOKENS: "tokens",
    SPARSE_TOKEN_IDS: "sparse",
    SPARSE_WEIGHTS: "sparse",
    MULTI_VECTOR: "multi_vector",
}
"""The encode output that each tensor is made from."""
OUTPUTS = (POOLED, TOKENS, TOKEN_COUNTS, ATTENTION, SCORES, SPARSE_TOKEN_IDS, SPARSE_WEIGHTS, MULTI_VECTOR)
INLINE_BYTES = 2**20
"""Outputs up to this size are copied on the event loop, in less than a millisecond."""


def describe_outputs(info: ModelInfo) -> list[tuple[str, str, list[int]]]:
    """Return name, datatype and shape of the outputs of a model; -1 is a size that depends on the request."""
    outputs = [
        (POOLED, "FP32", [-1, info.dimensions]),
        (TOKENS, "FP32", [-1, -1, info.hidden_size]),
        (TOKEN_COUNTS, "INT64", [-1]),
    ]
    if info.attention_kinds:
        outputs.append((ATTENTION, "FP32", [-1] * 5))
    if "classify" in info.operations:
        outputs.append((SCORES, "FP32", [-1, len(info.labels)]))
    if "sparse" in info.outputs:
        outputs += [(SPARSE_TOKEN_IDS, "INT64", [-1, -1]), (SPARSE_WEIGHTS, "FP32", [-1, -1])]
    if "multi_vector" in info.outputs:
        outputs.append((MULTI_VECTOR, "FP32", [-1, -1, -1]))
    return outputs


def supported(info: ModelInfo) -> list[str]:
    """Return the output names of a model."""
    return [name for name, *_ in describe_outputs(info)]


@dataclass(frozen=True, slots=True)
class Results:
    """The responses of a request's operations, at least one, and the labels in the order of `scores`."""

    encoded: EncodeResponse | None
    attended: AttendResponse | None
    classified: ClassifyResponse | None
    labels: Sequence[str]

    @property
    def first(self) -> EncodeResponse | AttendResponse | ClassifyResponse:
        """The response that provides the model and precision returned to the client."""
        response = self.encoded or self.classified or self.attended
        assert response is not None
        return response

    async def tensor(self, name: str) -> OutputTensor:
        """Return an output: float32 or int64, with zeros where an input is shorter than the longest one."""
        if name == TOKEN_COUNTS:
            return OutputTensor(name, np.array(self._token_counts(), np.int64))
        if name == SCORES:
            assert self.classified is not None
            scores = [{item.label: item.score for item in result.labels} for result in self.classified.results]
            return OutputTensor(name, np.array([[row[label] for label in self.labels] for row in scores], np.float32))
        if name == ATTENTION:
            assert self.attended is not None
            maps = [result.maps for result in self.attended.results]
            matrices = [[required(item.matrix) for item in of_input] for of_input in maps]
            layers = len({item.layer for item in maps[0]})
            size = max(of_input[0].nbytes for of_input in matrices) * len(matrices[0]) * len(matrices)
            return OutputTensor(name, await _copy(size, lambda: pad_maps(matrices, layers)))
        assert self.encoded is not None
        if name == POOLED:
            return OutputTensor(name, pooled_vectors(self.encoded))
        arrays = [_values(result, name) for result in self.encoded.results]
        dtype = np.dtype(np.int64) if name == SPARSE_TOKEN_IDS else DTYPES["float32"]
        size = max(array.size for array in arrays) * len(arrays) * dtype.itemsize
        return OutputTensor(name, await _copy(size, lambda: pad(arrays, dtype)))

    def _token_counts(self) -> list[int]:
        if self.encoded is not None:
            return [
                result.token_count if result.token_vectors is None else len(result.token_vectors)
                for result in self.encoded.results
            ]
        if self.attended is not None:
            return [len(result.units) for result in self.attended.results]
        assert self.classified is not None
        return [result.token_count for result in self.classified.results]


def _values(result: EncodeResult, name: str) -> Array:
    """Return one input's values of an output."""
    if name in (SPARSE_TOKEN_IDS, SPARSE_WEIGHTS):
        assert result.sparse is not None
        return result.sparse.token_ids if name == SPARSE_TOKEN_IDS else result.sparse.weights
    return required({TOKENS: result.token_vectors, MULTI_VECTOR: result.multi_vector}[name])


def pad(arrays: Sequence[Array], dtype: "np.dtype[Any]") -> Array:
    """Pad N arrays of different lengths into one, (N, longest, ...)."""
    longest = max(map(len, arrays))
    padded = np.zeros((len(arrays), longest, *arrays[0].shape[1:]), dtype)
    for row, array in zip(padded, arrays, strict=True):
        row[: len(array)] = array
    return padded


def pad_maps(matrices: Sequence[Sequence[Array]], layers: int) -> Array:
    """Pad the maps (T, T) of N inputs, first layer first, into a float32 array (N, L, H, T_max, T_max)."""
    longest = max(len(of_input[0]) for of_input in matrices)
    padded = np.zeros((len(matrices), len(matrices[0]), longest, longest), DTYPES["float32"])
    for block, of_input in zip(padded, matrices, strict=True):
        for target, matrix in zip(block, of_input, strict=True):
            target[: len(matrix), : len(matrix)] = matrix
    return padded.reshape(len(matrices), layers, -1, longest, longest)


async def _copy(size: int, work: Callable[[], Array]) -> Array:
    """Call `work`, in a thread if it copies many bytes."""
    return work() if size <= INLINE_BYTES else await asyncio.to_thread(work)


# Requests

MAX_TENSORS = 8
"""Maximum number of inputs, and of outputs, before their names are checked."""


@dataclass(frozen=True, slots=True)
class RequestedOutput:
    """An output that the client selected; `field` is its path in the request."""

    field: str
    name: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class InferRequest:
    """A request without its model. `wire` is "json" if any output will be sent as JSON, for size estimates."""

    inputs: Sequence[InputTensor]
    outputs: Sequence[RequestedOutput]
    parameters: Mapping[str, Any]
    wire: Wire
    deadline: float | None


@dataclass(frozen=True, slots=True)
class InferResponse:
    """The outputs in the order of the request, and the response and timing of the first operation."""

    first: EncodeResponse | AttendResponse | ClassifyResponse
    timing: Timing
    outputs: list[OutputTensor]


@dataclass(frozen=True, slots=True)
class _Plan:
    """A validated request."""

    inputs: Sequence[Input]
    outputs: tuple[str, ...]
    options: Options
    spelling: InferSpelling
    call: Call


async def infer(engine: Engine, request: InferRequest) -> InferResponse:
    """Run the model. Cancellation drops queued tasks. Raises a `ServiceError`."""
    plan = _plan(engine, request)
    try:
        encoded, timing = await _encode(engine, plan), plan.call.timing
        attended = await _attend(engine, plan)
        timing = timing if encoded is not None else plan.call.timing
        classified = await _classify(engine, plan)
    except ServiceError as error:
        error.spell(plan.spelling)
        raise
    if classified is not None and encoded is None:
        timing = plan.call.timing
    results = Results(encoded, attended, classified, engine.info.labels)
    return InferResponse(results.first, timing, [await results.tensor(name) for name in plan.outputs])


def _plan(engine: Engine, request: InferRequest) -> _Plan:
    options = parse_parameters(request.parameters)
    outputs = _outputs(request.outputs, engine.info)
    if ATTENTION not in outputs:
        _check_unset(options, ("kind", "layers", "head_reduce"), ATTENTION)
    if POOLED not in outputs:
        _check_unset(options, ("normalize", "dimensions", "pooling"), POOLED)
    if SCORES not in outputs:
        _check_unset(options, ("raw_scores",), SCORES)
    if not _needs_encoding(outputs):
        _check_unset(options, ("prompt_name",), POOLED)
    spelling, inputs = to_inputs(engine, request.inputs)
    call = Call(options.deadline(request.deadline), request.wire, padded=True)
    return _Plan(inputs, outputs, options, spelling, call)


def _needs_encoding(outputs: Sequence[str]) -> bool:
    """Return whether any output requires encoding; attention maps and scores come with token counts, too."""
    return not ENCODED.keys().isdisjoint(outputs) or {ATTENTION, SCORES}.isdisjoint(outputs)


def _check_unset(options: Options, names: Sequence[str], output: str) -> None:
    for name in names:
        if getattr(options, name) is not None:
            raise ConflictingFields(f'set, but "{output}" is missing from outputs', f"Add it or leave {name} out.",
                                  field=f"{PATH}.{name}")  # fmt: skip


def _outputs(requested: Sequence[RequestedOutput], info: ModelInfo) -> tuple[str, ...]:
    names: list[str] = []
    for output in requested:
        if output.name not in OUTPUTS:
            raise UnknownValue(
                "unknown output", f"Use {quote_alternatives(supported(info))}.",
                field=f"{output.field}.name", actual=echo(output.name),
            )  # fmt: skip
        if output.name not in (*supported(info), ATTENTION):  # the engine's error explains why there are no maps
            raise UnsupportedByModel("not supported for this model", f"Use {quote_alternatives(supported(info))}.",
                                     field=f"{output.field}.name", actual=output.name)  # fmt: skip
        if output.name in names:
            raise Duplicate("selected twice", "Remove one.", field=f"{output.field}.name")
        check_tensor_parameters(output.parameters, output.field, OUTPUT_PARAMETERS)
        names.append(output.name)
    return tuple(names) or (POOLED,)


async def _encode(engine: Engine, plan: _Plan) -> EncodeResponse | None:
    options = plan.options
    # The token count of a vector or of scores includes the prompt, whose tokens have no vectors.
    prompted = options.prompt_name is not None or engine.info.default_prompt_name is not None
    counts_vectors = prompted and TOKEN_COUNTS in plan.outputs
    if not _needs_encoding(plan.outputs) and (ATTENTION in plan.outputs or not counts_vectors):
        return None
    outputs: dict[Output, None] = {ENCODED[name]: None for name in plan.outputs if name in ENCODED} or {"pooled": None}
    if counts_vectors:
        outputs["tokens"] = None
    request = EncodeRequest(
        plan.inputs,
        outputs=tuple(outputs),
        pooling=options.pooling,
        normalize=options.normalize,
        dimensions=options.dimensions,
        truncation=options.truncation or "error",
        prompt_name=options.prompt_name,
    )
    return await encode(engine, request, plan.call)


async def _attend(engine: Engine, plan: _Plan) -> AttendResponse | None:
    if ATTENTION not in plan.outputs:
        return None
    options = plan.options
    request = AttendRequest(
        plan.inputs,
        kind=options.kind or "probs",
        layers=options.layer_numbers(engine.info.num_hidden_layers) or "all",
        head_reduce=options.head_reduce or "none",
        truncation=options.truncation or "error",
    )
    return await attend(engine, request, plan.call)


async def _classify(engine: Engine, plan: _Plan) -> ClassifyResponse | None:
    if SCORES not in plan.outputs:
        return None
    options = plan.options
    request = ClassifyRequest(
        plan.inputs, raw_scores=options.raw_scores or False, truncation=options.truncation or "error"
    )
    return await classify(engine, request, plan.call)
