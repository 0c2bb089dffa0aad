"""The options of the client's methods, written from the requests of the contract: one typed dict per operation."""

import ast
import textwrap
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from attendant_client import types
from attendant_client.wire import fields_of

REQUESTS = {
    "encode": types.EncodeRequest,
    "attend": types.AttendRequest,
    "compare": types.CompareRequest,
    "similarity": types.SimilarityRequest,
    "rerank": types.RerankRequest,
    "classify": types.ClassifyRequest,
    "token_classify": types.TokenClassifyRequest,
    "fill_mask": types.FillMaskRequest,
}
CHOSEN_BY_CLIENT = ("encoding_format", "decimals")
"""How arrays are sent, which the client decides."""
WIDTH = 120
HEADER = '''"""Keyword options of the client's methods, all optional. Generated from types.py by `make proto`."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

from attendant_client.types import (
{names}
)
'''


def describe_client_options() -> str:
    """Return the source of attendant_client/options.py."""
    source = ast.parse(Path(types.__file__).read_text(encoding="utf-8"))
    aliases = {
        item.targets[0].id: item.value
        for item in source.body
        if isinstance(item, ast.Assign) and isinstance(item.targets[0], ast.Name)
    }
    classes = {item.name: item for item in source.body if isinstance(item, ast.ClassDef)}
    body = "".join(_describe(name, request, classes, aliases) for name, request in REQUESTS.items())
    used = {node.id for node in ast.walk(ast.parse(body)) if isinstance(node, ast.Name)}
    names = sorted(used & (aliases.keys() | classes.keys()))
    return HEADER.format(names="\n".join(f"    {name}," for name in names)) + body


def _describe(operation: str, request: Any, classes: dict[str, ast.ClassDef], aliases: dict[str, ast.expr]) -> str:
    annotations = {
        item.target.id: item.annotation
        for item in classes[request.__name__].body
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
    }
    described = {item.name: item.description for item in fields_of(request)}
    name = request.__name__.replace("Request", "Options")
    text = f'\n\nclass {name}(TypedDict, total=False):\n    """Options of `{operation}`."""\n'
    for item in fields(request):
        if item.default is MISSING or item.name in CHOSEN_BY_CLIENT:
            continue
        kind = _plain(annotations[item.name], aliases)
        if kind.startswith("ChunkOptions"):
            kind = kind.replace("ChunkOptions", "ChunkOptions | Mapping[str, Any]")
        text += f"\n    {item.name}: {kind}\n{_docstring(described[item.name], item.default)}"
    return text


def _plain(annotation: ast.expr, aliases: dict[str, ast.expr]) -> str:
    """Return a type without what `Annotated` adds to it."""
    if isinstance(annotation, ast.Name) and isinstance(aliases.get(annotation.id), ast.Subscript):
        alias = aliases[annotation.id]
        return _plain(alias, aliases) if "Annotated" in ast.unparse(alias) else annotation.id
    if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "Annotated":
        assert isinstance(annotation.slice, ast.Tuple)
        return _plain(annotation.slice.elts[0], aliases)
    return ast.unparse(annotation).replace("'", '"')


def _docstring(description: str | None, default: Any) -> str:
    assert description, "each option has a description"
    text = description.replace("null", "None")
    if default is not None:
        text += f" Default: {list(default) if isinstance(default, tuple) else default!r}."
    lines = textwrap.wrap(f'"""{text}', WIDTH - 4 - 3, initial_indent="    ", subsequent_indent="    ")
    return "\n".join(lines) + ('"""\n' if len(lines) == 1 else '\n    """\n')
