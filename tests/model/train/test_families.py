"""Fine-tuning of every family: the result has the format of the initial model and the weights of the encoder."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor

from model.artifact.tokenizer import Tokenizer
from model.checkpoint import Checkpoint, load_checkpoint
from model.encoder import Encoder
from model.source.hub import ModelSource
from model.train import publication
from model.train.command import load_init
from model.train.config import TrainConfig, TrainError, load_config
from model.train.objectives import CrossEncoder, Objective, make_objective
from tests.model.conftest import Publish
from tests.model.family_cases import FAMILY_CASES, load_oracle
from tests.model.known_encoders import WITHOUT_CLASSIFIER
from tests.model.model_files import change_json, read_json
from tests.model.published_families import SCALED_FROM
from tests.model.train.conftest import to_toml
from tests.model.train.test_objectives import write_pairs
from tests.model_records import TRAINING

ADAPTED = "jina_embeddings_v3, published"
KINDS = [kind for kind in FAMILY_CASES if kind != ADAPTED]
WITH_ORACLE = [kind for kind in KINDS if FAMILY_CASES[kind].rename is None]
REFUSED = {
    ("modernbert", (1, 3)), ("modernbert, biases", (1, 3)), ("modernbert, published", (1, 3)),
    ("modernbert, published", (0, 2)),
}  # fmt: skip
"""ModernBERT has no norm before the first attention, and in published files a rule for the windows."""


def configure(
    publish: Publish, kind: str, directory: Path, objective: str = "contrastive", **options: Any
) -> TrainConfig:
    """Return a run on pairs that starts from a copy of a model."""
    shutil.copytree(publish(kind), directory / "published")
    write_pairs(directory)
    document: dict[str, dict[str, Any]] = {
        "model": {"name": "tuned", "init": "published", "max_input_tokens": 24} | options,
        "data": {"train": ["train.jsonl"], "validation": ["validation.jsonl"]},
        objective: {},
        "run": {"steps": 2},
    }
    (directory / "config.toml").write_text(to_toml(document))
    return load_config(directory / "config.toml")


def load(config: TrainConfig) -> tuple[ModelSource, Checkpoint]:
    source, checkpoint = load_init(config)
    assert source is not None
    assert checkpoint is not None
    return source, checkpoint


def tune(config: TrainConfig, directory: Path) -> Objective:
    """Change all weights a little, as training does, and publish the result in the directory `tuned`."""
    source, checkpoint = load(config)
    objective = make_objective(config, Tokenizer(checkpoint.tokenizer), checkpoint)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in objective.network.parameters():
            parameter.add_(0.01 * torch.randn(parameter.shape, generator=generator))
    publication.publish(objective, config, "", TRAINING, directory / "tuned", (source, checkpoint))
    return objective


def make_inputs(encoder: Encoder) -> Tensor:
    generator = torch.Generator().manual_seed(9)
    return torch.randint(5, encoder.config.vocab_size, (1, 20), generator=generator)


def hidden_states(encoder: Encoder) -> list[Tensor]:
    ids = make_inputs(encoder)
    positions = torch.arange(ids.shape[1])[None]
    with torch.inference_mode():
        return encoder.hidden_states(ids, positions, torch.zeros_like(ids), torch.ones_like(ids))


def check_same(encoder: Encoder, directory: Path) -> None:
    """Check that the published files contain an encoder."""
    loaded = load_checkpoint(directory).encoder
    assert loaded.config == encoder.config
    # The files of Gemma contain the weights of norms minus 1, which loses a bit.
    tolerance = 1e-5 if encoder.config.block == "sandwich" else 1e-6
    for own, tensor in zip(hidden_states(encoder), hidden_states(loaded), strict=True):
        torch.testing.assert_close(own, tensor, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("kind", KINDS)
def test_tuned_encoder_is_published_in_the_format_of_its_source(publish: Publish, tmp_path: Path, kind: str) -> None:
    """transformers computes the same from it."""
    encoder = tune(configure(publish, kind, tmp_path), tmp_path).encoder
    check_same(encoder, tmp_path / "tuned")
    own, before = hidden_states(encoder)[-1], hidden_states(load_checkpoint(tmp_path / "published").encoder)[-1]
    assert not torch.allclose(before, own, atol=1e-3)
    if kind in WITH_ORACLE:
        model = load_oracle(tmp_path / "tuned")
        with torch.inference_mode():
            expected = model(make_inputs(encoder)).last_hidden_state
        assert float((own - expected).abs().max()) < 1e-5 * max(1.0, float(expected.abs().max()))
    source = load_file(tmp_path / "published" / "model.safetensors")
    tuned = load_file(tmp_path / "tuned" / "model.safetensors")
    assert {name: tensor.shape for name, tensor in tuned.items()}.items() <= {
        name: tensor.shape for name, tensor in source.items()
    }.items()
    values = [read_json(tmp_path / name / "config.json") for name in ("published", "tuned")]
    assert values[1] == values[0] | {"_name_or_path": "tuned"}


@pytest.mark.parametrize("kind", [kind for kind in WITH_ORACLE if kind not in WITHOUT_CLASSIFIER])
def test_transformers_computes_the_same_scores_from_a_cross_encoder(
    publish: Publish, tmp_path: Path, kind: str
) -> None:
    network = tune(configure(publish, kind, tmp_path, "cross_encoder"), tmp_path).network
    assert isinstance(network, CrossEncoder)
    ids = make_inputs(network.encoder)
    inputs = {"input_ids": ids, "position_ids": torch.arange(ids.shape[1])[None]}
    inputs |= {"token_type_ids": torch.zeros_like(ids), "sequence_ids": torch.ones_like(ids)}
    model, report = transformers.AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "tuned", attn_implementation="eager", output_loading_info=True
    )
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    with torch.inference_mode():
        expected = model.eval()(ids).logits[0]
        torch.testing.assert_close(network.logits(inputs), expected, atol=1e-5, rtol=1e-5)
    classifier = load_checkpoint(tmp_path / "tuned").classifier
    assert classifier is not None
    assert (classifier.record.labels, classifier.record.activation) == (("LABEL_0",), "sigmoid")
    for own, tensor in zip(network.head.parameters(), classifier.head.parameters(), strict=True):
        torch.testing.assert_close(own, tensor)


@pytest.mark.parametrize("blocks", [(1, 3), (0, 2)])
@pytest.mark.parametrize("kind", KINDS)
def test_blocks_are_kept_or_refused(publish: Publish, tmp_path: Path, kind: str, blocks: tuple[int, ...]) -> None:
    config = configure(publish, kind, tmp_path, init_blocks=blocks)
    if (kind, blocks) in REFUSED:
        with pytest.raises(TrainError, match=r"model\.init_blocks: the layers of model\.init differ"):
            tune(config, tmp_path)
        return
    encoder = tune(config, tmp_path).encoder
    source = load_checkpoint(tmp_path / "published").encoder
    assert encoder.config.layers == tuple(source.config.layers[index] for index in blocks)
    check_same(encoder, tmp_path / "tuned")


def test_adapters_are_refused(publish: Publish, tmp_path: Path) -> None:
    config = configure(publish, ADAPTED, tmp_path)
    with pytest.raises(TrainError, match=r"model\.init: has adapters of tasks"):
        tune(config, tmp_path)


def test_lengths_with_dynamic_scaling_are_refused(publish: Publish, tmp_path: Path) -> None:
    """Rows of training hold several sequences, but the scaling depends on the length of one."""
    config = configure(publish, "nomic_bert, dynamic", tmp_path, max_input_tokens=SCALED_FROM + 1)
    with pytest.raises(TrainError, match=f"scales positions beyond {SCALED_FROM} tokens"):
        tune(config, tmp_path)


def test_tuned_weights_are_declared_as_float32(publish: Publish, tmp_path: Path) -> None:
    """transformers would round them to the type of the initial model."""
    config = configure(publish, "modernbert", tmp_path)
    path = tmp_path / "published" / "config.json"
    change_json(path, dtype="bfloat16", torch_dtype="bfloat16")
    tune(config, tmp_path)
    values = read_json(tmp_path / "tuned" / "config.json")
    assert (values["dtype"], values["torch_dtype"]) == ("float32", "float32")
