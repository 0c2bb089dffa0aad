"""Inference: tensors of a request -> requests of the engine -> tensors of the response."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from service.engine.engine import Engine
from service.engine.schema.encode import EncodeRequest, EncodeResponse, Input, Timing, Wire
from service.engine.schema.explain import AttendRequest, AttendResponse
from service.engine.schema.labels import ClassifyRequest, ClassifyResponse
from service.engine.schema.model import ModelInfo
from service.engine.schema.operations import Output
from service.errors import ConflictingFields, Duplicate, ServiceError, UnknownValue, UnsupportedByModel, echo
from service.oip.inputs import InferSpelling, to_inputs
from service.oip.outputs import (
    ATTENTION,
    ENCODED,
    OUTPUTS,
    POOLED,
    SCORES,
    TOKEN_COUNTS,
    Results,
    supported,
)
from service.oip.parameters import OUTPUT_PARAMETERS, PATH, Options, check_tensor_parameters, listed, parse_parameters
from service.oip.tensors import InputTensor, OutputTensor

MAX_TENSORS = 8
"""Inputs or outputs that are accepted before their names are checked."""


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
        results = Results(
            await _encode(engine, plan), await _attend(engine, plan), await _classify(engine, plan), engine.info.labels
        )
    except ServiceError as error:
        error.spell(plan.spelling)
        raise
    outputs, response = [await results.tensor(name) for name in plan.outputs], results.first
    return InferResponse(response.model, response.precision, response.timing, outputs)


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
    return _Plan(inputs, outputs, options, request.wire, options.deadline(request.deadline), spelling)


def _needs_encoding(outputs: Sequence[str]) -> bool:
    """Return whether any output is a result of encoding; attention maps and scores have the token counts too."""
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
            raise UnknownValue("unknown output", f"Use {listed(supported(info))}.", field=f"{output.field}.name",
                               actual=echo(output.name))  # fmt: skip
        if output.name not in (*supported(info), ATTENTION):  # the engine knows why it has no attention maps
            raise UnsupportedByModel("not supported for this model", f"Use {listed(supported(info))}.",
                                     field=f"{output.field}.name", actual=output.name)  # fmt: skip
        if output.name in names:
            raise Duplicate("selected twice", "Remove one.", field=f"{output.field}.name")
        check_tensor_parameters(output.parameters, output.field, OUTPUT_PARAMETERS)
        names.append(output.name)
    return tuple(names) or (POOLED,)


async def _encode(engine: Engine, plan: _Plan) -> EncodeResponse | None:
    if not _needs_encoding(plan.outputs):
        return None
    options = plan.options
    outputs: dict[Output, None] = {ENCODED[name]: None for name in plan.outputs if name in ENCODED} or {"pooled": None}
    # A result's token count includes the prompt, whose tokens have no vectors.
    prompted = options.prompt_name is not None or engine.info.default_prompt_name is not None
    if TOKEN_COUNTS in plan.outputs and prompted:
        outputs["tokens"] = None
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


async def _classify(engine: Engine, plan: _Plan) -> ClassifyResponse | None:
    if SCORES not in plan.outputs:
        return None
    return await engine.classify(
        ClassifyRequest(
            plan.inputs,
            raw_scores=plan.options.raw_scores or False,
            truncation=plan.options.truncation or "error",
            wire=plan.wire,
            deadline=plan.deadline,
        )
    )
