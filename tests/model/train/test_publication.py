"""A trained model behaves the same in this package, transformers, sentence-transformers, and the server."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from model.__main__ import main
from model.artifact.files import Artifact
from model.checkpoint import load_checkpoint as load_published
from model.train.command import ARTIFACT, MODEL
from model.train.loop import CURVES
from tests.model.train.conftest import to_toml

TEXTS = ["the river bank", "money check loan vault", "fish rain mud."]


@pytest.fixture(params=["wordpiece", pytest.param("bpe", marks=pytest.mark.slow)])
def run(request: pytest.FixtureRequest, document: dict[str, dict[str, Any]], tmp_path: Path) -> Path:
    """Directory of a finished run."""
    document["tokenizer"]["kind"] = request.param
    document["tokenizer"]["vocab_size"] = 60 if request.param == "wordpiece" else 300
    document["model"]["positions"] = "learned" if request.param == "wordpiece" else "sinusoidal"
    (tmp_path / "config.toml").write_text(to_toml(document))
    assert main(["train", str(tmp_path / "config.toml"), "-o", str(tmp_path / "run")]) == 0
    return tmp_path / "run"


@pytest.mark.slow
def test_transformers_computes_the_same_from_the_trained_model(run: Path) -> None:
    assert {path.name for path in run.iterdir()} >= {"checkpoint.pt", "metrics.csv", CURVES, MODEL, ARTIFACT}
    assert Artifact.open(run / ARTIFACT).manifest.license == "apache-2.0"
    tokenizer = transformers.AutoTokenizer.from_pretrained(run / MODEL)
    language_model = transformers.BertForMaskedLM.from_pretrained(run / MODEL)
    language_model.train(mode=False)
    encoder = load_published(run / MODEL).encoder
    state = torch.load(run / "checkpoint.pt", weights_only=True)["network"]
    for text in TEXTS:
        ids = tokenizer(text, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            output = language_model(ids, output_hidden_states=True)
            own = encoder(ids, torch.arange(ids.shape[1])[None], torch.zeros_like(ids), torch.ones_like(ids))
            hidden = torch.nn.functional.gelu(own @ state["transform.weight"].T + state["transform.bias"])
            hidden = torch.nn.functional.layer_norm(
                hidden, hidden.shape[-1:], state["norm.weight"], state["norm.bias"], 1e-12
            )
            logits = hidden @ state["encoder.embeddings.word_embeddings.weight"].T + state["bias"]
        torch.testing.assert_close(output.hidden_states[-1], own, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(output.logits, logits, atol=1e-4, rtol=1e-4)


def test_invalid_configuration_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", str(tmp_path / "none.toml"), "-o", str(tmp_path / "run")]) == 78
    error = capsys.readouterr().err
    assert error.startswith("attendant-model: ")
    assert error.count("\n") == 1
