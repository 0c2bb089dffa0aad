"""New encoders of any combination of parts: training, publication, loading, serving."""

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor

from model.artifact.files import Artifact
from model.artifact.tokenizer import Tokenizer, TokenizerInput
from model.checkpoint import load_checkpoint
from model.encoder import Encoder
from model.families import modernbert
from model.families.family import ConfigReader
from model.train import publication
from model.train.command import ARTIFACT, MODEL, load_init, run_training, write_tokenizer
from model.train.config import ModelOptions, TrainConfig, TrainError, load_config
from model.train.loop import train
from model.train.network import make_encoder
from model.train.objectives import Objective, make_objective
from service.config import Settings
from service.engine.model_loader import LoadedModel
from tests.model.train.conftest import to_toml
from tests.model.train.test_loop import ALONE
from tests.model.train.test_objectives import quiet, write_pairs
from tests.model_records import TRAINING
from tests.serving import ServiceThread

Document = dict[str, dict[str, Any]]
TEXT = "river bank boat."
PARTS: dict[str, tuple[Any, ...]] = {
    "positions": ("learned", "sinusoidal", "rotary"),
    "block": ("post", "pre"),
    "gated": (False, True),
    "window": (0, 2),
    "attention": ("bidirectional", "causal"),
}
COMBINATIONS = [dict(zip(PARTS, values, strict=True)) for values in itertools.product(*PARTS.values())]
FAST = [parts for parts in COMBINATIONS if parts["attention"] == ("causal" if parts["gated"] else "bidirectional")]
"""Half of the combinations for `make test`, with every pair of the other parts."""
SIZES: dict[str, Any] = {
    "name": "a", "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 3, "intermediate_size": 32,
    "max_input_tokens": 24,
}  # fmt: skip


def configure(document: Document, directory: Path, **parts: Any) -> TrainConfig:
    """Return a run of two steps of an encoder with these parts."""
    document["model"] = SIZES | parts
    if parts.get("window"):
        document["model"]["global_attn_every_n_layers"] = 2
    document["run"] |= {"steps": 2}
    document["optimizer"]["warmup_steps"] = 1
    (directory / "config.toml").write_text(to_toml(document))
    return load_config(directory / "config.toml")


def hidden_states(encoder: Encoder, tokenizer: Tokenizer) -> list[Tensor]:
    (tokens,) = tokenizer.encode([TokenizerInput(TEXT)])
    ids = torch.tensor(tokens.input_ids)[None]
    with torch.inference_mode():
        return encoder.hidden_states(ids, torch.arange(ids.shape[1])[None], torch.zeros_like(ids), torch.ones_like(ids))


def fit(config: TrainConfig, directory: Path) -> tuple[Objective, Tokenizer]:
    """Train a new encoder and publish it in the directory `model`."""
    write_tokenizer(config, directory / "tokenizer.json")
    definition = (directory / "tokenizer.json").read_text()
    tokenizer = Tokenizer(definition.encode())
    objective = make_objective(config, tokenizer, None)
    before = {name: tensor.clone() for name, tensor in objective.encoder.state_dict().items()}
    (directory / "run").mkdir()
    train(config, objective, tokenizer, directory / "run", ALONE)
    changed = [name for name, tensor in objective.encoder.state_dict().items() if not tensor.equal(before[name])]
    assert len(changed) >= 0.8 * len(before)
    publication.publish(objective, config, definition, TRAINING, directory / "model", None)
    return objective, tokenizer


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param(parts, id=" ".join(map(str, parts.values())), marks=() if parts in FAST else pytest.mark.slow)
        for parts in COMBINATIONS
    ],
)
def test_published_encoder_computes_the_same_bits(parts: dict[str, Any], document: Document, tmp_path: Path) -> None:
    objective, tokenizer = fit(configure(document, tmp_path, **parts), tmp_path)
    checkpoint = load_checkpoint(tmp_path / "model")
    assert checkpoint.encoder.config == objective.encoder.config
    expected = hidden_states(objective.encoder, tokenizer)
    for own, loaded in zip(expected, hidden_states(checkpoint.encoder, tokenizer), strict=True):
        assert torch.equal(own, loaded)
    is_bert = parts["positions"] != "rotary" and parts["block"] == "post" and not parts["gated"] and not parts["window"]
    values = json.loads((tmp_path / "model" / "config.json").read_text())
    assert values["model_type"] == checkpoint.family.name == ("bert" if is_bert else "attendant")
    assert checkpoint.embedding_config.pooling == "mean"
    assert checkpoint.max_input_tokens == 24


