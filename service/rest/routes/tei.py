"""The API of text-embeddings-inference (TEI): /embed, /rerank, /predict, /similarity, /tokenize and others."""

import time
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import orjson
from attendant_client.types import SimilarityRequest, Truncation
from fastapi import Request, Response
from pydantic import BaseModel, BeforeValidator, Discriminator, Field, Tag

from service import tei
from service.engine.engine import Engine
from service.errors import Empty, Overloaded, ServiceError, Unavailable, WrongType
from service.lifecycle import Lifecycle
from service.operations.encode import pooled_vectors
from service.operations.inputs import MAX_LISTED_INPUTS, Call, cut
from service.operations.tokenize import decode as decode_ids
from service.rest.api import ERRORS, GET_STATUSES, Api, Dimensions, ErrorResponse, Exchange, Handler, Route, Select
from service.rest.bodies import (
    IDS_LIST_TAG,
    IDS_TAG,
    JSON,
    LIST_TAG,
    OTHER_TAG,
    FirstError,
    ForeignModel,
    Integers,
    TextList,
    Texts,
    TokenIds,
    at_most,
    count_inputs_or_ids,
    text_or,
)
from service.spelling import Spelling
from service.steps import convert

NAME = tei.NAME
DIRECTIONS: dict[str, Truncation] = {"Left": "left", "Right": "right"}
LISTS = ("inputs", "inputs.sentences", "texts", "ids")
"""Fields for which an empty list is reported as a separate error."""
PROMPT_NAME_DESCRIPTION = "Name of a prompt of the model."
SCORES_DESCRIPTION = "Whether to return scores without an activation function."
INPUTS_DESCRIPTION = "A text, token ids, or a list of these."
STATUSES = (400, 401, 403, 408, 413, 415, 422, 429, 500, 503, 504)
HEAD_STATUSES = (*STATUSES, 424)
RANK_STATUSES = (*HEAD_STATUSES, 404)
"""The errors of routes that also accept the native rerank request."""
DOCUMENT_BYTES = 32
"""Overhead per returned text in bytes."""


# Requests


def _capitalize(value: Any) -> Any:
    """Accept lower case. Listing these spellings as enum values would break client generators."""
    return value.capitalize() if value in ("left", "right") else value


def _input_branch(value: Any) -> str:
    """Select the branch for `inputs` by its first item. A list of numbers is one input."""
    if isinstance(value, str):
        return OTHER_TAG
    return IDS_TAG if isinstance(value, list) and value and isinstance(value[0], int) else LIST_TAG


def _ids_branch(value: Any) -> str:
    """Select the branch for `ids` by its first item."""
    return IDS_TAG if isinstance(value, list) and value and isinstance(value[0], int) else IDS_LIST_TAG


def _pair_branch(value: Any) -> str:
    """Select the branch for a classifier's `inputs` by its first item."""
    if isinstance(value, str):
        return OTHER_TAG
    return IDS_LIST_TAG if isinstance(value, list) and value and isinstance(value[0], list) else LIST_TAG


TextOrIds: Any = text_or(TokenIds, IDS_TAG)
TeiInputs: Any = Annotated[
    Annotated[str, Tag(OTHER_TAG)]
    | Annotated[Integers, Tag(IDS_TAG)]
    | Annotated[list[TextOrIds], FirstError(), Tag(LIST_TAG)],
    Discriminator(_input_branch),
    BeforeValidator(count_inputs_or_ids),
]
TeiIds = Annotated[
    Annotated[Integers, Tag(IDS_TAG)] | Annotated[list[TokenIds], FirstError(), Tag(IDS_LIST_TAG)],
    Discriminator(_ids_branch),
    BeforeValidator(count_inputs_or_ids),
]
TextOrPair = Annotated[list[str], FirstError()]
TeiPairs = Annotated[
    Annotated[str, Tag(OTHER_TAG)]
    | Annotated[TextOrPair, Tag(LIST_TAG)]
    | Annotated[list[TextOrPair], FirstError(), at_most("inputs"), Tag(IDS_LIST_TAG)],
    Discriminator(_pair_branch),
]


