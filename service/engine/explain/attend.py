"""Attention maps of one input: their size before inference, their values on the explain lane after it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from model.artifact.tokenizer import TokenizedInput
from service.engine.encode.pooling import Floats, cast_map
from service.engine.encode.sizes import JSON_VALUE_BYTES, RESULT_BYTES, array_bytes, listed_bytes, total_bytes
from service.engine.explain.maps import Layer, TokenMaps, token_maps
from service.engine.explain.units import Units
from service.engine.schema.encode import DTYPES, Array
from service.engine.schema.explain import (
    AttendRequest,
    AttendResult,
    AttentionMap,
    AttentionMapSpec,
    SparseMatrix,
)
from service.engine.schema.tasks import ExplainOperation
from service.spelling import Change, Remedy

# Upper bounds in bytes: a map without its values, and an index in JSON and in binary.
MAP_BYTES = 256
JSON_INDEX_BYTES = 6
BINARY_INDEX_BYTES = 3

SUGGESTED_TOP_K = 10


@dataclass(frozen=True, slots=True)
class AttendTask:
    """One input of an attend request. `request` has the options of the maps, without the inputs."""

    operation: ClassVar[ExplainOperation] = "maps"

    tokens: TokenizedInput
    units: Units
    spec: AttentionMapSpec
    request: AttendRequest

    def response_bytes(self) -> int:
        """Return the size of the result: exact for dense arrays in binary and base64, else an upper bound."""
        request, spec = self.request, self.spec
        rows, columns = len(self.units.rows), len(self.units.columns)
        index = JSON_INDEX_BYTES if request.wire != "binary" else BINARY_INDEX_BYTES
        kept = columns if request.top_k is None else min(request.top_k, columns)
        cells = rows * (kept if request.sparse else columns)
        map_bytes = MAP_BYTES + self._values_bytes(cells) + (cells * index if request.sparse else 0)
        row_arrays = (request.kind != "scores") + spec.has_bias_share + request.sparse
        map_bytes += rows * row_arrays * (4 if request.wire == "binary" else JSON_VALUE_BYTES["float32"])
        map_bytes += rows * index  # empty_rows and indptr
        listed = listed_bytes(self.units.units, request.wire) + 2 * len(self.units.units) * index
        return RESULT_BYTES + listed + spec.count * map_bytes

    def _values_bytes(self, values: int) -> int:
        request = self.request
        if request.wire == "json" and request.decimals is not None and self.spec.at_most_one(request.special_tokens):
            return values * min(JSON_VALUE_BYTES["float32"], request.decimals + 3)  # "0." and a comma
        return array_bytes(values, request.dtype, request.wire)

    def aggregate(self, maps: TokenMaps) -> list[AttentionMap]:
        """Return the maps of one layer over units, in the representation that the request asks for."""
        request, units = self.request, self.units
        if request.kind == "scores":
            scores = units.aggregate_scores(maps.values)
            return [self._map(maps.layer, head, scores[index]) for index, head in enumerate(maps.heads)]
        unit_maps = units.aggregate(maps.values, request.special_tokens)
        bias_share = None if maps.bias_share is None else self._row_array(units.aggregate_rows(maps.bias_share))
        return [
            self._map(
                maps.layer,
                head,
                unit_maps.values[index],
                self._row_array(unit_maps.excluded_mass[index]),
                bias_share,
                np.flatnonzero(unit_maps.empty[index]).tolist(),
            )
            for index, head in enumerate(maps.heads)
        ]

    def _map(
        self,
        layer: int | None,
        head: int | None,
        values: Floats,
        excluded_mass: Array | None = None,
        bias_share: Array | None = None,
        empty_rows: list[int] | None = None,
    ) -> AttentionMap:
        sparse = self._sparsify(values) if self.request.sparse else None
        matrix = None if sparse is not None else self._array(values)
        return AttentionMap(layer, head, matrix, sparse, excluded_mass, bias_share, empty_rows or [])

    def _sparsify(self, values: Floats) -> SparseMatrix:
        """Keep the largest magnitudes of each row: the fewest that cover `top_p` of it, at most `top_k`.

        Rows of zeros keep none.
        """
        request = self.request
        magnitudes = np.abs(values)
        order = np.argsort(-magnitudes, axis=1, kind="stable")
        most = values.shape[1] if request.top_k is None else min(request.top_k, values.shape[1])
        keep = np.where(magnitudes.any(axis=1), most, 0)
        if request.top_p is not None:
            covered = np.take_along_axis(magnitudes, order, axis=1).cumsum(axis=1, dtype=np.float64)
            enough = covered < request.top_p * covered.max(axis=1, keepdims=True, initial=0) * (1 - 1e-9)
            keep = np.minimum(keep, enough.sum(axis=1) + 1)
        chosen = np.arange(values.shape[1]) < keep[:, None]
        largest = np.take_along_axis(values, order, axis=1)
        columns = np.array(self.units.columns, dtype=np.intp)
        return SparseMatrix(
            indptr=[0, *np.cumsum(keep).tolist()],
            indices=columns[order[chosen]].tolist(),
            values=self._array(largest[chosen]),
            dropped_mass=self._row_array(np.where(chosen, 0, largest).sum(axis=1)),
        )

    def _array(self, values: Floats) -> Array:
        return Array(self._rounded(cast_map(values, self.request.dtype)), self.request.dtype)

    def _row_array(self, values: Floats) -> Array:
        return Array(self._rounded(values.astype(DTYPES["float32"], copy=False)), "float32")

    def _rounded(self, values: NDArray[Any]) -> NDArray[Any]:
        if (
            self.request.decimals is not None
        ):  # in float32: np.round multiplies by powers of ten, which overflow float16
            values = np.round(values.astype(DTYPES["float32"], copy=False), self.request.decimals)
        return np.ascontiguousarray(values)


def attention_maps(task: AttendTask, hidden: Floats, layers: Sequence[Layer]) -> AttendResult:
    """Return the maps of a text; `hidden` is (L+1, T, D). Maps over tokens exist for one layer at a time."""
    maps = [unit_map for maps in token_maps(hidden, layers, task.spec) for unit_map in task.aggregate(maps)]
    units = task.units
    return AttendResult(task.tokens.truncated, units.units, units.rows, units.columns, maps)


def maps_bytes(tasks: Sequence[AttendTask]) -> int:
    """Return the size of the response; exact or an upper bound as in `AttendTask.response_bytes`."""
    return total_bytes([task.response_bytes() for task in tasks], padded=tasks[0].request.padded)


def suggest_smaller_maps(tasks: Sequence[AttendTask], limit: int) -> Remedy:
    """Return the remedy for a response over the limit."""
    request, spec = tasks[0].request, tasks[0].spec
    changes = [change for change in _smaller_options(request, spec) if _fits(tasks, change, limit)]
    fewer = "Request fewer layers or " if len(spec.layers) > 1 and spec.layer_reduce == "none" else ""
    if len(tasks) == 1:
        return Remedy(f"{fewer}send a shorter text".capitalize(), changes)
    largest = max(tasks, key=AttendTask.response_bytes)
    if changes or largest.response_bytes() <= limit:
        return Remedy(f"{fewer}send fewer inputs".capitalize(), changes)
    return replace(suggest_smaller_maps([largest], limit), text="Send each input alone", connective="and")


def _fits(tasks: Sequence[AttendTask], change: Change, limit: int) -> bool:
    options: dict[str, Any] = dict(change)
    request = replace(tasks[0].request, **options)
    spec = replace(tasks[0].spec, head_reduce=request.head_reduce)
    return maps_bytes([replace(task, request=request, spec=spec) for task in tasks]) <= limit


def _smaller_options(request: AttendRequest, spec: AttentionMapSpec) -> Iterator[Change]:
    """Yield single changes to a request, from the least to the greatest loss."""
    bounded = spec.at_most_one(request.special_tokens)
    if request.wire == "json":
        if request.decimals is None and bounded:
            yield {"decimals": 4}
        yield {"wire": "base64"} if request.decimals is None else {"wire": "base64", "decimals": None}
    else:
        if request.dtype == "float32":
            yield {"dtype": "float16"}
        if request.dtype != "sqrt_uint8" and bounded:
            yield {"dtype": "sqrt_uint8"}
    if spec.by_head:
        yield {"head_reduce": "sum" if request.kind == "norm" else "mean"}
    if request.kind != "scores":
        yield {"top_k": SUGGESTED_TOP_K}
