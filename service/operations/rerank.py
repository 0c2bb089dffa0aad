"""Rerank: sorts documents by relevance to a query, and explains each word's contribution."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from attendant_client.types import (
    Floats,
    Limits,
    RankedDocument,
    RankExplanation,
    RerankRequest,
    RerankResponse,
    Role,
    ScoredBy,
    shortest,
)
from numpy.typing import NDArray

from model.artifact.manifest import ClassificationHead, Manifest, ScoreActivation
from model.artifact.tokenizer import TokenizedInput, TokenizerInput
from service.engine.engine import Engine
from service.engine.scheduling import CHARACTERS_PER_TOKEN
from service.engine.sides import add_side, max_tokens
from service.engine.tasks import EncodeTask, TextVectors
from service.errors import RequestTooLarge
from service.operations.classify import effects, label_tasks, occlusion_tasks, to_scores
from service.operations.inputs import (
    DESCRIBED_CHARACTER,
    INPUT,
    RESULT_BYTES,
    SPLIT_NOT_TRUNCATED,
    AppliedPrompt,
    Call,
    array_bytes,
    check_at_least_one,
    check_count,
    check_effect_options,
    check_length,
    check_occlusion,
    check_text,
    classifier_prompt,
    count_prompt,
    effect_unit,
    estimate_tokens,
    find_prompt,
    listed_bytes,
    occlusion_tokens,
    require_operation,
)
from service.operations.scoring import (
    Embedder,
    EmbeddingSimilarity,
    MaxSim,
    SparseSimilarity,
    TextSimilarity,
    TokenizedText,
    maxsim_cost,
)
from service.spelling import Remedy

JOINED_CHARACTERS = 32
"""The tokens of this many characters of a query are joined with a document in the time to tokenize one character."""
EXPLAIN_TOP = 3
"""Default number of documents whose score is explained."""

Scores = NDArray[np.float64]


@dataclass(frozen=True)
class Prompts:
    """The query prompt and the document prompt, and their numbers of tokens."""

    query: AppliedPrompt | None = None
    document: AppliedPrompt | None = None
    query_tokens: int = 0
    document_tokens: int = 0


async def rerank(engine: Engine, request: RerankRequest, call: Call) -> RerankResponse:
    """Return the documents, the most relevant one first."""
    deadline = call.start(engine)
    require_operation(engine, "rerank")
    check_rerank(request, engine.limits)
    check_template(request, engine.manifest, engine.limits)
    prompts = await find_prompts(engine, request, deadline)
    lane, explained = engine.fast_lane, explained_count(request)
    sizes, reserved = estimate_sizes(request, prompts, engine.manifest, engine.limits)
    cost = rerank_cost(request, prompts, engine.manifest)
    explanations: Sequence[RankExplanation] = ()
    with lane.admit(sizes, deadline, cost, reserved) as admitted:
        ranker = await engine.run(cost, deadline, prepare, engine, request, call, prompts)
        usage, rank_cost = admitted.tokenized([text.tokens for text in ranker.texts]), cost
        if scored_by(engine.manifest) == "late_interaction":
            query, *documents = (len(text.tokens) for text in ranker.texts)
            rank_cost += maxsim_cost(query * sum(documents), engine.manifest, deadline)
        vectors = await admitted.run(ranker.tasks(), more=explained > 0)
        order, scores = await engine.run(rank_cost, deadline, rank, ranker, vectors, request.top_n)
        if explained:  # a second job, because the scores select the documents
            top = order[:explained]
            without = await admitted.run(await engine.run(cost, deadline, ranker.occlusion_tasks, top))
            explanations = await engine.run(cost, deadline, ranker.explain, top, without)
    results = [
        RankedDocument(index, score, explanations[place] if place < len(explanations) else None)
        for place, (index, score) in enumerate(zip(order, scores, strict=True))
    ]
    call.timing = admitted.finish()
    return RerankResponse(engine.name, lane.precision, scored_by(engine.manifest), results, usage)


def scored_by(manifest: Manifest) -> ScoredBy:
    """Return which part of the model computes the scores: the first suitable head."""
    if manifest.classification is not None:
        return "cross_encoder"
    if manifest.multi_vector is not None:
        return "late_interaction"
    return "embeddings" if manifest.sparse is None else "sparse"


def check_rerank(request: RerankRequest, limits: Limits) -> None:
    """Check all fields."""
    check_text(request.query, "query", limits.max_input_characters, SPLIT_NOT_TRUNCATED)
    check_count(len(request.documents), "documents", limits.max_documents)
    for index, text in enumerate(request.documents):
        check_text(text, f"documents[{index}]", limits.max_input_characters, SPLIT_NOT_TRUNCATED)
    check_at_least_one("top_n", request.top_n)
    check_at_least_one("explain_top", request.explain_top)
    check_effect_options(request.effect, {"unit": request.unit, "explain_top": request.explain_top})


def check_template(request: RerankRequest, manifest: Manifest, limits: Limits) -> None:
    """Raise `RequestTooLarge` if the query is too long to be tokenized with each document, as a template requires."""
    if manifest.classification is None or manifest.classification.template is None:
        return
    characters = len(request.query) * len(request.documents)
    if characters > limits.max_request_bytes:
        raise RequestTooLarge(
            "too long for this many documents, because this model reads it with each of them",
            "Shorten it, or send fewer documents.",
            field="query", actual=characters, maximum=limits.max_request_bytes, unit="characters",
        )  # fmt: skip


def explained_count(request: RerankRequest) -> int:
    """Return the number of documents whose score is explained."""
    if request.effect == "none":
        return 0
    returned = min(request.top_n or len(request.documents), len(request.documents))
    return min(request.explain_top or EXPLAIN_TOP, returned)


async def find_prompts(engine: Engine, request: RerankRequest, deadline: float) -> Prompts:
    """Return the model's prompts. A cross-encoder has at most one, which precedes the query."""
    limits, manifest = engine.limits, engine.manifest
    if manifest.classification is not None:
        prompt = classifier_prompt(limits, manifest)
        count = 0 if prompt is None else await count_prompt(engine, prompt, len(request.documents), deadline, "query")
        return Prompts(query=prompt, query_tokens=count)
    query = find_prompt(None, None, limits, manifest, "query")
    document = find_prompt(None, None, limits, manifest, "document")
    return Prompts(
        query,
        document,
        0 if query is None else await count_prompt(engine, query, 1, deadline, "query"),
        0 if document is None else await count_prompt(engine, document, len(request.documents), deadline, "documents"),
    )


