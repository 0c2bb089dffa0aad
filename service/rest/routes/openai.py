"""The OpenAI API: /v1/embeddings and /v1/models."""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

from attendant_client.types import (
    MAX_CHUNKED_CHARACTERS,
    Array,
    ChunkOptions,
    EncodeRequest,
    EncodingFormat,
    Input,
    ModelInfo,
    Role,
    TextInputs,
    Truncation,
)
from pydantic import AliasChoices, BaseModel, BeforeValidator, Discriminator, Field, Tag

from model.artifact.manifest import Role as RetrievalRole
from service.engine.engine import Engine
from service.errors import ConflictingFields, InvalidArgument, ServiceError, Unauthenticated
from service.operations.encode import pooled_vectors
from service.operations.inputs import MAX_LISTED_INPUTS, SPLIT, Wire, check_text, cut
from service.rest.api import GET_STATUSES, NAME_PARAMETER, WITHOUT_422, Api, Dimensions, Exchange, Route, status_400
from service.rest.bodies import (
    ENCODING_DESCRIPTION,
    IDS_LIST_TAG,
    IDS_TAG,
    LIST_TAG,
    MODEL_DESCRIPTION,
    OTHER_TAG,
    FirstError,
    Integers,
    PromptTokensRequest,
    TokenIds,
    count_inputs_or_ids,
    unknown_fields,
)
from service.rest.responses import Base64Rows, Table
from service.rest.routes.native import ModelList, ModelObject, describe_model
from service.spelling import Spelling

NAME = "openai"
MODELS_PATH = "/v1/models"
DEPLOYMENT = "/openai/deployments/{name}/embeddings"
DEPLOYMENT_PATH = re.compile(r"/openai/deployments/(?P<name>.+)/embeddings")
ROLES: dict[RetrievalRole, Role] = {"query": "query", "document": "document", "passage": "document"}
TASKS: dict[str, RetrievalRole] = {"retrieval.query": "query", "retrieval.passage": "passage"}
"""Prompt roles by Jina task."""
ERROR_TYPES = {401: "authentication_error", 429: "rate_limit_error"}


def _branch(value: Any) -> str:
    """Select the branch for `input` by its first item."""
    if isinstance(value, str):
        return OTHER_TAG
    if not isinstance(value, list):
        return LIST_TAG
    first = value[0] if value else ""
    if isinstance(first, list):
        return IDS_LIST_TAG
    return IDS_TAG if isinstance(first, int) else LIST_TAG


class EmbeddingsRequest(PromptTokensRequest):
    """The body of POST /v1/embeddings; `input_type` and `truncate` are extensions of OpenAI's API."""

    input: Annotated[
        Annotated[str, Tag(OTHER_TAG)]
        | Annotated[list[str], FirstError(), Tag(LIST_TAG)]
        | Annotated[Integers, Tag(IDS_TAG)]
        | Annotated[list[TokenIds], FirstError(), Tag(IDS_LIST_TAG)],
        Discriminator(_branch),
        BeforeValidator(count_inputs_or_ids),
    ] = Field(description="A text or a list of texts; token ids if the server allows them.")
    model: str | None = Field(None, description=MODEL_DESCRIPTION)
    encoding_format: EncodingFormat | None = Field(
        None, validation_alias=AliasChoices("encoding_format", "embedding_type"), description=ENCODING_DESCRIPTION
    )
    output_dtype: Literal["float"] | None = Field(None, description="Voyage's name of the type of the values.")
    normalized: bool | None = Field(
        None, description="Jina's field: whether to scale vectors to length 1; null does what the model does."
    )
    dimensions: Dimensions = Field(None, validation_alias=AliasChoices("dimensions", "output_dimension"))
    input_type: RetrievalRole | None = Field(
        None, description="Extension: kind of input; selects the prompt of the model for it, if any."
    )
    task: str | None = Field(
        None,
        description="Jina's name of `input_type`: `retrieval.query` or `retrieval.passage`. Others have no effect.",
    )
    late_chunking: bool = Field(
        False,
        description="Jina's field: whether the inputs are consecutive parts of one text, which is encoded as a whole.",
    )
    truncate: bool | None = Field(
        None,
        validation_alias=AliasChoices("truncate", "truncation"),
        description="Extension: whether to truncate inputs over the token limit. null does what ATTENDANT_TRUNCATE "
        "says.",
    )