@pytest.mark.parametrize("every", [2, 3, 4])
def test_windows_and_norms_are_placed_as_in_modernbert(every: int) -> None:
    sizes = SIZES | {"num_hidden_layers": 7}
    options = ModelOptions(
        **sizes, positions="rotary", rope_theta=77.0, block="pre", gated=True, window=5,
        global_attn_every_n_layers=every,
    )  # fmt: skip
    modern = modernbert.read_config(
        ConfigReader(
            sizes | {"vocab_size": 60, "local_attention": 10, "global_attn_every_n_layers": every,
                     "global_rope_theta": 77.0, "local_rope_theta": 77.0}
        )
    )  # fmt: skip
    config = make_encoder(options, 60).config
    assert config.layers == modern.layers
    assert (config.block, config.gated, config.position_table) == (modern.block, modern.gated, modern.position_table)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"positions": "rotary", "hidden_size": 21},
            r"hidden_size / num_attention_heads is odd \(7\), and rotary positions need pairs",
        ),
        ({"rope_theta": 500.0}, 'rope_theta is set without positions = "rotary". Remove it'),
        ({"positions": "rotary", "rope_theta": 1.0}, "rope_theta: must be greater than 1"),
        ({"global_attn_every_n_layers": 2}, "global_attn_every_n_layers is set without window. Remove it"),
        ({"window": 4, "global_attn_every_n_layers": 1}, "window has no effect with global_attn_every_n_layers = 1"),
        ({"window": -1}, "window: must be greater than or equal to 0"),
        ({"block": "sandwich"}, "block: must be 'post' or 'pre'"),
        ({"positions": "alibi"}, "positions: must be 'learned', 'sinusoidal' or 'rotary'"),
    ],
)
def test_parts_that_do_not_fit_are_errors(
    document: Document, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    document["model"] = SIZES | options
    (tmp_path / "config.toml").write_text(to_toml(document))
    with pytest.raises(TrainError, match=message):
        load_config(tmp_path / "config.toml")


MODERN = {"positions": "rotary", "block": "pre", "gated": True, "window": 2}


@pytest.mark.parametrize("blocks", [(), (0, 1), (0, 2)])
def test_training_continues_from_a_published_encoder(
    document: Document, tmp_path: Path, blocks: tuple[int, ...]
) -> None:
    first, tokenizer = fit(configure(document, tmp_path, **MODERN), tmp_path)
    write_pairs(tmp_path)
    document["model"] = {"name": "tuned", "init": "model", "init_blocks": blocks}
    document["data"] = {"train": ["train.jsonl"], "validation": ["validation.jsonl"]}
    document["contrastive"] = {}
    del document["tokenizer"]
    (tmp_path / "tuned.toml").write_text(to_toml(document))
    config = load_config(tmp_path / "tuned.toml")
    config = config.model_copy(update={"model": config.model.model_copy(update={"max_input_tokens": 24})})
    source, checkpoint = load_init(config)
    assert source is not None
    assert checkpoint is not None
    objective = make_objective(config, tokenizer, checkpoint)
    kept = blocks or (0, 1, 2)
    assert objective.encoder.config.layers == tuple(first.encoder.config.layers[index] for index in kept)
    (tmp_path / "tuned").mkdir()
    train(config, objective, tokenizer, tmp_path / "tuned", ALONE)
    publication.publish(objective, config, "", TRAINING, tmp_path / "again", (source, checkpoint))
    loaded = load_checkpoint(tmp_path / "again")
    assert loaded.family.name == "attendant"
    assert loaded.encoder.config == objective.encoder.config
    expected = hidden_states(objective.encoder, tokenizer)
    for own, tensor in zip(expected, hidden_states(loaded.encoder, tokenizer), strict=True):
        assert torch.equal(own, tensor)
    assert not torch.equal(expected[-1], hidden_states(first.encoder, tokenizer)[-1])


def test_transformers_and_sentence_transformers_reject_the_format(document: Document, tmp_path: Path) -> None:
    """They do not read it as another architecture. Their files of pooling and tokenizer exist all the same."""
    fit(configure(document, tmp_path, **MODERN), tmp_path)
    assert {path.name for path in (tmp_path / "model").iterdir()} >= {"modules.json", "1_Pooling", "tokenizer.json"}
    with pytest.raises(ValueError, match="attendant"):
        SentenceTransformer(str(tmp_path / "model"), device="cpu")


@pytest.mark.slow
def test_trained_encoder_is_exported_and_served(document: Document, tmp_path: Path) -> None:
    import httpx

    configure(document, tmp_path, **MODERN)
    run_training(tmp_path / "config.toml", tmp_path / "run", quiet)
    manifest = Artifact.open(tmp_path / "run" / ARTIFACT).manifest
    assert manifest.architecture.family == "attendant"
    checkpoint = load_checkpoint(tmp_path / "run" / MODEL)
    last = hidden_states(checkpoint.encoder, Tokenizer(checkpoint.tokenizer))[-1][0]
    model = LoadedModel.load(Settings(model_dir=tmp_path / "run" / ARTIFACT, precision="float32"))
    with ServiceThread(model) as service, httpx.Client(base_url=service.rest) as client:
        (encoded,) = client.post("/v1/encode", json={"inputs": [TEXT]}).json()["results"]
        (attended,) = client.post("/v1/attend", json={"inputs": [TEXT], "kind": "projection"}).json()["results"]
    np.testing.assert_allclose(encoded["pooled"], last.mean(dim=0).numpy(), atol=2e-5)
    maps = {(item["layer"], item["head"]): np.array(item["matrix"]) for item in attended["maps"]}
    for matrix in maps.values():
        distance = abs(np.subtract.outer(np.arange(len(matrix)), np.arange(len(matrix))))
        assert (matrix[distance == 0] != 0).any()
    windowed = [matrix for (layer, _), matrix in maps.items() if layer == 2]
    assert windowed
    assert all((matrix[distance > 2] == 0).all() for matrix in windowed)
