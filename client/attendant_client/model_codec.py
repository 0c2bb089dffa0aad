"""The served model, decoded from REST JSON and gRPC messages."""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from attendant_client.model_info import (
    DataFileRecord,
    EvaluationRecord,
    Limits,
    ModelInfo,
    MultiVectorInfo,
    MultiVectorSide,
    QueryExpansion,
    SparseInfo,
    TrainingRecord,
)
from attendant_client.pb import encoder_pb2 as pb
from attendant_client.similarity_codec import enum_name, optional_field

ENUMS: dict[str, Any] = {
    "attention": pb.Attention,
    "pooling": pb.Pooling,
    "precision": pb.Precision,
    "provider": pb.Provider,
    "similarity": pb.SimilarityFunction,
    "truncation_side": pb.Truncation,
}


def from_json(document: Any) -> ModelInfo:
    """Decode a REST body."""
    limits = Limits(**{field.name: document["limits"][field.name] for field in fields(Limits)})
    training = document["training"]
    if training is not None:
        training = TrainingRecord(**{**training, "data": [DataFileRecord(**item) for item in training["data"]]})
    values = {field.name: document[field.name] for field in fields(ModelInfo)}
    values["multi_vector"] = _multi_vector_from_json(document["multi_vector"])
    values["sparse"] = None if document["sparse"] is None else SparseInfo(**document["sparse"])
    values["evaluations"] = [EvaluationRecord(**item) for item in document["evaluations"]]
    return ModelInfo(**values | {"training": training, "limits": limits})


def _multi_vector_from_json(document: Any) -> MultiVectorInfo | None:
    if document is None:
        return None
    expansion = document["query_expansion"]
    return MultiVectorInfo(
        document["dimensions"],
        MultiVectorSide(**document["query"]),
        MultiVectorSide(**document["document"]),
        None if expansion is None else QueryExpansion(**expansion),
    )


def from_messages(messages: Sequence[pb.Model]) -> ModelInfo:
    """Decode a gRPC message."""
    (message,) = messages
    names = [field.name for field in fields(ModelInfo)]
    values: dict[str, Any] = {name: getattr(message, name) for name in names}
    for name, enum in ENUMS.items():
        values[name] = enum_name(enum, values[name])
    values["attention_kinds"] = [enum_name(pb.AttentionKind, kind) for kind in message.attention_kinds]
    values["operations"] = [enum_name(pb.Operation, operation) for operation in message.operations]
    values["outputs"] = [enum_name(pb.Output, output) for output in message.outputs]
    values["labels"], values["token_labels"] = list(message.labels), list(message.token_labels)
    values["mask_token"] = message.mask_token or None
    vectors = optional_field(message, "multi_vector")
    values["multi_vector"] = None if vectors is None else _multi_vector_from_message(vectors)
    values["sparse"] = _sparse(message.sparse) if message.HasField("sparse") else None
    values["role_max_tokens"] = dict(message.role_max_tokens)
    values["aliases"] = list(message.aliases)
    values["prompts"] = dict(message.prompts)
    values["default_prompt_name"] = optional_field(message, "default_prompt_name")
    values["limits"] = Limits(**{field.name: getattr(message.limits, field.name) for field in fields(Limits)})
    values["training"] = _training(message.training) if message.HasField("training") else None
    values["evaluations"] = [
        EvaluationRecord(
            item.task, item.file, item.measure, item.value, optional_field(item, "low"), optional_field(item, "high")
        )
        for item in message.evaluations
    ]
    return ModelInfo(**values)


def _multi_vector_from_message(message: pb.MultiVectorInfo) -> MultiVectorInfo:
    query, document = (
        MultiVectorSide(side.max_input_tokens, side.marker or None) for side in (message.query, message.document)
    )
    expansion = None
    if message.HasField("query_expansion"):
        record = message.query_expansion
        expansion = QueryExpansion(record.token, record.length, record.attended)
    return MultiVectorInfo(message.dimensions, query, document, expansion)


def _sparse(message: pb.SparseInfo) -> SparseInfo:
    return SparseInfo(enum_name(pb.SimilarityFunction, message.similarity), optional_field(message, "max_active"))


def _training(message: pb.TrainingRecord) -> TrainingRecord:
    return TrainingRecord(
        message.objective,
        optional_field(message, "initial_model"),
        optional_field(message, "teacher"),
        [DataFileRecord(item.name, item.size) for item in message.data],
        message.steps,
        message.tokens,
        message.seed,
        message.precision,
        message.validation_loss,
    )
