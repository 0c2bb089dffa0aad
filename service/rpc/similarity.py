"""Similarity: the message as the engine's request, and its response as a message."""

from collections.abc import Mapping
from typing import get_args

from service.engine.schema.encode import AppliedPrompt, Array
from service.engine.schema.explain import Unit
from service.engine.schema.similarity import (
    Effect,
    PairResult,
    Pairs,
    SimilarityFunction,
    SimilarityRequest,
    SimilarityResponse,
    SimilarityText,
    SimilarityUnit,
)
from service.errors import UnknownValue
from service.pb import encoder_pb2 as pb
from service.rpc.codec import TRUNCATIONS, check_count, enum_label, enum_value, tensor, unit_message
from service.steps import Steps

# The value of each number of an enum; the first is the default. The proto lists them in the order of the Literals.
PAIRS = ("all", *get_args(Pairs))
SIMILARITIES = (None, *get_args(SimilarityFunction))
UNITS = ("token", *get_args(SimilarityUnit))
EFFECTS = ("none", *get_args(Effect))


def similarity_request(
    request: pb.SimilarityRequest, limits: Mapping[str, int], deadline: float | None
) -> SimilarityRequest:
    """Return the engine's request; raises `InvalidArgument` for values that no message should have."""
    for name in ("queries", "documents"):
        check_count("inputs", len(getattr(request, name)), limits, name)
    if request.unit == pb.UNIT_KIND_SPAN:
        raise UnknownValue(
            "UNIT_KIND_SPAN is not supported for similarity", "Use UNIT_KIND_TOKEN or UNIT_KIND_WORD.", field="unit"
        )
    return SimilarityRequest(
        queries=tuple(request.queries),
        documents=tuple(request.documents),
        pairs=enum_value(PAIRS, request.pairs, "pairs"),
        similarity=enum_value(SIMILARITIES, request.similarity, "similarity"),
        dimensions=request.dimensions if request.HasField("dimensions") else None,
        truncation=enum_value(TRUNCATIONS, request.truncation, "truncation"),
        query_prompt_name=request.query_prompt_name if request.HasField("query_prompt_name") else None,
        query_prompt=request.query_prompt if request.HasField("query_prompt") else None,
        document_prompt_name=request.document_prompt_name if request.HasField("document_prompt_name") else None,
        document_prompt=request.document_prompt if request.HasField("document_prompt") else None,
        explain=request.explain,
        unit=enum_value(UNITS, request.unit, "unit"),
        top_k=request.top_k if request.HasField("top_k") else None,
        effect=enum_value(EFFECTS, request.effect, "effect"),
        wire="binary",
        deadline=deadline,
    )


async def similarity_response(response: SimilarityResponse) -> pb.SimilarityResponse:
    """Return the response as a message."""
    message = pb.SimilarityResponse(
        model=response.model,
        precision=enum_label("PRECISION", response.precision),
        similarity=enum_label("SIMILARITY_FUNCTION", response.similarity),
        scores=tensor(response.scores),
        contributions_unavailable=response.unavailable,
        usage=pb.Usage(tokens=response.token_count, truncated_inputs=response.truncated_inputs),
        query_prompt_name=_name(response.query_prompt),
        query_prompt=_prompt(response.query_prompt),
        document_prompt_name=_name(response.document_prompt),
        document_prompt=_prompt(response.document_prompt),
    )
    steps = Steps()
    for texts, field in ((response.queries, message.queries), (response.documents, message.documents)):
        async for text in steps.each(texts):
            field.append(_text(text))
    async for pair in steps.each(response.pairs or ()):
        message.pairs.append(_pair(pair))
    return message


def _text(text: SimilarityText) -> pb.SimilarityText:
    units: list[Unit] = text.units or []
    return pb.SimilarityText(
        token_count=text.token_count, truncated=text.truncated, units=[unit_message(unit) for unit in units]
    )


def _pair(pair: PairResult) -> pb.SimilarityPair:
    top, rest = pair.top, pair.rest
    return pb.SimilarityPair(
        query=pair.query,
        document=pair.document,
        score=pair.score,
        matrix=tensor(pair.matrix),
        top=None
        if top is None
        else pb.TopContributions(
            query_units=top.query_units, document_units=top.document_units, values=top.values.to_list()
        ),
        rest=None
        if rest is None
        else pb.ContributionRest(
            special_tokens=rest.special_tokens, prompt=rest.prompt, bias=rest.bias, dropped=rest.dropped
        ),
        query_effects=_floats(pair.query_effects),
        document_effects=_floats(pair.document_effects),
        matches=[
            pb.TokenMatch(query_unit=match.query_unit, document_unit=match.document_unit, value=match.value)
            for match in pair.matches or ()
        ],
        products=[
            pb.SharedEntry(token_id=entry.token_id, token=entry.token, value=entry.value)
            for entry in pair.products or ()
        ],
    )


def _floats(array: Array | None) -> list[float]:
    return [] if array is None else array.to_list()


def _name(prompt: AppliedPrompt | None) -> str | None:
    return None if prompt is None else prompt.name


def _prompt(prompt: AppliedPrompt | None) -> str | None:
    return None if prompt is None else prompt.text
