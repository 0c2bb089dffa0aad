"""Padded arrays: each input's values, and zeros elsewhere."""

import numpy as np
from attendant_client.types import Array

from service.oip.inference import pad, pad_maps

FLOAT32 = np.dtype(np.float32)


def numbers(*shape: int) -> Array:
    return np.arange(1, 1 + np.prod(shape), dtype=np.float32).reshape(shape)


def test_arrays_are_padded_with_zeros() -> None:
    assert pad([numbers(2), numbers(2)], FLOAT32).tolist() == [[1, 2], [1, 2]]
    assert pad([numbers(1), numbers(2)], np.dtype(np.int64)).tolist() == [[1, 0], [1, 2]]
    assert pad([numbers(1, 2), numbers(2, 2)], FLOAT32).tolist() == [[[1, 2], [0, 0]], [[1, 2], [3, 4]]]


def test_maps_are_ordered_by_layer_and_head_and_padded_with_zeros() -> None:
    padded = pad_maps([[numbers(size, size) * (1 + index) for index in range(6)] for size in (2, 3)], layers=2)
    assert (padded.shape, padded.dtype) == ((2, 2, 3, 3, 3), FLOAT32)
    for index, size in enumerate((2, 3)):
        for layer, head in np.ndindex(2, 3):
            block = padded[index, layer, head]
            assert (block[:size, :size] == numbers(size, size) * (1 + 3 * layer + head)).all()
            assert not block[size:].any()
            assert not block[:, size:].any()
