"""Import of models published only as an ONNX graph: hidden states, without the encoder's internals.

The graph is kept unchanged. Nodes prepended to it convert the inputs of exported graphs, so the server runs it like an
exported graph, but with one text per row: a foreign graph does not separate several texts in a row.

A graph that returns a classifier's logits is cut at the hidden states that the head reads. The part after them becomes
the head's graph.
"""

import contextlib
import itertools
import os
import re
import resource
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir
import onnxruntime
import torch
from numpy.typing import NDArray
from onnx_ir.passes.common import (
    LiftSubgraphInitializersToMainGraphPass,
    NameFixPass,
    RemoveInitializersFromInputsPass,
    RemoveUnusedNodesPass,
)
from torch import Tensor, nn

from model.artifact.files import WEIGHTS
from model.artifact.manifest import Absent, ClassifierPooling, GraphPrecision
from model.artifact.names import PADDED
from model.artifact.tokenizer import TokenizedInput, Tokenizer, TokenizerInput
from model.checkpoint import Checkpoint, read_training
from model.encoder import Encoder, EncoderConfig
from model.export.graphs import GraphSet, open_session
from model.export.parity import TOLERANCE, compare_outputs, pool
from model.families import find_family
from model.families.family import ConfigReader, Family
from model.heads.classifiers import (
    ARCHITECTURE,
    TOKEN_ARCHITECTURE,
    Classifier,
    TokenClassifier,
    make_classifier,
    make_token_classifier,
)
from model.heads.row_head import RowHead, has_architecture
from model.source.known_models import HIDDEN, LAYERS
from model.source.model_size import HEADS, POSITIONS
from model.source.published import (
    CheckpointError,
    Published,
    find_graph,
    read_json,
    reject_pointer,
)
from model.source.sentence_transformers import (
    SettingOptions,
    has_embedding_modules,
    read_embedding_config,
    read_max_input_tokens,
    read_transformer_settings,
)
from model.source.tokenizer import read_tokenizer

ONLY_GRAPH = Absent(
    reason="the model was imported from an ONNX graph, which returns only the last hidden states",
    remedy="Use another model, or one exported from PyTorch weights.",
)
PYTORCH = "Use the PyTorch weights of the model."
MODEL_INPUTS = ("input_ids", "attention_mask", "token_type_ids", "position_ids")
"""Inputs that a graph may take; the first two are required."""
HIDDEN_STATES = ("last_hidden_state", "token_embeddings", "hidden_states")
"""Common names of the output. Otherwise, the only three-dimensional output other than logits is used."""
HIDDEN_DIMENSIONS = 3
FLOAT = onnx_ir.DataType.FLOAT
SIZE_OPERATORS = ("Shape", "Size")
LOGITS = "logits"
MAX_BOTTLENECKS = 64
"""Maximum number of values before the logits to try as hidden states."""
SAMPLES = ("The bank of the river was steep.", "Bank", "She paid the money into her account, and went home.")
"""Texts used, as single texts and pairs, to find where to cut a graph."""
SAMPLE_TOKENS = 16
UNNAMED_LABELS = 2
"""The number of labels of a model whose config.json names none."""
CLASSIFIER_POOLINGS: tuple[ClassifierPooling, ...] = ("cls", "mean", "last")
MAX_RUN_S = 120.0
"""Time limit for one text, or one batch of the comparison: a graph can contain endless loops."""
MAX_MESSAGE = 300
"""Maximum length of a quoted ONNX Runtime message, in characters."""
DOMAINS = ("", "ai.onnx", "com.microsoft")
"""Domains of standard operators and of ONNX Runtime's built-in operators."""
QUANTIZED = ("DynamicQuantizeLinear", "MatMulInteger", "MatMulNBits", "QAttention", "QGemm", "QLinearMatMul")
LEAST_OPSET = 11
"""Minimum opset, required by the prepended operators."""
TYPES = {"tensor(int64)": np.int64, "tensor(int32)": np.int32, "tensor(float)": np.float32, "tensor(bool)": np.bool_}
WEIGHT_TYPES = {"FLOAT", "FLOAT16", "BFLOAT16", "DOUBLE", "INT8", "UINT8", "INT32", "INT64", "BOOL"}
TOLERANCES: dict[GraphPrecision, float] = {"float32": TOLERANCE, "float16": 1e-2, "int8": TOLERANCE}
"""Maximum difference between a text's results alone and in a batch, relative to the largest value."""
WEIGHT_COPIES = 5
"""Memory for the import, as a multiple of the graph size: two sessions hold copies of the weights, and more while
opening.
"""
MEMORY_RESERVE = 2 * 2**30
DEFAULT_POSITIONS = 512
SIZES = (LAYERS, HEADS, POSITIONS)
"""Keys of config.json, each with alternative names."""


