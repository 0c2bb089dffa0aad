"""Safe reading of the files of a published model: JSON and safetensors, never pickle."""

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from model.console import EX_DATAERR


class CheckpointError(Exception):
    """Unsupported or invalid model files. The message names the file, tensor or setting."""

    status = EX_DATAERR


def read_tensors(directory: Path) -> dict[str, Tensor]:
    """Return all tensors of model.safetensors, or of the shards that its index lists.

    Raises:
        CheckpointError: a file is missing or invalid.
    """
    index = directory / "model.safetensors.index.json"
    names = ["model.safetensors"]
    if index.is_file():
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
            raise CheckpointError(
                f"{index}: weight_map is not a map of tensors to file names. Download the model again."
            )
        names = sorted(set(weight_map.values()))
    tensors: dict[str, Tensor] = {}
    for name in names:
        path = directory / name
        if Path(name).name != name or not path.is_file():
            raise CheckpointError(f"{path}: missing. Convert the weights to safetensors (pickle files are not read).")
        try:
            tensors.update(load_file(path))
        except SafetensorError as error:
            raise CheckpointError(f"{path}: not a safetensors file ({error}). Download the model again.") from None
    return tensors


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file. Raises CheckpointError."""
    try:
        parsed = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path}: missing. Download the model again.") from None
    except ValueError:
        raise CheckpointError(f"{path}: not JSON. Download the model again.") from None
    if not isinstance(parsed, dict):
        raise CheckpointError(f"{path}: not a JSON object. Download the model again.")
    return parsed


def read_optional_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file, or an empty one if the file is missing. Raises CheckpointError."""
    return read_json(path) if path.is_file() else {}
