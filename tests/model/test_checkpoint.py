"""Checkpoints: weights, damaged files, values that are not finite, and pickled weights."""

import hashlib
import json
import os
import pickle
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from model.__main__ import main
from model.artifact.console import EX_DATAERR
from model.artifact.tokenizer import TokenizerInput
from model.checkpoint import load_checkpoint
from model.source.published import CheckpointError
from model.source.sentence_transformers import EmbeddingConfig, SettingOptions
from tests.damaged_json import ABSURD, DEEP, nest, paths, replace
from tests.labels import CLASSIFIER, TOKEN_CLASSIFIER, publish_classifier
from tests.model.conftest import Publish
from tests.model.family_cases import load_oracle
from tests.model.model_files import change_json, write_json
from tests.model.retriever_cases import BGE_M3, UNTIED_CASES, publish_splade
from tests.model.tiny_tokenizers import BUILDERS
from tests.model.varlen_inputs import run
from tests.model_records import TRAINING
from tests.retrievers import INFERENCE_FREE, SPLADE, publish_retriever


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


# Published files with an absurd value: an export reads them or ends with one line, and takes no absurd memory.

FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "modules.json", "1_Pooling/config.json",
         "config_sentence_transformers.json", "sentence_bert_config.json", "model.safetensors")  # fmt: skip
MODULES = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
]


class ReadError(BaseException):
    """Stops an export that has read all files."""


@pytest.fixture
def damaged(publish: Publish, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    def stop(*arguments: Any) -> None:
        raise ReadError

    monkeypatch.setattr("model.export.export._write", stop)
    root = tmp_path / "source"
    shutil.copytree(publish("bert"), root)
    (root / "1_Pooling").mkdir(exist_ok=True)
    for name, document in (
        ("modules.json", MODULES),
        ("1_Pooling/config.json", {"word_embedding_dimension": 24, "pooling_mode_mean_tokens": True}),
        ("config_sentence_transformers.json", {"prompts": {"query": "q: "}, "default_prompt_name": None}),
        ("sentence_bert_config.json", {"max_seq_length": 16, "do_lower_case": False}),
        ("tokenizer_config.json", {"model_max_length": 16, "tokenizer_class": "BertTokenizer", "do_lower_case": True}),
    ):
        (root / name).write_text(json.dumps(document))
    return root


def read(root: Path, name: str) -> Any:
    body = (root / name).read_bytes()
    return json.loads(body[8 : 8 + int.from_bytes(body[:8], "little")] if name.endswith("safetensors") else body)


def write(root: Path, name: str, text: str) -> None:
    body = text.encode()
    if name.endswith("safetensors"):
        before = (root / name).read_bytes()
        body = len(body).to_bytes(8, "little") + body + before[8 + int.from_bytes(before[:8], "little") :]
    (root / name).write_bytes(body)


def export(root: Path) -> int:
    try:
        return main(["export", str(root), "-o", str(root.parent / "out")])
    except ReadError:
        return 0


def test_source_is_exported_without_a_change(damaged: Path) -> None:
    assert export(damaged) == 0


@pytest.mark.parametrize("name", FILES)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_absurd_value_is_read_or_one_line(
    damaged: Path, capsys: pytest.CaptureFixture[str], name: str, data: st.DataObject
) -> None:
    document, before = read(damaged, name), (damaged / name).read_bytes()
    path = data.draw(st.sampled_from([*paths(document)]))
    write(damaged, name, replace(document, path, data.draw(st.sampled_from(ABSURD))))
    status = export(damaged)
    (damaged / name).write_bytes(before)
    lines = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("[")]
    assert (status, len(lines)) in ((0, 0), (EX_DATAERR, 1)), lines


@pytest.mark.parametrize("name", FILES)
def test_deep_nesting_is_one_line(damaged: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    document = read(damaged, name)
    for text in (DEEP, nest(document, next(paths(document)))):
        write(damaged, name, text)
        assert export(damaged) == EX_DATAERR
        (line,) = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("[")]
        assert line.startswith("attendant-model: ")
        assert Path(name).name in line


# NaN and infinity in any tensor of a published model, also in one row that no test text reaches.


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


# Pickled weights of published models: only tensors are read, and no code is run.


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
