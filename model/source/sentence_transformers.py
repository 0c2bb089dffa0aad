"""The settings of sentence-transformers: modules, pooling, prompts and similarity."""

import re
from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from torch import Tensor
from torch.nn import functional as F

from model.artifact.manifest import (
    ASSUMED,
    COMBINED,
    POOLINGS,
    CombinedPooling,
    Pooling,
    RetrievalRole,
    Role,
    Similarity,
    split_pooling,
)
from model.source.published import (
    CONFIG,
    MODULES,
    REDOWNLOAD,
    CheckpointError,
    ConfigFile,
    Module,
    Published,
    read_tensors,
    require_finite,
    unsupported,
)

PROMPT_NAMES: dict[Role, tuple[str, ...]] = {
    "query": ("query",),
    "document": ("document", "passage", "corpus"),
    "passage": ("passage", "document"),
}
"""Prompt names to try for each role, in order. A role without any of them gets no prompt, not even the default."""


def resolve_roles(prompts: Container[str]) -> dict[Role, str]:
    """Return the name of the prompt for each role that has one."""
    named = {role: next((name for name in names if name in prompts), None) for role, names in PROMPT_NAMES.items()}
    return {role: name for role, name in named.items() if name is not None}


SPLADE = re.compile(r"(MLMTransformer|Transformer) SpladePooling")
LATE_INTERACTION = re.compile(r"Transformer( Dense)+( MultiVectorMask)?( Normalize)?")
LOGIT_SCORE = "Transformer LogitScore"
"""The module sequences of sparse encoders, ColBERT models and causal rerankers, which have no embedding settings."""
POOLING_MODES: dict[Pooling, str] = {
    "cls": "cls",
    "max": "max",
    "mean": "mean",
    "mean_sqrt_len": "mean_sqrt_len_tokens",
    "weighted_mean": "weightedmean",
    "last": "lasttoken",
}
"""Poolings by sentence-transformers name."""
POOLING_FLAGS: dict[str, Pooling] = {
    "cls_token": "cls",
    "max_tokens": "max",
    "mean_tokens": "mean",
    "mean_sqrt_len_tokens": "mean_sqrt_len",
    "weightedmean_tokens": "weighted_mean",
    "lasttoken": "last",
}
"""Poolings by suffix of the older flags `pooling_mode_...`, in the order in which several are concatenated."""
POOLING_NAMES = POOLING_FLAGS | {name: pooling for pooling, name in POOLING_MODES.items()}
SIMILARITIES: dict[str, Similarity] = {name: name for name in get_args(Similarity)}
LATE_SIMILARITIES = ("maxsim", "meanmaxsim")
MODEL_TYPES = ("SentenceTransformer", "SparseEncoder", "CrossEncoder", "MultiVectorEncoder", "ColBERT")
"""Kinds of models. With another name, sentence-transformers ignores modules and settings."""
TASKS = {
    "feature-extraction": ("last_hidden_state", "token_embeddings"),
    "fill-mask": ("logits", "token_embeddings"),
    "sequence-classification": ("logits", "scores"),
    "text-generation": ("logits", "causal_logits"),
}
"""For each task of the module Transformer, the encoder output that it reads, and its sentence-transformers name."""


@dataclass(frozen=True)
class SettingOptions:
    """Settings that override a model's files; None keeps the files' settings. `task` selects adapters.

    `source` is the Hugging Face model ID, or the name of a directory.
    """

    pooling: Pooling | None = None
    normalize: bool | None = None
    max_input_tokens: int | None = None
    task: str | None = None
    special_tokens_in_text: bool = False
    source: str = ""


FROM_FILES = SettingOptions()

INSTRUCTORS = tuple(f"hkunlp/instructor-{size}" for size in ("base", "large", "xl"))
"""Models for which sentence-transformers excludes the prompt from pooling without a setting in their files."""


@dataclass(frozen=True)
class DenseLayer:
    """A dense layer after pooling, `activation(x @ weight.T + bias)`; weight (out, in), bias (out,)."""

    weight: Tensor
    bias: Tensor | None
    activation: Literal["identity", "tanh"]

    def __call__(self, x: Tensor) -> Tensor:
        output = F.linear(x, self.weight, self.bias)
        return output.tanh() if self.activation == "tanh" else output


