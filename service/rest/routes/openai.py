"""The OpenAI API: /v1/embeddings, and the errors of /v1/models."""

from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Request, Response
from pydantic import BeforeValidator, Discriminator, Field, Tag

from model.artifact.manifest import Role
from model.artifact.tokenizer import TokenizerInput
from service.engine.schema.encode import EncodeRequest, EncodeResponse, EncodeResult, Input, Side
from service.errors import InvalidArgument, MalformedRequest, ServiceError, Unauthenticated
from service.lifecycle import Lifecycle
from service.rest.codec import (
    ENCODING_DESCRIPTION,
    MODEL_DESCRIPTION,
    EncodingFormat,
    FirstError,
    Integers,
    StrictModel,
    TokenIds,
    body_schema,
    count_inputs_or_ids,
)
from service.rest.problems import IDS_LIST_TAG, IDS_TAG, LIST_TAG, OTHER_TAG
from service.rest.requests import RequestReader
from service.rest.responses import Base64, json_response, metadata_headers
from service.rest.routes import models
from service.rest.schemas import EmbeddingsResponseBody, OpenAIErrorBody, responses
from service.spelling import Spelling
from service.steps import convert

API = "openai"
EMBEDDINGS_PATH = "/v1/embeddings"
PATHS = (EMBEDDINGS_PATH, models.PATH)
MAX_INPUTS = 2048
SIDES: dict[Role, Side] = {"query": "query", "document": "document", "passage": "document"}

ERRORS = (400, 401, 403, 404, 408, 413, 415, 429, 500, 501, 503, 504)
ERROR_TYPES = {401: "authentication_error", 429: "rate_limit_error"}


def _branch(value: Any) -> str:
    """Select the kind of `input` by its first item."""
    if isinstance(value, str):
        return OTHER_TAG
    if not isinstance(value, list):
        return LIST_TAG
    first = value[0] if value else ""
    if isinstance(first, list):
        return IDS_LIST_TAG
    return IDS_TAG if isinstance(first, int) else LIST_TAG


OpenAIInput = Annotated[
    Annotated[str, Tag(OTHER_TAG)]
    | Annotated[list[str], FirstError(), Tag(LIST_TAG)]
    | Annotated[Integers, Tag(IDS_TAG)]
    | Annotated[list[TokenIds], FirstError(), Tag(IDS_LIST_TAG)],
    Discriminator(_branch),
    BeforeValidator(count_inputs_or_ids),
]


OPTIONS = {"wire": "encoding_format", "truncation": "truncate"}
IDS_SUFFIX = ".token_ids"
"""The end of paths to token ids, which are items of an array themselves in this API."""


class OpenAISpelling(Spelling):
    """The names of the OpenAI API in error messages."""

    def path(self, path: str) -> str:
        path = path.replace("inputs", "input", 1) if path.startswith("inputs") else path
        path = "input_type" if path == "prompt_name" else path  # which selects the prompt
        return path.removesuffix(IDS_SUFFIX)

    def value(self, field: str, value: str) -> str:
        return "true" if field == "truncation" else super().value(field, value)

    def option(self, field: str) -> str | None:
        return OPTIONS.get(field)


OPENAI = OpenAISpelling()


class EmbeddingsBody(StrictModel):
    """The body of POST /v1/embeddings; `input_type` and `truncate` are extensions of OpenAI's API."""

    input: OpenAIInput = Field(description="A text or a list of texts; token ids if the server allows them.")
    model: str = Field(description=MODEL_DESCRIPTION)
    encoding_format: EncodingFormat | None = Field(None, description=ENCODING_DESCRIPTION)
    dimensions: int | None = Field(
        None,
        description="Number of leading components to return (Matryoshka truncation).",
        json_schema_extra={"minimum": 1},
    )
    user: str | None = Field(None, description="Ignored.")
    input_type: Role | None = Field(
        None, description="Extension: kind of input; selects the prompt of the model for it, if any."
    )
    truncate: bool = Field(False, description="Extension: whether to truncate inputs over the token limit.")


