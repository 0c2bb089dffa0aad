"""Request bodies, as the REST API defines them, and their division by the limits of the server."""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from attendant_client.types import Input, Limits, Occurrence

Body = dict[str, Any]
Inputs = str | Input | Sequence[str | Input]


class Part(NamedTuple):
    """A body with consecutive inputs of a request; `first` is the index of the first of them."""

    first: int
    body: Body


FILL = 0.9
"""The part of a byte limit to use: sizes are estimates."""
INPUT_BYTES = 64
"""Size of an input without its strings."""


def make_body(inputs: Inputs, **options: Any) -> Body:
    """Return a body; options that are None are left out."""
    items = [inputs] if isinstance(inputs, (str, Input)) else list(inputs)
    return {"inputs": [_item(item) for item in items], **_present(options)}


def make_comparison(occurrences: Iterable[Occurrence], **options: Any) -> Body:
    """Return the body of a comparison; options that are None are left out."""
    items = []
    for occurrence in occurrences:
        place: Body = {} if occurrence.span is None else {"span": list(occurrence.span)}
        if occurrence.word_index is not None:
            place["word_index"] = occurrence.word_index
        items.append({"text": occurrence.text, **place})
    return {"occurrences": items, **_present(options)}


def make_similarity(queries: str | Sequence[str], documents: str | Sequence[str], **options: Any) -> Body:
    """Return the body of a similarity request; options that are None are left out."""
    texts = {"queries": queries, "documents": documents}
    lists = {name: [value] if isinstance(value, str) else list(value) for name, value in texts.items()}
    return {**lists, **_present(options)}


def split_body(body: Body, limits: Limits, max_bytes: int) -> Iterator[Part]:
    """Yield the parts of a body, each within the limits if its inputs are."""
    part: list[Any] = []
    first = size = spans = 0
    for item in body["inputs"]:
        item_size, item_spans = _size(item), len(item.get("spans", ())) if isinstance(item, dict) else 0
        full = (
            len(part) >= limits.max_inputs
            or size + item_size > FILL * max_bytes
            or spans + item_spans > limits.max_spans_per_request
        )
        if part and full:
            yield Part(first, {**body, "inputs": part})
            first += len(part)
            part, size, spans = [], 0, 0
        part.append(item)
        size += item_size
        spans += item_spans
    if part or not body["inputs"]:
        yield Part(first, {**body, "inputs": part})


def halves(part: Part) -> tuple[Part, Part]:
    """Return two parts with half of the inputs each."""
    first, body = part
    middle = len(body["inputs"]) // 2
    return (
        Part(first, {**body, "inputs": body["inputs"][:middle]}),
        Part(first + middle, {**body, "inputs": body["inputs"][middle:]}),
    )


def _item(item: str | Input) -> str | Body:
    if isinstance(item, str):
        return item
    fields: Body = _present({"text": item.text, "pair": item.pair})
    if item.token_ids is not None:
        fields["token_ids"] = list(item.token_ids)
    if item.spans:
        fields["spans"] = [list(span) for span in item.spans]
    return fields


def _size(item: str | Body) -> int:
    return INPUT_BYTES + len(json.dumps(item))


def _present(options: Body) -> Body:
    return {name: value for name, value in options.items() if value is not None}