@dataclass(frozen=True)
class EmbeddingConfig:
    """The steps before and after the encoder. Without sentence-transformers files, mean pooling.

    If `include_prompt` is False, pooling excludes the prompt and all tokens before it. `similarity` is "cosine" unless
    a file names another function. `truncate_dim` and `origins`: see `EmbeddingHead` and `Manifest`.
    """

    pooling: CombinedPooling = "mean"
    normalize: bool = False
    dense: tuple[DenseLayer, ...] = ()
    prompts: dict[str, str] = field(default_factory=dict)
    default_prompt_name: str | None = None
    include_prompt: bool = True
    similarity: Similarity = "cosine"
    truncate_dim: int | None = None
    origins: dict[str, str] = field(default_factory=dict, compare=False)

    def pooled_size(self, hidden_size: int) -> int:
        """Return the size of a pooled vector."""
        return hidden_size * len(split_pooling(self.pooling))


@dataclass(frozen=True)
class TransformerSettings:
    """Settings of sentence-transformers' module Transformer.

    `config` and `tokenizer` override values of config.json and tokenizer_config.json. `max_input_tokens` is None if
    these files set no limit, and `origin` is the file that sets it. `query_expansion` pads ColBERT queries.
    """

    config: Mapping[str, Any]
    tokenizer: Mapping[str, Any]
    max_input_tokens: int | None
    origin: str
    role_max_tokens: dict[RetrievalRole, int]
    do_lower_case: bool

    def limit_roles(self, max_position_embeddings: int, option: int | None) -> dict[RetrievalRole, int]:
        """Return the token limits of roles, at most `max_position_embeddings`; none with the option for all inputs."""
        if option is not None:
            return {}
        return {role: min(limit, max_position_embeddings) for role, limit in self.role_max_tokens.items()}


def read_transformer_settings(files: Published) -> TransformerSettings:
    """Return the settings of the module Transformer. Raises CheckpointError for unsupported settings."""
    file = files.transformer_config
    file.require("tokenizer_name_or_path")
    if file and not files.has_modules:
        files.warn(f"{file.name} is used, though sentence-transformers ignores it without {MODULES}.")
    _check_task(file, files)
    config = _arguments(file, "config_kwargs", "config_args")
    tokenizer = _arguments(file, "processor_kwargs", "tokenizer_args")
    model = _arguments(file, "model_kwargs", "model_args")
    for arguments in (config, tokenizer, model):
        for key in ("revision", "subfolder", "variant", "quantization_config", "gguf_file"):
            arguments.require(key)
    own = files.tokenizer_config
    call_limit = _read_call(file.nested("processing_kwargs"))
    limits = (  # the first one applies, but all are read, so that none counts as unknown
        (call_limit, file.name),
        (tokenizer.integer("model_max_length"), file.name),
        (file.integer("max_seq_length"), file.name),
        (own.integer("model_max_length"), own.name),
        (own.integer("max_len"), own.name),
    )
    limit, origin = next(((limit, name) for limit, name in limits if limit is not None), (None, ""))
    lengths: dict[RetrievalRole, int] = {}
    for role in ("query", "document"):
        if (length := file.integer(f"{role}_length")) is not None and call_limit is None:
            lengths[role] = length
    return TransformerSettings(config, tokenizer, limit, origin, lengths, bool(file.get("do_lower_case")))


def _arguments(file: ConfigFile, name: str, old_name: str) -> ConfigFile:
    """Return the object with transformers arguments, under its current or old name."""
    return file.nested(old_name if old_name in file else name, name)


def _check_task(file: ConfigFile, files: Published) -> None:
    """Raise CheckpointError unless the encoder reads plain text and returns the output that its task names."""
    task = file.get("transformer_task") or "feature-extraction"
    if not isinstance(task, str) or task not in TASKS:
        raise unsupported(f"{file.name}: transformer_task", task, TASKS)
    output, name = TASKS[task]
    file.require("module_output_name", name)
    modalities = file.nested("modality_config", "modality_config")
    for modality in modalities:
        options = modalities.nested(modality, "modality")
        options.require("method", "forward")
        options.require("method_output_name", output)
        _ = options.get("format")
    if files.order == LOGIT_SCORE and modalities and "message" not in modalities:
        raise CheckpointError(
            f"{file.name}: modality_config does not contain message, so sentence-transformers would not use the chat "
            "template. Add it."
        )
    if "message" in modalities and files.order != LOGIT_SCORE:
        raise CheckpointError(
            f"{file.name}: modality_config renders each text through the chat template (message), which is not "
            'supported. If the model was trained on plain texts, remove "message" from modality_config.'
        )


def _read_call(call: ConfigFile) -> int | None:
    """Return the token limit in the tokenizer call arguments; None if there is none."""
    limit = None
    for key in ("text", "common", "chat_template"):
        arguments = call.nested(key, "processing_kwargs.call")
        limit = arguments.integer("max_length") or limit
        arguments.require("add_special_tokens", True)
        arguments.require("truncation", True, "longest_first")
        arguments.require("logits_to_keep", 1)
        arguments.require("restore_suffix", True)
    return limit


