"""Layouts that libraries save: each loads with the results of the library, or is rejected with its name."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sentence_transformers
import torch
import transformers
from safetensors.torch import load_file
from sentence_transformers import SparseEncoder
from sentence_transformers.base.modules import Router
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

from model.artifact.names import SourceError
from model.checkpoint import load_checkpoint
from model.export.export import export
from model.export.heads import without_frame
from model.source.hub import locate
from model.source.published import CheckpointError
from model.source.sentence_transformers import SettingOptions
from tests.model.classifier_cases import bert_classifier
from tests.model.colbert_cases import BERT, ColbertCase, pylate, with_added_markers
from tests.model.family_cases import FAMILY_CASES, FamilyCase
from tests.model.model_files import read_json, write_chain, write_json
from tests.model.retriever_cases import publish_inference_free
from tests.model.test_sentence_transformers_config import write_modules
from tests.model.test_tokenizer_settings import load_tokenizer
from tests.model.tiny_tokenizers import BERT_TOKENS, BUILDERS
from tests.model.varlen_inputs import random_ids, run


def test_model_for_pretraining_has_its_masked_lm_head(tmp_path: Path) -> None:
    case = replace(bert_classifier("Bert"), architecture="BertForPreTraining")
    case.publish(tmp_path, BUILDERS[case.tokenizer]().to_str().encode())
    model = transformers.BertForPreTraining.from_pretrained(tmp_path).eval()  # type: ignore[no-untyped-call]
    checkpoint = load_checkpoint(tmp_path)
    assert checkpoint.masked_lm is not None
    assert checkpoint.unexported == ()
    head, ids = checkpoint.masked_lm.head, random_ids(checkpoint, 9)
    assert head.layers is not None
    assert head.bias is not None
    with torch.inference_mode():
        logits = head.layers(run(checkpoint, ids)) @ head.decoder.T + head.bias
        expected = model(ids).prediction_logits[0]
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-5 * float(expected.abs().max()))


@pytest.mark.parametrize("activation", ["swish", "gelu_python", "gelu_fast", "gelu_accurate", "gelu_python_tanh"])
def test_other_names_of_activations(tmp_path: Path, activation: str) -> None:
    case = replace(bert_classifier("Bert", hidden_act=activation), architecture="BertModel")
    case.publish(tmp_path, BUILDERS[case.tokenizer]().to_str().encode())
    model = transformers.BertModel.from_pretrained(tmp_path).eval()  # type: ignore[no-untyped-call]
    checkpoint = load_checkpoint(tmp_path)
    ids = random_ids(checkpoint, 9)
    with torch.inference_mode():
        expected = model(ids).last_hidden_state[0]
    torch.testing.assert_close(run(checkpoint, ids), expected, rtol=0, atol=2e-5 * float(expected.abs().max()))


@pytest.mark.parametrize("words", [None, [], ["a"]])
def test_skiplist_of_pylate_without_model_type(tmp_path: Path, words: list[str] | None) -> None:
    """PyLate 1 uses punctuation if the list is missing or empty, and skips unknown tokens for unknown words."""
    case = ColbertCase(BERT, BERT_TOKENS, lambda: with_added_markers("wordpiece", special=False), pylate())
    case.publish(tmp_path)
    path = tmp_path / "config_sentence_transformers.json"
    config = read_json(path)
    del config["model_type"], config["skiplist_words"]
    write_json(path, config | ({} if words is None else {"skiplist_words": words}))
    checkpoint = load_checkpoint(tmp_path)
    head = checkpoint.multi_vector
    assert head is not None
    vocabulary = BUILDERS["wordpiece"]().get_vocab()
    punctuation = {vocabulary[mark] for mark in "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~" if mark in vocabulary}
    expected = {vocabulary["a"]} if words else punctuation | {vocabulary["[UNK]"]}
    assert set(head.record.skipped_token_ids) == expected
    assert checkpoint.warnings == ()


def test_router_with_two_encoders_is_refused(source: Path, tmp_path: Path) -> None:
    def encoder() -> list[Any]:
        bert = Transformer(str(source))
        return [bert, Pooling(bert.get_embedding_dimension())]

    write_json(source / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", **BERT_TOKENS})
    shared = encoder()
    for query, is_shared in ((encoder(), False), (shared, True)):
        router = Router.for_query_document(query_modules=query, document_modules=shared)
        directory = tmp_path / f"shared-{is_shared}"
        sentence_transformers.SentenceTransformer(modules=[router]).save(str(directory))
        if is_shared:
            assert load_checkpoint(directory).embedding_config.pooling == "mean"
            continue
        with pytest.raises(
            CheckpointError, match=r"router_config\.json: queries and documents have different encoders"
        ):
            load_checkpoint(directory)


def test_chat_template_for_every_text_is_refused(source: Path) -> None:
    forward = {"method": "forward", "method_output_name": "last_hidden_state"}
    options = {"modality_config": {"text": forward, "message": {**forward, "format": "flat"}}}
    write_modules(source, "Pooling")
    write_json(source / "sentence_bert_config.json", {**options, "module_output_name": "token_embeddings"})
    with pytest.raises(CheckpointError, match=r"modality_config renders each text through the chat template"):
        load_checkpoint(source)


def test_transformer_in_a_directory_of_its_own(source: Path, tmp_path: Path) -> None:
    """sentence-transformers 0 and 1 save the encoder this way."""
    expected = load_checkpoint(source)
    write_modules(source, "Pooling")
    modules = read_json(source / "modules.json")
    modules[0]["path"] = "0_Transformer"
    write_json(source / "modules.json", modules)
    (source / "0_Transformer").mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        shutil.move(source / name, source / "0_Transformer" / name)
    located = locate(str(source))
    assert located.revision is not None
    ids = random_ids(expected, 9)
    assert torch.equal(run(load_checkpoint(source), ids), run(expected, ids))
    manifest = export(str(source), tmp_path / "artifact")
    assert manifest.embedding.pooling == "mean"


def test_code_of_a_model_is_named(source: Path) -> None:
    write_modules(source, "Pooling")
    path = source / "modules.json"
    path.write_text(path.read_text().replace("sentence_transformers.", "custom_st."))
    assert "is code of the model, which is not run" in "".join(load_checkpoint(source).warnings)


@pytest.mark.parametrize(
    ("family", "changes", "foreign"),
    [
        ("mpnet", {"AutoModel": "modeling_my.MPNetModel"}, "modeling_my.MPNetModel"),
        ("mpnet", {"AutoModelForCausalLM": "modeling_my.MPNetForCausalLM", "AutoConfig": "c.C"}, None),
        ("nomic_bert", {"AutoModel": "nomic-ai/nomic-bert-2048--modeling_hf_nomic_bert.NomicBertModel"}, None),
        ("nomic_bert", {"AutoModelForMaskedLM": "m.BertForMaskedLM"}, "m.BertForMaskedLM"),
        ("new", {"AutoModel": "modeling.NewModel"}, None),
        ("new", {"AutoModel": "modeling_hf_alibaba_nlp_gte.GteModel"}, None),
        ("jina_bert", {"AutoModel": "modeling_bert.JinaBertModel"}, None),
        ("jina_embeddings_v3", {"AutoModel": "modeling_lora.XLMRobertaLoRA"}, None),
        ("eurobert", {"AutoModel": "modeling_eurobert.EuroBertModel"}, None),
        ("qwen2", {"AutoModel": "modeling_qwen.Qwen2Model"}, "modeling_qwen.Qwen2Model"),
        ("qwen2", {"AutoModel": "modeling_qwen.Qwen2Model", "is_causal": False}, None),
        (
            "llama",
            {"AutoModel": "modeling_llama_encoder.LlamaEncoderModel"},
            "modeling_llama_encoder.LlamaEncoderModel",
        ),
    ],
)
def test_code_that_is_not_executed_is_named(
    tmp_path: Path, family: str, changes: dict[str, Any], foreign: str | None
) -> None:
    case = FAMILY_CASES[family]
    case.publish(tmp_path, BUILDERS[case.tokenizer]().to_str().encode())
    config = read_json(tmp_path / "config.json")
    config.pop("is_causal", None)
    names = {key: value for key, value in changes.items() if key.startswith("Auto")}
    write_json(tmp_path / "config.json", config | changes | {"auto_map": names})
    warnings = [warning for warning in load_checkpoint(tmp_path).warnings if "auto_map" in warning]
    assert bool(warnings) == (foreign is not None)
    assert foreign is None or f"names {foreign}. Code" in warnings[0]


@pytest.mark.parametrize(("family", "excess", "warns"), [("t5", 1, True), ("t5", 0, False), ("mpnet", 1, False)])
def test_limit_of_tokens_beyond_the_positions_is_named(tmp_path: Path, family: str, excess: int, warns: bool) -> None:
    """sentence-transformers reads longer texts with relative positions, and fails with a table of positions."""
    case = FAMILY_CASES[family]
    case.publish(tmp_path, BUILDERS[case.tokenizer]().to_str().encode())
    positions = load_checkpoint(tmp_path).max_input_tokens
    write_json(tmp_path / "sentence_bert_config.json", {"max_seq_length": positions + excess})
    checkpoint = load_checkpoint(tmp_path)
    assert checkpoint.max_input_tokens == positions
    assert any(f"truncated at the {positions} positions" in warning for warning in checkpoint.warnings) == warns


@pytest.mark.parametrize(
    ("name", "includes_prompt", "warns"),
    [
        ("hkunlp/instructor-large", False, False),
        ("me/Instructor-large-finetuned", True, True),
        ("instructor/model", True, False),
        ("hkunlp/other", True, False),
    ],
)
def test_instructor_excludes_the_prompt_as_sentence_transformers_does(
    source: Path, name: str, includes_prompt: bool, warns: bool
) -> None:
    write_modules(source, "Pooling")
    checkpoint = load_checkpoint(source, SettingOptions(source=name))
    assert checkpoint.embedding_config.include_prompt == includes_prompt
    assert any("Instructor" in warning for warning in checkpoint.warnings) == warns


def test_settings_without_modules_apply(source: Path) -> None:
    config = {"truncate_dim": 7, "similarity_fn_name": "dot", "prompts": {"query": "find: "}}
    write_json(source / "config_sentence_transformers.json", config)
    write_json(source / "sentence_bert_config.json", {"max_seq_length": 7})
    checkpoint = load_checkpoint(source)
    embedding = checkpoint.embedding_config
    assert (embedding.truncate_dim, embedding.similarity, embedding.prompts["query"]) == (7, "dot", "find: ")
    assert checkpoint.max_input_tokens == 7
    named = [warning.split()[0] for warning in checkpoint.warnings if "ignores it without modules.json" in warning]
    assert sorted(named) == ["config_sentence_transformers.json", "sentence_bert_config.json"]


def test_static_embedding_is_refused(tmp_path: Path) -> None:
    write_chain(tmp_path, {"0_StaticEmbedding": "sentence_transformers.models.StaticEmbedding"})
    with pytest.raises(CheckpointError, match=r"StaticEmbedding is not supported: it has no encoder"):
        load_checkpoint(locate(str(tmp_path)).directory)


@pytest.mark.parametrize(
    ("files", "advice"),
    [
        ([], "Choose another directory."),
        (["adapter_config.json", "adapter_model.safetensors"], "Merge the adapter with its base model: python -c"),
        (["0_BERT/config.json", "1_Pooling/config.json"], "0_BERT is the layout of sentence-transformers before"),
        (["checkpoint-500/config.json"], "Did you mean {}/checkpoint-500?"),
    ],
)
def test_directory_without_a_model_is_explained(tmp_path: Path, files: list[str], advice: str) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}")
    with pytest.raises(SourceError) as raised:
        locate(str(tmp_path))
    assert advice.format(tmp_path) in str(raised.value)


def test_adapters_of_peft_are_refused(source: Path) -> None:
    (source / "adapter_config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"adapter_config\.json: PEFT adapters are not supported"):
        load_checkpoint(source)


@pytest.mark.parametrize(
    ("name", "expected"), [("Reranker", "looks like a reranker"), ("other", "is a language model")]
)
def test_causal_language_model_without_modules_is_named(tmp_path: Path, name: str, expected: str) -> None:
    own = FAMILY_CASES["qwen3"]
    (tmp_path / name).mkdir()
    tokenizer = BUILDERS["bytelevel"]().to_str().encode()
    FamilyCase("Qwen3ForCausalLM", own.config, own.options).publish(tmp_path / name, tokenizer)
    (warning,) = [line for line in load_checkpoint(tmp_path / name).warnings if "embedding model" in line]
    assert expected in warning
    assert "CrossEncoder('SOURCE').save_pretrained('DIR')" in warning


def test_unknown_words_of_a_query_have_the_weight_of_the_table(tmp_path: Path) -> None:
    publish_inference_free(tmp_path, BUILDERS["wordpiece"]().to_str().encode())
    options = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 64, **BERT_TOKENS}
    for path in (tmp_path, *tmp_path.glob("*_0_*")):
        write_json(path / "tokenizer_config.json", options)
    table = load_file(tmp_path / "query_0_SparseStaticEmbedding" / "model.safetensors")["weight"]
    expected = SparseEncoder(str(tmp_path), device="cpu").encode_query(["the \u4e00 bank"])[0].to_dense()
    unknown = BUILDERS["wordpiece"]().token_to_id("[UNK]")
    assert float(expected[unknown]) == float(table[unknown]) > 0
    checkpoint = load_checkpoint(tmp_path)
    assert checkpoint.sparse is not None
    assert checkpoint.sparse.query_weights is not None
    weights = without_frame(checkpoint.sparse.query_weights, checkpoint.tokenizer)
    assert weights is not None
    for number in expected.nonzero().flatten().tolist():
        assert float(weights[number]) == float(expected[number])


def test_queries_with_another_tokenizer_are_refused(tmp_path: Path) -> None:
    publish_inference_free(tmp_path, BUILDERS["wordpiece"]().to_str().encode())
    path = tmp_path / "query_0_SparseStaticEmbedding" / "tokenizer.json"
    values = read_json(path)
    values["normalizer"]["lowercase"] = False
    write_json(path, values)
    with pytest.raises(CheckpointError, match=r"query_0_.*: tokenizer differs .*\(normalizer\)"):
        load_checkpoint(tmp_path)
    shutil.copy(next(tmp_path.glob("document_0_*")) / "tokenizer.json", path)
    load_checkpoint(tmp_path)
    write_json(path.with_name("tokenizer_config.json"), {"model_max_length": 5, "do_lower_case": False})
    with pytest.raises(CheckpointError, match=r"\(do_lower_case, model_max_length\)"):
        load_checkpoint(tmp_path)


def test_lower_casing_of_sentence_transformers(source: Path) -> None:
    values = read_json(source / "tokenizer.json")
    values["normalizer"]["lowercase"] = False
    write_json(source / "tokenizer.json", values)
    write_json(source / "tokenizer_config.json", {"do_lower_case": False})
    write_modules(source, "Pooling")
    cased = load_tokenizer(source).definition
    write_json(source / "sentence_distilbert_config.json", {"do_lower_case": True})
    lowered = load_tokenizer(source).definition
    assert json.loads(cased)["normalizer"]["type"] == "BertNormalizer"
    assert json.loads(lowered)["normalizer"]["normalizers"][0] == {"type": "Lowercase"}
