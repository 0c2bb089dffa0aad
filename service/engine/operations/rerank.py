"""Rerank: documents by their relevance to a query, and what each word contributes to it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from model.artifact.manifest import ClassificationHead, Manifest
from model.artifact.tokenizer import PairTemplate, TokenizedInput, TokenizerInput
from service.engine.admission import estimate_tokens
from service.engine.encode.pooling import shortest
from service.engine.encode.sides import add_side, max_tokens
from service.engine.encode.sizes import RESULT_BYTES, array_bytes, listed_bytes
from service.engine.explain.contributions import Embedder
from service.engine.explain.ranking import PairRanker, Ranker, SimilarityRanker
from service.engine.explain.similarity import ComparedText
from service.engine.explain.text_similarity import EmbeddingSimilarity, MaxSim, SparseSimilarity, TextSimilarity
from service.engine.observer import Observation
from service.engine.operations.costs import DESCRIBED_CHARACTER, INPUT
from service.engine.operations.inputs import (
    SPLIT_NOT_TRUNCATED,
    check_at_least_one,
    check_count,
    check_length,
    check_text,
    classifier_prompt,
    count_prompt,
    find_prompt,
    require_operation,
)
from service.engine.operations.occlusion import check_effect_options, check_occlusion, effect_unit, occlusion_tokens
from service.engine.schema.encode import AppliedPrompt, Side
from service.engine.schema.labels import EXPLAIN_TOP, RankedDocument, RerankRequest, RerankResponse, ScoredBy
from service.engine.schema.model import Limits
from service.engine.schema.tasks import TextVectors
from service.spelling import Remedy

if TYPE_CHECKING:
    from service.engine.engine import Engine


@dataclass(frozen=True)
class Prompts:
    """The prompts of the query and of the documents, and their numbers of tokens."""

    query: AppliedPrompt | None = None
    document: AppliedPrompt | None = None
    query_tokens: int = 0
    document_tokens: int = 0


async def rerank(engine: "Engine", request: RerankRequest, deadline: float) -> RerankResponse:
    """Return the documents, the most relevant one first."""
    require_operation(engine.manifest, "rerank")
    check_rerank(request, engine.limits)
    prompts = await find_prompts(engine, request, deadline)
    lane, explained = engine.fast_lane, explained_count(request)
    sizes, reserved = estimate_sizes(request, prompts, engine.manifest, engine.limits)
    cost = rerank_cost(request, prompts)
    observation = Observation(lane.observer)
    with lane.reserve(sizes, deadline, reserved):  # until the second job, which the scores select
        ranker = await engine.run(cost, deadline, prepare, engine, request, prompts)
        token_count, truncated = observation.tokenized([text.tokens for text in ranker.texts])
        job = lane.submit(ranker.tasks(), deadline)
        vectors = await lane.wait(job)
        order, scores = await engine.run(cost, deadline, rank, ranker, vectors, request.top_n)
        top = order[:explained]
        occluded = lane.submit(await engine.run(cost, deadline, ranker.occlusion_tasks, top) if top else [], deadline)
    without = await lane.wait(occluded)
    observation.ran(job.queue_s, job.batch_size)
    results = [RankedDocument(index, score) for index, score in zip(order, scores, strict=True)]
    if top:
        explanations = await engine.run(cost, deadline, ranker.explain, top, without)
        results[:explained] = [
            RankedDocument(result.index, result.score, explanation)
            for result, explanation in zip(results, explanations, strict=False)
        ]
    return RerankResponse(
        engine.name, lane.precision, results, token_count, truncated, observation.finish(), scored_by(engine.manifest)
    )


def scored_by(manifest: Manifest) -> ScoredBy:
    """Return what computes the scores of a model: the first of its heads that can."""
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


def explained_count(request: RerankRequest) -> int:
    """Return the number of documents whose score is explained."""
    if request.effect == "none":
        return 0
    returned = min(request.top_n or len(request.documents), len(request.documents))
    return min(request.explain_top or EXPLAIN_TOP, returned)


async def find_prompts(engine: "Engine", request: RerankRequest, deadline: float) -> Prompts:
    """Return the prompts of the model: a cross-encoder may have one, which precedes the query."""
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
    """Return the estimated tokens of each text, and of the explanations, at most `max_queue_tokens`."""
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


def rerank_cost(request: RerankRequest, prompts: Prompts) -> int:
    """Return the cost of preparing a request, in characters."""
    character = DESCRIBED_CHARACTER if explained_count(request) else 1
    prompt = 0 if prompts.document is None else len(prompts.document.text)
    return sum(INPUT + character * (len(document) + prompt) for document in request.documents)


def prepare(engine: "Engine", request: RerankRequest, prompts: Prompts) -> Ranker:
    """Tokenize the query, once, and the documents; check the cost of explanations and the size of the response."""
    head, explained = engine.manifest.classification, explained_count(request)
    unit = effect_unit(request)

    def compare(tokens: TokenizedInput, path: str, side: Side | None = None) -> ComparedText:
        kept = check_length(
            tokens, engine.manifest, request.truncation, path, limit=max_tokens(engine.manifest, side, side)
        )
        kept = add_side(kept, engine.manifest, side, engine.tokenizer.leading_special_tokens)
        return ComparedText.of(kept, engine.tokenizer, engine.manifest, unit)

    ranker: Ranker
    if head is not None:
        pairs = encode_pairs(engine, head, request, _text(prompts.query), offsets=explained > 0)
        texts = [compare(tokens, pair_path(tokens, index, engine.manifest)) for index, tokens in enumerate(pairs)]
        ranker = PairRanker(texts, "identity" if request.raw_scores else head.pair_activation or head.activation)
    else:
        sources = [TokenizerInput(request.query, prompt=_text(prompts.query))]
        sources += [TokenizerInput(document, prompt=_text(prompts.document)) for document in request.documents]
        query, *documents = engine.tokenizer.encode(sources, offsets=explained > 0)
        texts = [compare(query, "query", "query")]
        texts += [compare(tokens, f"documents[{index}]", "document") for index, tokens in enumerate(documents)]
        ranker = SimilarityRanker(texts, own_similarity(engine))
    check_size(engine, request, ranker)
    return ranker


def pair_path(tokens: TokenizedInput, index: int, manifest: Manifest) -> str:
    """Return the field path for an error about a pair: `query` if the query alone reaches the token limit."""
    is_long = len(tokens) > manifest.max_input_tokens
    return "query" if is_long and list(tokens.segment).count(0) >= manifest.max_input_tokens else f"documents[{index}]"


def encode_pairs(
    engine: "Engine", head: ClassificationHead, request: RerankRequest, prompt: str, *, offsets: bool
) -> list[TokenizedInput]:
    """Return the tokens of the query with each document; without a template, the query is tokenized once."""
    if head.template is None:
        return engine.tokenizer.encode_pairs(request.query, request.documents, prompt=prompt, offsets=offsets)
    template = PairTemplate(**head.template.model_dump())
    return engine.tokenizer.encode_template(template, request.query, request.documents)


def own_similarity(engine: "Engine") -> TextSimilarity:
    """Return the similarity by which a model ranks: of token vectors, else of sparse vectors, else of embeddings."""
    manifest = engine.manifest
    if manifest.multi_vector is not None:
        return MaxSim(manifest.multi_vector.score == "mean")
    if manifest.sparse is not None:
        return SparseSimilarity(manifest.sparse.similarity)
    own = manifest.embedding
    return EmbeddingSimilarity(Embedder.of(engine.dense_layers, own, own.similarity), own.pooling, own.similarity)


def check_size(engine: "Engine", request: RerankRequest, ranker: Ranker) -> None:
    """Check the cost of the most expensive explanations, and the size of the largest response."""
    explained, numbers = explained_count(request), range(len(request.documents))
    costs = [ranker.occluded_sizes(number) for number in numbers] if explained else []
    remedy = "Reduce explain_top, or send shorter texts"
    if request.unit == "token":
        remedy += ", or set unit to {unit.word}"
    check_occlusion(
        [size for own in sorted(costs, key=sum)[len(costs) - explained :] for size in own], engine.limits, remedy
    )
    sizes = [RESULT_BYTES] * len(numbers)
    if explained:
        for number in numbers:
            units = [unit for text in ranker.explained(number) for unit in text.units]
            sizes[number] += listed_bytes(units, request.wire) + array_bytes(len(units), "float32", request.wire)
    size = sum(_largest(sizes, explained)) + RESULT_BYTES * (len(numbers) + 1) + request.returned_bytes
    engine.check_response_size(size, 0, lambda: Remedy("Reduce explain_top or top_n, or do not return documents"))


def rank(ranker: Ranker, vectors: Sequence[TextVectors], top_n: int | None) -> tuple[list[int], list[float]]:
    """Return the places of the best documents in the request, best first, and their scores."""
    keys, scores = ranker.scores(vectors)
    order = np.argsort(-keys, kind="stable")[:top_n].tolist()
    return order, [shortest(scores[index]) for index in order]


def _largest(sizes: Sequence[int], count: int) -> list[int]:
    return sorted(sizes)[len(sizes) - count :]


def _text(prompt: AppliedPrompt | None) -> str:
    return "" if prompt is None else prompt.text