def estimate_sizes(
    request: RerankRequest, prompts: Prompts, manifest: Manifest, limits: Limits
) -> tuple[list[int], int]:
    """Return the estimated tokens of each text, and of the explanations (at most `max_queue_tokens`)."""
    longest, explained = manifest.longest_input_tokens, explained_count(request)
    if manifest.classification is not None:
        lengths = [len(request.query) + len(document) for document in request.documents]
        template = manifest.classification.template
        own = 0 if template is None else len(template.prefix_ids) + len(template.suffix_ids) + len(template.head)
        sizes = estimate_tokens(lengths, longest, own + prompts.query_tokens)
        return sizes, occlusion_tokens(_largest(sizes, explained), limits)
    query = estimate_tokens((len(request.query),), longest, prompts.query_tokens)
    documents = estimate_tokens(map(len, request.documents), longest, prompts.document_tokens)
    occluded = query + _largest(documents, explained) if explained else []
    return query + documents, occlusion_tokens(occluded, limits)


def rerank_cost(request: RerankRequest, prompts: Prompts, manifest: Manifest) -> int:
    """Return the cost of preparing a request, in characters."""
    character = DESCRIBED_CHARACTER if explained_count(request) else 1
    prompt = 0 if prompts.document is None else len(prompts.document.text)
    head, query = manifest.classification, len(request.query)
    if head is None:
        repeated = 0
    elif head.template is not None:
        repeated = query
    elif explained_count(request):  # each pair lists the kept units of the query
        repeated = min(query, CHARACTERS_PER_TOKEN * manifest.max_input_tokens) + query // JOINED_CHARACTERS
    else:
        repeated = query // JOINED_CHARACTERS
    documents = sum(INPUT + character * (len(document) + prompt + repeated) for document in request.documents)
    return character * query + documents