class TeiTextsRequest(ForeignModel):
    """A request whose inputs may be truncated."""

    truncate: bool | None = Field(
        None, description="Whether to truncate inputs over the token limit, which are an error otherwise. null is true."
    )
    truncation_direction: Annotated[Literal["Left", "Right"], BeforeValidator(_capitalize)] | None = Field(
        None,
        description="Side to drop tokens from, in any case. null is the side that the model's tokenizer names, usually "
        "`Right`.",
    )

    @property
    def truncation(self) -> Truncation:
        """The truncation in the operations' terms."""
        if self.truncate is False:
            return "error"
        return "auto" if self.truncation_direction is None else DIRECTIONS[self.truncation_direction]


class TeiEmbedAllRequest(TeiTextsRequest):
    """The body of POST /embed_all and POST /embed_sparse."""

    inputs: TeiInputs = Field(description=INPUTS_DESCRIPTION)
    prompt_name: str | None = Field(None, description=PROMPT_NAME_DESCRIPTION)


class TeiEmbedRequest(TeiEmbedAllRequest):
    """The body of POST /embed and POST /."""

    normalize: bool | None = Field(None, description="Whether to scale embeddings to length 1. null is true.")
    dimensions: Dimensions = None


class TeiRerankRequest(TeiTextsRequest):
    """The body of POST /rerank, and of POST /v1/rerank with `texts`."""

    query: str = Field(description="The query.")
    texts: TextList = Field(description="The texts to rank.")
    raw_scores: bool | None = Field(None, description=SCORES_DESCRIPTION)
    return_text: bool | None = Field(None, description="Whether to return the texts.")


class TeiPredictRequest(TeiTextsRequest):
    """The body of POST /predict."""

    inputs: TeiPairs = Field(description="A text, a pair of texts, or a list of lists of one or two texts.")
    raw_scores: bool | None = Field(None, description=SCORES_DESCRIPTION)


class Sentences(ForeignModel):
    """The texts to compare."""

    source_sentence: str = Field(description="The text to compare with the others.")
    sentences: TextList = Field(description="The other texts.")


class SimilarityParameters(TeiTextsRequest):
    """The options of POST /similarity."""

    prompt_name: str | None = Field(None, description=PROMPT_NAME_DESCRIPTION)


class TeiSimilarityRequest(ForeignModel):
    """The body of POST /similarity."""

    inputs: Sentences = Field(description="The texts to compare.")
    parameters: SimilarityParameters | None = Field(None, description="Options.")


class TeiTokenizeRequest(ForeignModel):
    """The body of POST /tokenize."""

    inputs: Texts = Field(description="A text or a list of texts.")
    add_special_tokens: bool | None = Field(None, description="Whether to return special tokens. null is true.")
    prompt_name: str | None = Field(None, description=PROMPT_NAME_DESCRIPTION)


class TeiDecodeRequest(ForeignModel):
    """The body of POST /decode."""

    ids: TeiIds = Field(description="Token ids, or a list of lists of token ids.")
    skip_special_tokens: bool | None = Field(None, description="Whether to leave out special tokens. null is true.")


# Responses


class TeiErrorResponse(BaseModel):
    """The body of every error of the TEI API."""

    error: str = Field(description="Message for people.")
    error_type: Literal["Unhealthy", "Backend", "Overloaded", "Validation", "Tokenizer", "Empty"] = Field(
        description="Kind of error."
    )


class SparseValue(BaseModel):
    """One component of a sparse embedding."""

    index: int
    value: float


class TeiRank(BaseModel):
    """The score of one text."""

    index: int
    score: float
    text: str | None = None


class TeiPrediction(BaseModel):
    """The score of one label."""

    score: float
    label: str


class TeiToken(BaseModel):
    """One token; offsets count bytes of the text in UTF-8."""

    id: int
    text: str = Field(description="The part of the text that the token covers; the name of a special token.")
    special: bool
    start: int | None = Field(description="First byte; null for special tokens.")
    stop: int | None = Field(description="End byte, exclusive; null for special tokens.")


class TeiPooling(BaseModel):
    """How the model pools token vectors."""

    pooling: str = Field(
        description="mean, cls, max, last_token, mean_sqrt_len, weighted_mean or splade; several whose vectors are "
        "concatenated are joined by +."
    )


class TeiLabels(BaseModel):
    """The labels of a classifier by number, and their numbers."""

    id2label: dict[str, str]
    label2id: dict[str, int]


class TeiEmbeddingType(BaseModel):
    """The type of an embedding model."""

    embedding: TeiPooling


class TeiClassifierType(BaseModel):
    """The type of a classifier with several labels."""

    classifier: TeiLabels


class TeiRerankerType(BaseModel):
    """The type of a cross-encoder."""

    reranker: TeiLabels


