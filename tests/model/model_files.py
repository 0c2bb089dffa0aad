"""Files of published models and of artifacts that tests write and change."""

import copy
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import transformers
from hypothesis import strategies as st
from orjson import loads

from model.artifact.files import MANIFEST, MANIFEST_DIGEST


def read_json(path: Path) -> Any:
    return json.loads(path.read_text())


def write_json(path: Path, value: Any) -> None:
    """Write a file, and its directory if it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def change_json(path: Path, **changes: Any) -> None:
    """Change keys of an object, {} if the file is missing. None removes a key."""
    value = (read_json(path) if path.exists() else {}) | changes
    write_json(path, {key: item for key, item in value.items() if item is not None or key not in changes})


def write_chain(directory: Path, kinds: Mapping[str, str]) -> None:
    """Write modules.json; `kinds` names the class of the module in each subdirectory, "" for the model's directory."""
    modules = [
        {"idx": index, "name": str(index), "path": path, "type": kind}
        for index, (path, kind) in enumerate(kinds.items())
    ]
    write_json(directory / "modules.json", modules)


def copy_artifact(source: Path, folder: Path) -> Path:
    """Return a writable copy of an artifact in a folder."""
    root = folder / "artifact"
    root.mkdir()
    for path in source.iterdir():
        (root / path.name).write_bytes(path.read_bytes())
    return root


def rewrite_manifest(root: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the manifest and its digest, as an attacker with write access could."""
    value = json.loads((root / MANIFEST).read_text())
    change(value)
    body = json.dumps(value).encode()
    (root / MANIFEST).write_bytes(body)
    (root / MANIFEST_DIGEST).write_text(hashlib.sha256(body).hexdigest() + "\n")


OF_LOADING = ("architectures", "model_type", "auto_map", "dtype", "torch_dtype")
"""Keys that determine how transformers loads a model."""
NAMES = (
    "gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu", "tanh", "gated-gelu", "gated-silu", "absolute",
    "relative_key", "rotary", "alibi", "mean", "cls", "full_attention", "sliding_attention", "default", "linear",
    "dynamic", "llama3", "yarn", "c2p", "p2c|c2p", "none",
)  # fmt: skip
"""Values of keys that select one of several variants."""


@st.composite
def changed_keys(draw: st.DrawFn, config: dict[str, Any]) -> dict[str, Any]:
    """Draw another value for a key in `config`, in an object in it, or in the defaults of transformers."""
    defaults = loads(transformers.AutoConfig.for_model(config["model_type"]).to_json_string(use_diff=False))
    values = defaults | config
    first, *rest = draw(st.sampled_from([path for path in _paths(values) if path[0] not in OF_LOADING]))
    changed = {first: copy.deepcopy(values[first])}
    last, parent = first, changed
    for key in rest:
        last, parent = key, parent[last]
    parent[last] = draw(st.sampled_from(_other_values(parent[last])))
    return changed


@st.composite
def change_file(
    draw: st.DrawFn,
    directory: Path,
    files: Sequence[str],
    texts: Sequence[str],
    is_drawn: Callable[[tuple[Any, ...]], bool] = lambda path: True,
) -> tuple[str, tuple[Any, ...]]:
    """Give a key, or an element of a list, another value, or remove it; return the file and the path of the key.

    `texts` are values of keys that are texts.
    """
    name = draw(st.sampled_from(files))
    values = read_json(directory / name)
    path = draw(st.sampled_from([path for path in _paths(values, lists=True) if is_drawn(path)]))
    *parents, last = path
    parent = values
    for key in parents:
        parent = parent[key]
    if draw(st.integers(0, 3)):
        parent[last] = draw(st.sampled_from(_other_values(parent[last], texts)))
    else:
        del parent[last]
    write_json(directory / name, values)
    return name, path


def _paths(values: Any, parents: tuple[Any, ...] = (), *, lists: bool = False) -> Iterator[tuple[Any, ...]]:
    items = values.items() if isinstance(values, dict) else enumerate(values)
    for key, value in items:
        yield (*parents, key)
        if isinstance(value, dict) or (lists and isinstance(value, list)):
            yield from _paths(value, (*parents, key), lists=lists)


def _other_values(value: Any, names: Sequence[str] = NAMES) -> list[Any]:
    """Return other values of the same type, and values of other types. `names` are texts."""
    if isinstance(value, bool):
        return [not value, None]
    if isinstance(value, int):
        return [value + 1, value - 1, value * 2, 0, None]
    if isinstance(value, float):
        return [value * 3 + 0.1, value / 5, 0.0, None]
    if isinstance(value, list):
        return [value[::-1], value[:1] * len(value), [], None]
    return [name for name in names if name != value] + [True, 1, 8, 0.5, [], None]
