"""Classify and Rerank: the messages as the engine's requests, and its responses as messages."""

from collections.abc import Mapping
from typing import Any, get_args

from service.engine.schema.labels import (
    ClassifyRequest,
    ClassifyResponse,
    RankExplanation,
    RerankRequest,
    RerankResponse,
)
from service.engine.schema.similarity import Effect, SimilarityUnit
from service.errors import UnknownValue
from service.limits import reject_spans
from service.pb import encoder_pb2 as pb
from service.rpc.codec import TRUNCATIONS, check_count, enum_label, enum_value, to_inputs, unit_message
from service.steps import Steps

# The value of each number of an enum, in the order of the Literals after the default. None lets the engine select.
UNITS = (None, *get_args(SimilarityUnit))
EFFECTS = ("none", *get_args(Effect))


def classify_request(request: pb.ClassifyRequest, limits: Mapping[str, int], deadline: float | None) -> ClassifyRequest:
    """Return the engine's request; raises `InvalidArgument` for values that no message should have."""
    inputs = to_inputs(request.inputs, limits)
    reject_spans(inputs)
    return ClassifyRequest(
        inputs,
        top_k=request.top_k if request.HasField("top_k") else None,
        **_common(request, deadline),
    )


def rerank_request(request: pb.RerankRequest, limits: Mapping[str, int], deadline: float | None) -> RerankRequest:
    """Return the engine's request; raises `InvalidArgument` for values that no message should have."""
    check_count("documents", len(request.documents), limits)
    return RerankRequest(
        request.query,
        tuple(request.documents),
        top_n=request.top_n if request.HasField("top_n") else None,
        explain_top=request.explain_top if request.HasField("explain_top") else None,
        **_common(request, deadline),
    )


def _common(request: pb.ClassifyRequest | pb.RerankRequest, deadline: float | None) -> dict[str, Any]:
    if request.unit == pb.UNIT_KIND_SPAN:
        raise UnknownValue(
            "UNIT_KIND_SPAN is not supported here", "Use UNIT_KIND_TOKEN or UNIT_KIND_WORD.", field="unit"
        )
    if request.effect == pb.EFFECT_LEAVE_ONE_OUT:
        raise UnknownValue("EFFECT_LEAVE_ONE_OUT is not supported here", "Use EFFECT_OCCLUSION.", field="effect")
    return {
        "raw_scores": request.raw_scores,
        "truncation": enum_value(TRUNCATIONS, request.truncation, "truncation"),
        "effect": enum_value(EFFECTS, request.effect, "effect"),
        "unit": enum_value(UNITS, request.unit, "unit"),
        "wire": "binary",
        "deadline": deadline,
    }


async def classify_response(response: ClassifyResponse) -> pb.ClassifyResponse:
    """Return the response as a message."""
    message = pb.ClassifyResponse(
        model=response.model,
        precision=enum_label("PRECISION", response.precision),
        usage=pb.Usage(tokens=response.token_count, truncated_inputs=response.truncated_inputs),
    )
    steps = Steps()
    async for result in steps.each(response.results):
        message.results.add(
            token_count=result.token_count,
            truncated=result.truncated,
            labels=[
                pb.Label(
                    label=label.label,
                    score=label.score,
                    effects=[] if label.effects is None else label.effects.to_list(),
                )
                for label in result.labels
            ],
            units=[unit_message(unit) for unit in result.units or ()],
        )
    return message


async def rerank_response(response: RerankResponse) -> pb.RerankResponse:
    """Return the response as a message."""
    message = pb.RerankResponse(
        model=response.model,
        precision=enum_label("PRECISION", response.precision),
        scored_by=enum_label("SCORED_BY", response.scored_by),
        usage=pb.Usage(tokens=response.token_count, truncated_inputs=response.truncated_inputs),
    )
    steps = Steps()
    async for result in steps.each(response.results):
        message.results.add(
            index=result.index,
            relevance_score=result.score,
            explanation=None if result.explanation is None else _explanation(result.explanation),
        )
    return message


def _explanation(explanation: RankExplanation) -> pb.RankExplanation:
    return pb.RankExplanation(
        query_units=[unit_message(unit) for unit in explanation.query_units],
        document_units=[unit_message(unit) for unit in explanation.document_units],
        query_effects=explanation.query_effects.to_list(),
        document_effects=explanation.document_effects.to_list(),
    )
