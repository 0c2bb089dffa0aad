"""A model family: converts an architecture's published files to an `EncoderConfig` and weights."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from torch import Tensor

from model.encoder import ACTIVATIONS, EncoderConfig, LayerConfig, RelativeConfig, RotaryConfig
from model.heads.classifiers import ClassifierLayout
from model.heads.row_head import HeadLayout
from model.heads.vocabulary import VocabularyLayout
from model.source.published import REDOWNLOAD, CheckpointError, unsupported

ChoiceT = TypeVar("ChoiceT")
DECISIVE = re.compile(
    r"attn|attention|rope|rotary|scaling|window|causal|bidirection|softcap|alibi|expert|moe|position_embedding"
    r"|prenorm|norm_type|parallel_block|qk_|quantization"
)
"""Pattern of keys that may select a different architecture. An unread key is an error unless it is off or `HARMLESS`.
"""
MAX_SIZE = 2**24
"""Maximum size. Larger values are mistakes, rejected before they exhaust memory."""
HARMLESS = re.compile(
    r"dropout|_pdrop$|attn_implementation|flash_attn|memory_efficient_attention|_attention_heads$|^attentions?$|^output_attentions$"
    r"|^final_logit_softcapping$|^max_window_layers$|^_?sliding_window_pattern$|^cross_attention_hidden_size$|^attention_type$"
)


class ConfigReader:
    """Typed access to config.json, or to the object at `path`. A key without a default is required."""

    def __init__(self, values: Mapping[str, Any], path: str = "") -> None:
        self._values = values
        self._prefix = f"config.json: {path}." if path else "config.json: "
        self._read: set[str] = set()

    def __contains__(self, key: str) -> bool:
        return self._values.get(key) is not None

    def is_null(self, key: str) -> bool:
        """Return whether a key is present with the value null."""
        return key in self._values and self._values[key] is None

    def value(self, key: str, default: Any = None) -> Any:
        """Return a value of any type; raises CheckpointError if it is missing and there is no default."""
        self._read.add(key)
        found = self._values.get(key)
        if found is None:
            if default is None:
                raise CheckpointError(f"{self._prefix}{key} is missing. {REDOWNLOAD}")
            return default
        return found

    def size(self, key: str, default: int | None = None, *, least: int = 1) -> int:
        """Return an integer that is at least `least`."""
        found = self.value(key, default)
        if type(found) is not int or not least <= found <= MAX_SIZE:
            kind = "a positive integer" if least == 1 else "0 or a positive integer"
            raise CheckpointError(f"{self._prefix}{key} is not {kind} ({found!r}). Correct it.")
        return found

    def number(self, key: str, default: float | None = None) -> float:
        found = self.value(key, default)
        if type(found) not in (int, float) or not 0 < found < float("inf"):
            raise CheckpointError(f"{self._prefix}{key} is not a positive number ({found!r}). Correct it.")
        return float(found)

    def flag(self, key: str, default: bool = False) -> bool:
        """Return a boolean, which some published files contain as a string. As in transformers, null is false."""
        found = self.value(key, default and not self.is_null(key))
        if isinstance(found, str) and found.lower() in ("true", "false"):
            return found.lower() == "true"
        if type(found) is not bool:
            raise CheckpointError(f"{self._prefix}{key} is not true or false ({found!r}). Correct it.")
        return found

    def mapping(self, key: str) -> Mapping[str, Any]:
        """Return an object; empty if it is missing."""
        found = self.value(key, {})
        if not isinstance(found, Mapping):
            raise CheckpointError(f"{self._prefix}{key} is not an object ({found!r}). Correct it.")
        return found

    def activation(self, key: str, default: str | None = None) -> str:
        return self.check_activation(key, self.value(key, default))

    def check_activation(self, key: str, name: Any) -> str:
        """Return the activation named by `key`. Raises CheckpointError."""
        if not isinstance(name, str) or name not in ACTIVATIONS:
            raise unsupported(f"config.json: {key}", name, ACTIVATIONS)
        return name

    def choice(self, key: str, choices: Mapping[str, ChoiceT], default: str) -> ChoiceT:
        """Return the entry of `choices` selected by a value."""
        found = self.value(key, default)
        if not isinstance(found, str) or found not in choices:
            raise unsupported(f"config.json: {key}", found, choices)
        return choices[found]

    def require(self, key: str, expected: Any) -> None:
        """Raise CheckpointError unless a key is missing or equals the only supported value."""
        found = self.value(key, expected)
        if found != expected and str(found).lower() != str(expected).lower():
            raise CheckpointError(f"config.json: unsupported {key} {found!r}. Supported: {expected!r}.")

    def require_causal(self) -> None:
        """Raise CheckpointError if `is_causal` makes transformers use bidirectional masks, which is not supported."""
        if not self.flag("is_causal", True):
            raise CheckpointError("config.json: unsupported is_causal false. Supported: true.")

    def check_heads(self, hidden_size: str, heads: str) -> None:
        """Raise CheckpointError unless the hidden size is a multiple of the number of heads."""
        size, count = self.size(hidden_size), self.size(heads)
        if size % count:
            raise CheckpointError(f"config.json: {hidden_size} ({size}) is not a multiple of {heads} ({count}).")

    def reject_unknown(self) -> None:
        """Raise CheckpointError if an unread key may select a different architecture."""
        for key, value in self._values.items():
            if key in self._read or not value or HARMLESS.search(key) or not DECISIVE.search(key):
                continue
            raise CheckpointError(f"config.json: unknown key {key} ({value!r}), which may change the result.")


USUAL_KEYS: dict[str, Callable[[ConfigReader], Any]] = {
    "vocab_size": lambda config: config.size("vocab_size"),
    "hidden_size": lambda config: config.size("hidden_size"),
    "num_hidden_layers": lambda config: config.size("num_hidden_layers"),
    "num_attention_heads": lambda config: config.size("num_attention_heads"),
    "intermediate_size": lambda config: config.size("intermediate_size"),
    "max_position_embeddings": lambda config: config.size("max_position_embeddings"),
    "norm_eps": lambda config: config.number("layer_norm_eps", 1e-12),
    "hidden_act": lambda config: config.activation("hidden_act", "gelu"),
}
"""Fields of `EncoderConfig` that most families read from the same config.json key."""


def make_config(config: ConfigReader, *, rotary: RotaryConfig | None = None, **parts: Any) -> EncoderConfig:
    """Return an `EncoderConfig` from `parts`, with `USUAL_KEYS` for missing fields. Raises CheckpointError.

    `rotary` gives every layer the same rotary position embeddings instead of a position table.
    """
    values = {name: read(config) for name, read in USUAL_KEYS.items() if name not in parts} | parts
    if rotary is not None:
        values |= {"position_table": False, "layers": (LayerConfig(rotary=rotary),) * values["num_hidden_layers"]}
    try:
        return EncoderConfig(**values)
    except ValueError as error:
        raise CheckpointError(f"config.json: {error}. Correct it.") from None


SHARED_ROW_TOKENS = 512
"""Rows with more tokens contain a single sequence."""
ROTARY_KEYS = {"rope_type", "type", "rope_theta", "factor", "partial_rotary_factor", "original_max_position_embeddings"}
ROTARY_KINDS = ("default", "linear", "dynamic", "llama3")
LLAMA3_KEYS = {"low_freq_factor", "high_freq_factor"}


def read_rotary(config: ConfigReader, default_base: float, positions: int) -> RotaryConfig:
    """Return the rotary position embeddings of a model whose layers are all of one kind.

    Args:
        config: config.json, with `rope_parameters`, or `rope_theta` and `rope_scaling` in older files.
        default_base: transformers' default base for this family.
        positions: The length beyond which dynamic scaling applies.
    """
    base = config.number("rope_theta", default_base)
    scaling, parameters = config.mapping("rope_scaling"), config.mapping("rope_parameters")
    # transformers replaces all of `rope_parameters` with `rope_scaling`, including the base.
    path = "rope_scaling" if scaling else "rope_parameters"
    return rotary_from({"rope_theta": base, **(scaling or parameters)}, positions, path)


def check_scaled_length(length: int) -> int:
    """Return the length beyond which dynamic scaling applies. Raises CheckpointError if shorter sequences share rows.

    The scaling depends on the sequence length, but the encoder only knows the row length.
    """
    if length < SHARED_ROW_TOKENS:
        raise CheckpointError(f"config.json: dynamic scaling from {length} tokens on (minimum {SHARED_ROW_TOKENS}).")
    return length


def rotary_from(parameters: Mapping[str, Any], positions: int, path: str) -> RotaryConfig:
    """Return rotary position embeddings, of a type in `ROTARY_KINDS`.

    Args:
        parameters: The values of `path`, with the base as `rope_theta`.
        positions: The length beyond which dynamic scaling applies.
        path: The config.json key to name in errors.

    Raises:
        CheckpointError: unsupported type or key.
    """
    type_key = "type" if "type" in parameters and "rope_type" not in parameters else "rope_type"
    kind = parameters.get(type_key, "default")
    if kind not in ROTARY_KINDS:
        raise unsupported(f"config.json: {path}.{type_key}", kind, ROTARY_KINDS)
    if unknown := sorted(parameters.keys() - ROTARY_KEYS - (LLAMA3_KEYS if kind == "llama3" else set())):
        value = parameters[unknown[0]]
        raise CheckpointError(f"config.json: {path}.{unknown[0]}: unsupported ({value!r}). Use a model without it.")
    partial = parameters.get("partial_rotary_factor", 1.0)
    if partial != 1.0:
        raise unsupported(f"config.json: {path}.partial_rotary_factor", partial, (1.0,))
    reader = ConfigReader(parameters, path)
    base = reader.number("rope_theta")
    factor = 1.0 if kind == "default" else reader.number("factor")
    if kind == "dynamic":
        length = reader.size("original_max_position_embeddings", positions)
        return RotaryConfig(base, dynamic=(factor, check_scaled_length(length)))
    if kind == "llama3":
        low, high = reader.number("low_freq_factor"), reader.number("high_freq_factor")
        if low >= high:
            raise CheckpointError(f"config.json: {path}.low_freq_factor: not below high_freq_factor ({low}, {high}).")
        return RotaryConfig(base, factor, ramp=(low, high, reader.size("original_max_position_embeddings")))
    return RotaryConfig(base, divisor=factor)


def read_relative(config: ConfigReader, buckets_key: str, distance_key: str) -> RelativeConfig:
    """Return the buckets of a relative position bias. Raises CheckpointError."""
    buckets, distance = config.size(buckets_key, 32, least=4), config.size(distance_key, 128)
    if distance <= buckets // 4:
        raise CheckpointError(
            f"config.json: {distance_key}: not over a quarter of {buckets_key} ({distance}, {buckets})."
        )
    return RelativeConfig(buckets, distance)


LAYER_TYPES = ("full_attention", "sliding_attention")


def read_layer_types(config: ConfigReader, layers: int, is_sliding: Callable[[int], bool]) -> list[str]:
    """Return the type of each layer; without `layer_types`, `is_sliding(index)` decides.

    Raises:
        CheckpointError: not one known type per layer.
    """
    types: list[str] = config.value("layer_types", [LAYER_TYPES[is_sliding(index)] for index in range(layers)])
    if len(types) != layers or not set(types) <= {*LAYER_TYPES}:
        raise unsupported(f"config.json: layer_types of {layers} layers", types, LAYER_TYPES)
    return types


# Patterns of tensors that belong to task heads of language models and classifiers, and of buffers.
UNUSED = (
    r"^(pooler|cls|lm_head|classifier|pre_classifier|qa_outputs|discriminator_predictions|generator_predictions"
    r"|generator_lm_head|vocab_transform|vocab_layer_norm|vocab_projector|head|decoder|dense|score)\."
    r"|^embeddings\.(position_ids|token_type_ids)$|(^|\.)rotary_emb\.inv_freq$"
)
NO_HEAD = r"^(pooler|embeddings)\.|(^|\.)rotary_emb\."
"""Unused tensors of encoders without a head."""


TOKEN_CLASSIFIER = HeadLayout("classifier")
"""Token classifiers of most architectures."""
BERT_CLASSIFIER = ClassifierLayout(HeadLayout("classifier", "pooler.dense", "tanh"))
"""Classifiers of BERT, GTE and Nomic BERT."""
ROBERTA_CLASSIFIER = ClassifierLayout(HeadLayout("classifier.out_proj", "classifier.dense", "tanh"))
"""Classifiers of RoBERTa, MPNet and Jina."""
CAUSAL_CLASSIFIER = ClassifierLayout(HeadLayout("score", unbiased=("score",)), "last")
"""Classifiers of causal language models."""


@dataclass(frozen=True)
class Family:
    """The config keys and tensor names of one architecture.

    Attributes:
        name: `model_type` in config.json.
        read_config: Returns the configuration. It reads every key that can change the result.
        names: Checkpoint name for each module of `Encoder`. Names within a block are relative to the block.
        prefixes: Possible prefixes of all tensor names. Models with a head use the second one.
        renames: Patterns in the tensor names of other releases, and replacements.
        fused: Checkpoint modules that stack the rows of several modules of the same size, in this order.
        norm_offset: Added to norm weights: Gemma stores them minus 1.
        layers_keys: config.json keys that may contain the number of layers.
        layer_lists: config.json keys with one value per layer.
        first_position: Returns the number of unused rows at the start of the position table.
        unused: Pattern of tensors that embeddings do not need.
        classifier: The classifier, or a function that returns it for a configuration.
        token_classifier: The token classifier, or a function that returns it for a configuration.
        masked_lm: Returns the masked-LM head for a configuration; None for causal language models.
        code: Prefixes of the class names of published code that this family implements.
        code_keys: config.json keys that must be set, because the code's defaults differ from transformers'.
    """

    name: str
    read_config: Callable[[ConfigReader], EncoderConfig]
    names: Mapping[str, str]
    prefixes: tuple[str, ...] = ("",)
    renames: tuple[tuple[str, str], ...] = ()
    fused: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    norm_offset: float = 0.0
    layers_keys: tuple[str, ...] = ("num_hidden_layers",)
    layer_lists: tuple[str, ...] = ("layer_types",)
    first_position: Callable[[ConfigReader], int] = lambda config: 0
    unused: str = UNUSED
    classifier: ClassifierLayout | Callable[[ConfigReader], ClassifierLayout] = BERT_CLASSIFIER
    token_classifier: HeadLayout | Callable[[ConfigReader], HeadLayout] = TOKEN_CLASSIFIER
    masked_lm: Callable[[ConfigReader], VocabularyLayout] | None = None
    code: tuple[str, ...] = ()
    code_keys: tuple[str, ...] = ()

    def implements(self, name: str, config: Mapping[str, Any]) -> bool:
        """Return whether a class in published code, `file.Class`, computes the same as this family."""
        is_known = name.rpartition(".")[2].startswith(self.code)
        return is_known and all(key in config for key in self.code_keys)

    def published_name(self, name: str) -> str:
        """Return the family's name of a parameter of `Encoder`.

        Example: "blocks.3.attention.query.weight" -> "encoder.layer.3.attention.self.query.weight".
        """
        module, _, leaf = name.rpartition(".")
        if not module.startswith("blocks."):
            return f"{self.names[module]}.{leaf}"
        _, number, part = module.split(".", 2)
        return f"{self.names['blocks']}.{number}.{self.names[part]}.{leaf}"

    def split(self, name: str) -> list[str]:
        """Return the unprefixed names of the tensors whose rows a checkpoint tensor stacks, in order."""
        for pattern, replacement in self.renames:
            name = re.sub(pattern, replacement, name)
        module, _, leaf = name.rpartition(".")
        for fused, parts in self.fused.items():
            if module.endswith(fused):
                return [f"{module.removesuffix(fused)}{part}.{leaf}" for part in parts]
        return [name]

    @property
    def head_prefix(self) -> str:
        """The prefix that transformers uses for the encoder in models with a head."""
        return self.prefixes[:2][-1]

    def find_prefix(self, tensors: Mapping[str, Tensor]) -> str | None:
        """Return the prefix of a checkpoint's tensor names."""
        first = self.published_name("embeddings.word_embeddings.weight")
        for prefix in self.prefixes:
            if any(name.startswith(prefix) and self.split(name.removeprefix(prefix)) == [first] for name in tensors):
                return prefix
        return None

    def parts(self, tensors: Mapping[str, Tensor], prefix: str) -> Iterator[tuple[str, Tensor]]:
        """Yield a checkpoint's tensors by unprefixed name, with fused tensors split."""
        for name, tensor in tensors.items():
            names = self.split(name.removeprefix(prefix))
            yield from zip(names, tensor.chunk(len(names)), strict=True)

    def select_layers(self, config: Mapping[str, Any], indices: Sequence[int]) -> dict[str, Any]:
        """Return config.json for a model that keeps only the layers `indices`."""
        count = next((key for key in self.layers_keys if key in config), self.layers_keys[0])
        lists = {key: [config[key][index] for index in indices] for key in self.layer_lists if config.get(key)}
        return {**config, count: len(indices), **lists}

    def classifier_layout(self, config: Mapping[str, Any]) -> ClassifierLayout:
        """Return the classifier of a config.json. Raises CheckpointError."""
        layout = self.classifier
        return layout if isinstance(layout, ClassifierLayout) else layout(ConfigReader(config))

    def token_classifier_layout(self, config: Mapping[str, Any]) -> HeadLayout:
        """Return the token classifier of a config.json. Raises CheckpointError."""
        layout = self.token_classifier
        return layout if isinstance(layout, HeadLayout) else layout(ConfigReader(config))

    def is_head(self, name: str) -> bool:
        """Return whether a tensor, by its unprefixed name, belongs to a task head."""
        return self.is_unused(name) and re.search(NO_HEAD, name) is None

    def is_unused(self, name: str) -> bool:
        """Return whether a tensor, by its unprefixed name, is known to be unused."""
        return re.search(self.unused, name) is not None


def read_bert_head(config: ConfigReader) -> VocabularyLayout:
    transform = "cls.predictions.transform"
    layers = HeadLayout(
        None, f"{transform}.dense", config.activation("hidden_act", "gelu"), f"{transform}.LayerNorm",
        config.number("layer_norm_eps", 1e-12),
    )  # fmt: skip
    tied = config.flag("tie_word_embeddings", True)
    return VocabularyLayout(layers, "cls.predictions.decoder", tied, tied_bias="cls.predictions.bias")


def read_roberta_head(config: ConfigReader) -> VocabularyLayout:
    """Return RoBERTa's masked-LM head, also used by MPNet and Jina."""
    tied = config.flag("tie_word_embeddings", True)
    return VocabularyLayout(read_roberta_layers(config), "lm_head.decoder", tied, tied_bias="lm_head.bias")


def read_roberta_layers(config: ConfigReader) -> HeadLayout:
    """Return the layers of RoBERTa's head before the projection, also used by GTE."""
    return HeadLayout(None, "lm_head.dense", "gelu", "lm_head.layer_norm", config.number("layer_norm_eps", 1e-12))
