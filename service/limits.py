"""Limits that the API adapters enforce: they count items before they convert any, and bound what they receive."""

from typing import get_args

from service.engine.schema.encode import ModelInfo, Output
from service.engine.validation import MAX_OCCURRENCES
from service.errors import InvalidArgument, RequestTooLarge

SPLIT = "Split the request."
REASONS = {
    "inputs": "too_many_inputs",
    "occurrences": "occurrence_count",
    "spans": "too_many_spans",
    "spans_per_request": "too_many_spans",
    "token_ids": "input_too_large",
}
REMEDIES = {
    "inputs": SPLIT,
    "occurrences": SPLIT,
    "spans_per_request": SPLIT,
    "token_ids": "Shorten the input.",
}


def item_limits(info: ModelInfo) -> dict[str, int]:
    """Return the greatest number of items of each list in a request."""
    limits = info.limits
    return {
        "inputs": limits.max_inputs,
        "spans": limits.max_spans_per_input,
        "spans_per_request": limits.max_spans_per_request,
        "token_ids": limits.max_input_characters,
        "occurrences": MAX_OCCURRENCES,
        "layers": len(info.layers),
        "heads": info.head_count,
        "outputs": len(get_args(Output)),
    }


def too_many(field: str, name: str, actual: int, limit: int) -> InvalidArgument | RequestTooLarge:
    """Return the error of a list over its limit; `name` is its key in `item_limits`."""
    reason = REASONS.get(name, "too_many_items")
    noun = "spans" if name == "spans_per_request" else "items"
    remedy = REMEDIES.get(name, "Remove some.")
    kind = RequestTooLarge if reason == "input_too_large" else InvalidArgument
    return kind(f"{field}: too many {noun} ({actual}, limit {limit}). {remedy}", reason=reason)
