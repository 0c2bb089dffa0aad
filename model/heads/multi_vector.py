"""Multi-vector heads for late interaction (Khattab and Zaharia 2020): ColBERT and BGE-M3."""

import string
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import tokenizers
import torch
from torch import Tensor

from model.artifact.manifest import ExpansionRecord, MultiVectorHead, SideRecord
from model.heads.row_head import RecordedHead, linear_head, read_linear_head
from model.heads.vocabulary import find_mask_token
from model.source.published import (
    MODULES,
    STANFORD,
    CheckpointError,
    ConfigFile,
    Published,
    read_json,
    token_content,
    unsupported,
)
from model.source.sentence_transformers import DenseLayer, check_features, is_late_interaction, read_dense

LINEAR = "colbert_linear.pt"


MultiVector = RecordedHead[MultiVectorHead]


def read_multi_vector(directory: Path, hidden_size: int) -> MultiVector | None:
    """Return BGE-M3's multi-vector head, which skips [CLS]; None if absent. Raises CheckpointError."""
    head = read_linear_head(directory / LINEAR, hidden_size)
    if head is None:
        return None
    return MultiVector(head, MultiVectorHead(graph="multi_vector", dimensions=head.out_features, skips_first=True))


TRANSFORMER_KEYS = ("query_length", "document_length", "query_expansion")
PROJECTION = "linear.weight"
"""The projection's name in Stanford's format, at the root of the checkpoint."""
STANFORD_ARCHITECTURE = "HF_ColBERT"
PYLATE = "ColBERT"
"""`model_type` in the configuration of PyLate before version 4."""
PYLATE_KEYS = {
    "query_length", "document_length", "query_expansion", "do_query_expansion", "attend_to_expansion_tokens",
    "attend_to_mask_tokens", "query_prefix", "document_prefix", "skiplist_words",
}  # fmt: skip
DEFAULT_LENGTH = 32
EXPANSION_KEYS = {"strategy", "attend", "token", "length"}


@dataclass(frozen=True)
class LateInteraction:
    """A ColBERT model's head, its query and document prompts without markers, and its token limit."""

    head: MultiVector
    prompts: dict[str, str]
    max_tokens: int | None

    def limit_sides(self, max_input_tokens: int) -> "LateInteraction":
        """Return a copy with the tokenizer's limit for a side without one, if the other side's limit is larger."""
        if self.max_tokens is None or self.max_tokens <= max_input_tokens:
            return self
        record = self.head.record
        sides = {
            name: side.model_copy(update={"max_tokens": side.max_tokens or max_input_tokens})
            for name, side in (("query", record.query), ("document", record.document))
        }
        return replace(self, head=replace(self.head, record=record.model_copy(update=sides)))


@dataclass
class _Options:
    """The options of any format, in sentence-transformers' terms."""

    transformer: dict[str, Any] = field(default_factory=dict)
    prompts: dict[str, str] = field(default_factory=dict)
    skipped_words: list[str] = field(default_factory=list)
    skips_unknown: bool = False
    mean: bool = False
    markers_are_words: bool = False
    """Whether a marker may be any vocabulary entry, as in PyLate and Stanford's format, or only an added token."""


def pop_projection(config: Mapping[str, Any], tensors: dict[str, Tensor]) -> Tensor | None:
    """Remove and return the projection of Stanford's format; None for other formats."""
    return tensors.pop(PROJECTION, None) if STANFORD_ARCHITECTURE in (config.get("architectures") or ()) else None


def read_late_interaction(
    files: Published, tokenizer: bytes, projection: Tensor | None, hidden_size: int, max_position_embeddings: int
) -> LateInteraction | None:
    """Return the late-interaction settings of a ColBERT model; None for other models.

    `projection` is the result of `pop_projection`.

    Raises:
        CheckpointError: a file is invalid, or an option is not supported.
    """
    if projection is not None:
        options, layers = _read_stanford(files), {"weight": projection.float()}
    elif is_late_interaction(files):
        options, layers = _read_modules(files, hidden_size)
    else:
        return None
    vocabulary = tokenizers.Tokenizer.from_str(tokenizer.decode())
    limit = max_position_embeddings
    sides, prompts = _read_sides(options, vocabulary, limit)
    expansion = _read_expansion(options.transformer.get("query_expansion"), files, tokenizer, vocabulary, limit)
    if expansion is not None and options.transformer["query_expansion"]["strategy"] == "fixed":
        sides["query"] = sides["query"].model_copy(update={"max_tokens": expansion.length})
    head = linear_head(layers, hidden_size)
    record = MultiVectorHead(
        graph="multi_vector",
        dimensions=head.out_features,
        skips_first=False,
        query=sides["query"],
        document=sides["document"],
        expansion=expansion,
        skipped_token_ids=_find_ids(options, vocabulary, files.tokenizer_config),
        score="mean" if options.mean else "sum",
    )
    lengths = [side.max_tokens for side in sides.values() if side.max_tokens is not None]
    return LateInteraction(MultiVector(head, record), prompts, max(lengths, default=None))


