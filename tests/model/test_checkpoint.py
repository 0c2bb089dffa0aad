"""Loading and validating published checkpoints."""

import hashlib
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from model.artifact.tokenizer import TokenizerInput
from model.checkpoint import load_checkpoint
from model.source.published import CheckpointError
from model.source.sentence_transformers import EmbeddingConfig, SettingOptions
from tests.model.family_cases import load_oracle
from tests.model.model_files import change_json, write_json
from tests.model.sequences import run
from tests.model_records import TRAINING

Publish = Callable[[str], Path]


def rewrite_tensors(directory: Path, change: Callable[[dict[str, Tensor]], None]) -> None:
    tensors = load_file(directory / "model.safetensors")
    change(tensors)
    save_file(tensors, directory / "model.safetensors")


def test_checkpoint_has_defaults_without_sentence_transformers_files(published: Path) -> None:
    checkpoint = load_checkpoint(published)
    assert (checkpoint.family.name, checkpoint.max_input_tokens) == ("bert", 41)
    assert checkpoint.embedding_config == EmbeddingConfig(pooling="mean", normalize=False, dense=(), prompts={})
    assert checkpoint.tokenizer == (published / "tokenizer.json").read_bytes()


def test_max_input_tokens_excludes_unused_positions_of_roberta(publish: Publish) -> None:
    """Two of the 41 position embeddings are unused."""
    assert load_checkpoint(publish("roberta")).max_input_tokens == 39


@pytest.mark.parametrize(("padding_id", "token"), [(1, ""), (0, "<s>"), (2, "</s>"), (3, ""), (10, "'&'")])
def test_padding_token_in_texts_is_named(publish: Publish, tmp_path: Path, padding_id: int, token: str) -> None:
    """transformers counts positions without this token. A byte-level tokenizer never yields <unk>."""
    directory = shutil.copytree(publish("roberta"), tmp_path / "model")
    change_json(directory / "config.json", pad_token_id=padding_id)
    checkpoint = load_checkpoint(directory)
    library = load_oracle(directory)
    input_ids = torch.tensor([checkpoint.text_tokenizer().encode([TokenizerInput("a & b")])[0].input_ids])
    with torch.inference_mode():
        expected = library(input_ids, attention_mask=torch.ones_like(input_ids)).last_hidden_state[0]
    assert torch.allclose(run(checkpoint, input_ids), expected, atol=1e-4) is (token == "")
    assert [token in warning for warning in checkpoint.warnings] == [True] * (token != "")


def test_padding_token_that_texts_may_spell_is_named(publish: Publish) -> None:
    (warning,) = load_checkpoint(publish("roberta"), SettingOptions(special_tokens_in_text=True)).warnings
    assert "the padding token (id 1) is '<pad>' of tokenizer.json, which texts can contain" in warning


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_weights_are_cast_to_float32(source: Path, dtype: torch.dtype) -> None:

    def to_half(tensors: dict[str, Tensor]) -> None:
        tensors.update({name: tensor.to(dtype) for name, tensor in tensors.items()})

    rewrite_tensors(source, to_half)
    half = load_file(source / "model.safetensors")["encoder.layer.1.output.dense.weight"]
    state = load_checkpoint(source).encoder.state_dict()
    assert {tensor.dtype for tensor in state.values()} == {torch.float32}
    assert torch.equal(state["blocks.1.feed_forward.outer.weight"], half.float())


def test_legacy_layer_norm_names_are_loaded(source: Path, published: Path) -> None:
    """Early BERT checkpoints have gamma and beta instead of weight and bias."""

    def rename_layer_norms(tensors: dict[str, Tensor]) -> None:
        for name in [name for name in tensors if "LayerNorm" in name]:
            legacy = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
            tensors[legacy] = tensors.pop(name)

    rewrite_tensors(source, rename_layer_norms)
    expected = load_checkpoint(published).encoder.state_dict()
    actual = load_checkpoint(source).encoder.state_dict()
    assert all(torch.equal(actual[name], tensor) for name, tensor in expected.items())


def test_index_buffers_are_ignored(source: Path) -> None:
    """Older checkpoints contain a position_ids buffer."""
    rewrite_tensors(source, lambda tensors: tensors.update({"embeddings.position_ids": torch.arange(41)[None]}))
    assert load_checkpoint(source).family.name == "bert"


def test_shards_equal_single_file(published: Path, tmp_path: Path) -> None:
    model = transformers.AutoModel.from_pretrained(published)
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    (tmp_path / "tokenizer.json").write_bytes((published / "tokenizer.json").read_bytes())
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    expected = load_checkpoint(published).encoder.state_dict()
    actual = load_checkpoint(tmp_path).encoder.state_dict()
    assert all(torch.equal(actual[name], tensor) for name, tensor in expected.items())


def test_single_file_takes_precedence_over_shards(source: Path, published: Path) -> None:
    """Saving a model again can leave the shards of its earlier weights, which transformers does not read."""
    tensors = load_file(source / "model.safetensors")
    shard = "model-00001-of-00001.safetensors"
    save_file({name: torch.zeros_like(tensor) for name, tensor in tensors.items()}, source / shard)
    write_json(source / "model.safetensors.index.json", {"weight_map": dict.fromkeys(tensors, shard)})
    expected = load_checkpoint(published).encoder.state_dict()
    actual = load_checkpoint(source).encoder.state_dict()
    assert all(torch.equal(actual[name], tensor) for name, tensor in expected.items())


