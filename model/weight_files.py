"""Names of weight files of published models: safetensors, or pickled files where a model has no safetensors."""

import re
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

PICKLED = re.compile(r"pytorch_model(-\d+-of-\d+)?\.bin")


def weight_files(directory: Path) -> list[Path]:
    """Return the weight files of a directory, by name: the safetensors files, or else the pickled ones."""
    safetensors = sorted(directory.glob("*.safetensors"))
    return safetensors or sorted(path for path in directory.glob("*.bin") if PICKLED.fullmatch(path.name))


def model_weight_files(directory: Path) -> list[Path]:
    """Return the weight files of a model, which may keep its encoder in a folder of its own."""
    folders = (path for path in sorted(directory.iterdir()) if path.is_dir())
    return weight_files(directory) or [path for folder in folders for path in weight_files(folder)]


def select_pickled(paths: Iterable[str]) -> list[str]:
    """Return the pickled weights, and indexes of them, in folders of a repository that have no safetensors file."""
    files = [PurePosixPath(path) for path in paths]
    safe = {file.parent for file in files if file.suffix == ".safetensors"}
    return [str(file) for file in files if file.parent not in safe and PICKLED.fullmatch(file.name)]
