"""NaN and infinity in any tensor of a published model, also in one row that no test text reaches."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from model.checkpoint import load_checkpoint
from model.source.published import CheckpointError
from tests.labels import CLASSIFIER, TOKEN_CLASSIFIER, publish_classifier
from tests.model.retriever_cases import BGE_M3, UNTIED_CASES, publish_splade
from tests.model.tiny_tokenizers import BUILDERS
from tests.retrievers import INFERENCE_FREE, SPLADE, publish_retriever


def publish_untied(kind: str) -> Path:
    """Return a SPLADE model whose projection weight is not tied."""
    directory = publish_retriever(SPLADE).parent / "untied"
    if not directory.exists():
        publish_splade(UNTIED_CASES[kind], directory, BUILDERS["wordpiece"]().to_str().encode())
    return directory


def write_value(path: Path, name: str, value: float) -> None:
    """Write a value at the end of a tensor, in a file of either format."""
    is_pickled = path.suffix == ".pt"
    tensors = torch.load(path, weights_only=True) if is_pickled else load_file(path)
    tensors[name].view(-1)[-1] = value
    (torch.save if is_pickled else save_file)(tensors, path)


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
@pytest.mark.parametrize(
    ("publish", "kind", "file", "tensor"),
    [
        (publish_classifier, CLASSIFIER, "model.safetensors", "classifier.weight"),
        (publish_classifier, TOKEN_CLASSIFIER, "model.safetensors", "classifier.bias"),
        (publish_retriever, SPLADE, "model.safetensors", "bert.embeddings.word_embeddings.weight"),
        (publish_retriever, SPLADE, "model.safetensors", "cls.predictions.decoder.bias"),
        (publish_retriever, SPLADE, "model.safetensors", "cls.predictions.transform.LayerNorm.weight"),
        (publish_untied, "bert, untied", "model.safetensors", "cls.predictions.decoder.weight"),
        (publish_retriever, BGE_M3, "sparse_linear.pt", "weight"),
        (publish_retriever, BGE_M3, "colbert_linear.pt", "bias"),
        (publish_retriever, INFERENCE_FREE, "*/model.safetensors", "weight"),
        (publish_retriever, "stanford", "model.safetensors", "linear.weight"),
        (publish_retriever, "native, causal", "*_Dense/model.safetensors", "linear.weight"),
    ],
)
def test_tensor_that_is_not_finite_is_named(
    publish: Callable[[str], Path], kind: str, file: str, tensor: str, value: float, tmp_path: Path
) -> None:
    source = Path(shutil.copytree(publish(kind), tmp_path / "source"))
    found = [path for path in source.glob(file) if tensor in (load_file(path) if path.suffix != ".pt" else tensor)]
    write_value(found[0], tensor, value)
    shown = "Weights" if file == "model.safetensors" else f"{found[0].parent.name}/{found[0].name}".split("source/")[-1]
    with pytest.raises(CheckpointError) as error:
        load_checkpoint(source)
    assert str(error.value) == f"{shown}: tensor {tensor} contains NaN or infinity. Download the model again."


def test_double_that_overflows_in_float32_is_rejected(published: Path, tmp_path: Path) -> None:
    source = Path(shutil.copytree(published, tmp_path / "source"))
    tensors = load_file(source / "model.safetensors")
    name = "embeddings.word_embeddings.weight"
    tensors[name] = tensors[name].double()
    tensors[name][-1, -1] = 1e300
    save_file(tensors, source / "model.safetensors")
    with pytest.raises(CheckpointError, match=rf"tensor {name} contains NaN or infinity"):
        load_checkpoint(source)


def test_embedding_dense_layer_must_be_finite(labse: Path, tmp_path: Path) -> None:
    source = Path(shutil.copytree(labse, tmp_path / "source"))
    write_value(source / "2_Dense" / "model.safetensors", "linear.bias", float("inf"))
    with pytest.raises(CheckpointError, match=r"2_Dense/model\.safetensors: tensor linear\.bias contains NaN or inf"):
        load_checkpoint(source)
