"""Attention maps of a request: scores without excluded mass, and rows without mass."""

from typing import Any

import numpy as np
import pytest
from attendant_client.types import UnitKind

from service.operations.attend import AttendTask
from service.operations.inputs import Call
from service.operations.maps import AttentionMapSpec
from tests.random_encoders import HandMadeLayer
from tests.service.engine.explain.attend_cases import (
    AttendFactory,
    compute,
    decoded,
    dense,
    layers_and_heads,
    map_values,
)


def test_scores_have_no_excluded_mass_or_bias_share(factory: AttendFactory) -> None:
    result = factory.run(factory.case(kind="scores", layers=(4,), head_reduce="mean"))
    assert layers_and_heads(result) == [(4, None)]
    assert [(scores.excluded_mass, scores.bias_share) for scores in result.maps] == [(None, None)]


@pytest.mark.parametrize("unit", ["word", "span"])
def test_rows_without_mass_are_empty(factory: AttendFactory, unit: UnitKind) -> None:
    """Two tokens attend only to [CLS], which the request drops, so their rows are zero in dense and sparse maps."""
    fields: dict[str, Any] = {"unit": unit, "special_tokens": "renormalize", "layers": (1,), "heads": (0,)}
    dense_case, sparse_case = factory.case(**fields), factory.case(**fields, top_p=0.9)
    tokens, units = dense_case.task.tokens, dense_case.task.units
    width = len(tokens)
    eye, zeros = np.eye(width, dtype=np.float32), np.zeros((width, width), np.float32)
    query = zeros.copy()
    query[8, 0] = query[5, 0] = 1000  # "bank" and "check" attend only to [CLS]
    layer = HandMadeLayer(query, np.zeros(width, np.float32), eye, eye)
    spec = AttentionMapSpec("probs", (1,), (0,), "none", "none")
    for case in (dense_case, sparse_case):
        (probs,) = compute(AttendTask(tokens, units, spec, case.request, Call()), eye[None], [layer]).maps
        expected = [units.units.index(unit) for unit in units.units if unit.text in ("bank", "check")]
        assert probs.empty_rows == expected
        assert probs.excluded_mass is not None
        assert probs.excluded_mass[expected].tolist() == [1, 1]
        matrix = decoded(map_values(probs)) if probs.sparse is None else dense(probs.sparse, units.columns)
        row_sums = np.ones(len(matrix))
        row_sums[expected] = 0
        if probs.sparse is None:
            np.testing.assert_allclose(matrix.sum(axis=1), row_sums, atol=1e-6)
        else:
            np.testing.assert_allclose(matrix.sum(axis=1) + decoded(probs.sparse.dropped_mass), row_sums, atol=1e-6)
            assert [probs.sparse.indptr[row + 1] - probs.sparse.indptr[row] for row in expected] == [0, 0]
