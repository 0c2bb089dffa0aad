"""Similarities of labeled texts and words under one model."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np

from model.artifact.manifest import Similarity
from model.artifact.tokenizer import TokenizerInput
from service.commands.encoding import BATCH_SIZE, TextEncoder, name_text
from service.commands.evaluate.datasets import WordPlace
from service.commands.evaluate.measures import Values
from service.commands.evaluate.records import line_error
from service.commands.lines import LabeledText, TextError
from service.commands.neighbors import DECIMALS, Floats, normalize
from service.engine.encode.similarity_functions import compare_rows
from service.engine.schema.encode import EncodeRequest, EncodeResult, Input
from service.errors import ServiceError

Item = TypeVar("Item")


async def pair_similarities(encoder: TextEncoder, path: Path, texts: Sequence[LabeledText]) -> Values:
    """Return the similarities of consecutive pairs of texts (0 and 1, 2 and 3, ...), (N / 2,). Raises `TextError`."""
    similarity = encoder.engine.info.similarity
    return np.concatenate([_compare_pairs(rows, similarity) async for rows in encoder.batches(path, texts, None)])


async def word_cosines(encoder: TextEncoder, path: Path, places: Sequence[WordPlace]) -> tuple[Values, Values]:
    """Return the contextual and static cosines of consecutive pairs of words, (N / 2,) each. Raises `TextError`."""
    contextual: list[Values] = []
    static: list[Values] = []
    done = 0
    for batch in split_batches(places):
        inputs = tuple(Input(TokenizerInput(place.text)) for place in batch)
        request = EncodeRequest(inputs, outputs=("tokens", "words", "static"), truncation="auto", prompt="")
        try:
            response = await encoder.engine.encode(request)
        except ServiceError as error:
            name_text(error, [f"line {place.line}: text{place.side}" for place in batch])
            raise TextError(f"{path}: {error.message}") from None
        vectors = [_word_vectors(path, *item) for item in zip(batch, response.results, strict=True)]
        for cosines, rows in zip((contextual, static), zip(*vectors, strict=True), strict=True):
            cosines.append(_compare_pairs(normalize(np.stack(rows), "cosine"), "cosine"))
        done += len(batch)
        encoder.truncated += response.truncated_inputs
        encoder.report(path, done, len(places))
    return np.concatenate(contextual), np.concatenate(static)


def split_batches(items: Sequence[Item]) -> Iterator[Sequence[Item]]:
    for start in range(0, len(items), BATCH_SIZE):
        yield items[start : start + BATCH_SIZE]


def word_problem(word: int, result: EncodeResult) -> str:
    """Return why a word has no vector."""
    assert result.words is not None
    last = len(result.words) - 1
    if word <= last:
        return f"word without tokens ({word}). Use another word."
    if result.truncated:
        return f"removed by truncation ({word}, limit {last}). Shorten the text or remove the line."
    return f"out of range ({word}, limit {last}). Use 0 to {last}."


def _word_vectors(path: Path, place: WordPlace, result: EncodeResult) -> tuple[Floats, Floats]:
    """Return the means of the last hidden states and of the embedding table over a word's tokens, (D,) each."""
    assert result.tokens is not None
    assert result.token_vectors is not None
    assert result.static_vectors is not None
    if place.word_index is not None:
        own = [not token.special and token.word_index == place.word_index for token in result.tokens]
        problem = f"word_index{place.side}: {word_problem(place.word_index, result)}"
    else:
        assert place.start is not None
        assert place.end is not None
        own = [not token.special and token.start < place.end and token.end > place.start for token in result.tokens]
        problem = "removed by truncation. Shorten the text" if result.truncated else "span without tokens. Move it"
        problem = f"start{place.side}: {problem} or remove the line."
    if not any(own):
        raise line_error(path, place.line, problem)
    return _mean(result.token_vectors.values, own), _mean(result.static_vectors.values, own)


def _mean(vectors: Floats, chosen: Sequence[bool]) -> Floats:
    mean: Floats = vectors[np.array(chosen)].mean(axis=0)
    return mean


def _compare_pairs(rows: Floats, similarity: Similarity) -> Values:
    """Return the rounded similarities of consecutive pairs of rows."""
    similarities: Values = compare_rows(rows[0::2], rows[1::2], similarity).astype(np.float64)
    return np.round(similarities, DECIMALS)
