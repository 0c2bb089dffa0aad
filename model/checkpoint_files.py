"""Safe reading of the files of a published model: JSON, safetensors, and pickled tensors without other objects."""

import json
import pickle
import warnings
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from model.console import EX_DATAERR
from model.weight_files import weight_files

SAFETENSORS = "model.safetensors"
PICKLED = "pytorch_model.bin"
LFS_POINTER = b"version https://git-lfs.github.com/spec/"


class CheckpointError(Exception):
    """Unsupported or invalid model files. The message names the file, tensor or setting."""

    status = EX_DATAERR


def reject_pointer(path: Path) -> None:
    """Raise CheckpointError if a file is a pointer of Git LFS, as in a repository cloned without Git LFS."""
    with path.open("rb") as file:
        if file.read(len(LFS_POINTER)) == LFS_POINTER:
            raise CheckpointError(f"{path}: a Git LFS pointer, not the file itself. Run: git lfs pull")


def require_finite(tensor: Tensor, name: str, file: str = "Weights") -> None:
    """Raise CheckpointError if a tensor contains NaN or infinity, also after its conversion to float32."""
    if not bool(tensor.float().isfinite().all()):
        raise CheckpointError(f"{file}: tensor {name} contains NaN or infinity. Download the model again.")


def read_tensors(directory: Path) -> dict[str, Tensor]:
    """Return all tensors of model.safetensors, or of the shards that its index lists.

    Without any safetensors file, pytorch_model.bin or its shards are read, restricted to tensors.

    Raises:
        CheckpointError: a file is missing or invalid.
    """
    is_pickled = any(path.suffix == ".bin" for path in weight_files(directory))
    first = PICKLED if is_pickled else SAFETENSORS
    tensors: dict[str, Tensor] = {}
    for name in _shards(directory / f"{first}.index.json") or [first]:
        path = directory / name
        if Path(name).name != name or not path.is_file():
            raise CheckpointError(f"{path}: missing. Use a model with safetensors or PyTorch weights.")
        reject_pointer(path)
        tensors.update(read_pickled(path) if is_pickled else _read_safetensors(path))
    return tensors


def _shards(index: Path) -> list[str]:
    """Return the names of the files in an index; none without it."""
    if not index.is_file():
        return []
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise CheckpointError(f"{index}: weight_map is not a map of tensors to file names. Download the model again.")
    return sorted(set(weight_map.values()))


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except SafetensorError as error:
        raise CheckpointError(f"{path}: not a safetensors file ({error}). Download the model again.") from None


def read_pickled(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a file that `torch.save` wrote.

    Unpickling can run any code. `weights_only` restricts it to tensors and plain containers, whatever the file says.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the protocol of a file that is rejected anyway
            tensors = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise CheckpointError(
            f"{path}: contains objects other than tensors, which can run code, or is damaged. Nothing was run. Use a "
            "model with safetensors weights."
        ) from None
    except (MemoryError, OSError):
        raise
    except Exception as error:  # noqa: BLE001  # a damaged file can raise any exception
        problem = str(error).partition("\n")[0]
        raise CheckpointError(f"{path}: not a file of tensors ({problem}). Download the model again.") from None
    if not isinstance(tensors, dict) or not all(
        isinstance(name, str) and isinstance(tensor, Tensor) and tensor.layout == torch.strided
        for name, tensor in tensors.items()
    ):
        raise CheckpointError(f"{path}: not a map of names to tensors. Use a model with safetensors weights.")
    return tensors


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file. Raises CheckpointError."""
    try:
        parsed = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path}: missing. Download the model again.") from None
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not JSON ({error}). Correct it, or download the model again.") from None
    if not isinstance(parsed, dict):
        raise CheckpointError(f"{path}: not a JSON object. Download the model again.")
    return parsed


def read_optional_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file, or an empty one if the file is missing. Raises CheckpointError."""
    return read_json(path) if path.is_file() else {}
