"""Pickled weights of published models: only tensors are read, and no code is run."""

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from model.checkpoint import load_checkpoint
from model.source.published import CheckpointError


class CreatesDirectory:
    """An object that creates a directory when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("save", [torch.save, lambda payload, path: path.write_bytes(pickle.dumps(payload))])
def test_pickled_code_is_rejected_and_not_run(
    source: Path, tmp_path: Path, save: Callable[[object, Path], object]
) -> None:
    """`torch.save` writes a ZIP archive; older files are bare pickles."""
    tensors = load_file(source / "model.safetensors")
    (source / "model.safetensors").unlink()
    save({**tensors, "payload": CreatesDirectory(tmp_path / "unpickled")}, source / "pytorch_model.bin")
    with pytest.raises(
        CheckpointError, match=r"pytorch_model\.bin: contains objects other than tensors.*Nothing was run"
    ):
        load_checkpoint(source)
    assert not (tmp_path / "unpickled").exists()
    torch.load(source / "pytorch_model.bin", weights_only=False) if save is torch.save else pickle.loads(
        (source / "pytorch_model.bin").read_bytes()
    )
    assert (tmp_path / "unpickled").exists()


def split_pickled(source: Path, shards: int) -> None:
    """Replace model.safetensors by pickled shards and their index, or by one file."""
    tensors = load_file(source / "model.safetensors")
    (source / "model.safetensors").unlink()
    if shards == 1:
        torch.save(tensors, source / "pytorch_model.bin")
        return
    names = [f"pytorch_model-{number:05}-of-{shards:05}.bin" for number in range(1, shards + 1)]
    weight_map = {name: names[index % shards] for index, name in enumerate(tensors)}
    for file in names:
        torch.save({name: tensors[name] for name in tensors if weight_map[name] == file}, source / file)
    (source / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))


@pytest.mark.parametrize("shards", [1, 3])
def test_pickled_tensors_equal_safetensors(source: Path, shards: int) -> None:
    expected = load_checkpoint(source).encoder.state_dict()
    split_pickled(source, shards)
    state = load_checkpoint(source).encoder.state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in expected.items())


def test_safetensors_are_preferred_to_pickled_weights(source: Path) -> None:
    (source / "pytorch_model.bin").write_bytes(b"not read")
    load_checkpoint(source)


def test_missing_pickled_shard_is_named(source: Path) -> None:
    split_pickled(source, 3)
    (source / "pytorch_model-00002-of-00003.bin").unlink()
    with pytest.raises(CheckpointError, match=r"pytorch_model-00002-of-00003\.bin: missing"):
        load_checkpoint(source)


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ([torch.zeros(1)], "not a map of names to tensors"),
        ({"a": "text"}, "not a map of names to tensors"),
        (b"", "not a file of tensors"),
        (b"PK\x03\x04damaged", "not a file of tensors"),
        (b"text", "not a file of tensors"),
    ],
)
def test_other_pickled_contents_are_rejected(source: Path, contents: object, message: str) -> None:
    (source / "model.safetensors").unlink()
    if isinstance(contents, bytes):
        (source / "pytorch_model.bin").write_bytes(contents)
    else:
        torch.save(contents, source / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=rf"pytorch_model\.bin: .*{message}"):
        load_checkpoint(source)