@contextlib.contextmanager
def limited_memory(graph: Path | None) -> Iterator[None]:
    """Make allocations fail beyond what a graph of this size needs. Raises CheckpointError if one fails."""
    if graph is None:
        yield
        return
    others = (path for path in graph.parent.iterdir() if path.suffix != graph.suffix and path.is_file())
    size = sum(path.stat().st_size for path in (graph, *others))
    budget = WEIGHT_COPIES * size + MEMORY_RESERVE
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    status = Path("/proc/self/status").read_text()  # VmData is the memory that counts toward RLIMIT_DATA
    used = next(1024 * int(line.split()[1]) for line in status.splitlines() if line.startswith("VmData"))
    limits = [limit for limit in (used + budget, soft, hard) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min(limits), hard))
    try:
        yield
    except MemoryError:
        raise CheckpointError(
            f"{graph.name}: takes more than {budget / 2**30:.1f} GiB of memory, {WEIGHT_COPIES} times its size and "
            f"2 GiB. {PYTORCH}"
        ) from None
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


class ImportedHead(RowHead):
    """The part of a graph that computes logits (N, C) from rows (N, D), as `model`. It has no parameters."""

    def __init__(self, graph: Path, model: onnx_ir.Model, in_features: int, out_features: int) -> None:
        """Open the part. Raises ONNX Runtime's exceptions."""
        nn.Module.__init__(self)
        self.graph, self.model, self.in_features, self.out_features = graph, model, in_features, out_features
        self._session = open_session(onnx_ir.to_proto(model).SerializeToString())

    def forward(self, rows: Tensor) -> Tensor:
        """Return (N, C) for rows (N, D). Raises CheckpointError."""
        (logits,) = _run(self.graph, self._session, None, {"rows": rows.numpy()}, len(rows))
        return torch.from_numpy(logits)


