"""The flat graph, opened: texts in, their vectors out, on a GPU.

Rows are made on whichever threads call, and run on one thread of its own, in which the GPU's recordings live. So the
next row is made while one runs.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from model.artifact import Manifest, Pooling
from model.packing import RowLengths, choose
from service.engine.backends.onnxruntime_cpu import model_types
from service.engine.backends.select import Provider
from service.engine.backends.varlen import FlatRow, Shape, Shapes, lay_flat
from service.engine.encode.pooling import pool_row
from service.engine.schema.encode import Text, TextVectors
from service.errors import NonFiniteOutput

HIDDEN, POOLED = "hidden", "pooled"
DTYPES: dict[str, type] = {"tensor(float16)": np.float16, "tensor(float)": np.float32}
RECORDED_TOKENS = 4096
"""Rows up to this length are replayed as one recording; in longer ones starting kernels takes no time to speak of."""

Floats = NDArray[Any]
Device = Literal["cuda", "cpu"]


class FlatRuntime:
    """`run` may be called from several threads."""

    wide_tokens = 0

    def __init__(
        self, manifest: Manifest, provider: Provider, session: onnxruntime.InferenceSession, device: Device = "cuda"
    ) -> None:
        """`device` is where inputs and outputs lie; "cpu" goes with a session on the CPU provider."""
        self.provider = provider
        self._shapes = Shapes.up_to(manifest.max_tokens, provider.shared_row_tokens)
        self.row_lengths = RowLengths(self._shapes.lengths, provider.shared_row_tokens)
        self._types = manifest.types
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="attendant-gpu")
        graph = manifest.graphs[provider.graph]
        self._pooling: Pooling | None = manifest.pooling if POOLED in graph.outputs else None
        self._device = _Device(session, device, provider.gpu.device, manifest.width)

    def warm_up(self) -> None:
        """Run every shape, so that no caller pays for a shape's first time."""
        for shape in self._shapes.shapes:
            self._compute(lay_flat([([0], None)], shape), hidden=False)

    def choose(self, sizes: Sequence[int], free: int) -> list[int]:
        """Which waiting texts share the next row: all that fit, however many workers are `free`; there is one GPU."""
        return choose(sizes, 1, shared=self.row_lengths.shared, texts=self._shapes.texts)

    def row_length(self, texts: Sequence[Text]) -> int:
        return self._shapes.fit([len(text.tokens) for text in texts]).tokens

    def run(self, texts: Sequence[Text]) -> list[TextVectors]:
        """Lay the texts in one row and run it; one result a text.

        Raises `NonFiniteOutput`, or what onnxruntime raises.
        """
        shape = self._shapes.fit([len(text.tokens) for text in texts])
        row = lay_flat([(text.tokens.ids, model_types(text.tokens, self._types)) for text in texts], shape)
        wanted: set[Pooling] = {text.pooling for text in texts if text.pooling is not None}
        by_graph: set[Pooling] = set() if self._pooling is None else {self._pooling}
        pooled, hidden = self._compute(row, hidden=not wanted <= by_graph or any(text.hidden for text in texts))
        hidden = hidden.astype(np.float32, copy=False)
        found = dict.fromkeys(wanted & by_graph, pooled)
        found |= {pooling: pool_row(hidden, row.starts, row.sizes, pooling) for pooling in wanted - by_graph}
        if not all(np.isfinite(values.sum()) for values in (hidden, *found.values())):  # one sum tells
            raise NonFiniteOutput
        return [
            TextVectors(
                hidden=hidden[None, start : start + size] if text.hidden else None,
                pooled=None if text.pooling is None else found[text.pooling][None, index],
            )
            for index, (text, start, size) in enumerate(zip(texts, row.starts, row.sizes, strict=True))
        ]

    run_wide = run

    def _compute(self, row: FlatRow, *, hidden: bool) -> tuple[Floats, Floats]:
        """Pooled `(N, D)`, empty where the graph does not pool, and hidden `(tokens, D)`, empty where not asked for."""
        return self._thread.submit(self._device.run, row, hidden).result()


class _Device:
    """The session and its memory. Used by one thread: recordings belong to the thread that made them."""

    def __init__(self, session: onnxruntime.InferenceSession, device: Device, number: int, width: int) -> None:
        self._session = session
        self._device = device
        self._number = number
        self._width = width
        self._outputs = {output.name: DTYPES[output.type] for output in session.get_outputs()}
        self._bound: dict[Shape, _Bound] = {}
        self._memory: dict[tuple[str, tuple[int, ...]], onnxruntime.OrtValue] = {}

    def run(self, row: FlatRow, hidden: bool) -> tuple[Floats, Floats]:
        bound = self._bound.get(row.shape) or self._bind(row.shape)
        for name, values in row.inputs.items():
            bound.inputs[name].update_inplace(values)
        self._session.run_with_iobinding(bound.binding, bound.options)
        nothing = np.zeros((0, self._width), dtype=np.float32)
        return (
            self._read(bound.outputs[POOLED], len(row.sizes)) if POOLED in bound.outputs else nothing,
            self._read(bound.outputs[HIDDEN], row.tokens) if hidden else nothing,
        )

    def _read(self, value: onnxruntime.OrtValue, count: int) -> Floats:
        """Its first rows, the caller's to keep: from a GPU they come as a copy, on a CPU as a view."""
        found: Floats = value.numpy()[:count]
        return found if self._device == "cuda" else found.copy()

    def _bind(self, shape: Shape) -> "_Bound":
        """Inputs and outputs at addresses that stay, as a recording needs them."""
        binding = self._session.io_binding()
        sizes: dict[str, tuple[int, ...]] = dict.fromkeys(("ids", "positions", "types"), (shape.tokens,))
        sizes["cumulative_lengths"] = (shape.slots + 1,)
        sizes["token_offset"] = (shape.slots, shape.longest)  # of this one only the shape is read
        inputs = {name: self._place(name, size, np.int32) for name, size in sizes.items()}
        rows = {HIDDEN: shape.tokens, POOLED: shape.slots}
        outputs = {name: self._place(name, (rows[name], self._width), dtype) for name, dtype in self._outputs.items()}
        for name, value in inputs.items():
            binding.bind_ortvalue_input(name, value)
        for name, value in outputs.items():
            binding.bind_ortvalue_output(name, value)
        options = onnxruntime.RunOptions()
        if self._device == "cuda":
            number = len(self._bound) + 1 if shape.tokens <= RECORDED_TOKENS else -1
            options.add_run_config_entry("gpu_graph_id", str(number))
        self._bound[shape] = _Bound(binding, options, inputs, outputs)
        return self._bound[shape]

    def _place(self, name: str, size: tuple[int, ...], dtype: type) -> onnxruntime.OrtValue:
        """Memory on the device; shapes share what has the same size, for only one of them runs at a time."""
        if (name, size) not in self._memory:
            zeros: Floats = np.zeros(size, dtype=dtype)
            value = onnxruntime.OrtValue.ortvalue_from_numpy(zeros, self._device, self._number)
            self._memory[name, size] = value
        return self._memory[name, size]


@dataclass(frozen=True)
class _Bound:
    """What a shape needs to run again and again."""

    binding: Any
    options: onnxruntime.RunOptions
    inputs: dict[str, onnxruntime.OrtValue]
    outputs: dict[str, onnxruntime.OrtValue]