@pytest.mark.parametrize("name", ["../tiny-bert/model.safetensors", "/etc/hostname", "none.safetensors", "..", "", 7])
def test_shard_outside_of_directory_is_rejected(source: Path, name: str | int) -> None:
    (source / "model.safetensors").rename(source / "other.safetensors")
    change_json(source / "model.safetensors.index.json", weight_map={"embeddings.word_embeddings.weight": name})
    with pytest.raises(CheckpointError):
        load_checkpoint(source)


def test_missing_weights_are_named(source: Path) -> None:
    (source / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model\.safetensors: missing, and there are no weights\. Use"):
        load_checkpoint(source)


def test_missing_tensor_is_named_with_its_prefix(publish: Publish, tmp_path: Path) -> None:
    tensors = load_file(publish("bert/BertForPreTraining") / "model.safetensors")
    del tensors["bert.embeddings.LayerNorm.bias"]
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).write_bytes((publish("bert") / name).read_bytes())
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"tensor bert\.embeddings\.LayerNorm\.bias is missing"):
        load_checkpoint(tmp_path)


@pytest.mark.parametrize("name", ["encoder.layer.2.output.dense.bias", "adapter.weight"])
def test_unknown_tensor_is_named(source: Path, name: str) -> None:
    """The tensor belongs either to an additional layer or to a module that `Encoder` lacks."""
    rewrite_tensors(source, lambda tensors: tensors.update({name: torch.zeros(24)}))
    with pytest.raises(CheckpointError, match=rf"unknown tensor {name} for model_type bert \(1 in total\)"):
        load_checkpoint(source)


def test_tensor_of_wrong_shape_is_named(source: Path) -> None:
    rewrite_tensors(source, lambda tensors: tensors.update({"embeddings.LayerNorm.bias": torch.zeros(23)}))
    with pytest.raises(CheckpointError, match=r"embeddings\.LayerNorm\.bias has shape \(23,\), expected \(24,\)"):
        load_checkpoint(source)


LFS_POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{hashlib.sha256().hexdigest()}\nsize 90868376\n"


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
def test_pointer_of_git_lfs_is_named(source: Path, name: str) -> None:
    (source / name).write_text(LFS_POINTER)
    message = f"{source / name}: a Git LFS pointer, not the file itself. Run: git lfs pull"
    with pytest.raises(CheckpointError, match=f"^{re.escape(message)}$"):
        load_checkpoint(source)


def test_pointer_in_place_of_an_unused_file_is_ignored(source: Path) -> None:
    (source / "pytorch_model.bin").write_text(LFS_POINTER)
    load_checkpoint(source)


@pytest.mark.parametrize("body", [b"", b"not tensors", b"\xff" * 64])
def test_invalid_safetensors_file_is_rejected(source: Path, body: bytes) -> None:
    (source / "model.safetensors").write_bytes(body)
    with pytest.raises(CheckpointError, match=r"model\.safetensors: not a safetensors file"):
        load_checkpoint(source)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gpt2"}, "model_type: unsupported \\('gpt2'\\). Supported: attendant, bert, camembert"),
        ({"model_type": None}, r"model_type: missing\. Supported: attendant, bert"),
        (
            {"model_type": "new2", "auto_map": {"AutoModel": "a/b--m.M"}},
            "The code of m.M in the model's files is not exec",
        ),
        ({"auto_map": "m.M"}, "auto_map is not an object"),
        ({"hidden_act": "mish"}, "hidden_act: unsupported \\('mish'\\). Supported: gelu"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type 'relative_key'"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"vocab_size": None}, "vocab_size is missing"),
        ({"num_attention_heads": 5}, "heads"),
        ({"num_attention_heads": 0}, "heads"),
        ({"num_hidden_layers": "two"}, "num_hidden_layers"),
        ({"is_decoder": True, "add_cross_attention": True}, "add_cross_attention is not supported"),
        ({"add_cross_attention": True}, "add_cross_attention is not supported"),
        ({"quantization_config": {"quant_method": "fp8"}}, "unknown key quantization_config"),
        ({"is_decoder": "yes"}, r"is_decoder is not true or false \('yes'\)"),
    ],
)
def test_unsupported_config_value_is_named(source: Path, changes: dict[str, Any], message: str) -> None:
    change_json(source / "config.json", **changes)
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(source)


@pytest.mark.parametrize("body", ["{", "", "[]", "7"])
def test_config_must_be_a_json_object(source: Path, body: str) -> None:
    (source / "config.json").write_text(body)
    with pytest.raises(CheckpointError, match=r"config\.json: not"):
        load_checkpoint(source)


def test_training_record_is_read(source: Path) -> None:
    assert load_checkpoint(source).training is None
    (source / "training.json").write_text(TRAINING.model_dump_json())
    assert load_checkpoint(source).training == TRAINING


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"steps": -1}, "steps"),
        ({"tokens": 2**63}, "tokens"),
        ({"validation_loss": float("nan")}, "validation_loss"),
        ({"data": [{"name": "a"}]}, r"data\.0\.size"),
        ({"other": 1}, "other"),
    ],
)
def test_invalid_training_record_is_rejected(source: Path, changes: dict[str, Any], field: str) -> None:
    write_json(source / "training.json", TRAINING.model_dump(mode="json") | changes)
    with pytest.raises(CheckpointError, match=rf"^training\.json: invalid at {field}\. Correct or"):
        load_checkpoint(source)


@pytest.mark.parametrize("body", [b"\xff\x00", b"{", b"7"])
def test_training_record_that_is_no_json_object_is_rejected(source: Path, body: bytes) -> None:
    (source / "training.json").write_bytes(body)
    with pytest.raises(CheckpointError, match=r"^training\.json: invalid at the top\. Correct or"):
        load_checkpoint(source)