def _read_modules(files: Published, hidden_size: int) -> tuple[_Options, dict[str, Tensor]]:
    """Return options and projection from sentence-transformers' or PyLate's format."""
    config, options = files.sentence_transformers, _Options()
    _check_chain(files)
    prompts = dict(config.get("prompts") or {})
    if any(key in config for key in sorted(PYLATE_KEYS)):
        options.markers_are_words = True
        options.transformer |= _read_pylate(config)
        for role in ("query", "document"):
            if f"{role}_prefix" in config:
                prefix = config[f"{role}_prefix"] or ""
                if not isinstance(prefix, str):
                    raise CheckpointError(f"{config.name}: {role}_prefix is not a string ({prefix!r}). Correct it.")
                prompts[role] = prefix + (prompts.get(role) or "").removeprefix(prefix)
    transformer = files.transformer_config
    options.transformer |= {key: transformer[key] for key in TRANSFORMER_KEYS if key in transformer}
    options.prompts = {name: prompt or "" for name, prompt in prompts.items()}
    options.mean = config.get("similarity_fn_name") == "meanmaxsim"
    _read_skiplist(config, options)
    dense: list[DenseLayer] = []
    for module in files.modules:
        if module.kind == "Dense":
            size = dense[-1].weight.shape[0] if dense else hidden_size
            dense.append(read_dense(files, module, size, "token_embeddings"))
        elif module.kind == "MultiVectorMask":
            options.skipped_words = _read_mask(files.module_config(module))
        elif module.kind == "Normalize":
            _check_normalize(files.module_config(module))
    return options, _compose(dense)


def _read_skiplist(config: ConfigFile, options: _Options) -> None:
    """Read PyLate's skiplist."""
    words = _check_words(config)
    if config.get("model_type") == PYLATE:
        options.skipped_words = list(string.punctuation) if config.get("skiplist_words") is None else words
    elif config.get("model_type") is None and options.markers_are_words:
        # PyLate 1 also uses punctuation for an empty list, and skips unknown tokens for unknown words.
        options.skipped_words = words or list(string.punctuation)
        options.skips_unknown = True


def _check_normalize(config: ConfigFile) -> None:
    """Raise CheckpointError unless token vectors are normalized; by default, the library normalizes pooled vectors."""
    if config.get("module_input_name") is None:
        raise unsupported(f"{config.name}: module_input_name", None, ("token_embeddings",))
    check_features(config, "token_embeddings")


def _check_chain(files: Published) -> None:
    """Raise CheckpointError for unnormalized token vectors, or limits that override query or document limits."""
    if "MultiVectorMask" in files.order and "Normalize" not in files.order:
        raise CheckpointError(f"{MODULES}: token vectors without Normalize are not supported.")
    calls = files.transformer_config.nested("processing_kwargs")
    for key in ("text", "common", "chat_template"):
        calls.nested(key, "processing_kwargs.call").require("max_length")


