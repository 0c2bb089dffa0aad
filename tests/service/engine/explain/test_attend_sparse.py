"""Sparse attention maps: kept values and dropped mass."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.artifact.manifest import KINDS, Kind
from tests.service.engine.explain.attend_cases import AttendFactory, decoded, dense, map_values


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "scores"])
@pytest.mark.parametrize("special", ["keep", "drop", "renormalize"])
@pytest.mark.parametrize("sparse", [{"top_k": 3}, {"top_p": 0.7}, {"top_p": 0.9, "top_k": 4}], ids=str)
def test_sparse_rows_keep_the_largest_values_and_dropped_mass(
    factory: AttendFactory, kind: Kind, special: str, sparse: dict[str, Any]
) -> None:
    """Values are sorted by magnitude within a row. Row sums plus dropped mass equal the dense row sums."""
    fields = {"kind": kind, "special_tokens": special, "unit": "word"}
    full = factory.run(factory.case(**fields))
    result = factory.run(factory.case(**fields, **sparse))
    for full_map, sparse_map in zip(full.maps, result.maps, strict=True):
        assert sparse_map.sparse is not None
        assert sparse_map.matrix is None
        matrix, kept = decoded(map_values(full_map)), sparse_map.sparse
        scattered = dense(kept, result.columns)
        present = scattered != 0
        np.testing.assert_array_equal(scattered[present], matrix[present])
        np.testing.assert_allclose(scattered.sum(axis=1) + decoded(kept.dropped_mass), matrix.sum(axis=1), atol=2e-6)
        magnitudes = np.sort(np.abs(matrix), axis=1)[:, ::-1]
        total = magnitudes.sum(axis=1)
        for row, (start, end) in enumerate(pairwise(kept.indptr)):
            count = end - start
            kept_magnitudes = np.abs(decoded(kept.values)[start:end])
            np.testing.assert_array_equal(kept_magnitudes, magnitudes[row, :count])
            assert count <= sparse.get("top_k", len(result.columns))
            if row in sparse_map.empty_rows:
                assert count == 0
            elif "top_p" in sparse:
                mass = sparse["top_p"] * total[row]
                assert kept_magnitudes[:-1].sum() < mass
                assert count == sparse.get("top_k") or kept_magnitudes.sum() >= mass * (1 - 1e-6)
            else:
                assert count == sparse["top_k"]


@given(
    st.integers(1, 12).flatmap(
        lambda size: st.lists(
            st.lists(st.sampled_from([0.0, 1e-9, 0.1, 0.25, 0.25, 1.0]), min_size=size, max_size=size),
            min_size=size,
            max_size=size,
        )
    ),
    st.none() | st.floats(0.01, 1),
    st.none() | st.integers(1, 13),
)
def test_sparse_rows_keep_as_few_values_as_possible(
    factory: AttendFactory, rows: list[list[float]], top_p: float | None, top_k: int | None
) -> None:
    """The rows contain ties, some zeros, or only zeros."""
    if top_p is None and top_k is None:
        top_p = 1.0
    values = np.array(rows, np.float32)
    case = factory.case("x" if len(values) == 1 else " ".join(["x"] * len(values)), top_p=top_p, top_k=top_k)
    sparse = case.task._sparsify(np.pad(values, ((0, 2), (0, 2))))  # [CLS] and [SEP] add two rows and columns
    full = dense(sparse, case.task.units.columns)
    np.testing.assert_allclose(full[: len(values), : len(values)].sum(axis=1) + decoded(sparse.dropped_mass)[:-2],
                               values.sum(axis=1), atol=1e-6)  # fmt: skip
    counts = np.diff(sparse.indptr)
    assert counts.max() <= (top_k or len(values) + 2)
    assert counts[-1] == 0, "a row of zeros keeps no values"
    if top_p is not None:
        for row, count in zip(values.astype(np.float64), counts, strict=False):
            covered = np.cumsum(np.sort(row)[::-1])
            needed = int((covered < top_p * covered[-1] * (1 - 1e-9)).sum()) + 1 if covered[-1] > 0 else 0
            assert count == min(needed, top_k or needed)
