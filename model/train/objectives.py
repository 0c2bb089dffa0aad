"""The objectives of a run: language modeling, contrastive learning, cross-encoders and distillation."""

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from model.artifact.files import Artifact
from model.artifact.manifest import ClassifierPooling, Role
from model.artifact.packing import BatchShape, pack_batch
from model.artifact.tokenizer import Tokenizer, TokenizerInput
from model.checkpoint import Checkpoint
from model.encoder import Encoder
from model.export.graphs import open_session
from model.families import FAMILIES
from model.families.family import Family
from model.heads.classifiers import ARCHITECTURE
from model.heads.row_head import RowHead, empty_head
from model.source.sentence_transformers import DenseLayer, EmbeddingConfig, resolve_roles
from model.train.config import MaskingOptions, TrainConfig, TrainError
from model.train.data import (
    Collate,
    Example,
    Item,
    Reader,
    TrainingBatch,
    fill,
    pack,
    read_labeled_pairs,
    read_pairs,
    read_texts,
)
from model.train.network import TextEncoder, initialize, keep_blocks, make_encoder, pool, set_sinusoidal_positions
from model.train.tokenizers import MASK, SPECIAL_TOKENS

IGNORED = -100


class LanguageModel(nn.Module):
    """BERT's language model (Devlin et al. 2019). The output layer shares the token embedding table."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        config = encoder.config
        self.encoder = encoder
        self.transform = nn.Linear(config.hidden_size, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.norm_eps)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(self, batch: TrainingBatch) -> Tensor:
        """Return the sum of the cross-entropy of the predicted tokens, in nats."""
        labels = batch.targets["labels"]
        hidden = self.encoder(**batch.inputs)  # (R, T, D)
        is_target = labels != IGNORED
        targets = self.norm(F.gelu(self.transform(hidden[is_target])))  # (N, D), predicted tokens only
        logits = F.linear(targets, self.encoder.embeddings.word_embeddings.weight, self.bias)  # (N, V)
        return F.cross_entropy(logits.float(), labels[is_target], reduction="sum")


@dataclass(frozen=True)
class Masking:
    """Selection of the tokens to predict (Devlin et al. 2019, section 3.1).

    A selected token becomes [MASK] or a random token with the probabilities of `options`, or is left unchanged. At
    least one token per sequence is selected.
    """

    options: MaskingOptions
    vocab_size: int

    def __call__(
        self, items: Sequence[Item], shape: BatchShape, starts: Sequence[int], draw: random.Random
    ) -> TrainingBatch:
        """Return a batch with masked tokens. `labels` (R, T) are their original ids, and IGNORED elsewhere."""
        pairs = [self.mask(ids, draw) for item in items for ids in item.sequences]
        return _labeled([ids for ids, _ in pairs], [labels for _, labels in pairs], shape, starts)

    def mask(self, ids: Sequence[int], draw: random.Random) -> tuple[list[int], list[int]]:
        """Return the masked ids and the labels of one sequence."""
        masked, labels = list(ids), [IGNORED] * len(ids)
        content = [index for index, token in enumerate(ids) if token >= len(SPECIAL_TOKENS)]
        selected = [index for index in content if draw.random() < self.options.probability]
        for index in selected or draw.sample(content, min(1, len(content))):
            labels[index] = ids[index]
            kind = draw.random()
            if kind < self.options.mask_share:
                masked[index] = SPECIAL_TOKENS.index(MASK)
            elif kind < self.options.mask_share + self.options.random_share:
                masked[index] = draw.randrange(len(SPECIAL_TOKENS), self.vocab_size)
        return masked, labels


def predict_next(items: Sequence[Item], shape: BatchShape, starts: Sequence[int], draw: random.Random) -> TrainingBatch:
    """Return a batch whose `labels` (R, T) are the ids of the next tokens; IGNORED at the last token."""
    sequences = [ids for item in items for ids in item.sequences]
    return _labeled(sequences, [[*ids[1:], IGNORED] for ids in sequences], shape, starts)


def _labeled(
    sequences: Sequence[list[int]], labels: Sequence[list[int]], shape: BatchShape, starts: Sequence[int]
) -> TrainingBatch:
    placed = torch.full((shape.tokens,), IGNORED, dtype=torch.int64)
    for row, start in zip(labels, starts, strict=True):
        placed[start : start + len(row)] = torch.tensor(row)
    targets = {"labels": placed.view(shape.rows, shape.length)}
    count = int((placed != IGNORED).sum())
    return TrainingBatch(pack(sequences, shape, starts), targets, (), count, sum(map(len, sequences)))


class ContrastiveModel(nn.Module):
    """The cross-entropy of finding the positive of each query among all documents of the batch.

    InfoNCE (van den Oord et al. 2018) with in-batch negatives (Henderson et al. 2017). Scores are cosines divided by
    `temperature`. With Matryoshka dimensions (Kusupati et al. 2022), the loss is the mean over full and truncated
    vectors.
    """

    def __init__(self, text_encoder: TextEncoder, temperature: float, dimensions: Sequence[int]) -> None:
        super().__init__()
        self.text_encoder = text_encoder
        self._temperature = temperature
        self._dimensions = tuple(dimensions)

    def forward(self, batch: TrainingBatch) -> Tensor:
        """Return the sum of the losses of the N queries, in nats."""
        spans = batch.targets.get("span_ids")
        vectors = (
            self.text_encoder(batch.inputs) if spans is None else self.text_encoder.embed_spans(batch.inputs, spans)
        )
        is_query = batch.targets["is_query"]
        queries, documents = vectors[is_query], vectors[~is_query]  # (N, D), (M, D)
        sizes = (*self._dimensions, vectors.shape[1])
        losses = [self._loss(queries[:, :size], documents[:, :size], batch) for size in sizes]
        return torch.stack(losses).mean()

    def _loss(self, queries: Tensor, documents: Tensor, batch: TrainingBatch) -> Tensor:
        scores = F.normalize(queries, dim=1) @ F.normalize(documents, dim=1).T / self._temperature  # (N, M)
        scores = scores.masked_fill(batch.targets["is_excluded"], -torch.inf)
        return F.cross_entropy(scores, batch.targets["positives"], reduction="sum")


def collate_pairs(
    items: Sequence[Item], shape: BatchShape, starts: Sequence[int], draw: random.Random
) -> TrainingBatch:
    """Return a batch of N queries and M documents, the positives and all negatives.

    Targets: `is_query` (N + M,); `positives` (N,), each query's document; and `is_excluded` (N, M), documents that are
    not negatives of a query, because they equal its text or are a positive of the same query elsewhere in the batch.
    Pairs with spans are compared by their spans: `span_ids` (R, T) are then 1 to N + M, and 0 outside of spans.
    """
    queries = [item.texts[0] for item in items]
    documents = [text for item in items for text in item.texts[1:]]
    positives, position = [], 0
    relevant: dict[str, set[str]] = {}
    for item in items:
        positives.append(position)
        position += len(item.texts) - 1
        relevant.setdefault(item.texts[0], {item.texts[0]}).add(item.texts[1])
    is_excluded = torch.tensor([[document in relevant[query] for document in documents] for query in queries])
    is_excluded[torch.arange(len(items)), positives] = False
    targets = {
        "is_query": torch.tensor([index == 0 for item in items for index in range(len(item.texts))]),
        "positives": torch.tensor(positives),
        "is_excluded": is_excluded,
    }
    ranges = [token_range for item in items for token_range in item.ranges]
    if ranges:
        if len(ranges) < len(starts):
            raise TrainError("data: only some pairs have spans. Add spans to all pairs, or to none.")
        span_ids = torch.zeros(shape.tokens, dtype=torch.int64)
        for number, (start, (first, last)) in enumerate(zip(starts, ranges, strict=True), start=1):
            span_ids[start + first : start + last] = number
        targets["span_ids"] = span_ids.view(shape.rows, shape.length)
    return TrainingBatch.from_items(items, shape, starts, targets)


class CrossEncoder(nn.Module):
    """An encoder with the classifier of its family, and the binary cross-entropy of its logits.

    The sigmoid of a logit is the relevance of the document to the query, 0 to 1.
    """

    def __init__(
        self, encoder: Encoder, head: RowHead, pooling: ClassifierPooling, skipped_token_id: int | None
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = head
        self._pooling = pooling
        self._skipped_token_id = skipped_token_id

    def forward(self, batch: TrainingBatch) -> Tensor:
        """Return the sum of the losses of the N pairs, in nats."""
        logits = self.logits(batch.inputs)
        return F.binary_cross_entropy_with_logits(logits, batch.targets["labels"], reduction="sum")

    def logits(self, inputs: dict[str, Tensor]) -> Tensor:
        """Return the float32 logits (N,) of the N sequences of a packed batch, in the order of their ids."""
        if self.encoder.config.type_vocab_size < 2:
            inputs = inputs | {"token_type_ids": torch.zeros_like(inputs["token_type_ids"])}
        hidden, ids, positions = self.encoder(**inputs), inputs["sequence_ids"], inputs["position_ids"]
        if self._pooling == "mean_logits":
            return pool(self.head(hidden), ids, positions, "mean").squeeze(1)
        if self._skipped_token_id is not None:
            ids = ids.masked_fill(inputs["input_ids"] == self._skipped_token_id, 0)
        logits: Tensor = self.head(pool(hidden, ids, positions, self._pooling)).squeeze(1)
        return logits.float()


def make_cross_encoder(encoder: Encoder, checkpoint: Checkpoint | None, seed: int) -> CrossEncoder:
    """Return a cross-encoder with the checkpoint's classifier if that has one logit, else with a new one."""
    if checkpoint is None:
        layout = FAMILIES["bert"].classifier_layout({})
        return CrossEncoder(encoder, empty_head(layout.layers, encoder.config.hidden_size, 1), layout.pooling, None)
    old = checkpoint.classifier
    if old is not None and len(old.record.labels) == 1:
        return CrossEncoder(encoder, old.head, old.record.pooling, old.record.skipped_token_id)
    layout = checkpoint.family.classifier_layout(checkpoint.config)
    head = empty_head(layout.layers, encoder.config.hidden_size, 1)
    initialize(head, encoder.config.hidden_size, seed)
    return CrossEncoder(encoder, head, layout.pooling, layout.skipped_token_id(checkpoint.config))


