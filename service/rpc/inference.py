"""The servicer of inference.GRPCInferenceService, proto/inference/inference.proto."""

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from service.errors import ConflictingFields, WrongShape, WrongType
from service.lifecycle import Lifecycle
from service.metrics import Metrics
from service.oip.inference import (
    INPUT_DATATYPES,
    MAX_TENSORS,
    InferRequest,
    InferResponse,
    RequestedOutput,
    infer,
)
from service.oip.models import (
    UNLOAD_PARAMETERS,
    VERSION,
    check_parameters,
    describe_config,
    describe_model,
    describe_repository,
    describe_server,
    describe_statistics,
    find_model,
)
from service.oip.tensors import InputTensor, OutputTensor
from service.operations.inputs import too_many
from service.pb import inference_pb2 as pb
from service.request_log import RequestLog, current_admin, current_record
from service.rpc.messages import Context, Rejected, add_models, add_timing, deadline_of, identity_of, reject_malformed
from service.rpc.stream import Failed, StreamWork, respond_in_order, run_in_stream

SERVICE = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"]
PROBES = ("ServerLive", "ServerReady")
ADMIN_METHODS = ("RepositoryModelLoad", "RepositoryModelUnload")
CONTENTS = {"BYTES": "bytes_contents", "INT64": "int64_contents", "INT32": "int_contents", "BOOL": "bool_contents"}
FINAL_RESPONSE = "triton_final_response"
FP32_CONTENTS_TAG = b"\x32"
"""The tag of packed fp32_contents: field number 6, length-delimited."""


class InferenceServicer:
    """Translates requests and responses."""

    def __init__(self, lifecycle: Lifecycle, metrics: Metrics, requests: RequestLog) -> None:
        self._lifecycle = lifecycle
        self._metrics = metrics
        self._requests = requests

    @property
    def methods(self) -> dict[str, Callable[..., Any]]:
        """The methods by their names."""
        return {method.name: getattr(self, method.name) for method in SERVICE.methods}

    async def ServerLive(self, request: pb.ServerLiveRequest, context: Context) -> pb.ServerLiveResponse:
        return pb.ServerLiveResponse(live=self._lifecycle.alive)

    async def ServerReady(self, request: pb.ServerReadyRequest, context: Context) -> pb.ServerReadyResponse:
        return pb.ServerReadyResponse(ready=self._lifecycle.ready)

    async def ModelReady(self, request: pb.ModelReadyRequest, context: Context) -> pb.ModelReadyResponse:
        ready = self._lifecycle.ready
        if ready:
            find_model(self._lifecycle.models, request.name, request.version)
        return pb.ModelReadyResponse(ready=ready)

    async def ServerMetadata(self, request: pb.ServerMetadataRequest, context: Context) -> pb.ServerMetadataResponse:
        return pb.ServerMetadataResponse(**describe_server())

    async def ModelMetadata(self, request: pb.ModelMetadataRequest, context: Context) -> pb.ModelMetadataResponse:
        engine = find_model(self._lifecycle.models, request.name, request.version)
        return pb.ModelMetadataResponse(**describe_model(engine.info))

    async def ModelConfig(self, request: pb.ModelConfigRequest, context: Context) -> pb.ModelConfigResponse:
        engine = find_model(self._lifecycle.models, request.name, request.version)
        return pb.ModelConfigResponse(config=describe_config(engine.info))

    async def ModelStatistics(self, request: pb.ModelStatisticsRequest, context: Context) -> pb.ModelStatisticsResponse:
        models = self._lifecycle.models
        infos = [find_model(models, request.name, request.version).info] if request.name else models.infos
        return pb.ModelStatisticsResponse(**await describe_statistics(infos, self._metrics))

    async def RepositoryIndex(self, request: pb.RepositoryIndexRequest, context: Context) -> pb.RepositoryIndexResponse:
        index = describe_repository(self._lifecycle.models, self._lifecycle.unserved, only_ready=request.ready)
        return pb.RepositoryIndexResponse(models=index)

    async def RepositoryModelLoad(
        self, request: pb.RepositoryModelLoadRequest, context: Context
    ) -> pb.RepositoryModelLoadResponse:
        check_parameters(request.parameters, ())
        await self._lifecycle.repository.load(request.model_name, current_admin())
        return pb.RepositoryModelLoadResponse()

    async def RepositoryModelUnload(
        self, request: pb.RepositoryModelUnloadRequest, context: Context
    ) -> pb.RepositoryModelUnloadResponse:
        check_parameters(request.parameters, UNLOAD_PARAMETERS)
        await self._lifecycle.repository.unload(request.model_name, current_admin())
        return pb.RepositoryModelUnloadResponse()

    async def ModelInfer(self, request: pb.ModelInferRequest, context: Context) -> pb.ModelInferResponse:
        engine = find_model(self._lifecycle.models, request.model_name, request.model_version)
        response = await infer(engine, _infer_request(request, deadline_of(context)))
        add_models(context, identity_of(engine.info))
        add_timing(context, response.timing)
        return _infer_response(request, response)

    async def ModelStreamInfer(
        self, request_iterator: AsyncIterator[pb.ModelInferRequest | Rejected], context: Context
    ) -> AsyncIterator[pb.ModelStreamInferResponse]:
        call = current_record()
        assert call is not None
        _ = self._lifecycle.models  # raises `Unavailable` before the first request
        used: dict[str, None] = {}  # in order of first use
        stream = StreamWork()

        async def respond(message: pb.ModelInferRequest | Rejected) -> pb.ModelStreamInferResponse:
            async def run() -> pb.ModelInferResponse:
                reject_malformed(message)
                assert isinstance(message, pb.ModelInferRequest)
                engine = find_model(self._lifecycle.models, message.model_name, message.model_version)
                used[identity_of(engine.info)] = None
                return _infer_response(message, await infer(engine, _infer_request(message, deadline_of(context))))

            result = await run_in_stream(run, call, self._requests, stream)
            if isinstance(result, Failed):
                request_id = "" if isinstance(message, Rejected) else message.id
                return pb.ModelStreamInferResponse(
                    error_message=result.error.message, infer_response=pb.ModelInferResponse(id=request_id)
                )
            result.parameters[FINAL_RESPONSE].bool_param = True
            return pb.ModelStreamInferResponse(infer_response=result)

        responses = respond_in_order(request_iterator, respond)
        async with contextlib.aclosing(responses):
            async for response in responses:
                yield response
        add_models(context, *used)