def prepare(engine: Engine, request: RerankRequest, call: Call, prompts: Prompts) -> "Ranker":
    """Tokenize the query (once) and the documents; check the cost of explanations and the response size."""
    head, explained = engine.manifest.classification, explained_count(request)
    unit = effect_unit(request)

    def compare(tokens: TokenizedInput, path: str, side: Role | None = None) -> TokenizedText:
        kept = check_length(
            tokens, engine.manifest, request.truncation, path, limit=max_tokens(engine.manifest, side, side)
        )
        kept = add_side(kept, engine.manifest, side, engine.tokenizer.leading_special_tokens)
        return TokenizedText.of(kept, engine.tokenizer, engine.manifest, unit)

    ranker: Ranker
    if head is not None:
        pairs = encode_pairs(engine, head, request, _text(prompts.query), offsets=explained > 0)
        texts = [compare(tokens, pair_path(tokens, index, engine.manifest)) for index, tokens in enumerate(pairs)]
        ranker = PairRanker(texts, "identity" if request.raw_scores else head.pair_activation or head.activation)
    else:
        sources = [TokenizerInput(request.query, prompt=_text(prompts.query))]
        sources += [TokenizerInput(document, prompt=_text(prompts.document)) for document in request.documents]
        tokenized = engine.tokenizer.encode_each(sources, offsets=explained > 0)
        texts = [compare(next(tokenized), "query", "query")]
        texts += [compare(tokens, f"documents[{index}]", "document") for index, tokens in enumerate(tokenized)]
        ranker = SimilarityRanker(texts, own_similarity(engine))
    check_size(engine, request, call, ranker)
    return ranker


def pair_path(tokens: TokenizedInput, index: int, manifest: Manifest) -> str:
    """Return the field path for an error about a pair: `query` if the query alone reaches the token limit."""
    limit = manifest.max_input_tokens
    return "query" if len(tokens) > limit and tokens.first_text_tokens >= limit else f"documents[{index}]"


def encode_pairs(
    engine: Engine, head: ClassificationHead, request: RerankRequest, prompt: str, *, offsets: bool
) -> Iterator[TokenizedInput]:
    """Tokenize the query with each document. Without a template, the query is tokenized only once."""
    if head.template is None:
        return engine.tokenizer.encode_pairs(request.query, request.documents, prompt=prompt, offsets=offsets)
    return engine.tokenizer.encode_template(head.template, request.query, request.documents)


def own_similarity(engine: Engine) -> TextSimilarity:
    """Return the similarity that a model ranks by: of token vectors, else of sparse vectors, else of embeddings."""
    manifest = engine.manifest
    if manifest.multi_vector is not None:
        return MaxSim(manifest.multi_vector.score == "mean")
    if manifest.sparse is not None:
        return SparseSimilarity(manifest.sparse.similarity)
    own = manifest.embedding
    return EmbeddingSimilarity(Embedder.of(engine.dense_layers, own, own.similarity), own.pooling, own.similarity)


def check_size(engine: Engine, request: RerankRequest, call: Call, ranker: "Ranker") -> None:
    """Check the cost of the most expensive possible explanations, and the size of the largest possible response."""
    explained, count = explained_count(request), len(request.documents)
    size = RESULT_BYTES * (count + 1) + call.returned_bytes
    if explained:
        numbers = range(count)
        costs = sorted([ranker.occluded_sizes(number) for number in numbers], key=sum)[count - explained :]
        remedy = "Reduce explain_top, or send shorter texts"
        if request.unit == "token":
            remedy += ", or set unit to {unit.word}"
        check_occlusion([size for sizes in costs for size in sizes], engine.limits, remedy)
        sizes = []
        for number in numbers:
            units = [unit for text in ranker.explained(number) for unit in text.units]
            sizes.append(RESULT_BYTES + listed_bytes(units, call.wire) + array_bytes(len(units), "float32", call.wire))
        size += sum(_largest(sizes, explained))
    engine.check_response_size(size, 0, lambda: Remedy("Reduce explain_top or top_n, or do not return documents"))


def rank(ranker: "Ranker", vectors: Sequence[TextVectors], top_n: int | None) -> tuple[list[int], list[float]]:
    """Return the request indices of the best documents, best first, and their scores."""
    keys, scores = ranker.scores(vectors)
    order = np.argsort(-keys, kind="stable")[:top_n].tolist()
    return order, [shortest(scores[index]) for index in order]


def _largest(sizes: Sequence[int], count: int) -> list[int]:
    return sorted(sizes)[len(sizes) - count :]


def _text(prompt: AppliedPrompt | None) -> str:
    return "" if prompt is None else prompt.text


