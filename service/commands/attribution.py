"""Similarities of labeled texts and words, and rankings of words by their effect on a word or on a score."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from attendant_client.types import (
    AttendRequest,
    Effect,
    EncodeRequest,
    EncodeResult,
    HeadReduce,
    Input,
    MapLayerReduce,
    SimilarityRequest,
    SimilarityResponse,
    Unit,
    required,
)

from model.artifact.manifest import ONE_TOKEN_POOLINGS, Kind, Similarity
from service.commands.labeled_texts import AttributionLine, LabeledText, Records, TextError, WordPlace, line_error
from service.commands.measures import DECIMALS, Flags, Floats, Values, normalize, top_precision
from service.commands.sources import BATCH_SIZE, TextEncoder, name_text
from service.engine.vectors import compare_rows
from service.errors import ServiceError
from service.operations.attend import attend
from service.operations.encode import encode
from service.operations.inputs import Call
from service.operations.similarity import similarity

ItemT = TypeVar("ItemT")


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
        inputs = tuple(Input(place.text) for place in batch)
        request = EncodeRequest(inputs, outputs=("tokens", "words", "static"), truncation="auto", prompt="")
        try:
            response = await encode(encoder.engine, request, Call())
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


def split_batches(items: Sequence[ItemT]) -> Iterator[Sequence[ItemT]]:
    for start in range(0, len(items), BATCH_SIZE):
        yield items[start : start + BATCH_SIZE]


def word_problem(word: int, result: EncodeResult) -> str:
    """Return why a word has no vector."""
    last = len(required(result.words)) - 1
    if word <= last:
        return f"word without tokens ({word}). Use another word."
    if result.truncated:
        return f"removed by truncation ({word}, limit {last}). Shorten the text or remove the line."
    return f"out of range ({word}, limit {last}). Use 0 to {last}."


def _word_vectors(path: Path, place: WordPlace, result: EncodeResult) -> tuple[Floats, Floats]:
    """Return the means of the last hidden states and of the embedding table over a word's tokens, (D,) each."""
    content = required(result.tokens)
    if place.word_index is not None:
        own = [not token.special and token.word_index == place.word_index for token in content]
        problem = f"word_index{place.side}: {word_problem(place.word_index, result)}"
    else:
        assert place.start is not None
        assert place.end is not None
        own = [not token.special and token.start < place.end and token.end > place.start for token in content]
        problem = "removed by truncation. Shorten the text" if result.truncated else "span without tokens. Move it"
        problem = f"start{place.side}: {problem} or remove the line."
    if not any(own):
        raise line_error(path, place.line, problem)
    contextual, static = required(result.token_vectors), required(result.static_vectors)
    return contextual[own].mean(axis=0), static[own].mean(axis=0)


def _compare_pairs(rows: Floats, similarity: Similarity) -> Values:
    """Return the rounded similarities of consecutive pairs of rows."""
    similarities: Values = compare_rows(rows[0::2], rows[1::2], similarity).astype(np.float64)
    return np.round(similarities, DECIMALS)


HEAD_REDUCES: dict[Kind, HeadReduce] = {"probs": "mean", "norm": "sum", "block_norm": "sum", "projection": "sum"}

OCCLUSION = "occlusion"
CONTRIBUTIONS, LEAVE_ONE_OUT = "similarity contributions", "similarity leave_one_out"
SIMILARITY_OCCLUSION = "similarity occlusion"
SIMILARITY_METHODS = (CONTRIBUTIONS, LEAVE_ONE_OUT, SIMILARITY_OCCLUSION)


@dataclass(frozen=True)
class LocatedText:
    """A text and its W words that have tokens. `target` is an index, and `deciding` is a mask, (W,)."""

    line: AttributionLine
    token_ids: tuple[int, ...]
    """Token ids without special tokens."""
    word_of_token: tuple[int | None, ...]
    """Position of each token's word."""
    starts: tuple[int, ...]
    """Start character of each word."""
    target: int
    deciding: Flags
    vector: Floats
    """Mean of the target's last hidden states, (D,)."""

    @property
    def chance(self) -> float:
        """Precision@1 of a random ranking."""
        return int(self.deciding.sum()) / (len(self.deciding) - 1)

    def without(self, word: int) -> "tuple[tuple[int, ...], Flags]":
        """Return the token ids without a word, and a mask of the remaining tokens that belong to the target."""
        kept = [position for position, owner in enumerate(self.word_of_token) if owner != word]
        is_target = np.array([self.word_of_token[position] == self.target for position in kept])
        return tuple(self.token_ids[position] for position in kept), is_target


