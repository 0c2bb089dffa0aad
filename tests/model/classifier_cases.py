"""One tiny classifier per architecture, with random weights and every config key away from its default."""

from dataclasses import replace
from typing import Any

from tests.model.family_cases import FAMILY_CASES, SIZES, FamilyCase

LABELS: dict[str, Any] = {"id2label": {0: "billing", 1: "delivery", 2: "other"}}
TAGS: dict[str, Any] = {"id2label": {0: "O", 1: "B-PER", 2: "I-PER", 3: "B-LOC", 4: "I-LOC"}}
CROSS_ENCODER: dict[str, Any] = {"num_labels": 1}
ENTAILMENT: dict[str, Any] = {
    "id2label": {0: "contradiction", 1: "ENTAILMENT", 2: "neutral"},
    "label2id": {"contradiction": 0, "ENTAILMENT": 1, "neutral": 2},
}


def classifier(kind: str, **options: Any) -> FamilyCase:
    """Return a case of `FAMILY_CASES` with a classifier of three labels, unless `options` say otherwise."""
    case = FAMILY_CASES[kind]
    architecture = case.architecture.removesuffix("Model").removesuffix("ForMaskedLM") + "ForSequenceClassification"
    return replace(case, architecture=architecture, options={**case.options, **LABELS, **options})


def bert_classifier(name: str, **options: Any) -> FamilyCase:
    """Return a classifier of an architecture like BERT."""
    sizes: dict[str, Any] = {"max_position_embeddings": 122, "layer_norm_eps": 1e-3, "hidden_act": "relu"}
    return FamilyCase(f"{name}ForSequenceClassification", f"{name}Config", SIZES | sizes | LABELS | options)


DISTILBERT = {
    "dim": 24, "n_layers": 4, "n_heads": 3, "hidden_dim": 37, "max_position_embeddings": 122, "activation": "relu",
}  # fmt: skip
CLASSIFIER_CASES: dict[str, FamilyCase] = {
    "bert": bert_classifier("Bert"),
    "bert, one label": bert_classifier("Bert", **CROSS_ENCODER),
    "bert, multi-label": bert_classifier("Bert", problem_type="multi_label_classification"),
    "bert, regression": bert_classifier("Bert", problem_type="regression", **CROSS_ENCODER),
    "bert, entailment": bert_classifier("Bert", **ENTAILMENT),
    "roberta": bert_classifier("Roberta", pad_token_id=1),
    "xlm-roberta": bert_classifier("XLMRoberta", pad_token_id=1, **CROSS_ENCODER),
    "camembert": bert_classifier("Camembert", pad_token_id=1),
    "electra": bert_classifier("Electra", embedding_size=16),
    "distilbert": FamilyCase("DistilBertForSequenceClassification", "DistilBertConfig", DISTILBERT | LABELS),
    "mpnet": classifier("mpnet"),
    "modernbert": classifier("modernbert", classifier_pooling="cls"),
    "modernbert, biases": classifier(
        "modernbert, biases", classifier_pooling="mean", classifier_bias=True, classifier_activation="relu"
    ),
    "nomic_bert": classifier("nomic_bert"),
    "nomic_bert, published": classifier("nomic_bert, published"),
    "gte": classifier("gte"),
    "new": classifier("new", **CROSS_ENCODER),
    "deberta-v2": classifier("deberta-v2"),
    "ernie": classifier("ernie"),
    "jina_bert": classifier("jina_bert"),
    "jina_bert_code": classifier("jina_bert_code"),
    "jina_embeddings_v3": classifier("jina_embeddings_v3"),
    "eurobert, late": classifier("eurobert"),
    "eurobert, bos": classifier("eurobert", classifier_pooling="bos"),
    "eurobert, mean": classifier("eurobert", classifier_pooling="mean"),
    "qwen3": classifier("qwen3", pad_token_id=0),
    "llama": classifier("llama", pad_token_id=0),
    "mistral": classifier("mistral", pad_token_id=0),
    "qwen2": classifier("qwen2", pad_token_id=0),
    "gemma3_text": classifier("gemma3_text", **CROSS_ENCODER),
}
"""Architectures, and the ways in which classifiers of one architecture differ."""

TOKEN_CLASSIFIER_CASES: dict[str, FamilyCase] = {
    kind: replace(
        case,
        architecture=case.architecture.replace("ForSequenceClassification", "ForTokenClassification"),
        options={**{key: value for key, value in case.options.items() if key != "num_labels"}, **TAGS},
    )
    for kind, case in CLASSIFIER_CASES.items()
    if kind not in ("bert, one label", "bert, multi-label", "bert, regression", "bert, entailment", "eurobert, bos")
    and kind not in ("eurobert, mean", "gemma3_text")  # transformers has no token classifier of it
} | {
    kind: replace(
        FAMILY_CASES[kind],
        architecture=f"{kind.upper()}ForTokenClassification",
        options={**FAMILY_CASES[kind].options, **TAGS},
    )
    for kind in ("t5", "mt5")
}
