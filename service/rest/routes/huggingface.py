"""The Hugging Face Inference API for tasks that text-embeddings-inference lacks: fill-mask and token-classification."""

from collections.abc import Callable
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Path, Request, Response
from fastapi.types import DecoratedCallable
from pydantic import BaseModel, Field

from model.artifact.tokenizer import TokenizerInput
from service.engine.operations.fill_mask import DEFAULT_TOP_K, MAX_TOP_K
from service.engine.schema.encode import Input
from service.engine.schema.entities import Aggregation, Entity, TokenClassifyRequest
from service.engine.schema.fill_mask import FilledPosition, FillMaskRequest
from service.engine.tokenizer import ServingTokenizer
from service.errors import ServiceError
from service.lifecycle import Lifecycle
from service.rest.codec import FirstError, StrictModel, Texts, at_most, body_schema
from service.rest.head_schemas import HuggingFaceEntityBody, HuggingFaceErrorBody, HuggingFaceWordBody
from service.rest.requests import RequestReader
from service.rest.responses import json_response, metadata_headers
from service.rest.routes.ranking import returned_bytes
from service.rest.schemas import responses
from service.spelling import Spelling
from service.steps import convert

API = "huggingface"
PREFIX = "/models/"
MODEL_PATH = f"{PREFIX}{{name:path}}/pipeline"
FILL_MASK_PATH, TOKEN_CLASSIFY_PATH = (f"{MODEL_PATH}/{task}" for task in ("fill-mask", "token-classification"))
CONTINUATION = "##"
"""The prefix of WordPiece tokens that continue a word."""
ModelName = Annotated[str, Path(description="Name or alias of the model.")]
INPUTS_DESCRIPTION = "A text, or a list of texts."


class HuggingFaceSpelling(Spelling):
    """Names of the Inference API in error messages."""

    def path(self, path: str) -> str:
        if path == "aggregation":
            return "parameters.aggregation_strategy"
        return f"parameters.{path}" if path.startswith(("top_k", "targets")) else path

    def option(self, field: str) -> str | None:
        return self.path(field) if field in ("top_k", "targets") else None


HUGGINGFACE = HuggingFaceSpelling()


class FillMaskParametersBody(StrictModel):
    """The parameters of fill-mask."""

    top_k: int | None = Field(
        None, description=f"Words per mask, 1 to {MAX_TOP_K}; null selects {DEFAULT_TOP_K}, or all targets."
    )
    targets: Annotated[list[str], FirstError(), at_most("targets")] | None = Field(
        None, description="The only words to return, each an entry of the vocabulary or a text of one token."
    )


class HuggingFaceFillMaskBody(StrictModel):
    """The body of the task fill-mask."""

    inputs: Texts = Field(description=INPUTS_DESCRIPTION)
    parameters: FillMaskParametersBody | None = Field(None, description="Parameters of the task.")


class TokenClassificationParametersBody(StrictModel):
    """The parameters of token-classification."""

    aggregation_strategy: Aggregation | None = Field(
        None, description="How to join labels of tokens to entities. null is `simple`."
    )


class HuggingFaceTokenClassificationBody(StrictModel):
    """The body of the task token-classification."""

    inputs: Texts = Field(description=INPUTS_DESCRIPTION)
    parameters: TokenClassificationParametersBody | None = Field(None, description="Parameters of the task.")


BODIES = (HuggingFaceFillMaskBody, HuggingFaceTokenClassificationBody)


