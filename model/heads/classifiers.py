"""Classification heads for texts and tokens; for causal rerankers, the logit of "yes" minus the logit of "no"."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tokenizers
from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from torch import Tensor

from model.artifact.manifest import (
    ClassificationHead,
    ClassifierPooling,
    PairTemplateRecord,
    ScoreActivation,
    TokenClassificationHead,
)
from model.heads.row_head import HeadLayout, RecordedHead, RowHead, read_labels
from model.source.published import (
    CheckpointError,
    Module,
    Published,
    require_finite,
    token_content,
    unsupported,
)
from model.source.sentence_transformers import read_transformer_settings
from model.source.tokenizer import SPECIAL_TOKEN_KEYS, TokenizerSettings

ARCHITECTURE, TOKEN_ARCHITECTURE = "ForSequenceClassification", "ForTokenClassification"


@dataclass(frozen=True)
class ClassifierLayout:
    """The layers of a classifier, and the rows they read; see `ClassificationHead`."""

    layers: HeadLayout
    pooling: ClassifierPooling = "cls"

    def skipped_token_id(self, config: Mapping[str, Any]) -> int | None:
        """Return the padding token of config.json if the classifier reads the last token.

        transformers reads the last non-padding token, and some tokenizers append the padding token to each text.
        """
        return config.get("pad_token_id") if self.pooling == "last" else None


Classifier = RecordedHead[ClassificationHead]
"""Computes logits (N, C) from rows (N, D)."""
TokenClassifier = RecordedHead[TokenClassificationHead]
"""Computes logits (T, C) from hidden states (T, D)."""


def make_classifier(
    config: Mapping[str, Any],
    options: Mapping[str, Any],
    head: RowHead,
    pooling: ClassifierPooling,
    skipped_token_id: int | None = None,
) -> Classifier:
    """Return a classifier with the labels and functions named in the files.

    `config` and `options` are the values of config.json and of config_sentence_transformers.json.

    Raises:
        CheckpointError: a value of config.json is missing or invalid.
    """
    labels = read_labels(config, head.out_features)
    record = ClassificationHead(
        graph="classification",
        pooling=pooling,
        skipped_token_id=skipped_token_id,
        labels=labels,
        activation=read_activation(config, options, len(labels)),
        pair_activation=read_pair_activation(config, options, len(labels)),
    )
    return Classifier(head, record)


def read_pair_activation(config: Mapping[str, Any], options: Mapping[str, Any], labels: int) -> ScoreActivation | None:
    """Return the activation for pair scores if it differs from `read_activation`, else None.

    For a regression model, transformers returns the logit, and sentence-transformers' CrossEncoder its sigmoid.
    """
    is_regression = labels == 1 and config.get("problem_type") == "regression"
    return "sigmoid" if is_regression and _named_activation(config, options) is None else None


def _named_activation(config: Mapping[str, Any], options: Mapping[str, Any]) -> str | None:
    """Return the first activation named in the three places that sentence-transformers reads."""
    nested = config.get("sentence_transformers")
    paths = (
        options.get("activation_fn"),
        nested.get("activation_fn") if isinstance(nested, dict) else None,
        config.get("sbert_ce_default_activation_function"),
    )
    return next((str(path) for path in paths if path is not None), None)


def read_activation(config: Mapping[str, Any], options: Mapping[str, Any], labels: int) -> ScoreActivation:
    """Return the activation that converts logits to scores.

    sentence-transformers reads it from three places, in this order. By default, it is the one used by transformers'
    pipeline "text-classification".
    """
    path = _named_activation(config, options)
    named = None if path is None else path.rsplit(".", 1)[-1]
    names: dict[str, ScoreActivation] = {"Identity": "identity", "Sigmoid": "sigmoid"}
    if labels > 1:
        names["Softmax"] = "softmax"
    if path is not None and (named not in names or not path.startswith("torch.")):
        raise CheckpointError(f"activation_fn: unsupported function {path!r}. Supported: {', '.join(names)}.")
    if named is not None and (labels == 1 or named != "Identity"):
        return names[named]
    if config.get("problem_type") == "regression":
        return "identity"
    return "sigmoid" if labels == 1 or config.get("problem_type") == "multi_label_classification" else "softmax"


def make_token_classifier(config: Mapping[str, Any], head: RowHead) -> TokenClassifier:
    """Return a token classifier with the labels of config.json. Raises CheckpointError."""
    labels = read_labels(config, head.out_features)
    return TokenClassifier(head, TokenClassificationHead(graph="token_classification", labels=labels))


LOGIT_SCORE_MODULE = "LogitScore"
TEMPLATE = "chat_template.jinja"
QUERY, DOCUMENT = "\ue000query\ue000", "\ue000document\ue000"
"""Placeholder texts with private-use characters, which no template contains."""
PROBE = "  The Bank\tof 7 rivers, <b> \u00e9t\u00e9 & 'co' " * 50 + "\n"
"""A text that a template must insert as it is."""
FORMATS = ("auto", "flat", "structured")
SIGNS_OF_PARTS = ("content[0]", ".type", "'type'", '"type"', "message.content[")


def read_logit_score(
    module: Module, files: Published, config: Mapping[str, Any], output: Tensor, tokenizer: bytes
) -> Classifier:
    """Return the reranker as a classifier with one label that reads the last token.

    `output` (V, D) contains the weights of the language model's head, and `tokenizer` is a tokenizer.json.

    Raises:
        CheckpointError: a file is invalid, or the chat template cannot be split at query and document.
    """
    values = files.module_config(module)
    values.require("module_input_name", "causal_logits")
    true_id, false_id = values.get("true_token_id"), values.get("false_token_id")
    for name, number in (("true_token_id", true_id), ("false_token_id", 0 if false_id is None else false_id)):
        if type(number) is not int or not 0 <= number < len(output):
            raise CheckpointError(f"{values.name}: {name} is not a token id ({number!r}). Correct it.")
    vector = output[true_id].float() - (0.0 if false_id is None else output[false_id].float())
    require_finite(vector, "lm_head.weight")
    head = RowHead(HeadLayout("score"), {"score.weight": vector[None]}, output.shape[1])
    if config.get("final_logit_softcapping"):
        raise CheckpointError(
            "config.json: final_logit_softcapping is not supported for a reranker. Use another model."
        )
    options = files.sentence_transformers
    settings = TokenizerSettings(files, config, read_transformer_settings(files))
    template = _read_template(files, settings, tokenizers.Tokenizer.from_str(tokenizer.decode()))
    record = ClassificationHead(
        graph="classification",
        pooling="last",
        skipped_token_id=None,
        labels=("LABEL_0",),
        activation=read_activation(config, options, 1),
        template=template,
    )
    return Classifier(head, record)


def _read_template(
    files: Published, settings: TokenizerSettings, tokenizer: tokenizers.Tokenizer
) -> PairTemplateRecord:
    """Return the parts of the chat template, with the model's default prompt as the instruction."""
    options = files.sentence_transformers
    path = files.transformer / TEMPLATE
    try:
        source = settings.argument("chat_template")
        if source is None:
            source = path.read_text(encoding="utf-8") if path.is_file() else settings.get("chat_template")
    except UnicodeDecodeError:
        raise CheckpointError(f"{path}: not UTF-8. Download the model again.") from None
    if not isinstance(source, str):
        raise CheckpointError(f"{TEMPLATE}: missing. A reranker that is a language model needs its chat template.")
    prompt = (options.get("prompts") or {}).get(options.get("default_prompt_name"))
    call = files.transformer_config.nested("processing_kwargs").nested("chat_template", "processing_kwargs.call")
    for key in ("chat_template", "continue_final_message"):
        call.require(key, False)
    variables = {name: token_content(settings.get(name)) or "" for name in SPECIAL_TOKEN_KEYS} | dict(call)
    structured = _is_structured(files, source)
    text = _render(source, prompt, QUERY, DOCUMENT, variables, structured=structured)
    if not text.count(QUERY) == text.count(DOCUMENT) == 1 or text.find(QUERY) > text.find(DOCUMENT):
        raise CheckpointError(f"{TEMPLATE}: does not render one query, then one document, by their roles. Correct it.")
    before, _, rest = text.partition(QUERY)
    middle, _, after = rest.partition(DOCUMENT)
    own = before, middle, after

    def is_inserted(probe: str) -> bool:
        return _render(source, prompt, probe, probe, variables, structured=structured) == probe.join(own)

    if not is_inserted(PROBE.strip()):
        raise CheckpointError(f"{TEMPLATE}: unsupported: it changes the texts. Use a template that inserts them.")
    if not is_inserted(PROBE):
        files.warn(f"{TEMPLATE} strips the texts, which is not done here. Send texts without surrounding whitespace.")
    added = sorted((token.content for token in tokenizer.get_added_tokens_decoder().values()), key=len, reverse=True)
    if any(content in middle for content in added):
        raise CheckpointError(f"{TEMPLATE}: unsupported: there is a special token between query and document.")
    start = max((before.rfind(content) + len(content) for content in added if content in before), default=0)
    end = min((after.find(content) for content in added if content in after), default=len(after))
    prefix, suffix = (
        tuple(tokenizer.encode(part, add_special_tokens=False).ids) for part in (before[:start], after[end:])
    )
    return PairTemplateRecord(
        prefix_ids=prefix, head=before[start:], middle=middle, tail=after[:end], suffix_ids=suffix
    )


