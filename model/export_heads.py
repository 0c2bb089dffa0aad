"""Export of heads: a small graph per head, over rows of hidden states."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime
import torch

from model.checkpoint import Checkpoint
from model.export_records import WeightStore
from model.heads import RowHead
from model.manifest import ClassificationHead, GraphRecord, MultiVectorHead, SparseHead, TokenClassificationHead
from model.measurements import GraphReport, ParityRecord
from model.onnx_graph import GraphSignature, describe_graph, write_graph
from model.parity import TOLERANCE

OUTPUTS = {
    "classification": "logits",
    "token_classification": "logits",
    "sparse": "features",
    "multi_vector": "vectors",
}
"""The output of the graph of each type of head."""
WritableHead = ClassificationHead | TokenClassificationHead | SparseHead | MultiVectorHead
TESTED_ROWS = (1, 2, 33)


@dataclass(frozen=True)
class WrittenHead:
    """The records of a head, and of its graph, which has the name of the type; a projection alone has no graph."""

    head: WritableHead
    graph: GraphRecord | None
    report: GraphReport


def write_heads(root: Path, checkpoint: Checkpoint, store: WeightStore) -> Iterator[WrittenHead]:
    """Write the graphs of all heads of a checkpoint besides the embedding head; yield their records."""
    if (classifier := checkpoint.classifier) is not None:
        record = ClassificationHead(
            graph="classification",
            pooling=classifier.pooling,
            skipped_token_id=classifier.skipped_token_id,
            labels=classifier.labels,
            activation=classifier.activation,
        )
        yield _write(root, record, classifier.head)
    if (tokens := checkpoint.token_classifier) is not None:
        labels = TokenClassificationHead(graph="token_classification", labels=tokens.labels)
        yield _write(root, labels, tokens.head)
    if (sparse := checkpoint.sparse) is not None:
        yield _write(
            root,
            SparseHead(
                graph=None if sparse.head is None else "sparse",
                decoder=store.find_optional(sparse.decoder),
                bias=store.find_optional(sparse.bias),
                pooling=sparse.pooling,
                activation=sparse.activation,
                # A linear head weights the tokens of the text; sentence-transformers keeps all entries of a projection.
                skipped_token_ids=special_ids(checkpoint.tokenizer) if sparse.decoder is None else (),
            ),
            sparse.head,
        )
    if (vectors := checkpoint.multi_vector) is not None:
        yield _write(
            root,
            MultiVectorHead(
                graph="multi_vector", dimensions=vectors.head.out_features, skips_first=vectors.skips_first
            ),
            vectors.head,
        )


def special_ids(tokenizer: bytes) -> tuple[int, ...]:
    """Return the ids of the special tokens in a tokenizer.json."""
    added = json.loads(tokenizer).get("added_tokens") or ()
    return tuple(sorted(token["id"] for token in added if token.get("special")))


def _write(root: Path, record: WritableHead, head: RowHead | None) -> WrittenHead:
    if head is None:
        return WrittenHead(record, None, GraphReport(parity=ParityRecord(batches=0, max_abs_difference=0, tolerance=0)))
    path = root / f"{record.type}.onnx"
    parity = write_row_graph(head, path, OUTPUTS[record.type])
    return WrittenHead(record, describe_graph(path, None, "float32"), GraphReport(parity=parity))


def write_row_graph(head: RowHead, path: Path, output: str) -> ParityRecord:
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