class TeiInfo(BaseModel):
    """The response of GET /info."""

    model_id: str = Field(description="Source of the model.")
    model_sha: str | None = Field(description="Revision of the source.")
    model_dtype: Literal["float32", "bfloat16", "float16", "int8"] = Field(description="Precision of inference.")
    served_model_name: str = Field(description="Name of the served model.")
    model_type: TeiEmbeddingType | TeiClassifierType | TeiRerankerType = Field(
        description="Type of the model, with its pooling or labels."
    )
    max_concurrent_requests: int = Field(description="Maximum number of connections.")
    max_input_length: int = Field(description="Maximum number of tokens per input.")
    max_batch_tokens: int = Field(description="Maximum number of tokens in a batch.")
    max_batch_requests: int | None = Field(description="Always null.")
    max_client_batch_size: int = Field(description="Maximum number of inputs per request.")
    auto_truncate: bool = Field(description="Always true.")
    tokenization_workers: int = Field(description="Number of threads for tokenization.")
    version: str = Field(description="Version of the server.")
    sha: str | None = Field(description="Always null.")
    docker_label: str | None = Field(description="Always null.")


Predictions = list[TeiPrediction] | list[list[TeiPrediction]]


# Errors


def http_status(error: ServiceError) -> int:
    """Return the HTTP status of an error: TEI's status if TEI defines the error."""
    if isinstance(error, Overloaded):
        return 429
    if error.reason == "PROMPT_NOT_FOUND":
        return 422
    return 400 if _is_empty_list(error) else error.http_status


def render_error(error: ServiceError, request_id: str) -> dict[str, Any]:
    """Return TEI's error document."""
    status = http_status(error)
    kind = {429: "Overloaded", 503: "Unhealthy", 424: "Backend", 500: "Backend", 504: "Backend"}.get(
        status, "Empty" if _is_empty_list(error) else "Validation"
    )
    return {"error": error.message, "error_type": kind}


def _is_empty_list(error: ServiceError) -> bool:
    return isinstance(error, Empty) and error.field in LISTS


class TeiRestSpelling(Spelling):
    """The paths of fields in JSON; a request of /similarity has one query."""

    def path(self, path: str) -> str:
        return "inputs.source_sentence" if path.startswith("queries") else super().path(path)


# Routes


def to_items(inputs: str | Sequence[str | int | list[int]]) -> list[tei.Item]:
    """Return the inputs as a list; a list of numbers is one input."""
    if isinstance(inputs, str):
        return [inputs]
    ids = [item for item in inputs if isinstance(item, int)]
    return [ids] if ids else [item for item in inputs if not isinstance(item, int)]


def options(exchange: Exchange, body: Any, *, prompt: bool = True, **call: Any) -> tei.Options:
    """Return the options of a request, for a new call."""
    exchange.call = Call(exchange.deadline, **call)
    return tei.Options(body.truncation, body.prompt_name if prompt else None, exchange.call)


def add_headers(exchange: Exchange, engine: Engine, response: Any, characters: int) -> None:
    """Add TEI's headers and the native API's."""
    total_s = time.perf_counter() - exchange.record.started
    metadata = tei.ComputeMetadata.measure(response.token_count, exchange.call, characters, total_s)
    exchange.headers |= metadata.headers(engine.info)
    exchange.add_metadata(engine, response)


async def embed(exchange: Exchange, body: TeiEmbedRequest) -> Any:
    """Return one embedding per input."""
    engine = exchange.find()
    items = to_items(body.inputs)
    response = await tei.embed(
        engine, items, options(exchange, body, max_inputs=MAX_LISTED_INPUTS), normalize=body.normalize is not False,
        dimensions=body.dimensions,
    )  # fmt: skip
    add_headers(exchange, engine, response, sum(map(len, items)))
    return pooled_vectors(response)


async def embed_all(exchange: Exchange, body: TeiEmbedAllRequest) -> Any:
    """Return one vector per token of each input, including special tokens and the prompt."""
    engine = exchange.find()
    items = to_items(body.inputs)
    response = await tei.embed_all(engine, items, options(exchange, body))
    add_headers(exchange, engine, response, sum(map(len, items)))
    return [result.token_vectors for result in response.results]


