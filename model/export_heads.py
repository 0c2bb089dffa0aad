"""Export of heads: a small graph per head, over rows of hidden states."""

from pathlib import Path

import numpy as np
import onnxruntime
import torch

from model.heads import Classifier, RowHead
from model.manifest import ClassificationHead, GraphRecord
from model.measurements import GraphReport, ParityRecord
from model.onnx_graph import GraphSignature, describe_graph, write_graph
from model.parity import TOLERANCE

CLASSIFICATION = "classification"
"""The graph of a classifier: logits (N, C) of rows (N, D)."""
TESTED_ROWS = (1, 2, 33)


def write_classifier(root: Path, classifier: Classifier) -> tuple[ClassificationHead, GraphRecord, GraphReport]:
    """Write the graph of a classifier; return the records of the head, of the graph and of its parity."""
    path = root / f"{CLASSIFICATION}.onnx"
    parity = write_row_graph(classifier.head, path, "logits")
    head = ClassificationHead(
        graph=CLASSIFICATION,
        pooling=classifier.pooling,
        skipped_token_id=classifier.skipped_token_id,
        labels=classifier.labels,
        activation=classifier.activation,
    )
    return head, describe_graph(path, None, "float32"), GraphReport(parity=parity)


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
