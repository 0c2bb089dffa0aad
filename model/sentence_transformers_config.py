"""The sentence-transformers configuration of a model: pooling, dense layers, normalization and prompts."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from model.checkpoint_files import CheckpointError, read_json, read_optional_json, read_tensors
from model.manifest import POOLINGS, Pooling, Similarity

CONFIG = "config_sentence_transformers.json"


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
    models with `similarity_fn_name` "dot", else "cosine".
    """

    pooling: Pooling = "mean"
    normalize: bool = False
    dense: tuple[DenseLayer, ...] = ()
    prompts: dict[str, str] = field(default_factory=dict)
    default_prompt_name: str | None = None
    include_prompt: bool = True
    similarity: Similarity = "cosine"


def read_max_input_tokens(directory: Path, max_position_embeddings: int) -> int:
    """Return `max_seq_length` of sentence_bert_config.json, else `model_max_length` of tokenizer_config.json.

    The result is at most `max_position_embeddings`.
    """
    limit = read_optional_json(directory / "sentence_bert_config.json").get("max_seq_length")
    if limit is None:
        limit = read_optional_json(directory / "tokenizer_config.json").get("model_max_length")
    return max_position_embeddings if limit is None else int(min(limit, max_position_embeddings))


def read_embedding_config(directory: Path, hidden_size: int) -> EmbeddingConfig:
    """Return the configuration in the sentence-transformers files. Raises CheckpointError."""
    config = read_optional_json(directory / CONFIG)
    prompts, default_prompt_name = _read_prompts(config)
    similarity: Similarity = "dot" if config.get("similarity_fn_name") in ("dot", "dot_product") else "cosine"
    if not (directory / "modules.json").is_file():
        return EmbeddingConfig(prompts=prompts, default_prompt_name=default_prompt_name, similarity=similarity)
    if read_optional_json(directory / "sentence_bert_config.json").get("do_lower_case"):
        raise CheckpointError("sentence_bert_config.json: do_lower_case is unsupported. Lower-case in tokenizer.json.")
    modules = list(_read_modules(directory))
    order = " ".join(kind for kind, _ in modules)
    if not re.fullmatch(r"Transformer( Pooling( Dense)*( Normalize)?)?", order):
        raise CheckpointError(
            f"modules.json: unsupported modules ({order}). Supported: Transformer Pooling Dense... Normalize."
        )
    pooling: Pooling = "mean"
    include_prompt = True
    dense: list[DenseLayer] = []
    size = hidden_size
    for kind, path in modules:
        if kind == "Pooling":
            pooling, include_prompt = _read_pooling(read_json(path / "config.json"))
        elif kind == "Dense":
            dense.append(_read_dense(path, size))
            size = dense[-1].weight.shape[0]
    return EmbeddingConfig(
        pooling, order.endswith("Normalize"), tuple(dense), prompts, default_prompt_name, include_prompt, similarity
    )


def _read_prompts(config: dict[str, Any]) -> tuple[dict[str, str], str | None]:
    prompts, default = config.get("prompts") or {}, config.get("default_prompt_name")
    if not isinstance(prompts, dict) or not all(isinstance(prompt, str) for prompt in prompts.values()):
        raise CheckpointError(f"{CONFIG}: prompts is not a map of names to strings. Correct it.")
    if default is not None and (not isinstance(default, str) or default not in prompts):
        raise CheckpointError(f"{CONFIG}: default_prompt_name {default!r} is not in prompts. Correct it.")
    return prompts, default


def _read_modules(directory: Path) -> Iterator[tuple[str, Path]]:
    try:
        entries = json.loads((directory / "modules.json").read_text(encoding="utf-8"))
        modules = [(str(entry["type"]).rsplit(".", 1)[-1], str(entry["path"])) for entry in entries]
    except (ValueError, TypeError, KeyError):
        raise CheckpointError("modules.json: not a list of modules with type and path. Correct it.") from None
    for kind, path in modules:
        resolved = (directory / path).resolve()
        if not resolved.is_relative_to(directory.resolve()):
            raise CheckpointError(f"modules.json: path {path!r} is outside of the model directory. Correct it.")
        yield kind, resolved


def _read_pooling(config: dict[str, Any]) -> tuple[Pooling, bool]:
    modes = config.get("pooling_mode")
    if modes is None:
        # The older format has one flag per mode.
        names = {"cls_token": "cls", "mean_tokens": "mean", "max_tokens": "max"}
        modes = [
            names.get(key.removeprefix("pooling_mode_"), key)
            for key, value in config.items()
            if key.startswith("pooling_mode_") and value
        ]
    if isinstance(modes, str):
        modes = [modes]
    if len(modes) != 1 or modes[0] not in POOLINGS:
        raise CheckpointError(f"Pooling/config.json: unsupported pooling {modes}. Supported: {', '.join(POOLINGS)}.")
    include_prompt = config.get("include_prompt", True)
    if not isinstance(include_prompt, bool):
        raise CheckpointError("Pooling/config.json: include_prompt is not a boolean. Correct it.")
    mode: Pooling = modes[0]
    return mode, include_prompt


def _read_dense(path: Path, in_features: int) -> DenseLayer:
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
