"""Building REST request bodies, and splitting them to fit the server's limits."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from attendant_client.errors import wrong_type
from attendant_client.model_info import Limits
from attendant_client.types import Input, Occurrence

Body = dict[str, Any]
Inputs = str | Input | Sequence[str | Input]


class Part(NamedTuple):
    """A body with consecutive inputs of a request; `first` is the index of the first one."""

    first: int
    body: Body


FILL = 0.9
"""Fraction of a byte limit to fill, because sizes are estimates."""
INPUT_BYTES = 64
"""Estimated size of an input, not counting its strings."""


def make_body(inputs: Inputs, **options: Any) -> Body:
    """Return a body, leaving out options that are None."""
    items = [inputs] if isinstance(inputs, (str, Input)) else to_list(inputs, "inputs")
    return {"inputs": [_item(item, f"inputs[{index}]") for index, item in enumerate(items)], **_present(options)}


def make_comparison(occurrences: Iterable[Occurrence], **options: Any) -> Body:
    """Return the body of a comparison, leaving out options that are None."""
    items = []
    for index, occurrence in enumerate(to_list(occurrences, "occurrences")):
        path = f"occurrences[{index}]"
        if not isinstance(occurrence, Occurrence):
            raise wrong_type(path, occurrence, "Send an Occurrence.")
        place: Body = {} if occurrence.span is None else {"span": to_list(occurrence.span, f"{path}.span")}
        if occurrence.word_index is not None:
            place["word_index"] = occurrence.word_index
        items.append({"text": occurrence.text, **place})
    return {"occurrences": items, **_present(options)}


def make_similarity(queries: str | Sequence[str], documents: str | Sequence[str], **options: Any) -> Body:
    """Return the body of a similarity request, leaving out options that are None."""
    texts = {"queries": queries, "documents": documents}
    lists = {name: [value] if isinstance(value, str) else to_list(value, name) for name, value in texts.items()}
    return {**lists, **_present(options)}


def make_ranking(query: str, documents: Sequence[str], **options: Any) -> Body:
    """Return the body of a rerank request, leaving out options that are None."""
    items = to_list(documents, "documents")
    for index, item in enumerate(items):
        if not isinstance(item, str):  # REST would accept an object with `text`
            raise wrong_type(f"documents[{index}]", item, "Send a string.")
    return {"query": query, "documents": items, **_present(options)}


def make_model_query(name: str | None) -> Body:
    """Return the fields of a model info request; None selects the default model."""
    if name is None:
        return {}
    if not isinstance(name, str):
        raise wrong_type("model", name, "Send a string.")
    return {"model": name}


def split_body(body: Body, limits: Limits, max_bytes: int) -> Iterator[Part]:
    """Yield the parts of a body. Each part is within the limits if its inputs are."""
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
    first, body = part
    middle = len(body["inputs"]) // 2
    return (
        Part(first, {**body, "inputs": body["inputs"][:middle]}),
        Part(first + middle, {**body, "inputs": body["inputs"][middle:]}),
    )


def to_list(value: Any, path: str) -> list[Any]:
    """Return the items as a list; raises `AttendantError` for a string or a value without items."""
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise wrong_type(path, value, "Send a list.")
    return list(value)


def find_surrogates(value: Any, path: str = "") -> str:
    """Return the path of the first string in a body that is not valid Unicode, or ""."""
    if isinstance(value, str):
        return path if any("\ud800" <= character <= "\udfff" for character in value) else ""
    items: Iterable[tuple[str, Any]] = ()
    if isinstance(value, Mapping):
        items = ((f"{path}.{name}" if path else name, item) for name, item in value.items())
    elif isinstance(value, list | tuple):
        items = ((f"{path}[{index}]", item) for index, item in enumerate(value))
    return next(filter(None, (find_surrogates(item, name) for name, item in items)), "")


def _item(item: str | Input, path: str) -> str | Body:
    if isinstance(item, str):
        return item
    if not isinstance(item, Input):
        raise wrong_type(path, item, "Send a string or an Input.")
    fields: Body = _present({"text": item.text, "pair": item.pair})
    if item.token_ids is not None:
        fields["token_ids"] = to_list(item.token_ids, f"{path}.token_ids")
    if item.spans:
        spans = to_list(item.spans, f"{path}.spans")
        fields["spans"] = [to_list(span, f"{path}.spans[{index}]") for index, span in enumerate(spans)]
    return fields


def _size(item: str | Body) -> int:
    return INPUT_BYTES + len(json.dumps(item))


def _present(options: Body) -> Body:
    lists = (range, tuple)  # json accepts tuples but not ranges
    return {
        name: list(value) if isinstance(value, lists) else value for name, value in options.items() if value is not None
    }
