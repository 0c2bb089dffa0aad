"""Requests to every operation, as JSON bodies and as gRPC messages."""

from collections.abc import Callable
from typing import Any

from google.protobuf import json_format
from hypothesis import strategies as st

from service.pb import encoder_pb2 as pb
from tests.fill_mask_requests import fill_mask_bodies
from tests.label_requests import (
    classify_bodies,
    rerank_bodies,
    token_classify_bodies,
)
from tests.request_strategies import (
    Body,
    ModelFacts,
    attend_bodies,
    compare_bodies,
    embeddings_bodies,
    encode_bodies,
    similarity_bodies,
    tokenize_bodies,
)

BODIES: dict[str, Callable[[ModelFacts], st.SearchStrategy[Body]]] = {
    "encode": encode_bodies,
    "attend": attend_bodies,
    "compare": compare_bodies,
    "similarity": similarity_bodies,
    "rerank": rerank_bodies,
    "classify": classify_bodies,
    "token_classify": token_classify_bodies,
    "fill_mask": fill_mask_bodies,
    "tokenize": tokenize_bodies,
    "embeddings": embeddings_bodies,
}


MESSAGES: dict[str, Callable[[], Any]] = {
    "encode": pb.EncodeRequest,
    "attend": pb.AttendRequest,
    "compare": pb.CompareRequest,
    "similarity": pb.SimilarityRequest,
    "rerank": pb.RerankRequest,
    "classify": pb.ClassifyRequest,
    "token_classify": pb.TokenClassifyRequest,
    "fill_mask": pb.FillMaskRequest,
    "tokenize": pb.TokenizeRequest,
}


def requests(facts: ModelFacts) -> st.SearchStrategy[tuple[str, Body]]:
    """Draw pairs of an operation and its body; most often of the operations with the most fields."""
    frequent = ["rerank", "classify"] * 4 if facts.labels else ["encode", "attend"]
    frequent += ["token_classify"] * 8 if facts.token_labels else []
    frequent += ["fill_mask"] * 4 if facts.mask_token else []
    return st.sampled_from([*BODIES, *frequent]).flatmap(
        lambda operation: st.tuples(st.just(operation), BODIES[operation](facts))
    )


def to_message(operation: str, request: Body) -> Any:
    """Convert a body to a gRPC message, or return None if the proto lacks one of its fields or combinations."""
    message = MESSAGES[operation]()
    fields = message.DESCRIPTOR.fields_by_name
    values = {name: value for name, value in request.items() if name != "encoding_format"}  # the format of JSON
    if values.get("layers") == "all":
        del values["layers"]
        values |= {"all_layers": True} if "all_layers" in fields else {}
    if values.keys() - fields.keys() or values.get("targets") == []:
        return None
    choices = [fields[name].containing_oneof.name for name in values if fields[name].containing_oneof is not None]
    if len(choices) != len(set(choices)):
        return None
    for name in ("inputs", "queries", "documents"):
        if isinstance(values.get(name), str):
            values[name] = [values[name]]
    return json_format.ParseDict({name: _to_proto(fields[name], value) for name, value in values.items()}, message)


def _to_proto(field: Any, value: Any) -> Any:
    """Return the value of a field as protobuf's JSON has it."""
    kind = field.message_type.name if field.message_type is not None else ""
    if kind == "TokenIds":
        return {"ids": value}
    if kind == "Span" and value and isinstance(value[0], int):
        return {"start": value[0], "end": value[1]}
    if isinstance(value, list):
        return [_to_proto(field, item) for item in value]
    if field.enum_type is not None:
        return field.enum_type.values[0].name.removesuffix("UNSPECIFIED") + value.upper()
    if not kind:
        return value["text"] if isinstance(value, dict) else value
    value = {"text": value} if isinstance(value, str) else value
    return {name: _to_proto(field.message_type.fields_by_name[name], item) for name, item in value.items()}
