"""Checkpoints of a run: written atomically, so that an interrupted write leaves the previous one."""

import io
import os
from pathlib import Path
from typing import Any

import torch

from model.train.config import TrainError, WriteError

CHECKPOINT = "checkpoint.pt"


def save_checkpoint(directory: Path, state: dict[str, Any]) -> None:
    """Write the state of a run, replacing the previous checkpoint. Raises WriteError if the disk is full."""
    body = io.BytesIO()
    torch.save(state, body)
    path = directory / CHECKPOINT
    temporary = path.with_suffix(".new")
    try:
        with temporary.open("wb") as file:
            file.write(body.getbuffer())
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise WriteError(
            f"{path}: cannot be written ({error.strerror}). Free disk space, then run the command again: it continues "
            "from the last checkpoint."
        ) from None


def load_checkpoint(directory: Path, device: torch.device) -> dict[str, Any] | None:
    """Return the state of a run, on `device`; None if the directory has no checkpoint.

    Raises TrainError if the checkpoint is damaged.
    """
    path = directory / CHECKPOINT
    if not path.is_file():
        return None
    try:
        state: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
    except Exception as error:  # noqa: BLE001  # torch.load raises many kinds
        raise TrainError(f"{path}: damaged ({type(error).__name__}). Remove it to start again.") from None
    return state
