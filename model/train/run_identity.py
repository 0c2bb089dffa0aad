"""The options that decide the result of a run. A run continues only with the same ones."""

import hashlib
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from model.artifact import MANIFEST
from model.model_source import digest_weights
from model.train.config import ModelOptions, TrainConfig, TrainError


def options_of(config: TrainConfig) -> dict[str, Any]:
    """Return the options that decide the result of a run, by their names, as JSON values.

    Files are represented by their SHA-256: they may be moved or copied, but not changed.
    """
    tables: dict[str, Any] = config.model_dump(mode="json")
    for name in ("checkpoint_steps", "validation_steps", "validation_batches"):
        del tables["run"][name]
    del tables["data"]["validation"]
    tables["data"]["train"] = [_digest(path) for path in config.data.train]
    if config.model.init is not None and Path(config.model.init).is_dir():
        tables["model"]["init"] = digest_weights(Path(config.model.init))
    if config.distillation is not None:
        tables["distillation"]["teacher"] = _digest(config.distillation.teacher / MANIFEST)
    options = {}
    for table, values in tables.items():
        for name, value in (values or {"": None}).items():
            options[f"{table}.{name}"] = value
    return options


def _digest(path: Path) -> str:
    try:
        status = path.stat()
        return _digest_version(path, status.st_size, status.st_mtime_ns)
    except OSError as error:
        raise TrainError(f"{path}: cannot be read ({error.strerror}). Correct the path.") from None


@lru_cache
def _digest_version(path: Path, size: int, modified_ns: int) -> str:
    """Return the digest of a file. A run needs it twice, and corpora are large."""
    with path.open("rb") as file:
        return "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()


def check_same_options(options: Mapping[str, Any], saved: Mapping[str, Any], directory: Path) -> None:
    """Raise TrainError if a run in `directory` was started with other options.

    A run of an older version lacks new options of the model. Their defaults are its behavior.
    """
    defaults = {f"model.{name}": field.default for name, field in ModelOptions.model_fields.items()}
    saved = defaults | dict(saved)
    for name in sorted({*options, *saved}):
        if options.get(name) != saved.get(name):
            raise TrainError(
                f"{directory}: has a run with another {name} ({_shorten(saved.get(name))}, now "
                f"{_shorten(options.get(name))}). Choose another directory, or remove this one to start again."
            )


def _shorten(value: Any) -> str:
    """Return a value of an option for an error, with the first digits of a digest."""
    return re.sub(r"(sha256:\w{12})\w+", r"\1", repr(value))