class Embedding(BaseModel):
    """One embedding in the format of OpenAI."""

    object: Literal["embedding"]
    index: int = Field(description="Index of the input.")
    embedding: list[float] | str = Field(description="Embedding; float32, little-endian, in base64 if requested.")


class PromptUsage(BaseModel):
    """Token counts in the format of OpenAI."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingsResponse(BaseModel):
    """The response of /v1/embeddings."""

    object: Literal["list"]
    data: list[Embedding] = Field(description="One embedding per input, in the order of the inputs.")
    model: str
    usage: PromptUsage


class OpenAIErrorDetail(BaseModel):
    """One error in the format of OpenAI."""

    message: str
    type: str
    param: str | None
    code: str | None


class OpenAIErrorResponse(BaseModel):
    """The body of every error of the OpenAI API."""

    error: OpenAIErrorDetail


def prompt_usage(tokens: int) -> dict[str, int]:
    """Return the token counts of a request."""
    return {"prompt_tokens": tokens, "total_tokens": tokens}


def to_embeddings(vectors: Array, *, encoded: bool) -> Table:
    """Return embeddings (N, D) in the format of OpenAI."""
    names = ["embedding"] * len(vectors)
    return Table(object=names, index=range(len(vectors)), embedding=Base64Rows(vectors) if encoded else vectors)


def to_inputs(value: str | list[Any], truncation: Truncation, info: ModelInfo) -> Sequence[Input]:
    """Return the inputs. Validation has ensured that all items of a list have the same type."""
    if truncation != "error":
        value = cut(value, truncation, info) if isinstance(value, str) else [
            cut(item, truncation, info) if isinstance(item, str) else item for item in value
        ]  # fmt: skip
    if isinstance(value, str):
        return TextInputs((value,))
    if value and isinstance(value[0], int):
        return (Input(token_ids=tuple(value)),)
    if value and isinstance(value[0], str):
        return TextInputs(value)
    return tuple([Input(token_ids=tuple(item)) for item in value])


async def deployment_embeddings(exchange: Exchange, body: EmbeddingsRequest) -> Any:
    """Return one embedding per input, as Azure OpenAI does: the path contains the name or an alias of the model."""
    return await embeddings(exchange, body.model_copy(update={"model": exchange.request.path_params["name"]}))


async def embeddings(exchange: Exchange, body: EmbeddingsRequest) -> Any:
    """Return one embedding per input."""
    engine, encoded = exchange.find(body.model), body.encoding_format == "base64"
    truncation = exchange.truncation(body, engine)
    if body.truncate is not None:
        truncation = "auto" if body.truncate else "error"
    inputs = to_inputs(body.input, truncation, engine.info)
    if not exchange.services.reader.settings.openai_token_ids and any(item.token_ids is not None for item in inputs):
        raise InvalidArgument(
            "token ids are disabled (clients send ids of OpenAI's vocabulary, not of this model)",
            "Send text; with LangChain set check_embedding_ctx_length=False.",
            field="input", reason="TOKEN_IDS_DISABLED",
        )  # fmt: skip
    if body.task is not None and (body.task not in TASKS or body.input_type is not None):
        exchange.ignore((*unknown_fields(body), "task"), EmbeddingsRequest)
    kind = body.input_type or TASKS.get(body.task or "")
    request = EncodeRequest(
        inputs,
        dimensions=body.dimensions,
        normalize=body.normalized,
        truncation=truncation,
        prompt_name=engine.role_prompt_name(kind),
        role=None if kind is None else ROLES[kind],
    )
    wire: Wire = "base64" if encoded else "json"
    exchange.compress = not encoded
    if body.late_chunking:
        response = await _encode_parts(exchange, engine, request, wire)
        vectors = response.results[0].chunk_vectors
    else:
        response = await exchange.run("encode", engine, request, wire=wire, max_inputs=MAX_LISTED_INPUTS)
        vectors = pooled_vectors(response)
    data = to_embeddings(vectors, encoded=encoded)
    usage = prompt_usage(response.token_count)
    return {"object": "list", "data": data, "model": response.model, "usage": usage}


async def _encode_parts(exchange: Exchange, engine: Engine, request: EncodeRequest, wire: Wire) -> Any:
    """Return the response for a single text, with the inputs as its chunks."""
    spans, end = [], 0
    for index, item in enumerate(request.inputs):
        if item.text is None:
            raise ConflictingFields("not supported for token ids", "Send texts.", field="late_chunking")
        check_text(item.text, f"inputs[{index}]", MAX_CHUNKED_CHARACTERS, SPLIT)
        spans.append((end, end + len(item.text)))
        end += len(item.text) + 1
    whole = Input(" ".join([item.text or "" for item in request.inputs]), spans=tuple(spans))
    chunks = ChunkOptions(by="span", mode="late")
    try:
        return await exchange.run("encode", engine, replace(request, inputs=(whole,), chunks=chunks), wire=wire)
    except ServiceError as error:
        path = re.sub(r"^inputs\[0\]\.spans|^inputs\[0\]", "inputs", error.field or "")
        error.field = "late_chunking" if path.startswith("chunks") else path or None
        raise


async def list_models(exchange: Exchange, body: None) -> Any:
    """Return the served models; the first is the default model."""
    infos = exchange.lifecycle.models.infos
    return {"object": "list", "data": [await describe_model(info, info.name) for info in infos]}


async def retrieve_model(exchange: Exchange, body: None) -> Any:
    """Return the model of this name or alias."""
    name = exchange.request.path_params["name"]
    return await describe_model(exchange.find(name).info, name)


def render_error(error: ServiceError, request_id: str) -> dict[str, Any]:
    """Return OpenAI's error document."""
    kind = ERROR_TYPES.get(error.http_status, "invalid_request_error" if error.http_status < 500 else "server_error")
    code = "invalid_api_key" if isinstance(error, Unauthenticated) else error.reason.lower()
    return {"error": {"message": error.message, "type": kind, "param": error.field, "code": code}}


