"""Every objective, from every kind of initial model: learns, resumes exactly, and opens in sentence-transformers."""

import itertools
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
import transformers
from sentence_transformers import CrossEncoder, SentenceTransformer

from model.artifact.files import TRAINING, Artifact
from model.artifact.manifest import TrainingRecord
from model.artifact.packing import BatchShape
from model.artifact.tokenizer import Tokenizer, TokenizerInput
from model.source.hub import locate
from model.train import loop, publication
from model.train.command import ARTIFACT, MODEL, load_init, run_training
from model.train.config import TrainError, load_config
from model.train.data import pack
from model.train.loop import CHECKPOINT, read_metrics, train
from model.train.objectives import ContrastiveModel, make_objective
from service.config import Settings
from service.engine.model_loader import LoadedModel
from tests.e2e.similarity_models import VARIANTS, Variant, publish_variant
from tests.model.conftest import Publish
from tests.model.train.conftest import sentences, to_toml
from tests.model.train.test_loop import ALONE, assert_same_weights, interrupt_at
from tests.serving import ServiceThread

Document = dict[str, dict[str, Any]]
TEXTS = ["the river bank", "money check loan vault", "fish rain mud."]
FINE_TUNED = {
    ("prompts", "contrastive"),
    ("cls and a dense layer", "contrastive"),
    ("max", "contrastive"),
    ("xlm-roberta", "distillation"),
    ("nonlinear dense layer", "distillation"),
}
"""The subset for `make test`: every pooling, a dense layer with and without activation, prompts, and two families."""
INITS = [name for name, variant in VARIANTS.items() if variant.include_prompt]


def write_pairs(directory: Path, *, spans: bool = False) -> None:
    for name, seed in (("train", 0), ("validation", 1)):
        texts = sentences(60, seed)
        records: list[dict[str, Any]] = [
            {"query": text, "positive": " ".join(reversed(text.split())), "negatives": texts[index % 7 : index % 7 + 1]}
            for index, text in enumerate(texts)
        ]
        for record in records if spans else ():
            texts = [record["query"], record["positive"], *record["negatives"]]
            record["spans"] = [[0, len(text.split()[0])] for text in texts]
        (directory / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))


@pytest.fixture
def contrastive(document: Document, tmp_path: Path) -> Document:
    """A training run on pairs that starts from random weights."""
    write_pairs(tmp_path)
    document["data"] = {"train": ["train.jsonl"], "validation": ["validation.jsonl"], "shuffle_texts": 20}
    document["contrastive"] = {"temperature": 0.1, "matryoshka_dimensions": [8, 16]}
    return document


@pytest.fixture(
    params=[
        "masked",
        pytest.param("causal", marks=pytest.mark.slow),
        pytest.param("contrastive", marks=pytest.mark.slow),
        pytest.param("contrastive with spans", marks=pytest.mark.slow),
        pytest.param("distillation", marks=pytest.mark.slow),
        pytest.param("cross_encoder", marks=pytest.mark.slow),
    ]
)
def any_document(request: pytest.FixtureRequest, document: Document, tmp_path: Path, exported_labse: Path) -> Document:
    """A run of each objective from random weights."""
    if request.param.startswith("contrastive"):
        contrastive: Document = request.getfixturevalue("contrastive")
        write_pairs(tmp_path, spans=request.param.endswith("spans"))
        return contrastive
    if request.param == "cross_encoder":
        write_pairs(tmp_path)
        document["data"] = {"train": ["train.jsonl"], "validation": ["validation.jsonl"], "shuffle_texts": 20}
        document["cross_encoder"] = {}
        document["optimizer"]["learning_rate"] = 1e-2
    if request.param == "causal":
        document["model"]["attention"] = "causal"
    if request.param == "distillation":
        document["distillation"] = {"teacher": str(exported_labse)}
    return document


def write(document: Document, directory: Path) -> Path:
    path = directory / "config.toml"
    path.write_text(to_toml(document))
    return path


def quiet(step: str) -> None:
    pass


