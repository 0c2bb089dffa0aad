"""Ollama's API for embeddings: /api/embed, /api/embeddings, /api/tags and /api/version."""

import time
from collections.abc import Sequence
from typing import Any

from attendant_client.types import EncodeRequest, ModelInfo, TextInputs, Truncation
from pydantic import BaseModel, Field

from service import __version__
from service.operations.encode import pooled_vectors
from service.operations.inputs import MAX_LISTED_INPUTS, cut
from service.rest.api import GET_STATUSES, Api, Dimensions, Exchange, Route, message_error
from service.rest.bodies import MODEL_DESCRIPTION, ForeignModel, Texts
from service.spelling import Spelling

NAME = "ollama"
TAG = ":latest"
"""The tag that Ollama's clients append to a name without one."""


class OllamaEmbedRequest(ForeignModel):
    """The body of POST /api/embed."""

    model: str = Field(description=MODEL_DESCRIPTION)
    input: Texts = Field(description="A text or a list of texts.")
    truncate: bool | None = Field(
        None, description="Whether to truncate inputs over the token limit, which are an error otherwise. null is true."
    )
    dimensions: Dimensions = None


class OllamaEmbeddingsRequest(ForeignModel):
    """The body of POST /api/embeddings, which contains one text."""

    model: str = Field(description=MODEL_DESCRIPTION)
    prompt: str = Field(description="The text.")


class OllamaErrorResponse(BaseModel):
    """The body of every error of Ollama's API."""

    error: str = Field(description="Message for people.")


class OllamaEmbedResponse(BaseModel):
    """The response of /api/embed."""

    model: str
    embeddings: list[list[float]] = Field(description="One embedding per text.")
    total_duration: int = Field(description="Time in nanoseconds.")
    load_duration: int = Field(description="Always 0: models stay loaded.")
    prompt_eval_count: int = Field(description="Number of tokens.")


class OllamaEmbeddingsResponse(BaseModel):
    """The response of /api/embeddings."""

    embedding: list[float]


class OllamaDetails(BaseModel):
    """The kind of a model."""

    format: str
    family: str
    families: list[str]


class OllamaModel(BaseModel):
    """A served model."""

    name: str
    model: str
    modified_at: str = Field(description="Always 1970: models have no date.")
    size: int = Field(description="Always 0.")
    digest: str
    details: OllamaDetails


class OllamaModelsResponse(BaseModel):
    """The response of /api/tags."""

    models: list[OllamaModel] = Field(description="The served models, the default model first.")


class OllamaVersionResponse(BaseModel):
    """The response of /api/version."""

    version: str = Field(description="Version of the server.")


def served_name(name: str, names: Sequence[str]) -> str:
    """Return the name of a served model, without the tag that Ollama's clients add; `names` are the served names."""
    return name if name in names else name.removesuffix(TAG)


async def _encode(exchange: Exchange, name: str, texts: list[str], truncation: Truncation, **options: Any) -> Any:
    engine = exchange.find(served_name(name, exchange.lifecycle.models.names))
    inputs = TextInputs([cut(text, truncation, engine.info) for text in texts])
    request = EncodeRequest(inputs, truncation=truncation, **options)
    return await exchange.run("encode", engine, request, max_inputs=MAX_LISTED_INPUTS)


async def embed(exchange: Exchange, body: OllamaEmbedRequest) -> Any:
    """Return one embedding per text."""
    texts = [body.input] if isinstance(body.input, str) else body.input
    truncation: Truncation = "error" if body.truncate is False else "auto"
    response = await _encode(exchange, body.model, texts, truncation, dimensions=body.dimensions)
    return {
        "model": response.model,
        "embeddings": pooled_vectors(response),
        "total_duration": int(1e9 * (time.perf_counter() - exchange.record.started)),
        "load_duration": 0,
        "prompt_eval_count": response.token_count,
    }


async def embeddings(exchange: Exchange, body: OllamaEmbeddingsRequest) -> Any:
    """Return the embedding of a text."""
    response = await _encode(exchange, body.model, [body.prompt], "auto")
    return {"embedding": pooled_vectors(response)[0]}


async def tags(exchange: Exchange, body: None) -> Any:
    """Return the served models under each of their names; the first is the default model."""
    infos = exchange.lifecycle.models.infos
    return {"models": [_describe(info, name) for info in infos for name in (info.name, *info.aliases)]}


def _describe(info: ModelInfo, name: str) -> dict[str, Any]:
    details = {"format": "onnx", "family": info.model_type, "families": [info.model_type]}
    return {
        "name": name, "model": name, "modified_at": "1970-01-01T00:00:00Z", "size": 0,
        "digest": info.digest, "details": details,
    }  # fmt: skip


async def version(exchange: Exchange, body: None) -> Any:
    """Return the version of the server."""
    return {"version": __version__}


def _get(path: str, handler: Any, response: type[BaseModel]) -> Route:
    return Route(
        path, f"ollama_{handler.__name__}", handler, response, statuses=GET_STATUSES, headers=False, names_model=False
    )


API = Api(
    NAME,
    "ollama",
    "Ollama's API for embeddings.",
    (
        Route(
            "/api/embed", "ollama_embed", embed, OllamaEmbedResponse, (OllamaEmbedRequest,), shed="always",
            limits={"inputs": MAX_LISTED_INPUTS},
        ),
        Route(
            "/api/embeddings", "ollama_embeddings", embeddings, OllamaEmbeddingsResponse, (OllamaEmbeddingsRequest,),
            shed="always",
        ),
        _get("/api/tags", tags, OllamaModelsResponse),
        _get("/api/version", version, OllamaVersionResponse),
    ),
    Spelling({"inputs": "input"}, {"truncation": "truncate"}, values={"truncation": "true"}, cuts_texts=True),
    ("/api/",),
    OllamaErrorResponse,
    message_error,
)  # fmt: skip
