"""Published files are read whole, or refused with the name of what does not fit."""

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from model.checkpoint import load_checkpoint
from model.modules import TextVector
from model.published import CheckpointError

Publish = Callable[[str], Path]


def rewrite(path: Path, **changes: Any) -> None:
    """Change keys of a JSON object on disk; a value of None removes the key."""
    value = {**(json.loads(path.read_text()) if path.exists() else {}), **changes}
    path.write_text(json.dumps({key: kept for key, kept in value.items() if kept is not None}))


def retensor(directory: Path, change: Callable[[dict[str, Tensor]], None]) -> None:
    """Change the tensors of a published model on disk."""
    tensors = load_file(directory / "model.safetensors")
    change(tensors)
    save_file(tensors, directory / "model.safetensors")


def test_the_facts_of_a_bare_model_have_plain_defaults(published: Path) -> None:
    """Without sentence-transformers files: mean pooling, no dense, no normalisation, the positions as the limit."""
    found = load_checkpoint(published)
    assert (found.family, found.max_tokens) == ("bert", 41)
    assert found.text_vector == TextVector(pooling="mean", normalize=False, dense=(), prompts={})
    assert found.tokenizer == (published / "tokenizer.json").read_bytes()


def test_the_unused_positions_of_a_roberta_do_not_count(publish: Publish) -> None:
    """Of 41 rows in a RoBERTa's table, two are never used."""
    assert load_checkpoint(publish("roberta")).max_tokens == 39


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_weights_become_float32(source: Path, dtype: torch.dtype) -> None:
    """Weights are widened exactly."""

    def halve(tensors: dict[str, Tensor]) -> None:
        tensors.update({name: tensor.to(dtype) for name, tensor in tensors.items()})

    retensor(source, halve)
    half = load_file(source / "model.safetensors")["encoder.layer.1.output.dense.weight"]
    state = load_checkpoint(source).encoder.state_dict()
    assert {tensor.dtype for tensor in state.values()} == {torch.float32}
    assert torch.equal(state["blocks.1.feed_forward.outer.weight"], half.float())


def test_legacy_layer_norm_names_load(source: Path, published: Path) -> None:
    """The gamma and beta of the first BERT files are weight and bias."""

    def age(tensors: dict[str, Tensor]) -> None:
        for name in [name for name in tensors if "LayerNorm" in name]:
            legacy = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
            tensors[legacy] = tensors.pop(name)

    retensor(source, age)
    expected = load_checkpoint(published).encoder.state_dict()
    actual = load_checkpoint(source).encoder.state_dict()
    assert all(torch.equal(actual[name], tensor) for name, tensor in expected.items())


def test_index_buffers_are_no_weights(source: Path) -> None:
    """A position_ids buffer, which older files carry, is passed over."""
    retensor(source, lambda tensors: tensors.update({"embeddings.position_ids": torch.arange(41)[None]}))
    assert load_checkpoint(source).family == "bert"


def test_shards_load_as_one_file(published: Path, tmp_path: Path) -> None:
    """A model in several files under an index is the model in one."""
    model = transformers.AutoModel.from_pretrained(published)
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    (tmp_path / "tokenizer.json").write_bytes((published / "tokenizer.json").read_bytes())
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    expected = load_checkpoint(published).encoder.state_dict()
    actual = load_checkpoint(tmp_path).encoder.state_dict()
    assert all(torch.equal(actual[name], tensor) for name, tensor in expected.items())


@pytest.mark.parametrize("name", ["../tiny-bert/model.safetensors", "/etc/hostname", "none.safetensors", "..", "", 7])
def test_a_shard_outside_the_directory_is_refused(source: Path, name: str | int) -> None:
    """An index names files beside it and no others."""
    rewrite(source / "model.safetensors.index.json", weight_map={"embeddings.word_embeddings.weight": name})
    with pytest.raises(CheckpointError):
        load_checkpoint(source)


