"""The operations of the TEI API, as requests of the engine. Prompts and truncation are TEI's."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from model.artifact.tokenizer import TokenizerInput
from service.engine.engine import Engine
from service.engine.operations.inputs import prompt_not_found
from service.engine.schema.decode import DecodeRequest
from service.engine.schema.encode import (
    EncodeRequest,
    EncodeResponse,
    Input,
    Token,
    TokenizeRequest,
    TokenizeResult,
    Truncation,
    Wire,
)
from service.engine.schema.labels import ClassifyRequest, ClassifyResponse, RerankRequest, RerankResponse
from service.engine.schema.model import ModelInfo
from service.errors import ConflictingFields, Empty, MissingHead, ServiceError, WrongShape
from service.limits import cut

Item = str | list[int]
"""A text, or its token ids."""


@dataclass(frozen=True, slots=True)
class Options:
    """The options that operations have in common; `wire` and `deadline` are as in `EncodeRequest`."""

    truncation: Truncation = "error"
    prompt_name: str | None = None
    wire: Wire = "json"
    deadline: float | None = None


async def embed(
    engine: Engine, items: Sequence[Item], options: Options, *, normalize: bool, dimensions: int | None
) -> EncodeResponse:
    """Return the embedding of each item."""
    return await engine.encode(
        EncodeRequest(
            to_inputs(items, options.truncation, engine),
            normalize=normalize,
            dimensions=dimensions,
            truncation=options.truncation,
            prompt_name=options.prompt_name,
            wire=options.wire,
            deadline=options.deadline,
        )
    )


async def embed_all(engine: Engine, items: Sequence[Item], options: Options) -> EncodeResponse:
    """Return one vector per token of each item, including special tokens and the prompt."""
    prompt = prompt_text(engine.info, options.prompt_name, "prompt_name")
    if options.prompt_name is not None and not all(isinstance(item, str) for item in items):
        raise ConflictingFields("not supported for token ids", "Send texts.", field="prompt_name")
    return await engine.encode(
        # As a part of the text, the prompt has token vectors too; the engine leaves out its own prompts' vectors.
        EncodeRequest(
            to_inputs(items, options.truncation, engine, prompt),
            outputs=("tokens",),
            truncation=options.truncation,
            prompt="",
            wire=options.wire,
            deadline=options.deadline,
        )
    )


async def embed_sparse(engine: Engine, items: Sequence[Item], options: Options) -> EncodeResponse:
    """Return the sparse vector of each item. Raises `MissingHead`."""
    if "sparse" not in engine.info.outputs:
        raise MissingHead("The model has no sparse vectors", "Use a SPLADE model or BGE-M3.")
    return await engine.encode(
        EncodeRequest(
            to_inputs(items, options.truncation, engine),
            outputs=("sparse",),
            truncation=options.truncation,
            prompt_name=options.prompt_name,
            wire=options.wire,
            deadline=options.deadline,
        )
    )


async def predict(
    engine: Engine, items: Sequence[Sequence[str]], options: Options, *, raw_scores: bool
) -> ClassifyResponse:
    """Return the labels of each text or pair, best first. Raises `MissingHead`."""
    if "classify" not in engine.info.operations:
        raise MissingHead("The model is not a classification model", "Use another model.")
    return await engine.classify(
        ClassifyRequest(
            tuple(Input(_source([cut(text, options.truncation, engine.info) for text in item])) for item in items),
            raw_scores=raw_scores,
            truncation=options.truncation,
            wire=options.wire,
            deadline=options.deadline,
        )
    )


async def rerank(
    engine: Engine, query: str, texts: Sequence[str], options: Options, *, raw_scores: bool, returned_bytes: int = 0
) -> RerankResponse:
    """Return the texts by their score, best first; `returned_bytes` is as in `RerankRequest`. Raises `MissingHead`."""
    check_ranks(engine)
    with _documents_as_texts():
        return await engine.rerank(
            RerankRequest(
                cut(query, options.truncation, engine.info),
                tuple(cut(text, options.truncation, engine.info) for text in texts),
                raw_scores=raw_scores,
                truncation=options.truncation,
                returned_bytes=returned_bytes,
                wire=options.wire,
                deadline=options.deadline,
            )
        )


async def tokenize(engine: Engine, texts: Sequence[str], options: Options) -> list[tuple[str, TokenizeResult]]:
    """Return each text with its prompt, and its tokens."""
    prompt = prompt_text(engine.info, options.prompt_name, "prompt_name")
    inputs = to_inputs(texts, "error", engine, prompt)
    response = await engine.tokenize(TokenizeRequest(inputs, wire=options.wire, deadline=options.deadline))
    joined = [item.source.text or "" for item in inputs]
    return list(zip(joined, response.results, strict=True))


async def decode(
    engine: Engine, token_ids: Sequence[Sequence[int]], *, skip_special_tokens: bool, deadline: float | None
) -> list[str]:
    """Return the text of each sequence of token ids."""
    return await engine.decode(DecodeRequest(tuple(map(tuple, token_ids)), skip_special_tokens, deadline))


def check_not_empty(items: Sequence[Any], field: str) -> None:
    """Raise `Empty` for an empty list. An empty text has an error of its own."""
    if not items and not isinstance(items, str):
        raise Empty("empty", "Send at least one item.", field=field)


def check_ranks(engine: Engine) -> None:
    """Raise `MissingHead` unless the model is a cross-encoder."""
    if len(engine.info.labels) != 1:
        raise MissingHead("The model is not a reranking model", "Use a cross-encoder.")


def check_pair(texts: Sequence[str], field: str) -> None:
    """Raise `InvalidArgument` unless the input of a classifier has one or two texts."""
    if len(texts) not in (1, 2):
        raise WrongShape(
            "wrong number of texts", "Send one or two.", field=field, actual=len(texts), minimum=1, maximum=2
        )


def to_inputs(items: Sequence[Item], truncation: Truncation, engine: Engine, prompt: str = "") -> tuple[Input, ...]:
    """Return the engine's inputs, with `prompt` as a part of each text."""
    return tuple(
        Input(
            TokenizerInput(cut(_prepend(prompt, item), truncation, engine.info))
            if isinstance(item, str)
            else TokenizerInput(token_ids=engine.content_ids(item))
        )
        for item in items
    )


