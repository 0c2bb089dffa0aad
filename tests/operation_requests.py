"""Requests to every operation, as JSON bodies and as gRPC messages."""

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from tests.fill_mask_requests import fill_mask_bodies, fill_mask_message
from tests.label_requests import (
    classify_bodies,
    classify_message,
    rerank_bodies,
    rerank_message,
    token_classify_bodies,
    token_classify_message,
)
from tests.request_strategies import (
    Body,
    ModelFacts,
    attend_bodies,
    compare_bodies,
    embeddings_bodies,
    encode_bodies,
    similarity_bodies,
    to_vector_message,
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


def requests(facts: ModelFacts) -> st.SearchStrategy[tuple[str, Body]]:
    """Draw pairs of an operation and its body; most often of the operations with the most fields."""
    frequent = ["rerank", "classify"] * 4 if facts.labels else ["encode", "attend"]
    frequent += ["token_classify"] * 8 if facts.token_labels else []
    frequent += ["fill_mask"] * 4 if facts.mask_token else []
    return st.sampled_from([*BODIES, *frequent]).flatmap(
        lambda operation: st.tuples(st.just(operation), BODIES[operation](facts))
    )


def to_message(operation: str, request: Body) -> Any:
    """Convert a body to a gRPC message, or return None if the proto lacks one of its fields."""
    own: dict[str, Callable[[Body], Any]] = {
        "rerank": rerank_message, "classify": classify_message, "token_classify": token_classify_message,
        "fill_mask": fill_mask_message,
    }  # fmt: skip
    return own[operation](request) if operation in own else to_vector_message(operation, request)
