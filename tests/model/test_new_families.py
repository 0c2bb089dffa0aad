"""Checkpoints of `FAMILY_CASES`, in the names of transformers and of published files, compared with transformers."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from model.checkpoint import load_checkpoint
from model.encoder import Encoder, EncoderOutput
from model.encoder.attention import MAX_DENSE_TOKENS
from model.export.parity import measure_parity
from model.source.published import CheckpointError
from model.source.sentence_transformers import SettingOptions
from tests.model.conftest import mark_slow
from tests.model.family_cases import FAMILY_CASES, oracle_directory
from tests.model.published_families import LORA_RANK, SCALED_FROM, TASKS

Publish = Callable[[str], Path]

LENGTHS = (1, 17, 118)
"""Beyond each window, and beyond the 91 positions where relative biases saturate."""
SCALED = ("nomic_bert, dynamic", "nomic_bert, published")
WEAK = "a weak oracle (almost uniform attention): see the step about FAMILY_CASES in CONTRIBUTING.md"
LONG_ROWS = (*SCALED, "modernbert, published", "jina_embeddings_v3, published", "qwen3, windows", "gemma3_text, causal")
"""Models whose inputs are so long that attention is computed in blocks."""
FIRST_ORDINARY_ID = 5


def random_ids(encoder: Encoder, length: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(length)
    input_ids = torch.randint(FIRST_ORDINARY_ID, encoder.config.vocab_size, (1, length), generator=generator)
    types = torch.randint(0, max(1, encoder.config.type_vocab_size), (1, length), generator=generator)
    return input_ids, types


def run_encoder(encoder: Encoder, input_ids: Tensor, token_type_ids: Tensor) -> EncoderOutput:
    with torch.inference_mode():
        positions = torch.arange(input_ids.shape[1])[None]
        return encoder.encode(input_ids, positions, token_type_ids, torch.ones_like(input_ids))


def run_transformers(encoder: Encoder, directory: Path, input_ids: Tensor, token_type_ids: Tensor) -> Any:
    """Load the model anew for each length: dynamic scaling in transformers depends on earlier inputs."""
    oracle = oracle_directory(directory)
    model = transformers.AutoModel.from_pretrained(oracle, attn_implementation="eager").eval()
    types = {"token_type_ids": token_type_ids} if encoder.config.type_vocab_size > 1 else {}
    mask = torch.ones_like(input_ids)
    with torch.inference_mode():
        return model(input_ids, attention_mask=mask, **types, output_hidden_states=True, output_attentions=True)


@pytest.mark.parametrize(
    ("kind", "length"),
    [
        *((kind, length) for kind in FAMILY_CASES for length in LENGTHS),
        *((kind, SCALED_FROM + 91) for kind in SCALED),
        *((kind, MAX_DENSE_TOKENS + 91) for kind in LONG_ROWS),
    ],
)
def test_hidden_states_and_probs_equal_transformers(publish: Publish, kind: str, length: int) -> None:
    encoder = load_checkpoint(publish(kind)).encoder
    inputs = random_ids(encoder, length)
    output, oracle = run_encoder(encoder, *inputs), run_transformers(encoder, publish(kind), *inputs)
    assert len(output.hidden_states) == len(oracle.hidden_states) == 5
    for hidden, expected in zip(output.hidden_states, oracle.hidden_states, strict=True):
        assert float((hidden - expected).abs().max()) < 1e-5 * max(1.0, float(expected.abs().max()))
    assert len(output.probs) == (0 if length > MAX_DENSE_TOKENS else 4)
    for probs, expected in zip(output.probs, oracle.attentions, strict=False):
        assert float((probs - expected).abs().max()) < 1e-5
        if length > 1:
            assert float(expected.max(dim=-1).values.mean()) > 2 / length, WEAK


@pytest.mark.parametrize("kind", mark_slow(*FAMILY_CASES, fast=("mpnet", "modernbert", "qwen3", "gemma3_text")))
def test_graph_with_packed_sequences_equals_sequences_alone(publish: Publish, graphs: Publish, kind: str) -> None:
    checkpoint = load_checkpoint(publish(kind))
    parity = measure_parity(checkpoint.encoder, graphs(kind), checkpoint.max_input_tokens)
    assert parity.batches >= 11
    assert parity.max_abs_difference <= parity.tolerance


@pytest.mark.parametrize("kind", ["modernbert", "qwen3"])
def test_graph_has_the_four_inputs(graphs: Publish, kind: str) -> None:
    """Also those that the family does not use, so that a batch has the same inputs for every model."""
    session = onnxruntime.InferenceSession(graphs(kind), providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    assert names == ["input_ids", "position_ids", "token_type_ids", "sequence_ids"]


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("modernbert", {"attn_logit_softcapping": 30.0}, "unknown key attn_logit_softcapping"),
        ("modernbert", {"layer_types": ["full_attention", "linear_attention"] * 2}, "layer_types of 4 layers"),
        (
            "nomic_bert",
            {"rope_parameters": {"rope_type": "yarn", "factor": 2.0}},
            r"^config\.json: rope_parameters\.rope_type: unsupported \('yarn'\)\. Supported: ",
        ),
        (
            "modernbert",
            {"rope_parameters": {"full_attention": {"type": "yarn"}}},
            r"^config\.json: rope_parameters\.full_attention\.type: unsupported \('yarn'\)\. Supported: ",
        ),
        (
            "gemma3_text",
            {"rope_scaling": {"rope_type": "llama3"}},
            r"^config\.json: rope_scaling\.rope_type: unsupported \('llama3'\)\. Supported: ",
        ),
        (
            "qwen3",
            {"rope_parameters": {"partial_rotary_factor": 0.5}},
            r"^config\.json: rope_parameters\.partial_rotary_factor: unsupported \(0\.5\)\. Supported: 1\.0\.",
        ),
        ("nomic_bert, published", {"num_experts": 8}, "num_experts: expert layers are not supported"),
        ("nomic_bert, published", {"rotary_emb_fraction": 0.5}, "unsupported rotary_emb_fraction 0.5"),
        ("new", {"logn_attention_scale": True}, "unsupported logn_attention_scale True"),
        ("new", {"position_embedding_type": "absolute"}, "unsupported position_embedding_type 'absolute'"),
        ("mpnet", {"relative_attention_num_buckets": 16}, "unsupported relative_attention_num_buckets 16"),
        ("qwen3", {"use_bidirectional_attention": True}, "unknown key use_bidirectional_attention"),
        (
            "qwen3",
            {"rope_scaling": {"rope_type": "linear", "beta": 2}},
            r"^config\.json: rope_scaling\.beta: unsupported \(2\)\. Use a model without it\.",
        ),
        ("modernbert", {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "unknown key rope_scaling"),
        ("gemma3_text", {"attn_logit_softcapping": 50.0}, "unknown key attn_logit_softcapping"),
        ("eurobert", {"is_causal": True}, "unsupported is_causal True"),
        ("jina_embeddings_v3", {"position_embedding_type": "alibi"}, "unsupported position_embedding_type 'alibi'"),
    ],
)
def test_unsupported_config_is_rejected(
    publish: Publish, tmp_path: Path, kind: str, changes: dict[str, Any], message: str
) -> None:
    directory = shutil.copytree(publish(kind), tmp_path / "model")
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(directory)


@pytest.mark.parametrize("kind", ["nomic_bert", "gte", "jina_embeddings_v3", "eurobert", "qwen3", "gemma3_text"])
@pytest.mark.parametrize("others", [{}, {"rope_theta": 31.0}])
def test_rope_scaling_takes_precedence_over_rope_parameters_like_in_transformers(
    publish: Publish, tmp_path: Path, kind: str, others: dict[str, Any]
) -> None:
    directory = shutil.copytree(publish(kind), tmp_path / "model")
    config = json.loads((directory / "config.json").read_text())
    assert config["rope_parameters"]
    inputs = random_ids(load_checkpoint(directory).encoder, 17)
    plain = run_encoder(load_checkpoint(directory).encoder, *inputs).hidden_states[-1]
    changes = {"rope_scaling": {"rope_type": "linear", "factor": 3.0}} | others
    (directory / "config.json").write_text(json.dumps(config | changes))
    encoder = load_checkpoint(directory).encoder
    hidden = run_encoder(encoder, *inputs).hidden_states[-1]
    expected = run_transformers(encoder, directory, *inputs).hidden_states[-1]
    assert float((hidden - expected).abs().max()) < 1e-5 * max(1.0, float(expected.abs().max()))
    assert float((hidden - plain).abs().max()) > 1e-2


@pytest.mark.parametrize("kind", FAMILY_CASES)
def test_unknown_and_missing_tensors_are_rejected(publish: Publish, tmp_path: Path, kind: str) -> None:
    directory = shutil.copytree(publish(kind), tmp_path / "model")
    tensors = load_file(directory / "model.safetensors")
    name = next(name for name in sorted(tensors) if "layer" in name)
    save_file(tensors | {name.replace(".1.", ".2.") + ".expert": torch.ones(2)}, directory / "model.safetensors")
    with pytest.raises(CheckpointError, match="unknown tensor"):
        load_checkpoint(directory)
    save_file({key: tensor for key, tensor in tensors.items() if key != name}, directory / "model.safetensors")
    with pytest.raises(CheckpointError, match="is missing"):
        load_checkpoint(directory)


ADAPTED = {
    "roberta.embeddings.word_embeddings": ["embeddings.word_embeddings"],
    "roberta.encoder.layers.2.mlp.fc1": ["layers.2.mlp.fc1"],
    "roberta.encoder.layers.1.mixer.Wqkv": [f"layers.1.self_attn.{part}_proj" for part in "qkv"],
}


@pytest.mark.parametrize("task", [None, *TASKS])
def test_adapters_of_a_task_are_merged(publish: Publish, tmp_path: Path, task: str | None) -> None:
    """The oracle is transformers with weights that NumPy merges; other modules have adapters of zeros."""
    directory = publish("jina_embeddings_v3, published")
    plain = shutil.copytree(directory / "oracle", tmp_path / "plain")
    stored, tensors = load_file(directory / "model.safetensors"), load_file(plain / "model.safetensors")
    for key in stored:
        if "lora_B" in key and not key.startswith(tuple(ADAPTED)):
            stored[key].zero_()
    for module, names in ADAPTED.items() if task is not None else ():
        a, b = (stored[f"{module}.parametrizations.weight.0.lora_{part}"][TASKS.index(task)].numpy() for part in "AB")
        change = torch.from_numpy((a @ b if "embeddings" in module else b @ a) / LORA_RANK)
        for name, rows in zip(names, change.chunk(len(names)), strict=True):
            tensors[f"{name}.weight"] += rows
    adapted = shutil.copytree(directory, tmp_path / "adapted")
    save_file(stored, adapted / "model.safetensors")
    save_file(tensors, plain / "model.safetensors")
    encoder = load_checkpoint(adapted, SettingOptions(task=task)).encoder
    inputs = random_ids(encoder, 23)
    difference = run_encoder(encoder, *inputs).hidden_states[-1] - run_transformers(encoder, plain, *inputs)[0]
    assert float(difference.abs().max()) < 1e-5


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("jina_embeddings_v3, published", r"unknown task \(clustering\)\. Use retrieval.query, retrieval.passage"),
        ("bert", "This model has no adapters: leave it out"),
    ],
)
def test_unknown_task_is_rejected(publish: Publish, kind: str, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(publish(kind), SettingOptions(task="clustering"))
