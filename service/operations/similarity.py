"""Similarity: scores of queries and documents, and the contribution of each pair of units.

With mean pooling and linear dense layers, a text's embedding is a sum of one term per token and a bias. The dot product
of two embeddings is therefore a sum over pairs of terms, and the cosine is that sum divided by both norms. With cls or
last pooling, there is one term, from the first or last token. Distances are not such sums. The squared Euclidean
distance is one, but it also contains terms for pairs within each text.
"""

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast, get_args

import numpy as np
from attendant_client.types import (
    ContributionRest,
    Floats,
    Limits,
    Role,
    SharedEntry,
    SimilarityFunction,
    SimilarityPair,
    SimilarityRequest,
    SimilarityResponse,
    TokenMatch,
    TopContributions,
    UnavailableReason,
    required,
    shortest,
)
from numpy.typing import NDArray

from model.artifact.manifest import COMBINED, ONE_TOKEN_POOLINGS, CombinedPooling, Manifest, Similarity, split_pooling
from model.artifact.tokenizer import TokenizedInput, Tokenizer, TokenizerInput
from service.engine.engine import Engine
from service.engine.model_info import HEAD_OF_SIMILARITY, outputs_of
from service.engine.sides import add_side, max_tokens
from service.engine.tasks import EncodeTask, TextVectors
from service.engine.vectors import DISTANCES, compare_all, compare_rows, pool_batch, token_factors
from service.errors import (
    ConflictingFields,
    Empty,
    OutOfRange,
    RequestTooLarge,
    TooMany,
    UnsupportedByModel,
    WrongShape,
)
from service.operations.attend import JSON_INDEX_BYTES
from service.operations.inputs import (
    INPUT,
    NO_PROMPT,
    RESULT_BYTES,
    SPLIT_NOT_TRUNCATED,
    AppliedPrompt,
    Call,
    Wire,
    array_bytes,
    check_at_least_one,
    check_length,
    check_occlusion,
    check_text,
    count_prompt,
    estimate_tokens,
    find_prompt,
    listed_bytes,
    prompt_bytes,
)
from service.operations.scoring import (
    PROMPT,
    SPECIAL,
    Embedder,
    MaxSim,
    Scores,
    SparseSimilarity,
    TextSimilarity,
    TokenizedText,
    Vectors,
    maxsim_cost,
    pool_without_units,
    sum_by_unit,
)
from service.operations.units import list_units
from service.spelling import Remedy, join, named

PAIR_CHARACTERS = 256
"""Explaining a pair takes at least as long as preparing this many characters."""
PRODUCTS_PER_CHARACTER = 8
"""Number of token pairs that can be multiplied in the time it takes to prepare one character."""
PRODUCTS_PER_TOKEN = 3_000
"""Number of token pairs that can be multiplied in the time of inference for one token, in bfloat16 with AMX."""
MAX_EXPLAINED_PAIRS = 256
SELECTION_SIZE = 2**20
"""Number of contributions among which the largest are selected at a time."""
SCORE_DECIMALS = 7
"""Number of decimals in scores; further digits are float32 rounding error."""
PAIR_BYTES = 512
"""Upper bound on the size of a pair without its arrays."""
TERM_BYTES = 256
"""Upper bound on the size of a match or a shared entry in JSON."""
MAX_TERMS = 1024
"""Maximum number of terms listed per pair: two sparse vectors may share the whole vocabulary."""


@dataclass(frozen=True, slots=True)
class SimilaritySpec:
    """The similarity function and prompts of a request, and the reason if contributions are unavailable."""

    similarity: SimilarityFunction
    query_prompt: AppliedPrompt | None
    document_prompt: AppliedPrompt | None
    unavailable: UnavailableReason | None


