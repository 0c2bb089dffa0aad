"""What comes after the encoder, as the sentence-transformers files say it: pooling, dense layers, normalisation."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from model.artifact import Pooling
from model.published import CheckpointError, read_json, read_optional, read_tensors


@dataclass(frozen=True)
class Dense:
    """A trained linear map after pooling: `activation(x @ weight.T + bias)`; weight `(out, in)`, bias `(out,)`."""

    weight: Tensor
    bias: Tensor | None
    activation: Literal["identity", "tanh"]


@dataclass(frozen=True)
class TextVector:
    """How a text's vector is made of its tokens' vectors; without any files, their plain mean."""

    pooling: Pooling = "mean"
    normalize: bool = False
    dense: tuple[Dense, ...] = ()
    prompts: dict[str, str] = field(default_factory=dict)


def read_max_tokens(directory: Path, positions: int) -> int:
    """sentence_bert_config's max_seq_length, else the smaller of tokenizer_config's and the model's positions."""
    limit = read_optional(directory / "sentence_bert_config.json").get("max_seq_length")
    if limit is None:
        limit = read_optional(directory / "tokenizer_config.json").get("model_max_length")
    return positions if limit is None else int(min(limit, positions))


def read_text_vector(directory: Path, width: int) -> TextVector:
    """Pooling, dense layers, normalisation and prompts from the sentence-transformers files."""
    prompts = read_optional(directory / "config_sentence_transformers.json").get("prompts") or {}
    if not isinstance(prompts, dict) or not all(isinstance(prompt, str) for prompt in prompts.values()):
        raise CheckpointError("config_sentence_transformers.json: prompts is not a map of names to texts.")
    if not (directory / "modules.json").is_file():
        return TextVector(prompts=prompts)
    if read_optional(directory / "sentence_bert_config.json").get("do_lower_case"):
        raise CheckpointError("sentence_bert_config.json: do_lower_case belongs into tokenizer.json.")
    modules = list(_modules(directory))
    order = " ".join(kind for kind, _ in modules)
    if not re.fullmatch(r"Transformer( Pooling( Dense)*( Normalize)?)?", order):
        raise CheckpointError(f"modules.json: only Transformer Pooling Dense... Normalize, in this order, not {order}.")
    pooling: Pooling = "mean"
    dense: list[Dense] = []
    for kind, path in modules:
        if kind == "Pooling":
            pooling = _pooling(read_json(path / "config.json"))
        elif kind == "Dense":
            dense.append(_dense(path, width))
            width = dense[-1].weight.shape[0]
    return TextVector(pooling, order.endswith("Normalize"), tuple(dense), prompts)


def _modules(directory: Path) -> Iterator[tuple[str, Path]]:
    try:
        listed = json.loads((directory / "modules.json").read_text(encoding="utf-8"))
        modules = [(str(module["type"]).rsplit(".", 1)[-1], str(module["path"])) for module in listed]
    except (ValueError, TypeError, KeyError):
        raise CheckpointError("modules.json: not a list of modules, each with a type and a path.") from None
    for kind, path in modules:
        resolved = (directory / path).resolve()
        if not resolved.is_relative_to(directory.resolve()):
            raise CheckpointError(f"modules.json: the path {path!r} leads out of the model.")
        yield kind, resolved


def _pooling(config: dict[str, Any]) -> Pooling:
    modes = config.get("pooling_mode")
    if modes is None:
        spelled = {"cls_token": "cls", "mean_tokens": "mean", "max_tokens": "max"}
        modes = [
            spelled.get(key.removeprefix("pooling_mode_"), key)
            for key, value in config.items()
            if key.startswith("pooling_mode_") and value
        ]
    if isinstance(modes, str):
        modes = [modes]
    if len(modes) != 1 or modes[0] not in ("mean", "cls", "max"):
        raise CheckpointError(f"Pooling/config.json: pooling {modes} is not one of mean, cls, max.")
    mode: Pooling = modes[0]
    return mode


def _dense(path: Path, width: int) -> Dense:
    config = read_json(path / "config.json")
    activations: dict[str, Literal["identity", "tanh"]] = {"Tanh": "tanh", "Identity": "identity"}
    name = str(config.get("activation_function", "Tanh")).rsplit(".", 1)[-1]
    if name not in activations or config.get("use_residual"):
        raise CheckpointError(f"{path.name}/config.json: only a plain Dense with Tanh or Identity is supported.")
    tensors = read_tensors(path)
    weight, bias = tensors.pop("linear.weight", None), tensors.pop("linear.bias", None)
    if weight is None or tensors or weight.shape[1] != width:
        raise CheckpointError(f"{path.name}/model.safetensors: expected linear.weight (*, {width}) and linear.bias.")
    return Dense(weight.float(), None if bias is None else bias.float(), activations[name])