def _infer_request(request: pb.ModelInferRequest, deadline: float | None) -> InferRequest:
    for name in ("inputs", "outputs"):
        count = len(getattr(request, name))
        if count > MAX_TENSORS:
            raise too_many(name, "tensors", count, MAX_TENSORS)
    raw = request.raw_input_contents
    if raw and len(raw) != len(request.inputs):
        problem = f"length {len(raw)}, but inputs has {len(request.inputs)}"
        raise WrongShape(problem, "Send one item per input.", field="raw_input_contents")
    return InferRequest(
        [_input_tensor(tensor, index, raw[index] if raw else None) for index, tensor in enumerate(request.inputs)],
        [
            RequestedOutput(f"outputs[{index}]", output.name, _parameters(output.parameters))
            for index, output in enumerate(request.outputs)
        ],
        _parameters(request.parameters),
        "binary",
        deadline,
    )


def _input_tensor(tensor: Any, index: int, raw: bytes | None) -> InputTensor:
    field, items = f"inputs[{index}]", None
    elements = f"{field}.contents" if raw is None else f"raw_input_contents[{index}]"
    if raw is None:
        items = _items(tensor, elements)
    elif tensor.HasField("contents"):
        raise ConflictingFields(
            "set, but raw_input_contents is not empty", "Send one of them.", field=f"{field}.contents"
        )
    parameters = _parameters(tensor.parameters)
    return InputTensor(field, tensor.name, tensor.datatype, tensor.shape, parameters, elements, raw, items)


def _items(tensor: Any, field: str) -> Any:
    """Return the elements. Raises `InvalidArgument` if they are in the field for another datatype."""
    name = CONTENTS.get(tensor.datatype, "bytes_contents")
    if tensor.datatype in INPUT_DATATYPES.get(tensor.name, ()):  # unsupported datatypes are rejected later
        for descriptor, _ in tensor.contents.ListFields():
            if descriptor.name != name:
                raise WrongType("wrong field", f"{tensor.datatype} uses {name}.", field=field, actual=descriptor.name)
    return getattr(tensor.contents, name)


def _parameters(parameters: Mapping[str, pb.InferParameter]) -> dict[str, Any]:
    """Return the values of parameters; None for a message without a value."""
    values: dict[str, Any] = {}
    for name, parameter in parameters.items():
        choice = parameter.WhichOneof("parameter_choice")
        values[name] = None if choice is None else getattr(parameter, choice)
    return values


def _infer_response(request: pb.ModelInferRequest, response: InferResponse) -> pb.ModelInferResponse:
    """Return the outputs in the same form as the inputs: raw bytes or typed contents."""
    message = pb.ModelInferResponse(model_name=response.first.model, model_version=VERSION, id=request.id)
    for output in response.outputs:
        tensor = message.outputs.add(name=output.name, datatype=output.datatype, shape=output.shape)
        if request.raw_input_contents:
            message.raw_output_contents.append(output.to_bytes())
        else:
            _set_contents(tensor.contents, output)
    return message


def _set_contents(contents: pb.InferTensorContents, output: OutputTensor) -> None:
    if output.datatype == "INT64":
        contents.int64_contents.extend(output.values.reshape(-1).tolist())
        return
    # On the wire, packed floats are plain little-endian bytes. A list of 16 million floats would take a second.
    data = output.to_bytes()
    contents.MergeFromString(b"".join((FP32_CONTENTS_TAG, _varint(len(data)), data)))


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