BODIES = (EmbeddingsBody,)


def make_router(lifecycle: Lifecycle, reader: RequestReader) -> APIRouter:
    """Return the routes of this API."""
    router = APIRouter(tags=["openai"])

    @router.post(
        EMBEDDINGS_PATH,
        operation_id="create_embeddings",
        summary="Create embeddings",
        responses=responses(EmbeddingsResponseBody, OpenAIErrorBody, ERRORS),
        openapi_extra=body_schema(EmbeddingsBody),
    )
    async def embeddings(request: Request) -> Response:
        """Return one embedding per input."""
        body = await reader.read(request, EmbeddingsBody, inputs=MAX_INPUTS)
        engine = lifecycle.models.find(body.model)
        inputs = await _inputs(body.input)
        if not reader.settings.openai_token_ids and any(item.source.token_ids is not None for item in inputs):
            raise InvalidArgument(
                "token ids are disabled (clients send ids of OpenAI's vocabulary, not of this model)",
                "Send text; with LangChain set check_embedding_ctx_length=False.",
                field="input", reason="TOKEN_IDS_DISABLED",
            )  # fmt: skip
        work = engine.encode(
            EncodeRequest(
                inputs=inputs,
                dimensions=body.dimensions,
                truncation="auto" if body.truncate else "error",
                prompt_name=engine.role_prompt_name(body.input_type),
                role=None if body.input_type is None else SIDES[body.input_type],
                wire="base64" if body.encoding_format == "base64" else "json",
                deadline=reader.deadline(request),
                max_inputs=MAX_INPUTS,
            )
        )
        response = await work
        headers = metadata_headers(response, engine.info.digest)
        document = await _document(response, body.encoding_format)
        return await json_response(request, document, headers, compress=body.encoding_format != "base64")

    return router


def render_error(error: ServiceError) -> bytes:
    """Return OpenAI's error body."""
    kind = ERROR_TYPES.get(error.http_status, "invalid_request_error" if error.http_status < 500 else "server_error")
    return orjson.dumps(
        {
            "error": {
                "message": error.message,
                "type": kind,
                "param": error.field,
                "code": "invalid_api_key" if isinstance(error, Unauthenticated) else error.reason.lower(),
            }
        }
    )


def http_status(error: ServiceError) -> int:
    """Return the HTTP status of an error; the OpenAI API uses 400 for all invalid content."""
    return MalformedRequest.http_status if isinstance(error, InvalidArgument) else error.http_status


async def _inputs(value: str | list[str] | list[int] | list[list[int]]) -> tuple[Input, ...]:
    """Return the inputs; validation has made sure that all items of a list have one type."""
    if isinstance(value, str):
        return (Input(TokenizerInput(value)),)
    ids = tuple(item for item in value if isinstance(item, int))
    if ids:
        return (Input(TokenizerInput(token_ids=ids)),)
    return tuple(await convert(_input, [item for item in value if not isinstance(item, int)]))


def _input(value: str | list[int]) -> Input:
    return Input(TokenizerInput(value) if isinstance(value, str) else TokenizerInput(token_ids=tuple(value)))


async def _document(response: EncodeResponse, encoding: EncodingFormat | None) -> dict[str, Any]:
    def describe(item: tuple[int, EncodeResult]) -> dict[str, Any]:
        return {"object": "embedding", "index": item[0], "embedding": _embedding(item[1], encoding)}

    return {
        "object": "list",
        "data": await convert(describe, list(enumerate(response.results))),
        "model": response.model,
        "usage": {"prompt_tokens": response.token_count, "total_tokens": response.token_count},
    }


def _embedding(result: EncodeResult, encoding: EncodingFormat | None) -> Any:
    assert result.pooled is not None
    return Base64(result.pooled) if encoding == "base64" else result.pooled.values
