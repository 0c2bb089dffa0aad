"""Padded arrays: each input's values, and zeros elsewhere."""

import numpy as np

from service.engine.padding import pad_maps, pad_matrices, stack_vectors
from service.engine.schema.encode import Array
from service.engine.schema.explain import AttentionMap


def numbers(*shape: int) -> Array:
    return Array(np.arange(1, 1 + np.prod(shape), dtype=np.float32).reshape(shape), "float32")


def test_vectors_are_stacked() -> None:
    assert stack_vectors([numbers(2), numbers(2)]).values.tolist() == [[1, 2], [1, 2]]


def test_matrices_are_padded_with_zeros() -> None:
    assert pad_matrices([numbers(1, 2), numbers(2, 2)]).values.tolist() == [[[1, 2], [0, 0]], [[1, 2], [3, 4]]]


def test_maps_are_ordered_by_layer_and_head_and_padded_with_zeros() -> None:
    def maps(size: int) -> list[AttentionMap]:
        matrices = [Array(numbers(size, size).values * (1 + index), "float32") for index in range(6)]
        return [
            AttentionMap(index // 3, index % 3, matrix, None, None, None, []) for index, matrix in enumerate(matrices)
        ]

    padded = pad_maps([maps(2), maps(3)], layers=2)
    assert (padded.shape, padded.dtype) == ((2, 2, 3, 3, 3), "float32")
    for index, size in enumerate((2, 3)):
        for layer, head in np.ndindex(2, 3):
            block = padded.values[index, layer, head]
            assert (block[:size, :size] == numbers(size, size).values * (1 + 3 * layer + head)).all()
            assert not block[size:].any()
            assert not block[:, size:].any()
