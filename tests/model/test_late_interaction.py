"""The files of ColBERT models: what is not supported is an error."""

from pathlib import Path
from typing import Any

import pytest

from model.checkpoint import load_checkpoint
from model.source.published import CheckpointError
from model.source.sentence_transformers import resolve_roles
from tests.model.colbert_cases import COLBERT_CASES, MAX_INPUT_TOKENS
from tests.model.model_files import read_json, write_json


def publish(directory: Path, kind: str, name: str = "", **changes: Any) -> Path:
    """Write a model of `COLBERT_CASES` with changes in the JSON file of this name."""
    COLBERT_CASES[kind].publish(directory)
    if name:
        path = directory / name
        values = read_json(path)
        if isinstance(values, list):  # modules.json
            values = [entry for entry in values if entry["type"].rpartition(".")[2] not in changes]
        else:
            values |= changes
        write_json(path, values)
    return directory


@pytest.mark.parametrize(
    ("kind", "name", "changes", "message"),
    [
        ("native, minimum", "2_MultiVectorMask/config.json", {"skiplist_tasks": ["query"]}, "skiplist_tasks"),
        ("native, minimum", "2_MultiVectorMask/config.json", {"keep_only_token_ids": [7]}, "keep_only_token_ids"),
        ("native, minimum", "2_MultiVectorMask/config.json", {"skiplist_words": "a"}, "not a list of strings"),
        ("native, minimum", "sentence_bert_config.json", {"document_length": 0}, "document_length is not a positive"),
        ("native, minimum", "sentence_bert_config.json", {"query_expansion": {"strategy": "max"}}, "unsupported"),
        (
            "native, minimum", "sentence_bert_config.json",
            {"query_expansion": {"strategy": "fixed", "length": 500}}, "length is not between",
        ),
        (
            "native, minimum", "sentence_bert_config.json",
            {"query_expansion": {"strategy": "fixed", "length": 40}}, r"exceeds the attention window \(16 tokens",
        ),
        (
            "native, minimum", "sentence_bert_config.json",
            {"query_expansion": {"strategy": "fixed", "length": 8, "token": "<none>"}}, "no such token",
        ),
        (
            "pylate", "1_Dense/config.json", {"activation_function": "torch.nn.modules.activation.Tanh"},
            "dense layer: unsupported",
        ),
        ("native, minimum", "modules.json", {"Normalize": None}, "token vectors without Normalize"),
        (
            "native, minimum", "3_Normalize/config.json", {"module_input_name": None},
            r"3_Normalize/config\.json: module_input_name: missing",
        ),
        ("pylate", "tokenizer_config.json", {"padding_side": "left"}, "padding_side: unsupported with query_expansion"),
        ("pylate", "config_sentence_transformers.json", {"query_prefix": 7}, "query_prefix is not a string"),
        ("pylate", "config_sentence_transformers.json", {"skiplist_words": [7]}, "skiplist_words is not a list of str"),
        ("pylate", "config_sentence_transformers.json", {"model_type": "colbert"}, "model_type: unsupported"),
        (
            "native, minimum", "sentence_bert_config.json",
            {"processing_kwargs": {"text": {"max_length": 9}}}, "max_length",
        ),
    ],
)  # fmt: skip
def test_unsupported_options_are_errors(
    tmp_path: Path, kind: str, name: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(publish(tmp_path, kind, name, **changes))


def test_prompt_of_only_a_marker_excludes_other_prompts(tmp_path: Path) -> None:
    """sentence-transformers reads the first of the prompts for documents."""
    prompts = {"query": "[Q] ", "document": "[D] ", "passage": "text: "}
    publish(tmp_path, "native, minimum", "config_sentence_transformers.json", prompts=prompts)
    embedding = load_checkpoint(tmp_path).embedding_config
    assert embedding.prompts["document"] == ""
    assert resolve_roles(embedding.prompts)["document"] == "document"


def test_limit_of_the_model_holds_the_marker(tmp_path: Path) -> None:
    """PyLate's `max_seq_length` counts the tokens before the marker is inserted."""
    checkpoint = load_checkpoint(publish(tmp_path, "pylate"))
    assert (checkpoint.max_input_tokens, MAX_INPUT_TOKENS) == (20, 64)


@pytest.mark.parametrize(("side", "expected"), [("query", (12, 20)), ("document", (18, 12))])
def test_side_without_a_limit_has_that_of_the_tokenizer(tmp_path: Path, side: str, expected: tuple[int, int]) -> None:
    publish(tmp_path, "native, minimum", "sentence_bert_config.json", max_seq_length=12)
    path = tmp_path / "sentence_bert_config.json"
    options = read_json(path)
    assert (options["query_length"], options["document_length"]) == (18, 20)
    del options[f"{side}_length"]
    write_json(path, options)
    head = load_checkpoint(tmp_path).multi_vector
    assert head is not None
    assert (head.record.query.max_tokens, head.record.document.max_tokens) == expected
