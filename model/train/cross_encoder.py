"""A cross-encoder: one logit per pair of texts, learned from labels (Nogueira and Cho 2019)."""

import random
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from model.checkpoint import Checkpoint
from model.encoder import Encoder
from model.families import FAMILIES
from model.families.family import Family
from model.head_records import ClassifierPooling
from model.heads import RowHead, empty_head
from model.heads.classifier import ARCHITECTURE
from model.packing import BatchShape
from model.train.batches import Item, TrainingBatch, pack
from model.train.embeddings import pool
from model.train.network import initialize


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
    """Return a cross-encoder with the classifier of the checkpoint, or a new one unless that has one logit."""
    if checkpoint is None:
        layout = FAMILIES["bert"].classifier_layout({})
        return CrossEncoder(encoder, empty_head(layout.layers, encoder.config.hidden_size, 1), layout.pooling, None)
    old = checkpoint.classifier
    if old is not None and len(old.labels) == 1:
        return CrossEncoder(encoder, old.head, old.pooling, old.skipped_token_id)
    layout = checkpoint.family.classifier_layout(checkpoint.config)
    head = empty_head(layout.layers, encoder.config.hidden_size, 1)
    initialize(head, encoder.config.hidden_size, seed)
    return CrossEncoder(encoder, head, layout.pooling, layout.skipped_token_id(checkpoint.config))


def collate_labeled_pairs(
    items: Sequence[Item], shape: BatchShape, starts: Sequence[int], draw: random.Random
) -> TrainingBatch:
    """Return a batch of N pairs with the target `labels` (N,), float32."""
    sequences = [ids for item in items for ids in item.sequences]
    types = [type_ids for item in items for type_ids in item.token_type_ids]
    targets = {"labels": torch.tensor([item.label for item in items])}
    inputs = pack(sequences, shape, starts, types)
    return TrainingBatch(inputs, targets, (), len(items), sum(map(len, sequences)))


def publish_classifier(
    network: CrossEncoder, family: Family, config: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return config.json and the weights of a cross-encoder.

    `config` and `tensors` are those of its encoder. The key `sentence_transformers` names the activation, as in the
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
