"""Checkpoints of every model family and architecture, compared with transformers."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from model.checkpoint import load_checkpoint
from model.encoder import Encoder, EncoderOutput
from model.source.published import CheckpointError

Publish = Callable[[str], Path]

PUBLISHED = (
    "bert",
    "bert/BertForPreTraining",
    "bert/BertForSequenceClassification",
    "roberta",
    "roberta/RobertaForMaskedLM",
    "xlm-roberta",
    "xlm-roberta/XLMRobertaForSequenceClassification",
    "camembert",
    "camembert/CamembertForMaskedLM",
    "distilbert",
    "distilbert/DistilBertForMaskedLM",
    "electra",
    "electra/ElectraForPreTraining",
    "electra/ElectraForMaskedLM",
    "causal-bert",
    "causal-bert/BertLMHeadModel",
    "causal-roberta",
    "causal-xlm-roberta",
    "causal-camembert",
    "causal-distilbert",
    "causal-electra",
)
FIRST_ORDINARY_ID = 5


def rewrite(path: Path, **changes: Any) -> None:
    """Change keys of a JSON file; None removes a key."""
    value = {**(json.loads(path.read_text()) if path.exists() else {}), **changes}
    path.write_text(json.dumps({key: item for key, item in value.items() if item is not None}))


def random_batch(encoder: Encoder, lengths: list[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Return padded input ids, token type ids and attention mask, (N, T) each; the padding id is 1."""
    generator = torch.Generator().manual_seed(29)
    longest = max(lengths)
    mask = torch.arange(longest) < torch.tensor(lengths)[:, None]
    input_ids = torch.randint(FIRST_ORDINARY_ID, encoder.config.vocab_size, mask.shape, generator=generator)
    token_type_ids = torch.randint(0, max(1, encoder.config.type_vocab_size), mask.shape, generator=generator)
    return torch.where(mask, input_ids, 1), token_type_ids, mask.long()


def run_encoder(encoder: Encoder, input_ids: Tensor, token_type_ids: Tensor, attention_mask: Tensor) -> EncoderOutput:
    with torch.inference_mode():
        position_ids = torch.arange(input_ids.shape[1]).expand_as(input_ids)
        return encoder.encode(input_ids, position_ids, token_type_ids, attention_mask)


def run_transformers(directory: Path, input_ids: Tensor, token_type_ids: Tensor, attention_mask: Tensor) -> Any:
    model = transformers.AutoModel.from_pretrained(directory, attn_implementation="eager").eval()
    inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
    if "distilbert" not in directory.name:
        inputs["token_type_ids"] = token_type_ids
    with torch.inference_mode():
        return model(**inputs, output_hidden_states=True, output_attentions=True)


@pytest.mark.parametrize("kind", PUBLISHED)
@pytest.mark.parametrize("lengths", [[1], [23], [2, 29, 11]], ids=str)
def test_hidden_states_equal_transformers(publish: Publish, kind: str, lengths: list[int]) -> None:
    encoder = load_checkpoint(publish(kind)).encoder
    batch = random_batch(encoder, lengths)
    hidden_states = run_encoder(encoder, *batch).hidden_states
    oracle = run_transformers(publish(kind), *batch).hidden_states
    mask = batch[2].bool()
    assert len(hidden_states) == len(oracle) == 3
    assert max(float((a - b)[mask].abs().max()) for a, b in zip(hidden_states, oracle, strict=True)) < 1e-5


@pytest.mark.parametrize("kind", [kind for kind in PUBLISHED if "/" not in kind])
def test_attention_probs_equal_transformers(publish: Publish, kind: str) -> None:
    encoder = load_checkpoint(publish(kind)).encoder
    batch = random_batch(encoder, [17, 6])
    probs = run_encoder(encoder, *batch).probs
    oracle = run_transformers(publish(kind), *batch).attentions
    assert len(probs) == len(oracle) == 2
    for a, b in zip(probs, oracle, strict=True):
        assert float((a - b)[0].abs().max()) < 1e-5
        assert float((a - b)[1, :, :6, :6].abs().max()) < 1e-5


@pytest.mark.parametrize("kind", PUBLISHED)
def test_only_decoders_are_causal(publish: Publish, kind: str) -> None:
    """transformers ignores `is_decoder` for DistilBERT."""
    encoder = load_checkpoint(publish(kind)).encoder
    assert encoder.config.causal == (kind.startswith("causal-") and kind != "causal-distilbert")
    probs = run_encoder(encoder, *random_batch(encoder, [9])).probs
    assert [bool((layer.triu(1) == 0).all()) for layer in probs] == [encoder.config.causal] * 2


@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu"])
def test_activation_equals_transformers(source: Path, activation: str) -> None:
    rewrite(source / "config.json", hidden_act=activation)
    encoder = load_checkpoint(source).encoder
    batch = random_batch(encoder, [13])
    difference = run_encoder(encoder, *batch).hidden_states[-1] - run_transformers(source, *batch).last_hidden_state
    assert float(difference.abs().max()) < 1e-5


def test_layer_norm_epsilon_equals_transformers(source: Path) -> None:
    """Use an epsilon that is large enough to change every value."""
    rewrite(source / "config.json", layer_norm_eps=0.5)
    encoder = load_checkpoint(source).encoder
    batch = random_batch(encoder, [13])
    difference = run_encoder(encoder, *batch).hidden_states[-1] - run_transformers(source, *batch).last_hidden_state
    assert float(difference.abs().max()) < 1e-5


def test_roberta_positions_start_after_padding_id(publish: Publish, tmp_path: Path) -> None:
    model = transformers.AutoModel.from_pretrained(publish("roberta"), pad_token_id=0)
    model.save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_bytes((publish("roberta") / "tokenizer.json").read_bytes())
    encoder = load_checkpoint(tmp_path).encoder
    batch = random_batch(encoder, [13])
    difference = run_encoder(encoder, *batch).hidden_states[-1] - run_transformers(tmp_path, *batch).last_hidden_state
    assert float(difference.abs().max()) < 1e-5


def test_causal_model_with_cls_pooling_is_an_error(publish: Publish, tmp_path: Path) -> None:
    directory = shutil.copytree(publish("causal-bert"), tmp_path / "causal")
    modules = [{"type": "models.Transformer", "path": ""}, {"type": "models.Pooling", "path": "1_Pooling"}]
    (directory / "modules.json").write_text(json.dumps(modules))
    (directory / "1_Pooling").mkdir()
    (directory / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_cls_token": True}))
    with pytest.raises(CheckpointError, match="cls pooling of a causal model"):
        load_checkpoint(directory)
