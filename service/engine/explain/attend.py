"""What /v1/attend and Attend answer: measured before the model runs, filled in on the explain lane after it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model.tokenizer import Tokens
from service.engine.encode.pooling import Floats, cast_map
from service.engine.encode.response import JSON_VALUE_BYTES, RESULT_BYTES, array_bytes, listed_bytes
from service.engine.explain.maps import BlockWeights, TokenMaps, token_maps
from service.engine.explain.units import Units
from service.engine.schema.encode import DTYPES, Array
from service.engine.schema.explain import (
    AttendRequest,
    AttendResult,
    AttentionMap,
    AttentionMapSpec,
    HeadReduce,
    SparseMatrix,
)

# Upper bounds, in bytes: what a map has beside its numbers, and an index or row number in JSON and in binary.
MAP_BYTES = 256
JSON_INDEX_BYTES = 6
BINARY_INDEX_BYTES = 3

FEW = 10
"""A top_k to advise."""


@dataclass(frozen=True, slots=True)
class AttendTask:
    """One input's answer without its numbers; called with what every layer gave, it computes them."""

    tokens: Tokens
    units: Units
    plan: AttentionMapSpec
    request: AttendRequest
    blocks: Sequence[BlockWeights]

    def __call__(self, hidden: Floats) -> AttendResult:
        """`hidden` is `(L+1, T, D)`. Each layer's maps are brought to units before the next layer's are made."""
        maps = [made for found in token_maps(hidden, self.blocks, self.plan) for made in self._finish(found)]
        units = self.units
        return AttendResult(self.tokens.truncated, units.units, units.rows, units.columns, maps)

    def response_bytes(self) -> int:
        """How large the answer will be: exact for dense arrays in binary and base64, else an upper bound."""
        request, plan = self.request, self.plan
        rows, columns = len(self.units.rows), len(self.units.columns)
        index = JSON_INDEX_BYTES if request.wire != "binary" else BINARY_INDEX_BYTES
        kept = columns if request.top_k is None else min(request.top_k, columns)
        cells = rows * (kept if request.sparse else columns)
        each = self._values_bytes(cells) + (cells * index if request.sparse else 0)
        for_each_row = (request.kind != "scores") + plan.has_bias_share + request.sparse
        each += rows * for_each_row * (4 if request.wire == "binary" else JSON_VALUE_BYTES["float32"])
        each += rows * index  # no_mass_rows, and where rows start
        listed = listed_bytes(self.units.units, request.wire) + 2 * len(self.units.units) * index
        return RESULT_BYTES + listed + plan.count * (MAP_BYTES + each)

    def _values_bytes(self, values: int) -> int:
        request = self.request
        if request.wire == "json" and request.decimals is not None and self.plan.at_most_one(request.special):
            return values * min(JSON_VALUE_BYTES["float32"], request.decimals + 3)  # "0." and a comma
        return array_bytes(values, request.dtype, request.wire)

    def _finish(self, found: TokenMaps) -> list[AttentionMap]:
        request, units = self.request, self.units
        if request.kind == "scores":
            scores = units.fold_scores(found.values)
            return [self._map(found.layer, head, scores[index]) for index, head in enumerate(found.each_head)]
        folded = units.fold(found.values, request.special)
        bias_share = None if found.bias_share is None else self._row_numbers(units.fold_rows(found.bias_share))
        return [
            self._map(
                found.layer,
                head,
                folded.values[index],
                self._row_numbers(folded.excluded_mass[index]),
                bias_share,
                np.flatnonzero(folded.no_mass[index]).tolist(),
            )
            for index, head in enumerate(found.each_head)
        ]

    def _map(
        self,
        layer: int | None,
        head: int | None,
        values: Floats,
        excluded_mass: Array | None = None,
        bias_share: Array | None = None,
        no_mass_rows: list[int] | None = None,
    ) -> AttentionMap:
        sparse = self._sparsify(values) if self.request.sparse else None
        matrix = None if sparse is not None else self._numbers(values)
        return AttentionMap(layer, head, matrix, sparse, excluded_mass, bias_share, no_mass_rows or [])

    def _sparsify(self, values: Floats) -> SparseMatrix:
        """The largest magnitudes of each row: as many as cover `top_p` of it, and no more than `top_k`.

        A row of zeros has none.
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
            row_starts=[0, *np.cumsum(keep).tolist()],
            indices=columns[order[chosen]].tolist(),
            values=self._numbers(largest[chosen]),
            rest_mass=self._row_numbers(np.where(chosen, 0, largest).sum(axis=1)),
        )

    def _numbers(self, values: Floats) -> Array:
        return Array(self._rounded(cast_map(values, self.request.dtype)), self.request.dtype)

    def _row_numbers(self, values: Floats) -> Array:
        return Array(self._rounded(values.astype(DTYPES["float32"], copy=False)), "float32")

    def _rounded(self, values: NDArray[Any]) -> NDArray[Any]:
        if self.request.decimals is not None:  # in float32: in float16 ten to the fifth is infinite
            values = np.round(values.astype(DTYPES["float32"], copy=False), self.request.decimals)
        return np.ascontiguousarray(values)


def suggest_smaller(works: Sequence[AttendTask], limit: int) -> str:
    """What a caller can do about an answer over the limit: each change that is named is enough by itself."""
    enough = [
        told for told, smaller in _smaller_requests(works[0].request, works[0].plan) if _fits(works, smaller, limit)
    ]
    if enough:
        return f"Any of these would do: {', '.join(enough)}."
    return f"Ask for fewer layers or send {'fewer inputs' if len(works) > 1 else 'a shorter text'}."


def _fits(works: Sequence[AttendTask], request: AttendRequest, limit: int) -> bool:
    plan = replace(works[0].plan, head_reduce=request.head_reduce)
    return sum(replace(work, request=request, plan=plan).response_bytes() for work in works) <= limit


def _smaller_requests(request: AttendRequest, plan: AttentionMapSpec) -> Iterator[tuple[str, AttendRequest]]:
    """Single changes to a request, the one that loses least first, as a caller of its door spells them."""
    bounded = plan.at_most_one(request.special)
    if request.wire == "json":
        if request.decimals is None and bounded:
            yield "decimals: 4", replace(request, decimals=4)
        yield (
            'encoding: "base64"' + (" without decimals" if request.decimals else ""),
            replace(request, wire="base64", decimals=None),
        )
    else:
        if request.dtype == "float32":
            yield 'dtype: "float16"', replace(request, dtype="float16")
        if request.dtype != "sqrt_uint8" and bounded:
            yield 'dtype: "sqrt_uint8"', replace(request, dtype="sqrt_uint8")
    if plan.by_head:
        reduce: HeadReduce = "sum" if request.kind == "norm" else "mean"
        yield f'head_reduce: "{reduce}"', replace(request, head_reduce=reduce)
    if request.kind != "scores":
        yield f"top_k: {FEW}", replace(request, top_k=FEW)
