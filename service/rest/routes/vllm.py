"""The API of vLLM for pooling models: /score, /v1/score, /classify, /pooling, /detokenize and /version."""

import time
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from attendant_client.types import (
    DTYPES,
    Array,
    ClassifyRequest,
    ClassifyResult,
    EncodeRequest,
    EncodingFormat,
    Input,
    ModelInfo,
    Output,
    RerankRequest,
    SimilarityFunction,
    SimilarityRequest,
    Truncation,
    shortest,
)
from attendant_client.wire import Base64
from pydantic import BaseModel, Field

from service import __version__
from service.engine.engine import Engine
from service.engine.vectors import normalize
from service.errors import ConflictingFields, Empty, ServiceError, UnsupportedByModel, WrongShape
from service.operations.inputs import Call, cut
from service.operations.tokenize import decode
from service.rest.api import GET_STATUSES, WITHOUT_422, Api, Exchange, Route, status_400
from service.rest.bodies import (
    ENCODING_DESCRIPTION,
    MODEL_DESCRIPTION,
    NO_LIMIT,
    ForeignModel,
    PromptTokensRequest,
    Texts,
    TokenIds,
)
from service.rest.routes.openai import PromptUsage, prompt_usage
from service.spelling import Spelling
from service.steps import convert

NAME = "vllm"
RAW_FIELDS = ("normalize", "use_activation", "activation", "softmax")
"""Fields for which false selects raw values."""
ERROR_TYPES = {401: "AuthenticationError", 404: "NotFoundError", 429: "RateLimitError"}

Task = Literal["embed", "token_embed", "classify"]


class VllmModel(PromptTokensRequest):
    """Fields that all requests share."""

    model: str | None = Field(None, description=MODEL_DESCRIPTION)
    use_activation: bool | None = Field(None, description="false returns logits instead of scores.")
    activation: bool | None = Field(None, description="Older name of `use_activation`.")
    softmax: bool | None = Field(None, description="Older name of `use_activation`.")

    @property
    def raw_scores(self) -> bool:
        """Whether to return logits."""
        return False in (self.use_activation, self.activation, self.softmax)


class VllmScoreRequest(VllmModel):
    """The body of POST /score and POST /v1/score."""

    text_1: Texts = Field(description="A text, to compare with each text of `text_2`, or one text for each of them.")
    text_2: Texts = Field(description="A text or a list of texts.")


class VllmClassifyRequest(VllmModel):
    """The body of POST /classify."""

    input: Texts = Field(description="A text or a list of texts.")


class VllmPoolingRequest(VllmModel):
    """The body of POST /pooling."""

    input: Texts = Field(description="A text or a list of texts.")
    task: Task | None = Field(
        None,
        description="What to return per input: its embedding, one vector per token, or the score of each label. null "
        "is `classify` for a classifier, otherwise `token_embed`.",
    )
    normalize: bool | None = Field(None, description="false returns vectors of any length, as `use_activation` does.")
    dimensions: int | None = Field(
        None,
        description="Number of leading components to return (Matryoshka truncation). Requires the task `embed`.",
        json_schema_extra={"minimum": 1},
    )
    encoding_format: EncodingFormat = Field("float", description=ENCODING_DESCRIPTION)
    embed_dtype: Literal["float32"] = Field("float32", description="Type of the numbers in base64.")
    endianness: Literal["native", "little"] = Field("native", description="Order of bytes in base64: little-endian.")


class VllmDetokenizeRequest(ForeignModel):
    """The body of POST /detokenize."""

    model: str | None = Field(None, description=MODEL_DESCRIPTION)
    tokens: TokenIds = Field(description="Token ids.")


class VllmErrorDetail(BaseModel):
    """One error in vLLM's format."""

    message: str
    type: str
    param: str | None
    code: int = Field(description="HTTP status.")


class VllmErrorResponse(BaseModel):
    """The body of every error of vLLM's API."""

    error: VllmErrorDetail


class VllmResponse(BaseModel):
    """The fields of every response."""

    id: str = Field(description="Request ID.")
    object: Literal["list"]
    created: int = Field(description="Time in seconds since 1970.")
    model: str = Field(description="Name of the served model.")
    usage: PromptUsage


class VllmText(BaseModel):
    """The response of /detokenize."""

    prompt: str = Field(description="The text.")


class VllmVersion(BaseModel):
    """The response of /version."""

    version: str = Field(description="Version of the server.")


class VllmScore(BaseModel):
    """The score of one pair."""

    index: int
    object: Literal["score"]
    score: float


class VllmScoreResponse(VllmResponse):
    """The response of /score and /v1/score."""

    data: list[VllmScore] = Field(description="One score per pair, in the order of `text_2`.")


class VllmLabels(BaseModel):
    """The labels of one input."""

    index: int
    label: str = Field(description="The label with the highest score.")
    probs: list[float] = Field(description="Score of each label, in the order of the model's labels.")
    num_classes: int = Field(description="Number of labels.")


class VllmClassifyResponse(VllmResponse):
    """The response of /classify."""

    data: list[VllmLabels] = Field(description="One result per input, in the order of the inputs.")


