"""Classifiers of every architecture, compared with transformers and with sentence-transformers' CrossEncoder."""

import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from sentence_transformers import CrossEncoder
from torch import Tensor

from model.checkpoint import Checkpoint, load_checkpoint
from model.families import FAMILIES
from model.heads.classifiers import Classifier
from model.source.published import CheckpointError
from tests.model.classifier_cases import CLASSIFIER_CASES, TOKEN_CLASSIFIER_CASES
from tests.model.conftest import Publish
from tests.model.family_cases import FamilyCase, load_oracle
from tests.model.known_encoders import WITHOUT_CLASSIFIER
from tests.model.logit_score_cases import CAUSAL_FAMILIES, publish_logit_score
from tests.model.model_files import change_json, changed_keys, read_json
from tests.model.varlen_inputs import FIRST_ORDINARY_ID, random_ids, run


@pytest.fixture(scope="session")
def publish_classifier(tmp_path_factory: pytest.TempPathFactory, definitions: dict[str, bytes]) -> Publish:
    """Return a function from a name in `CLASSIFIER_CASES` to the directory of its files."""
    published: dict[str, Path] = {}

    def publish(kind: str) -> Path:
        if kind not in published:
            published[kind] = tmp_path_factory.mktemp("classifier")
            case = CLASSIFIER_CASES[kind]
            case.publish(published[kind], definitions[case.tokenizer])
        return published[kind]

    return publish


def classify(checkpoint: Checkpoint, input_ids: Tensor) -> Tensor:
    """Return the logits (C) of one sequence, as the manifest's `ClassificationHead` describes them."""
    classifier = checkpoint.classifier
    assert classifier is not None
    hidden = run(checkpoint, input_ids)
    with torch.inference_mode():
        skipped = classifier.record.skipped_token_id
        kept = input_ids[0] != (-1 if skipped is None else skipped)
        rows = {"cls": hidden[:1], "last": hidden[kept][-1:], "mean": hidden.mean(dim=0)[None], "mean_logits": hidden}
        logits: Tensor = classifier.head(rows[classifier.record.pooling])
        return logits.mean(dim=0)


def compare_logits(directory: Path, *lengths: int) -> None:
    checkpoint = load_checkpoint(directory)
    oracle = load_oracle(directory, transformers.AutoModelForSequenceClassification).eval()
    for length in lengths:
        input_ids = random_ids(checkpoint, length)
        with torch.inference_mode():
            expected = oracle(input_ids, attention_mask=torch.ones_like(input_ids)).logits[0]
        logits = classify(checkpoint, input_ids)
        assert logits.shape == expected.shape
        assert float((logits - expected).abs().max()) < 1e-5 * max(1.0, float(expected.abs().max()))


@pytest.mark.parametrize("kind", CLASSIFIER_CASES)
def test_logits_equal_transformers(publish_classifier: Publish, kind: str) -> None:
    compare_logits(publish_classifier(kind), 1, 17, 118)


def as_saved(cases: Mapping[str, FamilyCase]) -> list[Any]:
    """Return the cases with the names that `save_pretrained` writes."""
    return [
        pytest.param(replace(case, native_names=False), id=kind) for kind, case in cases.items() if case.rename is None
    ]


@pytest.mark.parametrize("case", as_saved(CLASSIFIER_CASES))
def test_classifiers_load_as_transformers_saves_them(
    tmp_path: Path, definitions: dict[str, bytes], case: FamilyCase
) -> None:
    case.publish(tmp_path, definitions[case.tokenizer])
    compare_logits(tmp_path, 9)


def test_bias_that_config_json_excludes_is_ignored(publish_classifier: Publish, tmp_path: Path) -> None:
    directory = shutil.copytree(publish_classifier("modernbert, biases"), tmp_path / "model")
    change_json(directory / "config.json", classifier_bias=False)
    compare_logits(directory, 9)


@given(data=st.data())
def test_changed_key_is_applied_or_rejected(publish_classifier: Publish, data: st.DataObject) -> None:
    """If transformers rejects a value, the result does not matter."""
    kind = data.draw(st.sampled_from([kind for kind, case in CLASSIFIER_CASES.items() if case.rename is None]))
    changes = data.draw(changed_keys(read_json(publish_classifier(kind) / "config.json")))
    with tempfile.TemporaryDirectory() as root:
        directory = shutil.copytree(publish_classifier(kind), Path(root) / "model")
        change_json(directory / "config.json", **changes)
        try:
            checkpoint = load_checkpoint(directory)
            assert checkpoint.classifier is not None
        except CheckpointError:
            return
        input_ids = random_ids(checkpoint, 17)
        try:
            oracle = load_oracle(directory, transformers.AutoModelForSequenceClassification)
            with torch.inference_mode():
                expected = oracle(input_ids, attention_mask=torch.ones_like(input_ids)).logits[0]
        except Exception:  # noqa: BLE001  # transformers raises exceptions of many types
            return
        difference = classify(checkpoint, input_ids) - expected
    assert float(difference.abs().max()) < 1e-4 * max(1.0, float(expected.abs().max()))


