"""Artifacts of tiny classifiers, shared by the tests of every layer."""

import json
from functools import cache
from pathlib import Path

from model.export.export import export
from model.source.sentence_transformers import FROM_FILES, SettingOptions
from tests.model.classifier_cases import CLASSIFIER_CASES, TOKEN_CLASSIFIER_CASES
from tests.model.tiny_tokenizers import BUILDERS
from tests.scratch import make_directory

CROSS_ENCODER, CLASSIFIER, TOKEN_CLASSIFIER = "bert, one label", "bert", "tokens"
ENTAILMENT = "bert, entailment"
CASES = {**CLASSIFIER_CASES, TOKEN_CLASSIFIER: TOKEN_CLASSIFIER_CASES["bert"]}
MAX_INPUT_TOKENS = 64


@cache
def publish_classifier(kind: str) -> Path:
    """Write the published files of a case of `CASES`, once per process; return their directory."""
    case = CASES[kind]
    directory = make_directory() / "source"
    directory.mkdir()
    case.publish(directory, BUILDERS[case.tokenizer]().to_str().encode())
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    names = ["input_ids", "token_type_ids", "attention_mask"]
    options = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": MAX_INPUT_TOKENS,
        "model_input_names": names,
        **special,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(options))
    return directory


@cache
def export_classifier(kind: str, settings: SettingOptions = FROM_FILES) -> Path:
    """Return the directory of the artifact of a case, exported once per process and settings."""
    source = publish_classifier(kind)
    out = make_directory() / "artifact"
    export(str(source), out, revision=None, name="labels", progress=lambda step: None, settings=settings)
    return out
