"""Files of published models that tests write and change."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


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