async def embed_sparse(exchange: Exchange, body: TeiEmbedAllRequest) -> Any:
    """Return one sparse embedding per input. Requires a SPLADE model, or another one with sparse vectors."""
    engine = exchange.find()
    tei.check_not_empty(body.inputs, "inputs")
    items = to_items(body.inputs)
    response = await tei.embed_sparse(engine, items, options(exchange, body))
    add_headers(exchange, engine, response, sum(map(len, items)))
    return await convert(_describe_sparse, [result.sparse for result in response.results])


def _describe_sparse(sparse: Any) -> list[dict[str, Any]]:
    pairs = zip(sparse.token_ids.tolist(), sparse.weights, strict=True)  # float32 prints fewer digits
    return [{"index": number, "value": weight} for number, weight in pairs]


async def predict(exchange: Exchange, body: TeiPredictRequest) -> Any:
    """Return the scores of the labels of each input. Requires a classification model."""
    engine = exchange.find()
    items, is_batch = _to_pairs(body.inputs)
    response = await tei.predict(
        engine, items, options(exchange, body, prompt=False), raw_scores=body.raw_scores is True
    )
    add_headers(exchange, engine, response, sum(len(text) for item in items for text in item))
    results = [[{"score": label.score, "label": label.label} for label in result.labels] for result in response.results]
    return results if is_batch else results[0]


def _to_pairs(inputs: str | Sequence[str | list[str]]) -> tuple[list[list[str]], bool]:
    """Return the one or two texts of each input of a classifier, and whether the request contains a list of inputs.

    Raises `InvalidArgument` for another number of texts.
    """
    if isinstance(inputs, str):
        return [[inputs]], False
    pairs = [item for item in inputs if not isinstance(item, str)]
    if not pairs:
        texts = [item for item in inputs if isinstance(item, str)]
        tei.check_pair(texts, "inputs")
        return [texts], False
    for index, pair in enumerate(pairs):
        tei.check_pair(pair, f"inputs[{index}]")
    return pairs, True


async def rerank_texts(exchange: Exchange, body: TeiRerankRequest) -> Any:
    """Return the scores of texts for a query, best first."""
    engine = exchange.find()
    tei.check_not_empty(body.texts, "texts")
    size = sum(DOCUMENT_BYTES + len(orjson.dumps(text)) for text in body.texts) if body.return_text else 0
    response = await tei.rerank(
        engine,
        body.query,
        body.texts,
        options(exchange, body, prompt=False, returned_bytes=size),
        raw_scores=body.raw_scores is True,
    )
    add_headers(exchange, engine, response, sum(map(len, (body.query, *body.texts))))
    return [
        {"index": result.index, "score": result.relevance_score}
        | ({"text": body.texts[result.index]} if body.return_text else {})
        for result in response.results
    ]


async def similarity(exchange: Exchange, body: TeiSimilarityRequest) -> Any:
    """Return the cosine similarity of one text with each of several others."""
    engine, source, sentences = exchange.find(), body.inputs.source_sentence, body.inputs.sentences
    parameters = body.parameters or SimilarityParameters()
    truncation, info = parameters.truncation, engine.info
    # All texts get the same prompt; by default, there is one for queries and another one for documents.
    prompt = tei.prompt_text(info, parameters.prompt_name, "parameters.prompt_name")
    request = SimilarityRequest(
        (cut(source, truncation, info),),
        tuple(cut(text, truncation, info) for text in sentences),
        similarity="cosine",
        truncation=truncation,
        query_prompt=prompt,
        document_prompt=prompt,
    )
    response = await exchange.run("similarity", engine, request)
    add_headers(exchange, engine, response, sum(map(len, (source, *sentences))))
    return response.scores[0]


async def tokenize(exchange: Exchange, body: TeiTokenizeRequest) -> Any:
    """Return the tokens of each text, prompt included, with offsets in bytes of UTF-8."""
    texts = [body.inputs] if isinstance(body.inputs, str) else body.inputs
    chosen = tei.Options(prompt_name=body.prompt_name, call=Call(exchange.deadline))
    tokenized = await tei.tokenize(exchange.find(), texts, chosen)
    special = body.add_special_tokens is not False
    return await convert(lambda item: tei.describe_tokens(item[0], item[1].tokens, special=special), tokenized)


async def decode(exchange: Exchange, body: TeiDecodeRequest) -> Any:
    """Return the text of each list of token ids."""
    tei.check_not_empty(body.ids, "ids")
    ids = [item for item in to_items(body.ids) if not isinstance(item, str)]
    skip = body.skip_special_tokens is not False
    return await decode_ids(exchange.find(), ids, Call(exchange.deadline), skip_special_tokens=skip)