def test_every_objective_learns_continues_and_is_served(
    any_document: Document, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    any_document["run"] |= {"steps": 40, "validation_steps": 40}
    path = write(any_document, tmp_path)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    run_training(path, whole, quiet)
    rows = read_metrics(whole)
    first, last = (np.mean([float(row["loss"]) for row in part]) for part in (rows[:5], rows[-5:]))
    assert last < 0.9 * first
    config = load_config(path)
    tokenizer = Tokenizer((whole / "tokenizer.json").read_bytes())
    parts.mkdir()
    interrupt_at(20, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        train(config, make_objective(config, tokenizer, None), tokenizer, parts, ALONE)
    train(config, make_objective(config, tokenizer, None), tokenizer, parts, ALONE)
    assert_same_weights(whole, parts)
    check_served(whole)


def check_served(run: Path) -> None:
    """Check that the artifact's results match sentence-transformers, and that the manifest records the training."""
    model = LoadedModel.load(Settings(model_dir=run / ARTIFACT, precision="float32"))
    record = TrainingRecord.model_validate_json((run / MODEL / TRAINING).read_bytes())
    assert model.artifact.manifest.training == record
    assert record.data
    if model.artifact.manifest.classification is not None:
        check_scores(run, model)
        return
    expected = SentenceTransformer(str(run / MODEL), device="cpu").encode(TEXTS)
    with ServiceThread(model) as service:
        results = httpx.post(f"{service.rest}/v1/encode", json={"inputs": TEXTS}).json()["results"]
    np.testing.assert_allclose([result["pooled"] for result in results], expected, atol=2e-5)


def check_scores(run: Path, model: LoadedModel) -> None:
    query, *documents = TEXTS
    expected = CrossEncoder(str(run / MODEL), device="cpu").predict([(query, document) for document in documents])
    with ServiceThread(model) as service:
        request = {"query": query, "documents": documents, "truncation": "right"}
        body = httpx.post(f"{service.rest}/v1/rerank", json=request).json()
    scores = {result["index"]: result["relevance_score"] for result in body["results"]}
    np.testing.assert_allclose([scores[index] for index in range(len(documents))], expected, atol=1e-5)


@pytest.mark.slow
def test_causal_model_opens_as_a_decoder(document: Document, tmp_path: Path) -> None:
    """transformers' BertLMHeadModel must compute the same loss as the run."""
    document["model"]["attention"] = "causal"
    config = load_config(write(document, tmp_path))
    run_training(tmp_path / "config.toml", tmp_path / "run", quiet)
    model = transformers.BertLMHeadModel.from_pretrained(tmp_path / "run" / MODEL)
    model.train(mode=False)
    tokenizer = Tokenizer((tmp_path / "run" / "tokenizer.json").read_bytes())
    objective = make_objective(config, tokenizer, None)
    objective.network.load_state_dict(torch.load(tmp_path / "run" / CHECKPOINT, weights_only=True)["network"])
    batches = loop.make_batches(config, objective, tokenizer, config.data.validation, seed=0)
    batch = next(batches)
    total = 0.0
    with torch.no_grad():
        for number in range(1, int(batch.inputs["sequence_ids"].max()) + 1):
            ids = batch.inputs["input_ids"][batch.inputs["sequence_ids"] == number][None]
            total += float(model(ids, labels=ids).loss) * (ids.shape[1] - 1)
        assert float(objective.network(batch)) == pytest.approx(total, rel=1e-4)


@pytest.mark.parametrize(
    ("name", "objective_name"),
    [
        pytest.param(*case, marks=() if case in FINE_TUNED else pytest.mark.slow)
        for case in itertools.product((*INITS, "distilbert", "electra", "xlm-roberta"), ("contrastive", "distillation"))
    ],
)
def test_fine_tuned_model_keeps_its_format(
    name: str, objective_name: str, document: Document, publish: Publish, exported_labse: Path, tmp_path: Path
) -> None:
    """Covers every pooling, dense layer, prompt, tokenizer and family. sentence-transformers must load the trained
    vectors.
    """
    variant = VARIANTS.get(name) or Variant(family=name)
    publish_variant(variant, publish, tmp_path)
    write_pairs(tmp_path)
    document["model"] = {"name": "tuned", "init": "published", "max_input_tokens": 24}
    del document["tokenizer"]
    document["optimizer"]["learning_rate"] = 1e-3
    if objective_name == "contrastive":
        document["data"] = {"train": ["train.jsonl"], "validation": ["validation.jsonl"]}
        document["contrastive"] = {}
    else:
        document["distillation"] = {"teacher": str(exported_labse)}
    config = load_config(write(document, tmp_path))
    source, checkpoint = load_init(config)
    assert source is not None
    assert checkpoint is not None
    tokenizer = Tokenizer(checkpoint.tokenizer)
    objective = make_objective(config, tokenizer, checkpoint)
    before = {name: tensor.clone() for name, tensor in objective.network.state_dict().items()}
    (tmp_path / "run").mkdir()
    result = train(config, objective, tokenizer, tmp_path / "run", ALONE)
    changed = [name for name, tensor in objective.network.state_dict().items() if not tensor.equal(before[name])]
    assert len(changed) > len(before) // 2
    record = publication.make_record(objective, config, result, "float32", source.source)
    publication.publish(objective, config, "", record, tmp_path / "tuned", (source, checkpoint))
    check_same_vectors(objective, checkpoint.embedding_config.normalize, tokenizer, tmp_path / "tuned")


def check_same_vectors(objective: Any, normalize: bool, tokenizer: Tokenizer, directory: Path) -> None:
    model = SentenceTransformer(str(directory), device="cpu")
    is_contrastive = isinstance(objective.network, ContrastiveModel)
    encode = (model.encode_query, model.encode_document) if is_contrastive else (model.encode, model.encode)
    for prompt, function in zip(objective.prompts, encode, strict=True):
        expected = function(TEXTS)
        for text, vector in zip(TEXTS, expected, strict=True):
            (tokens,) = tokenizer.encode([TokenizerInput(text, prompt=prompt)])
            with torch.no_grad():
                inputs = pack([tokens.input_ids], BatchShape(1, len(tokens)), [0])
                own = objective.network.text_encoder(inputs)[0]
            own = own / own.norm() if normalize else own
            np.testing.assert_allclose(own.numpy(), vector, atol=2e-5, rtol=1e-4)


@pytest.mark.slow
def test_blocks_of_the_initial_model_can_be_dropped(document: Document, exported_labse: Path, tmp_path: Path,
                                                    publish: Publish) -> None:  # fmt: skip
    """Distills a student without the last block of the initial model, then serves it."""
    publish_variant(VARIANTS["mean"], publish, tmp_path)
    (tmp_path / "published" / "LICENSE").write_text("terms")
    document["model"] = {"name": "small", "init": "published", "init_blocks": [1], "max_input_tokens": 24}
    del document["tokenizer"]
    document["distillation"] = {"teacher": str(exported_labse)}
    run_training(write(document, tmp_path), tmp_path / "run", quiet)
    manifest = Artifact.open(tmp_path / "run" / ARTIFACT).manifest
    assert (manifest.architecture.num_hidden_layers, manifest.embedding.dimensions) == (1, 19)
    assert manifest.training is not None
    assert (manifest.training.initial_model, manifest.training.teacher) == ("published", "tiny-labse")
    assert manifest.training.precision == "float32"
    assert manifest.notices == ("LICENSE",)
    assert locate(str(tmp_path / "run" / MODEL)).source == manifest.source == "small"
    check_served(tmp_path / "run")


def test_option_that_the_model_does_not_allow_is_an_error(
    contrastive: Document, publish: Publish, tmp_path: Path
) -> None:
    contrastive["contrastive"]["matryoshka_dimensions"] = [8, 24]
    with pytest.raises(TrainError, match=r"contrastive\.matryoshka_dimensions: 24, limit 23"):
        run_training(write(contrastive, tmp_path), tmp_path / "run", quiet)
    contrastive["contrastive"] = {}
    del contrastive["tokenizer"]
    shutil.copytree(publish("bert"), tmp_path / "published")
    contrastive["model"] = {"name": "x", "init": "published", "max_input_tokens": 99}
    with pytest.raises(TrainError, match=r"model\.max_input_tokens: model\.init supports 41"):
        run_training(write(contrastive, tmp_path), tmp_path / "run2", quiet)
    contrastive["model"] = {"name": "x", "init": "published", "max_input_tokens": 24, "init_blocks": [0, 2]}
    with pytest.raises(TrainError, match=r"model\.init_blocks: out of range \(2, limit 1\)"):
        run_training(write(contrastive, tmp_path), tmp_path / "run3", quiet)


def test_initial_model_that_excludes_the_prompt_is_an_error(
    contrastive: Document, publish: Publish, tmp_path: Path
) -> None:
    publish_variant(VARIANTS["excluded prompts"], publish, tmp_path)
    contrastive["model"] = {"name": "x", "init": "published", "max_input_tokens": 24}
    del contrastive["tokenizer"]
    with pytest.raises(TrainError, match=r"model\.init: its pooling excludes the prompt"):
        run_training(write(contrastive, tmp_path), tmp_path / "run", quiet)


def test_spans_of_some_pairs_only_are_an_error(contrastive: Document, tmp_path: Path) -> None:
    write_pairs(tmp_path, spans=True)
    records = [json.loads(line) for line in (tmp_path / "train.jsonl").read_text().splitlines()]
    for record in records[::2]:
        del record["spans"]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    with pytest.raises(TrainError, match="only some pairs have spans"):
        run_training(write(contrastive, tmp_path), tmp_path / "run", quiet)


@pytest.mark.slow
@pytest.mark.parametrize("any_document", ["contrastive"], indirect=True)
def test_two_processes_equal_one_with_the_same_batches(any_document: Document, tmp_path: Path) -> None:
    """Runs torchrun with two CPU processes; losses agree within 1e-5."""
    command = ["-m", "model", "train", str(write(any_document, tmp_path)), "-o"]
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", f"--log-dir={tmp_path}"]
    subprocess.run([sys.executable, *launcher, *command, str(tmp_path / "two")], check=True, capture_output=True)
    subprocess.run([sys.executable, *command, str(tmp_path / "one")], check=True, capture_output=True)
    one, two = ([float(row["loss"]) for row in read_metrics(tmp_path / name)] for name in ("one", "two"))
    assert len(one) == len(two) == 12
    assert np.abs(np.subtract(one, two)).max() < 1e-5
