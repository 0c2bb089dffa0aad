"""Backends of the limit, with the default model."""

from pathlib import Path

import numpy as np
import pytest

from tests.bench.limit import SHAPES, Limit
from tests.bench.machine import Machine
from tests.bench.project import Model

pytestmark = pytest.mark.slow

TEXTS = ["The bank of the river.", "She cashed a check at the bank yesterday.", "Rain."]


@pytest.fixture(scope="module")
def limit(default_artifact: Path) -> Limit:
    """This machine's backends after a short calibration."""
    machine = Machine.read()
    limit = Limit(Model(default_artifact), machine.cores, machine.has_bfloat16, print)
    limit.calibrate(TEXTS, 0.01, print)
    return limit


def test_limit_comes_from_a_correct_backend(limit: Limit) -> None:
    figure = limit.measure(0.05)
    assert figure.tokens_per_second >= figure.float32_tokens_per_second > 0
    assert limit.cosines[limit.backend.name] >= 0.9999
    assert len(limit.cosines) in (2, 4) or Machine.read().cores == 1


def test_reference_vectors_have_length_1(limit: Limit) -> None:
    vectors = limit.reference(TEXTS)
    assert vectors.shape == (3, 384)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(1.0)


def test_dense_inputs_are_one_sequence_per_row(limit: Limit) -> None:
    rows, tokens = SHAPES[-1]
    inputs = limit.backend.dense(np.full((rows, tokens), 7, dtype=np.int64))
    assert {values.shape for values in inputs.values()} == {(rows, tokens)}
    sums = sorted(int(values[0].sum()) for values in inputs.values())
    assert sums == sorted([7 * tokens, sum(range(tokens)), 0, tokens])


def test_median_run_is_in_milliseconds(limit: Limit) -> None:
    assert 0.1 < limit.median_run_ms(TEXTS) < 1000
