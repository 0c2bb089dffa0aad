"""The graph for CPUs without bfloat16 units: linear maps in int8, as far as accuracy allows.

Static: the range of what goes into a map is found once, over calibration texts, so that a text's vector depends on
no other text (onnxruntime's dynamic quantisation takes the range of the row it runs). The sum that a map gives stays
in float32; rounding that too cost five times the accuracy and saved nothing (CHANGELOG.md).
"""

import hashlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir
import onnxruntime
from numpy.typing import NDArray
from onnx import numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantType, quant_pre_process, quantize_static
from torch import nn

from model.accuracy import AccuracyError, Measure, as_tokens, keep_fewest, pool_texts
from model.artifact import AccuracyRecord, GraphRecord
from model.checkpoint import Checkpoint
from model.encoder import Encoder
from model.graphs import save_graph
from model.parity import Row, compare, pack
from model.tokenizer import Tokenizer

SOURCE, GRAPH, WEIGHTS = "fast.onnx", "int8.onnx", "int8.bin"
INPUTS, OUTPUTS = ("ids", "positions", "types", "segments"), ("hidden",)
LEAST_COSINE = 0.99
CALIBRATION_ROWS = 32
"""Of the texts that accuracy is measured over; the others are strangers to it."""
TOLERANCE = 0.5
"""Largest difference of a token's vector, as in parity.py; only a broken graph reaches it, the cosine is the bar."""

Progress = Callable[[str], None]


def write_int8(root: Path, checkpoint: Checkpoint, texts: Sequence[str], progress: Progress) -> GraphRecord:
    """Write the graph and its weights to `root`, made of the float32 graph there; choose its maps over `texts`.

    Raises `AccuracyError` when not one map can be int8.
    """
    encoder, pooling = checkpoint.encoder, checkpoint.text_vector.pooling
    tokens = as_tokens(texts, Tokenizer(checkpoint.tokenizer), checkpoint.max_tokens, encoder.config.types)
    measure = Measure.of(encoder, pooling, tokens)
    few = measure.few()
    with tempfile.TemporaryDirectory(dir=root.parent) as scratch:
        progress(f"calibrating int8 over {sum(map(len, measure.rows[:CALIBRATION_ROWS]))} of {len(tokens)} texts")
        source = Quantizable.prepare(root / SOURCE, encoder, measure.rows[:CALIBRATION_ROWS], Path(scratch))
        names = tuple(source.maps)

        def cosine(kept: Sequence[str], over: Measure = measure) -> float:
            session = _open(source.quantize(kept))

            def vectors(row: list[Row]) -> NDArray[Any]:
                return pool_texts(session.run(None, pack(row))[0][0], row, pooling)

            return over.least_cosine(vectors)

        def cosine_told(kept: Sequence[str]) -> float:
            found = cosine(kept)
            progress(f"smallest cosine {found:.4f} with {len(names) - len(kept)} of {len(names)} maps in int8")
            return found

        def damage(name: str) -> float:
            return -cosine([other for other in names if other != name], few)

        kept, found = keep_fewest(names, LEAST_COSINE, cosine_told, damage)
        if found < LEAST_COSINE or len(kept) == len(names):
            raise AccuracyError(
                f"int8: over {len(tokens)} texts no choice of maps keeps the smallest cosine at {LEAST_COSINE}; "
                "this model is not for int8. Nothing was written."
            )
        progress(f"smallest cosine {found:.4f}; in float32: {', '.join(kept) or 'nothing'}")
        model = source.quantize(kept)
    save_graph(onnx_ir.from_proto(model), root / GRAPH, WEIGHTS)
    session = _open(root / GRAPH)
    return GraphRecord(
        file=GRAPH,
        weights=WEIGHTS,
        inputs=INPUTS,
        outputs=OUTPUTS,
        precision="int8",
        parity=compare(encoder, lambda row: session.run(None, pack(row))[0], checkpoint.max_tokens, TOLERANCE),
        accuracy=AccuracyRecord(texts=len(tokens), min_cosine=found, kept=kept),
    )


@dataclass(frozen=True)
class Quantizable:
    """A float32 graph in a directory, its calibration beside it, and the node of each linear map by the map's name."""

    directory: Path
    maps: dict[str, str]

    @classmethod
    def prepare(cls, graph: Path, encoder: Encoder, rows: Sequence[list[Row]], directory: Path) -> "Quantizable":
        """Infer shapes, find the maps and calibrate."""
        whole = str(directory / "whole.onnx")
        onnx.save(onnx.load(graph), whole)  # the next step does not find weights in a file beside it
        quant_pre_process(whole, str(directory / SOURCE), skip_symbolic_shape=True)
        found = cls(directory, _find_maps(onnx.load(directory / SOURCE), encoder))
        found._quantize((), _Rows(rows))
        return found

    def quantize(self, kept: Sequence[str]) -> onnx.ModelProto:
        """The graph with every map in int8 but those of `kept`."""
        return self._quantize(kept, None)

    def _quantize(self, kept: Sequence[str], rows: CalibrationDataReader | None) -> onnx.ModelProto:
        out = self.directory / GRAPH
        quantize_static(
            self.directory / SOURCE,
            out,
            rows,
            op_types_to_quantize=["MatMul"],
            nodes_to_quantize=[node for name, node in self.maps.items() if name not in kept],
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            extra_options={"OpTypesToExcludeOutputQuantization": ["MatMul"]},
            calibration_cache_path=self.directory / "ranges.json",
        )
        return onnx.load(out)


class _Rows(CalibrationDataReader):  # type: ignore[misc]
    """Rows of texts, as the calibrator asks for them."""

    def __init__(self, rows: Sequence[list[Row]]) -> None:
        self._rows: Iterator[list[Row]] = iter(rows)

    def get_next(self) -> Row | None:
        row = next(self._rows, None)
        return None if row is None else pack(row)


def _find_maps(model: onnx.ModelProto, encoder: Encoder) -> dict[str, str]:
    """The node of each linear map, found by the bytes of its weight: the exporter renames them."""
    names = {
        _digest(part.weight.detach().numpy().T): name
        for name, part in encoder.named_modules()
        if isinstance(part, nn.Linear)
    }
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    nodes = {
        _digest(numpy_helper.to_array(constants[node.input[1]])): node.name
        for node in model.graph.node
        if node.op_type == "MatMul" and node.input[1] in constants
    }
    return {name: nodes[digest] for digest, name in names.items()}


def _digest(values: NDArray[Any]) -> bytes:
    return hashlib.sha256(np.ascontiguousarray(values).tobytes()).digest()


def _open(model: onnx.ModelProto | Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    body = model if isinstance(model, Path) else model.SerializeToString()
    return onnxruntime.InferenceSession(body, options, providers=["CPUExecutionProvider"])