class ImportedEncoder(Encoder):
    """An encoder that runs an ONNX graph, one text at a time. It has a configuration and no parameters.

    `pad` is the padding token's id, and `output` the name of the hidden states, or `LOGITS` for a classifier's graph
    before `split`.
    """

    def __init__(self, graph: Path, pad: int, *, is_classifier: bool) -> None:
        """Open the graph. Raises CheckpointError if it is not a text encoder.

        `is_classifier`: whether config.json describes a classifier.
        """
        nn.Module.__init__(self)
        self.graph, self.pad = graph, pad
        reject_pointer(graph)
        if not graph.stat().st_size:
            raise CheckpointError(f"{graph.name}: empty. Download it again.")
        operators, types = _check_graph(graph)
        try:
            self._session = open_session(graph)
        except Exception as error:  # noqa: BLE001  # the exceptions of ONNX Runtime have no base class
            raise CheckpointError(f"{graph.name}: not a graph for ONNX Runtime ({_describe(error)}).") from None
        _check_inputs(graph, self._session.get_inputs())
        self.inputs = {value.name: TYPES[value.type] for value in self._session.get_inputs()}
        self.output = _find_output(graph, self._session.get_outputs(), is_classifier=is_classifier)
        half = 2 * types["FLOAT16"] > types.total()
        self.precision: GraphPrecision = (
            "int8" if not operators.isdisjoint(QUANTIZED) else "float16" if half else "float32"
        )

    @property
    def has_segments(self) -> bool:
        return "token_type_ids" in self.inputs

    def split(
        self, scratch: Path, samples: Sequence[TokenizedInput], hidden_size: int, labels: int
    ) -> tuple[ImportedHead, ClassifierPooling | None]:
        """Cut a classifier's graph at the hidden states that the head reads.

        Afterward, the encoder runs a copy of the graph, written to the directory `scratch`, that also returns
        intermediate values. `samples` are texts to run; `labels` is the number of labels of a token classifier.

        Returns:
            The head, and the pooling that produces its input; no pooling for a token classifier.

        Raises:
            CheckpointError: the graph does not compute its logits this way.
        """
        model = self._load()
        values = [*itertools.islice(find_bottlenecks(model.graph, LOGITS), MAX_BOTTLENECKS)]
        model.graph.outputs.extend(values)
        path = scratch / "split" / self.graph.name
        path.parent.mkdir()
        onnx_ir.save(model, path, external_data=WEIGHTS, size_threshold_bytes=64)
        del self._session  # freed before another copy of the weights is created
        self._session = open_session(path)
        names = [LOGITS, *(str(value.name) for value in values)]
        results = [dict(zip(names, self._run(tokens, names), strict=True)) for tokens in samples]
        sizes = [len(tokens) for tokens in samples]
        count, per_token = self._check_logits([result[LOGITS].shape for result in results], sizes)
        if per_token and count != labels:
            raise CheckpointError(
                f"{self.graph.name}: {count:,} logits per token, but config.json names {labels} labels. Of graphs "
                f"without hidden states, only classifiers can be served. {PYTORCH}"
            )
        expected = np.concatenate([result[LOGITS].reshape(-1, count).astype(np.float32) for result in results])
        for output, rows, pooling in _find_rows(results, sizes, hidden_size, self.tolerance, per_token=per_token):
            self.output = output
            hidden = [torch.from_numpy(result[self.output][0].astype(np.float32)) for result in results]
            # As in the server: tokens of one text, or vectors of several texts, whose results must be independent of
            # each other.
            batches = hidden if pooling is None else [torch.stack([pool(vectors, pooling) for vectors in hidden])]
            dtype = onnx_ir.DataType.from_numpy(results[0][rows].dtype)
            try:
                head = ImportedHead(self.graph, self._cut(rows, dtype, hidden_size, count), hidden_size, count)
                logits = np.concatenate([head(vectors).numpy() for vectors in batches])
            except MemoryError:
                raise
            except Exception:  # noqa: BLE001, S112  # ONNX Runtime's have no base class; try the next cut
                continue
            if _difference(logits, expected) <= self.tolerance:
                return head, pooling
        raise CheckpointError(
            f"{self.graph.name}: unsupported classifier head. Supported: heads that read the first token, the last "
            f"token or the mean of all tokens, and heads that label each token. {PYTORCH}"
        )

    def _check_logits(self, shapes: Sequence[tuple[int, ...]], sizes: Sequence[int]) -> tuple[int, bool]:
        """Return the number of logits, and whether they are per token. Raises CheckpointError for other shapes.

        `shapes` contains the shape of each text's logits, and `sizes` its number of tokens. The label dimension may be
        missing if there is only one label.
        """
        if all(shape == (1,) for shape in shapes):
            return 1, False
        count = shapes[0][-1] if shapes[0] else 0
        if all(shape == (1, count) for shape in shapes):
            return count, False
        if all(shape == (1, size, count) for shape, size in zip(shapes, sizes, strict=True)):
            return count, True
        raise CheckpointError(
            f"{self.graph.name}: output {LOGITS} has shape {shapes[0]} for a text of {sizes[0]} tokens, expected "
            f"(1, labels) or (1, {sizes[0]}, labels). {PYTORCH}"
        )

    def _run(self, tokens: TokenizedInput, names: list[str]) -> list[NDArray[Any]]:
        """Return values of the graph for one text."""
        ids = torch.tensor([tokens.input_ids])
        inputs = self._inputs(ids, torch.arange(len(tokens))[None], torch.tensor([tokens.token_type_ids]))
        return _run(self.graph, self._session, names, inputs, len(tokens))

    def _cut(self, rows: str, dtype: onnx_ir.DataType, hidden_size: int, count: int) -> onnx_ir.Model:
        """Return the graph from float32 `rows` (N, D) to float32 `logits` (N, C).

        The rows replace the value named `rows`, of type `dtype`. Raises RuntimeError or ValueError if the logits also
        depend on other values.
        """
        model = self._load()
        graph = onnx_ir.convenience.extract(model.graph, [rows], [LOGITS])
        for value in graph.initializers.values():
            assert value.const_value is not None
            value.const_value = onnx_ir.tensor(value.const_value.numpy(), name=value.name)
        (source,), (logits,) = graph.inputs, graph.outputs
        # Nodes after the hidden states read (1, N, D).
        read = [1, -1, hidden_size] if rows == self.output else [-1, hidden_size]
        inputs = onnx_ir.val("rows", type=onnx_ir.TensorType(FLOAT), shape=onnx_ir.Shape(["N", hidden_size]))
        before, after = _cast_and_reshape(inputs, dtype, read), _cast_and_reshape(logits, FLOAT, [-1, count])
        source.replace_all_uses_with(before[-1].outputs[0])
        output = after[-1].outputs[0]
        output.type, output.shape = onnx_ir.TensorType(FLOAT), onnx_ir.Shape(["N", count])
        graph.insert_before(graph[0], before)
        graph.extend(after)
        graph.inputs[:] = [inputs]
        graph.outputs[:] = [output]
        head = onnx_ir.Model(graph, ir_version=model.ir_version, functions=[*model.functions.values()])
        _fix_names(head, {"rows": inputs, LOGITS: output})
        return head

    @property
    def tolerance(self) -> float:
        return TOLERANCES[self.precision]

    def forward(self, input_ids: Tensor, position_ids: Tensor, token_type_ids: Tensor, sequence_ids: Tensor) -> Tensor:
        """Return the last hidden states (1, T, D) of one text; the arguments are (1, T)."""
        del sequence_ids  # of one text
        inputs = self._inputs(input_ids, position_ids, token_type_ids)
        (hidden,) = _run(self.graph, self._session, [self.output], inputs, input_ids.shape[1])
        return torch.from_numpy(hidden.astype(np.float32))

    def _inputs(self, input_ids: Tensor, position_ids: Tensor, token_type_ids: Tensor) -> dict[str, NDArray[Any]]:
        """Return the inputs of the graph for one text, (1, T) each."""
        values = (input_ids, torch.ones_like(input_ids), token_type_ids, position_ids)
        return {
            name: tensor.numpy().astype(self.inputs[name])
            for name, tensor in zip(MODEL_INPUTS, values, strict=True)
            if name in self.inputs
        }

    def _load(self) -> onnx_ir.Model:
        """Load the graph. Weights are read on use."""
        model = onnx_ir.load(self.graph)
        LiftSubgraphInitializersToMainGraphPass()(model)
        RemoveInitializersFromInputsPass()(model)
        for value in model.graph.initializers.values():
            if isinstance(value.const_value, onnx_ir.ExternalTensor):
                value.const_value = _follow_links(value.const_value, self.graph.parent)
        return model

    def measure(self, tokens: Sequence[int]) -> int:
        """Return the vector size, D. Raises CheckpointError if the output is not one vector per token."""
        ids = torch.tensor([tokens])
        shape = self(ids, torch.arange(len(tokens))[None], torch.zeros_like(ids), torch.ones_like(ids)).shape
        if len(shape) != HIDDEN_DIMENSIONS or tuple(shape[:2]) != (1, len(tokens)):
            raise CheckpointError(
                f"{self.graph.name}: output {self.output} has shape {tuple(shape)} for a text of {len(tokens)} tokens, "
                f"expected (1, {len(tokens)}, D)."
            )
        return int(shape[2])

    def padded_graph(self) -> onnx_ir.Model:
        """Return the graph with inputs as in exported graphs, (R, T), and the output `last_hidden_state`, (R, T, D).

        Tokens with sequence id 0 are padding: they get the id `pad`, and other tokens do not attend to them.
        """
        model = self._load()
        graph = model.graph
        hidden = onnx_ir.convenience.create_value_mapping(graph)[self.output]
        given = {str(value.name): value for value in graph.inputs}
        int64 = onnx_ir.TensorType(onnx_ir.DataType.INT64)
        names = ("input_ids", "position_ids", "token_type_ids", "sequence_ids")
        inputs: list[onnx_ir.Value] = [onnx_ir.val(name, type=int64, shape=onnx_ir.Shape(["R", "T"])) for name in names]
        ids, positions, types, sequences = inputs
        constants = {name: onnx_ir.tensor(np.array(value)) for name, value in (("zero", 0), ("pad", self.pad))}
        zero, pad = (onnx_ir.node("Constant", [], {"value": tensor}) for tensor in constants.values())
        padding = onnx_ir.node("Equal", [sequences, zero.outputs[0]])
        text = onnx_ir.node("Not", [padding.outputs[0]])
        padded = onnx_ir.node("Where", [padding.outputs[0], pad.outputs[0], ids])
        nodes = [zero, pad, padding, text, padded]
        sources = dict(zip(MODEL_INPUTS, (padded.outputs[0], text.outputs[0], types, positions), strict=True))
        for name, value in given.items():
            assert value.dtype is not None
            cast = onnx_ir.node("Cast", [sources[name]], {"to": value.dtype.value})
            value.replace_all_uses_with(cast.outputs[0])
            nodes.append(cast)
        cast = onnx_ir.node("Cast", [hidden], {"to": onnx_ir.DataType.FLOAT.value})
        output = cast.outputs[0]
        output.type = onnx_ir.TensorType(FLOAT)
        output.shape = onnx_ir.Shape(["R", "T", self.config.hidden_size])
        graph.insert_before(graph[0], nodes)
        graph.append(cast)
        graph.inputs[:] = inputs
        graph.outputs[:] = [output]
        RemoveUnusedNodesPass()(model)
        _fix_names(model, {**dict(zip(names, inputs, strict=True)), "last_hidden_state": output})
        return model