async def similarity(engine: Engine, request: SimilarityRequest, call: Call) -> SimilarityResponse:
    """Return the similarity of queries and documents, and what each pair of words contributes to it."""
    deadline = call.start(engine)
    spec = check_similarity(request, engine.limits, engine.manifest, linear=engine.dense_layers.linear)
    query_prompt, document_prompt, lane = spec.query_prompt, spec.document_prompt, engine.fast_lane
    prompt_tokens = [0, 0]
    if query_prompt is not None:
        prompt_tokens[0] = await count_prompt(engine, query_prompt, len(request.queries), deadline, "query_prompt")
    if document_prompt is not None:
        count = len(request.documents)
        prompt_tokens[1] = await count_prompt(engine, document_prompt, count, deadline, "document_prompt")
    cost, sizes, explanation = similarity_cost(
        request, spec, prompt_tokens, engine.limits, engine.manifest.longest_input_tokens
    )
    with lane.admit(sizes, deadline, cost, explanation) as admitted:
        prepared = await engine.run(cost, deadline, prepare, engine, request, call, spec)
        usage = admitted.tokenized([text.tokens for text in prepared.texts])
        result_cost = cost
        if spec.similarity == "maxsim":
            products = token_products(request, [len(text.tokens) for text in prepared.texts])
            result_cost += maxsim_cost(products, engine.manifest, deadline)
        vectors = await admitted.run(await engine.run(cost, deadline, prepared.tasks))
    scores, pairs = await engine.run(result_cost, deadline, prepared.results, vectors)
    call.timing = admitted.finish()
    queries, documents = (
        [text.result(explain=request.explain) for text in texts] for texts in (prepared.queries, prepared.documents)
    )
    unavailable = spec.unavailable if request.explain else None
    own, other = query_prompt or NO_PROMPT, document_prompt or NO_PROMPT
    return SimilarityResponse(
        engine.name, lane.precision, spec.similarity, scores, queries, documents, unavailable, usage,
        own.name, own.text or None, other.name, other.text or None, pairs=pairs,
    )  # fmt: skip


