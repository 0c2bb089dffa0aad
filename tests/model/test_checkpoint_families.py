"""Published weights become the same numbers as transformers gives, for every family and every way to publish it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from model.checkpoint import load_checkpoint
from model.encoder import Encoded, Encoder

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
)
FIRST_ORDINARY_ID = 5


def rewrite(path: Path, **changes: Any) -> None:
    """Change keys of a JSON object on disk; a value of None removes the key."""
    value = {**(json.loads(path.read_text()) if path.exists() else {}), **changes}
    path.write_text(json.dumps({key: kept for key, kept in value.items() if kept is not None}))


def random_batch(encoder: Encoder, lengths: list[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Padded `(N, T)` ids (1 where padded), types and a mask of what is text."""
    generator = torch.Generator().manual_seed(29)
    longest = max(lengths)
    mask = torch.arange(longest) < torch.tensor(lengths)[:, None]
    ids = torch.randint(FIRST_ORDINARY_ID, encoder.config.vocab_size, mask.shape, generator=generator)
    types = torch.randint(0, encoder.config.types, mask.shape, generator=generator)
    return torch.where(mask, ids, 1), types, mask.long()


def ours(encoder: Encoder, ids: Tensor, types: Tensor, mask: Tensor) -> Encoded:
    with torch.inference_mode():
        return encoder.encode(ids, torch.arange(ids.shape[1]).expand_as(ids), types, mask)


def theirs(directory: Path, ids: Tensor, types: Tensor, mask: Tensor) -> Any:
    model = transformers.AutoModel.from_pretrained(directory, attn_implementation="eager").eval()
    given = {"input_ids": ids, "attention_mask": mask}
    if "distilbert" not in directory.name:
        given["token_type_ids"] = types
    with torch.inference_mode():
        return model(**given, output_hidden_states=True, output_attentions=True)


@pytest.mark.parametrize("kind", PUBLISHED)
@pytest.mark.parametrize("lengths", [[1], [23], [2, 29, 11]], ids=str)
def test_every_hidden_layer_is_that_of_transformers(publish: Publish, kind: str, lengths: list[int]) -> None:
    """Alone or padded, with token types, each layer is the oracle's to 1e-5."""
    encoder = load_checkpoint(publish(kind)).encoder
    batch = random_batch(encoder, lengths)
    hidden, oracle = ours(encoder, *batch).hidden, theirs(publish(kind), *batch).hidden_states
    text = batch[2].bool()
    assert len(hidden) == len(oracle) == 3
    assert max(float((mine - other)[text].abs().max()) for mine, other in zip(hidden, oracle, strict=True)) < 1e-5


@pytest.mark.parametrize("kind", [kind for kind in PUBLISHED if "/" not in kind])
def test_attention_is_that_of_transformers(publish: Publish, kind: str) -> None:
    """The maps of every layer and head are those of the eager oracle to 1e-5, in padded rows too."""
    encoder = load_checkpoint(publish(kind)).encoder
    ids, types, mask = random_batch(encoder, [17, 6])
    probs = ours(encoder, ids, types, mask).probs
    oracle = theirs(publish(kind), ids, types, mask).attentions
    assert len(probs) == len(oracle) == 2
    for mine, other in zip(probs, oracle, strict=True):
        assert float((mine - other)[0].abs().max()) < 1e-5
        assert float((mine - other)[1, :, :6, :6].abs().max()) < 1e-5


@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu"])
def test_every_activation_is_that_of_transformers(source: Path, activation: str) -> None:
    """The names of activations mean the same functions as in transformers."""
    rewrite(source / "config.json", hidden_act=activation)
    encoder = load_checkpoint(source).encoder
    batch = random_batch(encoder, [13])
    difference = ours(encoder, *batch).hidden[-1] - theirs(source, *batch).last_hidden_state
    assert float(difference.abs().max()) < 1e-5


def test_the_epsilon_of_the_config_is_used(source: Path) -> None:
    """A large layer_norm_eps, which changes every number, changes ours as theirs."""
    rewrite(source / "config.json", layer_norm_eps=0.5)
    encoder = load_checkpoint(source).encoder
    batch = random_batch(encoder, [13])
    difference = ours(encoder, *batch).hidden[-1] - theirs(source, *batch).last_hidden_state
    assert float(difference.abs().max()) < 1e-5


def test_a_roberta_counts_positions_from_its_own_padding_id(publish: Publish, tmp_path: Path) -> None:
    """RoBERTa's positions begin at pad_token_id + 1, and config.json says which id that is."""
    model = transformers.AutoModel.from_pretrained(publish("roberta"), pad_token_id=0)
    model.save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_bytes((publish("roberta") / "tokenizer.json").read_bytes())
    encoder = load_checkpoint(tmp_path).encoder
    batch = random_batch(encoder, [13])
    difference = ours(encoder, *batch).hidden[-1] - theirs(tmp_path, *batch).last_hidden_state
    assert float(difference.abs().max()) < 1e-5