class VllmPooled(BaseModel):
    """The result of one input."""

    index: int
    object: Literal["pooling"]
    data: list[float] | list[list[float]] | str = Field(
        description="An embedding, one vector per token, or the score of each label in the order of the model's "
        "labels; in base64 if requested."
    )


class VllmPoolingResponse(VllmResponse):
    """The response of /pooling."""

    data: list[VllmPooled] = Field(description="One result per input, in the order of the inputs.")


def _document(exchange: Exchange, response: Any, data: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": exchange.record.request_id,
        "object": "list",
        "created": int(time.time()),
        "model": response.model,
        "data": data,
        "usage": prompt_usage(response.token_count),
    }


def _cut(texts: str | Sequence[str], truncation: Truncation, engine: Engine) -> tuple[str, ...]:
    return tuple(cut(text, truncation, engine.info) for text in ([texts] if isinstance(texts, str) else texts))


def _inputs(body: Any, engine: Engine, truncation: Truncation) -> tuple[Input, ...]:
    return tuple(map(Input, _cut(body.input, truncation, engine)))


# Score


async def score(exchange: Exchange, body: VllmScoreRequest) -> Any:
    """Return the score of each pair of texts. Requires a cross-encoder, an embedding model, ColBERT or SPLADE."""
    try:
        response, scores = await _score(exchange, body)
    except ServiceError as error:
        if error.field is not None:
            error.field = name_text(error.field, body)
        raise
    data = [{"index": index, "object": "score", "score": value} for index, value in enumerate(scores)]
    return _document(exchange, response, data)


async def _score(exchange: Exchange, body: VllmScoreRequest) -> tuple[Any, list[float]]:
    """Return the operation's response and the score of each pair."""
    engine = exchange.find(body.model)
    info, truncation = engine.info, exchange.truncation(body, engine)
    first, second = (_cut(texts, truncation, engine) for texts in (body.text_1, body.text_2))
    _check_counts(len(first), len(second))
    is_zipped = len(first) > 1
    if not info.labels:
        similarity = await exchange.run(
            "similarity", engine,
            SimilarityRequest(
                first, second, pairs="zip" if is_zipped else "all", similarity=score_function(info),
                truncation=truncation,
            ),
        )  # fmt: skip
        return similarity, [shortest(value) for value in np.ravel(similarity.scores)]
    if len(info.labels) > 1:
        raise UnsupportedByModel("The model has several labels", "Use a cross-encoder or an embedding model.")
    if not is_zipped:
        request = RerankRequest(first[0], second, raw_scores=body.raw_scores, truncation=truncation)
        ranked = await exchange.run("rerank", engine, request)
        return ranked, [item.relevance_score for item in sorted(ranked.results, key=lambda item: item.index)]
    if "classify" not in info.operations:  # rerank accepts one query per request
        raise UnsupportedByModel("several texts are not supported for this model", "Send one.", field="text_1")
    inputs = tuple(Input(text, pair) for text, pair in zip(first, second, strict=True))
    labeled = await exchange.run(
        "classify", engine, ClassifyRequest(inputs, raw_scores=body.raw_scores, truncation=truncation)
    )
    return labeled, [result.labels[0].score for result in labeled.results]


def score_function(info: ModelInfo) -> SimilarityFunction:
    """Return the function that scores a pair, as in vLLM: BGE-M3 compares embeddings, ColBERT token vectors."""
    functions: dict[Output, SimilarityFunction] = {"multi_vector": "maxsim", "sparse": "sparse"}
    available = [function for output, function in functions.items() if output in info.outputs]
    return available[0] if len(available) == 1 else "cosine"


def _check_counts(first: int, second: int) -> None:
    for field, count in (("text_1", first), ("text_2", second)):
        if not count:
            raise Empty("empty", "Send at least one text.", field=field)
    if first not in (1, second):
        raise WrongShape(
            "wrong number of texts", "Send one text in text_1, or as many as in text_2.",
            field="text_2", actual=second, minimum=first, maximum=first,
        )  # fmt: skip


def name_text(path: str, body: VllmScoreRequest) -> str:
    """Return the path of a text in a /score request. Operations use queries and documents, or inputs with two parts."""
    name, bracket, rest = path.partition("[")
    index, _, part = rest.partition("]")
    if name == "inputs":
        name = "text_2" if part == ".pair" else "text_1"
    elif name in ("query", "queries"):
        name = "text_1"
    elif name == "documents":
        name = "text_2"
    else:
        return path
    is_text = isinstance(getattr(body, name), str)
    return f"{name}[{index}]" if bracket and not is_text else name


# Classify and pooling


async def classify(exchange: Exchange, body: VllmClassifyRequest) -> Any:
    """Return the best label of each input and the scores of all labels. Requires a classifier."""
    engine = exchange.find(body.model)
    truncation = exchange.truncation(body, engine)
    inputs = _inputs(body, engine, truncation)
    response = await exchange.run(
        "classify", engine, ClassifyRequest(inputs, raw_scores=body.raw_scores, truncation=truncation)
    )
    labels = engine.info.labels
    data = [
        {
            "index": index, "label": result.labels[0].label, "probs": in_order(result, labels),
            "num_classes": len(labels),
        }
        for index, result in enumerate(response.results)
    ]  # fmt: skip
    return _document(exchange, response, data)


