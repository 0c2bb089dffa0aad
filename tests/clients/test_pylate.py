"""ColBERT models in PyLate's format: vectors of the published package."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model.export.export import Variants, export
from model.heads.multi_vector import PYLATE_KEYS
from service.config import Settings
from service.engine.model_loader import LoadedModel
from tests.clients.environments import ClientEnvironment
from tests.retrievers import export_retriever, publish_retriever
from tests.service.conftest import open_harness

pytestmark = pytest.mark.slow

KIND = "pylate"
TEXTS = ["the bank by the river", "money, money grows: in a bank account!", "a", "Don't count on it (42)"]
ENCODE = """
import contextlib
from pylate import models

with contextlib.redirect_stdout(sys.stderr):
    model = models.ColBERT(model_name_or_path=arguments["source"], device="cpu")
    vectors = {
        role: [model.encode([text], is_query=role == "query", show_progress_bar=False)[0] for text in texts]
        for role in ("query", "document")
    }
send(vectors)
"""
KEYS = """
import inspect, re
from pylate import models

source = inspect.getsource(models.ColBERT)
send(sorted(set(re.findall(r'_model_config\\[?"(\\w+)"\\]', source))))
"""
SAVE = """
import contextlib
from pylate import models

with contextlib.redirect_stdout(sys.stderr):
    models.ColBERT(model_name_or_path=arguments["source"], device="cpu").save_pretrained(arguments["out"])
send(None)
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> ClientEnvironment:
    return ClientEnvironment.create(KIND, tmp_path_factory.mktemp("environment") / KIND, share_torch=True)


async def test_vectors_equal_pylate(environment: ClientEnvironment) -> None:
    source = str(publish_retriever(KIND))
    expected = environment.call(ENCODE, texts=TEXTS, source=source)
    await compare(LoadedModel.load(Settings(model_dir=export_retriever(KIND), precision="float32")), expected)


async def compare(model: LoadedModel, expected: dict[str, Any]) -> None:
    """Compare the token vectors of `TEXTS` with those of PyLate, per role."""
    async with open_harness(model) as harness:
        for role, vectors in expected.items():
            body = {"inputs": TEXTS, "outputs": ["multi_vector"], "role": role, "truncation": "right"}
            response = await harness.post("/v1/encode", body)
            assert response.status_code == 200, response.text
            for result, vector in zip(response.json()["results"], vectors, strict=True):
                found = np.array(result["multi_vector"])
                assert found.shape == np.shape(vector)
                np.testing.assert_allclose(found, vector, rtol=0, atol=1e-4)


def test_every_key_that_pylate_reads_is_known(environment: ClientEnvironment) -> None:
    keys = set(environment.call(KEYS))
    assert {"query_prefix", "skiplist_words"} <= keys <= PYLATE_KEYS


async def test_vectors_of_a_saved_model_equal_pylate(environment: ClientEnvironment, tmp_path: Path) -> None:
    """PyLate 1 writes no `model_type` for a model that it makes of an encoder."""
    source, published = shutil.copytree(publish_retriever(KIND), tmp_path / "source"), tmp_path / "saved"
    for name in ("modules.json", "config_sentence_transformers.json", "sentence_bert_config.json"):
        (source / name).unlink()
    environment.call(SAVE, source=str(source), out=str(published))
    assert "model_type" not in json.loads((published / "config_sentence_transformers.json").read_text())
    expected = environment.call(ENCODE, texts=TEXTS, source=str(published))
    root = tmp_path / "artifact"
    export(str(published), root, revision=None, name=None, progress=lambda step: None, variants=Variants(explain=False))
    await compare(LoadedModel.load(Settings(model_dir=root, precision="float32")), expected)
