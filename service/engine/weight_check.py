"""Checks an artifact's weights and token ids before a model is served.

The digests prove that the files are what the export wrote, not that the export was right: a NaN in one row of the
embedding table shows up only in texts with that token. Files are read in blocks to limit memory use.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from model.artifact.files import TOKENIZER, Artifact, ArtifactError
from model.artifact.manifest import TensorRecord, TensorType
from model.artifact.tokenizer import Tokenizer, find_missing_token, find_missing_type, inserted_tokens
from service.engine.backends.sessions import read_graph

PIECE_BYTES = 2**18
EXPONENTS = {"float32": ("<u4", 0x7F800000), "float16": ("<u2", 0x7C00), "bfloat16": ("<u2", 0x7F80)}
"""The integer type and the exponent bits, which are all set only in NaN and infinity."""
ONNX_TYPES: dict[int, TensorType] = {1: "float32", 10: "float16", 16: "bfloat16"}


@dataclass(frozen=True)
class _Range:
    """The bytes of a tensor in a file."""

    file: str
    start: int
    end: int
    dtype: TensorType


def check_weights(artifact: Artifact) -> None:
    """Raise `ArtifactError` if a weight is NaN or infinite."""
    names: dict[_Range, str] = {}
    for field, record in artifact.manifest.tensors():
        names.setdefault(_range_of(record), field)
    for graph, file in ((name, record.file) for name, record in artifact.manifest.graphs.items()):
        for tensor in read_graph(artifact, graph).graph.initializer:
            dtype = ONNX_TYPES.get(tensor.data_type)
            if dtype is None:
                continue
            if tensor.raw_data and not _is_finite(tensor.raw_data, dtype):
                raise _invalid(artifact, file, tensor.name)
            if tensor.external_data:
                location = {entry.key: entry.value for entry in tensor.external_data}
                record = TensorRecord(
                    file=location["location"],
                    offset=int(location.get("offset", 0)),
                    shape=tuple(tensor.dims),
                    dtype=dtype,
                )
                names[_range_of(record)] = tensor.name
    for place, name in names.items():
        if not all(_is_finite(piece, place.dtype) for piece in _pieces(artifact, place)):
            raise _invalid(artifact, place.file, name)


def check_tokens(artifact: Artifact, tokenizer: Tokenizer) -> None:
    """Raise `ArtifactError` if an input can contain a token without a row in the embedding table."""
    manifest = artifact.manifest
    classifier, masked, rows = manifest.classification, manifest.masked_lm, manifest.architecture.vocab_size
    if isinstance(manifest.static, TensorRecord):
        rows = min(rows, manifest.static.shape[0])
    inserted = inserted_tokens(
        manifest.multi_vector,
        None if classifier is None else classifier.template,
        None if masked is None else masked.mask_token_id,
    )
    problem = find_missing_token(tokenizer, rows, inserted)
    problem = problem or find_missing_type(tokenizer, manifest.architecture.type_vocab_size)
    if problem is not None:
        raise ArtifactError(f"{artifact.root / TOKENIZER}: {problem}. Export again.")


def _range_of(record: TensorRecord) -> _Range:
    size = math.prod(record.shape) * np.dtype(EXPONENTS[record.dtype][0]).itemsize
    return _Range(record.file, record.offset, record.offset + size, record.dtype)


def _pieces(artifact: Artifact, place: _Range) -> Iterator[bytes]:
    for start in range(place.start, place.end, PIECE_BYTES):
        yield artifact.read_range(place.file, start, min(start + PIECE_BYTES, place.end))


def _is_finite(values: bytes, dtype: TensorType) -> bool:
    """Return whether all values are finite. `isfinite().all()` takes twice as long, and a sum can overflow."""
    integer, exponent = EXPONENTS[dtype]
    bits = np.frombuffer(values, integer)
    return not bits.size or bool(np.bitwise_and(bits, exponent).max() != exponent)


def _invalid(artifact: Artifact, file: str, tensor: str) -> ArtifactError:
    return ArtifactError(f"{artifact.root / file}: tensor {tensor} contains NaN or infinity. Export again.")
