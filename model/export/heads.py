"""Export of heads: a small graph per head, over rows of hidden states."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from torch import Tensor, nn

from model.artifact.manifest import (
    ClassificationHead,
    GraphRecord,
    GraphReport,
    MaskedLMHead,
    MultiVectorHead,
    ParityRecord,
    SparseHead,
    TokenClassificationHead,
)
from model.artifact.tokenizer import Tokenizer, TokenizerInput
from model.checkpoint import Checkpoint
from model.encoder import Encoder
from model.export.graphs import GraphSignature, describe_graph, write_graph
from model.export.parity import TOLERANCE
from model.export.weights import WeightStore
from model.heads import MaskedLM, RowHead

OUTPUTS = {
    "classification": "logits",
    "token_classification": "logits",
    "masked_lm": "features",
    "masked_lm_layers": "features",
    "sparse": "features",
    "multi_vector": "vectors",
}
"""The output of each graph."""
WritableHead = ClassificationHead | TokenClassificationHead | MaskedLMHead | SparseHead | MultiVectorHead
TESTED_ROWS = (1, 2, 33)


@dataclass(frozen=True)
class WrittenHead:
    """The records of a head and of its graphs, by name; a projection alone has none."""

    head: WritableHead
    graphs: dict[str, GraphRecord]
    reports: dict[str, GraphReport]


class NormedHead(nn.Module):
    """The final norm of an encoder and the layers of a head, for the hidden states of earlier layers."""

    def __init__(self, norm: nn.Module, head: RowHead | None, hidden_size: int) -> None:
        super().__init__()
        self.norm = norm
        self.head = nn.Identity() if head is None else head
        self.in_features = hidden_size

    def forward(self, rows: Tensor) -> Tensor:
        """Return (N, E) for rows (N, D)."""
        features: Tensor = self.head(self.norm(rows))
        return features


def write_heads(root: Path, checkpoint: Checkpoint, store: WeightStore) -> Iterator[WrittenHead]:
    """Write the graphs of all heads of a checkpoint besides the embedding head; yield their records."""
    if (classifier := checkpoint.classifier) is not None:
        record = ClassificationHead(
            graph="classification",
            pooling=classifier.pooling,
            skipped_token_id=classifier.skipped_token_id,
            labels=classifier.labels,
            activation=classifier.activation,
            template=classifier.template,
            pair_activation=classifier.pair_activation,
        )
        yield _write(root, record, {record.graph: classifier.head})
    if (tokens := checkpoint.token_classifier) is not None:
        labels = TokenClassificationHead(graph="token_classification", labels=tokens.labels)
        yield _write(root, labels, {labels.graph: tokens.head})
    if checkpoint.masked_lm is not None:
        yield _write_masked_lm(root, checkpoint.masked_lm, checkpoint.encoder, store)
    if (sparse := checkpoint.sparse) is not None:
        special = special_ids(checkpoint.tokenizer)
        yield _write(
            root,
            SparseHead(
                graph=None if sparse.head is None else "sparse",
                decoder=store.find_optional(sparse.decoder),
                bias=store.find_optional(sparse.bias),
                pooling=sparse.pooling,
                activation=sparse.activation,
                # A linear head weights the tokens of the text; sentence-transformers keeps all entries of a projection.
                skipped_token_ids=special if sparse.decoder is None else (),
                query_weights=store.find_optional(without_frame(sparse.query_weights, checkpoint.tokenizer)),
                max_active=sparse.max_active,
                similarity=sparse.similarity,
            ),
            {} if sparse.head is None else {"sparse": sparse.head},
        )
    if (vectors := checkpoint.multi_vector) is not None:
        yield _write(
            root,
            MultiVectorHead(
                graph="multi_vector",
                dimensions=vectors.head.out_features,
                skips_first=vectors.skips_first,
                query=vectors.query,
                document=vectors.document,
                expansion=vectors.expansion,
                skipped_token_ids=vectors.skipped_token_ids,
                score=vectors.score,
            ),
            {"multi_vector": vectors.head},
        )


def without_frame(weights: Tensor | None, tokenizer: bytes) -> Tensor | None:
    """Return weights (V) with 0 for the tokens around each text, which a query with a table of weights lacks."""
    if weights is None:
        return None
    changed = weights.clone()
    frame = Tokenizer(tokenizer).encode([TokenizerInput("")])[0].input_ids
    changed[[number for number in frame if number < len(weights)]] = 0
    return changed


def special_ids(tokenizer: bytes) -> tuple[int, ...]:
    """Return the ids of the special tokens in a tokenizer.json."""
    added = json.loads(tokenizer).get("added_tokens") or ()
    return tuple(sorted(token["id"] for token in added if token.get("special")))


def _write_masked_lm(root: Path, masked: MaskedLM, encoder: Encoder, store: WeightStore) -> WrittenHead:
    layers, graphs = masked.head.layers, dict[str, RowHead | NormedHead]()
    if layers is not None:
        graphs["masked_lm"] = layers
    if not isinstance(encoder.norm, nn.Identity):
        graphs["masked_lm_layers"] = NormedHead(encoder.norm, layers, encoder.config.hidden_size)
    record = MaskedLMHead(
        graph=None if layers is None else "masked_lm",
        layer_graph="masked_lm_layers" if "masked_lm_layers" in graphs else None,
        decoder=store.find(masked.head.decoder),
        bias=store.find_optional(masked.head.bias),
        mask_token_id=masked.mask_token_id,
    )
    return _write(root, record, graphs)


def _write(root: Path, record: WritableHead, graphs: Mapping[str, RowHead | NormedHead]) -> WrittenHead:
    records, reports = {}, {}
    for name, head in graphs.items():
        path = root / f"{name}.onnx"
        reports[name] = GraphReport(parity=write_row_graph(head, path, OUTPUTS[name]))
        records[name] = describe_graph(path, None, "float32")
    return WrittenHead(record, records, reports)


def write_row_graph(head: RowHead | NormedHead, path: Path, output: str) -> ParityRecord:
    """Write a graph from `rows` (N, D) to `output` (N, K), with its weights; return the parity with torch."""
    rows = torch.randn(max(TESTED_ROWS), head.in_features, generator=torch.Generator().manual_seed(0))
    write_graph(head, path, None, GraphSignature({"rows": rows[:2]}, {"rows": {0: "N"}}, (output,)))
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    difference, largest = 0.0, 1.0
    for count in TESTED_ROWS:
        with torch.inference_mode():
            expected = head(rows[:count]).numpy()
        (computed,) = session.run(None, {"rows": rows[:count].numpy()})
        difference = float(np.maximum(difference, np.abs(computed - expected).max()))  # max() would lose a NaN
        largest = max(largest, float(np.abs(expected).max()))
    return ParityRecord(batches=len(TESTED_ROWS), max_abs_difference=difference, tolerance=TOLERANCE * largest)
