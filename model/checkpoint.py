"""Load a published model: its encoder and its heads. model/families/ lists the tensor names of each architecture."""

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import tokenizers
import torch
from pydantic import ValidationError
from torch import Tensor

from model.artifact.files import TOKENIZER, TRAINING
from model.artifact.manifest import ExpansionRecord, RetrievalRole, TrainingRecord, TruncationSide, split_pooling
from model.artifact.tokenizer import Tokenizer
from model.encoder import Encoder, EncoderConfig
from model.families import FAMILIES, find_family
from model.families.family import ConfigReader, Family
from model.heads.classifiers import (
    ARCHITECTURE,
    LOGIT_SCORE_MODULE,
    TOKEN_ARCHITECTURE,
    Classifier,
    TokenClassifier,
    make_classifier,
    make_token_classifier,
    read_logit_score,
)
from model.heads.multi_vector import MultiVector, pop_projection, read_late_interaction, read_multi_vector
from model.heads.row_head import RowHead, has_architecture
from model.heads.vocabulary import (
    MaskedLM,
    Sparse,
    VocabularyHead,
    VocabularyLayout,
    find_decoder,
    find_mask_token,
    read_linear_sparse,
    read_query_weights,
    read_splade,
    read_vocabulary_head,
)
from model.source.published import (
    HARMLESS,
    REDOWNLOAD,
    TOKENIZER_CONFIG,
    CheckpointError,
    Module,
    Published,
    list_tasks,
    merge_adapters,
    read_json,
    read_tensors,
    require_finite,
    require_shape,
    unsupported,
)
from model.source.sentence_transformers import (
    FROM_FILES,
    EmbeddingConfig,
    SettingOptions,
    TransformerSettings,
    read_embedding_config,
    read_max_input_tokens,
    read_similarity,
    read_transformer_settings,
)
from model.source.tokenizer import read_tokenizer


def check_expansion(encoder: Encoder, expansion: ExpansionRecord | None, padding_side: TruncationSide) -> None:
    """Raise CheckpointError if expansion tokens precede the query, as padding does with this side.

    Neither may unattended ones be outside the attention window of the query's tokens: they would attend to no token.
    """
    if expansion is not None and padding_side == "left":
        raise CheckpointError(
            f"{TOKENIZER_CONFIG}: padding_side: unsupported with query_expansion ('left'), because the expansion would "
            "precede the query. Supported: right."
        )
    windows = [layer.window for layer in encoder.config.layers if layer.window is not None]
    if expansion is None or expansion.attended or not windows:
        return
    if expansion.length > min(windows) + 1:
        raise CheckpointError(
            f"query_expansion: length {expansion.length} exceeds the attention window ({min(windows)} tokens at "
            "each side), and attend is false. Set attend to true, or a shorter length."
        )


