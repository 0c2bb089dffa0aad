"""Tiny sparse and multi-vector models: SPLADE models of every architecture with a masked-LM head, and BGE-M3."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tests.model.classifier_cases import DISTILBERT, bert_classifier
from tests.model.family_cases import FAMILY_CASES, SIZES, FamilyCase
from tests.model.model_files import read_json, write_chain, write_json

BGE_M3 = "bge-m3"
MULTI_VECTOR_SIZE = 20
SPARSE_BIAS = 7.2
"""Makes the sparse weights of some tokens positive. With a random bias near 0, all of them are negative."""


def masked_lm(kind: str, **options: Any) -> FamilyCase:
    """Return a case of `FAMILY_CASES` with a masked-LM head."""
    case = replace(FAMILY_CASES[kind], options={**FAMILY_CASES[kind].options, **options})
    architecture = case.architecture.removesuffix("Model").removesuffix("ForMaskedLM") + "ForMaskedLM"
    return replace(case, architecture=architecture, pooling=None)


def bert_masked_lm(name: str, **options: Any) -> FamilyCase:
    """Return a masked-LM model of an architecture like BERT."""
    return replace(bert_classifier(name, **options), architecture=f"{name}ForMaskedLM")


SPLADE_CASES: dict[str, FamilyCase] = {
    "bert": bert_masked_lm("Bert"),
    "roberta": bert_masked_lm("Roberta", pad_token_id=1),
    "electra": bert_masked_lm("Electra", embedding_size=16),
    "distilbert": FamilyCase("DistilBertForMaskedLM", "DistilBertConfig", DISTILBERT),
    "ernie": masked_lm("ernie"),
    "deberta-v2": masked_lm("deberta-v2"),
    "deberta-v2, published head": masked_lm("deberta-v2", legacy=False),
    "mpnet": masked_lm("mpnet"),
    "modernbert": masked_lm("modernbert"),
    "modernbert, biases": masked_lm("modernbert, biases"),
    "nomic_bert": masked_lm("nomic_bert"),
    "nomic_bert, published": masked_lm("nomic_bert, published"),
    "gte": masked_lm("gte"),
    "jina_embeddings_v3": masked_lm("jina_embeddings_v3"),
    "eurobert": masked_lm("eurobert"),
}
UNTIED_CASES = {
    f"{kind}, untied": replace(case, options={**case.options, "tie_word_embeddings": False})
    for kind, case in SPLADE_CASES.items()
    if case.options.get("legacy", True) and case.rename is None  # the others are always tied
}
"""The same, but with an untied projection and bias, which differ from the tensors that they could share."""


def publish_splade(
    case: FamilyCase, directory: Path, tokenizer: bytes, strategy: str = "max", activation: str = "relu"
) -> None:
    """Write a SPLADE model as sentence-transformers does."""
    case.publish(directory, tokenizer)
    base = "sentence_transformers.sparse_encoder.models"
    write_chain(directory, {"": f"{base}.MLMTransformer", "1_SpladePooling": f"{base}.SpladePooling"})
    write_json(directory / "config_sentence_transformers.json", {"model_type": "SparseEncoder"})
    size = read_json(directory / "config.json")["vocab_size"]
    options = {"pooling_strategy": strategy, "activation_function": activation, "word_embedding_dimension": size}
    write_json(directory / "1_SpladePooling" / "config.json", options)


def publish_bge_m3(directory: Path, tokenizer: bytes) -> None:
    """Write a model with the three outputs of BGE-M3: an XLM-RoBERTa, cls pooling, and two pickled linear layers."""
    sizes = SIZES | {"max_position_embeddings": 122, "pad_token_id": 1}
    case = FamilyCase("XLMRobertaModel", "XLMRobertaConfig", sizes, "metaspace", pooling="cls_token")
    case.publish(directory, tokenizer)
    generator = torch.Generator().manual_seed(5)
    for name, rows in (("sparse_linear.pt", 1), ("colbert_linear.pt", MULTI_VECTOR_SIZE)):
        layer = {
            "weight": torch.randn(rows, SIZES["hidden_size"], generator=generator),
            "bias": torch.randn(rows, generator=generator),
        }
        if name == "sparse_linear.pt":
            layer["bias"].fill_(SPARSE_BIAS)
        torch.save(layer, directory / name)


def publish_inference_free(directory: Path, tokenizer: bytes) -> None:
    """Write a SPLADE model for documents with separate query weights, as sentence-transformers does."""
    document, query = "document_0_MLMTransformer", "query_0_SparseStaticEmbedding"
    publish_splade(SPLADE_CASES["bert"], directory, tokenizer)
    (directory / document).mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (directory / name).rename(directory / document / name)
    (directory / "1_SpladePooling").rename(directory / "document_1_SpladePooling")
    write_chain(directory, {"": "sentence_transformers.base.modules.router.Router"})
    base = "sentence_transformers.sparse_encoder.modules"
    routes = {
        "types": {
            query: f"{base}.sparse_static_embedding.SparseStaticEmbedding",
            document: "sentence_transformers.base.modules.transformer.Transformer",
            "document_1_SpladePooling": f"{base}.splade_pooling.SpladePooling",
        },
        "structure": {"query": [query], "document": [document, "document_1_SpladePooling"]},
        "parameters": {"default_route": "document", "allow_empty_key": True},
    }
    write_json(directory / "router_config.json", routes)
    size = read_json(directory / document / "config.json")["vocab_size"]
    (directory / query).mkdir()
    weights = torch.rand(size, generator=torch.Generator().manual_seed(8))
    save_file({"weight": weights}, directory / query / "model.safetensors")
    write_json(directory / query / "config.json", {"frozen": False})
    (directory / query / "tokenizer.json").write_bytes(tokenizer)
    forward = {"method": "forward", "method_output_name": "logits"}
    transformer = {
        "transformer_task": "fill-mask", "modality_config": {"text": forward}, "module_output_name": "token_embeddings",
    }  # fmt: skip
    write_json(directory / document / "sentence_bert_config.json", transformer)
