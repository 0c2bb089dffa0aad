"""Similarity responses, decoded from REST JSON and gRPC messages."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from attendant_client.pb import encoder_pb2 as pb
from attendant_client.similarity_types import (
    ContributionRest,
    SharedEntry,
    SimilarityPair,
    SimilarityResponse,
    SimilarityText,
    TokenMatch,
    TopContributions,
)
from attendant_client.types import Floats, Unit

PROMPTS = ("query_prompt_name", "query_prompt", "document_prompt_name", "document_prompt")


def from_json(document: Any) -> SimilarityResponse:
    """Decode a REST body."""
    usage, pairs = document["usage"], document.get("pairs")
    return SimilarityResponse(
        model=document["model"],
        precision=document["precision"],
        similarity=document["similarity"],
        scores=_floats(document["scores"]),
        queries=[_text(text) for text in document["queries"]],
        documents=[_text(text) for text in document["documents"]],
        pairs=None if pairs is None else [_pair(pair) for pair in pairs],
        contributions_unavailable=document["contributions_unavailable"],
        token_count=usage["tokens"],
        truncated_inputs=usage["truncated_inputs"],
        **{name: document[name] for name in PROMPTS},
    )


def from_messages(messages: Sequence[pb.SimilarityResponse]) -> SimilarityResponse:
    """Decode a gRPC message."""
    (message,) = messages
    explained = bool(message.pairs)
    usage = message.usage
    return SimilarityResponse(
        model=message.model,
        precision=enum_name(pb.Precision, message.precision),
        similarity=enum_name(pb.SimilarityFunction, message.similarity),
        scores=_tensor(message.scores),
        queries=[_text_message(text, explained) for text in message.queries],
        documents=[_text_message(text, explained) for text in message.documents],
        pairs=[_pair_message(pair, message.similarity) for pair in message.pairs] if explained else None,
        contributions_unavailable=optional_field(message, "contributions_unavailable"),
        token_count=usage.tokens,
        truncated_inputs=usage.truncated_inputs,
        **{name: optional_field(message, name) for name in PROMPTS},
    )


def enum_name(enum: Any, number: int) -> str:
    """Return an enum value in REST spelling: "float32" for PRECISION_FLOAT32."""
    prefix = enum.Name(0).removesuffix("UNSPECIFIED")
    name: str = enum.Name(number)
    return name.removeprefix(prefix).lower()


def _floats(values: Any) -> Floats:
    return np.asarray(values, dtype=np.float32)


def _tensor(tensor: pb.Tensor) -> Floats:
    return np.frombuffer(tensor.data, "<f4").reshape(tuple(tensor.shape))


def optional_field(message: Any, name: str) -> Any:
    """Return an optional field, or None if it is unset."""
    return getattr(message, name) if message.HasField(name) else None


def to_unit(unit: pb.Unit) -> Unit:
    return Unit(unit.text, unit.start, unit.end, unit.segment, unit.special, optional_field(unit, "word_index"))


def _text(text: Any) -> SimilarityText:
    units = text.get("units")
    return SimilarityText(
        text["token_count"], text["truncated"], None if units is None else [Unit(**unit) for unit in units]
    )


def _text_message(text: pb.SimilarityText, explained: bool) -> SimilarityText:
    units = [to_unit(unit) for unit in text.units]
    return SimilarityText(text.token_count, text.truncated, units if explained else None)


def _pair(pair: Any) -> SimilarityPair:
    contributions = pair["contributions"]
    top = None
    if isinstance(contributions, dict):
        top = TopContributions(
            contributions["query_units"], contributions["document_units"], _floats(contributions["values"])
        )
    query_effects, document_effects = pair["query_effects"], pair["document_effects"]
    matches, products = pair.get("matches"), pair.get("products")
    return SimilarityPair(
        query=pair["query"],
        document=pair["document"],
        score=pair["score"],
        matrix=_floats(contributions) if isinstance(contributions, list) else None,
        top=top,
        rest=None if pair["rest"] is None else ContributionRest(**pair["rest"]),
        query_effects=None if query_effects is None else _floats(query_effects),
        document_effects=None if document_effects is None else _floats(document_effects),
        matches=None if matches is None else [TokenMatch(**match) for match in matches],
        products=None if products is None else [SharedEntry(**entry) for entry in products],
    )


def _pair_message(pair: pb.SimilarityPair, similarity: int) -> SimilarityPair:
    """Return a pair; gRPC does not distinguish no terms from terms of another similarity function."""
    kind = pair.WhichOneof("contributions")
    top, rest = pair.top, pair.rest
    has_effects = bool(pair.query_effects or pair.document_effects)
    return SimilarityPair(
        query=pair.query,
        document=pair.document,
        score=pair.score,
        matrix=_tensor(pair.matrix) if kind == "matrix" else None,
        top=TopContributions(list(top.query_units), list(top.document_units), _floats(top.values))
        if kind == "top"
        else None,
        rest=ContributionRest(rest.special_tokens, rest.prompt, rest.bias, rest.dropped)
        if pair.HasField("rest")
        else None,
        query_effects=_floats(pair.query_effects) if has_effects else None,
        document_effects=_floats(pair.document_effects) if has_effects else None,
        matches=[TokenMatch(match.query_unit, match.document_unit, match.value) for match in pair.matches]
        if similarity == pb.SIMILARITY_FUNCTION_MAXSIM
        else None,
        products=[SharedEntry(entry.token_id, entry.token, entry.value) for entry in pair.products]
        if similarity == pb.SIMILARITY_FUNCTION_SPARSE
        else None,
    )