def check_similarity(request: SimilarityRequest, limits: Limits, manifest: Manifest, *, linear: bool) -> SimilaritySpec:
    """Check all fields; `linear`: whether the model's dense layers are linear."""
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
    """Check that the model has the head that the similarity function needs, and that no field requires embeddings."""
    function = request.similarity
    outputs = outputs_of(manifest)
    supported = [name for name in get_args(SimilarityFunction) if HEAD_OF_SIMILARITY.get(name, "pooled") in outputs]
    if function not in supported:
        raise UnsupportedByModel(
            f"{named('similarity', str(function))} is not supported for this model",
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
    """Return why a score is not a sum over pairs of units or over entries of sparse vectors."""
    if function == "maxsim":
        return None
    if function == "sparse":
        return "distance" if manifest.sparse is not None and manifest.sparse.similarity in DISTANCES else None
    if function in DISTANCES:
        return "distance"
    if "max" in split_pooling(manifest.embedding.pooling):
        return "max_pooling"
    return None if linear else "nonlinear_dense_layers"


def _check_explanation(request: SimilarityRequest, manifest: Manifest) -> None:
    if request.pair_count > MAX_EXPLAINED_PAIRS:
        raise TooMany(
            "too many pairs to explain", "Send fewer queries or documents.",
            field="explain", actual=request.pair_count, maximum=MAX_EXPLAINED_PAIRS,
        )  # fmt: skip
    check_at_least_one("top_k", request.top_k)
    if request.effect == "leave_one_out" and _uses_one_token(manifest):
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
    """Check the memory that an explanation needs; `sizes` are the lengths of all texts in tokens.

    Each token needs up to three float32 vectors: its hidden state, its contributions and its effect.
    """
    vectors = 2 if request.effect == "none" else 3
    size, limit = 4 * vectors * sum(sizes) * manifest.architecture.hidden_size, limits.max_response_bytes
    if size > limit:
        raise RequestTooLarge(
            "token vectors too large", "Send fewer or shorter texts.",
            field="explain", actual=size, maximum=limit, unit="bytes",
        )  # fmt: skip


def _uses_one_token(manifest: Manifest) -> bool:
    """Return whether the pooling, or any of several combined poolings, selects a single token."""
    return not set(ONE_TOKEN_POOLINGS).isdisjoint(split_pooling(manifest.embedding.pooling))


def occlusion_remedy(request: SimilarityRequest, manifest: Manifest) -> str:
    """Return the remedy for occlusion that costs too much, without a final period."""
    remedy = "Send fewer or shorter texts"
    if request.unit == "token":
        remedy += ", or set unit to {unit.word}"
    if not _uses_one_token(manifest):
        remedy += ", or use {effect.leave_one_out}"
    return remedy


def similarity_cost(
    request: SimilarityRequest, spec: SimilaritySpec, prompt_tokens: Sequence[int], limits: Limits, max_tokens: int
) -> tuple[int, list[int], int]:
    """Return the preparation cost in characters, and the estimated tokens of each text and of the explanation.

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
        products = token_products(request, tokens)
        explanation += products // PRODUCTS_PER_TOKEN
        size += products // PRODUCTS_PER_CHARACTER
        if request.effect == "occlusion":
            occluded = sum(count * count for count in tokens)
            explanation += occluded
            size += occluded
    return size, tokens, min(explanation, limits.max_queue_tokens)


def token_products(request: SimilarityRequest, sizes: Sequence[int]) -> int:
    """Return how many dot products of a query token and a document token a request needs.

    `sizes` are the numbers of tokens of the queries, then of the documents.
    """
    queries, documents = sizes[: len(request.queries)], sizes[len(request.queries) :]
    if request.pairs == "zip":
        return sum(map(operator.mul, queries, documents))
    return sum(queries) * sum(documents)


def prepare(
    engine: Engine, request: SimilarityRequest, call: Call, spec: SimilaritySpec
) -> "PreparedSimilarity | HeadSimilarity":
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
        prepared = HeadSimilarity(request, call.wire, texts, function, engine.tokenizer)
    else:
        prepared = prepare_embeddings(engine, request, call, spec, texts)
    top_k = "Set top_k" if request.top_k is None else "Reduce top_k"
    remedy = Remedy(f"{top_k}, or send fewer or shorter texts" if request.explain else "Send fewer texts")
    size = prompt_bytes(spec.query_prompt, call.wire) + prompt_bytes(spec.document_prompt, call.wire)
    if size > engine.limits.max_response_bytes:
        remedy = Remedy("Use a shorter prompt")
    engine.check_response_size(size + prepared.response_bytes(), 0, lambda: remedy)
    return prepared


def prepare_embeddings(
    engine: Engine, request: SimilarityRequest, call: Call, spec: SimilaritySpec, texts: list[TokenizedText]
) -> "PreparedSimilarity":
    """Check the cost of explaining the similarity of embeddings."""
    function = cast(Similarity, spec.similarity)  # other models need no embeddings
    embedder = Embedder.of(engine.dense_layers, engine.manifest.embedding, function, request.dimensions)
    prepared = PreparedSimilarity(request, call.wire, texts, spec, engine.manifest, embedder, function)
    if request.explain:
        check_explanation_size(request, [len(text.tokens) for text in texts], engine.manifest, engine.limits)
    if request.effect == "occlusion":
        check_occlusion(prepared.occluded_sizes(), engine.limits, occlusion_remedy(request, engine.manifest))
    return prepared


def tokenize(engine: Engine, request: SimilarityRequest, spec: SimilaritySpec) -> list[TokenizedText]:
    """Tokenize the texts and find their units; with maxsim, every token with a vector is a unit."""
    manifest, texts = engine.manifest, []
    sides: tuple[tuple[str, Sequence[str], AppliedPrompt | None, Role], ...] = (
        ("queries", request.queries, spec.query_prompt, "query"),
        ("documents", request.documents, spec.document_prompt, "document"),
    )
    place = engine.tokenizer.leading_special_tokens
    for name, side_texts, prompt, role in sides:
        side = role if spec.similarity == "maxsim" else None
        limit = max_tokens(manifest, side, role)
        prompt_text = "" if prompt is None else prompt.text
        tokenized = engine.tokenizer.encode_each([TokenizerInput(text, prompt=prompt_text) for text in side_texts])
        for index, tokens in enumerate(tokenized):
            kept = check_length(tokens, manifest, request.truncation, f"{name}[{index}]", f"{role}_prompt", limit)
            kept = add_side(kept, manifest, side, place)
            kept.side = role
            if request.explain and spec.similarity == "maxsim" and manifest.multi_vector is not None:
                texts.append(token_text(kept, engine.tokenizer, int(manifest.multi_vector.skips_first)))
            else:
                unit = request.unit if request.explain else None
                texts.append(TokenizedText.of(kept, engine.tokenizer, manifest, unit))
    return texts


@dataclass(frozen=True)
class TokenizedRequest:
    """A tokenized request: creates its fast-lane tasks, and computes results from their vectors."""

    request: SimilarityRequest
    wire: Wire
    texts: list[TokenizedText]
    """Queries, then documents."""

    @property
    def queries(self) -> list[TokenizedText]:
        return self.texts[: len(self.request.queries)]

    @property
    def documents(self) -> list[TokenizedText]:
        return self.texts[len(self.request.queries) :]


@dataclass(frozen=True)
class PreparedSimilarity(TokenizedRequest):
    """A request that compares embeddings."""

    spec: SimilaritySpec
    manifest: Manifest
    embedder: Embedder
    function: Similarity

    def tasks(self) -> list[EncodeTask]:
        """Return one task per text, then one per occluded sequence that has tokens to pool."""
        pooling = self.manifest.embedding.pooling
        explain = self.request.explain
        tasks = [EncodeTask(text.tokens, None if explain else pooling, explain, text.pool_from) for text in self.texts]
        if self.request.effect == "occlusion":
            tasks += [
                EncodeTask(sequence, pooling, hidden=False, pool_from=text.pool_from)
                for text in self.texts
                for sequence in text.occluded
                if len(sequence) > text.pool_from
            ]
        return tasks

    def occluded_sizes(self) -> list[int]:
        """Return the number of tokens of each occluded sequence, without building the sequences."""
        return [size for text in self.texts for size in text.occluded_sizes]

    def response_bytes(self) -> int:
        """Return an upper bound on the size of the response."""
        request, wire = self.request, self.wire
        total = RESULT_BYTES + self.request.pair_count * array_bytes(1, "float32", wire)
        for text in self.texts:
            total += RESULT_BYTES + listed_bytes(text.units, wire)
        if not request.explain:
            return total
        for query, document in self._pairs():
            count = len(query.units) * len(document.units) if self.spec.unavailable is None else 0
            if request.top_k is not None:
                count = min(count, request.top_k)
                total += 2 * count * JSON_INDEX_BYTES
            if request.effect != "none":
                count += len(query.units) + len(document.units)
            separators = 0 if wire == "binary" else 2 * len(query.units)  # brackets and commas between rows
            total += PAIR_BYTES + array_bytes(count, "float32", wire) + separators
        return total

    def results(self, vectors: Sequence[TextVectors]) -> tuple[Floats, list[SimilarityPair] | None]:
        """Return the scores and, with `explain`, the explained pairs; `vectors` are the results of `tasks`."""
        if not self.request.explain:
            embeddings = self.embedder.embed(np.concatenate([required(item.pooled) for item in vectors]))
            return self._scores(embeddings), None
        hidden = [required(item.hidden)[0] for item in vectors[: len(self.texts)]]
        embeddings = self.embedder.embed(
            np.concatenate([self._pool(text, states) for text, states in zip(self.texts, hidden, strict=True)])
        )
        terms = self._terms(hidden)
        without = self._without_units(hidden, vectors[len(self.texts) :])
        pairs = []
        for query, document in self.request.index_pairs():
            other = len(self.request.queries) + document
            score = float(compare_rows(embeddings[[query]], embeddings[[other]], self.function)[0])
            effects: list[Floats | None] = [None, None]
            if without is not None:
                effects = [
                    _float32(score - compare_all(without[query], embeddings[[other]], self.function)[:, 0]),
                    _float32(score - compare_all(without[other], embeddings[[query]], self.function)[:, 0]),
                ]
            matrix, top, rest = None, None, None
            if terms is not None:
                contributions = Contributions.of(terms[query], terms[other])
                rest = contributions.rest
                if self.request.top_k is None:
                    matrix = np.ascontiguousarray(contributions.units)
                else:
                    top, rest = contributions.largest(self.request.top_k)
            rounded = shortest(round(score, SCORE_DECIMALS))
            pairs.append(SimilarityPair(query, document, rounded, matrix, top, rest, effects[0], effects[1]))
        return self._scores(embeddings), pairs

    def _pairs(self) -> list[tuple[TokenizedText, TokenizedText]]:
        queries, documents = self.queries, self.documents
        return [(queries[query], documents[document]) for query, document in self.request.index_pairs()]

    def _scores(self, embeddings: NDArray[np.float64]) -> Floats:
        queries, documents = np.split(embeddings, [len(self.request.queries)])
        if self.request.pairs == "zip":
            return _float32(np.round(compare_rows(queries, documents, self.function), SCORE_DECIMALS))
        scores = compare_all(queries, documents, self.function)
        return _float32(np.round(scores, SCORE_DECIMALS))  # rounded like the scores of pairs

    def _pool(self, text: TokenizedText, hidden: NDArray[Any]) -> NDArray[Any]:
        return pool_batch(hidden, [0], [len(hidden)], self.manifest.embedding.pooling, [text.pool_from])

    def _terms(self, hidden: Sequence[NDArray[Any]]) -> list[NDArray[np.float32]] | None:
        if self.spec.unavailable is not None:
            return None
        pooling = self.manifest.embedding.pooling
        return [
            self.embedder.terms(
                unit_terms(states, text.unit_of_token, len(text.units), pooling, text.pool_from)
            ).astype(np.float32)
            for text, states in zip(self.texts, hidden, strict=True)
        ]

    def _without_units(
        self, hidden: Sequence[NDArray[Any]], occluded: Sequence[TextVectors]
    ) -> list[NDArray[np.float32]] | None:
        """Return the embeddings of each text without each of its units; zeros if no token remains."""
        effect, pooling = self.request.effect, self.manifest.embedding.pooling
        if effect == "none":
            return None
        embeddings = []
        vectors = iter(occluded)
        for text, states in zip(self.texts, hidden, strict=True):
            units = len(text.units)
            if effect == "leave_one_out":
                rows = pool_without_units(states, text.unit_of_token, units, pooling, text.pool_from)
            else:
                rows = np.zeros((units, self.manifest.pooled_size))
                for index, sequence in enumerate(text.occluded):
                    if len(sequence) > text.pool_from:
                        rows[index] = required(next(vectors).pooled)[0]
            embeddings.append(self._embed_present(rows).astype(np.float32))
        return embeddings

    def _embed_present(self, pooled: NDArray[np.float64]) -> NDArray[np.float64]:
        """Embed pooled vectors; a text without tokens gets zeros."""
        embeddings = self.embedder.embed(pooled)
        embeddings[~pooled.any(axis=1)] = 0
        return embeddings


def unit_terms(
    hidden: NDArray[Any], unit_of_token: NDArray[np.intp], units: int, pooling: CombinedPooling, pool_from: int
) -> Vectors:
    """Return the terms of a pooled vector: rows for U units, for special tokens and for the prompt, (U + 2, P * D).

    Args:
        hidden: Token vectors, (T, D).
        unit_of_token: The unit of each token, `SPECIAL`, or `PROMPT`; (T).
        units: U.
        pooling: P poolings, any but "max".
        pool_from: Index of the first pooled token.
    """
    if COMBINED in pooling:
        parts = [unit_terms(hidden, unit_of_token, units, part, pool_from) for part in split_pooling(pooling)]
        return np.concatenate(parts, axis=1)
    factors = token_factors(pooling, len(hidden), pool_from)
    rows = np.where(unit_of_token == SPECIAL, units, np.where(unit_of_token == PROMPT, units + 1, unit_of_token))
    return sum_by_unit(hidden.astype(np.float64) * factors[:, None], rows, units + 2)


@dataclass(frozen=True)
class Contributions:
    """The contributions to one pair's score: `units` (U, V), and the remaining terms."""

    units: NDArray[np.float32]
    rest: ContributionRest

    @classmethod
    def of(cls, query: NDArray[np.float32], document: NDArray[np.float32]) -> "Contributions":
        """Multiply the terms of both embeddings, (U + 3, dimensions) and (V + 3, dimensions).

        The last three rows belong to special tokens, prompt and bias. A product that involves more than one of them
        counts as bias first, then as special tokens, then as prompt.
        """
        products = query @ document.T
        bias = float(products[-1, :].sum(dtype=np.float64) + products[:-1, -1].sum(dtype=np.float64))
        special = float(products[-3, :-1].sum(dtype=np.float64) + products[:-3, -3].sum(dtype=np.float64))
        special += float(products[-2, -3])
        prompt = float(products[-2, :-3].sum(dtype=np.float64) + products[:-3, -2].sum(dtype=np.float64))
        prompt += float(products[-2, -2])
        return cls(products[:-3, :-3], _rest(special, prompt, bias, 0.0))

    def largest(self, count: int) -> tuple[TopContributions, ContributionRest]:
        """Return the `count` contributions of the largest magnitude, and the rest, including the sum of all others."""
        flat = self.units.ravel()
        count = min(count, flat.size)
        order = np.zeros(0, dtype=np.intp)
        step = max(SELECTION_SIZE, count)
        for start in range(0, flat.size, step):  # in parts, because indices take twice the memory of values
            order = np.concatenate((order, np.arange(start, min(flat.size, start + step))))
            if len(order) > count:
                order = order[np.argpartition(-np.abs(flat[order]), count - 1)[:count]]
        order = order[np.lexsort((order, -np.abs(flat[order])))]
        rows, columns = np.divmod(order, max(1, self.units.shape[1]))
        kept = flat[order]
        dropped = float(flat.sum(dtype=np.float64) - kept.sum(dtype=np.float64)) if count < flat.size else 0.0
        rest = _rest(self.rest.special_tokens, self.rest.prompt, self.rest.bias, dropped)
        return TopContributions(rows.tolist(), columns.tolist(), kept), rest


def _rest(*terms: float) -> ContributionRest:
    return ContributionRest(*(round(term, SCORE_DECIMALS) + 0.0 for term in terms))


def token_text(tokens: TokenizedInput, tokenizer: Tokenizer, first: int) -> TokenizedText:
    """Return a text whose units are all tokens with a vector from index `first`, including special tokens."""
    listed, _ = list_units(tokens, tokenizer.token_texts(tokens), "token")
    units = [
        unit
        for unit, number in zip(listed[first:], tokens.input_ids[first:], strict=True)
        if number not in tokens.skipped_ids
    ]
    return TokenizedText(tokens, 0, units, np.zeros(0, dtype=np.intp))


@dataclass(frozen=True)
class HeadSimilarity(TokenizedRequest):
    """A request with the similarity function "maxsim" or "sparse"."""

    similarity: TextSimilarity
    tokenizer: Tokenizer

    def tasks(self) -> list[EncodeTask]:
        """Return one task per text."""
        return [self.similarity.task(text.tokens, 0) for text in self.texts]

    def response_bytes(self) -> int:
        """Return an upper bound on the size of the response."""
        request, wire = self.request, self.wire
        total = RESULT_BYTES + request.pair_count * array_bytes(1, "float32", wire)
        total += sum(RESULT_BYTES + listed_bytes(text.units, wire) for text in self.texts)
        if request.explain:
            is_sparse = isinstance(self.similarity, SparseSimilarity)
            for query, _ in request.index_pairs():
                count = MAX_TERMS if is_sparse else len(self.queries[query].tokens)
                total += PAIR_BYTES + TERM_BYTES * min(count, self._max_terms)
        return total

    def results(self, vectors: Sequence[TextVectors]) -> tuple[Floats, list[SimilarityPair] | None]:
        """Return the scores and, with `explain`, the explained pairs; `vectors` are the results of `tasks`."""
        represented: list[Any] = [self.similarity.represent(item) for item in vectors]
        queries, documents = represented[: len(self.request.queries)], represented[len(self.request.queries) :]
        if self.request.pairs == "zip":
            pairs = zip(queries, documents, strict=True)
            scores = np.array([self.similarity.scores(query, [document])[0] for query, document in pairs])
        else:
            scores = np.stack([self.similarity.scores(query, documents) for query in queries])
        rounded = np.round(scores, SCORE_DECIMALS).astype(np.float32)
        if not self.request.explain:
            return rounded, None
        return rounded, [
            self._explain(query, document, queries[query], documents[document])
            for query, document in self.request.index_pairs()
        ]

    def _explain(self, query: int, document: int, own: Any, other: Any) -> SimilarityPair:
        matches = products = None
        if isinstance(self.similarity, MaxSim):
            best, values = match_tokens(own, other, mean=self.similarity.mean)
            places, dropped = self._largest(values)
            matches = [TokenMatch(place, int(best[place]), shortest(values[place])) for place in places]
        else:
            assert isinstance(self.similarity, SparseSimilarity)
            if self.similarity.function in DISTANCES:
                (score,) = self.similarity.scores(own, [other])
                rounded = shortest(round(score, SCORE_DECIMALS))
                return SimilarityPair(query, document, rounded, None, None, None, None, None)
            ids, values = self.similarity.products(own, other)
            places, dropped = self._largest(values)
            texts = self.tokenizer.vocabulary_texts(ids[places].tolist())
            products = [
                SharedEntry(int(ids[place]), text, shortest(values[place]))
                for place, text in zip(places, texts, strict=True)
            ]
        score, rest = shortest(round(float(values.sum()), SCORE_DECIMALS)), ContributionRest(0.0, 0.0, 0.0, dropped)
        return SimilarityPair(query, document, score, None, None, rest, None, None, matches, products)

    def _largest(self, values: Scores) -> tuple[list[int], float]:
        """Return the indices of the terms to list, largest magnitude first, and the sum of the others."""
        places = np.argsort(-np.abs(values), kind="stable")
        listed = places[: self._max_terms]
        dropped = float(values[places[self._max_terms :]].sum())
        return listed.tolist(), round(dropped, SCORE_DECIMALS) + 0.0

    @property
    def _max_terms(self) -> int:
        return min(self.request.top_k or MAX_TERMS, MAX_TERMS)


def match_tokens(query: Any, document: Any, *, mean: bool) -> tuple[NDArray[np.intp], Scores]:
    """Return the best document token (K, D) for each query token (Q, D), and the terms of the score; (Q) each.

    A term is the dot product, divided by Q if the score is a `mean`. If either text has no tokens, there are no terms.
    """
    if not len(document):
        return np.zeros(0, dtype=np.intp), np.zeros(0)
    products = query @ document.T
    return products.argmax(axis=1), products.max(axis=1).astype(np.float64) / (len(query) if mean else 1)


def _float32(values: NDArray[Any]) -> Floats:
    return values.astype(np.float32)
