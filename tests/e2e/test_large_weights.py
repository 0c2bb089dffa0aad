"""A model with more than 2 GiB of weights, the limit of an ONNX message, and the memory of an export."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from model.artifact.files import WEIGHTS, Artifact
from model.artifact.tokenizer import TokenizerInput
from model.export.export import Variants, export
from service.config import Settings
from service.engine.tasks import EncodeTask
from tests.conftest import ROOT
from tests.model.tiny_tokenizers import build_wordpiece
from tests.shared_models import load_anew

HIDDEN_SIZE, VOCAB_SIZE = 1024, 525_000
LIMIT = 2**31
TEXT = "The river bank."


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """One layer and a large vocabulary; the token ids of the tokenizer are the first ones."""
    root = tmp_path_factory.mktemp("large")
    config = transformers.BertConfig(
        vocab_size=1000, hidden_size=HIDDEN_SIZE, num_hidden_layers=1, num_attention_heads=8,
        intermediate_size=64, max_position_embeddings=32,
    )  # fmt: skip
    torch.manual_seed(2)
    model = transformers.BertModel(config, add_pooling_layer=False)
    table = model.embeddings.word_embeddings.weight.detach().repeat(VOCAB_SIZE // 1000, 1)
    model.embeddings.word_embeddings = torch.nn.Embedding(VOCAB_SIZE, HIDDEN_SIZE, _weight=table)
    model.config.vocab_size = VOCAB_SIZE
    model.save_pretrained(root / "large", max_shard_size="9GB")
    (root / "large" / "tokenizer.json").write_text(build_wordpiece().to_str())
    export(str(root / "large"), root / "artifact", revision=None, name=None, progress=lambda step: None,
           variants=Variants(explain=False))  # fmt: skip
    return Artifact.open(root / "artifact")


@pytest.mark.slow
@pytest.mark.parametrize("provider", ["openvino", "cpu"])
def test_weights_over_2_gib_are_served(artifact: Artifact, provider: str) -> None:
    """The golden vectors compare the backend with torch at startup."""
    assert artifact.manifest.files[WEIGHTS].size > LIMIT
    model = load_anew(Settings(model_dir=artifact.root, provider=provider, precision="float32"))
    (tokens,) = model.tokenizer.encode([TokenizerInput(TEXT)])
    (result,) = model.backend.run([EncodeTask(tokens.truncate(32, "right"), "mean", hidden=False)])
    assert result.pooled is not None
    assert np.isfinite(result.pooled).all()
    assert model.static is not None
    assert model.static.shape == (VOCAB_SIZE, HIDDEN_SIZE)
    assert np.abs(model.static[VOCAB_SIZE - 1]).max() > 0


MEASURE = """
import sys, threading, time
from pathlib import Path
from model.export.export import export

def read():
    line = next(line for line in open("/proc/self/status") if line.startswith("RssAnon"))
    return 1024 * int(line.split()[1])

def watch():
    global peak
    while True:
        peak = max(peak, read())
        time.sleep(0.005)

before = peak = read()
threading.Thread(target=watch, daemon=True).start()
export(sys.argv[1], Path(sys.argv[2]))
print(peak - before)
"""


@pytest.mark.slow
def test_export_of_16_bit_weights_takes_less_memory_than_they_do_in_float32(tmp_path: Path) -> None:
    """Memory without mapped files, whose pages can be dropped. The libraries take up to a quarter of a GiB."""
    config = transformers.Qwen2Config(
        vocab_size=40_000, hidden_size=768, intermediate_size=3072, num_hidden_layers=6, num_attention_heads=12,
        num_key_value_heads=2, max_position_embeddings=512,
    )  # fmt: skip
    torch.manual_seed(2)
    model = transformers.Qwen2Model(config)
    model.bfloat16().save_pretrained(tmp_path / "model")
    (tmp_path / "model" / "tokenizer.json").write_text(build_wordpiece().to_str())
    command = [sys.executable, "-c", MEASURE, str(tmp_path / "model"), str(tmp_path / "artifact")]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert int(result.stdout) < 2**28 + 0.75 * 4 * model.num_parameters()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["artifact", "model"]
