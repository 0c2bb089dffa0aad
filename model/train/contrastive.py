"""Contrastive learning on pairs of a query and its positive, with the other documents of a batch as negatives."""

import random
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from model.packing import BatchShape
from model.train.batches import Item, TrainingBatch, pack
from model.train.config import TrainError
from model.train.embeddings import TextEncoder


class ContrastiveModel(nn.Module):
    """The cross-entropy of finding the positive of each query among all documents of the batch.

    InfoNCE (van den Oord et al. 2018) with in-batch negatives (Henderson et al. 2017). Scores are cosines divided by
    `temperature`. With Matryoshka dimensions (Kusupati et al. 2022), the loss is the mean over the complete vectors and
    their first components.
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

    Targets: `is_query` (N + M,), `positives` (N,), the document of each query, and `is_excluded` (N, M): documents that
    are not negatives of a query, because they are its text, or a positive of the same query elsewhere in the batch.
    Pairs with spans are compared by their spans: `span_ids` (R, T) are then 1 to N + M, and 0 outside of spans.
    """
    sequences = [ids for item in items for ids in item.sequences]
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
        if len(ranges) < len(sequences):
            raise TrainError("data: only some pairs have spans. Add spans to all pairs, or to none.")
        span_ids = torch.zeros(shape.tokens, dtype=torch.int64)
        for number, (start, (first, last)) in enumerate(zip(starts, ranges, strict=True), start=1):
            span_ids[start + first : start + last] = number
        targets["span_ids"] = span_ids.view(shape.rows, shape.length)
    return TrainingBatch(pack(sequences, shape, starts), targets, (), len(items), sum(map(len, sequences)))
