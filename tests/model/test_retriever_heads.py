"""Sparse and multi-vector heads, compared with transformers, published formulas and PyLate."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from model.checkpoint import load_checkpoint
from model.export.export import export
from model.families import FAMILIES
from model.families.family import ConfigReader
from model.source.published import CheckpointError
from model.source.sentence_transformers import resolve_roles
from tests.model.colbert_cases import COLBERT_CASES, MAX_INPUT_TOKENS
from tests.model.family_cases import oracle_directory
from tests.model.model_files import change_json, read_json, write_json
from tests.model.retriever_cases import MULTI_VECTOR_SIZE, SPLADE_CASES, UNTIED_CASES, publish_bge_m3, publish_splade
from tests.model.varlen_inputs import random_ids, run


@pytest.mark.parametrize("native_names", [True, False])
@pytest.mark.parametrize("kind", [*SPLADE_CASES, *UNTIED_CASES])
def test_logits_of_masked_lm_heads_equal_transformers(
    tmp_path: Path, definitions: dict[str, bytes], kind: str, native_names: bool
) -> None:
    """With the names of transformers, and with those that `save_pretrained` writes."""
    case = replace((SPLADE_CASES | UNTIED_CASES)[kind], native_names=native_names)
    publish_splade(case, tmp_path, definitions[case.tokenizer])
    compare_logits(tmp_path, 1, 17, 118)
    assert load_checkpoint(tmp_path).masked_lm is not None


def compare_logits(directory: Path, *lengths: int) -> None:
    checkpoint = load_checkpoint(directory)
    sparse = checkpoint.sparse
    assert sparse is not None
    assert sparse.decoder is not None
    oracle = transformers.AutoModelForMaskedLM.from_pretrained(
        oracle_directory(directory), attn_implementation="eager"
    ).eval()
    for length in lengths:
        input_ids = random_ids(checkpoint, length)
        with torch.inference_mode():
            expected = oracle(input_ids, attention_mask=torch.ones_like(input_ids)).logits[0]
            rows = run(checkpoint, input_ids)
            logits = (rows if sparse.head is None else sparse.head(rows)) @ sparse.decoder.T
            logits = logits if sparse.bias is None else logits + sparse.bias
        assert float((logits - expected).abs().max()) < 1e-5 * max(1.0, float(expected.abs().max()))


@pytest.mark.parametrize("kind", UNTIED_CASES)
def test_untied_projection_that_is_missing_is_an_error(
    tmp_path: Path, definitions: dict[str, bytes], kind: str
) -> None:
    case = UNTIED_CASES[kind]
    publish_splade(case, tmp_path, definitions[case.tokenizer])
    config = read_json(tmp_path / "config.json")
    checkpoint = load_checkpoint(tmp_path)
    assert checkpoint.family.masked_lm is not None
    name = f"{checkpoint.family.masked_lm(ConfigReader(config)).decoder}.weight"
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors[name]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=rf"{name} is missing, and tie_word_embeddings is false"):
        load_checkpoint(tmp_path)


@pytest.mark.parametrize("kind", UNTIED_CASES)
def test_own_tensors_of_a_tied_projection_take_precedence(
    tmp_path: Path, definitions: dict[str, bytes], kind: str
) -> None:
    """transformers loads a tensor that is in the file, even if the configuration ties it to another one."""
    case = UNTIED_CASES[kind]
    publish_splade(case, tmp_path, definitions[case.tokenizer])
    change_json(tmp_path / "config.json", tie_word_embeddings=True)
    compare_logits(tmp_path, 17)


@pytest.mark.parametrize(
    ("architecture", "expected"),
    [
        pytest.param("BertForQuestionAnswering", ("BertForQuestionAnswering",), marks=pytest.mark.slow),
        pytest.param("BertForMaskedLM", (), marks=pytest.mark.slow),
        pytest.param("BertModel", (), marks=pytest.mark.slow),
    ],
)
def test_heads_that_are_not_exported_are_named(
    tmp_path: Path, definitions: dict[str, bytes], architecture: str, expected: tuple[str, ...]
) -> None:
    case = replace(SPLADE_CASES["bert"], architecture=architecture)
    case.publish(tmp_path, definitions[case.tokenizer])
    lines: list[str] = []
    export(str(tmp_path), tmp_path / "out", progress=lines.append)
    assert [line for line in lines if line.startswith("not exported: ")] == [
        f"not exported: {name}" for name in expected
    ]


def test_every_architecture_with_a_masked_lm_head_has_a_case(
    tmp_path_factory: pytest.TempPathFactory, definitions: dict[str, bytes]
) -> None:
    covered = set()
    for case in SPLADE_CASES.values():
        directory = tmp_path_factory.mktemp("splade")
        publish_splade(case, directory, definitions[case.tokenizer])
        covered.add(load_checkpoint(directory).family.name)
    same_names = {"xlm-roberta": "roberta", "camembert": "roberta", "new": "gte"}
    expected = {family.name for family in FAMILIES.values() if family.masked_lm is not None}
    assert covered == {same_names.get(name, name) for name in expected}


@pytest.mark.parametrize(
    ("strategy", "activation", "message"),
    [
        ("mean", "relu", r"pooling: unsupported \('mean, relu'\)"),
        ("max", "gelu", r"pooling: unsupported \('max, gelu'\)"),
    ],
)
def test_unknown_splade_pooling_is_an_error(
    tmp_path: Path, definitions: dict[str, bytes], strategy: str, activation: str, message: str
) -> None:
    publish_splade(SPLADE_CASES["bert"], tmp_path, definitions["wordpiece"], strategy, activation)
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(tmp_path)


def test_heads_of_bge_m3_equal_their_formulas(tmp_path: Path, definitions: dict[str, bytes]) -> None:
    publish_bge_m3(tmp_path, definitions["metaspace"])
    checkpoint = load_checkpoint(tmp_path)
    assert checkpoint.sparse is not None
    assert checkpoint.sparse.head is not None
    assert checkpoint.multi_vector is not None
    input_ids = random_ids(checkpoint, 23)
    oracle = transformers.XLMRobertaModel.from_pretrained(tmp_path).eval()  # type: ignore[no-untyped-call]
    with torch.inference_mode():
        hidden = oracle(input_ids, attention_mask=torch.ones_like(input_ids)).last_hidden_state[0].numpy()
        rows = run(checkpoint, input_ids)
        logits, vectors = checkpoint.sparse.head(rows).numpy(), checkpoint.multi_vector.head(rows).numpy()
    for name, computed, size in (("sparse", logits, 1), ("colbert", vectors, MULTI_VECTOR_SIZE)):
        layer = {key: value.numpy() for key, value in torch.load(tmp_path / f"{name}_linear.pt").items()}
        assert computed.shape == (23, size)
        np.testing.assert_allclose(computed, hidden @ layer["weight"].T + layer["bias"], rtol=0, atol=1e-4)
    assert checkpoint.multi_vector.record.skips_first


def test_pickled_heads_with_code_are_not_run(tmp_path: Path, definitions: dict[str, bytes]) -> None:
    publish_bge_m3(tmp_path, definitions["metaspace"])
    (tmp_path / "sparse_linear.pt").write_bytes(b"cos\nsystem\n(S'touch /tmp/attendant-was-here'\ntR.")
    with pytest.raises(CheckpointError, match="sparse_linear"):
        load_checkpoint(tmp_path)
    assert not Path("/tmp/attendant-was-here").exists()


# The files of ColBERT models: what is not supported is an error.


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