def make_router(lifecycle: Lifecycle, reader: RequestReader) -> APIRouter:
    """Return the routes of this API. A response is a list of one list per input, or the list of a single text."""
    router = APIRouter(tags=["huggingface"])

    @post(router, FILL_MASK_PATH, HuggingFaceFillMaskBody, HuggingFaceWordBody)
    async def fill_mask(request: Request, name: ModelName) -> Response:
        """Return the words that the model predicts for mask tokens; with several masks in a text, a list per mask."""
        body = await reader.read(request, HuggingFaceFillMaskBody)
        engine, parameters = lifecycle.models.find(name), body.parameters or FillMaskParametersBody()
        texts, targets = texts_of(body.inputs), parameters.targets
        count = parameters.top_k or (DEFAULT_TOP_K if targets is None else len(targets))
        response = await engine.fill_mask(
            FillMaskRequest(
                inputs_of(texts),
                top_k=parameters.top_k,
                targets=None if targets is None else tuple(targets),
                returned_bytes=sequence_bytes(texts, engine.info.mask_token, count),
                deadline=reader.deadline(request),
            )
        )
        masks = [
            (text, mask) for text, result in zip(texts, response.results, strict=True) for mask in result.positions
        ]
        described = iter(await convert(lambda item: describe_mask(*item, engine.tokenizer), masks))
        lists = [[next(described) for _ in result.positions] for result in response.results]
        words = [own[0] if len(own) == 1 else own for own in lists]
        headers = metadata_headers(response, engine.info.digest)
        return await json_response(request, words[0] if isinstance(body.inputs, str) else words, headers)

    @post(router, TOKEN_CLASSIFY_PATH, HuggingFaceTokenClassificationBody, HuggingFaceEntityBody)
    async def token_classification(request: Request, name: ModelName) -> Response:
        """Return the entities of each text."""
        body = await reader.read(request, HuggingFaceTokenClassificationBody)
        engine, parameters = lifecycle.models.find(name), body.parameters or TokenClassificationParametersBody()
        aggregation = parameters.aggregation_strategy or "simple"
        response = await engine.token_classify(
            TokenClassifyRequest(inputs_of(texts_of(body.inputs)), aggregation, deadline=reader.deadline(request))
        )
        label = "entity" if aggregation == "none" else "entity_group"
        entities = await convert(
            lambda result: [describe_entity(entity, label) for entity in result.entities], response.results
        )
        headers = metadata_headers(response, engine.info.digest)
        return await json_response(request, entities[0] if isinstance(body.inputs, str) else entities, headers)

    return router


def post(
    router: APIRouter, path: str, body: type[StrictModel], item: type[BaseModel]
) -> Callable[[DecoratedCallable], DecoratedCallable]:
    """Return a decorator for the route of a task; `item` is the schema of the items of a response."""
    name = path.rpartition("/")[2].replace("-", "_")
    lists: Any = list[item] | list[list[item]] | list[list[list[item]]]  # type: ignore[valid-type]
    described = responses(lists, HuggingFaceErrorBody)
    return router.post(
        path, operation_id=f"huggingface_{name}", responses=described, openapi_extra=body_schema(body)
    )  # fmt: skip


def texts_of(inputs: str | list[str]) -> list[str]:
    return [inputs] if isinstance(inputs, str) else inputs


def inputs_of(texts: list[str]) -> tuple[Input, ...]:
    return tuple(Input(TokenizerInput(text)) for text in texts)


def sequence_bytes(texts: list[str], mask_token: str | None, words: int) -> int:
    """Return the greatest size of all `sequence` values, each of which repeats its text."""
    return sum(text.count(mask_token or "") * words * returned_bytes([text]) for text in texts)


def describe_mask(text: str, mask: FilledPosition, tokenizer: ServingTokenizer) -> list[dict[str, Any]]:
    """Return the words of a mask."""
    before, after = text[: mask.start], text[mask.end :]
    return [
        {
            "score": word.probability,
            "token": word.id,
            "token_str": (written := tokenizer.decode([word.id], skip_special_tokens=False)),
            "sequence": f"{join(before, word.token, written)}{after}",
        }
        for word in mask.layers[0].predictions
    ]


def join(text: str, token: str, written: str) -> str:
    """Return a text that ends with a token: an entry of the vocabulary, `written` on its own."""
    if token.startswith(CONTINUATION):
        return text.rstrip() + token.removeprefix(CONTINUATION)
    return text + (written.lstrip() if not text or text[-1].isspace() else written)


def describe_entity(entity: Entity, label: str) -> dict[str, Any]:
    """Return an entity whose label has the name `label`."""
    return {
        label: entity.label, "score": entity.score, "word": entity.text, "start": entity.start, "end": entity.end,
    }  # fmt: skip


def render_error(error: ServiceError) -> bytes:
    """Return the error body of the Inference API."""
    return orjson.dumps({"error": error.message})
