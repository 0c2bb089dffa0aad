"""The files of a published model, read without trusting them: JSON and safetensors, never a pickle."""

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor


class CheckpointError(Exception):
    """The files are not a model we can load; the message names the file, tensor or setting."""


def read_tensors(directory: Path) -> dict[str, Tensor]:
    """All tensors of model.safetensors, or of the shards that its index names."""
    index = directory / "model.safetensors.index.json"
    names = ["model.safetensors"]
    if index.is_file():
        listed = read_json(index).get("weight_map")
        if not isinstance(listed, dict) or not all(isinstance(name, str) for name in listed.values()):
            raise CheckpointError(f"{index}: no map of tensors to files.")
        names = sorted(set(listed.values()))
    tensors: dict[str, Tensor] = {}
    for name in names:
        path = directory / name
        if Path(name).name != name or not path.is_file():
            raise CheckpointError(f"{path}: missing. Only safetensors weights are read, never a pickle.")
        try:
            tensors.update(load_file(path))
        except SafetensorError as error:
            raise CheckpointError(f"{path}: not a safetensors file ({error}).") from None
    return tensors


def read_json(path: Path) -> dict[str, Any]:
    try:
        parsed = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path}: missing.") from None
    except ValueError:
        raise CheckpointError(f"{path}: not JSON.") from None
    if not isinstance(parsed, dict):
        raise CheckpointError(f"{path}: not a JSON object.")
    return parsed


def read_optional(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}
