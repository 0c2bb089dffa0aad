"""Changes of one key of config.json, drawn by hypothesis."""

import copy
from collections.abc import Iterator
from typing import Any

import transformers
from hypothesis import strategies as st
from orjson import loads

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


def _paths(values: dict[str, Any], parents: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in values.items():
        yield (*parents, key)
        if isinstance(value, dict):
            yield from _paths(value, (*parents, key))


def _other_values(value: Any) -> list[Any]:
    """Return other values of the same type, and values of other types."""
    if isinstance(value, bool):
        return [not value, None]
    if isinstance(value, int):
        return [value + 1, value - 1, value * 2, 0, None]
    if isinstance(value, float):
        return [value * 3 + 0.1, value / 5, 0.0, None]
    if isinstance(value, list):
        return [value[::-1], value[:1] * len(value), [], None]
    return [name for name in NAMES if name != value] + [True, 1, 8, 0.5, [], None]
