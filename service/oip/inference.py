"""Inference: tensors of a request -> requests of the engine -> tensors of the response."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from service.engine.engine import Engine
from service.engine.padding import pad_maps, pad_matrices, stack_vectors
from service.engine.schema.encode import (
    Array,
    EncodeRequest,
    EncodeResponse,
    EncodeResult,
    Input,
    Timing,
    Wire,
)
from service.engine.schema.explain import AttendRequest, AttendResponse
from service.engine.schema.operations import Output
from service.errors import ConflictingFields, Duplicate, ServiceError, UnknownValue, echo
from service.oip.inputs import InferSpelling, to_inputs
from service.oip.parameters import OUTPUT_PARAMETERS, PATH, Options, check_tensor_parameters, listed, parse_parameters
from service.oip.tensors import InputTensor, OutputTensor

POOLED, TOKENS, TOKEN_COUNTS, ATTENTION = "pooled", "tokens", "token_counts", "attention"
OUTPUTS = (POOLED, TOKENS, TOKEN_COUNTS, ATTENTION)
MAX_TENSORS = 8
"""Inputs or outputs that are accepted before their names are checked."""
INLINE_BYTES = 2**20
"""Outputs up to this size are copied on the event loop, in less than a millisecond."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RequestedOutput:
    """An output that the client selected; `field` is its path in the request."""

    field: str
    name: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class InferRequest:
    """A request without its model; `wire` is "json" if any output is to be sent as JSON, which decides its size."""

    inputs: Sequence[InputTensor]
    outputs: Sequence[RequestedOutput]
    parameters: Mapping[str, Any]
    wire: Wire
    deadline: float | None


@dataclass(frozen=True, slots=True)
class InferResponse:
    """The outputs in the order of the request."""

    model: str
    precision: str
    timing: Timing
    outputs: list[OutputTensor]


@dataclass(frozen=True, slots=True)
class _Plan:
    """A checked request."""

    inputs: tuple[Input, ...]
    outputs: tuple[str, ...]
    options: Options
    wire: Wire
    deadline: float | None
    spelling: InferSpelling


async def infer(engine: Engine, request: InferRequest) -> InferResponse:
    """Run the model. Cancellation drops queued tasks. Raises a `ServiceError`."""
    plan = _plan(engine, request)
    try:
        encoded = await _encode(engine, plan)
        attended = await _attend(engine, plan)
    except ServiceError as error:
        error.spell(plan.spelling)
        raise
    outputs = [OutputTensor(name, await _values(name, encoded, attended)) for name in plan.outputs]
    response = encoded or attended
    assert response is not None
    return InferResponse(response.model, response.precision, response.timing, outputs)


def _plan(engine: Engine, request: InferRequest) -> _Plan:
    options = parse_parameters(request.parameters)
    outputs = _outputs(request.outputs)
    if ATTENTION not in outputs:
        _check_unset(options, ("kind", "layers", "head_reduce"), ATTENTION)
    if POOLED not in outputs:
        _check_unset(options, ("normalize", "dimensions", "pooling"), POOLED)
    if not _needs_encoding(outputs):
        _check_unset(options, ("prompt_name",), POOLED)
    spelling, inputs = to_inputs(engine, request.inputs)
    return _Plan(inputs, outputs, options, request.wire, options.deadline(request.deadline), spelling)


def _needs_encoding(outputs: Sequence[str]) -> bool:
    """Return whether any output is a result of encoding; attention maps have the token counts too."""
    return not {POOLED, TOKENS}.isdisjoint(outputs) or ATTENTION not in outputs


def _check_unset(options: Options, names: Sequence[str], output: str) -> None:
    for name in names:
        if getattr(options, name) is not None:
            raise ConflictingFields(f'set, but "{output}" is missing from outputs', f"Add it or leave {name} out.",
                                  field=f"{PATH}.{name}")  # fmt: skip


def _outputs(requested: Sequence[RequestedOutput]) -> tuple[str, ...]:
    names: list[str] = []
    for output in requested:
        if output.name not in OUTPUTS:
            raise UnknownValue("unknown output", f"Use {listed(OUTPUTS)}.", field=f"{output.field}.name",
                               actual=echo(output.name))  # fmt: skip
        if output.name in names:
            raise Duplicate("selected twice", "Remove one.", field=f"{output.field}.name")
        check_tensor_parameters(output.parameters, output.field, OUTPUT_PARAMETERS)
        names.append(output.name)
    return tuple(names) or (POOLED,)


async def _encode(engine: Engine, plan: _Plan) -> EncodeResponse | None:
    if not _needs_encoding(plan.outputs):
        return None
    options = plan.options
    outputs: list[Output] = []
    if POOLED in plan.outputs or TOKENS not in plan.outputs:
        outputs.append("pooled")
    # A result's token count includes the prompt, whose tokens have no vectors.
    prompted = options.prompt_name is not None or engine.info.default_prompt_name is not None
    if TOKENS in plan.outputs or (TOKEN_COUNTS in plan.outputs and prompted):
        outputs.append("tokens")
    return await engine.encode(
        EncodeRequest(
            plan.inputs,
            tuple(outputs),
            pooling=options.pooling,
            normalize=options.normalize,
            dimensions=options.dimensions,
            truncation=options.truncation or "error",
            prompt_name=options.prompt_name,
            wire=plan.wire,
            deadline=plan.deadline,
            padded=True,
        )
    )


async def _attend(engine: Engine, plan: _Plan) -> AttendResponse | None:
    if ATTENTION not in plan.outputs:
        return None
    options = plan.options
    return await engine.attend(
        AttendRequest(
            plan.inputs,
            kind=options.kind or "probs",
            layers=options.layer_numbers(engine.info.num_hidden_layers),
            head_reduce=options.head_reduce or "none",
            truncation=options.truncation or "error",
            wire=plan.wire,
            deadline=plan.deadline,
            padded=True,
        )
    )


async def _values(name: str, encoded: EncodeResponse | None, attended: AttendResponse | None) -> Array | list[int]:
    """Return the values of an output."""
    if name == ATTENTION:
        assert attended is not None
        return await _padded_maps(attended)
    if encoded is None:
        assert attended is not None
        return [len(result.units) for result in attended.results]
    results = encoded.results
    if name == TOKEN_COUNTS:
        return [_token_count(result) for result in results]
    if name == POOLED:
        return stack_vectors([_present(result.pooled) for result in results])
    matrices = [_present(result.token_vectors) for result in results]
    return await _run(max(map(_size, matrices)) * len(matrices), lambda: pad_matrices(matrices))


async def _padded_maps(attended: AttendResponse) -> Array:
    maps = [result.maps for result in attended.results]
    largest = max(_size(of_input[0].matrix) for of_input in maps)
    layers = len({item.layer for item in maps[0]})
    return await _run(largest * len(maps[0]) * len(maps), lambda: pad_maps(maps, layers))


def _token_count(result: EncodeResult) -> int:
    return result.token_count if result.token_vectors is None else result.token_vectors.shape[0]


def _present(array: Array | None) -> Array:
    assert array is not None
    return array


def _size(array: Array | None) -> int:
    """Return a size in bytes."""
    return int(_present(array).values.nbytes)


async def _run(size: int, work: Callable[[], T]) -> T:
    """Run `work` in a thread if it copies many bytes."""
    return work() if size <= INLINE_BYTES else await asyncio.to_thread(work)