def _cast_and_reshape(value: onnx_ir.Value, dtype: onnx_ir.DataType, shape: list[int]) -> list[onnx_ir.Node]:
    """Return nodes that cast and reshape a value."""
    cast = onnx_ir.node("Cast", [value], {"to": dtype.value})
    sizes = onnx_ir.node("Constant", [], {"value": onnx_ir.tensor(np.array(shape, np.int64))})
    return [cast, sizes, onnx_ir.node("Reshape", [cast.outputs[0], sizes.outputs[0]])]


def _fix_names(model: onnx_ir.Model, names: Mapping[str, onnx_ir.Value]) -> None:
    """Rename the inputs and outputs of a graph, and any other values that already use these names."""
    for value in onnx_ir.convenience.create_value_mapping(model.graph, include_subgraphs=True).values():
        if value not in names.values() and value.name in names:
            value.name = f"graph.{value.name}"
    for name, value in names.items():
        value.name = name
    NameFixPass()(model)


def _difference(actual: NDArray[Any], expected: NDArray[Any]) -> float:
    """Return the largest difference relative to the largest expected value, or infinity if a value is not finite."""
    difference = float(np.abs(actual - expected).max() / max(1.0, np.abs(expected).max()))
    return difference if np.isfinite(difference) else np.inf


