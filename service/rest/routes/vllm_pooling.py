"""The tasks of vLLM's /pooling as requests of the engine."""

import array
import base64
import sys
from collections.abc import Sequence
from typing import Any

from service.engine.encode.pooling import normalize
from service.engine.engine import Engine
from service.engine.schema.encode import Array, EncodeRequest, EncodeResponse, Input
from service.engine.schema.labels import ClassifyRequest, ClassifyResponse, ClassifyResult
from service.errors import ConflictingFields
from service.rest.responses import Base64
from service.rest.routes.vllm_bodies import VllmPoolingBody
from service.steps import convert

RAW_FIELDS = ("normalize", "use_activation", "activation", "softmax")
"""Fields of which false selects raw values."""


async def pool(
    body: VllmPoolingBody, engine: Engine, inputs: tuple[Input, ...], deadline: float | None
) -> tuple[EncodeResponse | ClassifyResponse, list[Any]]:
    """Return the engine's response, and the data of each input."""
    task = body.task or ("classify" if "classify" in engine.info.operations else "token_embed")
    raw = body.raw_scores or body.normalize is False
    if body.dimensions is not None and task != "embed":
        raise ConflictingFields(f'not supported for the task "{task}"', "Leave it out.", field="dimensions")
    if task == "classify":
        scored = await engine.classify(
            ClassifyRequest(inputs, raw_scores=raw, truncation=body.truncation(engine), deadline=deadline)
        )
        labels, as_bytes = engine.info.labels, body.encoding_format == "base64"
        scores = [in_order(result, labels) for result in scored.results]
        return scored, [_to_base64(item) for item in scores] if as_bytes else scores
    is_multi_vector = task == "token_embed" and "multi_vector" in engine.info.outputs
    if is_multi_vector and raw:
        raise ConflictingFields(
            "not supported for the token vectors of this model, which have length 1", "Leave it out.",
            field=next(name for name in RAW_FIELDS if getattr(body, name) is False),
        )  # fmt: skip
    response = await engine.encode(
        EncodeRequest(
            inputs,
            outputs=("pooled",) if task == "embed" else ("multi_vector",) if is_multi_vector else ("tokens",),
            normalize=not raw if task == "embed" else None,
            dimensions=body.dimensions,
            truncation=body.truncation(engine),
            wire="base64" if body.encoding_format == "base64" else "json",
            deadline=deadline,
        )
    )
    names = {"embed": "pooled", "token_embed": "multi_vector" if is_multi_vector else "token_vectors"}
    vectors = [getattr(result, names[task]) for result in response.results]
    scale = task == "token_embed" and not is_multi_vector and not raw

    def encode(item: Array) -> Any:
        scaled = Array(normalize(item.values), item.dtype) if scale else item
        return Base64(scaled) if body.encoding_format == "base64" else scaled.values

    return response, await convert(encode, vectors)


def in_order(result: ClassifyResult, labels: Sequence[str]) -> list[float]:
    """Return the score of each label, in the order of the labels."""
    scores = {label.label: label.score for label in result.labels}
    return [scores[label] for label in labels]


def _to_base64(scores: Sequence[float]) -> str:
    """Return the bytes of scores as float32, little-endian."""
    numbers = array.array("f", scores)
    if sys.byteorder == "big":
        numbers.byteswap()
    return base64.b64encode(numbers.tobytes()).decode("ascii")
