"""Memory-mapped weights of an artifact."""

import mmap
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model.records import TensorRecord

STORED = {"float32": "<f4", "float16": "<f2", "bfloat16": "<u2"}
"""NumPy has no bfloat16, so its bits are read as integers."""


class MappedTensor:
    """A read-only tensor in a memory-mapped file. Indexing returns float32: a view of float32 values, else a copy."""

    def __init__(self, record: TensorRecord, mapping: mmap.mmap) -> None:
        self.shape = record.shape
        self._stored: NDArray[Any] = np.ndarray(record.shape, STORED[record.dtype], mapping, record.offset)

    def __getitem__(self, index: Any) -> NDArray[np.float32]:
        values = self._stored[index]
        if values.dtype == np.uint16:  # bfloat16 is the upper half of float32
            return (values.astype(np.uint32) << 16).view(np.float32)  # type: ignore[no-any-return]
        return values.astype(np.float32, copy=False)  # type: ignore[no-any-return]
