"""Distillation: a student learns the embeddings of a teacher (Reimers and Gurevych 2020)."""

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from model.artifact import Artifact
from model.packing import BatchShape, pack_batch
from model.sentence_transformers_config import DenseLayer
from model.tokenized_input import TokenizerInput
from model.tokenizer import Tokenizer
from model.train.batches import Item, TrainingBatch, fill, pack
from model.train.config import TrainError
from model.train.embeddings import TextEncoder, pool

TEACHER_ROWS = 16
"""Rows of a batch of the teacher: enough to use all cores, and little memory."""


class Teacher:
    """An artifact that computes embeddings on the CPU."""

    def __init__(self, directory: Path) -> None:
        """Open the artifact. Raises ArtifactError, or TrainError if its pooling is unsupported."""
        artifact = Artifact.open(directory)
        self.manifest = artifact.manifest
        self.head = self.manifest.embedding
        if not self.head.include_prompt:
            raise TrainError("distillation.teacher: its pooling excludes the prompt, which is unsupported.")
        graph = self.manifest.graphs["fast"]
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        weights = [artifact.map_file(name) for name in graph.weights]
        options.add_external_initializers_from_files_in_memory([*graph.weights], weights, [*map(len, weights)])
        content = artifact.read(graph.file)
        self._session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
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
        """True if embeddings have length 1, or are compared by their cosine."""
        return self.head.normalize or self.head.similarity == "cosine"

    def embed(self, texts: Sequence[str]) -> Tensor:
        """Return the embeddings (N, dimensions) of N texts, in float32; of length 1 if `normalizes`."""
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
            vectors[[int(item.texts[0]) for item in chosen]] = self._finish(
                pool(hidden, ids, positions, self.head.pooling)
            )
        return F.normalize(vectors, dim=1) if self.normalizes else vectors

    def _finish(self, pooled: Tensor) -> Tensor:
        for layer in self._dense:
            pooled = F.linear(pooled, layer.weight, layer.bias)
            pooled = pooled.tanh() if layer.activation == "tanh" else pooled
        return pooled


class DistillationModel(nn.Module):
    """The squared distance between the embeddings of the student and of the teacher.

    Both have length 1 if the teacher's are compared by their cosine; the loss is then 2 - 2 cos.
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
    """Return a batch with its texts, for the teacher."""
    sequences = [ids for item in items for ids in item.sequences]
    texts = tuple(item.texts[0] for item in items)
    return TrainingBatch(pack(sequences, shape, starts), {}, texts, len(texts), sum(map(len, sequences)))
