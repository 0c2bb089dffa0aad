"""The format of encoders that `attendant-model train` builds from parts that no published architecture combines.

The keys of config.json are the fields of `EncoderConfig`; tensors are named as in `Encoder`.
"""

from collections.abc import Mapping
from dataclasses import MISSING, Field, asdict, fields
from typing import Any, get_args

from model.encoder import EncoderConfig, LayerConfig, RelativeConfig, RotaryConfig
from model.families.family import ROBERTA_CLASSIFIER, ConfigReader, Family, read_relative
from model.source.published import CheckpointError, unsupported

NAMES = {
    name: name
    for name in (
        "embeddings.word_embeddings", "embeddings.position_embeddings", "embeddings.token_type_embeddings",
        "embeddings.task_type_embeddings", "embeddings.norm", "embeddings.project",
        "positions.bias", "positions.distances", "positions.distances.norm", "blocks",
        "attention.query", "attention.key", "attention.value", "attention.output",
        "attention.distance_key", "attention.distance_query",
        "attention.query_norm", "attention.key_norm", "attention_norm", "attention_output_norm", "residual_norm",
        "feed_forward.gate", "feed_forward.inner", "feed_forward.outer", "feed_forward_norm",
        "feed_forward_output_norm", "norm",
    )
}  # fmt: skip
LAYER_KEYS = {"window", "rope_theta", "attention_norm"}
UNUSED = r"^classifier\."


def read_config(config: ConfigReader) -> EncoderConfig:
    """Return the configuration. Missing fields get defaults.

    In earlier versions, `attention_bias` included the output, and `relative_bias` was true or false.
    """
    values = {field.name: _read_field(config, field) for field in fields(EncoderConfig) if field.name != "layers"}
    if "attention_output_bias" not in config:
        values["attention_output_bias"] = values["attention_bias"]
    layers = config.value("layers")
    if not isinstance(layers, list) or len(layers) != values["num_hidden_layers"]:
        raise CheckpointError("config.json: layers is not a list of num_hidden_layers objects. Correct it.")
    try:
        encoder_config = EncoderConfig(**values, layers=tuple(map(_read_layer, layers)))
    except ValueError as error:
        raise CheckpointError(f"config.json: {error}. Correct it.") from None
    if encoder_config.head_size % 2 and any(layer.rotary for layer in encoder_config.layers):
        raise CheckpointError(f"config.json: rotary positions with an odd head_size ({encoder_config.head_size}).")
    return encoder_config


def _read_field(config: ConfigReader, field: "Field[Any]") -> Any:
    """Return a field's value after checking its type. `type_vocab_size` and sizes with a default may be 0."""
    key, has_default = field.name, field.default is not MISSING
    if key not in config:
        return field.default if has_default else config.value(key)
    if key == "hidden_act":
        return config.activation(key)
    if key == "disentangled":
        raise unsupported("config.json: disentangled", config.value(key), ("null",))
    if key == "relative_bias":
        return _read_relative(config.value(key))
    if field.type is int:
        return config.size(key, least=0 if has_default or key == "type_vocab_size" else 1)
    if field.type is float:
        return config.number(key)
    if field.type is bool:
        return config.flag(key)
    value, choices = config.value(key), get_args(field.type)
    if value not in choices:
        raise unsupported(f"config.json: {key}", value, choices)
    return value


def _read_relative(values: Any) -> RelativeConfig | None:
    """Return the relative position bias. Raises CheckpointError."""
    if type(values) is bool:
        return RelativeConfig() if values else None
    if not isinstance(values, Mapping) or not set(values) <= {"buckets", "max_distance"}:
        raise unsupported("config.json: relative_bias", values, ("buckets", "max_distance"))
    return read_relative(ConfigReader(values), "buckets", "max_distance")


def _read_layer(values: Any) -> LayerConfig:
    """Return a layer's options. Raises CheckpointError."""
    if not isinstance(values, Mapping) or not set(values) <= LAYER_KEYS:
        raise unsupported("config.json: element of layers", values, sorted(LAYER_KEYS))
    layer = ConfigReader(values)
    return LayerConfig(
        window=layer.size("window") if "window" in layer else None,
        rotary=RotaryConfig(layer.number("rope_theta")) if "rope_theta" in layer else None,
        attention_norm=layer.flag("attention_norm", True),
    )


def write_config(config: EncoderConfig) -> dict[str, Any]:
    """Return the config.json values of an encoder without rotary scaling."""
    return asdict(config) | {"layers": [_write_layer(layer) for layer in config.layers]}


def _write_layer(layer: LayerConfig) -> dict[str, Any]:
    theta = None if layer.rotary is None else layer.rotary.base
    if theta is not None and layer.rotary != RotaryConfig(theta):
        raise ValueError(f"rotary: scaled positions have no key in config.json ({layer.rotary})")
    return {"window": layer.window, "rope_theta": theta, "attention_norm": layer.attention_norm}


FAMILIES = (
    Family("attendant", read_config, NAMES, layer_lists=("layers",), unused=UNUSED, classifier=ROBERTA_CLASSIFIER),
)
