"""Encoding attention maps: dtypes, base64 and decimals."""

import json
from decimal import Decimal

import numpy as np
import pytest
from attendant_client.types import AttendResult, MapDtype

from tests.service.conftest import ServiceHarness
from tests.service.engine.explain.attend_cases import (
    CHEQUE,
    PASSAGE,
    AttendFactory,
    stacked,
)


@pytest.mark.parametrize(
    ("dtype", "cell", "row", "top"),
    [("float32", 0, 1e-6, 1), ("float16", 2**-12, 3.4e-4, 0.9996), ("sqrt_uint8", 3.9e-3, 1e-2, 0.98)],
)
def test_dtype_keeps_cells_row_sums_and_largest_keys(
    factory: AttendFactory, passage: AttendResult, dtype: MapDtype, cell: float, row: float, top: float
) -> None:
    """Checks the largest error in any cell and row sum, and the share of rows that keep their largest key."""
    maps = stacked(factory.run(factory.case(PASSAGE, wire="base64", dtype=dtype)))
    exact = stacked(passage)
    same_top = (maps.argmax(axis=-1) == exact.argmax(axis=-1)).mean()
    errors = np.abs(maps - exact).max(), np.abs(maps.sum(axis=-1) - 1).max()
    print(f"{dtype}: cell {errors[0]:.1e}, row sum {errors[1]:.1e}, same largest {same_top:.4f}")
    assert errors[0] <= cell
    assert errors[1] <= row
    assert same_top >= top


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("decimals", [1, 5, 9])
@pytest.mark.parametrize("kind", ["probs", "scores", "projection"])
async def test_decimals_round_every_number(harness: ServiceHarness, kind: str, decimals: int, dtype: str) -> None:
    """The error is at most half of the last decimal, plus dtype rounding."""
    body = {"inputs": CHEQUE, "kind": kind, "layers": [3], "heads": "all" if kind == "projection" else [5]}
    exact, rounded = [
        json.loads((await harness.post("/v1/attend", {**body, **more})).text, parse_float=Decimal)["results"][0]["maps"]
        for more in ({}, {"decimals": decimals, "dtype": dtype})
    ]
    for field in ("matrix", "excluded_mass", "bias_share"):
        if exact[0][field] is None:
            continue
        values = np.array(rounded[0][field], dtype=object).ravel().tolist()
        assert all(value == round(value, decimals) for value in values), field
        expected = np.array(exact[0][field], np.float64).ravel()
        magnitude = max(1.0, float(np.abs(expected).max()))
        epsilon = 2**-11 if dtype == "float16" and field == "matrix" else 2**-23
        error = float(np.abs(np.array(values, np.float64) - expected).max())
        assert error <= 0.5 * 10**-decimals + epsilon * magnitude, field