API = Api(
    NAME,
    "openai",
    "OpenAI's API for embeddings. docs/clients.md lists the clients that are tested with it.",
    (
        Route(
            "/v1/embeddings", "create_embeddings", embeddings, EmbeddingsResponse, (EmbeddingsRequest,),
            summary="Create embeddings", statuses=WITHOUT_422, limits={"inputs": MAX_LISTED_INPUTS}, shed="always",
        ),
        Route(
            "/embeddings", "create_embeddings_at_root", embeddings, EmbeddingsResponse, (EmbeddingsRequest,),
            summary="Create embeddings, for clients whose base URL lacks /v1", statuses=WITHOUT_422,
            limits={"inputs": MAX_LISTED_INPUTS}, shed="always",
        ),
        Route(
            DEPLOYMENT.replace("}", ":path}"), "create_deployment_embeddings", deployment_embeddings,
            EmbeddingsResponse, (EmbeddingsRequest,), summary="Create embeddings, for clients of Azure OpenAI",
            statuses=WITHOUT_422, limits={"inputs": MAX_LISTED_INPUTS}, shed="always", parameters=(NAME_PARAMETER,),
        ),
        Route(
            MODELS_PATH, "list_models", list_models, ModelList, summary="List models", tag="models",
            statuses=GET_STATUSES, headers=False, names_model=False,
        ),
        Route(
            MODELS_PATH + "/{name:path}", "retrieve_model", retrieve_model, ModelObject, summary="Retrieve a model",
            tag="models", statuses=GET_STATUSES, headers=False, parameters=(NAME_PARAMETER,),
        ),
    ),
    # A prompt that is not found must have been selected by `input_type`.
    Spelling(
        {"inputs": "input", "prompt_name": "input_type"},
        {"encoding_format": "encoding_format", "truncation": "truncate"},
        values={"truncation": "true"},
        cuts_texts=True,
    ),
    ("/v1/embeddings", "/embeddings", "/openai/", MODELS_PATH),
    OpenAIErrorResponse,
    render_error,
    status_400,
)  # fmt: skip
