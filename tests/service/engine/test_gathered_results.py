"""Results of a request that several batches computed."""

from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from service.engine.tasks import PooledVectors, TextVectors, gather


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12), st.sets(st.integers(0, 3)))
def test_results_follow_the_order_of_the_tasks(batches: list[int], mixed: set[int]) -> None:
    """A batch returns rows of one matrix, or one result per task if it also computed token vectors."""
    rows = np.arange(2.0 * len(batches), dtype=np.float32).reshape(-1, 2)
    parts: list[tuple[Sequence[int], Sequence[TextVectors]]] = []
    for batch in sorted(set(batches)):
        places = [place for place, number in enumerate(batches) if number == batch]
        vectors = PooledVectors(rows[places])
        parts.append((places, [*vectors] if batch in mixed else vectors))
    results = gather(parts)
    assert len(results) == len(batches)
    assert [result.pooled.tolist() for result in results] == rows[:, None].tolist()
    assert isinstance(results, PooledVectors) == mixed.isdisjoint(batches)