@dataclass(frozen=True)
class _Weights:
    """The files and tensors that a checkpoint's heads are read from. Tensor names lack the encoder's prefix."""

    files: Published
    family: Family
    config: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    encoder: Encoder
    tokenizer: bytes

    def classifier(self) -> Classifier | None:
        """Return the classifier; None without one. Raises CheckpointError."""
        options, size = self.files.sentence_transformers, self.encoder.config.hidden_size
        if (module := self.files.find_module(LOGIT_SCORE_MODULE)) is not None:
            embeddings = self.encoder.embeddings.word_embeddings.weight.detach()
            # transformers writes the key whenever the output layer is stored once.
            tied = ConfigReader(self.config).flag("tie_word_embeddings", True)
            output = find_decoder("lm_head.weight", self.tensors, embeddings, tied=tied)
            return read_logit_score(module, self.files, self.config, output, self.tokenizer)
        if not has_architecture(self.config, ARCHITECTURE) and options.get("model_type") != "CrossEncoder":
            return None
        layout = self.family.classifier_layout(self.config)
        head, skipped = RowHead(layout.layers, self.tensors, size), layout.skipped_token_id(self.config)
        return make_classifier(self.config, options, head, layout.pooling, skipped)

    def token_classifier(self) -> TokenClassifier | None:
        """Return the token classifier; None without one. Raises CheckpointError."""
        if not has_architecture(self.config, TOKEN_ARCHITECTURE):
            return None
        layout = self.family.token_classifier_layout(self.config)
        return make_token_classifier(self.config, RowHead(layout, self.tensors, self.encoder.config.hidden_size))

    def masked_lm(self) -> MaskedLM | None:
        """Return the masked-LM head; None without one. Raises CheckpointError."""
        # Of the pre-training models, only BERT's contain the head.
        if not has_architecture(self.config, "ForMaskedLM", "ForPreTraining") or self.family.masked_lm is None:
            return None
        layout = self.family.masked_lm(ConfigReader(self.config))
        if not layout.is_in(self.tensors):
            return None
        return MaskedLM(self._vocabulary_head(layout), find_mask_token(self.tokenizer, self.files.tokenizer_config))

    def sparse(self) -> Sparse | None:
        """Return the sparse head; None without one. Raises CheckpointError."""
        files, encoder = self.files, self.encoder.config
        if (pooling := files.find_module("SpladePooling")) is None:
            return read_linear_sparse(files.directory, encoder.hidden_size)
        if self.family.masked_lm is None:
            raise CheckpointError(f"modules.json: SpladePooling of a {self.family.name} model is not supported.")
        layout, weights = self.family.masked_lm(ConfigReader(self.config)), None
        if files.queries is not None:
            files.module_config(files.queries[0]).require("path")
            _check_same_tokenizer(files, files.queries[0])
            weights = read_query_weights(files.queries[0].path, encoder.vocab_size)
        head = read_splade(files.module_config(pooling), self._vocabulary_head(layout), weights)
        similarity, limit = read_similarity(files, "dot"), files.sentence_transformers.integer("max_active_dims")
        return replace(head, similarity=similarity, max_active=limit)

    def _vocabulary_head(self, layout: VocabularyLayout) -> VocabularyHead:
        embeddings = self.encoder.embeddings.word_embeddings.weight.detach()
        return read_vocabulary_head(layout, self.tensors, embeddings, self.encoder.config.hidden_size)

    def unexported(self, *exported: str) -> tuple[str, ...]:
        """Return the `architectures` whose heads are in the checkpoint but not in `exported`."""
        head = next((name for name in self.tensors if self.family.is_head(name)), None)
        if head is None:
            return ()
        names = [str(name) for name in self.config.get("architectures") or ()]
        if not names and not exported:
            self.files.warn(
                f"config.json: architectures is missing, so the head with {head} is not exported. To export it, add "
                'the class of transformers that has it, such as ["BertForSequenceClassification"].'
            )
        return tuple(name for name in names if not name.endswith(("Model", *exported)))


def _check_same_tokenizer(files: Published, query: Module) -> None:
    """Raise CheckpointError unless queries and documents use the same tokenizer."""
    parts = ("normalizer", "pre_tokenizer", "model", "added_tokens")
    own, other = (files.read(path / TOKENIZER) for path in (files.transformer, query.path))
    differ = [part for part in parts if len(other) and own.get(part) != other.get(part)]
    config, other_config = files.tokenizer_config, files.read(query.path / TOKENIZER_CONFIG)
    keys = {*config, *other_config} - HARMLESS[TOKENIZER_CONFIG]
    differ += sorted(key for key in keys if config.get(key) != other_config.get(key))
    if differ:
        raise CheckpointError(f"{query.path.name}: tokenizer differs from that of documents ({', '.join(differ)}).")


SAVE_RERANKER = """python -c "from sentence_transformers import CrossEncoder; \
CrossEncoder('SOURCE').save_pretrained('DIR')\""""
POSITIONS = "embeddings.position_embeddings.weight"
ALIBI_TOKENS = 2048
"""Number of tokens whose biases take 0.2 GB with 12 heads."""


@dataclass(frozen=True)
class Checkpoint:
    """A published model: its encoder, tokenizer.json, embedding configuration and, if known, training record."""

    encoder: Encoder
    family: Family
    config: Mapping[str, Any]
    """The values of config.json."""
    max_input_tokens: int
    tokenizer: bytes
    embedding_config: EmbeddingConfig
    tasks: tuple[str, ...] = ()
    """The tasks for which the files contain adapters."""
    task: str | None = None
    """The task whose adapters were merged."""
    training: TrainingRecord | None = None
    classifier: Classifier | None = None
    token_classifier: TokenClassifier | None = None
    masked_lm: MaskedLM | None = None
    unexported: tuple[str, ...] = ()
    sparse: Sparse | None = None
    multi_vector: MultiVector | None = None
    truncation_side: TruncationSide = "right"
    role_max_tokens: Mapping[RetrievalRole, int] = field(default_factory=dict)
    special_tokens_in_text: bool = False
    warnings: tuple[str, ...] = ()
    """Warnings for the user about information in the files that the artifact does not reflect."""

    def text_tokenizer(self) -> Tokenizer:
        """Return the text tokenizer. Raises the tokenizers library's exception if it is invalid."""
        return Tokenizer(
            self.tokenizer,
            special_tokens_in_text=self.special_tokens_in_text,
            prompts=self.embedding_config.prompts.values(),
        )