def test_last_token_is_the_last_one_that_is_not_padding(publish_classifier: Publish) -> None:
    """Qwen3's tokenizer appends the padding token to each text, and transformers skips it."""
    directory = publish_classifier("qwen3")
    checkpoint = load_checkpoint(directory)
    oracle = transformers.AutoModelForSequenceClassification.from_pretrained(directory).eval()
    input_ids = torch.tensor([[7, 9, 11, 0]])
    with torch.inference_mode():
        expected = oracle(input_ids, attention_mask=torch.ones_like(input_ids)).logits[0]
    assert torch.allclose(classify(checkpoint, input_ids), expected, rtol=0, atol=1e-5)


def load_changed(source: Path, directory: Path, **changes: Any) -> Classifier:
    """Return the classifier of a copy of the files with other values in config.json."""
    shutil.copytree(source, directory)
    change_json(directory / "config.json", **changes)
    classifier = load_checkpoint(directory).classifier
    assert classifier is not None
    return classifier


IDENTITY, SIGMOID = "torch.nn.modules.linear.Identity", "torch.nn.modules.activation.Sigmoid"
SOFTMAX = "torch.nn.modules.activation.Softmax"


@pytest.mark.parametrize(
    ("kind", "changes", "activation"),
    [
        ("bert", {}, "softmax"),
        ("bert, multi-label", {}, "sigmoid"),
        ("bert, one label", {}, "sigmoid"),
        ("bert, regression", {}, "identity"),
        ("bert, one label", {"sbert_ce_default_activation_function": IDENTITY}, "identity"),
        ("bert, one label", {"sentence_transformers": {"activation_fn": IDENTITY}}, "identity"),
        ("bert, regression", {"sentence_transformers": {"activation_fn": SIGMOID}}, "sigmoid"),
        ("bert", {"sentence_transformers": {"activation_fn": IDENTITY}}, "softmax"),
        ("bert", {"sentence_transformers": {"activation_fn": SOFTMAX}}, "softmax"),
        ("bert, multi-label", {"sentence_transformers": {"activation_fn": SOFTMAX}}, "softmax"),
    ],
)
def test_activation(
    publish_classifier: Publish, tmp_path: Path, kind: str, changes: dict[str, Any], activation: str
) -> None:
    classifier = load_changed(publish_classifier(kind), tmp_path / "model", **changes)
    assert classifier.record.activation == activation
    if len(classifier.record.labels) == 1:  # only models with one label score pairs
        oracle = CrossEncoder(str(tmp_path / "model"), device="cpu").activation_fn
        assert (classifier.record.pair_activation or classifier.record.activation) == type(oracle).__name__.lower()