class PairRanker:
    """A cross-encoder: each text is the query with a document, and its only label's score is the relevance."""

    def __init__(self, texts: list[TokenizedText], activation: ScoreActivation) -> None:
        self.texts = texts
        self._activation = activation
        self._scores = np.zeros((0, 1))

    def occluded_sizes(self, document: int) -> list[int]:
        """Return the number of tokens of each sequence needed to explain a document's score."""
        return self.texts[document].occluded_sizes

    def explained(self, document: int) -> list[TokenizedText]:
        """Return the texts whose units explain a document's score."""
        return [self.texts[document]]

    def tasks(self) -> list[EncodeTask]:
        """Return the tasks whose results `scores` needs."""
        return label_tasks(self.texts)

    def scores(self, vectors: Sequence[TextVectors]) -> tuple[Scores, Scores]:
        """Return the values that documents are sorted by, and their scores; (N) each."""
        logits = np.concatenate([item.logits for item in vectors]).astype(np.float64)
        self._scores = to_scores(logits[:, None], self._activation)
        return logits, self._scores[:, 0]

    def occlusion_tasks(self, documents: Sequence[int]) -> list[EncodeTask]:
        """Return the tasks whose results `explain` needs."""
        return occlusion_tasks([self.texts[document] for document in documents])

    def explain(self, documents: Sequence[int], vectors: Sequence[TextVectors]) -> list[RankExplanation]:
        """Return the unit effects of the query and of each document. Call it after `scores`."""
        texts = [self.texts[document] for document in documents]
        changes = effects(texts, self._scores[list(documents)], vectors, self._activation)
        return [_by_segment(text, of_text[0]) for text, of_text in zip(texts, changes, strict=True)]


def _by_segment(text: TokenizedText, changes: NDArray[np.float32]) -> RankExplanation:
    """Return the unit effects of a pair: segment 0 is the query, segment 1 the document."""
    segments = np.array([unit.segment for unit in text.units], dtype=np.intp)
    query, document = ([unit for unit in text.units if unit.segment == segment] for segment in (0, 1))
    own, other = (np.ascontiguousarray(changes[segments == segment]) for segment in (0, 1))
    return RankExplanation(query, document, own, other)


class SimilarityRanker:
    """A model that encodes texts separately. The first text is the query; scores are similarities.

    It has the same methods as `PairRanker`.
    """

    def __init__(self, texts: list[TokenizedText], similarity: TextSimilarity) -> None:
        self.texts = texts
        self._similarity = similarity
        self._represented: list[Any] = []

    def occluded_sizes(self, document: int) -> list[int]:
        return [size for text in self.explained(document) for size in text.occluded_sizes]

    def explained(self, document: int) -> list[TokenizedText]:
        return [self.texts[0], self.texts[document + 1]]

    def tasks(self) -> list[EncodeTask]:
        return [self._similarity.task(text.tokens, text.pool_from) for text in self.texts]

    def scores(self, vectors: Sequence[TextVectors]) -> tuple[Scores, Scores]:
        self._represented = [self._similarity.represent(item) for item in vectors]
        query, *documents = self._represented
        scores = self._similarity.scores(query, documents)
        return scores, scores

    def occlusion_tasks(self, documents: Sequence[int]) -> list[EncodeTask]:
        """Return the tasks for the query (once) and for the documents."""
        return [
            self._similarity.task(sequence, text.pool_from)
            for text in self._occluded_texts(documents)
            for sequence in text.occluded
            if len(sequence) > text.pool_from
        ]

    def explain(self, documents: Sequence[int], vectors: Sequence[TextVectors]) -> list[RankExplanation]:
        results = iter(vectors)
        without = [
            [
                self._similarity.represent(next(results)) if len(sequence) > text.pool_from else None
                for sequence in text.occluded
            ]
            for text in self._occluded_texts(documents)
        ]
        query, explanations = self._represented[0], []
        for document, shorter in zip(documents, without[1:], strict=True):
            own = self._represented[document + 1]
            (score,) = self._similarity.scores(query, [own])
            of_query = [self._score(other, own) for other in without[0]]
            of_document = [self._score(query, other) for other in shorter]
            units = self.texts[0].units, self.texts[document + 1].units
            explanations.append(RankExplanation(*units, _effects(score, of_query), _effects(score, of_document)))
        return explanations

    def _score(self, query: Any, document: Any) -> float:
        """Return the score of two representations, one of which may be None because no token of its text remains."""
        if query is None or document is None:
            return self._similarity.score_alone(document if query is None else query)
        return float(self._similarity.scores(query, [document])[0])

    def _occluded_texts(self, documents: Sequence[int]) -> list[TokenizedText]:
        return [self.texts[0], *(self.texts[document + 1] for document in documents)]


Ranker = PairRanker | SimilarityRanker
"""A query and N documents, tokenized."""


def _effects(score: float, without: Sequence[float]) -> Floats:
    changes: Floats = (score - np.array(without)).astype(np.float32)
    return changes
