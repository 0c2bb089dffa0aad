"""Limits that the API adapters enforce before they convert any item."""

from collections.abc import Sequence
from typing import get_args

from service.engine.operations.compare import MAX_OCCURRENCES
from service.engine.operations.fill_mask import MAX_TARGETS
from service.engine.schema.encode import Input, Truncation
from service.engine.schema.model import ModelInfo
from service.engine.schema.operations import Output
from service.errors import InvalidArgument, RequestTooLarge, TooMany, UnknownField

SPLIT = "Split the request."
REMEDIES = {
    "inputs": SPLIT,
    "documents": SPLIT,
    "occurrences": SPLIT,
    "spans_per_request": SPLIT,
    "token_ids": "Shorten the input.",
}


def item_limits(infos: Sequence[ModelInfo]) -> dict[str, int]:
    """Return the greatest number of items of each list in a request to one of these models."""
    limits = infos[0].limits
    return {
        "inputs": limits.max_inputs,
        "documents": limits.max_documents,
        "spans": limits.max_spans_per_input,
        "spans_per_request": limits.max_spans_per_request,
        "token_ids": max(info.limits.max_input_characters for info in infos),
        "occurrences": MAX_OCCURRENCES,
        "layers": max(info.num_hidden_layers + 1 for info in infos),
        "heads": max(info.num_attention_heads for info in infos),
        "outputs": len(get_args(Output)),
        "targets": MAX_TARGETS,
    }


def too_many(field: str, name: str, actual: int, limit: int) -> InvalidArgument | RequestTooLarge:
    """Return the error of a list over its limit; `name` is its key in `item_limits`."""
    problem = "too many spans in the request" if name == "spans_per_request" else "too many items"
    remedy = REMEDIES.get(name, "Remove some.")
    if name == "token_ids":
        return RequestTooLarge(problem, remedy, field=field, actual=actual, maximum=limit, reason="TOO_LONG")
    return TooMany(problem, remedy, field=field, actual=actual, maximum=limit)


def reject_spans(inputs: Sequence[Input]) -> None:
    """Raise `InvalidArgument` for an input with spans, for an operation that has no use for them."""
    for index, item in enumerate(inputs):
        if item.spans:
            raise UnknownField("not supported here", "Remove it.", field=f"inputs[{index}].spans")


def cut(text: str, truncation: Truncation, info: ModelInfo) -> str:
    """Return at most as many characters of a text that may be truncated as the engine accepts."""
    limit = info.limits.max_input_characters
    if truncation == "error" or len(text) <= limit:
        return text
    side = info.truncation_side if truncation == "auto" else truncation
    return text[:limit] if side == "right" else text[-limit:]
