"""JSON documents with one absurd value, as in a damaged or hostile file."""

import copy
import json
from collections.abc import Iterator
from typing import Any

DEEP = "[" * 100_000 + "]" * 100_000
ABSURD: tuple[Any, ...] = (
    2**62, 2**31, 2**24, 2**20, 10**400, -1, 0, 1e308, float("nan"), float("inf"), None, True, "", "a" * 1000, [], {},
    [2**62], {"a": {}},
)  # fmt: skip
Place = tuple[str | int, ...]


def paths(document: Any, path: Place = ()) -> Iterator[Place]:
    """Yield the path of each value; in long lists and dictionaries, only for the first items."""
    if path:
        yield path
    items = (
        document.items() if isinstance(document, dict) else enumerate(document if isinstance(document, list) else ())
    )
    for key, value in [*items][: 40 if isinstance(document, dict) else 2]:
        yield from paths(value, (*path, key))


def replace(document: Any, path: Place, value: Any) -> str:
    """Return the document with another value at a path."""
    changed = copy.deepcopy(document)
    parent = changed
    for key in path[:-1]:
        parent = parent[key]
    parent[path[-1]] = value
    return json.dumps(changed)


def nest(document: Any, path: Place) -> str:
    """Return the document with a value at a path that is nested too deep to be read recursively."""
    return replace(document, path, "DEEP").replace('"DEEP"', DEEP)