def find_bottlenecks(graph: onnx_ir.Graph, output: str) -> Iterator[onnx_ir.Value]:
    """Yield the values, last one first, that carry all dependence of an output on the input tokens.

    Dependence on the number of tokens or on the attention mask does not count: a mean over tokens also reads the mask.
    """
    places = {node: place for place, node in enumerate(graph)}
    computed = {value for value in graph.inputs if value.name == "input_ids"}
    for node in graph:
        if node.op_type not in SIZE_OPERATORS and not computed.isdisjoint(_read_values(node)):
            computed.update(node.outputs)
    logits = next(value for value in graph.outputs if value.name == output)
    frontier = {logits}
    while frontier:
        # All readers of this value have been visited, because nodes are in topological order.
        last = max(frontier, key=lambda value: -1 if (node := value.producer()) is None else places[node])
        if len(frontier) == 1 and last is not logits:
            yield last
        frontier.remove(last)
        if (producer := last.producer()) is not None:
            frontier |= computed.intersection(_read_values(producer))


def _read_values(node: onnx_ir.Node) -> set[onnx_ir.Value | None]:
    """Return the inputs of a node, including values read by its subgraphs."""
    values = {*node.inputs}
    for attribute in node.attributes.values():
        if attribute.type is onnx_ir.AttributeType.GRAPH:
            inner = attribute.as_graph()
            values.update(*(inside.inputs for inside in inner.all_nodes()), inner.outputs)
    return values


def _find_rows(
    results: Sequence[Mapping[str, NDArray[Any]]],
    sizes: Sequence[int],
    hidden_size: int,
    tolerance: float,
    *,
    per_token: bool,
) -> Iterator[tuple[str, str, ClassifierPooling | None]]:
    """Yield possible cuts, best first: the hidden states, the value that the head reads, and the pooling between them.

    Args:
        results: Each text's values by name: the logits, then the values before them, backward.
        sizes: The number of tokens of each text.
        hidden_size: The size of the hidden states.
        tolerance: Maximum difference between pooled vectors, relative to the largest value.
        per_token: Whether each token has logits. If so, the head reads hidden states without pooling.
    """

    def has_shape(name: str, shapes: Sequence[tuple[int, ...]]) -> bool:
        values = [result[name] for result in results]
        return all(
            isinstance(value, np.ndarray) and value.dtype.kind == "f" and value.shape == shape
            for value, shape in zip(values, shapes, strict=True)
        )

    _, *names = results[0]
    hidden = next((name for name in names if has_shape(name, [(1, size, hidden_size) for size in sizes])), None)
    if hidden is None:
        return
    if per_token:
        yield hidden, hidden, None
        return
    between = [name for name in names[: names.index(hidden)] if has_shape(name, [(1, hidden_size)] * len(sizes))]
    vectors = [torch.from_numpy(result[hidden][0].astype(np.float32)) for result in results]
    fitting = []
    for name, pooling in itertools.product(reversed(between), CLASSIFIER_POOLINGS):
        rows = np.concatenate([result[name] for result in results]).astype(np.float32)
        difference = _difference(np.stack([pool(item, pooling).numpy() for item in vectors]), rows)
        if difference <= tolerance:
            fitting.append((difference, name, pooling))
    for _, name, pooling in sorted(fitting, key=lambda item: item[0]):
        yield hidden, name, pooling


