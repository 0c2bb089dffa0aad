"""Similarity: scores of queries and documents, and what each pair of units contributes."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast, get_args

from model.artifact.manifest import ONE_TOKEN_POOLINGS, Manifest, Similarity
from model.artifact.tokenizer import TokenizerInput
from service.engine.admission import estimate_tokens
from service.engine.encode.sides import add_side, max_tokens
from service.engine.encode.similarity_functions import DISTANCES
from service.engine.explain.contributions import Embedder
from service.engine.explain.head_similarity import HeadSimilarity, token_text
from service.engine.explain.similarity import ComparedText, PreparedSimilarity
from service.engine.explain.text_similarity import MaxSim, SparseSimilarity, TextSimilarity
from service.engine.observer import Observation
from service.engine.operations.costs import INPUT
from service.engine.operations.inputs import SPLIT_NOT_TRUNCATED, check_length, check_text, count_prompt, find_prompt
from service.engine.operations.occlusion import check_occlusion
from service.engine.schema.encode import AppliedPrompt, Side
from service.engine.schema.model import Limits
from service.engine.schema.operations import HEAD_OF_SIMILARITY, outputs_of
from service.engine.schema.similarity import (
    SimilarityFunction,
    SimilarityRequest,
    SimilarityResponse,
    SimilaritySpec,
    UnavailableReason,
)
from service.errors import (
    ConflictingFields,
    Empty,
    OutOfRange,
    RequestTooLarge,
    TooMany,
    UnsupportedByModel,
    WrongShape,
)
from service.spelling import Remedy, join, named

if TYPE_CHECKING:
    from service.engine.engine import Engine

PAIR_CHARACTERS = 256
"""An explained pair takes at least as long as the preparation of this many characters."""
PRODUCTS_PER_CHARACTER = 8
"""Pairs of tokens that are multiplied in the time of the preparation of one character."""
PRODUCTS_PER_TOKEN = 3_000
"""Pairs of tokens that are multiplied in the time of the inference of one token, in bfloat16 with AMX."""
MAX_EXPLAINED_PAIRS = 256


async def similarity(engine: "Engine", request: SimilarityRequest, deadline: float) -> SimilarityResponse:
    """Return similarities of queries and documents."""
    spec = check_similarity(request, engine.limits, engine.manifest, linear=engine.dense_layers.linear)
    query_prompt, document_prompt, lane = spec.query_prompt, spec.document_prompt, engine.fast_lane
    prompt_tokens = [0, 0]
    if query_prompt is not None:
        prompt_tokens[0] = await count_prompt(engine, query_prompt, len(request.queries), deadline, "query_prompt")
    if document_prompt is not None:
        prompt_tokens[1] = await count_prompt(
            engine, document_prompt, len(request.documents), deadline, "document_prompt"
        )
    cost, sizes, explanation = similarity_cost(
        request, spec, prompt_tokens, engine.limits, engine.manifest.longest_input_tokens
    )
    observation = Observation(lane.observer)
    with lane.reserve(sizes, deadline, explanation):
        prepared = await engine.run(cost, deadline, prepare, engine, request, spec)
        token_count, truncated = observation.tokenized([text.tokens for text in prepared.texts])
        job = lane.submit(await engine.run(cost, deadline, prepared.tasks), deadline)
    vectors = await lane.wait(job)
    observation.ran(job.queue_s, job.batch_size)
    scores, pairs = await engine.run(cost, deadline, prepared.results, vectors)
    return SimilarityResponse(
        engine.name, lane.precision, spec.similarity, scores,
        [text.result(explain=request.explain) for text in prepared.queries],
        [text.result(explain=request.explain) for text in prepared.documents],
        pairs, spec.unavailable if request.explain else None, token_count, truncated,
        query_prompt, document_prompt, observation.finish(),
    )  # fmt: skip


def check_similarity(request: SimilarityRequest, limits: Limits, manifest: Manifest, *, linear: bool) -> SimilaritySpec:
    """Check all fields; `linear`: whether the dense layers of the model are linear."""
    _check_texts(request, limits)
    if request.similarity in HEAD_OF_SIMILARITY:
        _check_head(request, manifest)
    if request.pairs == "zip" and len(request.queries) != len(request.documents):
        raise WrongShape(
            "{pairs.zip} requires as many documents as queries", "Send one document per query.",
            field="documents", actual=len(request.documents),
            minimum=len(request.queries), maximum=len(request.queries),
        )  # fmt: skip
    dimensions = request.dimensions
    if dimensions is not None and not 1 <= dimensions <= manifest.embedding.dimensions:
        raise OutOfRange(
            "out of range", f"Use 1 to {manifest.embedding.dimensions}.",
            field="dimensions", actual=dimensions, minimum=1, maximum=manifest.embedding.dimensions,
        )  # fmt: skip
    spec = SimilaritySpec(
        request.similarity or manifest.embedding.similarity,
        find_prompt(request.query_prompt_name, request.query_prompt, limits, manifest, "query"),
        find_prompt(request.document_prompt_name, request.document_prompt, limits, manifest, "document"),
        _unavailable(request.similarity or manifest.embedding.similarity, manifest, linear),
    )
    if request.explain:
        _check_explanation(request, manifest)
    else:
        _check_no_explanation(request)
    return spec


def _check_head(request: SimilarityRequest, manifest: Manifest) -> None:
    """Check that the model has the head of the similarity function, and that no field needs embeddings."""
    function = request.similarity
    outputs = outputs_of(manifest)
    supported = [name for name in get_args(SimilarityFunction) if HEAD_OF_SIMILARITY.get(name, "pooled") in outputs]
    if function not in supported:
        raise UnsupportedByModel(
            "not supported for this model",
            f"Use {join([named('similarity', name) for name in supported], 'or')}, or another model.",
            field="similarity", actual=function,
        )  # fmt: skip
    requires = f"requires embeddings, but similarity is {named('similarity', str(function))}"
    for field, is_set in {
        "dimensions": request.dimensions is not None,
        "effect": request.effect != "none",
        "unit": request.unit != "token",
    }.items():
        if is_set:
            raise ConflictingFields(requires, f"Leave {field} out.", field=field)


def _check_texts(request: SimilarityRequest, limits: Limits) -> None:
    for side, texts in (("queries", request.queries), ("documents", request.documents)):
        if not texts:
            raise Empty("empty", "Send at least one text.", field=side)
        count = len(texts) if side == "queries" else len(texts) + len(request.queries)
        if count > limits.max_inputs:
            raise TooMany(
                "too many items" if side == "queries" else "too many items, together with {queries}",
                "Split the request.", field=side, actual=count, maximum=limits.max_inputs,
            )  # fmt: skip
        for index, text in enumerate(texts):
            check_text(text, f"{side}[{index}]", limits.max_input_characters, SPLIT_NOT_TRUNCATED)


def _unavailable(function: SimilarityFunction, manifest: Manifest, linear: bool) -> UnavailableReason | None:
    """Return why a score is not a sum over pairs of units, or over entries of sparse vectors."""
    if function == "maxsim":
        return None
    if function == "sparse":
        return "distance" if manifest.sparse is not None and manifest.sparse.similarity in DISTANCES else None
    if function in DISTANCES:
        return "distance"
    if manifest.embedding.pooling == "max":
        return "max_pooling"
    return None if linear else "nonlinear_dense_layers"


def _check_explanation(request: SimilarityRequest, manifest: Manifest) -> None:
    if request.pair_count > MAX_EXPLAINED_PAIRS:
        raise TooMany(
            "too many pairs to explain", "Send fewer queries or documents.",
            field="explain", actual=request.pair_count, maximum=MAX_EXPLAINED_PAIRS,
        )  # fmt: skip
    if request.top_k is not None and request.top_k < 1:
        raise OutOfRange("out of range", "Use 1 or more.", field="top_k", actual=request.top_k, minimum=1)
    if request.effect == "leave_one_out" and manifest.embedding.pooling in ONE_TOKEN_POOLINGS:
        raise UnsupportedByModel(
            "{effect.leave_one_out} is not supported for this model "
            f"({manifest.embedding.pooling} pooling uses one token)",
            "Use {effect.occlusion}.", field="effect",
        )  # fmt: skip


def _check_no_explanation(request: SimilarityRequest) -> None:
    fields = {"unit": request.unit != "token", "top_k": request.top_k is not None, "effect": request.effect != "none"}
    for field, is_set in fields.items():
        if is_set:
            raise ConflictingFields(
                "set, but explain is false", f"Set explain to true or leave {field} out.", field=field
            )


def check_explanation_size(request: SimilarityRequest, sizes: list[int], manifest: Manifest, limits: Limits) -> None:
    """Check the memory of an explanation; `sizes` are the numbers of tokens of all texts.

    In float32, there is a vector per token, one for its contributions, and one for its effect.
    """
    vectors = 2 if request.effect == "none" else 3
    size, limit = 4 * vectors * sum(sizes) * manifest.architecture.hidden_size, limits.max_response_bytes
    if size > limit:
        raise RequestTooLarge(
            "token vectors too large", "Send fewer or shorter texts.",
            field="explain", actual=size, maximum=limit, unit="bytes",
        )  # fmt: skip


def occlusion_remedy(request: SimilarityRequest, manifest: Manifest) -> str:
    """Return what to do if occlusion costs too much, without a final period."""
    remedy = "Send fewer or shorter texts"
    if request.unit == "token":
        remedy += ", or set unit to {unit.word}"
    if manifest.embedding.pooling not in ONE_TOKEN_POOLINGS:
        remedy += ", or use {effect.leave_one_out}"
    return remedy


def similarity_cost(
    request: SimilarityRequest, spec: SimilaritySpec, prompt_tokens: Sequence[int], limits: Limits, max_tokens: int
) -> tuple[int, list[int], int]:
    """Return the cost of preparation in characters, and the estimated tokens of each text and of the explanation.

    The tokens of the explanation are at most `max_queue_tokens`. `prompt_tokens` counts the query prompt and the
    document prompt.
    """
    prompts = [0 if prompt is None else len(prompt.text) for prompt in (spec.query_prompt, spec.document_prompt)]
    texts = [(text, 0) for text in request.queries] + [(text, 1) for text in request.documents]
    size = sum(INPUT + len(text) + prompts[side] for text, side in texts)
    tokens = [estimate_tokens((len(text),), max_tokens, prompt_tokens[side])[0] for text, side in texts]
    explanation = 0
    if request.explain:
        size += PAIR_CHARACTERS * request.pair_count
        queries = len(request.queries)
        products = sum(tokens[query] * tokens[queries + document] for query, document in request.index_pairs())
        explanation += products // PRODUCTS_PER_TOKEN
        size += products // PRODUCTS_PER_CHARACTER
        if request.effect == "occlusion":
            occluded = sum(count * count for count in tokens)
            explanation += occluded
            size += occluded
    return size, tokens, min(explanation, limits.max_queue_tokens)


def prepare(engine: "Engine", request: SimilarityRequest, spec: SimilaritySpec) -> PreparedSimilarity | HeadSimilarity:
    """Tokenize the texts and find their units."""
    texts = tokenize(engine, request, spec)
    prepared: PreparedSimilarity | HeadSimilarity
    if spec.similarity in HEAD_OF_SIMILARITY:
        multi_vector, sparse = engine.manifest.multi_vector, engine.manifest.sparse
        function: TextSimilarity
        if spec.similarity == "maxsim":
            assert multi_vector is not None
            function = MaxSim(multi_vector.score == "mean")
        else:
            assert sparse is not None
            function = SparseSimilarity(sparse.similarity)
        prepared = HeadSimilarity(request, texts, function, engine.tokenizer)
    else:
        prepared = prepare_embeddings(engine, request, spec, texts)
    top_k = "Set top_k" if request.top_k is None else "Reduce top_k"
    remedy = Remedy(f"{top_k}, or send fewer or shorter texts" if request.explain else "Send fewer texts")
    engine.check_response_size(prepared.response_bytes(), 0, lambda: remedy)
    return prepared


def prepare_embeddings(
    engine: "Engine", request: SimilarityRequest, spec: SimilaritySpec, texts: list[ComparedText]
) -> PreparedSimilarity:
    """Check the cost of explaining the similarity of embeddings."""
    function = cast(Similarity, spec.similarity)  # the others need no embeddings
    embedder = Embedder.of(engine.dense_layers, engine.manifest.embedding, function, request.dimensions)
    prepared = PreparedSimilarity(request, spec, engine.manifest, embedder, function, texts)
    if request.explain:
        check_explanation_size(request, [len(text.tokens) for text in texts], engine.manifest, engine.limits)
    if request.effect == "occlusion":
        check_occlusion(prepared.occluded_sizes(), engine.limits, occlusion_remedy(request, engine.manifest))
    return prepared


def tokenize(engine: "Engine", request: SimilarityRequest, spec: SimilaritySpec) -> list[ComparedText]:
    """Tokenize the texts and find their units; with maxsim, these are all tokens with a vector."""
    manifest, texts = engine.manifest, []
    sides: tuple[tuple[str, tuple[str, ...], AppliedPrompt | None, Side], ...] = (
        ("queries", request.queries, spec.query_prompt, "query"),
        ("documents", request.documents, spec.document_prompt, "document"),
    )
    place = engine.tokenizer.leading_special_tokens
    for name, side_texts, prompt, role in sides:
        side = role if spec.similarity == "maxsim" else None
        limit = max_tokens(manifest, side, role)
        prompt_text = "" if prompt is None else prompt.text
        tokenized = engine.tokenizer.encode([TokenizerInput(text, prompt=prompt_text) for text in side_texts])
        for index, tokens in enumerate(tokenized):
            kept = check_length(tokens, manifest, request.truncation, f"{name}[{index}]", f"{role}_prompt", limit)
            kept = add_side(kept, manifest, side, place)
            kept.side = role
            if request.explain and spec.similarity == "maxsim" and manifest.multi_vector is not None:
                texts.append(token_text(kept, engine.tokenizer, int(manifest.multi_vector.skips_first)))
            else:
                unit = request.unit if request.explain else None
                texts.append(ComparedText.of(kept, engine.tokenizer, manifest, unit))
    return texts