def read_max_input_tokens(
    settings: TransformerSettings, max_position_embeddings: int, option: int | None
) -> tuple[int, str]:
    """Return the input token limit and its origin.

    In the order of sentence-transformers: call arguments, tokenizer arguments, `max_seq_length`, and
    `model_max_length` of tokenizer_config.json. The result is at most `max_position_embeddings`. Raises CheckpointError
    if `option` is larger.
    """
    if option is not None:
        if not 1 <= option <= max_position_embeddings:
            raise CheckpointError(f"--max-input-tokens: out of range ({option}, limit {max_position_embeddings}).")
        return option, "--max-input-tokens"
    if settings.max_input_tokens is None or settings.max_input_tokens > max_position_embeddings:
        return max_position_embeddings, "config.json"
    return settings.max_input_tokens, settings.origin


def read_embedding_config(files: Published, hidden_size: int, options: SettingOptions = FROM_FILES) -> EmbeddingConfig:
    """Return the configuration in sentence-transformers files, overridden by `options`. Raises CheckpointError."""
    config = files.sentence_transformers
    config.require("model_type", *MODEL_TYPES)
    prompts, default_prompt_name = _read_prompts(config)
    embedding = EmbeddingConfig(
        prompts=prompts,
        default_prompt_name=default_prompt_name,
        similarity=read_similarity(files, "cosine"),
        origins={"pooling": ASSUMED, "normalize": ASSUMED} | ({"prompts": CONFIG} if config else {}),
    )
    if files.has_modules:
        embedding = _read_module_settings(files, hidden_size, embedding, options.pooling)
    elif config:
        files.warn(f"{CONFIG} is used, though sentence-transformers ignores it without {MODULES}.")
    if options.pooling is not None:
        embedding = replace(embedding, pooling=options.pooling)
        embedding.origins["pooling"] = "--pooling"
    size = embedding.dense[-1].weight.shape[0] if embedding.dense else embedding.pooled_size(hidden_size)
    truncate_dim = config.integer("truncate_dim")
    if truncate_dim is not None and truncate_dim < size:
        embedding.origins["truncate_dim"] = CONFIG
        embedding = replace(embedding, truncate_dim=truncate_dim)
    if options.normalize is not None:
        embedding.origins["normalize"] = "--normalize" if options.normalize else "--no-normalize"
        embedding = replace(embedding, normalize=options.normalize)
    if options.source in INSTRUCTORS:
        return replace(embedding, include_prompt=False)
    if embedding.include_prompt and "instructor" in options.source.rpartition("/")[2].lower():
        files.warn(
            "the pooling includes the instruction, which Instructor models exclude. If this is one, set include_prompt "
            "to false in the file of the Pooling module."
        )
    return embedding


def read_similarity(files: Published, default: Similarity) -> Similarity:
    """Return the model's similarity function. Names for other kinds of models select the default."""
    name = files.sentence_transformers.get("similarity_fn_name")
    if name is None or str(name).lower() in LATE_SIMILARITIES:
        return default
    if not isinstance(name, str) or name not in SIMILARITIES:
        files.warn(f"{CONFIG}: unknown similarity_fn_name {name!r}, using {default}.")
        return default
    return SIMILARITIES[name]


def assume_pooling(embedding: EmbeddingConfig, *, causal: bool) -> EmbeddingConfig:
    """Return `embedding` with last-token pooling if attention is causal and no file or option sets the pooling.

    Only the last token of a causal model attends to the whole text.
    """
    if causal and embedding.origins["pooling"] == ASSUMED:
        return replace(embedding, pooling="last")
    return embedding


def _read_module_settings(
    files: Published, hidden_size: int, embedding: EmbeddingConfig, option: Pooling | None
) -> EmbeddingConfig:
    """Return `embedding` with the settings of modules.json; `option` will override the pooling."""
    modules = [module for module in files.modules if module.kind != "Dropout"]  # only training drops values
    order = " ".join(module.kind for module in modules)
    if is_late_interaction(files) or SPLADE.fullmatch(order) or order == LOGIT_SCORE:
        return embedding
    if not re.fullmatch(EMBEDDING_MODULES, order):
        raise unsupported(f"{MODULES}: modules", order, ("Transformer Pooling Dense... Normalize",))
    if files.transformer_config.get("query_expansion") is not None:
        raise CheckpointError(f"{files.transformer_config.name}: query_expansion requires a multi-vector model.")
    pooling, include_prompt = embedding.pooling, True
    origins = embedding.origins | {"normalize": MODULES, "dense": MODULES}
    dense: list[DenseLayer] = []
    size = hidden_size
    for module in modules:
        if module.kind == "Pooling":
            config = files.module_config(module)
            if not (module.path / "config.json").is_file():
                raise CheckpointError(f"{config.name}: missing. {REDOWNLOAD}")
            pooling, include_prompt = _read_pooling(config)
            origins["pooling"] = config.name
            size = hidden_size * len(split_pooling(option or pooling))
        elif module.kind == "Dense":
            dense.append(read_dense(files, module, size, "sentence_embedding"))
            size = dense[-1].weight.shape[0]
        elif module.kind == "Normalize":
            check_features(files.module_config(module), "sentence_embedding")
    return replace(
        embedding,
        pooling=pooling,
        normalize=order.endswith("Normalize"),
        dense=tuple(dense),
        include_prompt=include_prompt,
        origins=origins,
    )