CODE = ("AutoModel", "AutoModelForMaskedLM", "AutoModelForSequenceClassification", "AutoModelForTokenClassification")
"""transformers classes whose entry in `auto_map` of config.json names code that can change what a model computes."""


def read_code(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the custom code, as `file.Class`, that transformers executes for each class."""
    names = config.get("auto_map") or {}
    if not isinstance(names, dict):
        raise CheckpointError("config.json: auto_map is not an object. Correct it.")
    models = {key: name for key, name in names.items() if name and str(key).startswith("AutoModel")}
    return {key: str(name).rpartition("--")[2] for key, name in models.items()}


def load_checkpoint(directory: Path, settings: SettingOptions = FROM_FILES, scratch: Path | None = None) -> Checkpoint:
    """Load the checkpoint in a directory of published files. `settings` override the settings in the files.

    With `scratch`, a directory, the float32 values of 16-bit weights are stored in unnamed files there instead of
    memory.

    Raises:
        CheckpointError: a file is missing, invalid or of an unsupported model.
    """
    files = Published(directory)
    transformer = read_transformer_settings(files)
    config = {**read_json(files.transformer / "config.json"), **transformer.config}
    if not isinstance(config.get("architectures") or [], list):
        raise CheckpointError("config.json: architectures is not a list. Correct it.")
    tensors = read_tensors(files.transformer)
    family = _select_family(files, config, tensors)
    published = read_tokenizer(files, config, transformer)
    tokenizer = published.definition
    tensors = merge_adapters(tensors, config, settings.task)
    projection = pop_projection(config, tensors)
    encoder = build_encoder(family, config, tensors, scratch)
    first_position = family.first_position(ConfigReader(config))
    _warn_about_padding(files, first_position - 1, tokenizer, spelled=settings.special_tokens_in_text)
    size, positions = encoder.config.hidden_size, encoder.config.max_position_embeddings
    embedding_config = read_embedding_config(files, size, settings)
    max_input_tokens, origin = read_max_input_tokens(transformer, positions, settings.max_input_tokens)
    late = read_late_interaction(files, tokenizer, projection, size, positions)
    if late is not None:
        late = late.limit_sides(max_input_tokens)
        check_expansion(encoder, late.head.record.expansion, published.padding_side)
        embedding_config = replace(embedding_config, prompts=late.prompts, default_prompt_name=None)
        if settings.max_input_tokens is None:  # PyLate's tokenizer limit excludes the marker
            max_input_tokens = max(max_input_tokens, late.max_tokens or 0)
    embedding_config.origins["max_input_tokens"] = origin
    if settings.task is not None:
        embedding_config.origins["task"] = "--task"
    if encoder.config.causal and "cls" in split_pooling(embedding_config.pooling):
        raise CheckpointError(f"{embedding_config.origins['pooling']}: cls pooling of a causal model. Use last.")
    prefix = family.find_prefix(tensors)
    assert prefix is not None  # checked by `build_encoder`
    weights = _Weights(files, family, config, dict(family.parts(tensors, prefix)), encoder, tokenizer)
    classifier, token_classifier = weights.classifier(), weights.token_classifier()
    masked_lm, sparse = weights.masked_lm(), weights.sparse()
    exported = {
        ARCHITECTURE: classifier,
        "ForCausalLM": classifier,  # exported as a reranker
        TOKEN_ARCHITECTURE: token_classifier,
        "ForMaskedLM": masked_lm or sparse,
        "ForPreTraining": masked_lm or sparse,
    }
    has_roles = late is None and classifier is None
    warn_about_reranker(files, encoder.config.causal, config, classifier)
    _warn_about_length(files, encoder.config, transformer, max_input_tokens)
    return Checkpoint(
        encoder=encoder,
        family=family,
        config=config,
        max_input_tokens=max_input_tokens,
        tokenizer=tokenizer,
        embedding_config=embedding_config,
        tasks=tuple(list_tasks(config)),
        task=settings.task,
        training=read_training(directory),
        classifier=classifier,
        token_classifier=token_classifier,
        masked_lm=masked_lm,
        sparse=sparse,
        multi_vector=read_multi_vector(directory, size) if late is None else late.head,
        truncation_side=published.truncation_side,
        role_max_tokens=transformer.limit_roles(positions, settings.max_input_tokens) if has_roles else {},
        special_tokens_in_text=settings.special_tokens_in_text,
        unexported=weights.unexported(*(name for name, head in exported.items() if head)),
        warnings=tuple(files.warnings()),
    )


def _warn_about_length(
    files: Published, config: EncoderConfig, transformer: TransformerSettings, max_input_tokens: int
) -> None:
    """Warn if sentence-transformers would exceed the token limit, or if biases take much memory at this limit."""
    wanted = transformer.max_input_tokens or 0
    is_explicit = transformer.origin == files.transformer_config.name
    if is_explicit and not config.position_table and wanted > config.max_position_embeddings >= max_input_tokens:
        files.warn(
            f"{transformer.origin}: texts are truncated at the {config.max_position_embeddings} positions of "
            f"config.json, not at {wanted} tokens as in sentence-transformers."
        )
    if config.alibi and max_input_tokens > ALIBI_TOKENS:
        gigabytes = 4 * config.num_attention_heads * max_input_tokens**2 / 1e9
        files.warn(
            f"texts of {max_input_tokens} tokens take {gigabytes:.1f} GB of memory in OpenVINO for the biases of this "
            "model's scores. To limit it, set --max-input-tokens."
        )


RARE = "\u16a0"
"""A letter that becomes the unknown token, or bytes."""


def _warn_about_padding(files: Published, padding_id: int, definition: bytes, *, spelled: bool) -> None:
    """Warn if texts can contain the padding token of RoBERTa or MPNet, which counts as no position in transformers.

    `padding_id` is -1 for other families. `spelled`: whether special tokens are recognized in texts.
    """
    if padding_id < 0:
        return
    tokenizer = tokenizers.Tokenizer.from_str(definition.decode())
    tokenizer.no_padding()
    if tokenizer.id_to_token(padding_id) is None:
        return
    text = tokenizer.decode([padding_id], skip_special_tokens=not spelled)
    if any(padding_id in tokenizer.encode(text).ids for text in (text, RARE)):
        files.warn(
            f"the padding token (id {padding_id}) is {tokenizer.id_to_token(padding_id)!r} of {TOKENIZER}, which texts "
            "can contain. Here it has a position like other tokens. In transformers it has none, which changes the "
            "vectors. Correct pad_token_id in config.json if it is not the one of the training."
        )


def _select_family(files: Published, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Family:
    """Return a checkpoint's family. Raises CheckpointError, and warns about code that may compute something else."""
    family, code = find_family(config, tensors), read_code(config)
    if family is None:
        error = unsupported("config.json: model_type", config.get("model_type"), sorted(FAMILIES))
        if code:
            names = ", ".join(sorted({*code.values()}))
            raise CheckpointError(
                f"{error} The code of {names} in the model's files is not executed. If the model is also published as "
                "an ONNX graph, export a directory without its other weights."
            )
        raise error
    changing = {name for key, name in code.items() if key in CODE}
    if foreign := sorted(name for name in changing if not family.implements(name, config)):
        files.warn(
            f"config.json: auto_map names {', '.join(foreign)}. Code in the model's files is not executed: the model "
            f'is exported as "{family.name}", whatever the code computes. Compare some vectors with the library that '
            "wrote the files."
        )
    return family


def warn_about_reranker(
    files: Published, causal: bool, config: Mapping[str, Any], classifier: Classifier | None
) -> None:
    """Add a warning if a causal language model without sentence-transformers files looks like a reranker."""
    is_language_model = any(str(name).endswith("ForCausalLM") for name in config.get("architectures") or ())
    if not causal or not is_language_model or classifier is not None or files.has_modules:
        return
    names = (files.directory.resolve().name, str(config.get("_name_or_path") or ""))
    looks = "looks like a reranker" if any("rerank" in name.lower() for name in names) else "is a language model"
    files.warn(
        f"this model {looks} without modules.json, so it is exported as an embedding model, and /v1/rerank scores with "
        "the cosine of embeddings. To export a reranker, load it with sentence-transformers, save it, and export that "
        f"directory: {SAVE_RERANKER}"
    )


def read_training(directory: Path) -> TrainingRecord | None:
    """Return the record in training.json, or None if the file is missing. Raises CheckpointError."""
    path = directory / TRAINING
    if not path.is_file():
        return None
    try:
        return TrainingRecord.model_validate_json(path.read_bytes())
    except ValidationError as error:
        field = ".".join(str(part) for part in error.errors()[0]["loc"])
        raise CheckpointError(f"{TRAINING}: invalid at {field or 'the top'}. Correct or remove it.") from None


def build_encoder(
    family: Family, config: Mapping[str, Any], tensors: Mapping[str, Tensor], scratch: Path | None = None
) -> Encoder:
    """Build an `Encoder` with the weights `tensors`, in float32 and evaluation mode. Raises CheckpointError.

    `scratch` is as in `load_checkpoint`.
    """
    reader = ConfigReader(config)
    encoder_config, first_position = family.read_config(reader), family.first_position(reader)
    reader.reject_unknown()
    reader.require("transformers_weights", "model.safetensors")
    if encoder_config.num_hidden_layers > len(tensors):
        raise CheckpointError(f"config.json: more layers ({encoder_config.num_hidden_layers}) than tensors.")
    with torch.device("meta"):  # allocates no memory, whatever sizes config.json contains
        encoder = Encoder(encoder_config).eval()
    parameters = encoder.state_dict()
    prefix = family.find_prefix(tensors)
    if prefix is None:
        first = family.published_name("embeddings.word_embeddings.weight")
        raise CheckpointError(f"Weights: tensor {first} is missing. {REDOWNLOAD}")
    remaining = dict(family.parts(tensors, prefix))
    state = {}
    for name, parameter in parameters.items():
        source = family.published_name(name)
        tensor = remaining.pop(source, None)
        if tensor is None:
            raise CheckpointError(f"Weights: tensor {prefix}{source} is missing. {REDOWNLOAD}")
        if not tensor.dtype.is_floating_point:
            raise CheckpointError(
                f"Weights: tensor {prefix}{source} has type {str(tensor.dtype).removeprefix('torch.')}. "
                "Quantized weights are not supported: use the original model."
            )
        require_finite(tensor, f"{prefix}{source}")
        if name == POSITIONS:
            tensor = tensor[first_position:]
        require_shape(tensor, f"{prefix}{source}", parameter.shape)
        state[name] = tensor.float() + family.norm_offset if is_norm(name) else _to_float32(tensor, scratch)
    unknown = sorted(name for name in remaining if not family.is_unused(name))
    if unknown:
        raise CheckpointError(
            f"Weights: unknown tensor {unknown[0]} for model_type {family.name} ({len(unknown)} in total). "
            "Check the sizes in config.json; otherwise the architecture is not supported."
        )
    encoder.load_state_dict(state, assign=True)
    return encoder


MAPPED_BYTES = 2**20
"""Minimum size of tensors that are mapped. Smaller tensors are in memory."""


def _to_float32(tensor: Tensor, scratch: Path | None) -> Tensor:
    """Convert a tensor to float32. With `scratch`, it is in a mapped file, whose pages the system can evict."""
    if scratch is None or tensor.dtype == torch.float32 or tensor.nbytes < MAPPED_BYTES:
        return tensor.float()
    with tempfile.NamedTemporaryFile(dir=scratch) as file:
        os.posix_fallocate(file.fileno(), 0, 4 * tensor.numel())  # a full disk would crash writes
        mapped = torch.from_file(file.name, shared=True, size=tensor.numel(), dtype=torch.float32)
    return mapped.view(tensor.shape).copy_(tensor)


def is_norm(name: str) -> bool:
    """Return whether a parameter of `Encoder` is the weight of a norm."""
    return name.endswith("norm.weight")


def published_tensors(
    family: Family, config: Mapping[str, Any], source: Mapping[str, Tensor], encoder: Encoder
) -> dict[str, Tensor]:
    """Return a checkpoint's tensors with the weights of `encoder`, the inverse of loading.

    `config` and `source` are the checkpoint's config.json and tensors. Of other tensors, only the pooler's are kept,
    because transformers would otherwise initialize a new pooler.
    """
    prefix = family.find_prefix(source)
    assert prefix is not None
    trained = {}
    for name, tensor in encoder.state_dict().items():
        published, weight = family.published_name(name), tensor.cpu()
        if name == POSITIONS:
            unused = source[f"{prefix}{published}"][: family.first_position(ConfigReader(config))]
            weight = torch.cat([unused.float(), weight])
        trained[published] = weight - family.norm_offset if is_norm(name) else weight
    tensors = {}
    for name, tensor in source.items():
        parts = family.split(name.removeprefix(prefix))
        if all(part in trained for part in parts):
            tensors[name] = torch.cat([trained[part] for part in parts])
        elif parts[0].startswith("pooler."):
            tensors[name] = tensor
    return tensors