def write_imported(graphs: GraphSet, encoder: ImportedEncoder, max_input_tokens: int) -> None:
    """Write the graph for the server, and compare batches to single texts. Raises CheckpointError if they differ."""
    path = graphs.path(PADDED)
    onnx_ir.save(encoder.padded_graph(), path, external_data=WEIGHTS, size_threshold_bytes=64)
    session = open_session(path)

    def run(sequences: Sequence[Mapping[str, NDArray[Any]]]) -> NDArray[Any]:
        return run_padded(encoder.graph, session, sequences)

    graphs.progress(f"comparing batches of {PADDED}.onnx with single texts")
    parity = compare_outputs(encoder, run, max_input_tokens, TOLERANCES[encoder.precision])
    if not parity.max_abs_difference <= parity.tolerance:
        raise CheckpointError(
            f"{encoder.graph.name}: vectors of a text depend on the other texts of a batch (by "
            f"{parity.max_abs_difference:.2e}, limit {parity.tolerance:.0e}), as with activations quantized per "
            "batch, or of a model that reads padding. Use a graph in float32, or the PyTorch weights."
        )
    weights = WEIGHTS if path.with_name(WEIGHTS).exists() else None
    graphs.add(PADDED, parity, weights, encoder.precision, reference="single texts")


def _run(
    graph: Path,
    session: onnxruntime.InferenceSession,
    outputs: list[str] | None,
    inputs: Mapping[str, NDArray[Any]],
    tokens: int,
) -> list[NDArray[Any]]:
    """Return a graph's outputs for a number of tokens. Raises CheckpointError, also after `MAX_RUN_S`."""
    options = onnxruntime.RunOptions()
    options.log_severity_level = 4  # errors are raised anyway
    timer = threading.Timer(MAX_RUN_S, lambda: setattr(options, "terminate", True))
    timer.daemon = True
    timer.start()
    try:
        return session.run(outputs, dict(inputs), options)  # type: ignore[no-any-return]
    except Exception as error:  # noqa: BLE001  # the exceptions of ONNX Runtime have no base class
        problem = _describe(error)
        if "terminate flag" in problem:
            problem = f"it ran for more than {MAX_RUN_S:.0f} s"
        raise CheckpointError(
            f"{graph.name}: fails for {tokens:,} tokens ({problem}). If it accepts fewer, set --max-input-tokens."
        ) from None
    finally:
        timer.cancel()


def run_padded(
    graph: Path, session: onnxruntime.InferenceSession, sequences: Sequence[Mapping[str, NDArray[Any]]]
) -> NDArray[Any]:
    """Return hidden states of sequences, run as one row each and joined end to end, (1, T, D)."""
    sizes = [sequence["input_ids"].shape[1] for sequence in sequences]
    batch = {
        name: np.concatenate(
            [
                np.pad(sequence[name], ((0, 0), (0, max(sizes) - size)))
                for sequence, size in zip(sequences, sizes, strict=True)
            ]
        )
        for name in sequences[0]
    }
    (hidden,) = _run(graph, session, None, batch, max(sizes))
    return np.concatenate([row[:size] for row, size in zip(hidden, sizes, strict=True)])[None]


