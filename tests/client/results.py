"""Comparison of client results."""

from typing import Any

import numpy as np
import pytest


def assert_equal(actual: Any, expected: Any, *, tolerance: float = 1e-3) -> None:
    """Compare dataclasses, lists and arrays; `tolerance` is the absolute difference allowed between floats."""
    if isinstance(expected, np.ndarray):
        assert actual.dtype == expected.dtype
        np.testing.assert_allclose(actual, expected, atol=tolerance)
    elif isinstance(expected, (list, tuple)):
        assert len(actual) == len(expected)
        for left, right in zip(actual, expected, strict=True):
            assert_equal(left, right, tolerance=tolerance)
    elif hasattr(expected, "__slots__") and not isinstance(expected, (str, int, float)):
        for name in expected.__slots__:
            assert_equal(getattr(actual, name), getattr(expected, name), tolerance=tolerance)
    elif isinstance(expected, float):
        assert actual == pytest.approx(expected, abs=tolerance)
    else:
        assert actual == expected
