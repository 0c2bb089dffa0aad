"""FillMask: the message as the engine's request, and its response as a message."""

from collections.abc import Mapping

from service.engine.schema.fill_mask import FillMaskRequest, FillMaskResponse
from service.limits import reject_spans
from service.pb import encoder_pb2 as pb
from service.rpc.codec import TRUNCATIONS, check_count, enum_label, enum_value, to_inputs, to_layers
from service.steps import Steps


def fill_mask_request(
    request: pb.FillMaskRequest, limits: Mapping[str, int], deadline: float | None
) -> FillMaskRequest:
    """Return the engine's request; raises `InvalidArgument` for values that no message should have."""
    inputs = to_inputs(request.inputs, limits)
    reject_spans(inputs)
    check_count("layers", len(request.layers), limits)
    check_count("targets", len(request.targets), limits)
    return FillMaskRequest(
        inputs,
        position=request.position if request.HasField("position") else None,
        layers=to_layers(request),
        top_k=request.top_k if request.HasField("top_k") else None,
        targets=tuple(request.targets) or None,
        truncation=enum_value(TRUNCATIONS, request.truncation, "truncation"),
        wire="binary",
        deadline=deadline,
    )


async def fill_mask_response(response: FillMaskResponse) -> pb.FillMaskResponse:
    """Return the response as a message."""
    message = pb.FillMaskResponse(
        model=response.model,
        precision=enum_label("PRECISION", response.precision),
        usage=pb.Usage(tokens=response.token_count, truncated_inputs=response.truncated_inputs),
    )
    steps = Steps()
    async for result in steps.each(response.results):
        filled = message.results.add(token_count=result.token_count, truncated=result.truncated)
        async for item in steps.each(result.positions):
            position = filled.positions.add(
                position=item.position, start=item.start, end=item.end, segment=item.segment
            )
            for layer in item.layers:
                position.layers.add(
                    layer=layer.layer,
                    predictions=[
                        pb.Prediction(token=word.token, id=word.id, probability=word.probability)
                        for word in layer.predictions
                    ],
                )
    return message
