"""From the files of a model to responses: vectors and scores equal those of sentence-transformers."""

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
import sentence_transformers
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from model.export import Variants, export
from model.sentence_transformers_config import SettingOptions
from service.config import Settings
from service.engine.model_loader import LoadedModel
from tests.model.test_model_settings import MODEL as ALL_MODEL
from tests.model.test_model_settings import TOKENIZER, TRANSFORMER
from tests.model.test_sentence_transformers_config import write_modules
from tests.model.tiny_tokenizers import SENTENCES
from tests.service.conftest import open_harness

pytestmark = pytest.mark.slow

MODEL = {key: strategy for key, strategy in ALL_MODEL.items() if key != "prompts"}
TEXTS = (SENTENCES[0], "A Bank", "Bank of the RIVER. " * 4)
WITH_SPECIAL_TOKEN = "river [SEP] bank"  # not a password
PROMPTS = st.sampled_from(
    [{}, {"query": "find: ", "document": "Doc: "}, {"query": "[MASK] find: ", "document": "[SEP]"}, {"query": "[UNK]"}]
)
FILES = st.fixed_dictionaries(
    {
        "sentence_roberta_config": st.fixed_dictionaries({}, optional=TRANSFORMER),
        "config_sentence_transformers": st.fixed_dictionaries({"prompts": PROMPTS}, optional=MODEL),
        "tokenizer_config": st.fixed_dictionaries({"tokenizer_class": st.just("BertTokenizer")}, optional=TOKENIZER),
    }
)
POOLINGS = st.sampled_from(["mean", "cls", "max", "lasttoken"])


def publish(source: Path, root: Path, files: dict[str, Any], pooling: str, *, normalize: bool) -> None:
    """Write the files of a model."""
    shutil.copytree(source, root)
    write_modules(root, "Pooling", *(["Normalize"] if normalize else []))
    options = {"embedding_dimension": 24, "pooling_mode": pooling}
    (root / "1_Pooling" / "config.json").write_text(json.dumps(options))
    for name, content in files.items():
        (root / f"{name}.json").write_text(json.dumps(content))


@hypothesis.settings(
    max_examples=12, phases=(hypothesis.Phase.generate,), suppress_health_check=[HealthCheck.too_slow], deadline=None
)
@given(files=FILES, pooling=POOLINGS, normalize=st.booleans(), in_text=st.booleans())
async def test_responses_equal_sentence_transformers(
    published: Path, files: dict[str, Any], pooling: str, normalize: bool, in_text: bool
) -> None:
    texts = [*TEXTS, WITH_SPECIAL_TOKEN] if in_text else [*TEXTS]
    if '"truncation_side": "left"' in json.dumps(files):
        files["config_sentence_transformers"]["prompts"] = {}  # the library would drop prompts, which are kept here
    with tempfile.TemporaryDirectory() as directory:
        root, out = Path(directory) / "model", Path(directory) / "artifact"
        publish(published, root, files, pooling, normalize=normalize)
        oracle = sentence_transformers.SentenceTransformer(str(root), device="cpu")
        settings = SettingOptions(special_tokens_in_text=in_text)
        export(
            str(root), out, revision=None, name=None, progress=lambda step: None,
            variants=Variants(explain=False), settings=settings,
        )  # fmt: skip
        model = LoadedModel.load(Settings(model_dir=out, precision="float32"))
        async with open_harness(model) as harness:
            expected = {
                None: oracle.encode(texts, batch_size=1), "query": oracle.encode_query(texts, batch_size=1),
                "document": oracle.encode_document(texts, batch_size=1),
            }  # fmt: skip
            for role, vectors in expected.items():
                body: dict[str, Any] = {"inputs": texts, "truncation": "auto"} | ({"role": role} if role else {})
                response = await harness.post("/v1/encode", body)
                assert response.status_code == 200, response.text
                actual = np.array([result["pooled"] for result in response.json()["results"]])
                np.testing.assert_allclose(actual, vectors, rtol=0, atol=2e-5)
            body = {"queries": texts, "documents": texts, "truncation": "auto"}
            response = await harness.post("/v1/similarity", body)
            assert response.status_code == 200, response.text
            scores = oracle.similarity(expected["query"], expected["document"]).numpy()
            np.testing.assert_allclose(response.json()["scores"], scores, rtol=1e-5, atol=2e-4)
            assert response.json()["similarity"] == oracle.similarity_fn_name
