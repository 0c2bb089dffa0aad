"""A model family: how the published files of an architecture become an `EncoderConfig` and its weights."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from model.encoder import EncoderConfig
from model.families.config_reader import ConfigReader
from model.heads import ClassifierLayout, HeadLayout, VocabularyLayout

# Task heads of language-model and classifier checkpoints, and buffers.
UNUSED = (
    r"^(pooler|cls|lm_head|classifier|pre_classifier|qa_outputs|discriminator_predictions|generator_predictions"
    r"|generator_lm_head|vocab_transform|vocab_layer_norm|vocab_projector|head|decoder|dense|score)\."
    r"|^embeddings\.(position_ids|token_type_ids)$|(^|\.)rotary_emb\.inv_freq$"
)
NO_HEAD = r"^(pooler|embeddings)\.|(^|\.)rotary_emb\."
"""Unused tensors of encoders without a head."""


def _no_rows(config: ConfigReader) -> int:
    del config
    return 0


TOKEN_CLASSIFIER = HeadLayout("classifier")
"""Token classifiers of most architectures."""
BERT_CLASSIFIER = ClassifierLayout(HeadLayout("classifier", "pooler.dense", "tanh"))
"""Classifiers of BERT, GTE and Nomic BERT."""
ROBERTA_CLASSIFIER = ClassifierLayout(HeadLayout("classifier.out_proj", "classifier.dense", "tanh"))
"""Classifiers of RoBERTa, MPNet and Jina."""
CAUSAL_TOKEN_CLASSIFIER = HeadLayout("score")
CAUSAL_CLASSIFIER = ClassifierLayout(HeadLayout("score", unbiased=("score",)), "last")
"""Classifiers of causal language models."""


@dataclass(frozen=True)
class Family:
    """The config keys and tensor names of one architecture.

    Attributes:
        name: `model_type` in config.json.
        read_config: Returns the configuration. It reads every key that can change the result.
        names: The name in checkpoints of each module of `Encoder`. Names of parts of a block are relative to the block.
        prefixes: Possible prefixes of all tensor names. The second one is that of models with a head.
        renames: Patterns in tensor names of other releases, and their replacements.
        fused: Modules that contain the rows of several modules of the same size, in this order.
        norm_offset: Added to the weights of norms: Gemma stores them minus 1.
        layers_keys: Possible keys of the number of layers in config.json.
        layer_lists: Keys of config.json with one value per layer.
        first_position: Returns the number of unused rows at the start of the position table.
        unused: Pattern of tensors that embeddings do not need.
        classifier: The classifier, or a function that returns it for a configuration.
        token_classifier: The token classifier, or a function that returns it for a configuration.
        masked_lm: Returns the masked-LM head for a configuration; None for causal language models.
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
    first_position: Callable[[ConfigReader], int] = _no_rows
    unused: str = UNUSED
    classifier: ClassifierLayout | Callable[[ConfigReader], ClassifierLayout] = BERT_CLASSIFIER
    token_classifier: HeadLayout | Callable[[ConfigReader], HeadLayout] = TOKEN_CLASSIFIER
    masked_lm: Callable[[ConfigReader], VocabularyLayout] | None = None

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
        """Return the names, without prefix, of the tensors that a tensor of a checkpoint consists of.

        Its rows are theirs, one after the other.
        """
        for pattern, replacement in self.renames:
            name = re.sub(pattern, replacement, name)
        module, _, leaf = name.rpartition(".")
        for fused, parts in self.fused.items():
            if module.endswith(fused):
                return [f"{module.removesuffix(fused)}{part}.{leaf}" for part in parts]
        return [name]

    @property
    def head_prefix(self) -> str:
        """The prefix with which transformers saves the encoder of a model with a head."""
        return self.prefixes[:2][-1]

    def find_prefix(self, tensors: Mapping[str, Tensor]) -> str | None:
        """Return the prefix of the tensor names of a checkpoint."""
        first = self.published_name("embeddings.word_embeddings.weight")
        for prefix in self.prefixes:
            if any(name.startswith(prefix) and self.split(name.removeprefix(prefix)) == [first] for name in tensors):
                return prefix
        return None

    def parts(self, tensors: Mapping[str, Tensor], prefix: str) -> Iterator[tuple[str, Tensor]]:
        """Yield the tensors of a checkpoint by their names without prefix, fused ones in parts."""
        for name, tensor in tensors.items():
            names = self.split(name.removeprefix(prefix))
            yield from zip(names, tensor.chunk(len(names)), strict=True)

    def select_layers(self, config: Mapping[str, Any], indices: Sequence[int]) -> dict[str, Any]:
        """Return the config.json of a model with some layers of the one that `config` describes."""
        count = next((key for key in self.layers_keys if key in config), self.layers_keys[0])
        lists = {key: [config[key][index] for index in indices] for key in self.layer_lists if config.get(key)}
        return {**config, count: len(indices), **lists}

    def classifier_layout(self, config: Mapping[str, Any]) -> ClassifierLayout:
        """Return the classifier of a config.json. Raises CheckpointError."""
        return (
            self.classifier if isinstance(self.classifier, ClassifierLayout) else self.classifier(ConfigReader(config))
        )

    def token_classifier_layout(self, config: Mapping[str, Any]) -> HeadLayout:
        """Return the token classifier of a config.json. Raises CheckpointError."""
        layout = self.token_classifier
        return layout if isinstance(layout, HeadLayout) else layout(ConfigReader(config))

    def is_head(self, name: str) -> bool:
        """Return whether a tensor, by its name without prefix, belongs to a task head."""
        return self.is_unused(name) and re.search(NO_HEAD, name) is None

    def is_unused(self, name: str) -> bool:
        """Return whether a tensor, by its name without prefix, is known and not needed."""
        return re.search(self.unused, name) is not None