def collate_labeled_pairs(
    items: Sequence[Item], shape: BatchShape, starts: Sequence[int], draw: random.Random
) -> TrainingBatch:
    """Return a batch of N pairs with the target `labels` (N,), float32."""
    targets = {"labels": torch.tensor([item.label for item in items])}
    return TrainingBatch.from_items(items, shape, starts, targets)


def publish_classifier(
    network: CrossEncoder, family: Family, config: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return config.json and the weights of a cross-encoder.

    `config` and `tensors` describe its encoder. The key `sentence_transformers` names the activation, as in the
    files of sentence-transformers' CrossEncoder.
    """
    layers, state = family.classifier_layout(config).layers, network.head.state_dict()
    names = {"dense": layers.dense, "norm": layers.norm, "output": layers.output}
    head = {f"{names[part]}.{leaf}": state[f"{part}.{leaf}"] for part, _, leaf in (key.partition(".") for key in state)}
    own = family.find_prefix(tensors)
    assert own is not None
    encoder = {name.removeprefix(own): tensor for name, tensor in tensors.items()}
    inner = {name: tensor for name, tensor in encoder.items() if not name.startswith("pooler.")}
    inner |= {name: tensor for name, tensor in head.items() if name.startswith("pooler.")}
    outer = {name: tensor for name, tensor in head.items() if name not in inner}
    architecture = (config.get("architectures") or [family.name.title()])[0]
    replaced = ("problem_type", "num_labels", "sbert_ce_default_activation_function")
    values = {key: value for key, value in config.items() if key not in replaced} | {
        "architectures": [re.sub(r"(For\w+|LMHeadModel|Model)$", "", architecture) + ARCHITECTURE],
        "id2label": {"0": "LABEL_0"},
        "label2id": {"LABEL_0": 0},
        "sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"},
    }
    prefix = own or family.head_prefix
    return values, {f"{prefix}{name}": tensor for name, tensor in inner.items()} | outer


TEACHER_ROWS = 16
"""Rows per teacher batch: enough to use all cores with little memory."""


class Teacher:
    """An artifact that computes embeddings on the CPU."""

    def __init__(self, directory: Path) -> None:
        """Open the artifact. Raises ArtifactError, or TrainError if its pooling is unsupported."""
        artifact = Artifact.open(directory)
        self.manifest = artifact.manifest
        self.head = self.manifest.embedding
        if not self.head.include_prompt:
            raise TrainError("distillation.teacher: its pooling excludes the prompt, which is unsupported.")
        graph = self.manifest.graphs[self.manifest.main_graph]
        options = onnxruntime.SessionOptions()
        weights = [artifact.map_file(name) for name in graph.weights]
        options.add_external_initializers_from_files_in_memory([*graph.weights], weights, [*map(len, weights)])
        self._session = open_session(artifact.read(graph.file), options)
        self._tokenizer = Tokenizer(artifact.read("tokenizer.json"))
        name = self.manifest.default_prompt_name
        self._prompt = "" if name is None else self.manifest.prompts[name]
        self._dense = [
            DenseLayer(
                torch.from_numpy(np.array(artifact.map(record.weight)[:])),
                None if record.bias is None else torch.from_numpy(np.array(artifact.map(record.bias)[:])),
                record.activation,
            )
            for record in self.head.dense
        ]

    @property
    def normalizes(self) -> bool:
        """True if embeddings are normalized, or compared by their cosine."""
        return self.head.normalize or self.head.similarity == "cosine"

    def embed(self, texts: Sequence[str]) -> Tensor:
        """Return the float32 embeddings (N, dimensions) of N texts, normalized if `normalizes`."""
        limit = self.manifest.max_input_tokens
        tokenized = self._tokenizer.encode([TokenizerInput(text, prompt=self._prompt) for text in texts])
        items = [Item([tokens.truncate(limit, "right").input_ids], (str(n),)) for n, tokens in enumerate(tokenized)]
        shape = BatchShape(TEACHER_ROWS, max(item.tokens for item in items))
        vectors = torch.empty(len(texts), self.head.dimensions)
        rest: list[Item] = sorted(items, key=lambda item: -item.tokens)
        while rest:
            chosen, starts, rest = fill(rest, shape)
            packed = pack_batch([(item.sequences[0], None) for item in chosen], shape, starts)
            hidden = torch.from_numpy(self._session.run(None, packed.inputs)[0])
            ids, positions = (torch.from_numpy(packed.inputs[name]) for name in ("sequence_ids", "position_ids"))
            pooled = pool(hidden, ids, positions, self.head.pooling)
            for layer in self._dense:
                pooled = layer(pooled)
            vectors[[int(item.texts[0]) for item in chosen]] = pooled
        return F.normalize(vectors, dim=1) if self.normalizes else vectors


class DistillationModel(nn.Module):
    """The squared distance between the student's and the teacher's embeddings.

    If the teacher's embeddings are compared by cosine, both are normalized, and the loss is 2 - 2 cos.
    """

    def __init__(self, text_encoder: TextEncoder, teacher: Teacher) -> None:
        super().__init__()
        self.text_encoder = text_encoder
        self._teacher = teacher

    def forward(self, batch: TrainingBatch) -> Tensor:
        """Return the sum of the squared distances of the texts."""
        vectors = self.text_encoder(batch.inputs)
        expected = self._teacher.embed(batch.texts).to(vectors.device)
        if self._teacher.normalizes:
            vectors = F.normalize(vectors, dim=1)
        loss: Tensor = (vectors - expected).square().sum()
        return loss


def collate_texts(
    items: Sequence[Item], shape: BatchShape, starts: Sequence[int], draw: random.Random
) -> TrainingBatch:
    return TrainingBatch.from_items(items, shape, starts, {}, tuple(item.texts[0] for item in items))


@dataclass(frozen=True)
class Objective:
    """`network` returns the summed loss of a TrainingBatch built by `collate`. `unit` is the unit of the loss."""

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
        """The dense layers after pooling, with their current weights."""
        text_encoder = getattr(self.network, "text_encoder", None)
        return text_encoder.dense_layers() if isinstance(text_encoder, TextEncoder) else ()


def make_objective(config: TrainConfig, tokenizer: Tokenizer, checkpoint: Checkpoint | None) -> Objective:
    """Create the objective of a configuration. The network depends only on the arguments.

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
        dimensions = config.contrastive.matryoshka_dimensions
        if dimensions and max(dimensions) >= (size := text_encoder.dimensions):
            raise TrainError(f"contrastive.matryoshka_dimensions: {max(dimensions)}, limit {size - 1}.")
        contrastive = ContrastiveModel(text_encoder, config.contrastive.temperature, dimensions)
        prompts = _prompt(embedding, "query"), _prompt(embedding, "document")
        objective = Objective(
            "contrastive learning", "nats per query", contrastive, encoder, read, collate_pairs, prompts
        )
    elif config.cross_encoder is not None:
        cross_encoder = make_cross_encoder(encoder, checkpoint, config.run.seed)
        name = "training as a cross-encoder"
        objective = Objective(name, "nats per pair", cross_encoder, encoder, read, collate_labeled_pairs)
    elif config.distillation is not None:
        teacher = Teacher(config.distillation.teacher)
        if text_encoder.dimensions != teacher.head.dimensions:
            layer = nn.Linear(text_encoder.dimensions, teacher.head.dimensions)
            initialize(layer, text_encoder.dimensions, config.run.seed)
            text_encoder.dense.append(layer)
        student, unit = DistillationModel(text_encoder, teacher), "squared distance per text"
        prompts = (_prompt(embedding, None),) * 2
        name = teacher.manifest.name
        objective = Objective("distillation", unit, student, encoder, read, collate_texts, prompts, name)
    elif encoder.config.causal:
        network = LanguageModel(encoder)
        objective = Objective("causal language modeling", "nats per token", network, encoder, read, predict_next)
    else:
        network, masking = LanguageModel(encoder), Masking(config.masking, encoder.config.vocab_size)
        objective = Objective("masked language modeling", "nats per masked token", network, encoder, read, masking)
    if checkpoint is None:
        initialize(objective.network, config.model.hidden_size, config.run.seed)
        if config.model.positions == "sinusoidal":
            set_sinusoidal_positions(encoder)
    return objective


def _find_encoder(config: TrainConfig, tokenizer: Tokenizer, checkpoint: Checkpoint | None) -> Encoder:
    """Return a new encoder, or the checkpoint's encoder with the blocks that the configuration keeps."""
    if checkpoint is None:
        return make_encoder(config.model, tokenizer.vocab_size)
    _check_init(config, checkpoint)
    if config.model.init_blocks:
        keep_blocks(checkpoint, config.model.init_blocks)
    return checkpoint.encoder.train()


def _check_init(config: TrainConfig, checkpoint: Checkpoint) -> None:
    if checkpoint.tasks:
        raise TrainError("model.init: has adapters of tasks, which training does not support.")
    if not checkpoint.embedding_config.include_prompt:
        raise TrainError("model.init: its pooling excludes the prompt, which training does not support.")
    if config.model.max_input_tokens > checkpoint.max_input_tokens:
        raise TrainError(f"model.max_input_tokens: model.init supports {checkpoint.max_input_tokens}. Reduce it.")
    lengths = [
        layer.rotary.dynamic[1] for layer in checkpoint.encoder.config.layers if layer.rotary and layer.rotary.dynamic
    ]
    if lengths and config.model.max_input_tokens > min(lengths):
        # The scaling depends on the sequence length, but training rows contain several sequences.
        raise TrainError(
            f"model.max_input_tokens: model.init scales positions beyond {min(lengths)} tokens. Reduce it."
        )


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