def test_labels_have_the_names_of_the_config(publish_classifier: Publish, tmp_path: Path) -> None:
    assert load_changed(publish_classifier("bert"), tmp_path / "a").record.labels == ("billing", "delivery", "other")
    unnamed = load_changed(publish_classifier("bert"), tmp_path / "b", id2label=None)
    assert unnamed.record.labels == ("LABEL_0", "LABEL_1", "LABEL_2")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"id2label": {"0": "billing"}}, "id2label does not name the 3 labels"),
        ({"label2id": {"billing": 1, "delivery": 0, "other": 2}}, "id2label and label2id disagree on the label"),
        *(
            ({"sbert_ce_default_activation_function": name}, f"unsupported function '{name}'")
            for name in ("torch.nn.Softplus", "own.Sigmoid")
        ),
    ],
)
def test_invalid_config_is_an_error(
    publish_classifier: Publish, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        load_changed(publish_classifier("bert"), tmp_path / "model", **changes)


def test_classifier_without_architectures_is_named(publish_classifier: Publish, tmp_path: Path) -> None:
    source = shutil.copytree(publish_classifier("bert"), tmp_path / "model")
    change_json(source / "config.json", architectures=None)
    (warning,) = load_checkpoint(source).warnings
    assert warning.startswith("config.json: architectures is missing, so the head with classifier.")


@pytest.mark.parametrize("kind", ["modernbert", "eurobert, late"])
def test_unknown_pooling_is_an_error(publish_classifier: Publish, tmp_path: Path, kind: str) -> None:
    with pytest.raises(CheckpointError, match=r"classifier_pooling: unsupported \('max'\)"):
        load_changed(publish_classifier(kind), tmp_path / "model", classifier_pooling="max")


@pytest.mark.parametrize("kind", ["bert", "modernbert, biases", "roberta"])
def test_missing_and_misshapen_tensors_are_errors(publish_classifier: Publish, tmp_path: Path, kind: str) -> None:
    source = publish_classifier(kind)
    tensors = load_file(source / "model.safetensors")
    names = [name for name in tensors if name.startswith(("classifier", "head", "bert.pooler")) and "weight" in name]
    assert len(names) >= 2
    for number, name in enumerate(names):
        directory = shutil.copytree(source, tmp_path / str(number))
        save_file({key: value for key, value in tensors.items() if key != name}, directory / "model.safetensors")
        with pytest.raises(CheckpointError, match=f"tensor {name.removeprefix('bert.')} is missing"):
            load_checkpoint(directory)
        save_file(tensors | {name: tensors[name][..., :-1].contiguous()}, directory / "model.safetensors")
        with pytest.raises(CheckpointError, match="has shape"):
            load_checkpoint(directory)


def test_every_architecture_has_a_case(publish_classifier: Publish) -> None:
    covered = {load_checkpoint(publish_classifier(kind)).family.name for kind in CLASSIFIER_CASES}
    assert covered == FAMILIES.keys() - {"attendant", *WITHOUT_CLASSIFIER}


@pytest.mark.parametrize("kind", WITHOUT_CLASSIFIER)
def test_classifiers_with_decoder_are_rejected(publish: Publish, tmp_path: Path, kind: str) -> None:
    directory = shutil.copytree(publish(kind), tmp_path / "model")
    change_json(directory / "config.json", architectures=[f"{kind.upper()}ForSequenceClassification"])
    with pytest.raises(CheckpointError, match="reads its decoder"):
        load_checkpoint(directory)


@pytest.mark.parametrize(
    "case",
    [
        *(pytest.param(case, id=kind) for kind, case in TOKEN_CLASSIFIER_CASES.items()),
        *as_saved(TOKEN_CLASSIFIER_CASES),
    ],
)
def test_logits_of_tokens_equal_transformers(tmp_path: Path, definitions: dict[str, bytes], case: FamilyCase) -> None:
    case.publish(tmp_path, definitions[case.tokenizer])
    compare_token_logits(tmp_path)


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_token_classifier_may_have_no_bias(tmp_path: Path, definitions: dict[str, bytes], kind: str) -> None:
    """A bias in the weights is left unused."""
    case = TOKEN_CLASSIFIER_CASES[kind]
    case.publish(tmp_path, definitions[case.tokenizer])
    change_json(tmp_path / "config.json", token_classification_bias=False)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["score.bias"] += torch.arange(5.0)
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    compare_token_logits(tmp_path)


def compare_token_logits(directory: Path) -> None:
    """Compare the logits of each token with transformers."""
    checkpoint = load_checkpoint(directory)
    assert checkpoint.token_classifier is not None
    assert checkpoint.token_classifier.record.labels == ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
    oracle = load_oracle(directory, transformers.AutoModelForTokenClassification).eval()
    input_ids = random_ids(checkpoint, 31)
    with torch.inference_mode():
        expected = oracle(input_ids, attention_mask=torch.ones_like(input_ids)).logits[0]
        logits = checkpoint.token_classifier.head(run(checkpoint, input_ids))
    assert float((logits - expected).abs().max()) < 1e-5 * max(1.0, float(expected.abs().max()))


@pytest.mark.parametrize("kind", CAUSAL_FAMILIES)
def test_scores_of_causal_rerankers_equal_transformers(tmp_path: Path, kind: str) -> None:
    """The score is the difference of two logits of the language model at the last token."""
    publish_logit_score(tmp_path, kind=kind)
    checkpoint = load_checkpoint(tmp_path)
    assert checkpoint.classifier is not None
    input_ids = torch.randint(FIRST_ORDINARY_ID, 200, (1, 21), generator=torch.Generator().manual_seed(5))
    positions, ones = torch.arange(21)[None], torch.ones_like(input_ids)
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager")
    with torch.inference_mode():
        hidden = checkpoint.encoder(input_ids, positions, ones * 0, ones)
        score = checkpoint.classifier.head(hidden[:, -1]).item()
        logits = model(input_ids).logits[0, -1]
    assert score == pytest.approx(float(logits[17] - logits[23]), abs=1e-5 * max(1.0, float(logits.abs().max())))
