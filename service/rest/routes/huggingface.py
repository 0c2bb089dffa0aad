"""The Hugging Face Inference API for tasks that text-embeddings-inference lacks: fill-mask and token-classification."""

from typing import Annotated, Any

from attendant_client.types import (
    DEFAULT_PREDICTIONS,
    MAX_PREDICTIONS,
    Aggregation,
    Entity,
    FilledPosition,
    FillMaskRequest,
    Input,
    TokenClassifyRequest,
)
from pydantic import BaseModel, Field

from model.artifact.tokenizer import Tokenizer
from service.rest.api import NAME_PARAMETER, Api, Exchange, Handler, Route, message_error
from service.rest.bodies import FirstError, ForeignModel, Texts, at_most
from service.rest.routes.native import returned_bytes
from service.spelling import Spelling
from service.steps import convert

NAME = "huggingface"
PREFIX = "/models/"
CONTINUATION = "##"
"""The prefix of WordPiece tokens that continue a word."""
INPUTS_DESCRIPTION = "A text, or a list of texts."


class FillMaskParameters(ForeignModel):
    """The parameters of fill-mask."""

    top_k: int | None = Field(
        None,
        description=f"Words per mask, 1 to {MAX_PREDICTIONS}; null selects {DEFAULT_PREDICTIONS}, or all targets.",
    )
    targets: Annotated[list[str], FirstError(), at_most("targets")] | None = Field(
        None, description="The only words to return, each an entry of the vocabulary or a text of one token."
    )


class HuggingFaceFillMaskRequest(ForeignModel):
    """The body of the task fill-mask."""

    inputs: Texts = Field(description=INPUTS_DESCRIPTION)
    parameters: FillMaskParameters | None = Field(None, description="Parameters of the task.")


class TokenClassificationParameters(ForeignModel):
    """The parameters of token-classification."""

    aggregation_strategy: Aggregation | None = Field(
        None, description="How to join labels of tokens to entities. null is `simple`."
    )


class HuggingFaceTokenClassificationRequest(ForeignModel):
    """The body of the task token-classification."""

    inputs: Texts = Field(description=INPUTS_DESCRIPTION)
    parameters: TokenClassificationParameters | None = Field(None, description="Parameters of the task.")


class HuggingFaceWord(BaseModel):
    """A word that the model predicts for a mask token."""

    score: float = Field(description="Probability of the word.")
    token: int = Field(description="Id of the token.")
    token_str: str = Field(description="The token as text.")
    sequence: str = Field(description="The text with the word in place of the mask token.")


class HuggingFaceEntity(BaseModel):
    """An entity; its label is `entity` without aggregation, and `entity_group` otherwise."""

    entity: str | None = Field(None, description="Label of a token.")
    entity_group: str | None = Field(None, description="Label of an entity.")
    score: float
    word: str = Field(description="The part of the text.")
    start: int = Field(description="First character.")
    end: int = Field(description="End character, exclusive.")


class HuggingFaceErrorResponse(BaseModel):
    """The body of every error of the Inference API."""

    error: str = Field(description="Message for people.")


async def fill_mask(exchange: Exchange, body: HuggingFaceFillMaskRequest) -> Any:
    """Return the words that the model predicts for mask tokens; with several masks in a text, a list per mask."""
    engine = exchange.find(exchange.request.path_params["name"])
    parameters = body.parameters or FillMaskParameters()
    texts, targets = [body.inputs] if isinstance(body.inputs, str) else body.inputs, parameters.targets
    count = parameters.top_k or (DEFAULT_PREDICTIONS if targets is None else len(targets))
    request = FillMaskRequest(
        tuple(map(Input, texts)), top_k=parameters.top_k, targets=None if targets is None else tuple(targets)
    )
    # The response repeats the whole text for each predicted word.
    size = sum(text.count(engine.info.mask_token or "") * count * returned_bytes([text]) for text in texts)
    response = await exchange.run("fill_mask", engine, request, returned_bytes=size)
    masks = [(text, mask) for text, result in zip(texts, response.results, strict=True) for mask in result.positions]
    described = iter(await convert(lambda item: describe_mask(*item, engine.tokenizer), masks))
    lists = [[next(described) for _ in result.positions] for result in response.results]
    words = [masks[0] if len(masks) == 1 else masks for masks in lists]
    return words[0] if isinstance(body.inputs, str) else words


def describe_mask(text: str, mask: FilledPosition, tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """Describe the words predicted for a mask."""
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
    """Append a token to a text. `written` is the decoded form of the vocabulary entry."""
    if token.startswith(CONTINUATION):
        return text.rstrip() + token.removeprefix(CONTINUATION)
    return text + (written.lstrip() if not text or text[-1].isspace() else written)


async def token_classification(exchange: Exchange, body: HuggingFaceTokenClassificationRequest) -> Any:
    """Return the entities of each text."""
    engine = exchange.find(exchange.request.path_params["name"])
    texts = [body.inputs] if isinstance(body.inputs, str) else body.inputs
    aggregation = (body.parameters and body.parameters.aggregation_strategy) or "simple"
    response = await exchange.run(
        "token_classify", engine, TokenClassifyRequest(tuple(map(Input, texts)), aggregation=aggregation)
    )
    label = "entity" if aggregation == "none" else "entity_group"
    entities = await convert(
        lambda result: [describe_entity(entity, label) for entity in result.entities], response.results
    )
    return entities[0] if isinstance(body.inputs, str) else entities


def describe_entity(entity: Entity, label: str) -> dict[str, Any]:
    """Describe an entity, with its label in the field named by `label`."""
    return {
        label: entity.label, "score": entity.score, "word": entity.text, "start": entity.start, "end": entity.end,
    }  # fmt: skip


def _task(name: str, handler: Handler, body: type[BaseModel], item: Any) -> Route:
    """Return the route of a task. The response is a list of one list per input, or one list for a single text."""
    lists = list[item] | list[list[item]] | list[list[list[item]]]
    return Route(
        f"{PREFIX}{{name:path}}/pipeline/{name}", f"huggingface_{name.replace('-', '_')}", handler, lists, (body,),
        parameters=(NAME_PARAMETER,),
    )  # fmt: skip


API = Api(
    NAME,
    "huggingface",
    "The Hugging Face Inference API for tasks that text-embeddings-inference lacks.",
    (
        _task("fill-mask", fill_mask, HuggingFaceFillMaskRequest, HuggingFaceWord),
        _task("token-classification", token_classification, HuggingFaceTokenClassificationRequest, HuggingFaceEntity),
    ),
    Spelling(
        {"aggregation": "parameters.aggregation_strategy"}
        | {name: f"parameters.{name}" for name in ("top_k", "targets")},
        {name: f"parameters.{name}" for name in ("top_k", "targets")},
    ),
    (PREFIX,),
    HuggingFaceErrorResponse,
    message_error,
)