async def info(exchange: Exchange, body: None) -> Any:
    """Return the served model and its limits."""
    return tei.describe_model(exchange.find())


async def health(exchange: Exchange, body: None) -> Any:
    """Return 200 while requests are accepted, otherwise 503."""
    if exchange.lifecycle.ready:
        return Response()
    error = Unavailable(f"Server is not ready (status {exchange.lifecycle.status.value})", "Retry later.")
    return Response(orjson.dumps(render_error(error, "")), error.http_status, media_type=JSON)


def make_api(rerank: Handler, select: Select, rerank_body: type[BaseModel], rerank_response: type[BaseModel]) -> Api:
    """Return the API. /rerank is shared: with `documents`, it does what the native API does."""

    async def rank(exchange: Exchange, body: Any) -> Any:
        """Return the scores of texts for a query, best first. Requires a cross-encoder.

        With `documents`, do what /v1/rerank does.
        """
        return await rerank(exchange, body)

    async def root(exchange: Exchange, body: Any) -> Any:
        """Do what /embed, /rerank or /predict does, by the kind of the model."""
        return await handlers[tei.model_type(exchange.find())](exchange, body)

    def select_root(request: Request, lifecycle: Lifecycle, document: Any) -> type[BaseModel]:
        kind = tei.model_type(lifecycle.models.find())
        if isinstance(document, dict) and isinstance(document.get("inputs"), dict):
            raise WrongType("wrong type (object)", "Send sentences to compare to /similarity.", field="inputs")
        if kind == "reranker":
            return select(request, lifecycle, document)
        return TeiEmbedRequest if kind == "embedding" else TeiPredictRequest

    handlers: dict[str, Handler] = {"embedding": embed, "reranker": rank, "classifier": predict}
    both = (TeiErrorResponse, ErrorResponse)
    ranks = list[TeiRank] | rerank_response

    def post(path: str, handler: Handler, body: type[BaseModel], response: Any, **more: Any) -> Route:
        more = {"statuses": STATUSES, "shed": "always"} | more
        return Route(path, f"tei_{path[1:]}", handler, response, (body,), **more)

    return Api(
        NAME,
        "tei",
        "text-embeddings-inference's API, for its clients and those of Hugging Face.",
        (
            post("/embed", embed, TeiEmbedRequest, list[list[float]], limits={"inputs": MAX_LISTED_INPUTS}),
            post("/embed_all", embed_all, TeiEmbedAllRequest, list[list[list[float]]]),
            post("/similarity", similarity, TeiSimilarityRequest, list[float]),
            post("/tokenize", tokenize, TeiTokenizeRequest, list[list[TeiToken]], shed="never", headers=False),
            post("/decode", decode, TeiDecodeRequest, list[str], shed="never", headers=False),
            Route("/info", "tei_info", info, TeiInfo, statuses=GET_STATUSES),
            post("/embed_sparse", embed_sparse, TeiEmbedAllRequest, list[list[SparseValue]], statuses=HEAD_STATUSES),
            Route(
                "/rerank", "tei_rerank", rank, ranks, (TeiRerankRequest, rerank_body), select, statuses=RANK_STATUSES,
                errors=both, shed="always",
            ),
            post("/predict", predict, TeiPredictRequest, Predictions, statuses=HEAD_STATUSES),
            Route("/ping", "tei_ping", health, None, statuses=(503,), is_probe=True),
            Route("/health", "tei_health", health, None, statuses=(503,), is_probe=True),
            Route(
                "/", "tei_root", root, list[list[float]] | ranks | Predictions,
                (TeiEmbedRequest, TeiRerankRequest, rerank_body, TeiPredictRequest), select_root,
                statuses=RANK_STATUSES, errors=both, shed="always", limits={"inputs": MAX_LISTED_INPUTS},
            ),
        ),
        TeiRestSpelling(
            {"documents": "inputs.sentences", "token_ids": "ids"}, tei.OPTIONS, values=tei.VALUES, cuts_texts=True
        ),
        error=TeiErrorResponse,
        render=render_error,
        status=http_status,
        descriptions=ERRORS | {
            400: "Malformed request, or an empty list.",
            422: "Invalid argument, or unknown prompt.",
            429: "Queue full, or too much memory in use for request bodies.",
        },
    )  # fmt: skip