def prompt_text(info: ModelInfo, name: str | None, field: str) -> str:
    """Return the text of a prompt of the model, or of its default prompt; "" if there is none."""
    if name is None:
        return info.prompts[info.default_prompt_name] if info.default_prompt_name is not None else ""
    if name not in info.prompts:
        raise prompt_not_found(name, info.prompts, field)
    return info.prompts[name]


def describe_tokens(text: str, tokens: Sequence[Token], *, special: bool) -> list[dict[str, Any]]:
    """Return tokens as TEI does, with offsets in bytes of UTF-8; `special`: whether to return special tokens."""
    described = []
    characters = position = 0  # the same place of the text in characters and in bytes
    for token in tokens:
        if token.special:
            if special:
                described.append(_token(token, None, None))
            continue
        if token.start < characters:  # tokens may overlap
            characters = position = 0
        position += len(text[characters : token.start].encode())
        characters = token.start
        described.append(_token(token, position, position + len(text[token.start : token.end].encode())))
    return described


def _token(token: Token, start: int | None, stop: int | None) -> dict[str, Any]:
    return {"id": token.id, "text": token.text, "special": token.special, "start": start, "stop": stop}


def _source(texts: Sequence[str]) -> TokenizerInput:
    text, *pair = texts
    return TokenizerInput(text, pair[0] if pair else None)


def _prepend(prompt: str, text: str) -> str:
    """Return the text after the prompt; a blank text alone, so that the engine rejects it."""
    return text if not text or text.isspace() else prompt + text


@contextmanager
def _documents_as_texts() -> Iterator[None]:
    """Name documents as the API does, in errors."""
    try:
        yield
    except ServiceError as error:
        if error.field is not None:
            error.field = error.field.replace("documents", "texts", 1)
        raise
