"""The API of infinity, under /infinity: embeddings, rerank, classify and models."""

import time
from typing import Annotated, Any, Literal

from attendant_client.types import ClassifyRequest, EncodeRequest, EncodingFormat, RerankRequest, TextInputs
from pydantic import BaseModel, Field

from service.engine.engine import Engine
from service.errors import ServiceError
from service.operations.encode import pooled_vectors
from service.operations.inputs import MAX_LISTED_INPUTS, cut
from service.rest.api import GET_STATUSES, Api, Exchange, Route, TopN
from service.rest.bodies import ENCODING_DESCRIPTION, FirstError, ForeignModel, LooseBool, TextList, Texts, at_most
from service.rest.routes.native import returned_bytes
from service.rest.routes.openai import Embedding, PromptUsage, prompt_usage, to_embeddings
from service.spelling import Spelling

NAME = "infinity"
UNSPECIFIED = "default/not-specified"
"""The model name that infinity's clients send by default."""
CAPABILITIES = {"encode": "embed", "rerank": "rerank", "classify": "classify"}


class InfinityModel(ForeignModel):
    """A request that may name a model."""

    model: str = Field(UNSPECIFIED, description=f"Name or alias of the served model. `{UNSPECIFIED}` is the default.")

    @property
    def name(self) -> str | None:
        """The name of the model; None for the default model."""
        return None if self.model == UNSPECIFIED else self.model


class InfinityEmbeddingsRequest(InfinityModel):
    """The body of POST /infinity/embeddings."""

    input: Texts = Field(description="A text or a list of texts.")
    encoding_format: EncodingFormat = Field("float", description=ENCODING_DESCRIPTION)
    dimensions: int = Field(
        0, description="Number of leading components to return (Matryoshka truncation). 0 returns all."
    )
    modality: Literal["text"] = Field("text", description="Kind of input.")


class InfinityRerankRequest(InfinityModel):
    """The body of POST /infinity/rerank."""

    query: str = Field(description="The query.")
    documents: Annotated[list[str], FirstError(), at_most("documents")] = Field(description="The documents.")
    top_n: TopN = None
    return_documents: LooseBool = Field(False, description="Whether to return the documents.")
    raw_scores: bool = Field(False, description="Whether to return logits instead of scores.")


class InfinityClassifyRequest(InfinityModel):
    """The body of POST /infinity/classify."""

    input: TextList = Field(description="The texts.")
    raw_scores: bool = Field(False, description="Whether to return logits instead of scores.")


class InfinityErrorDetail(BaseModel):
    """One error in infinity's format."""

    message: str
    type: str
    param: str | None
    code: int = Field(description="HTTP status.")


class InfinityErrorResponse(BaseModel):
    """The body of every error of infinity's API."""

    error: InfinityErrorDetail


class InfinityResponse(BaseModel):
    """Fields of the responses to POST requests."""

    id: str = Field(description="Request ID.")
    created: int = Field(description="Time in seconds since 1970.")
    model: str = Field(description="Name of the served model.")
    usage: PromptUsage


class InfinityEmbeddingsResponse(InfinityResponse):
    """The response of /infinity/embeddings."""

    object: Literal["list"]
    data: list[Embedding] = Field(description="One embedding per text.")


class InfinityRank(BaseModel):
    """A document and its score."""

    relevance_score: float
    index: int = Field(description="Index of the document in the request.")
    document: str | None = Field(None, description="The document, with `return_documents`.")


class InfinityRerankResponse(InfinityResponse):
    """The response of /infinity/rerank."""

    object: Literal["rerank"]
    results: list[InfinityRank] = Field(description="The documents, best first.")


class InfinityLabel(BaseModel):
    """A label and its score."""

    score: float
    label: str


class InfinityClassifyResponse(InfinityResponse):
    """The response of /infinity/classify."""

    object: Literal["classify"]
    data: list[list[InfinityLabel]] = Field(description="The labels of each text, best first.")


class InfinityStats(BaseModel):
    """The load of a model."""

    queue_fraction: float = Field(description="Estimated wait as a fraction of its limit.")
    queue_absolute: int = Field(description="Queued tokens.")
    batch_size: int = Field(description="Maximum number of tokens in a batch.")


class InfinityModelObject(BaseModel):
    """A served model."""

    id: str
    object: Literal["model"]
    owned_by: Literal["infinity"]
    created: int
    stats: InfinityStats
    backend: str = Field(description="Execution provider.")
    capabilities: list[Literal["embed", "rerank", "classify"]]