def _is_structured(files: Published, source: str) -> bool:
    """Return whether messages contain lists of parts instead of strings.

    Without a format in `modality_config`, sentence-transformers looks for signs of parts in the template.
    """
    message = files.transformer_config.nested("modality_config", "modality_config").nested("message", "modality")
    chosen = message.get("format") or "auto"
    if chosen not in FORMATS:
        raise unsupported(f"{files.transformer_config.name}: modality_config.message.format", chosen, FORMATS)
    return chosen == "structured" or (chosen == "auto" and any(sign in source for sign in SIGNS_OF_PARTS))


def _render(
    source: str, prompt: str | None, query: str, document: str, variables: Mapping[str, Any], *, structured: bool
) -> str:
    """Render a conversation with a query and a document. Templates are code, so they run in a sandbox.

    `variables` are the special tokens and the arguments of files, such as `add_generation_prompt`.
    """
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = lambda value, **options: json.dumps(value, ensure_ascii=False)
    texts = [*([("system", prompt)] if prompt else []), ("query", query), ("document", document)]
    messages = [
        {"role": role, "content": [{"type": "text", "text": text}] if structured else text} for role, text in texts
    ]
    try:
        return environment.from_string(source).render({**variables, "messages": messages})
    except TemplateError as error:
        raise CheckpointError(f"{TEMPLATE}: cannot be rendered ({error}). Correct it.") from None
