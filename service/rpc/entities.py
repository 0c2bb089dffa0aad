"""TokenClassify: the message as the engine's request, and its response as a message."""

from collections.abc import Mapping
from typing import get_args

from service.engine.schema.entities import Aggregation, TokenClassifyRequest, TokenClassifyResponse
from service.limits import reject_spans
from service.pb import encoder_pb2 as pb
from service.rpc.codec import TRUNCATIONS, enum_label, enum_value, to_inputs
from service.steps import Steps

# The value of each number of the enum; the first is the default. The proto lists them in the order of the Literal.
AGGREGATIONS = ("simple", *get_args(Aggregation))


def token_classify_request(
    request: pb.TokenClassifyRequest, limits: Mapping[str, int], deadline: float | None
) -> TokenClassifyRequest:
    """Return the engine's request; raises `InvalidArgument` for values that no message should have."""
    inputs = to_inputs(request.inputs, limits)
    reject_spans(inputs)
    return TokenClassifyRequest(
        inputs,
        aggregation=enum_value(AGGREGATIONS, request.aggregation, "aggregation"),
        truncation=enum_value(TRUNCATIONS, request.truncation, "truncation"),
        wire="binary",
        deadline=deadline,
    )


async def token_classify_response(response: TokenClassifyResponse) -> pb.TokenClassifyResponse:
    """Return the response as a message."""
    message = pb.TokenClassifyResponse(
        model=response.model,
        precision=enum_label("PRECISION", response.precision),
        usage=pb.Usage(tokens=response.token_count, truncated_inputs=response.truncated_inputs),
    )
    steps = Steps()
    async for result in steps.each(response.results):
        found = message.results.add(token_count=result.token_count, truncated=result.truncated)
        async for entity in steps.each(result.entities):
            found.entities.add(
                label=entity.label,
                score=entity.score,
                text=entity.text,
                start=entity.start,
                end=entity.end,
                segment=entity.segment,
            )
    return message