async def rank_words(encoder: TextEncoder, data: Records[AttributionLine]) -> "Attributor":
    """Compute the precision@1 of every supported method. Raises `TextError`, which names file, line and field."""
    attributor, path, done = Attributor(encoder), data.file.path, 0
    for batch in split_batches(data.lines):
        try:
            await attributor.rank(path, batch)
        except ServiceError as error:
            raise _line_error(path, error, batch) from None
        done += len(batch)
        encoder.report(path, done, len(data.lines))
    return attributor


class Attributor:
    """Computes precision@1 of each line by method, the chance level per line, and why methods are omitted.

    Methods in `SIMILARITY_METHODS` and `reference_chances` only cover lines with a reference.
    """

    def __init__(self, encoder: TextEncoder) -> None:
        self._encoder, self._engine = encoder, encoder.engine
        self.by_method: dict[str, list[float]] = {}
        self.chances: list[float] = []
        self.reference_chances: list[float] = []
        kinds = encoder.engine.info.attention_kinds
        missing = (kind for kind in HEAD_REDUCES if kind not in kinds)
        self.omitted: dict[str, str] = dict.fromkeys(missing, "no maps of this kind for this model")

    def _add(self, method: str, text: LocatedText, scores: Values) -> None:
        """Record how `scores`, (W,), rank a text's words."""
        others = np.arange(len(scores)) != text.target
        precision = top_precision(scores[others], text.deciding[others])
        self.by_method.setdefault(method, []).append(precision)

    async def rank(self, path: Path, lines: Sequence[AttributionLine]) -> None:
        """Rank the words of some lines. Raises `ServiceError` or `TextError`."""
        inputs = tuple(Input(line.text) for line in lines)
        request = EncodeRequest(inputs, outputs=("tokens", "words"), truncation="auto", prompt="")
        response = await encode(self._engine, request, Call())
        self._encoder.truncated += response.truncated_inputs
        texts = [_locate(path, line, result) for line, result in zip(lines, response.results, strict=True)]
        self.chances += [text.chance for text in texts]
        await self._rank_by_maps(texts)
        for text in texts:
            self._add(OCCLUSION, text, await self._occlude(text))
        await self._rank_by_similarity([text for text in texts if text.line.reference is not None])

    async def _rank_by_maps(self, texts: Sequence[LocatedText]) -> None:
        inputs = tuple(Input(text.line.text) for text in texts)
        for kind, head_reduce in HEAD_REDUCES.items():
            if kind not in self._engine.info.attention_kinds:
                continue
            layers = await self._rows(inputs, texts, kind, head_reduce, "none")
            rollout = await self._rows(inputs, texts, kind, head_reduce, "rollout")
            for text, rows, (rolled_out,) in zip(texts, layers, rollout, strict=True):
                self._add(f"{kind} last layer", text, _magnitudes(text, rows[-1]))
                self._add(f"{kind} mean of layers", text, _magnitudes(text, rows.mean(axis=0)))
                self._add(f"{kind} rollout", text, _magnitudes(text, rolled_out))

    async def _rows(
        self, inputs: tuple[Input, ...], texts: Sequence[LocatedText],
        kind: Kind, head_reduce: HeadReduce, layer_reduce: MapLayerReduce,
    ) -> list[Values]:  # fmt: skip
        """Return the target's row in each map, (L, W), or (1, W) for the rollout."""
        request = AttendRequest(
            inputs, kind=kind, head_reduce=head_reduce, layer_reduce=layer_reduce, unit="word", special_tokens="drop",
            truncation="auto",
        )  # fmt: skip
        results = (await attend(self._engine, request, Call())).results
        return [
            np.stack([item.matrix[text.target] for item in result.maps if item.matrix is not None], dtype=np.float64)
            for text, result in zip(texts, results, strict=True)
        ]

    async def _occlude(self, text: LocatedText) -> Values:
        """Return how far the target's vector moves (cosine distance) without each other word, (W,)."""
        distances = np.zeros(len(text.deciding))
        for words in split_batches([word for word in range(len(distances)) if word != text.target]):
            variants = [text.without(word) for word in words]
            inputs = tuple(Input(token_ids=ids) for ids, _ in variants)
            results = (await encode(self._engine, EncodeRequest(inputs, outputs=("tokens",)), Call())).results
            vectors = [_token_mean(result, is_target) for result, (_, is_target) in zip(results, variants, strict=True)]
            cosines = normalize(np.stack(vectors), "cosine") @ normalize(text.vector[None], "cosine")[0]
            distances[words] = 1 - np.round(cosines.astype(np.float64), DECIMALS)
        return distances

    async def _rank_by_similarity(self, texts: Sequence[LocatedText]) -> None:
        if not texts:
            return
        self.reference_chances += [text.chance for text in texts]
        one_token = next((pooling for pooling in self._engine.info.poolings if pooling in ONE_TOKEN_POOLINGS), None)
        if one_token:
            self.omitted[LEAVE_ONE_OUT] = f"not defined for {one_token} pooling"
        explained = await self._explain(texts, "none" if one_token else "leave_one_out")
        self._encoder.truncated += sum(document.truncated for document in explained.documents)
        for text, pair, query in zip(texts, explained.pairs or [], explained.queries, strict=True):
            units = query.units or []
            if pair.matrix is not None:
                self._add(CONTRIBUTIONS, text, _unit_scores(text, units, pair.matrix.sum(axis=1)))
            if pair.query_effects is not None:
                self._add(LEAVE_ONE_OUT, text, _unit_scores(text, units, pair.query_effects))
        for text in texts:  # one pair per request, because the number of occluded sequences is limited
            try:
                occluded = await self._explain([text], "occlusion")
            except ServiceError as error:
                error.field = f"line {text.line.line}: reference" + (f": {error.field}" if error.field else "")
                raise
            (pair,), (query,) = occluded.pairs or [], occluded.queries
            scores = _unit_scores(text, query.units or [], required(pair.query_effects))
            self._add(SIMILARITY_OCCLUSION, text, scores)

    async def _explain(self, texts: Sequence[LocatedText], effect: Effect) -> SimilarityResponse:
        """Compare each text as the query with its reference as the document."""
        queries = tuple(text.line.text for text in texts)
        documents = tuple(text.line.reference or "" for text in texts)
        request = SimilarityRequest(
            queries, documents, pairs="zip", explain=True, unit="word", truncation="auto", effect=effect
        )
        response = await similarity(self._engine, request, Call())
        if response.contributions_unavailable is not None:
            self.omitted[CONTRIBUTIONS] = f"not defined for {response.contributions_unavailable.replace('_', ' ')}"
        return response