async def pooling(exchange: Exchange, body: VllmPoolingRequest) -> Any:
    """Return the embedding, the token vectors or the scores of the labels of each input."""
    engine = exchange.find(body.model)
    exchange.compress = body.encoding_format != "base64"
    response, results = await _pool(exchange, body, engine)
    data = [{"index": index, "object": "pooling", "data": result} for index, result in enumerate(results)]
    return _document(exchange, response, data)


async def _pool(exchange: Exchange, body: VllmPoolingRequest, engine: Engine) -> tuple[Any, list[Any]]:
    """Return the operation's response and the data of each input."""
    encoded, truncation = body.encoding_format == "base64", exchange.truncation(body, engine)
    inputs = _inputs(body, engine, truncation)
    task = body.task or ("classify" if "classify" in engine.info.operations else "token_embed")
    raw = body.raw_scores or body.normalize is False
    if body.dimensions is not None and task != "embed":
        raise ConflictingFields(f'not supported for the task "{task}"', "Leave it out.", field="dimensions")
    if task == "classify":
        request = ClassifyRequest(inputs, raw_scores=raw, truncation=truncation)
        labeled = await exchange.run("classify", engine, request)
        scores = [in_order(result, engine.info.labels) for result in labeled.results]
        return labeled, [Base64(np.array(row, DTYPES["float32"])) for row in scores] if encoded else scores
    has_multi_vector = task == "token_embed" and "multi_vector" in engine.info.outputs
    if has_multi_vector and raw:
        raise ConflictingFields(
            "not supported for the token vectors of this model, which have length 1", "Leave it out.",
            field=next(name for name in RAW_FIELDS if getattr(body, name) is False),
        )  # fmt: skip
    output, name = _OUTPUTS["multi_vector" if has_multi_vector else task]
    response = await exchange.run(
        "encode",
        engine,
        EncodeRequest(
            inputs, outputs=(output,), normalize=not raw if task == "embed" else None, dimensions=body.dimensions,
            truncation=truncation,
        ),
        wire="base64" if encoded else "json",
    )  # fmt: skip
    scale = output == "tokens" and not raw

    def describe(vectors: Array) -> Any:
        scaled = normalize(vectors) if scale else vectors
        return Base64(scaled) if encoded else scaled

    return response, await convert(describe, [getattr(result, name) for result in response.results])


_OUTPUTS: dict[str, tuple[Output, str]] = {
    "embed": ("pooled", "pooled"),
    "token_embed": ("tokens", "token_vectors"),
    "multi_vector": ("multi_vector", "multi_vector"),
}
"""For each task, the encode output to return, and its field in the result."""


def in_order(result: ClassifyResult, labels: Sequence[str]) -> list[float]:
    """Return the scores in label order."""
    scores = {label.label: label.score for label in result.labels}
    return [scores[label] for label in labels]


async def detokenize(exchange: Exchange, body: VllmDetokenizeRequest) -> Any:
    """Return the text of token ids, special tokens included."""
    engine = exchange.find(body.model)
    (text,) = await decode(engine, [body.tokens], Call(exchange.deadline), skip_special_tokens=False)
    return {"prompt": text}


async def version(exchange: Exchange, body: None) -> Any:
    """Return the version of the server."""
    return {"version": __version__}


def render_error(error: ServiceError, request_id: str) -> dict[str, Any]:
    """Return vLLM's error document."""
    status = status_400(error)
    kind = ERROR_TYPES.get(status, "BadRequestError" if status < 500 else "InternalServerError")
    return {"error": {"message": error.message, "type": kind, "param": error.field, "code": status}}


def _post(path: str, name: str, handler: Any, body: type[BaseModel], response: type[BaseModel]) -> Route:
    return Route(path, f"vllm_{name}", handler, response, (body,), statuses=WITHOUT_422, shed="always")


API = Api(
    NAME,
    "vllm",
    "vLLM's API for pooling models.",
    (
        _post("/score", "score", score, VllmScoreRequest, VllmScoreResponse),
        _post("/v1/score", "v1_score", score, VllmScoreRequest, VllmScoreResponse),
        _post("/classify", "classify", classify, VllmClassifyRequest, VllmClassifyResponse),
        _post("/pooling", "pooling", pooling, VllmPoolingRequest, VllmPoolingResponse),
        Route(
            "/detokenize",
            "vllm_detokenize",
            detokenize,
            VllmText,
            (VllmDetokenizeRequest,),
            statuses=WITHOUT_422,
            headers=False,
        ),
        Route(
            "/version", "vllm_version", version, VllmVersion, statuses=GET_STATUSES, headers=False, names_model=False
        ),
    ),
    Spelling(
        {"inputs": "input", "token_ids": "tokens"},
        {"truncation": "truncate_prompt_tokens"},
        values={"truncation": str(NO_LIMIT)},
        cuts_texts=True,
    ),
    error=VllmErrorResponse,
    render=render_error,
    status=status_400,
)