EMBEDDING_MODULES = r"Transformer( Pooling( Dense)*( Normalize)?)?"


def has_embedding_modules(files: Published) -> bool:
    """Return whether modules.json describes an embedding model, with or without Dropout."""
    order = " ".join(module.kind for module in files.modules if module.kind != "Dropout")
    return re.fullmatch(EMBEDDING_MODULES, order) is not None and not is_late_interaction(files)


def is_late_interaction(files: Published) -> bool:
    """Return whether modules.json describes a ColBERT model."""
    named = (
        files.sentence_transformers.get("model_type") in ("MultiVectorEncoder", "ColBERT")
        or "query_prefix" in files.sentence_transformers
    )
    return LATE_INTERACTION.fullmatch(files.order) is not None and (named or "MultiVectorMask" in files.order)


def _read_prompts(config: ConfigFile) -> tuple[dict[str, str], str | None]:
    prompts, default = config.get("prompts") or {}, config.get("default_prompt_name")
    if isinstance(prompts, dict):  # null means a name without a text
        prompts = {name: "" if prompt is None else prompt for name, prompt in prompts.items()}
    if not isinstance(prompts, dict) or not all(isinstance(prompt, str) for prompt in prompts.values()):
        raise CheckpointError(f"{CONFIG}: prompts is not a map of names to strings. Correct it.")
    if default is not None and (not isinstance(default, str) or default not in prompts):
        raise CheckpointError(f"{CONFIG}: default_prompt_name {default!r} is not in prompts. Correct it.")
    return prompts, default


def _read_pooling(config: ConfigFile) -> tuple[CombinedPooling, bool]:
    # The older format has one flag per mode.
    flags = [key.removeprefix("pooling_mode_") for key in config if key.startswith("pooling_mode_") and config[key]]
    flags.sort(key=lambda flag: [*POOLING_FLAGS, flag].index(flag))
    modes = config.get("pooling_mode", flags or ["mean"])
    modes = [POOLING_NAMES.get(str(mode), mode) for mode in (modes if isinstance(modes, list) else [modes])]
    if not modes or not all(mode in POOLINGS for mode in modes):
        raise CheckpointError(f"{config.name}: unsupported pooling {modes}. Supported: {', '.join(POOLINGS)}.")
    include_prompt = config.get("include_prompt", True)
    if not isinstance(include_prompt, bool):
        raise CheckpointError(f"{config.name}: include_prompt is not a boolean. Correct it.")
    return COMBINED.join(modes), include_prompt


def check_features(config: ConfigFile, name: str) -> None:
    """Raise CheckpointError unless a module reads and writes the sentence-transformers feature `name`."""
    config.require("module_input_name", name)
    config.require("module_output_name", name)


def read_dense(files: Published, module: Module, in_features: int, features: str) -> DenseLayer:
    """Return the layer of a module Dense that reads `features`. Raises CheckpointError."""
    config = files.module_config(module)
    check_features(config, features)
    path = str(config.get("activation_function") or "torch.nn.modules.activation.Tanh")
    supported: dict[str, Literal["identity", "tanh"]] = {"Identity": "identity"}
    if features == "sentence_embedding":  # the projection of token vectors is linear
        supported["Tanh"] = "tanh"
    name = path.rsplit(".", 1)[-1]
    if name not in supported or not path.startswith("torch.") or config.get("use_residual"):
        kind = f"{path} with a residual" if config.get("use_residual") else path
        raise unsupported(f"{config.name}: dense layer", kind, supported)
    tensors = read_tensors(module.path)
    weight, bias = tensors.pop("linear.weight", None), tensors.pop("linear.bias", None)
    if weight is None or tensors or weight.shape[1] != in_features:
        raise CheckpointError(f"{module.path.name}/model.safetensors: expected linear.weight (*, {in_features}).")
    for part, tensor in (("weight", weight), ("bias", bias)):
        if tensor is not None:
            require_finite(tensor, f"linear.{part}", f"{module.path.name}/model.safetensors")
    return DenseLayer(weight.float(), None if bias is None else bias.float(), supported[name])