def _locate(path: Path, line: AttributionLine, result: EncodeResult) -> LocatedText:
    """Find the words for a line of the file. Raises `TextError` if one of them has no tokens."""
    tokens = [token for token in required(result.tokens) if not token.special]
    listed = sorted({token.word_index for token in tokens if token.word_index is not None})
    position = {word: index for index, word in enumerate(listed)}
    named = {f"deciding_index[{index}]": word for index, word in enumerate(line.deciding_index)}
    for name, word in {"word_index": line.word_index, **named}.items():
        if word not in position:
            raise line_error(path, line.line, f"{name}: {word_problem(word, result)}")
    deciding = np.isin(listed, line.deciding_index)
    count, limit = int(deciding.sum()), len(listed) - 2
    if count > limit:
        problem = f"deciding_index: all other words of the text ({count}, limit {limit})"
        raise line_error(path, line.line, f"{problem}. Remove words or the line.")
    target = position[line.word_index]
    word_of_token = tuple(None if token.word_index is None else position[token.word_index] for token in tokens)
    vector = _token_mean(result, np.array([owner == target for owner in word_of_token]))
    starts = tuple(required(result.words)[word].start for word in listed)
    return LocatedText(line, tuple(token.id for token in tokens), word_of_token, starts, target, deciding, vector)


def _token_mean(result: EncodeResult, chosen: Flags) -> Floats:
    """Return the mean of the chosen token vectors. `chosen` indexes tokens without special tokens."""
    content = [not token.special for token in required(result.tokens)]
    vectors: Floats = required(result.token_vectors)[content][chosen].mean(axis=0)
    return vectors


def _magnitudes(text: LocatedText, row: Values) -> Values:
    """Return a row's magnitudes relative to the largest one besides the target, rounded, (W,)."""
    magnitudes = np.abs(row)
    magnitudes[text.target] = 0
    scores: Values = np.round(magnitudes / (magnitudes.max() or 1), DECIMALS)
    return scores


def _unit_scores(text: LocatedText, units: Sequence[Unit], effects: Floats) -> Values:
    """Return the words' effects, rounded, (W,), with 0 for words that the prompt left no room for."""
    by_start = {unit.start: effect for unit, effect in zip(units, effects.tolist(), strict=True)}
    return np.round([by_start.get(start, 0.0) for start in text.starts], DECIMALS)


def _line_error(path: Path, error: ServiceError, lines: Sequence[AttributionLine]) -> TextError:
    """Return an error that names the field in the file instead of the one in the request."""
    match = re.match(r"(inputs|queries|documents)\[(\d+)\]", error.message)
    if match is None:
        return TextError(f"{path}: {error.message}")
    referring = lines if match[1] == "inputs" else [line for line in lines if line.reference is not None]
    name = "reference" if match[1] == "documents" else "text"
    return TextError(f"{path}: line {referring[int(match[2])].line}: {name}{error.message[match.end() :]}")