def _read_pylate(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return PyLate's transformer options. Query expansion is on by default."""
    values = {key: config[key] for key in ("query_length", "document_length") if config.get(key) is not None}
    if "query_expansion" in config:
        return values | {"query_expansion": config["query_expansion"]}
    if config.get("do_query_expansion") is False:
        return values | {"query_expansion": None}
    attend = config.get("attend_to_expansion_tokens", config.get("attend_to_mask_tokens"))
    length = values.pop("query_length", None) or DEFAULT_LENGTH
    return values | {"query_expansion": {"strategy": "fixed", "attend": bool(attend), "length": length}}


def _read_stanford(files: Published) -> _Options:
    path = files.directory / STANFORD
    values = read_json(path) if path.is_file() else {}
    length = values.get("query_maxlen") or DEFAULT_LENGTH
    expansion = {"strategy": "fixed", "attend": bool(values.get("attend_to_mask_tokens")), "length": length}
    return _Options(
        transformer={"document_length": values.get("doc_maxlen"), "query_expansion": expansion},
        prompts={
            "query": (values.get("query_token_id") or "[unused0]") + " ",
            "document": (values.get("doc_token_id") or "[unused1]") + " ",
        },
        skipped_words=list(string.punctuation) if values.get("mask_punctuation", True) else [],
        markers_are_words=True,
    )


def _read_mask(values: ConfigFile) -> list[str]:
    """Return the skiplist of the module MultiVectorMask."""
    if values.get("keep_only_token_ids") or values.get("skiplist_tasks", ["document"]) not in (
        "document",
        ["document"],
    ):
        raise CheckpointError(f"{values.name}: unsupported keep_only_token_ids or skiplist_tasks.")
    return _check_words(values)


def _check_words(values: ConfigFile) -> list[str]:
    """Return the skiplist: words whose tokens get no vectors in documents. Raises CheckpointError."""
    words = values.get("skiplist_words") or []
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise CheckpointError(f"{values.name}: skiplist_words is not a list of strings. Correct it.")
    return words


def _compose(dense: list[DenseLayer]) -> dict[str, Tensor]:
    """Return the product of linear layers, computed in float64."""
    weight, bias = dense[0].weight.double(), dense[0].bias
    offset = torch.zeros(len(weight), dtype=torch.float64) if bias is None else bias.double()
    for layer in dense[1:]:
        weight, offset = layer.weight.double() @ weight, layer.weight.double() @ offset
        offset = offset if layer.bias is None else offset + layer.bias.double()
    tensors = {"weight": weight.float()}
    return tensors | {"bias": offset.float()} if any(layer.bias is not None for layer in dense) else tensors


def _read_sides(
    options: _Options, vocabulary: tokenizers.Tokenizer, limit: int
) -> tuple[dict[str, SideRecord], dict[str, str]]:
    """Return the query and document settings, and the prompts without markers."""
    sides, prompts = {}, dict(options.prompts)
    names = {"query": ("query",), "document": ("document", "passage", "corpus")}
    for role, candidates in names.items():
        name = next((name for name in candidates if name in prompts), role)
        marker, text = _split_marker(prompts.pop(name, ""), vocabulary, words=options.markers_are_words)
        if text or any(candidate in prompts for candidate in candidates):  # "" excludes the other names
            prompts[name] = text
        length = options.transformer.get(f"{role}_length")
        if length is not None and not (type(length) is int and length >= 1):
            raise CheckpointError(f"{role}_length: not a positive integer ({length!r}). Correct it.")
        sides[role] = SideRecord(marker=marker, max_tokens=None if length is None else min(length, limit))
    return sides, prompts


def _split_marker(prompt: str, vocabulary: tokenizers.Tokenizer, *, words: bool) -> tuple[int | None, str]:
    """Return the id of the marker token at the start of a prompt, if any, and the rest of the prompt."""
    added = {token.content: number for number, token in vocabulary.get_added_tokens_decoder().items()}
    for content in sorted(added, key=len, reverse=True):
        if content and prompt.startswith(content):
            return added[content], prompt.removeprefix(content)
    for content in (prompt, prompt.split(None, 1)[0] if prompt.split() else ""):
        number = vocabulary.token_to_id(content) if words and content else None
        if number is not None:  # the marker is inserted by id, so the space after it is not part of the text
            return number, prompt.removeprefix(content).lstrip()
    return None, prompt


def _read_expansion(
    values: Any, files: Published, tokenizer: bytes, vocabulary: tokenizers.Tokenizer, limit: int
) -> ExpansionRecord | None:
    if values is None:
        return None
    if (
        not isinstance(values, dict)
        or not set(values) <= EXPANSION_KEYS
        or values.get("strategy") not in ("fixed", "min")
    ):
        raise unsupported("query_expansion", values, ("strategy fixed or min, with length",))
    length, token = values.get("length"), values.get("token")
    if type(length) is not int or not 1 <= length <= limit:
        raise CheckpointError(f"query_expansion: length is not between 1 and {limit} ({length!r}). Correct it.")
    special = files.tokenizer_config
    if token is not None:
        number = vocabulary.token_to_id(token)
    elif (number := find_mask_token(tokenizer, special)) is None and isinstance(special.get("eos_token"), str):
        number = vocabulary.token_to_id(special["eos_token"])
    if number is None:
        raise CheckpointError("query_expansion: the tokenizer has no such token. Name one in query_expansion.token.")
    return ExpansionRecord(token_id=number, length=length, attended=bool(values.get("attend")))


def _find_ids(options: _Options, vocabulary: tokenizers.Tokenizer, special: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the ids of the skipped words, ascending. Unknown words yield the unknown token's id or no id."""
    ids = {vocabulary.token_to_id(word) for word in options.skipped_words}
    if None in ids and options.skips_unknown:
        ids.add(vocabulary.token_to_id(str(token_content(special.get("unk_token")))))
    return tuple(sorted(number for number in ids if number is not None))
