"""Similarities of labeled texts and words under one model."""

import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from model.manifest import Role
from model.tokenizer import Offsets, TokenizerInput
from service.commands.encoding import Progress, TextError
from service.commands.evaluate.datasets import Text, WordPlace
from service.commands.evaluate.measures import Values
from service.commands.lines import BATCH_SIZE, LabeledText, encode_texts, name_text
from service.commands.neighbors import DECIMALS, Floats, normalize
from service.engine.schema.encode import (
    EncodeRequest,
    EncodeResponse,
    EncodeResult,
    Input,
    TokenizeRequest,
    TokenizeResult,
)
from service.errors import OutOfRange, ServiceError

if TYPE_CHECKING:
    from service.engine.engine import Engine


class Encoder:
    """Runs one engine and reports progress on stderr. Errors name file, line and field."""

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine
        self._progress = Progress(engine.info.name)
        self.truncated = 0
        self.similarity = engine.info.similarity

    async def pair_similarities(self, path: Path, texts: Sequence[LabeledText]) -> Values:
        """Return the similarities of consecutive pairs of texts (0 and 1, 2 and 3, ...), (N / 2,)."""
        similarities = np.empty(len(texts) // 2)
        done = 0
        async for rows in self._batches(path, texts, None):
            vectors = normalize(rows, self.similarity)
            similarities[done // 2 : (done + len(rows)) // 2] = _row_products(vectors[0::2], vectors[1::2])
            done += len(rows)
        return similarities

    async def vectors(self, path: Path, texts: Sequence[Text], role: Role) -> Floats:
        """Return normalized vectors of texts with the role's prompt, (N, D)."""
        vectors = np.empty((len(texts), self._engine.info.dimensions), np.float32)
        done = 0
        async for rows in self._batches(path, [(text.label, text.text) for text in texts], role):
            vectors[done : done + len(rows)] = normalize(rows, self.similarity)
            done += len(rows)
        return vectors

    async def word_cosines(self, path: Path, places: Sequence[WordPlace]) -> tuple[Values, Values]:
        """Return the contextual and static cosines of consecutive pairs of words, (N / 2,) each."""
        contextual, static = np.empty(len(places) // 2), np.empty(len(places) // 2)
        remaining, done = iter(places), 0
        while batch := list(islice(remaining, BATCH_SIZE)):
            try:
                spans = await self._spans(batch)
                inputs = tuple(
                    Input(TokenizerInput(place.text), (span,)) for place, span in zip(batch, spans, strict=True)
                )
                request = EncodeRequest(inputs, outputs=("spans", "static"), truncation="right", prompt="")
                response = await self._engine.encode(request)
            except ServiceError as error:
                raise _word_error(path, error, batch) from None
            part = slice(done // 2, (done + len(batch)) // 2)
            contextual[part] = _pair_cosines([_span_vector(result) for result in response.results])
            static[part] = _pair_cosines([_static_vector(*item) for item in zip(response.results, spans, strict=True)])
            done += len(batch)
            self._count(path, response, done, len(places))
        return contextual, static

    async def _batches(
        self, path: Path, texts: Sequence[LabeledText], role: Role | None
    ) -> AsyncGenerator[Floats, None]:
        prompt, done = self._engine.role_prompt_name(role), 0
        try:
            async with aclosing(encode_texts(self._engine, texts, prompt)) as responses:
                async for response in responses:
                    done += len(response.results)
                    self._count(path, response, done, len(texts))
                    yield np.stack([result.pooled.values for result in response.results if result.pooled is not None])
        except ServiceError as error:
            raise TextError(f"{path}: {error.message}") from None

    async def _spans(self, places: Sequence[WordPlace]) -> list[Offsets]:
        inputs = tuple(Input(TokenizerInput(place.text)) for place in places)
        response = await self._engine.tokenize(TokenizeRequest(inputs))
        located = zip(places, response.results, strict=True)
        return [_find_span(index, place, result) for index, (place, result) in enumerate(located)]

    def _count(self, path: Path, response: EncodeResponse, done: int, total: int) -> None:
        self.truncated += response.truncated_inputs
        self._progress.report(path, done, total)


def _find_span(index: int, place: WordPlace, result: TokenizeResult) -> Offsets:
    """Return the word's character range. Raises `InvalidArgument` if there is no such word."""
    if place.span is not None:
        return place.span
    assert place.word_index is not None
    words = result.words
    if place.word_index >= len(words):
        last = len(words) - 1
        raise OutOfRange(
            "out of range", f"Use 0 to {last}.",
            field=f"inputs[{index}].spans[0]", actual=place.word_index, minimum=0, maximum=last,
        )  # fmt: skip
    word = words[place.word_index]
    return word.start, word.end


def _word_error(path: Path, error: ServiceError, places: Sequence[WordPlace]) -> TextError:
    """Return an error that names the field in the file instead of the one in the request."""
    name_text(error, [place.label for place in places])

    def field(match: re.Match[str]) -> str:
        line, side = match.groups()
        (place,) = (place for place in places if place.label == match[0].removesuffix(".spans[0]"))
        return f"{line}: {'word_index' if place.span is None else 'start'}{side}"

    message = re.sub(r"^(line \d+): text([12])\.spans\[0\]", field, error.message)
    return TextError(f"{path}: {message.replace('the span', 'the line')}")


def _row_products(left: Floats, right: Floats) -> Values:
    """Return the rounded products of corresponding rows."""
    products: Values = np.einsum("nd,nd->n", left, right).astype(np.float64)
    np.round(products, DECIMALS, out=products)
    return products


def _pair_cosines(rows: Sequence[Floats]) -> Values:
    vectors = normalize(np.stack(rows), "cosine")
    return _row_products(vectors[0::2], vectors[1::2])


def _span_vector(result: EncodeResult) -> Floats:
    assert result.span_vectors is not None
    vector: Floats = result.span_vectors.values[0]
    return vector


def _static_vector(result: EncodeResult, span: Offsets) -> Floats:
    """Return the mean of the embedding table over a word's tokens."""
    assert result.static_vectors is not None
    assert result.tokens is not None
    own = [not token.special and token.start < span[1] and token.end > span[0] for token in result.tokens]
    vector: Floats = result.static_vectors.values[own].mean(axis=0)
    return vector
