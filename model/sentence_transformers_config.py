"""The sentence-transformers configuration of a model: pooling, dense layers, normalization and prompts."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from model.checkpoint_files import CheckpointError, read_json, read_optional_json, read_tensors
from model.head_records import Similarity
from model.manifest import ASSUMED, POOLINGS, Pooling

CONFIG = "config_sentence_transformers.json"
MODULES = "modules.json"
ROUTER = "router_config.json"
SPLADE = re.compile(r"(MLMTransformer|Transformer) SpladePooling")
LATE_INTERACTION = re.compile(r"Transformer( Dense)+( MultiVectorMask)?( Normalize)?")
LOGIT_SCORE = "Transformer LogitScore"
"""The modules of sparse encoders, ColBERT models and causal rerankers, which have no embedding settings."""
POOLING_NAMES = {"cls_token": "cls", "mean_tokens": "mean", "max_tokens": "max", "lasttoken": "last"}


@dataclass(frozen=True)
class SettingOptions:
    """Settings that replace those in the files of a model; None keeps them. `task` selects its adapters."""

    pooling: Pooling | None = None
    normalize: bool | None = None
    max_input_tokens: int | None = None
    task: str | None = None


FROM_FILES = SettingOptions()


@dataclass(frozen=True)
class DenseLayer:
    """A dense layer after pooling, `activation(x @ weight.T + bias)`; weight (out, in), bias (out,)."""

    weight: Tensor
    bias: Tensor | None
    activation: Literal["identity", "tanh"]


@dataclass(frozen=True)
class EmbeddingConfig:
    """The steps before and after the encoder; mean pooling without sentence-transformers files.

    `include_prompt` False means that pooling excludes the prompt and all tokens before it. `similarity` is "dot" for
    models with `similarity_fn_name` "dot", else "cosine". `origins`: see `Manifest`.
    """

    pooling: Pooling = "mean"
    normalize: bool = False
    dense: tuple[DenseLayer, ...] = ()
    prompts: dict[str, str] = field(default_factory=dict)
    default_prompt_name: str | None = None
    include_prompt: bool = True
    similarity: Similarity = "cosine"
    origins: dict[str, str] = field(default_factory=dict, compare=False)


def read_max_input_tokens(directory: Path, max_position_embeddings: int, option: int | None) -> tuple[int, str]:
    """Return the token limit of an input and its origin.

    `max_seq_length` of sentence_bert_config.json has priority over `model_max_length` of tokenizer_config.json. The
    result is at most `max_position_embeddings`. Raises CheckpointError if `option` is larger.
    """
    if option is not None:
        if not 1 <= option <= max_position_embeddings:
            raise CheckpointError(
                f"--max-input-tokens: out of range ({option}, limit {max_position_embeddings}). "
                f"Use 1 to {max_position_embeddings}."
            )
        return option, "--max-input-tokens"
    for name, key in (("sentence_bert_config.json", "max_seq_length"), ("tokenizer_config.json", "model_max_length")):
        limit = read_optional_json(directory / name).get(key)
        if limit is not None:
            return (int(limit), name) if limit <= max_position_embeddings else (max_position_embeddings, "config.json")
    return max_position_embeddings, "config.json"


def read_embedding_config(directory: Path, hidden_size: int, options: SettingOptions = FROM_FILES) -> EmbeddingConfig:
    """Return the configuration in the sentence-transformers files, changed by `options`. Raises CheckpointError."""
    config = read_optional_json(directory / CONFIG)
    prompts, default_prompt_name = _read_prompts(config)
    similarity: Similarity = "dot" if config.get("similarity_fn_name") in ("dot", "dot_product") else "cosine"
    embedding = EmbeddingConfig(
        prompts=prompts,
        default_prompt_name=default_prompt_name,
        similarity=similarity,
        origins={"pooling": ASSUMED, "normalize": ASSUMED} | ({"prompts": CONFIG} if config else {}),
    )
    if (directory / MODULES).is_file():
        embedding = _read_module_settings(directory, hidden_size, embedding)
    changes: dict[str, Any] = {}
    origins = dict(embedding.origins)
    if options.pooling is not None:
        changes["pooling"], origins["pooling"] = options.pooling, "--pooling"
    if options.normalize is not None:
        changes["normalize"] = options.normalize
        origins["normalize"] = "--normalize" if options.normalize else "--no-normalize"
    return replace(embedding, **changes, origins=origins)


def assume_pooling(embedding: EmbeddingConfig, *, causal: bool) -> EmbeddingConfig:
    """Return `embedding` with last pooling if attention is causal and neither a file nor an option sets the pooling.

    Only the last token of a causal model attends to the whole text.
    """
    if causal and embedding.origins["pooling"] == ASSUMED:
        return replace(embedding, pooling="last")
    return embedding


def _read_module_settings(directory: Path, hidden_size: int, embedding: EmbeddingConfig) -> EmbeddingConfig:
    """Return `embedding` with pooling, dense layers and normalization of modules.json."""
    if read_optional_json(directory / "sentence_bert_config.json").get("do_lower_case"):
        raise CheckpointError("sentence_bert_config.json: do_lower_case is unsupported. Lower-case in tokenizer.json.")
    modules = list(read_modules(directory))
    order = " ".join(kind for kind, _ in modules)
    late = is_late_interaction(order, read_optional_json(directory / CONFIG))
    if late or SPLADE.fullmatch(order) or order == LOGIT_SCORE:
        return embedding
    if not re.fullmatch(r"Transformer( Pooling( Dense)*( Normalize)?)?", order):
        raise CheckpointError(
            f"modules.json: unsupported modules ({order}). Supported: Transformer Pooling Dense... Normalize."
        )
    pooling, include_prompt = embedding.pooling, True
    origins = embedding.origins | {"normalize": MODULES, "dense": MODULES}
    dense: list[DenseLayer] = []
    size = hidden_size
    for kind, path in modules:
        if kind == "Pooling":
            pooling, include_prompt = _read_pooling(read_json(path / "config.json"))
            origins["pooling"] = f"{path.name}/config.json"
        elif kind == "Dense":
            dense.append(read_dense(path, size))
            size = dense[-1].weight.shape[0]
    return replace(
        embedding,
        pooling=pooling,
        normalize=order.endswith("Normalize"),
        dense=tuple(dense),
        include_prompt=include_prompt,
        origins=origins,
    )


def is_late_interaction(order: str, config: Mapping[str, Any]) -> bool:
    """Return whether modules in this order are a ColBERT model; `config` has the values of CONFIG."""
    named = config.get("model_type") in ("MultiVectorEncoder", "ColBERT") or "query_prefix" in config
    return LATE_INTERACTION.fullmatch(order) is not None and (named or "MultiVectorMask" in order)


def find_splade_pooling(directory: Path) -> Path | None:
    """Return the directory of the module SpladePooling; None if the model has none. Raises CheckpointError."""
    if not (directory / MODULES).is_file():
        return None
    return next((path for kind, path in read_modules(directory) if kind == "SpladePooling"), None)


def _read_prompts(config: dict[str, Any]) -> tuple[dict[str, str], str | None]:
    prompts, default = config.get("prompts") or {}, config.get("default_prompt_name")
    if not isinstance(prompts, dict) or not all(isinstance(prompt, str) for prompt in prompts.values()):
        raise CheckpointError(f"{CONFIG}: prompts is not a map of names to strings. Correct it.")
    if default is not None and (not isinstance(default, str) or default not in prompts):
        raise CheckpointError(f"{CONFIG}: default_prompt_name {default!r} is not in prompts. Correct it.")
    return prompts, default


def read_modules(directory: Path) -> Iterator[tuple[str, Path]]:
    """Yield the class and the directory of each module; of a Router, those for documents. Raises CheckpointError."""
    modules = list(_list_modules(directory))
    yield from _read_route(directory, "document") if _is_router(modules) else modules


def transformer_directory(directory: Path) -> Path:
    """Return the directory with config.json, weights and tokenizer, which a Router may have. Raises CheckpointError."""
    if not (directory / MODULES).is_file() or not _is_router(list(_list_modules(directory))):
        return directory
    return _read_route(directory, "document")[0][1]


def find_query_module(directory: Path) -> Path | None:
    """Return the directory of the module SparseStaticEmbedding; None without a Router. Raises CheckpointError."""
    if not _is_router(list(_list_modules(directory))):
        return None
    route = _read_route(directory, "query")
    if [kind for kind, _ in route] != ["SparseStaticEmbedding"]:
        kinds = " ".join(kind for kind, _ in route)
        raise CheckpointError(f"{ROUTER}: unsupported route of queries ({kinds}). Supported: SparseStaticEmbedding.")
    return route[0][1]


def _is_router(modules: Sequence[tuple[str, Path]]) -> bool:
    return [kind for kind, _ in modules] == ["Router"]


def _read_route(directory: Path, role: str) -> list[tuple[str, Path]]:
    """Return the class and the directory of the modules of a route."""
    values = read_json(directory / ROUTER)
    try:
        names = [str(name) for name in values["structure"][role]]
        route = [(str(values["types"][name]).rsplit(".", 1)[-1], directory / name) for name in names]
    except (TypeError, KeyError):
        raise CheckpointError(f"{ROUTER}: no route {role} of modules. Correct it.") from None
    for (_, path), name in zip(route, names, strict=True):
        _check_inside(directory, path, name, ROUTER)
    if not route:
        raise CheckpointError(f"{ROUTER}: no route {role} of modules. Correct it.")
    return route


def _list_modules(directory: Path) -> Iterator[tuple[str, Path]]:
    try:
        entries = json.loads((directory / MODULES).read_text(encoding="utf-8"))
        modules = [(str(entry["type"]).rsplit(".", 1)[-1], str(entry["path"])) for entry in entries]
    except (ValueError, TypeError, KeyError):
        raise CheckpointError("modules.json: not a list of modules with type and path. Correct it.") from None
    for kind, path in modules:
        _check_inside(directory, directory / path, path, MODULES)
        yield kind, (directory / path).resolve()


def _check_inside(directory: Path, path: Path, name: str, file: str) -> None:
    if not path.resolve().is_relative_to(directory.resolve()):
        raise CheckpointError(f"{file}: path {name!r} is outside of the model directory. Correct it.")


def _read_pooling(config: dict[str, Any]) -> tuple[Pooling, bool]:
    modes = config.get("pooling_mode")
    if modes is None:
        # The older format has one flag per mode.
        modes = [
            key.removeprefix("pooling_mode_")
            for key, value in config.items()
            if key.startswith("pooling_mode_") and value
        ]
    if isinstance(modes, str):
        modes = [modes]
    modes = [POOLING_NAMES.get(mode, mode) for mode in modes]
    if len(modes) != 1 or modes[0] not in POOLINGS:
        raise CheckpointError(f"Pooling/config.json: unsupported pooling {modes}. Supported: {', '.join(POOLINGS)}.")
    include_prompt = config.get("include_prompt", True)
    if not isinstance(include_prompt, bool):
        raise CheckpointError("Pooling/config.json: include_prompt is not a boolean. Correct it.")
    mode: Pooling = modes[0]
    return mode, include_prompt


def read_dense(path: Path, in_features: int) -> DenseLayer:
    """Return the layer of a module Dense. Raises CheckpointError."""
    config = read_json(path / "config.json")
    activations: dict[str, Literal["identity", "tanh"]] = {"Tanh": "tanh", "Identity": "identity"}
    name = str(config.get("activation_function", "Tanh")).rsplit(".", 1)[-1]
    if name not in activations or config.get("use_residual"):
        raise CheckpointError(
            f"{path.name}/config.json: unsupported dense layer. Supported: Tanh or Identity without a residual."
        )
    tensors = read_tensors(path)
    weight, bias = tensors.pop("linear.weight", None), tensors.pop("linear.bias", None)
    if weight is None or tensors or weight.shape[1] != in_features:
        raise CheckpointError(
            f"{path.name}/model.safetensors: unexpected tensors. "
            f"Expected linear.weight (*, {in_features}) and optionally linear.bias."
        )
    return DenseLayer(weight.float(), None if bias is None else bias.float(), activations[name])
