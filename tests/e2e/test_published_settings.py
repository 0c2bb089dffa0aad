"""From the files of a model to responses: vectors and scores equal those of sentence-transformers."""

import json
import re
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

from model.export.export import Variants, export
from model.source.sentence_transformers import SettingOptions
from service.config import Settings
from service.engine.model_loader import LoadedModel
from tests.model.classifier_cases import CLASSIFIER_CASES
from tests.model.test_model_settings import MODEL as ALL_MODEL
from tests.model.test_model_settings import TOKENIZER, TRANSFORMER
from tests.model.test_sentence_transformers_config import write_modules
from tests.model.tiny_tokenizers import BUILDERS, SENTENCES
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
POOLING = st.sampled_from(["mean", "cls", "max", "lasttoken", "mean_sqrt_len_tokens", "weightedmean"])
POOLINGS = POOLING | st.lists(POOLING, min_size=1, max_size=3)


def keeps_prompts(files: dict[str, Any]) -> bool:
    """Return whether the library keeps prompts, and all token limits leave room for a text after them."""
    text = json.dumps(files)
    return '"truncation_side": "left"' not in text and re.search(r'_length": [5-9]\b', text) is None


def publish(source: Path, root: Path, files: dict[str, Any], pooling: str | list[str], *, normalize: bool) -> None:
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
    published: Path, files: dict[str, Any], pooling: str | list[str], normalize: bool, in_text: bool
) -> None:
    texts = [*TEXTS, WITH_SPECIAL_TOKEN] if in_text else [*TEXTS]
    if not keeps_prompts(files):
        files["config_sentence_transformers"]["prompts"] = {}
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


CROSS_ENCODERS = ("bert, one label", "bert, regression", "bert", "bert, multi-label")
ACTIVATIONS = st.none() | st.sampled_from(["linear.Identity", "activation.Sigmoid"])


@hypothesis.settings(
    max_examples=12, phases=(hypothesis.Phase.generate,), suppress_health_check=[HealthCheck.too_slow], deadline=None
)
@given(
    kind=st.sampled_from(CROSS_ENCODERS),
    tokenizer=st.fixed_dictionaries({"tokenizer_class": st.just("BertTokenizer")}, optional=TOKENIZER),
    prompt=st.sampled_from([None, "find: ", "[MASK] find: "]),
    activation=ACTIVATIONS,
)
async def test_scores_equal_cross_encoder(
    kind: str, tokenizer: dict[str, Any], prompt: str | None, activation: str | None
) -> None:
    query, documents = TEXTS[2], [*SENTENCES[:3], "A Bank"]
    if not keeps_prompts(tokenizer):
        prompt = None
    with tempfile.TemporaryDirectory() as directory:
        source, root, out = (Path(directory) / name for name in ("source", "model", "artifact"))
        source.mkdir()
        case = CLASSIFIER_CASES[kind]
        case.publish(source, BUILDERS[case.tokenizer]().to_str().encode())
        names = {f"{name}_token": f"[{name.upper()}]" for name in ("unk", "cls", "sep", "pad", "mask")}
        (source / "tokenizer_config.json").write_text(json.dumps({**names, **tokenizer}))
        options: dict[str, Any] = {} if prompt is None else {"prompts": {"own": prompt}, "default_prompt_name": "own"}
        saved = sentence_transformers.CrossEncoder(str(source), device="cpu", **options)
        saved.save_pretrained(str(root))
        config = json.loads((root / "config_sentence_transformers.json").read_text())
        if activation is None:
            del config["activation_fn"]
        else:
            config["activation_fn"] = f"torch.nn.modules.{activation}"
        (root / "config_sentence_transformers.json").write_text(json.dumps(config))
        oracle = sentence_transformers.CrossEncoder(str(root), device="cpu")
        expected = np.array(oracle.predict([(query, document) for document in documents], batch_size=1))
        variants = Variants(explain=False)
        export(str(root), out, revision=None, name=None, progress=lambda step: None, variants=variants)
        model = LoadedModel.load(Settings(model_dir=out, precision="float32"))
        async with open_harness(model) as harness:
            body: dict[str, Any] = {"truncation": "auto"}
            if oracle.num_labels == 1:
                response = await harness.post("/v1/rerank", {**body, "query": query, "documents": documents})
                assert response.status_code == 200, response.text
                scores = {result["index"]: result["relevance_score"] for result in response.json()["results"]}
                np.testing.assert_allclose([scores[index] for index in range(4)], expected, rtol=0, atol=2e-5)
                return
            pairs = [{"text": query, "pair": document} for document in documents]
            raw = activation in (None, "linear.Identity")  # the scores are those of the pipeline in transformers
            response = await harness.post("/v1/classify", {**body, "inputs": pairs, "raw_scores": raw})
            assert response.status_code == 200, response.text
            labels = model.artifact.manifest.classification.labels  # type: ignore[union-attr]
            rows = [
                {entry["label"]: entry["score"] for entry in result["labels"]} for result in response.json()["results"]
            ]
            actual = [[row[label] for label in labels] for row in rows]
            np.testing.assert_allclose(actual, expected, rtol=0, atol=2e-5)
