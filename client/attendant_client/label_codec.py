"""Rerank, classify and token-classify responses, decoded from REST JSON and gRPC messages."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from attendant_client.label_types import (
    ClassifyResponse,
    ClassifyResult,
    Entity,
    Label,
    RankedDocument,
    RankExplanation,
    RerankResponse,
    TokenClassifyResponse,
    TokenClassifyResult,
)
from attendant_client.pb import encoder_pb2 as pb
from attendant_client.similarity_codec import enum_name, to_unit
from attendant_client.types import Floats, Unit


def rerank_from_json(document: Any) -> RerankResponse:
    """Decode a REST body."""
    results = [
        RankedDocument(result["index"], result["relevance_score"], _explanation(result.get("explanation")))
        for result in document["results"]
    ]
    usage = document["usage"]
    return RerankResponse(
        document["model"],
        document["precision"],
        results,
        usage["tokens"],
        usage["truncated_inputs"],
        document["scored_by"],
    )


def rerank_from_messages(messages: Sequence[pb.RerankResponse]) -> RerankResponse:
    """Decode a gRPC message."""
    (message,) = messages
    results = [
        RankedDocument(
            result.index,
            to_score(result.relevance_score),
            _explanation_message(result.explanation) if result.HasField("explanation") else None,
        )
        for result in message.results
    ]
    usage, precision = message.usage, enum_name(pb.Precision, message.precision)
    scored_by = enum_name(pb.ScoredBy, message.scored_by)
    return RerankResponse(message.model, precision, results, usage.tokens, usage.truncated_inputs, scored_by)


def classify_from_json(document: Any) -> ClassifyResponse:
    """Decode a REST body."""
    results = [
        ClassifyResult(
            result["token_count"],
            result["truncated"],
            [Label(label["label"], label["score"], _effects(label.get("effects"))) for label in result["labels"]],
            [Unit(**unit) for unit in result.get("units", ())] or None,
        )
        for result in document["results"]
    ]
    usage = document["usage"]
    return ClassifyResponse(
        document["model"], document["precision"], results, usage["tokens"], usage["truncated_inputs"]
    )


def classify_from_messages(messages: Sequence[pb.ClassifyResponse]) -> ClassifyResponse:
    """Decode a gRPC message."""
    (message,) = messages
    results = [
        ClassifyResult(
            result.token_count,
            result.truncated,
            [Label(label.label, to_score(label.score), _effects(label.effects)) for label in result.labels],
            [to_unit(unit) for unit in result.units] or None,
        )
        for result in message.results
    ]
    usage, precision = message.usage, enum_name(pb.Precision, message.precision)
    return ClassifyResponse(message.model, precision, results, usage.tokens, usage.truncated_inputs)


def token_classify_from_json(document: Any) -> TokenClassifyResponse:
    """Decode a REST body."""
    results = [
        TokenClassifyResult(
            result["token_count"], result["truncated"], [Entity(**entity) for entity in result["entities"]]
        )
        for result in document["results"]
    ]
    usage = document["usage"]
    return TokenClassifyResponse(
        document["model"], document["precision"], results, usage["tokens"], usage["truncated_inputs"]
    )


def token_classify_from_messages(messages: Sequence[pb.TokenClassifyResponse]) -> TokenClassifyResponse:
    """Decode a gRPC message."""
    (message,) = messages
    results = [
        TokenClassifyResult(result.token_count, result.truncated, [_entity(entity) for entity in result.entities])
        for result in message.results
    ]
    usage, precision = message.usage, enum_name(pb.Precision, message.precision)
    return TokenClassifyResponse(message.model, precision, results, usage.tokens, usage.truncated_inputs)


def _entity(entity: pb.Entity) -> Entity:
    return Entity(entity.label, to_score(entity.score), entity.text, entity.start, entity.end, entity.segment)


def to_score(value: float) -> float:
    """Return the number with the fewest digits that is `value` in float32, which is the score over REST."""
    return float(str(np.float32(value)))


def _floats(values: Any) -> Floats:
    return np.asarray(values, dtype=np.float32)


def _effects(values: Any) -> Floats | None:
    """Return the effects, or None if there are none: gRPC does not distinguish unset from empty."""
    return _floats(values) if values else None


def _explanation(explanation: Any) -> RankExplanation | None:
    if explanation is None:
        return None
    return RankExplanation(
        query_units=[Unit(**unit) for unit in explanation["query_units"]],
        document_units=[Unit(**unit) for unit in explanation["document_units"]],
        query_effects=_floats(explanation["query_effects"]),
        document_effects=_floats(explanation["document_effects"]),
    )


def _explanation_message(explanation: pb.RankExplanation) -> RankExplanation:
    return RankExplanation(
        query_units=[to_unit(unit) for unit in explanation.query_units],
        document_units=[to_unit(unit) for unit in explanation.document_units],
        query_effects=_floats(explanation.query_effects),
        document_effects=_floats(explanation.document_effects),
    )