def load_imported(directory: Path, settings: SettingOptions, scratch: Path) -> Checkpoint:
    """Load a model whose only weights are an ONNX graph; `scratch` is a directory for copies.

    Raises:
        CheckpointError: a file is missing or invalid, or the model is not an encoder with pooling or a classifier.
    """
    files = Published(directory)
    graph = find_graph(files.transformer)
    assert graph is not None  # checked by the caller
    if settings.task is not None:
        raise CheckpointError(f"--task: an ONNX graph has no adapters. {PYTORCH}")
    if files.has_modules and not has_embedding_modules(files):
        raise CheckpointError(f"modules.json: {files.order} cannot be imported from an ONNX graph. {PYTORCH}")
    transformer = read_transformer_settings(files)
    config = {**read_json(files.transformer / "config.json"), **transformer.config}
    published = read_tokenizer(files, config, transformer)
    pad = config.get("pad_token_id")
    is_classifier = has_architecture(config, ARCHITECTURE, TOKEN_ARCHITECTURE)
    encoder = ImportedEncoder(graph, pad if isinstance(pad, int) and pad >= 0 else 0, is_classifier=is_classifier)
    family = find_family(config)
    if "position_ids" in encoder.inputs and family is not None and family.first_position(ConfigReader(config)):
        raise CheckpointError(
            f"{graph.name}: input position_ids is not supported for {family.name}, whose positions do not start at 0. "
            f"Export it without this input. {PYTORCH}"
        )
    tokenizer = Tokenizer(published.definition)
    classifier: Classifier | None = None
    token_classifier: TokenClassifier | None = None
    samples = tokenizer.encode([TokenizerInput(text) for text in SAMPLES])
    if encoder.output == LOGITS:
        samples += tokenizer.encode_pairs(SAMPLES[0], SAMPLES[1:])
        reader = ConfigReader(config)
        limit = settings.max_input_tokens or reader.size(_find_key(config, POSITIONS), DEFAULT_POSITIONS) // 2
        samples = [tokens.truncate(min(SAMPLE_TOKENS, limit), "right") for tokens in samples]
        labels = len(config.get("id2label") or ()) or reader.size("num_labels", UNNAMED_LABELS)
        head, pooling = encoder.split(scratch, samples, reader.size(_find_key(config, HIDDEN)), labels)
        if pooling is None:
            token_classifier = make_token_classifier(config, head)
        else:
            classifier = make_classifier(config, files.sentence_transformers, head, pooling)
    hidden_size = encoder.measure(samples[0].input_ids)
    is_named = encoder.output in HIDDEN_STATES and not is_classifier
    expected_size = config.get(_find_key(config, HIDDEN), hidden_size)
    if not is_named and hidden_size != expected_size:
        raise CheckpointError(
            f'{graph.name}: the vectors of output "{encoder.output}" have size {hidden_size}, but hidden states have '
            f"size {expected_size} in config.json. For a classifier, the output must be named {LOGITS}. {PYTORCH}"
        )
    encoder.config = _read_sizes(config, hidden_size, encoder.has_segments)
    embedding = read_embedding_config(files, hidden_size, settings)
    positions = encoder.config.max_position_embeddings
    limit, origin = read_max_input_tokens(transformer, positions, settings.max_input_tokens)
    embedding.origins["max_input_tokens"] = origin
    name = str(config.get("model_type") or "unknown")
    return Checkpoint(
        encoder=encoder,
        family=family or Family(name, lambda reader: encoder.config, {}),
        config=config,
        max_input_tokens=limit,
        tokenizer=published.definition,
        embedding_config=embedding,
        training=read_training(directory),
        classifier=classifier,
        token_classifier=token_classifier,
        truncation_side=published.truncation_side,
        role_max_tokens={} if classifier else transformer.limit_roles(positions, settings.max_input_tokens),
        special_tokens_in_text=settings.special_tokens_in_text,
        warnings=tuple(files.warnings()),
    )


def _check_graph(path: Path) -> tuple[set[str], Counter[str]]:
    """Return the operators of a graph, and the bytes of its weights by type.

    Raises CheckpointError for operators of other domains, and for weights outside of the model's directory.
    """
    try:
        model = onnx_ir.load(path)
    except Exception as error:  # noqa: BLE001  # a damaged file can raise any exception
        raise CheckpointError(f"{path.name}: not an ONNX graph ({_describe(error)}).") from None
    opset = model.opset_imports.get("", 0)
    if opset < LEAST_OPSET:
        raise CheckpointError(f"{path.name}: opset {opset} is not supported (at least {LEAST_OPSET}). {PYTORCH}")
    nodes = [*model.graph.all_nodes()]
    own = {(function.domain, function.name) for function in model.functions.values()}
    nodes += [node for function in model.functions.values() for node in function.all_nodes()]
    for node in nodes:
        if node.domain not in DOMAINS and (node.domain, node.op_type) not in own:
            raise CheckpointError(
                f"{path.name}: operator {node.op_type} of the domain {node.domain!r} is unknown to ONNX Runtime. "
                f"{PYTORCH}"
            )
    tensors = [value.const_value for graph in model.graphs() for value in graph.initializers.values()]
    attributes = [attribute for node in nodes for attribute in node.attributes.values()]
    tensors += [item.value for item in attributes if item.type is onnx_ir.AttributeType.TENSOR and not item.is_ref()]
    for tensor in tensors:
        if isinstance(tensor, onnx_ir.ExternalTensor):
            _check_location(path, Path(tensor.location))
    types: Counter[str] = Counter()
    for tensor in tensors:
        if tensor is not None:
            types[tensor.dtype.name] += tensor.nbytes
    if others := sorted(types.keys() - WEIGHT_TYPES):
        raise CheckpointError(f"{path.name}: weights of type {others[0]} are not supported. {PYTORCH}")
    return {node.op_type for node in nodes}, types


def _check_location(graph: Path, location: Path) -> None:
    """Raise CheckpointError unless a weights file is in the graph's directory."""
    path, directory = graph.parent / location, graph.parent
    inside = not location.is_absolute() and ".." not in location.parts
    # Files in huggingface_hub's cache are links to the folder "blobs" of the same repository.
    folders = (directory.absolute(), *directory.absolute().parents)
    snapshot = next((folder for folder in folders if folder.parent.name == "snapshots"), None)
    roots = [directory.resolve(), *([snapshot.parents[1].resolve()] if snapshot is not None else [])]
    if not inside or not any(Path(os.path.realpath(path)).is_relative_to(root) for root in roots):
        raise CheckpointError(f"{graph.name}: weights in {str(location)!r}, outside of the directory of the graph.")
    if not path.is_file():
        raise CheckpointError(f"{path}: missing. Download it: {graph.name} has its weights there.")