class InfinityModelList(BaseModel):
    """The response of /infinity/models."""

    object: Literal["list"]
    data: list[InfinityModelObject] = Field(description="The served models, the default model first.")


def _inputs(texts: str | list[str], engine: Engine) -> TextInputs:
    return TextInputs([cut(text, "auto", engine.info) for text in ([texts] if isinstance(texts, str) else texts)])


def _fields(exchange: Exchange, response: Any) -> dict[str, Any]:
    return {
        "model": response.model,
        "usage": prompt_usage(response.token_count),
        "id": exchange.record.request_id,
        "created": int(time.time()),
    }


async def embeddings(exchange: Exchange, body: InfinityEmbeddingsRequest) -> Any:
    """Return one embedding per text."""
    engine, encoded = exchange.find(body.name), body.encoding_format == "base64"
    request = EncodeRequest(_inputs(body.input, engine), dimensions=body.dimensions or None, truncation="auto")
    response = await exchange.run(
        "encode", engine, request, wire="base64" if encoded else "json", max_inputs=MAX_LISTED_INPUTS
    )
    exchange.compress = not encoded
    data = to_embeddings(pooled_vectors(response), encoded=encoded)
    return {"object": "list", "data": data, **_fields(exchange, response)}


async def rerank(exchange: Exchange, body: InfinityRerankRequest) -> Any:
    """Return the documents by their relevance to the query, best first."""
    engine = exchange.find(body.name)
    request = RerankRequest(
        cut(body.query, "auto", engine.info),
        tuple(cut(text, "auto", engine.info) for text in body.documents),
        top_n=body.top_n,
        raw_scores=body.raw_scores,
        truncation="auto",
    )
    size = returned_bytes(body.documents) if body.return_documents else 0
    response = await exchange.run("rerank", engine, request, returned_bytes=size)
    results = [
        {"relevance_score": result.relevance_score, "index": result.index}
        | ({"document": body.documents[result.index]} if body.return_documents else {})
        for result in response.results
    ]
    return {"object": "rerank", "results": results, **_fields(exchange, response)}


async def classify(exchange: Exchange, body: InfinityClassifyRequest) -> Any:
    """Return the labels of each text, best first. Requires a classifier."""
    engine = exchange.find(body.name)
    request = ClassifyRequest(_inputs(body.input, engine), raw_scores=body.raw_scores, truncation="auto")
    response = await exchange.run("classify", engine, request)
    data = [[{"score": label.score, "label": label.label} for label in result.labels] for result in response.results]
    return {"object": "classify", "data": data, **_fields(exchange, response)}


async def models(exchange: Exchange, body: None) -> Any:
    """Return the served models and their load."""
    return {"object": "list", "data": [_describe(engine) for engine in exchange.lifecycle.models]}


def _describe(engine: Engine) -> dict[str, Any]:
    lane, info = engine.fast_lane, engine.info
    return {
        "id": info.name,
        "object": "model",
        "owned_by": "infinity",
        "created": 0,
        "stats": {
            "queue_fraction": lane.utilization,
            "queue_absolute": lane.admission.backlog.tokens,
            "batch_size": engine.max_batch_tokens,
        },
        "backend": info.provider,
        "capabilities": [CAPABILITIES[name] for name in info.operations if name in CAPABILITIES],
    }


def render_error(error: ServiceError, request_id: str) -> dict[str, Any]:
    """Return infinity's error document."""
    detail = {"message": error.message, "type": error.reason.lower(), "param": error.field, "code": error.http_status}
    return {"error": detail}


def _post(path: str, handler: Any, body: type[BaseModel], response: type[BaseModel], **limits: int) -> Route:
    return Route(f"/infinity/{path}", f"infinity_{path}", handler, response, (body,), shed="always", limits=limits)


API = Api(
    NAME,
    "infinity",
    "infinity's API, under /infinity.",
    (
        _post(
            "embeddings", embeddings, InfinityEmbeddingsRequest, InfinityEmbeddingsResponse, inputs=MAX_LISTED_INPUTS
        ),
        _post("rerank", rerank, InfinityRerankRequest, InfinityRerankResponse),
        _post("classify", classify, InfinityClassifyRequest, InfinityClassifyResponse),
        Route(
            "/infinity/models", "infinity_models", models, InfinityModelList, statuses=GET_STATUSES, headers=False,
            names_model=False,
        ),
    ),
    Spelling({"inputs": "input"}, {}, cuts_texts=True),  # long inputs are always truncated
    error=InfinityErrorResponse,
    render=render_error,
)  # fmt: skip
