"""The objective of a run: the network and its loss, and how examples become batches."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from model.checkpoint import Checkpoint
from model.encoder import Encoder
from model.manifest import Role
from model.prompts import resolve_roles
from model.sentence_transformers_config import DenseLayer, EmbeddingConfig
from model.tokenizer import Tokenizer
from model.train.batches import Collate
from model.train.config import ContrastiveOptions, MaskingOptions, TrainConfig, TrainError
from model.train.contrastive import ContrastiveModel, collate_pairs
from model.train.corpus import Example, Reader, read_labeled_pairs, read_pairs, read_texts
from model.train.cross_encoder import collate_labeled_pairs, make_cross_encoder
from model.train.distillation import DistillationModel, Teacher, collate_texts
from model.train.embeddings import TextEncoder
from model.train.language_modeling import LanguageModel, Masking, predict_next
from model.train.network import initialize, keep_blocks, make_encoder, set_sinusoidal_positions


@dataclass(frozen=True)
class Objective:
    """`network` returns the summed loss of a TrainingBatch that `collate` made. `unit` is the loss's unit."""

    name: str
    unit: str
    network: nn.Module
    encoder: Encoder
    read: Reader
    collate: Collate
    prompts: tuple[str, str] = ("", "")
    teacher: str | None = None

    @property
    def is_language_model(self) -> bool:
        """True if the exponential of the loss is a perplexity."""
        return isinstance(self.network, LanguageModel)

    @property
    def dense(self) -> tuple[DenseLayer, ...]:
        """The dense layers after pooling, with their present weights."""
        text_encoder = getattr(self.network, "text_encoder", None)
        return text_encoder.dense_layers() if isinstance(text_encoder, TextEncoder) else ()


def make_objective(config: TrainConfig, tokenizer: Tokenizer, checkpoint: Checkpoint | None) -> Objective:
    """Return the objective of a configuration, whose network depends on the configuration alone.

    Args:
        config: the configuration.
        tokenizer: the tokenizer of the model.
        checkpoint: the model `init`, whose encoder is trained; None for a new encoder.

    Raises:
        TrainError: an option is invalid for the model.
        ArtifactError: the artifact of the teacher is invalid.
    """
    embedding = EmbeddingConfig() if checkpoint is None else checkpoint.embedding_config
    encoder, read = _find_encoder(config, tokenizer, checkpoint), make_reader(config)
    text_encoder = TextEncoder(encoder, embedding.pooling, embedding.dense)
    if config.contrastive is not None:
        objective = _contrastive(config.contrastive, text_encoder, embedding, read)
    elif config.cross_encoder is not None:
        network = make_cross_encoder(encoder, checkpoint, config.run.seed)
        objective = Objective(
            "training as a cross-encoder", "nats per pair", network, encoder, read, collate_labeled_pairs
        )
    elif config.distillation is not None:
        teacher = Teacher(config.distillation.teacher)
        _match_dimensions(text_encoder, teacher.head.dimensions, config.run.seed)
        objective = _distillation(text_encoder, embedding, teacher, read)
    else:
        objective = _language_modeling(config.masking, encoder, read)
    if checkpoint is None:
        initialize(objective.network, config.model.hidden_size, config.run.seed)
        if config.model.positions == "sinusoidal":
            set_sinusoidal_positions(encoder)
    return objective


def _find_encoder(config: TrainConfig, tokenizer: Tokenizer, checkpoint: Checkpoint | None) -> Encoder:
    """Return a new encoder, or the blocks of the checkpoint's encoder that the configuration keeps."""
    if checkpoint is None:
        return make_encoder(config.model, tokenizer.vocab_size)
    _check_init(config, checkpoint)
    if config.model.init_blocks:
        keep_blocks(checkpoint, config.model.init_blocks)
    return checkpoint.encoder.train()


def _contrastive(
    options: ContrastiveOptions, text_encoder: TextEncoder, embedding: EmbeddingConfig, read: Reader
) -> Objective:
    dimensions = options.matryoshka_dimensions
    if dimensions and max(dimensions) >= text_encoder.dimensions:
        raise TrainError(
            f"contrastive.matryoshka_dimensions: not less than the size of an embedding ({max(dimensions)}, "
            f"{text_encoder.dimensions}). Remove it: the loss includes the complete embedding."
        )
    network = ContrastiveModel(text_encoder, options.temperature, dimensions)
    return Objective(
        "contrastive learning", "nats per query", network, text_encoder.encoder, read, collate_pairs,
        (_prompt(embedding, "query"), _prompt(embedding, "document")),
    )  # fmt: skip


def _distillation(text_encoder: TextEncoder, embedding: EmbeddingConfig, teacher: Teacher, read: Reader) -> Objective:
    prompt = _prompt(embedding, None)
    return Objective(
        "distillation", "squared distance per text", DistillationModel(text_encoder, teacher), text_encoder.encoder,
        read, collate_texts, (prompt, prompt), teacher.manifest.name,
    )  # fmt: skip


def _language_modeling(options: MaskingOptions, encoder: Encoder, read: Reader) -> Objective:
    network = LanguageModel(encoder)
    if encoder.config.causal:
        return Objective("causal language modeling", "nats per token", network, encoder, read, predict_next)
    masking = Masking(options, encoder.config.vocab_size)
    return Objective("masked language modeling", "nats per masked token", network, encoder, read, masking)


def _check_init(config: TrainConfig, checkpoint: Checkpoint) -> None:
    if checkpoint.tasks:
        raise TrainError(
            f"model.init: has adapters of tasks ({', '.join(checkpoint.tasks)}), which training does not support. "
            "Start from a model without adapters."
        )
    if not checkpoint.embedding_config.include_prompt:
        raise TrainError("model.init: its pooling excludes the prompt, which training does not support.")
    if config.model.max_input_tokens > checkpoint.max_input_tokens:
        raise TrainError(
            f"model.max_input_tokens: more than model.init supports ({config.model.max_input_tokens}, limit "
            f"{checkpoint.max_input_tokens}). Reduce it."
        )
    lengths = [
        layer.rotary.dynamic[1] for layer in checkpoint.encoder.config.layers if layer.rotary and layer.rotary.dynamic
    ]
    if lengths and config.model.max_input_tokens > min(lengths):
        # The scaling depends on the length of a sequence, and rows of training hold several.
        raise TrainError(
            f"model.max_input_tokens: rotary positions of model.init are scaled beyond {min(lengths)} tokens, which "
            f"training does not support ({config.model.max_input_tokens}). Reduce it."
        )


def _match_dimensions(text_encoder: TextEncoder, dimensions: int, seed: int) -> None:
    """Append a dense layer if the student's embeddings have another size than the teacher's."""
    if text_encoder.dimensions != dimensions:
        layer = nn.Linear(text_encoder.dimensions, dimensions)
        initialize(layer, text_encoder.dimensions, seed)
        text_encoder.dense.append(layer)


def _prompt(embedding: EmbeddingConfig, role: Role | None) -> str:
    default = embedding.default_prompt_name
    name = default if role is None else resolve_roles(embedding.prompts).get(role)
    return "" if name is None else embedding.prompts[name]


def make_reader(config: TrainConfig) -> Reader:
    """Return the function that reads the examples of a file: pairs, labeled pairs for a cross-encoder, or texts."""
    if config.contrastive is not None:
        return read_pairs
    if config.cross_encoder is not None:
        return read_labeled_pairs

    def read(path: Path) -> Iterator[Example]:
        return (Example((text,)) for text in read_texts(path, config.data.field))

    return read