def _follow_links(tensor: onnx_ir.ExternalTensor, directory: Path) -> onnx_ir.ExternalTensor:
    """Resolve a tensor's file if it is a link in huggingface_hub's cache, because onnx_ir does not read links."""
    file = Path(os.path.realpath(directory / tensor.location))
    return onnx_ir.ExternalTensor(
        file.name, tensor.offset, tensor.length, tensor.dtype, shape=tensor.shape, name=tensor.name or "",
        base_dir=file.parent,
    )  # fmt: skip


def _check_inputs(graph: Path, inputs: Sequence[Any]) -> None:
    """Raise CheckpointError unless these are an encoder's inputs for any number and length of texts."""
    names = [value.name for value in inputs]
    unknown = [name for name in names if name not in MODEL_INPUTS]
    missing = [name for name in MODEL_INPUTS[:2] if name not in names]
    if unknown or missing:
        problem = f"unknown input {unknown[0]}" if unknown else f"no input {missing[0]}"
        raise CheckpointError(f"{graph.name}: {problem}. Supported: {', '.join(MODEL_INPUTS)}. {PYTORCH}")
    for value in inputs:
        fixed = [size for size in value.shape if isinstance(size, int)]
        if fixed or len(value.shape) != 2 or value.type not in TYPES:
            shape = ", ".join(map(str, value.shape))
            raise CheckpointError(
                f"{graph.name}: input {value.name} is {value.type.removeprefix('tensor')} ({shape}), expected integers "
                f"(batch, sequence) of any size. {PYTORCH}"
            )


def _find_output(graph: Path, outputs: Sequence[Any], *, is_classifier: bool) -> str:
    """Return the name of the hidden states, or `LOGITS`, which takes precedence for a classifier.

    Raises CheckpointError if there are neither.
    """
    names = [str(value.name) for value in outputs]
    found = [name for name in HIDDEN_STATES if name in names]
    found += [
        str(value.name) for value in outputs if len(value.shape) == HIDDEN_DIMENSIONS and "logits" not in value.name
    ]
    if LOGITS in names and (is_classifier or not found or (found[0] not in HIDDEN_STATES and len(found) > 1)):
        return LOGITS
    if not found or (found[0] not in HIDDEN_STATES and len(found) > 1):
        raise CheckpointError(
            f"{graph.name}: no hidden states among its outputs ({', '.join(names)}). Expected {HIDDEN_STATES[0]}, "
            f"(batch, sequence, D), or {LOGITS}: pooled vectors alone cannot be served. {PYTORCH}"
        )
    return found[0]


def _find_key(config: Mapping[str, Any], names: Sequence[str]) -> str:
    """Return the first name that config.json contains, else the first of the names."""
    return next((name for name in names if name in config), names[0])


def _read_sizes(config: Mapping[str, Any], hidden_size: int, has_segments: bool) -> EncoderConfig:
    """Return the sizes in config.json. Raises CheckpointError if one is missing."""
    family = find_family(config)
    known = None
    if family is not None:
        with contextlib.suppress(CheckpointError, ValueError):  # the graph may support more than its family
            known = family.read_config(ConfigReader(config))
    values = {names[0]: next((config[name] for name in names if name in config), None) for names in SIZES}
    reader = ConfigReader({**config, **values})
    architectures = config.get("architectures")
    causal = isinstance(architectures, list) and any(str(name).endswith("ForCausalLM") for name in architectures)
    return EncoderConfig(
        vocab_size=reader.size("vocab_size"),
        hidden_size=hidden_size,
        num_hidden_layers=known.num_hidden_layers if known else reader.size("num_hidden_layers"),
        num_attention_heads=known.num_attention_heads if known else reader.size("num_attention_heads"),
        intermediate_size=1,
        max_position_embeddings=(
            known.max_position_embeddings if known else reader.size("max_position_embeddings", DEFAULT_POSITIONS)
        ),
        type_vocab_size=reader.size("type_vocab_size", 2, least=0) if has_segments else 0,
        norm_eps=1.0,
        causal=known.causal if known else causal,
        head_size=1,
    )


def _describe(error: Exception) -> str:
    """Return the first line of an ONNX or ONNX Runtime exception. Raises MemoryError if an allocation failed."""
    line = str(error).partition("\n")[0]
    if isinstance(error, MemoryError) or re.search("bad_alloc|Failed to allocate", line):
        raise MemoryError from None
    return line[:MAX_MESSAGE]