class Trap:
    """Unpickled, it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def test_a_pickle_is_never_opened(source: Path, tmp_path: Path) -> None:
    """Weights only in pytorch_model.bin are refused, and the code inside it does not run."""
    (source / "model.safetensors").unlink()
    (source / "pytorch_model.bin").write_bytes(pickle.dumps(Trap(tmp_path / "sprung")))
    with pytest.raises(CheckpointError, match=r"model\.safetensors: missing.*never a pickle"):
        load_checkpoint(source)
    assert not (tmp_path / "sprung").exists()


def test_a_missing_tensor_is_named(source: Path) -> None:
    """The name in the message is the published one."""
    name = "encoder.layer.1.attention.self.key.bias"
    retensor(source, lambda tensors: tensors.__delitem__(name))
    with pytest.raises(CheckpointError, match=f"lack the tensor {name}"):
        load_checkpoint(source)


def test_a_missing_tensor_is_named_with_its_prefix(publish: Publish, tmp_path: Path) -> None:
    """Where the file says `bert.`, so does the message."""
    tensors = load_file(publish("bert/BertForPreTraining") / "model.safetensors")
    del tensors["bert.embeddings.LayerNorm.bias"]
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).write_bytes((publish("bert") / name).read_bytes())
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"lack the tensor bert\.embeddings\.LayerNorm\.bias"):
        load_checkpoint(tmp_path)


@pytest.mark.parametrize("name", ["encoder.layer.2.output.dense.bias", "adapter.weight"])
def test_a_left_over_tensor_is_named(source: Path, name: str) -> None:
    """Nothing is dropped in silence: one layer too many, or a part we do not have."""
    retensor(source, lambda tensors: tensors.update({name: torch.zeros(24)}))
    with pytest.raises(CheckpointError, match=f"hold the tensor {name}, which the family bert has no place for"):
        load_checkpoint(source)


def test_a_tensor_of_another_shape_is_named(source: Path) -> None:
    """Both shapes are in the message."""
    retensor(source, lambda tensors: tensors.update({"embeddings.LayerNorm.bias": torch.zeros(23)}))
    with pytest.raises(CheckpointError, match=r"embeddings\.LayerNorm\.bias has the shape \(23,\).*asks for \(24,\)"):
        load_checkpoint(source)


@pytest.mark.parametrize("body", [b"", b"not tensors", b"\xff" * 64])
def test_weights_that_are_not_safetensors_are_refused(source: Path, body: bytes) -> None:
    """Whatever the bytes, the file is named."""
    (source / "model.safetensors").write_bytes(body)
    with pytest.raises(CheckpointError, match=r"model\.safetensors: not a safetensors file"):
        load_checkpoint(source)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gpt2"}, "model_type 'gpt2' is not one of bert, camembert"),
        ({"model_type": None}, "model_type None is not one of"),
        ({"hidden_act": "mish"}, "activation 'mish' is not one of gelu"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type 'relative_key'"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"vocab_size": None}, "vocab_size is missing"),
        ({"num_attention_heads": 5}, "heads"),
        ({"num_attention_heads": 0}, "heads"),
        ({"num_hidden_layers": "two"}, "num_hidden_layers"),
    ],
)
def test_a_config_we_cannot_follow_is_refused(source: Path, changes: dict[str, Any], message: str) -> None:
    """The message names the setting."""
    rewrite(source / "config.json", **changes)
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(source)


@pytest.mark.parametrize("body", ["{", "", "[]", "7"])
def test_a_config_that_is_no_json_object_is_refused(source: Path, body: str) -> None:
    """The file is named."""
    (source / "config.json").write_text(body)
    with pytest.raises(CheckpointError, match=r"config\.json: not"):
        load_checkpoint(source)


def test_a_missing_tokenizer_is_refused_with_advice(source: Path) -> None:
    """The message says how to make a tokenizer.json."""
    (source / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match=r"no tokenizer\.json\. Save one with transformers"):
        load_checkpoint(source)


@pytest.mark.parametrize(
    ("sentence", "tokenizer", "expected"),
    [
        ({"max_seq_length": 17}, {"model_max_length": 9}, 17),
        ({"max_seq_length": 64}, {}, 41),
        ({}, {"model_max_length": 23}, 23),
        ({"max_seq_length": None}, {"model_max_length": 23}, 23),
        ({}, {"model_max_length": 512}, 41),
        ({}, {"model_max_length": 1e30}, 41),
        ({}, {"model_max_length": None}, 41),
        ({}, {}, 41),
    ],
)
def test_the_limit_of_tokens(source: Path, sentence: Any, tokenizer: Any, expected: int) -> None:
    """sentence_bert_config's max_seq_length, else tokenizer_config's; never more than there are positions."""
    (source / "sentence_bert_config.json").write_text(json.dumps(sentence))
    (source / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    assert load_checkpoint(source).max_tokens == expected
