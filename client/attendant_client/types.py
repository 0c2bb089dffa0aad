"""Requests and responses.

Shapes: T tokens, W words, S spans, D hidden size, E width of the embedding table, R rows and C columns of a map.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Input:
    """A text, a pair of texts, or token ids; `spans` are character ranges [start, end) of the text."""

    text: str | None = None
    pair: str | None = None
    spans: Sequence[tuple[int, int]] = ()
    token_ids: Sequence[int] | None = None


@dataclass(frozen=True, slots=True)
class Occurrence:
    """A text with either a character range [start, end) or a word index."""

    text: str
    span: tuple[int, int] | None = None
    word_index: int | None = None


@dataclass(frozen=True, slots=True)
class Token:
    """A token. `start` and `end` are character offsets; `word_index` is None outside of words."""

    id: int
    text: str
    start: int
    end: int
    word_index: int | None
    segment: int
    special: bool


@dataclass(frozen=True, slots=True)
class Word:
    """A word. `start` and `end` are character offsets."""

    text: str
    start: int
    end: int
    segment: int


@dataclass(frozen=True, slots=True)
class SparseVector:
    """The N vocabulary entries with a positive weight, in ascending order of their ids."""

    token_ids: NDArray[np.int32]
    """int32, (N)"""
    tokens: list[str]
    """Texts of the entries in the vocabulary."""
    weights: Array
    """(N)"""


@dataclass(frozen=True, slots=True)
class EncodeResult:
    """The result for one input. Unrequested outputs are None. With N layers, arrays have a leading axis of size N."""

    token_count: int
    truncated: bool
    tokens: list[Token] | None
    words: list[Word] | None
    pooled: Array | None
    """(D)"""
    token_vectors: Array | None
    """(T, D)"""
    word_vectors: Array | None
    """(W, D)"""
    span_vectors: Array | None
    """(S, D)"""
    static_vectors: Array | None
    """(T, E)"""
    sparse: SparseVector | None
    multi_vector: Array | None
    """Vectors of length 1 for late interaction, (K, D)"""
    multi_vector_tokens: list[Token] | None
    """Tokens of `multi_vector`, K"""


@dataclass(frozen=True, slots=True)
class EncodeResponse:
    """One result per input, in input order."""

    model: str
    precision: str
    results: list[EncodeResult]
    token_count: int
    truncated_inputs: int
    prompt_name: str | None
    prompt: str | None


@dataclass(frozen=True, slots=True)
class TokenizeResult:
    """Tokens and words of one input, untruncated."""

    token_count: int
    tokens: list[Token]
    words: list[Word]


@dataclass(frozen=True, slots=True)
class TokenizeResponse:
    """One result per input, in input order."""

    model: str
    results: list[TokenizeResult]
    token_count: int


@dataclass(frozen=True, slots=True)
class Unit:
    """A token, word or span that a row or column of a map stands for.

    `word_index` is the word's index in the results of `encode` and `tokenize`, or None for other units.
    """

    text: str
    start: int
    end: int
    segment: int
    special: bool
    word_index: int | None = None


@dataclass(frozen=True, slots=True)
class SparseMatrix:
    """The largest values of each row in CSR format; `indices` refer to the result's units."""

    indptr: NDArray[np.int32]
    indices: NDArray[np.int32]
    values: Floats
    dropped_mass: Floats


@dataclass(frozen=True, slots=True)
class AttentionMap:
    """One map, either `matrix`, float32 (R, C), or `sparse`. `layer` and `head` are None if several were combined."""

    layer: int | None
    head: int | None
    matrix: Floats | None
    sparse: SparseMatrix | None
    excluded_mass: Floats | None
    bias_share: Floats | None
    empty_rows: list[int]


@dataclass(frozen=True, slots=True)
class AttendResult:
    """Maps of one input; `rows` and `columns` are unit indices."""

    truncated: bool
    units: list[Unit]
    rows: list[int]
    columns: list[int]
    maps: list[AttentionMap]


@dataclass(frozen=True, slots=True)
class AttendResponse:
    """One result per input, in input order."""

    model: str
    precision: str
    results: list[AttendResult]
    token_count: int
    truncated_inputs: int


@dataclass(frozen=True, slots=True)
class Contributor:
    """A word that contributes to an occurrence, with its share of the contributions of all other words."""

    text: str
    start: int
    end: int
    share: float


@dataclass(frozen=True, slots=True)
class OccurrenceResult:
    """An occurrence and the words that contribute most to it, in descending order."""

    text: str
    start: int
    end: int
    contributors: list[Contributor]


@dataclass(frozen=True, slots=True)
class LayerSimilarity:
    """Cosines of N occurrences, (N, N); `centered` are computed after subtracting the mean of all tokens."""

    layer: int
    cosine: Floats
    centered: Floats


@dataclass(frozen=True, slots=True)
class CompareResponse:
    """Occurrences in request order, their static similarity (N, N), and their similarity per layer."""

    model: str
    precision: str
    occurrences: list[OccurrenceResult]
    static: Floats
    layers: list[LayerSimilarity]
    token_count: int
